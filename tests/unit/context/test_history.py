"""A context log is folded into messages, system prompt, usage and checkpoints, from its beginning or its end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions import _fs
from kimi_sessions.context.history import (
    HistoryFold,
    find_checkpoint_offset,
    is_injected_user_message,
    newest_messages,
    read_history,
    refuse,
    refuse_message,
    unmatched_tool_calls,
)

Record = dict[str, Any]


def dump(*records: Record | bytes) -> bytes:
    """Make the lines of a log; bytes stand as they are."""
    return b"".join(
        each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in records
    )


@contextmanager
def opened(path: Path, data: bytes) -> Iterator[int]:
    """Write a log and open it."""
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a place for a log."""
    return tmp_path / "context.jsonl"


def fold(path: Path, *records: Record | bytes) -> HistoryFold:
    """Fold a log of these records."""
    with opened(path, dump(*records)) as fd:
        return read_history(fd)


def user(text: object) -> Record:
    """Make a user message."""
    return {"role": "user", "content": text}


def called(*ids: str) -> Record:
    """Make an assistant message with tool calls."""
    calls = [
        {"type": "function", "id": each, "function": {"name": "Shell", "arguments": "{}"}} for each in ids
    ]
    return {"role": "assistant", "content": [], "tool_calls": calls}


def result(call_id: str) -> Record:
    """Make a tool message."""
    return {"role": "tool", "content": "ok", "tool_call_id": call_id}


# --- the fold ------------------------------------------------------------------------------------------------------


def test_messages_come_with_their_places(log: Path) -> None:
    """The bytes from offset to end_offset are the record itself."""
    records = [user("one"), {"role": "_usage", "token_count": 3}, {"role": "assistant", "content": "two"}]
    data = dump(*records)
    history = fold(log, *records)
    assert [entry.record["content"] for entry in history.messages] == ["one", "two"]
    for entry in history.messages:
        assert json.loads(data[entry.offset : entry.end_offset]) == entry.record
    assert history.findings == []


def test_the_last_system_prompt_and_usage_count(log: Path) -> None:
    """What is after the last usage is pending."""
    history = fold(
        log,
        {"role": "_system_prompt", "content": "old"},
        user("a"),
        {"role": "_usage", "token_count": 5},
        {"role": "_system_prompt", "content": "new"},
        user("b"),
        {"role": "_usage", "token_count": 7},
        user("c"),
    )
    assert history.system_prompt == "new"
    assert history.token_count == 7
    assert [entry.record["content"] for entry in history.pending_messages] == ["c"]
    assert history.control_count == 4


def test_an_empty_log_has_an_empty_history(log: Path) -> None:
    """No prompt, no usage, and the first checkpoint will be 0."""
    history = fold(log)
    assert (history.messages, history.system_prompt, history.token_count) == ([], None, 0)
    assert (history.checkpoints, history.next_checkpoint_id) == ({}, 0)


def test_the_next_checkpoint_follows_the_last_one(log: Path) -> None:
    """Ids go on from the last record, wherever it stands."""
    history = fold(log, {"role": "_checkpoint", "id": 0}, user("a"), {"role": "_checkpoint", "id": 4})
    assert history.next_checkpoint_id == 5
    assert sorted(history.checkpoints) == [0, 4]


def test_an_unknown_control_record_is_carried_and_no_message(log: Path) -> None:
    """A later client's own records are neither damage nor conversation."""
    history = fold(log, {"role": "_mystery", "anything": 1}, {"role": "_mystery"})
    assert (history.messages, history.findings, history.control_count) == ([], [], 2)


@pytest.mark.parametrize(
    "bad",
    [
        {"role": "_system_prompt"},
        {"role": "_system_prompt", "content": ["x"]},
        {"role": "_checkpoint", "id": "0"},
        {"role": "_checkpoint", "id": True},
        {"role": "_checkpoint", "id": -1},
        {"role": "_usage", "token_count": None},
        {"role": "developer", "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"text": "no type"}]},
        {"role": "user", "content": [{"type": "text", "text": 7}]},
        {"role": "assistant", "content": "", "tool_calls": {}},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "x"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {}}]},
        {"role": "tool", "content": "", "tool_call_id": 3},
        {"content": "no role"},
        {"role": 7, "content": "x"},
        [],
        "text",
        b"{torn\n",
        b"\0\0\0\n",
    ],
)
def test_what_is_no_record_is_a_finding_and_stops_nothing(log: Path, bad: Any) -> None:
    """It is named with file, line and byte; what stands around it is read."""
    history = fold(log, user("before"), bad, user("after"))
    assert [entry.record["content"] for entry in history.messages] == ["before", "after"]
    assert (history.system_prompt, history.token_count, history.next_checkpoint_id) == (None, 0, 0)
    [finding] = history.findings
    assert (finding.file, finding.line_number) == ("context.jsonl", 2)
    assert finding.offset == len(dump(user("before")))


