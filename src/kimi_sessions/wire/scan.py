"""
What can be known of an open wire log without reading, or without decoding, all of it.

Everything here decodes lines by the one policy of ``_lines``; it only chooses which lines to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from kimi_sessions import _fs
from kimi_sessions._lines import decode_line, iter_blocks
from kimi_sessions._text import title_from, user_text

from .records import WireMessageRecord, record_from_line, record_from_span, refuse

__all__ = [
    "BEGINNINGS",
    "ENDINGS",
    "HEAD_BYTES",
    "Names",
    "TurnRecord",
    "decode_turn",
    "first_prompt",
    "holds_more_than_headers",
    "lines_from_end",
    "places_of",
    "prompt_in_head",
    "records_of",
    "turn_record",
]

#: One read of this size holds all of a small log, and the header and first prompt of most others.
HEAD_BYTES = 1 << 13
#: One read of a search through a whole log: it stays in the processor's cache while it is looked through.
_PIECE_BYTES = 1 << 18


# --- where a name stands -------------------------------------------------------------------------------------------


class Names(NamedTuple):
    """Names of one length to look for, and the place in all of them of one letter that is rare in logs."""

    texts: tuple[bytes, ...]
    rare: int


BEGINNINGS = Names((b"TurnBegin",), 4)
ENDINGS = Names((b"TurnEnd",), 4)


def places_of(data: bytes, names: Names, stop: int) -> list[int]:
    """
    Return where any of the names stands in ``data[:stop]``, in order.

    The C library finds a single letter many times faster than Python finds a word, so the letter is looked for, as
    long as it is rare: in encoded pictures none is.
    """
    texts, skip = names
    find, starts = data.find, data.startswith
    rare = texts[0][skip : skip + 1]
    last = max(stop - len(texts[0]) + skip + 1, 0)
    left = 16 + (stop >> 9)
    found = []
    at = find(rare, skip, last)
    while at >= 0:
        if starts(texts, at - skip):
            found.append(at - skip)
        left -= 1
        if left < 0:
            return found + _places_of_words(data, texts, at - skip + 1, stop)
        at = find(rare, at + 1, last)
    return found


def _places_of_words(data: bytes, texts: tuple[bytes, ...], start: int, stop: int) -> list[int]:
    found = []
    for text in texts:
        at = data.find(text, start, stop)
        while at >= 0:
            found.append(at)
            at = data.find(text, at + 1, stop)
    return sorted(found)


# --- what a line tells ---------------------------------------------------------------------------------------------


class _Prompt(msgspec.Struct, gc=False):
    """The one field of a TurnBegin or SteerInput that counts here; of any type, as it comes."""

    user_input: Any = None


class _TurnMessage(msgspec.Struct, gc=False):
    """The message of a record, of whose payload only a prompt is decoded."""

    type: str
    payload: _Prompt


class TurnRecord(msgspec.Struct, gc=False):
    """A record as far as it tells about turns."""

    timestamp: float
    message: _TurnMessage


#: Decodes a line that is a plain record. Raises what ``turn_record`` catches.
decode_turn = msgspec.json.Decoder(TurnRecord).decode


def turn_record(line: bytes) -> TurnRecord | None:
    """Decode a line that is a plain record, fast; None if it needs the whole policy."""
    try:
        return decode_turn(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def records_of(line: bytes) -> list[WireMessageRecord]:
    """Return the wire records on a line, by the whole policy."""
    record = record_from_line(line)
    if record is not None:
        return [record]
    if not line:
        return []
    found = (record_from_span(span) for span in decode_line(line, refuse).records)
    return [record for record in found if record is not None]


def lines_from_end(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield ``(offset, line)`` of bytes that are a whole log, last line first."""
    end = len(data)
    if data.endswith(b"\n"):
        end -= 1
    while end >= 0:
        start = data.rfind(b"\n", 0, end) + 1
        yield start, data[start:end]
        end = start - 1


def prompt_in_head(head: bytes, size: int) -> str:
    """Like ``first_prompt``, of what was read already: ``head`` is the beginning of a log of ``size`` bytes, or all."""
    if size > len(head):
        head = head[: head.rfind(b"\n") + 1]
    at = head.find(b"TurnBegin")
    if at < 0:
        return ""
    stop = head.find(b"\n", at)
    plain = turn_record(head[head.rfind(b"\n", 0, at) + 1 : stop if stop >= 0 else len(head)])
    if plain is not None and plain.message.type == "TurnBegin":
        title = title_from(user_text(plain.message.payload.user_input))
        if title:
            return title
    return _title_in(head)


def first_prompt(fd: int, head: bytes, size: int) -> str:
    """
    Return the title made of the first TurnBegin that has any text, "" if there is none.

    Only lines that hold the type's name are decoded, so a prompt far into a large log is found at scanning speed.
    """
    if size <= len(head):
        return prompt_in_head(head, size)
    for data in _pieces(fd, head, size):
        title = _title_in(data)
        if title:
            return title
    return ""


def _title_in(data: bytes) -> str:
    end = 0
    for at in places_of(data, BEGINNINGS, len(data)):
        if at < end:
            continue  # one more on the same line
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        if end < 0:
            end = len(data)
        for prompt in _prompts_in(data[start:end]):
            title = title_from(user_text(prompt))
            if title:
                return title
    return ""


def _prompts_in(line: bytes) -> Iterator[object]:
    """Yield the user's words, as they come, of each TurnBegin on a line."""
    plain = turn_record(line)
    if plain is not None:
        if plain.message.type == "TurnBegin":
            yield plain.message.payload.user_input
        return
    for record in records_of(line):
        if record.type == "TurnBegin":
            yield record.message.payload.get("user_input")


def _pieces(fd: int, head: bytes, size: int) -> Iterator[bytes]:
    """Yield the bytes of a log in pieces of whole lines, what was read already first (most prompts are there)."""
    piece = len(head) * 4
    offset = len(head)
    cut = head.rfind(b"\n") + 1
    if cut:
        yield head[:cut]
    rest = [head[cut:]]
    while offset < size:
        data = _fs.read_fd(fd, offset, min(piece, size - offset))
        if not data:
            break
        offset += len(data)
        piece = min(piece * 8, _PIECE_BYTES)
        cut = data.rfind(b"\n")
        if cut < 0:
            rest.append(data)
            continue
        rest.append(data[: cut + 1])
        yield b"".join(rest)
        rest = [data[cut + 1 :]]
    tail = b"".join(rest)
    if tail:
        yield tail


def holds_more_than_headers(fd: int) -> bool:
    """Tell whether an open wire log has a line that is neither a header nor blank."""
    for block in iter_blocks(fd, size=1 << 13):
        for line in block.lines:
            if not line.strip():
                continue
            decoded = decode_line(line, refuse)
            if decoded.damage or any("message" in span.value for span in decoded.records):
                return True
    return False
