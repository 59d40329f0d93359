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
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from . import _fs

__all__ = [
    "BOM",
    "PADDING",
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

BOM = b"\xef\xbb\xbf"
#: What may stand around a record and is no part of it.
PADDING = b" \t\r\n\x00\x0b\x0c"
#: Tells whether a decoded object is a record of the log being read: None if it is, else the reason it is not.
Accept = Callable[[dict[str, Any]], "str | None"]

#: Every digit made one: a run of 19 is then found at the speed of a byte search, ten times that of a pattern.
_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_DIGITS = b"0" * 19
_OBJECT_START = re.compile(r'\{\s*"')


def _integer(digits: str) -> int | float:
    """Read an integer; one that Python gives up on, of more than 4,300 digits, is infinite, as in other numbers."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


_EXACT = json.JSONDecoder(strict=False)
_LENIENT = json.JSONDecoder(strict=False, parse_int=_integer)
#: What pairing braces looks at: a whole string, else one of the signs. Possessive, so that no text makes it try twice.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"\\]', re.DOTALL)
#: What is known of a brace: nothing yet; that no whole object begins there; that it has an end; its value.
_UNSEEN, _HOPELESS, _PAIRED, _DECODED = range(4)
#: Objects nested deeper are not looked for in a damaged line; the decoder's own limit moves with the caller's stack.
_DEEPEST = 800
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


def decode_value(raw: bytes, *, exact: bool = False) -> Any:
    """
    Decode one JSON value by the policy above. Raises ValueError with a reason.

    With ``exact``, for what will be written back from its value, an integer too long to read is refused.
    """
    if _LONG_DIGITS not in raw.translate(_DIGITS):
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass  # the lenient decoder has the last word
    return _decode_lenient(raw, _EXACT if exact else _LENIENT)


def _decode_lenient(raw: bytes, decoder: json.JSONDecoder) -> Any:
    text = raw.decode("utf-8", "replace")
    text = text.removeprefix("\ufeff")
    try:
        return decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode_line(raw: bytes, accept: Accept) -> Decoded:
    """Decode one line (without its newline) into records and damage. A blank line gives neither."""
    body = raw.strip(PADDING)
    start = len(raw) - len(raw.lstrip(PADDING))
    while body.startswith(BOM):
        rest = body[3:].lstrip(PADDING)
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

    whole = _WholeObjects(text)
    while True:
        match = _OBJECT_START.search(text, at)
        if match is None:
            break
        found = whole.at(match.start())
        if found is None or accept(found[0]) is not None:
            at = match.start() + 1
            continue
        end = found[1]
        first = bytes_before(match.start())
        last = bytes_before(end)
        piece = body[first:last]
        gap = body[kept_to:first]
        if gap.strip(PADDING):
            damage.append(Damage(start + kept_to, len(gap), "a torn record before a whole one"))
        else:
            damage += _nuls(start + kept_to, gap)
        # Decoded anew from its own bytes, so that broken UTF-8 reads the same as on a line of its own.
        records.append(Span(start + first, piece, decode_value(piece)))
        kept_to = last
        at = end
    rest = body[kept_to:]
    if rest.strip(PADDING):
        damage.append(Damage(start + kept_to, len(rest), _reason(rest, after_record=bool(records))))
    return Decoded(records, damage)


class _Outline(NamedTuple):
    """
    The objects of a text as its braces pair them from one start on; what stands between the braces is not looked at.

    ``opens`` rises, ``ends`` has the end of each of them (0 where it has none). ``closed`` are the starts again, in the
    order of their ends, which are ``closed_ends``. ``stop`` is where pairing came to its end.
    """

    opens: array[int]
    ends: array[int]
    closed: array[int]
    closed_ends: array[int]
    stop: int


class _WholeObjects:
    """
    Tells which ``{`` of a text, asked for from left to right, begins an object that can be decoded.

    The text is damaged, so an outer object may fail because of what follows an inner one. Decoding each candidate on
    its own would look at the same bytes once for every brace around them: minutes for a line of one megabyte. Here
    braces are paired once, and one attempt gives every object that it got to the end of. A start that pairing has
    not met lies in what an earlier start took for a string. Pairings that begin at two such starts see each other's
    strings inside out, and of any three two agree, so that each byte is paired twice at most.
    """

    __slots__ = ("_decoder", "_finished", "_found", "_known", "_outlines", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._known = bytearray(len(text))
        self._outlines: list[_Outline] = []
        self._found: dict[int, tuple[dict[str, Any], int]] = {}
        self._finished: list[dict[str, Any]] = []
        self._decoder = json.JSONDecoder(strict=False, parse_int=_integer, object_pairs_hook=self._finish)

    def _finish(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._finished.append(value := dict(pairs))
        return value

    def at(self, start: int) -> tuple[dict[str, Any], int] | None:
        """Return the object that begins at ``start`` and where it ends; None if there is no whole one."""
        if self._known[start] == _UNSEEN:
            self._outlines = [outline for outline in self._outlines if outline.stop > start]
            self._outlines.append(self._pair(start))
        if self._known[start] == _PAIRED:
            self._decode(start)
        return self._found.pop(start, None)

    def _pair(self, start: int) -> _Outline:
        """Pair braces from ``start`` to the end of what begins there, or to where they no longer fit."""
        text, known = self._text, self._known
        opens, ends, closed, closed_ends = array("q"), array("q"), array("q"), array("q")
        # Of what is open: its place in ``opens`` (-1 for an array), and how deep it is inside so far.
        places, depths = array("q"), array("q")
        stop = len(text)
        for token in _TOKEN.finditer(text, start):
            at = token.start()
            sign = text[at]
            if sign == '"' and token.end() > at + 1:
                continue
            if sign in "{[":
                if sign == "{":
                    known[at] = _HOPELESS  # until it is closed
                    places.append(len(opens))
                    opens.append(at)
                    ends.append(0)
                else:
                    places.append(-1)
                depths.append(1)
                continue
            # A quote without another, a backslash outside of a string, the wrong bracket: no more can be told.
            if sign not in "}]" or (places[-1] < 0) != (sign == "]"):
                stop = at
                break
            place, depth = places.pop(), depths.pop()
            if place >= 0:
                ends[place] = at + 1
                closed.append(opens[place])
                closed_ends.append(at + 1)
                if depth <= _DEEPEST:
                    known[opens[place]] = _PAIRED
            if not places:
                stop = at + 1
                break
            depths[-1] = max(depths[-1], depth + 1)
        return _Outline(opens, ends, closed, closed_ends, stop)

    def _decode(self, start: int) -> None:
        """Decode a paired object and note every object in it that the decoder came to the end of."""
        outline, place = next(
            (each, place) for each in self._outlines if (place := _place(each.opens, start)) is not None
        )
        self._finished.clear()
        # A piece of its own, since the error of a failure counts the lines of all that is before it.
        piece = self._text[start : outline.ends[place]]
        failed_at = outline.ends[place]
        try:
            self._decoder.raw_decode(piece)
        except json.JSONDecodeError as error:
            failed_at = start + error.pos
        except (ValueError, RecursionError):
            failed_at = start + 1  # it is not told where; what is inside is asked for on its own
        # Objects come to their end in the order in which their braces pair.
        first = bisect_right(outline.closed_ends, start)
        for index, value in enumerate(self._finished, first):
            found = outline.closed[index]
            self._known[found] = _DECODED
            self._found[found] = (value, outline.closed_ends[index])
        # What was open where it failed fails there, too.
        for index in range(place, bisect_left(outline.opens, failed_at)):
            if self._known[outline.opens[index]] == _PAIRED and outline.ends[index] > failed_at:
                self._known[outline.opens[index]] = _HOPELESS
        if self._known[start] == _PAIRED:
            self._known[start] = _HOPELESS


def _place(rising: array[int], wanted: int) -> int | None:
    index = bisect_left(rising, wanted)
    return index if index < len(rising) and rising[index] == wanted else None


def _reason(rest: bytes, *, after_record: bool) -> str:
    if after_record:
        return "a torn record after a whole one"
    if rest.lstrip(PADDING)[:1] in (b"{", b"["):
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
