"""A wire log gives back every record that was acknowledged, whatever lies between, and tells what it passed over."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions.errors import InvalidRecordError, SessionNotFoundError, WriteError
from kimi_sessions.findings import Finding
from kimi_sessions.wire import (
    WIRE_PROTOCOL_VERSION,
    StatusUpdate,
    TextPart,
    TurnBegin,
    TurnEnd,
    WireFile,
    WireMessage,
    WireMessageRecord,
    parse_wire_file_line,
)

HEADER = b'{"type": "metadata", "protocol_version": "1.10"}'


def line(n: int, **payload: Any) -> bytes:
    """Give a whole record as a line without its newline."""
    return json.dumps({"timestamp": float(n), "message": {"type": "TurnEnd", "payload": payload}}).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the path of a log that is not there yet."""
    return tmp_path / "wire.jsonl"


async def times(wire: WireFile, start_offset: int = 0) -> list[float]:
    """Give the time stamps of the records, which are their names here."""
    return [record.timestamp async for record in wire.iter_records(start_offset)]


# --- reading -------------------------------------------------------------------------------------------------------


async def test_records_come_in_file_order_and_headers_do_not(path: Path) -> None:
    """Wherever headers stand, and without any."""
    path.write_bytes(
        b"\n".join([HEADER, line(1), HEADER, b"", line(2), b'{"protocol_version": "1.1"}', line(3), b""])
    )
    assert await times(WireFile(path)) == [1.0, 2.0, 3.0]
    path.write_bytes(line(1) + b"\n" + line(2) + b"\n")
    assert await times(WireFile(path)) == [1.0, 2.0]


async def test_a_missing_or_empty_log_has_no_records(path: Path) -> None:
    """And is not made by reading."""
    assert await times(WireFile(path)) == []
    assert not path.exists()
    path.touch()
    assert await times(WireFile(str(path))) == []


async def test_a_last_record_without_newline_counts(path: Path) -> None:
    """Only its end is missing."""
    path.write_bytes(line(1) + b"\n" + line(2))
    assert await times(WireFile(path)) == [1.0, 2.0]


async def test_damage_is_told_with_line_and_byte_and_costs_no_neighbour(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Junk, a torn record with a whole one stuck to it, zeros, an array; each is logged too."""
    parts = [HEADER, line(1), b"junk", b"", line(2)[:9] + line(3), line(4) + b"\0\0", b"[1]", line(5)]
    path.write_bytes(b"\n".join(parts) + b"\n")
    findings: list[Finding] = []
    records = [record async for record in WireFile(path).iter_records(on_finding=findings.append)]
    assert [record.timestamp for record in records] == [1.0, 3.0, 4.0, 5.0]
    starts = [sum(len(part) + 1 for part in parts[:index]) for index in range(len(parts))]
    assert [(f.line_number, f.offset, f.length) for f in findings] == [
        (3, starts[2], 4),
        (5, starts[4], 9),
        (6, starts[5] + len(line(4)), 2),
        (7, starts[6], 3),
    ]
    assert {f.file for f in findings} == {"wire.jsonl"}
    assert len(caplog.records) == 4


async def test_reading_may_begin_at_any_line_s_start(path: Path) -> None:
    """With true byte places, and without line numbers that would be wrong."""
    path.write_bytes(HEADER + b"\n" + line(1) + b"\njunk\n" + line(2) + b"\n")
    start = len(HEADER) + 1 + len(line(1)) + 1
    findings: list[Finding] = []
    wire = WireFile(path)
    assert [r.timestamp async for r in wire.iter_records(start, on_finding=findings.append)] == [2.0]
    assert [(f.line_number, f.offset) for f in findings] == [(None, start)]
    assert await times(wire, path.stat().st_size) == []
    assert await times(wire, path.stat().st_size + 100) == []


async def test_a_log_of_nothing_but_damage_is_read_in_one_pass(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty thousand bad lines are told one by one, each with its place, without counting from the start anew."""
    caplog.set_level("ERROR", "kimi_sessions")
    path.write_bytes(b"x\n" * 20_000 + line(1) + b"\n")
    findings: list[Finding] = []
    records = [record async for record in WireFile(path).iter_records(on_finding=findings.append)]
    assert [record.timestamp for record in records] == [1.0]
    assert [finding.offset for finding in findings] == list(range(0, 40_000, 2))


async def test_records_larger_than_any_block_are_read(path: Path) -> None:
    """Megabytes in one, between small ones."""
    path.write_bytes(b"\n".join([HEADER, line(1), line(2, text="x" * 2_000_000), line(3)]) + b"\n")
    assert await times(WireFile(path)) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("place", ["folder", "pipe", "link"])
async def test_a_log_that_is_no_file_is_an_error_and_not_empty(path: Path, place: str) -> None:
    """Nobody takes it for a session without a conversation."""
    if place == "folder":
        path.mkdir()
    elif place == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("x")
    wire = WireFile(path)
    with pytest.raises(OSError, match="regular"):
        await times(wire)
    assert not wire.is_empty()
    with pytest.raises(WriteError):
        await wire.append_message(TurnEnd())


@given(
    st.lists(st.sampled_from([line(1), line(2), HEADER, b"junk", b"", line(3)[:20], b"\xff"]), max_size=8),
    st.booleans(),
)
def test_every_whole_record_is_found_and_every_other_line_told(parts: list[bytes], ended: bool) -> None:
    """In any mixture, with and without a last newline."""
    import tempfile

    async def read(path: Path) -> tuple[list[float], int]:
        findings: list[Finding] = []
        records = [r.timestamp async for r in WireFile(path).iter_records(on_finding=findings.append)]
        return records, len(findings)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wire.jsonl")
        path.write_bytes(b"\n".join(parts) + (b"\n" if ended and parts else b""))
        records, told = asyncio.run(read(path))
    assert records == [json.loads(part)["timestamp"] for part in parts if part in (line(1), line(2))]
    assert told == sum(part in (b"junk", line(3)[:20], b"\xff") for part in parts)


# --- version and emptiness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data,version",
    [
        (None, "1.10"),
        (b"", "1.10"),
        (b"\n\n", "1.10"),
        (HEADER, "1.10"),
        (b'\n{"type": "metadata", "protocol_version": "1.3"}\n' + line(1), "1.3"),
        (b'{"protocol_version": "1.2"}\n', "1.2"),
        (b'\xef\xbb\xbf{"type": "metadata", "protocol_version": "1.9", "extra": 1}\r\n', "1.9"),
        (line(1) + b"\n" + HEADER, "1.1"),
        (b"junk\n" + HEADER, "1.1"),
    ],
)
def test_the_version_is_the_first_line_s(path: Path, data: bytes | None, version: str) -> None:
    """A log without a header is of the first version; one that holds nothing yet gets ours."""
    if data is not None:
        path.write_bytes(data)
    assert WireFile(path).version == version


