"""
Bytes to JSON lines; the only decoder of log lines.

Every reader of a log (list, show, turns, messages, fork, doctor) comes through here, so the same bytes give the same
totals everywhere. No log's meaning is known here: which objects count as records is asked of the caller
(``accept``).

The rules:

- A line ends at ``\\n`` and nowhere else; U+2028 and its kin are ordinary text. A final line without ``\\n`` counts.
- Blank lines are nothing. A byte order mark, a trailing ``\\r`` and runs of NUL around a record are passed over.
- The fast decoder goes first. What it refuses goes to a lenient one: raw control characters, NaN, lone surrogates
  and broken UTF-8 (shown as U+FFFD) are let through. Digits in runs of 19 or more always go to the lenient one,
  because the fast one turns large integers into floats without a word.
- What is still no record is searched for whole records inside: a torn prefix with a record stuck to it gives the
  record back, ``}{`` gives both. The rest is damage, with offset, length and reason. Nothing is dropped in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from . import _fs

__all__ = [
    "Accept",
    "Damage",
    "Decoded",
    "LineBlock",
    "Span",
    "decode_line",
    "decode_value",
    "iter_blocks",
    "iter_lines",
    "iter_lines_backwards",
]

#: Tells whether a decoded object is a record of the log being read: None if it is, else the reason it is not.
Accept = Callable[[dict[str, Any]], "str | None"]

#: Every digit made one: a run of 19 is then found at the speed of a byte search, ten times that of a pattern.
_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_DIGITS = b"0" * 19
_OBJECT_START = re.compile(r'\{\s*"')
_BOM = b"\xef\xbb\xbf"
_PADDING = b" \t\r\n\x00\x0b\x0c"
_LENIENT = json.JSONDecoder(strict=False)
#: How much is decoded in vain, at most, in search of whole records in a damaged line: so many times its length.
_PATIENCE = 32
_PATIENCE_AT_LEAST = 1 << 19
_COST_OF_DEPTH = 1 << 14
#: A block of a backward read; most last records fit.
_BACK_BYTES = 1 << 13


class Span(NamedTuple):
    """A record found in a line: byte offset within the line, its own bytes, and the decoded object."""

    offset: int
    raw: bytes
    value: dict[str, Any]


class Damage(NamedTuple):
    """Bytes of a line that are part of no record: offset within the line, length, and why."""

    offset: int
    length: int
    reason: str


@dataclass(slots=True)
class Decoded:
    """What a line gave: its records in order (usually one), and its damage."""

    records: list[Span]
    damage: list[Damage]


class LineBlock(NamedTuple):
    """
    Whole lines as they lie in a file, without their newlines.

    ``offset`` is the first line's, in bytes. ``terminated`` is False if the last line of the file had no newline.
    """

    offset: int
    lines: list[bytes]
    terminated: bool


def decode_value(raw: bytes) -> Any:
    """Decode one JSON value by the policy above. Raises ValueError with a reason."""
    if _LONG_DIGITS not in raw.translate(_DIGITS):
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass  # the lenient decoder has the last word
    return _decode_lenient(raw)


def _decode_lenient(raw: bytes) -> Any:
    text = raw.decode("utf-8", "replace")
    text = text.removeprefix("\ufeff")
    try:
        return _LENIENT.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode_line(raw: bytes, accept: Accept) -> Decoded:
    """Decode one line (without its newline) into records and damage. A blank line gives neither."""
    body = raw.strip(_PADDING)
    start = len(raw) - len(raw.lstrip(_PADDING))
    while body.startswith(_BOM):
        rest = body[3:].lstrip(_PADDING)
        start += len(body) - len(rest)
        body = rest
    if not body:
        if b"\0" in raw:
            return Decoded([], [Damage(0, len(raw), f"{raw.count(0)} NUL bytes instead of a record")])
        return Decoded([], [])
    decoded = _decode_body(start, body, accept)
    if b"\0" in raw:
        end = start + len(body)
        decoded.damage[:0] = _nuls(0, raw[:start])
        decoded.damage += _nuls(end, raw[end:])
    return decoded


def _nuls(offset: int, padding: bytes) -> list[Damage]:
    if b"\0" not in padding:
        return []
    return [Damage(offset, len(padding), f"{padding.count(0)} NUL bytes beside a record")]


def _decode_body(start: int, body: bytes, accept: Accept) -> Decoded:
    """Decode what is left of a line without its padding."""
    try:
        value = decode_value(body)
    except ValueError:
        return _recover(start, body, accept)
    if not isinstance(value, dict):
        return Decoded([], [Damage(start, len(body), f"not an object but {_name(value)}")])
    refusal = accept(value)
    if refusal is not None:
        return Decoded([], [Damage(start, len(body), refusal)])
    return Decoded([Span(start, body, value)], [])


def _name(value: object) -> str:
    return {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


def _recover(start: int, body: bytes, accept: Accept) -> Decoded:
    """Find the whole records inside a line that is not one."""
    # surrogateescape maps bytes and text both ways, so a found object's byte span is exact.
    text = body.decode("utf-8", "surrogateescape")
    records: list[Span] = []
    damage: list[Damage] = []
    kept_to = 0  # in bytes, within body
    at = 0
    byte_at, text_at = 0, 0

    def bytes_before(index: int) -> int:
        nonlocal byte_at, text_at
        byte_at += len(text[text_at:index].encode("utf-8", "surrogateescape"))
        text_at = index
        return byte_at

    # Objects within objects are each tried from their own start: ordinary ones cost little, endless ones are given up.
    patience = _PATIENCE * len(text) + _PATIENCE_AT_LEAST
    while patience > 0:
        match = _OBJECT_START.search(text, at)
        if match is None:
            break
        try:
            value, end = _LENIENT.raw_decode(text, match.start())
        except json.JSONDecodeError as error:
            patience -= error.pos - match.start()
            at = match.start() + 1
            continue
        except RecursionError:
            patience -= _COST_OF_DEPTH
            at = match.start() + 1
            continue
        if not isinstance(value, dict) or accept(value) is not None:
            patience -= end - match.start()
            at = match.start() + 1
            continue
        first = bytes_before(match.start())
        last = bytes_before(end)
        piece = body[first:last]
        gap = body[kept_to:first]
        if gap.strip(_PADDING):
            damage.append(Damage(start + kept_to, len(gap), "a torn record before a whole one"))
        else:
            damage += _nuls(start + kept_to, gap)
        # Decoded anew from its own bytes, so that broken UTF-8 reads the same as on a line of its own.
        records.append(Span(start + first, piece, decode_value(piece)))
        kept_to = last
        at = end
    rest = body[kept_to:]
    if rest.strip(_PADDING):
        damage.append(Damage(start + kept_to, len(rest), _reason(rest, after_record=bool(records))))
    return Decoded(records, damage)


def _reason(rest: bytes, *, after_record: bool) -> str:
    if after_record:
        return "a torn record after a whole one"
    if rest.lstrip(_PADDING)[:1] in (b"{", b"["):
        return "a torn record"
    return "not JSON"


def iter_blocks(
    fd: int, start: int = 0, end: int | None = None, size: int = _fs.CHUNK_BYTES
) -> Iterator[LineBlock]:
    """
    Yield the lines of an open file in blocks, reading ``size`` bytes at a time.

    Memory stays at about the size of a block or of the longest line, whichever is larger.
    """
    offset = start
    rest: list[bytes] = []
    for chunk in _fs.iter_chunks(fd, start, end, size):
        cut = chunk.rfind(b"\n")
        if cut < 0:
            rest.append(chunk)
            continue
        if rest:
            rest.append(chunk[:cut])
            data = b"".join(rest)
            rest = [chunk[cut + 1 :]] if cut + 1 < len(chunk) else []
        else:
            data = chunk[:cut]
            if cut + 1 < len(chunk):
                rest.append(chunk[cut + 1 :])
        yield LineBlock(offset, data.split(b"\n"), terminated=True)
        offset += len(data) + 1
    if rest:
        yield LineBlock(offset, [b"".join(rest)], terminated=False)


def iter_lines(fd: int, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield ``(offset, line)`` for each line of an open file, blank ones included."""
    for block in iter_blocks(fd, start, end):
        offset = block.offset
        for line in block.lines:
            yield offset, line
            offset += len(line) + 1


def iter_lines_backwards(fd: int, end: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """
    Yield ``(offset, line)`` from the end of an open file to its beginning, reading no more than is asked for.

    ``end`` is where to begin, usually the size. An unterminated last line comes first; after a final newline there
    is no empty line.
    """
    size = _BACK_BYTES
    tail: list[bytes] = []  # pieces of the line whose start is not found yet, last piece first
    position = end
    first = True
    while position > start:
        want = min(size, position - start)
        chunk = _fs.read_fd(fd, position - want, want)
        position -= want
        size = min(size * 4, _fs.CHUNK_BYTES * 4)
        if first:
            first = False
            if chunk.endswith(b"\n"):
                chunk = chunk[:-1]
        cut = len(chunk)
        while True:
            newline = chunk.rfind(b"\n", 0, cut)
            if newline < 0:
                tail.append(chunk[:cut])
                break
            piece = chunk[newline + 1 : cut]
            if tail:
                piece = b"".join([piece, *reversed(tail)])
                tail = []
            yield position + newline + 1, piece
            cut = newline
    if not first:
        yield start, b"".join(reversed(tail))