def test_an_assistant_message_without_arguments_or_content_is_kept(log: Path) -> None:
    """An old client left null arguments out and then could not read its own message."""
    call = {"type": "function", "id": "1", "function": {"name": "Shell"}}
    history = fold(log, {"role": "assistant", "tool_calls": [call]}, {"role": "assistant", "content": None})
    assert len(history.messages) == 2
    assert history.findings == []


def test_a_record_glued_to_a_torn_one_is_read_where_it_begins(log: Path) -> None:
    """The torn piece is a finding, the whole record a message with its own place."""
    history = fold(log, b'{"role": "us', user("whole"))
    assert [(entry.offset, entry.record["content"]) for entry in history.messages] == [(12, "whole")]
    assert [(finding.offset, finding.length) for finding in history.findings] == [(0, 12)]


@pytest.mark.parametrize("version", ["0.68", "1.52.0"])
def test_no_old_message_is_refused(corpus: Callable[[str], Path], version: str) -> None:
    """All that released clients wrote whole is a message or a control record."""
    for path in corpus(version).glob("sessions/*/*/context*.jsonl"):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            assert refuse(record) is None
            assert record["role"].startswith("_") or refuse_message(record) is None


# --- from the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 50, None])
def test_the_newest_messages_come_oldest_first(log: Path, limit: int | None) -> None:
    """Control records and damage are passed over."""
    records: list[Record | bytes] = [
        user("1"),
        {"role": "_usage", "token_count": 1},
        user("2"),
        b"{torn\n",
        user("3"),
    ]
    with opened(log, dump(*records)) as fd:
        found = newest_messages(fd, os.fstat(fd).st_size, limit)
        texts = [entry.record["content"] for entry in found]
        assert texts == ["1", "2", "3"][-limit if limit else (3 if limit == 0 else 0) :]
        everything = read_history(fd).messages
    assert found == everything[len(everything) - len(found) :]


def test_the_newest_messages_of_a_large_log_take_a_small_read(log: Path) -> None:
    """Two messages of some megabytes of context are read from its last few kilobytes."""
    records = [user(f"{number} " + "x" * 500) for number in range(10_000)]
    taken = 0

    class Counting(_fs.OsFileSystem):
        @staticmethod
        def pread(fd: int, length: int, offset: int) -> bytes:
            nonlocal taken
            taken += length
            return os.pread(fd, length, offset)

    with opened(log, dump(*records)) as fd, _fs.using(Counting()):
        found = newest_messages(fd, os.fstat(fd).st_size, 2)
    assert [entry.record["content"].split()[0] for entry in found] == ["9998", "9999"]
    assert taken < 50_000


@given(st.lists(st.sampled_from(["m", "c", "bad", "glued", "open"]), max_size=15), st.integers(0, 16))
def test_read_from_the_end_or_from_the_beginning_messages_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], limit: int
) -> None:
    """Also with damage, records glued together and a last line without its newline."""
    pieces = {
        "m": dump(user("m")),
        "c": dump({"role": "_checkpoint", "id": 1}),
        "bad": b'{"role": 1}\n',
        "glued": dump(user("g")).rstrip() + dump(user("h")),
        "open": dump(user("o")).rstrip(),
    }
    data = b"".join(pieces[kind] for kind in kinds)
    with opened(tmp_path_factory.getbasetemp() / "any.jsonl", data) as fd:
        everything = read_history(fd).messages
        assert newest_messages(fd, len(data)) == everything
        assert (
            newest_messages(fd, len(data), limit)
            == everything[len(everything) - min(limit, len(everything)) :]
        )


def test_a_checkpoint_is_found_at_its_first_byte(log: Path) -> None:
    """Cutting there leaves all that came before it."""
    before = dump({"role": "_checkpoint", "id": 0}, user("a"))
    data = before + dump({"role": "_checkpoint", "id": 1}, user('{"role":"_checkpoint","id":1}'))
    with opened(log, data) as fd:
        assert find_checkpoint_offset(fd, 1, len(data)) == len(before)
        assert find_checkpoint_offset(fd, 0, len(data)) == 0
        assert find_checkpoint_offset(fd, 2, len(data)) is None
        assert find_checkpoint_offset(fd, 1, len(before)) is None