@pytest.mark.parametrize(
    "data,empty",
    [
        (None, True),
        (b"", True),
        (b"\n  \n", True),
        (HEADER + b"\n" + HEADER + b"\n", True),
        (HEADER + b"\n" + line(1), False),
        (line(1), False),
        (b"garbage", False),
        (b"\0", False),
        (b"[]", False),
    ],
)
def test_a_log_with_only_headers_is_empty(path: Path, data: bytes | None, empty: bool) -> None:
    """Anything else is something, even if nobody can read it."""
    if data is not None:
        path.write_bytes(data)
    assert WireFile(path).is_empty() is empty


# --- writing -------------------------------------------------------------------------------------------------------


async def test_a_new_log_begins_with_a_header_and_has_the_client_s_lines(path: Path) -> None:
    """Time stamp, type, payload; the time is now unless given; text of every script stays text."""
    wire = WireFile(path)
    await wire.append_message(TurnBegin(user_input=[TextPart(text="项目 🎉")]), timestamp=5.0)
    await wire.append_message(TurnEnd())
    header, first, second = path.read_bytes().splitlines()
    assert json.loads(header) == {"type": "metadata", "protocol_version": WIRE_PROTOCOL_VERSION}
    assert json.loads(first) == {
        "timestamp": 5.0,
        "message": {"type": "TurnBegin", "payload": {"user_input": [{"type": "text", "text": "项目 🎉"}]}},
    }
    assert "项目 🎉".encode() in first
    assert abs(json.loads(second)["timestamp"] - os.stat(path).st_mtime) < 60
    assert path.stat().st_mode & 0o777 == 0o600


async def test_what_was_appended_is_read_back_typed(path: Path) -> None:
    """One by one and in one write."""
    wire = WireFile(path, protocol_version="1.9")
    messages: list[WireMessage] = [
        TurnBegin(user_input="hi"),
        TextPart(text="a"),
        StatusUpdate(context_usage=0.5),
        TurnEnd(),
    ]
    await wire.append_message(messages[0])
    await wire.append_many(messages[1:])
    await wire.append_many([])
    assert [record.to_wire_message() async for record in wire.iter_records()] == messages
    assert wire.version == "1.9"


async def test_one_append_of_many_has_one_time_and_is_all_or_nothing(path: Path) -> None:
    """A message that can't be written keeps its neighbours out too."""
    wire = WireFile(path)
    await wire.append_many([TurnEnd(), TurnEnd()], timestamp=7.0)
    assert await times(wire) == [7.0, 7.0]
    with pytest.raises((TypeError, ValueError)):
        await wire.append_many([TurnEnd(), "no message"])  # type: ignore[list-item]
    with pytest.raises(InvalidRecordError):
        await wire.append_message(TurnEnd(), timestamp=float("nan"))
    assert await times(wire) == [7.0, 7.0]


