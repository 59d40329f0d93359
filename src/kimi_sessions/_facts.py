"""
What a list shows of a session, read from as few bytes as will do.

The facts of a session (title, times, whether it is empty, what is wrong) come from the head and the tail of its wire
log and from its small documents; the context is opened only where the wire log says nothing. Nothing here writes,
and nothing raises because of what a file holds: that becomes a problem of the session.

All paths are relative to an open sessions folder, so a folder that is renamed meanwhile can't lead elsewhere.
"""

from __future__ import annotations

import math
import stat as stat_module
import time
from collections.abc import Iterator
from typing import Any

from . import _fs, layout
from ._document import Document, parse_document
from ._lines import decode_line, iter_blocks, iter_lines_backwards
from ._text import UNTITLED, clean
from .findings import Finding
from .wire.scan import HEAD_BYTES, first_prompt, holds_more_than_headers, lines_from_end, records_of

__all__ = ["Facts", "created_at", "is_empty", "read_facts", "sane_time"]

#: The largest document that is read in one go; larger ones take the slow way.
_DOCUMENT_BYTES = 1 << 14
_DAY_S = 86_400.0


class Facts:
    """
    What is known of one session without opening it.

    ``state`` and ``extra`` are state.json and session.json as decoded objects ({} where there is nothing to read);
    a legacy metadata.json is merged into ``state`` in memory. Times are epoch seconds, ``created_at`` None until
    somebody asks.
    """

    __slots__ = ("empty", "extra", "id", "merged_legacy", "problems", "state", "title", "updated_at")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.title = UNTITLED
        self.updated_at = 0.0
        self.empty = True
        self.state: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}
        self.merged_legacy = False
        self.problems: list[Finding] = []


