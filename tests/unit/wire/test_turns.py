"""Turns are found in a wire log, however large, damaged or interrupted it is."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions import _fs
from kimi_sessions._lines import iter_lines
from kimi_sessions.wire.turns import Turn, TurnFold, TurnScan, read_turns, scan_turns

VERSIONS = ("0.84", "1.52.0", "chain")


def line(kind: str, at: object = 1.0, **payload: Any) -> bytes:
    """Make one record's line."""
    return json.dumps({"timestamp": at, "message": {"type": kind, "payload": payload}}).encode() + b"\n"


def begin(text: object, at: object = 1.0) -> bytes:
    """Make a TurnBegin's line."""
    return line("TurnBegin", at, user_input=text)


END = line("TurnEnd", 2.0)


@contextmanager
def opened(path: Path, data: bytes) -> Iterator[int]:
    """Write a log and open it."""
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def turns_of(path: Path, data: bytes) -> list[Turn]:
    """Give the turns of a log with this content."""
    path.write_bytes(data)
    return read_turns(path)


def slowly(fd: int) -> list[Turn]:
    """Give the turns by feeding every line, as the scan promises to agree with."""
    fold = TurnFold()
    for offset, each in iter_lines(fd):
        fold.feed_line(each, offset)
    return fold.turns


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a place for a log."""
    return tmp_path / "wire.jsonl"


def test_a_missing_or_empty_log_has_no_turns(log: Path) -> None:
    """A session that never ran has no turns."""
    assert read_turns(log) == []
    assert turns_of(log, b"") == []


def test_a_turn_tells_text_times_and_place(log: Path) -> None:
    """Text, times in epoch seconds, and the bytes from the beginning of TurnBegin to the end of TurnEnd."""
    header = b'{"type": "metadata", "protocol_version": "1.10"}\n'
    first = begin("hello", 10.5)
    data = header + first + line("StepBegin", n=1) + line("TurnEnd", 12.5)
    [turn] = turns_of(log, data)
    assert turn == Turn(0, "hello", 10.5, 12.5, len(header), len(data) - 1)


@pytest.mark.parametrize(
    "user_input, text",
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}], "two parts"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], ""),
        (["bare", {"type": "text", "text": "text"}], "bare text"),
        (None, ""),
        (7, ""),
        ("x" * 5000, "x" * 5000),
        ("\ud800 lone", "\ud800 lone"),
    ],
)
def test_the_text_of_a_turn_is_its_prompts_whole(log: Path, user_input: object, text: str) -> None:
    """Text parts are joined with a space and nothing is shortened; media have no text."""
    assert [turn.user_text for turn in turns_of(log, begin(user_input))] == [text]


def test_an_interrupted_turn_has_no_end_and_does_not_take_the_next_ones(log: Path) -> None:
    """The end that follows closes the turn begun last."""
    first, second = turns_of(log, begin("cut off") + begin("whole") + END)
    assert (first.ended_at, first.end_offset) == (None, None)
    assert second.ended_at == 2.0


def test_turns_inside_a_turn_are_turns_and_the_outer_one_ends_last(log: Path) -> None:
    """A flow's prompts count, in file order, and so does the command around them."""
    data = begin("/flow:x") + begin("a") + END + begin("b") + END + line("TurnEnd", 9.0) + begin("next")
    outer, a, b, following = turns_of(log, data)
    assert [turn.user_text for turn in (outer, a, b, following)] == ["/flow:x", "a", "b", "next"]
    assert (outer.ended_at, a.ended_at, b.ended_at) == (9.0, 2.0, 2.0)


def test_a_subagents_turn_is_not_the_sessions(log: Path) -> None:
    """What is wrapped in a SubagentEvent belongs to the subagent."""
    inner = line("SubagentEvent", event={"type": "TurnBegin", "payload": {"user_input": "inner"}})
    ended = line("SubagentEvent", event={"type": "TurnEnd", "payload": {}})
    [turn] = turns_of(log, begin("outer") + inner + ended)
    assert turn.user_text == "outer"
    assert turn.ended_at is None


def test_words_in_a_reply_begin_no_turn(log: Path) -> None:
    """A record that quotes a type's name is what its own type says."""
    said = line("ContentPart", type="text", text='{"message": {"type": "TurnBegin"}} TurnEnd')
    assert len(turns_of(log, begin("one") + said)) == 1


def test_a_torn_prompt_is_no_turn_and_what_is_glued_to_it_is_one(log: Path) -> None:
    """A client went on right behind its torn record: the whole record is found where it begins."""
    torn = begin("torn away")[:40]
    [turn] = turns_of(log, torn + begin("whole"))
    assert (turn.user_text, turn.offset) == ("whole", 40)


