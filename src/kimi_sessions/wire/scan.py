"""
What can be known of an open wire log without reading, or without decoding, all of it.

Everything here decodes lines by the one policy of ``_lines``; it only chooses which lines to look at.
"""

from __future__ import annotations

from collections.abc import Iterator

from kimi_sessions import _fs
from kimi_sessions._lines import decode_line, iter_blocks
from kimi_sessions._text import title_from, user_text

from .records import WireMessageRecord, record_from_line, record_from_span, refuse

__all__ = ["HEAD_BYTES", "first_prompt", "holds_more_than_headers", "lines_from_end", "records_of"]

#: One read of this size holds all of a small log, and the header and first prompt of most others.
HEAD_BYTES = 1 << 13
_TURN_BEGIN = b"TurnBegin"


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


def first_prompt(fd: int, head: bytes, size: int) -> str:
    """
    Return the title made of the first TurnBegin that has any text, "" if there is none.

    Only lines that hold the type's name are decoded, so a prompt far into a large log is found at scanning speed.
    """
    for data in (head,) if size <= len(head) else _pieces(fd, head, size):
        at = data.find(_TURN_BEGIN)
        while at >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            if end < 0:
                end = len(data)
            for record in records_of(data[start:end]):
                if record.type == "TurnBegin":
                    title = title_from(user_text(record.message.payload.get("user_input")))
                    if title:
                        return title
            at = data.find(_TURN_BEGIN, end)
    return ""


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
        piece = min(piece * 8, 1 << 20)
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