def sane_time(value: object, now: float) -> float | None:
    """Return a time in epoch seconds if it can be one: finite, not negative, at most a day ahead."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isfinite(number) and 0 <= number <= now + _DAY_S:
        return number
    return None


def read_part(path: str, root_fd: int) -> Document:
    """Read a document of a session, given its path below the sessions folder."""
    fs = _fs.active()
    try:
        fd = _fs.open_regular(path, dir_fd=root_fd)
    except FileNotFoundError:
        return _ABSENT
    except OSError as error:
        return Document(None, f"can't be read: {error.strerror}", whole=False)
    try:
        data = fs.read(fd, _DOCUMENT_BYTES)
        if len(data) == _DOCUMENT_BYTES:
            data = _fs.read_small(path, dir_fd=root_fd)
    except OSError as error:
        return Document(None, f"can't be read: {error.strerror}", whole=False)
    finally:
        fs.close(fd)
    return parse_document(data)


_ABSENT = Document(None, exists=False)


def read_facts(root_fd: int, name: str, *, now: float | None = None) -> Facts | None:
    """
    Read the facts of the session folder ``name`` in an open sessions folder; None if it is no session.

    A session is a folder with a context.jsonl, a wire.jsonl or a rotated context.
    """
    if now is None:
        now = time.time()
    fs = _fs.active()
    facts = Facts(name)
    prefix = name + "/"
    problems = facts.problems

    document = read_part(prefix + layout.STATE, root_fd)
    if document.value is not None:
        facts.state = document.value
    if document.problem:
        problems.append(Finding("bad-state", layout.STATE, document.problem))
    document = read_part(prefix + layout.SESSION, root_fd)
    if document.value is not None:
        facts.extra = document.value
    if document.problem:
        problems.append(Finding("bad-document", layout.SESSION, document.problem))
    document = read_part(prefix + layout.METADATA, root_fd)
    if document.exists:
        _merge_legacy(facts, document)

    wire_there = True
    time_of_wire: float | None = None
    prompt = ""
    custom = facts.state.get("custom_title")
    title = clean(custom) if isinstance(custom, str) else ""
    try:
        fd = _fs.open_regular(prefix + layout.WIRE, dir_fd=root_fd)
    except FileNotFoundError:
        wire_there = False
    except OSError as error:
        facts.empty = False
        problems.append(Finding("unreadable", layout.WIRE, f"can't be read: {error.strerror}"))
    else:
        try:
            head = fs.pread(fd, HEAD_BYTES, 0)
            size = len(head) if len(head) < HEAD_BYTES else fs.fstat(fd).st_size
            time_of_wire = _last_time(fd, head, size, now, problems)
            if time_of_wire is not None or (size and holds_more_than_headers(fd)):
                facts.empty = False
            if not title:
                prompt = first_prompt(fd, head, size)
        except OSError as error:
            facts.empty = False
            problems.append(Finding("unreadable", layout.WIRE, f"can't be read: {error.strerror}"))
        finally:
            fs.close(fd)

    context_mtime: float | None = None
    try:
        found = fs.stat(prefix + layout.CONTEXT, dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        rotated = next(_rotations(root_fd, name), None)
        if not wire_there and rotated is None:
            return None
        problems.append(Finding("no-context", layout.CONTEXT, "the context is missing; it reads as empty"))
    except OSError as error:
        if not wire_there:
            problems.append(Finding("unreadable", layout.CONTEXT, f"can't be read: {error.strerror}"))
    else:
        context_mtime = found.st_mtime
        if not stat_module.S_ISREG(found.st_mode):
            facts.empty = False
            problems.append(Finding("irregular", layout.CONTEXT, "not a regular file; it was not read"))

    facts.title = title or prompt or UNTITLED
    facts.updated_at = _updated_at(facts, time_of_wire, context_mtime, now)
    if facts.empty:
        facts.empty = not title and _rest_is_empty(root_fd, name, facts.extra)
    return facts


def _merge_legacy(facts: Facts, document: Document) -> None:
    """Merge metadata.json (1.7 to 1.28) in memory; the file is moved aside by the next save, not by a reader."""
    if document.value is None:
        facts.problems.append(
            Finding("bad-document", layout.METADATA, document.problem or "not a JSON object")
        )
        return
    from ._state_merge import merge_legacy_metadata

    facts.state, facts.merged_legacy = merge_legacy_metadata(facts.state, document.value)


def _updated_at(facts: Facts, time_of_wire: float | None, context_mtime: float | None, now: float) -> float:
    latest = time_of_wire
    wire_mtime = sane_time(facts.state.get("wire_mtime"), now)
    if wire_mtime is not None and (latest is None or wire_mtime > latest):
        latest = wire_mtime
    extra = facts.extra
    if extra and (extra.get("parent") or extra.get("origin")):
        created = sane_time(extra.get("created_at"), now)
        if created is not None and (latest is None or created > latest):
            latest = created
    if latest is not None:
        return latest
    return context_mtime if context_mtime is not None else 0.0


def _last_time(fd: int, head: bytes, size: int, now: float, problems: list[Finding]) -> float | None:
    """Return the time of the last record that has a readable one."""
    if size <= len(head):
        lines: Iterator[tuple[int, bytes]] = lines_from_end(head)
        terminated = head.endswith(b"\n")
    else:
        lines = iter_lines_backwards(fd, size)
        terminated = _fs.active().pread(fd, 1, size - 1) == b"\n"
    for offset, line in lines:
        records = records_of(line)
        if not records and not terminated and line.strip():
            problems.append(
                Finding(
                    "torn-tail",
                    layout.WIRE,
                    "the last line is no whole record",
                    offset=offset,
                    length=len(line),
                )
            )
        terminated = True
        for record in reversed(records):
            found = sane_time(record.timestamp, now)
            if found is not None:
                return found
    return None


def _rotations(root_fd: int, name: str) -> Iterator[str]:
    for child in _children(root_fd, name):
        if layout.rotated_number(child) is not None:
            yield child


def _children(root_fd: int, name: str) -> list[str]:
    fs = _fs.active()
    try:
        fd = _fs.open_folder(name, dir_fd=root_fd)
    except OSError:
        # Gone or replaced while we looked; whoever asked has other ways to notice.
        return []
    try:
        with fs.scandir(fd) as entries:
            return sorted(entry.name for entry in entries)
    finally:
        fs.close(fd)


def _rest_is_empty(root_fd: int, name: str, extra: dict[str, Any]) -> bool:
    """Tell whether context, rotations, uploads, tags and pin hold nothing either."""
    if extra.get("tags") or extra.get("pinned"):
        return False
    for child in _children(root_fd, name):
        path = f"{name}/{child}"
        if (child == layout.CONTEXT or layout.rotated_number(child) is not None) and not _context_is_empty(
            path, root_fd
        ):
            return False
        if child == layout.UPLOADS and _children(root_fd, path):
            return False
    return True


def _no_refusal(_: dict[str, Any]) -> str | None:
    return None


def _context_is_empty(path: str, root_fd: int) -> bool:
    """Tell whether a context holds only records whose role starts with ``_``; unreadable is not empty."""
    try:
        fd = _fs.open_regular(path, dir_fd=root_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        for block in iter_blocks(fd, size=HEAD_BYTES):
            for line in block.lines:
                if not line.strip():
                    continue
                decoded = decode_line(line, _no_refusal)
                if decoded.damage:
                    return False
                for span in decoded.records:
                    role = span.value.get("role")
                    if not isinstance(role, str) or not role.startswith("_"):
                        return False
    except OSError:
        return False
    finally:
        _fs.active().close(fd)
    return True


def is_empty(root_fd: int, name: str) -> bool:
    """Tell afresh, from disk, whether a session is empty. A session that is not there is."""
    facts = read_facts(root_fd, name)
    return facts is None or facts.empty


def first_record_time(root_fd: int, name: str, now: float) -> float | None:
    """Return the time of the first wire record that has a readable one."""
    try:
        fd = _fs.open_regular(f"{name}/{layout.WIRE}", dir_fd=root_fd)
    except OSError:
        return None
    try:
        for block in iter_blocks(fd, size=HEAD_BYTES):
            for line in block.lines:
                for record in records_of(line):
                    found = sane_time(record.timestamp, now)
                    if found is not None:
                        return found
    except OSError:
        return None
    finally:
        _fs.active().close(fd)
    return None


def created_at(root_fd: int, name: str, extra: dict[str, Any], now: float) -> float:
    """Return when a session began: session.json, else the first wire record, else the context's mtime, else 0."""
    found = sane_time(extra.get("created_at"), now)
    if found is None:
        found = first_record_time(root_fd, name, now)
    if found is None:
        try:
            found = (
                _fs.active().stat(f"{name}/{layout.CONTEXT}", dir_fd=root_fd, follow_symlinks=False).st_mtime
            )
        except OSError:
            found = 0.0
    return found
