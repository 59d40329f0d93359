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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import msgspec

from kimi_sessions import _fs
from kimi_sessions._append_log import open_for_reading
from kimi_sessions._lines import Damage, decode_line
from kimi_sessions._text import user_text

from .records import WireMessageRecord, record_from_line, record_from_span, refuse
from .scan import BEGINNINGS, ENDINGS, decode_turn, places_of, turn_record

__all__ = [
    "Turn",
    "TurnFold",
    "TurnScan",
    "iter_runs",
    "read_turns",
    "records_in_line",
    "scan_turns",
]

TURN_BEGIN = "TurnBegin"
TURN_END = "TurnEnd"
#: One read of the byte search, in memory that is used again for the next; larger reads are no faster.
_SCAN_BYTES = 1 << 18


class Turn(msgspec.Struct, frozen=True, gc=False):
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
    """
    Records in, in file order; ``turns`` out. Other types than the two are passed over.

    ``known`` are turns of an earlier fold to go on from; one that nothing touches comes out as the same object.
    """

    __slots__ = ("still_open", "turns")

    def __init__(self, known: Sequence[Turn] = ()) -> None:
        #: The turns so far, in order.
        self.turns: list[Turn] = list(known)
        #: Indexes of the turns that have begun and not ended, the innermost last.
        self.still_open = [turn.index for turn in known if turn.end_offset is None]

    @property
    def is_open(self) -> bool:
        """True while a turn has begun and not ended."""
        return bool(self.still_open)

    def begin(self, text: str, timestamp: float, offset: int) -> None:
        """A turn begins: its prompt, its time, and the first byte of its record."""
        index = len(self.turns)
        self.still_open.append(index)
        self.turns.append(Turn(index, text, timestamp if isfinite(timestamp) else None, None, offset))

    def end(self, timestamp: float, end_offset: int) -> int | None:
        """The innermost open turn ends before ``end_offset``. Returns which it was, None if none was open."""
        if not self.still_open:
            return None
        index = self.still_open.pop()
        turn = self.turns[index]
        ended_at = timestamp if isfinite(timestamp) else None
        self.turns[index] = Turn(index, turn.user_text, turn.started_at, ended_at, turn.offset, end_offset)
        return index

    def feed(self, record: WireMessageRecord, offset: int, end_offset: int) -> int | None:
        """Take one record with its place in the log; return the turn it began or closed, if any."""
        if record.type == TURN_BEGIN:
            text = user_text(record.message.payload.get("user_input"))
            self.begin(text, record.timestamp, offset)
            return len(self.turns) - 1
        if record.type == TURN_END:
            return self.end(record.timestamp, end_offset)
        return None

    def feed_line(self, line: bytes, offset: int) -> None:
        """Take all records of one line that begins at ``offset``."""
        plain = turn_record(line)
        if plain is None:
            for start, stop, record in records_in_line(line)[0]:
                self.feed(record, offset + start, offset + stop)
        elif plain.message.type == TURN_BEGIN:
            self.begin(user_text(plain.message.payload.user_input), plain.timestamp, offset)
        elif plain.message.type == TURN_END:
            self.end(plain.timestamp, offset + len(line))


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
    begin, close = fold.begin, fold.end
    for start, data, stop in iter_runs(fd, offset, end):
        if stop < len(data):
            offset = start + stop + 1
        else:
            settled = tuple(fold.turns)
        done = 0
        places = places_of(data, BEGINNINGS, stop) + places_of(data, ENDINGS, stop)
        places.sort()
        for at in places:
            if at < done:
                continue  # one more on the same line
            first = data.rfind(b"\n", done, at) + 1 or done
            done = data.find(b"\n", at)
            if done < 0:
                done = stop
            line = data[first:done]
            try:
                plain = decode_turn(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                fold.feed_line(line, start + first)
                continue
            # What ``feed_line`` does with a plain record, without the calls: most of the time goes here.
            message = plain.message
            kind = message.type
            if kind == TURN_BEGIN:
                begin(user_text(message.payload.user_input), plain.timestamp, start + first)
            elif kind == TURN_END:
                close(plain.timestamp, start + done)
    turns = tuple(fold.turns)
    return TurnScan(turns, offset, turns if settled is None else settled)


def read_turns(path: _fs.Path) -> list[Turn]:
    """Return the turns of a log; none if it is not there. Raises OSError if it can't be read."""
    with open_for_reading(path) as fd:
        return [] if fd is None else list(scan_turns(fd).turns)


def iter_runs(fd: int, start: int, end: int | None) -> Iterator[tuple[int, bytes, int]]:
    """
    Yield ``(offset, data, stop)``: whole lines of an open log are ``data[:stop]``, the last one without its newline.

    ``stop`` is all of ``data`` only for a last line that had none. Raises OSError.
    """
    size = _SCAN_BYTES
    offset = start
    while end is None or offset < end:
        want = size if end is None else min(size, end - offset)
        data = _fs.read_fd(fd, offset, want)
        if not data:
            return
        stop = data.rfind(b"\n")
        if stop < 0:
            if len(data) < size:
                yield offset, data, len(data)
                return
            size *= 2  # a longer line than that
            continue
        yield offset, data, stop
        offset += stop + 1
        size = _SCAN_BYTES
