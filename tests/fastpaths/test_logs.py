"""What is read fast of a log is what reading every record slowly gives, over old logs and under any damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions._lines import Span, decode_line, iter_lines
from kimi_sessions._text import title_from, user_text
from kimi_sessions.context import alignment
from kimi_sessions.context.alignment import find_cut_place, outline_context, outline_of_turns, outline_wire
from kimi_sessions.context.history import newest_messages, read_history
from kimi_sessions.wire.records import WireMessageRecord, record_from_span, refuse
from kimi_sessions.wire.scan import HEAD_BYTES, first_prompt
from kimi_sessions.wire.turns import Turn, TurnFold, TurnScan, scan_turns

from .conftest import CONTEXT_LOGS, WIRE_LOGS, damaged, opened


def records_slowly(fd: int) -> Iterator[tuple[int, int, WireMessageRecord]]:
    """Give every record of a wire log with its place, each line decoded by the whole policy."""
    for offset, line in iter_lines(fd):
        for span in decode_line(line, refuse).records:
            record = record_from_span(span)
            if record is not None:
                yield offset + span.offset, offset + span.offset + len(span.raw), record


def turns_slowly(fd: int) -> tuple[Turn, ...]:
    """Feed every record to the fold."""
    fold = TurnFold()
    for start, stop, record in records_slowly(fd):
        fold.feed(record, start, stop)
    return tuple(fold.turns)


def check_turns(data: bytes) -> None:
    """Compare the scan for turns with the fold over every record."""
    with opened(data) as fd:
        assert scan_turns(fd).turns == turns_slowly(fd)


def check_prompt(data: bytes) -> None:
    """Compare the search for the first prompt with reading every record, whatever was read before it."""
    with opened(data) as fd:
        slow = ""
        for _, _, record in records_slowly(fd):
            if record.type == "TurnBegin" and not slow:
                slow = title_from(user_text(record.message.payload.get("user_input")))
        for head in (HEAD_BYTES, 16, 1):
            assert first_prompt(fd, os.pread(fd, head, 0), len(data)) == slow


def outline_slowly(fd: int) -> alignment.WireOutline:
    """Outline a wire log by giving every line to the reader."""
    reader = alignment._WireReader()
    for offset, line in iter_lines(fd):
        if reader.fold.is_open:
            # Within a turn only records count, and what is left of a torn prompt.
            decoded = decode_line(line, refuse)
            torn = [line[each.offset : each.offset + each.length] for each in decoded.damage]
            if not decoded.records and not any(alignment._TORN_BEGIN.search(piece) for piece in torn):
                continue
        if line:
            reader.take(line, offset)
    reader.outline.turns = reader.fold.turns
    return reader.outline


def check_outline(data: bytes) -> None:
    """Compare the outline made of few lines with one made of every line that holds anything."""
    with opened(data) as fd:
        assert outline_wire(fd) == outline_slowly(fd)


def check_newest(data: bytes) -> None:
    """Compare what is read from the end with what is read from the beginning."""
    with opened(data) as fd:
        every = read_history(fd).messages
        assert newest_messages(fd, len(data)) == every
        for limit in (0, 1, 3, len(every), len(every) + 1):
            assert newest_messages(fd, len(data), limit) == every[len(every) - min(limit, len(every)) :]


def check_places(context: bytes) -> None:
    """Compare where a context is cut that is outlined alone with where one told in full is."""
    with opened(context) as fd:
        size = len(context)
        wire = outline_of_turns(outline_context(fd, size, alone=True))
        assert wire == outline_of_turns(outline_context(fd, size))
        for turn in range(len(wire.turns)):
            quick = find_cut_place(wire, [outline_context(fd, size, alone=True)], turn)
            assert quick == find_cut_place(wire, [outline_context(fd, size)], turn)


# --- what clients wrote --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [check_turns, check_prompt, check_outline])
def test_old_wire_logs_read_the_same_fast_and_slowly(check: Any) -> None:
    """Turns, the first prompt, and the outline that forks are cut by."""
    assert len(WIRE_LOGS) > 20
    for data in WIRE_LOGS:
        check(data)


@pytest.mark.parametrize("check", [check_newest, check_places])
def test_old_contexts_read_the_same_fast_and_slowly(check: Any) -> None:
    """The newest messages, and the places that forks cut a context at."""
    assert len(CONTEXT_LOGS) > 20
    for data in CONTEXT_LOGS:
        check(data)


# --- what becomes of files -----------------------------------------------------------------------------------------


@given(damaged(WIRE_LOGS))
def test_turns_of_a_damaged_log_are_those_of_its_whole_records(data: bytes) -> None:
    """A scan by name misses none and makes up none."""
    check_turns(data)


@given(damaged(WIRE_LOGS), st.integers(0, 2000))
def test_a_scan_that_goes_on_gives_what_a_whole_one_gives(data: bytes, cut: int) -> None:
    """Wherever the log ended when it was scanned first."""
    cut = min(cut, len(data))
    with opened(data) as fd:
        first = scan_turns(fd, cut)
        assert scan_turns(fd, after=first) == scan_turns(fd, after=TurnScan())


@given(damaged(WIRE_LOGS))
def test_the_first_prompt_of_a_damaged_log_is_its_first_readable_one(data: bytes) -> None:
    """However little of the log is read at a time."""
    check_prompt(data)


@given(damaged(WIRE_LOGS))
def test_the_outline_of_a_damaged_log_misses_nothing(data: bytes) -> None:
    """Lines that are passed over would have told nothing."""
    check_outline(data)


@given(damaged(CONTEXT_LOGS))
def test_the_newest_messages_of_a_damaged_context_are_the_last_of_all(data: bytes) -> None:
    """Read backwards from the end or forwards from the beginning."""
    check_newest(data)


@given(damaged(CONTEXT_LOGS))
def test_a_damaged_context_is_cut_where_one_told_in_full_is(data: bytes) -> None:
    """Leaving out answers and digests changes no cut."""
    check_places(data)


def test_a_line_longer_than_any_read_is_read() -> None:
    """A turn beyond a line of a million bytes is found, and one in it."""
    turn = b'{"timestamp": 1.5, "message": {"type": "TurnBegin", "payload": {"user_input": "%s"}}}\n'
    data = turn % (b"x" * 1_300_000) + turn % b"second" + turn.rstrip(b"\n") % b"third"
    with opened(data) as fd:
        assert [turn.user_text[:6] for turn in scan_turns(fd).turns] == ["xxxxxx", "second", "third"]
        assert scan_turns(fd).turns == turns_slowly(fd)
        assert outline_wire(fd) == outline_slowly(fd)


def test_span_places_are_what_records_are_cut_by() -> None:
    """A record glued to a torn one begins where its own bytes begin."""
    line = b'{"timestamp": 1, "mess{"timestamp": 2, "message": {"type": "TurnBegin", "payload": {}}}'
    spans: list[Span] = decode_line(line, refuse).records
    with opened(line) as fd:
        assert [turn.offset for turn in scan_turns(fd).turns] == [spans[0].offset] == [22]