def test_a_damaged_checkpoint_is_not_found(log: Path) -> None:
    """Going back to it can't be done; nothing is guessed."""
    with opened(log, b'{"role":"_checkpoint","id":1\n' + dump({"role": "_checkpoint", "id": "1"})) as fd:
        assert find_checkpoint_offset(fd, 1, os.fstat(fd).st_size) is None


def test_of_two_checkpoints_with_one_id_the_last_is_meant(log: Path) -> None:
    """That is the cut that takes the least away."""
    data = dump({"role": "_checkpoint", "id": 1}, user("a"), {"role": "_checkpoint", "id": 1}, user("b"))
    with opened(log, data) as fd:
        offset = find_checkpoint_offset(fd, 1, len(data))
        assert offset == len(dump({"role": "_checkpoint", "id": 1}, user("a")))
        assert fold(log, data).checkpoints == {1: offset}


def test_a_checkpoint_behind_a_torn_piece_is_found_within_its_line(log: Path) -> None:
    """The torn piece before it stays on the side that is kept."""
    data = b'{"role": "assi' + dump({"role": "_checkpoint", "id": 3})
    with opened(log, data) as fd:
        assert find_checkpoint_offset(fd, 3, len(data)) == 14


# --- whose words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, injected",
    [
        ("<system>CHECKPOINT 3</system>", True),
        ([{"type": "text", "text": "<system>CHECKPOINT 3</system>"}], True),
        ("<system-reminder>Plan mode.</system-reminder>", True),
        ('<notification id="n1">done</notification>', True),
        ("<system>Previous context has been compacted. Here it is:</system> Summary", True),
        (
            [
                {"type": "text", "text": "<system>The user has imported context"},
                {"type": "text", "text": "x"},
            ],
            True,
        ),
        ("hello", False),
        ("what does <system> mean?", False),
        ("<notifications> is a tag of mine", False),
        ([{"type": "image_url", "image_url": {"url": "x"}}], False),
        ([], False),
        (None, False),
    ],
)
def test_messages_that_the_client_wrote_are_told_from_the_users(content: object, injected: bool) -> None:
    """By how they begin, whatever shape the content has."""
    assert is_injected_user_message({"role": "user", "content": content}) is injected
    assert is_injected_user_message({"role": "assistant", "content": content}) is False


# --- tool calls ----------------------------------------------------------------------------------------------------


def unmatched(*messages: Record) -> list[tuple[int, str, bool]]:
    """Give what is left over when calls and results are paired."""
    return [
        (each.message_index, each.tool_call_id, each.is_orphan) for each in unmatched_tool_calls(messages)
    ]


def test_results_in_another_order_with_messages_between_are_paired() -> None:
    """Parallel calls answer when they are done."""
    assert (
        unmatched(called("a", "b", "c"), result("c"), user("<system-reminder>"), result("a"), result("b"))
        == []
    )


def test_a_call_without_a_result_is_named() -> None:
    """An interrupted tool leaves its call behind."""
    assert unmatched(user("x"), called("a", "b", "c"), result("a"), result("b")) == [(1, "c", False)]


def test_a_result_without_a_call_is_named() -> None:
    """Also a second result of one call."""
    assert unmatched(result("x"), called("a"), result("a"), result("a")) == [(0, "x", True), (3, "a", True)]


def test_ids_that_come_again_in_a_later_turn_are_no_confusion() -> None:
    """Some models number their calls anew each time."""
    turn = (called("Shell:0"), result("Shell:0"), {"role": "assistant", "content": "done"})
    assert unmatched(*turn, user("next"), *turn) == []
    assert unmatched(called("Shell:0"), user("next"), *turn) == [(0, "Shell:0", False)]


def test_a_result_after_the_model_went_on_belongs_to_nothing() -> None:
    """A provider refuses both halves."""
    late = unmatched(called("a"), {"role": "assistant", "content": "went on"}, result("a"))
    assert late == [(0, "a", False), (2, "a", True)]


def test_two_calls_of_one_id_need_two_results() -> None:
    """Calls are paired one by one."""
    assert unmatched(called("a", "a"), result("a")) == [(0, "a", False)]
    assert unmatched(called("a", "a"), result("a"), result("a")) == []
