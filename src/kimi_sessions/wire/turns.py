"""
Wire records in, turns out.

A turn is one ``TurnBegin`` record of the session's own log, counted from 0 in file order. One inside a
``SubagentEvent`` belongs to a subagent and is none; one that was torn is none; one inside a turn that is
still open (the prompts of a flow or of a loop) is a turn of its own, as is the one around it. A ``TurnEnd``
closes the innermost open turn, so a turn that was interrupted stays without an end, and so does every turn
of a client older than that record.

``TurnFold`` takes records one by one. ``scan_turns`` reads a log of any size at the speed of a byte search:
it decodes the lines that hold the name of one of the two types and no others, and gives what feeding every
record would give. (A type name spelled with JSON escapes would be missed; nothing writes one.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kimi_sessions import _fs
from kimi_sessions._append_log import open_for_reading
from kimi_sessions._lines import Damage, decode_line
from kimi_sessions._text import user_text

from .records import WireMessageRecord, record_from_line, record_from_span, refuse

__all__ = ["Turn", "TurnFold", "TurnScan", "read_turns", "records_in_line", "scan_turns"]

TURN_BEGIN = "TurnBegin"
TURN_END = "TurnEnd"
_CANDIDATES = (b"TurnBegin", b"TurnEnd")
#: One read of the byte search. Larger reads are no faster, smaller ones cost a call each.
_SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One turn of a session.

    Attributes:
        index: counted from 0.
        user_text: the prompt's text, whole; "" where it has none (an image).
        started_at: epoch seconds of its TurnBegin, None where those can't be read.
        ended_at: epoch seconds of its TurnEnd, None if there is none or its time can't be read.
        offset: first byte of the TurnBegin record in the log.
        end_offset: first byte after the TurnEnd record, None if there is none.
    """

    index: int
    user_text: str
    started_at: float | None
    ended_at: float | None
    offset: int
    end_offset: int | None = None


class PlacedRecord(NamedTuple):
    """A record with its place in a line: first byte, and first byte after it."""

    start: int
    stop: int
    record: WireMessageRecord


def records_in_line(line: bytes) -> tuple[list[PlacedRecord], list[Damage]]:
    """Return the records of one line of a wire log (usually one; no headers), and what in it is no record."""
    record = record_from_line(line)
    if record is not None:
        return [PlacedRecord(0, len(line), record)], []
    decoded = decode_line(line, refuse)
    found = []
    for span in decoded.records:
        record = record_from_span(span)
        if record is not None:
            found.append(PlacedRecord(span.offset, span.offset + len(span.raw), record))
    return found, decoded.damage


class TurnFold:
    """Records in, in file order; ``turns`` out. Other types than the two are passed over."""

    __slots__ = ("_open", "turns")

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        #: The turns so far, in order.
        self.turns: list[Turn] = list(turns)
        self._open: list[int] = [turn.index for turn in self.turns if turn.end_offset is None]

    @property
    def is_open(self) -> bool:
        """True while a turn has begun and not ended."""
        return bool(self._open)

    def feed(self, record: WireMessageRecord, offset: int, end_offset: int) -> int | None:
        """Take one record with its place in the log; return the turn it began or closed, if any."""
        if record.type == TURN_BEGIN:
            index = len(self.turns)
            text = user_text(record.message.payload.get("user_input"))
            self.turns.append(Turn(index, text, _seconds(record.timestamp), None, offset))
            self._open.append(index)
            return index
        if record.type == TURN_END and self._open:
            index = self._open.pop()
            self.turns[index] = replace(
                self.turns[index], ended_at=_seconds(record.timestamp), end_offset=end_offset
            )
            return index
        return None

    def feed_line(self, line: bytes, offset: int) -> None:
        """Take all records of one line that begins at ``offset``."""
        for start, stop, record in records_in_line(line)[0]:
            self.feed(record, offset + start, offset + stop)


def _seconds(timestamp: float) -> float | None:
    return timestamp if math.isfinite(timestamp) else None


@dataclass(frozen=True, slots=True)
class TurnScan:
    """
    The turns of a log up to where it was read, and what it takes to go on from there.

    ``turns`` are all of them. ``offset`` is the end of the last line that had its newline; ``settled`` are
    the turns as they stood there, since a line without newline may still grow.
    """

    turns: tuple[Turn, ...] = ()
    offset: int = 0
    settled: tuple[Turn, ...] = ()


def scan_turns(fd: int, end: int | None = None, *, after: TurnScan | None = None) -> TurnScan:
    """
    Find the turns of an open log up to ``end`` bytes (None: to where it ends now).

    With ``after``, an earlier scan of the same log, only what was appended since is read. Raises OSError.
    """
    fold = TurnFold(() if after is None else after.settled)
    offset = 0 if after is None else after.offset
    settled: tuple[Turn, ...] | None = None
    for start, data, terminated in _iter_whole_lines(fd, offset, end):
        if terminated:
            offset = start + len(data) + 1
        else:
            settled = tuple(fold.turns)
        for first, last in _candidate_lines(data):
            fold.feed_line(data[first:last], start + first)
    turns = tuple(fold.turns)
    return TurnScan(turns, offset, turns if settled is None else settled)


def read_turns(path: _fs.Path) -> list[Turn]:
    """Return the turns of a log; none if it is not there. Raises OSError if it can't be read."""
    with open_for_reading(path) as fd:
        return [] if fd is None else list(scan_turns(fd).turns)


def _iter_whole_lines(fd: int, start: int, end: int | None) -> Iterator[tuple[int, bytes, bool]]:
    """Yield runs of whole lines as one piece each, without the last newline (False: there was none)."""
    rest: list[bytes] = []
    offset = start
    for chunk in _fs.iter_chunks(fd, start, end, _SCAN_BYTES):
        cut = chunk.rfind(b"\n")
        if cut < 0:
            rest.append(chunk)
            continue
        data = b"".join([*rest, chunk[:cut]])
        yield offset, data, True
        offset += len(data) + 1
        rest = [chunk[cut + 1 :]]
    tail = b"".join(rest)
    if tail:
        yield offset, tail, False


def _candidate_lines(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the lines lie that hold one of the type names, in order."""
    begin, end = (data.find(name) for name in _CANDIDATES)
    while begin >= 0 or end >= 0:
        at = begin if end < 0 or 0 <= begin < end else end
        first = data.rfind(b"\n", 0, at) + 1
        last = data.find(b"\n", at)
        if last < 0:
            last = len(data)
        yield first, last
        if 0 <= begin < last:
            begin = data.find(_CANDIDATES[0], last)
        if 0 <= end < last:
            end = data.find(_CANDIDATES[1], last)