@pytest.mark.parametrize("text", ["a\nb\r\nc", "tab\t nul\0", "\u2028\u2029\x85", '"}{"', "\ud83d half"])
async def test_no_text_can_break_out_of_its_line(path: Path, text: str) -> None:
    """Exactly one newline is added, and the text comes back."""
    wire = WireFile(path)
    record = WireMessageRecord(timestamp=1.0, message={"type": "Novelty", "payload": {"text": text}})
    await wire.append_record(record)
    assert path.read_bytes().count(b"\n") == 2
    assert [found.message.payload["text"] async for found in wire.iter_records()] == [text]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"timestamp": 1, "message": {"type": "Novelty", "payload": {"a":   [1, 2.50, "\\u00e9"]}}, "extra": true}',
        b'{"message":{"payload":{"n":123456789012345678901234567890},"type":"X"},"timestamp":"1.5"}',
        b'{"timestamp": 1, "message": {"type": "X", "payload": {"bad": "\xff", "tab": "\t"}}}',
        b'{"timestamp": NaN, "message": {"type": "X", "payload": {}}}',
    ],
)
async def test_a_record_that_was_read_is_appended_with_its_own_bytes(
    path: Path, tmp_path: Path, raw: bytes
) -> None:
    """Types, keys and spellings that nobody knows go along unchanged."""
    path.write_bytes(HEADER + b"\n" + raw + b"\n")
    copy = WireFile(tmp_path / "copy.jsonl")
    async for record in WireFile(path).iter_records():
        await copy.append_record(record)
    parsed = parse_wire_file_line(raw)
    assert isinstance(parsed, WireMessageRecord)
    await copy.append_record(parsed)
    assert (tmp_path / "copy.jsonl").read_bytes().split(b"\n")[1:] == [raw, raw, b""]


async def test_a_torn_tail_does_not_swallow_the_next_record(path: Path) -> None:
    """It stays where it is and is told; the new record is readable."""
    path.write_bytes(HEADER + b"\n" + line(1) + b"\n" + line(2)[:20])
    wire = WireFile(path)
    await wire.append_message(TurnEnd(), timestamp=3.0)
    assert await times(wire) == [1.0, 3.0]
    assert path.read_bytes().startswith(HEADER + b"\n" + line(1) + b"\n" + line(2)[:20] + b"\n")
    path.write_bytes(HEADER + b"\n" + line(1))
    await wire.append_message(TurnEnd(), timestamp=2.0)
    assert await times(wire) == [1.0, 2.0]


async def test_a_log_without_a_header_gets_none_in_its_middle(path: Path) -> None:
    """It stays of its version."""
    path.write_bytes(line(1) + b"\n")
    wire = WireFile(path)
    await wire.append_message(TurnEnd(), timestamp=2.0)
    assert wire.version == "1.1"
    assert b"protocol_version" not in path.read_bytes()


async def test_an_append_into_a_folder_that_is_not_there_makes_none(path: Path, tmp_path: Path) -> None:
    """It is not found."""
    wire = WireFile(tmp_path / "missing" / "wire.jsonl")
    with pytest.raises(SessionNotFoundError):
        await wire.append_message(TurnEnd())
    assert not (tmp_path / "missing").exists()


async def test_many_coroutines_and_two_openers_append_whole_records(path: Path) -> None:
    """All are there, with one header; closing between does no harm."""
    one, two = WireFile(path), WireFile(path, durability="disk")
    await asyncio.gather(
        *(
            wire.append_message(TextPart(text="x" * 5000), timestamp=n)
            for n in range(40)
            for wire in (one, two)
        )
    )
    one.close()
    await one.append_message(TurnEnd(), timestamp=99.0)
    assert sorted(await times(two)) == sorted([*map(float, range(40)), *map(float, range(40)), 99.0])
    assert path.read_bytes().count(b"protocol_version") == 1


# --- following -----------------------------------------------------------------------------------------------------


async def test_a_follower_gets_what_was_there_and_what_comes(path: Path) -> None:
    """One that is not there yet is waited for, an unfinished line is given once it is whole, damage is passed over."""
    seen: asyncio.Queue[float] = asyncio.Queue()

    async def follow() -> None:
        async for record in WireFile(path).follow(poll_s=0.001):
            seen.put_nowait(record.timestamp)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.005)
    wire = WireFile(path)
    for number in (1.0, 2.0):
        await wire.append_message(TurnEnd(), timestamp=number)
        assert await seen.get() == number
    with path.open("ab") as other:
        other.write(b"junk\n" + line(3)[:15])
        other.flush()
        await asyncio.sleep(0.01)
        assert seen.empty()
        other.write(line(3)[15:] + b"\n" + line(4) + b"\n")
    assert [await seen.get(), await seen.get()] == [3.0, 4.0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_follower_may_begin_at_the_end(path: Path) -> None:
    """Only what comes is given."""
    path.write_bytes(HEADER + b"\n" + line(1) + b"\n")
    follower = WireFile(path).follow(path.stat().st_size, poll_s=0.001)
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0.005)
    assert not waiting.done()
    await WireFile(path).append_message(TurnEnd(), timestamp=2.0)
    assert (await waiting).timestamp == 2.0
    await follower.aclose()


def test_a_log_says_which_file_it_is(path: Path) -> None:
    """As text and as a path."""
    assert WireFile(path).path == path
    assert repr(WireFile(path)) == f"WireFile({str(path)!r})"