def test_two_records_on_a_line_are_two(log: Path) -> None:
    """A lost newline loses nothing else."""
    data = begin("a").rstrip() + END.rstrip() + begin("b")
    a, b = turns_of(log, data)
    assert (a.end_offset, b.offset) == (len(begin("a")) + len(END) - 2,) * 2


@pytest.mark.parametrize("at", [float("nan"), float("inf"), "nan"])
def test_a_time_that_is_no_time_is_none(log: Path, at: object) -> None:
    """A turn whose time can't be read is a turn all the same."""
    [turn] = turns_of(log, begin("a", at) + line("TurnEnd", at))
    assert (turn.started_at, turn.ended_at) == (None, None)
    assert turn.end_offset is not None


def test_a_numeric_text_is_a_time(log: Path) -> None:
    """Old records hold times as text."""
    [turn] = turns_of(log, begin("a", "12.5"))
    assert turn.started_at == 12.5


def test_a_prompt_of_many_megabytes_is_found_over_the_edges_of_reads(log: Path) -> None:
    """A line longer than several reads is still one line."""
    image = {"type": "image_url", "image_url": {"url": "data:" + "A" * (3 << 20)}}
    data = begin("before") + begin([{"type": "text", "text": "look"}, image]) + END
    assert [turn.user_text for turn in turns_of(log, data)] == ["before", "look"]


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_scan_goes_on_where_an_earlier_one_stopped(log: Path, cut: int) -> None:
    """A log that grew by any number of bytes gives the same turns as one read whole, and is not read again."""
    data = begin("a") + END + begin("b") + line("ContentPart", type="text", text="x" * 50) + END + begin("c")
    with opened(log, data) as fd:
        whole = scan_turns(fd)
        half = scan_turns(fd, cut)
        assert half.offset <= cut
        reads: list[int] = []

        class Recording(_fs.OsFileSystem):
            @staticmethod
            def pread(fd: int, length: int, offset: int) -> bytes:
                reads.append(offset)
                return os.pread(fd, length, offset)

        with _fs.using(Recording()):
            assert scan_turns(fd, after=half) == whole
        assert min(reads) >= half.offset


def damaged(data: bytes, seed: int) -> bytes:
    """Damage a log as crashes, full disks and editors do."""
    pick = random.Random(seed)
    for _ in range(pick.randint(1, 6)):
        at = pick.randrange(len(data) + 1)
        kind = pick.randrange(6)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + data[at + pick.randrange(200) :]
        elif kind == 2:
            data = data[:at] + bytes(pick.randrange(256) for _ in range(3)) + data[at:]
        elif kind == 3:
            newline = data.find(b"\n", at)
            data = data if newline < 0 else data[:newline] + data[newline + 1 :]
        elif kind == 4:
            data = data[:at] + b"\0" * 40 + data[at:]
        else:
            data = data[:at] + data[at : at + 300] + data[at:]
    return data


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fast_way_finds_what_the_slow_way_finds_in_damaged_logs(
    corpus: Callable[[str], Path], tmp_path: Path, version: str
) -> None:
    """Reading few lines gives what decoding every line gives, whatever happened to the log."""
    logs = sorted(corpus(version).glob("sessions/*/*/wire.jsonl"))
    assert logs
    for number, path in enumerate(logs):
        data = path.read_bytes()
        for seed in range(3):
            with opened(tmp_path / "w", data if seed == 0 else damaged(data, 100 * number + seed)) as fd:
                assert list(scan_turns(fd).turns) == slowly(fd)


PIECES = st.sampled_from(
    [
        begin("a"),
        begin([{"type": "text", "text": "b"}]),
        END,
        line("ContentPart", type="text", text="TurnBegin"),
        b"TurnEnd\n",
        b"\n",
        b"\0\0\0",
        b'{"timestamp": 1, "mess',
        b'{"type": "metadata", "protocol_version": "1.1"}\n',
        begin("a").rstrip(),
        b'{"timestamp":1,"message":{"type":"TurnBegin","payload":null}}\n',
        b'{"timestamp":1,"message":{"type":"TurnBegin","payload":{"user_input":"\\ud800"}}}\n',
        b'{"timestamp":12345678901234567890123,"message":{"type":"TurnEnd","payload":{}}}\n',
        b'[{"timestamp":1,"message":{"type":"TurnEnd","payload":{}}}]\n',
    ]
)


@given(st.lists(PIECES, max_size=12), st.integers(0, 200))
def test_the_fast_way_and_the_slow_way_agree_on_any_log(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], cut: int
) -> None:
    """Also when the log is read in two goes."""
    data = b"".join(pieces)
    path = tmp_path_factory.getbasetemp() / "any"
    with opened(path, data) as fd:
        whole = scan_turns(fd)
        assert list(whole.turns) == slowly(fd)
        assert scan_turns(fd, after=scan_turns(fd, min(cut, len(data)))) == whole
        assert scan_turns(fd, after=TurnScan()) == whole
