"""
The proof of a migration: bytes compared by hash, records counted by type, on both sides.

Reads only. A record is counted by what a reader would make of it: a wire record by its type, a context record by its
role; bytes that are part of no record are counted as damaged and are carried like all others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kimi_sessions import _fs, layout
from kimi_sessions._lines import decode_line, iter_blocks

from .sources import SourceFile, SourceSession, open_source

__all__ = ["Comparison", "FileFacts", "compare", "count_records", "hash_file", "open_target"]


class FileFacts(NamedTuple):
    """What is known of a carried file: its name in the session, its length and its hash."""

    name: str
    size_bytes: int
    sha256: str
    mtime_ns: int


@dataclass(slots=True)
class Comparison:
    """How a session's folder compares with its source."""

    same: list[FileFacts] = field(default_factory=list)
    missing: list[SourceFile] = field(default_factory=list)
    #: The file here begins with all that the source has.
    grown: list[SourceFile] = field(default_factory=list)
    different: list[SourceFile] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """True if every file of the source is here, byte for byte."""
        return not (self.missing or self.grown or self.different)


def hash_file(fd: int, end: int | None = None) -> tuple[int, str]:
    """Return length and SHA-256 of an open file, or of its first ``end`` bytes."""
    digest = hashlib.sha256()
    size = 0
    for chunk in _fs.iter_chunks(fd, 0, end, 1 << 20):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def count_records(name: str, fd: int) -> Counter[str] | None:
    """Count the records of a log by type (context: by role); None for a file that is no log."""
    base = name.rpartition("/")[2]
    if base == layout.WIRE:
        label = _wire_type
    elif layout.is_context_name(base):
        label = _context_role
    else:
        return None
    counts: Counter[str] = Counter()
    for block in iter_blocks(fd):
        for line in block.lines:
            decoded = decode_line(line, _anything)
            for span in decoded.records:
                counts[label(span.value)] += 1
            if decoded.damage:
                counts["(damaged)"] += len(decoded.damage)
    return counts


def _anything(_: dict[str, Any]) -> str | None:
    return None


def _wire_type(value: dict[str, Any]) -> str:
    message = value.get("message")
    if isinstance(message, dict) and isinstance(message.get("type"), str):
        return str(message["type"])
    return "(header)" if isinstance(value.get("protocol_version"), str) else "(other)"


def _context_role(value: dict[str, Any]) -> str:
    role = value.get("role")
    return role if isinstance(role, str) else "(other)"


def open_target(name: str, folder_fd: int) -> int:
    """Open a file of a session that is here, by its path below the session's open folder. Raises OSError."""
    fs = _fs.active()
    *folders, last = name.split("/")
    opened: list[int] = []
    try:
        fd = folder_fd
        for folder in folders:
            fd = _fs.open_folder(folder, dir_fd=fd)
            opened.append(fd)
        return _fs.open_regular(last, dir_fd=fd)
    finally:
        for fd in opened:
            fs.close(fd)


def compare(session: SourceSession, folder_fd: int) -> Comparison:
    """
    Compare every file of a source's session with the one here. Files that are only here don't count.

    Raises OSError where the source can't be read; a file here that can't be read counts as different.
    """
    result = Comparison()
    fs = _fs.active()
    for file in session.files:
        try:
            fd = open_target(file.name, folder_fd)
        except (FileNotFoundError, NotADirectoryError):
            result.missing.append(file)
            continue
        except OSError:
            result.different.append(file)
            continue
        try:
            _sort_in(result, file, fd)
        finally:
            fs.close(fd)
    return result


def _sort_in(result: Comparison, file: SourceFile, fd: int) -> None:
    found = _fs.active().fstat(fd)
    if file.make is not None:
        data = file.make()
        size, digest = len(data), hashlib.sha256(data).hexdigest()
    else:
        digest = ""
        source_fd = open_source(file)
        try:
            size = _fs.active().fstat(source_fd).st_size
            if found.st_size >= size:
                size, digest = hash_file(source_fd, size)
        finally:
            _fs.active().close(source_fd)
    if found.st_size < size or hash_file(fd, size) != (size, digest):
        result.different.append(file)
    elif found.st_size == size:
        result.same.append(FileFacts(file.name, size, digest, file.mtime_ns))
    else:
        result.grown.append(file)
