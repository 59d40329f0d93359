"""
One small JSON file, replaced whole, unknown keys kept.

Reading is forgiving and says what it forgave; writing is a temp file, a sync, a rename and a sync of the folder.
A file that can't be parsed is set aside under a new name before anything replaces it. The meaning of the document,
and how two versions of it are merged, is the caller's.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from . import _fs, layout
from ._lines import BOM, decode_value
from .errors import WriteError

__all__ = [
    "Change",
    "Document",
    "bad_bytes",
    "dump_document",
    "move_aside",
    "parse_document",
    "read_document",
    "salvage",
    "set_aside",
    "update_document",
]

#: A document is small; a larger file of this name is something else, and reading it whole could take the memory.
_LIMIT_BYTES = 16 << 20
_RETRIES = 20
_DECODER = json.JSONDecoder(strict=False)
#: What may stand before a document.
_BEFORE = "\ufeff \t\r\n\0"


@dataclass(slots=True)
class Document:
    """
    A document as read: ``value`` is None where the file is missing, unreadable, or no JSON object.

    ``problem`` says what was wrong, "" if nothing. ``exists`` is False only where there is no file. ``whole`` is
    False where bytes would be lost if ``value`` were written back (nothing parsed, or junk followed). ``mark`` tells
    this version of the file from a later one.
    """

    value: dict[str, Any] | None
    problem: str = ""
    exists: bool = True
    whole: bool = True
    mark: tuple[int, int, int, int] | None = None


#: From the document as it is on disk to what it should be, or None to leave it alone.
Change: TypeAlias = "Callable[[Document], dict[str, Any] | None]"


def read_document(name: str, *, dir_fd: int | None = None) -> Document:
    """Read a document. Never raises for what the file holds or lacks; OSError other than "not there" is a problem."""
    fs = _fs.active()
    try:
        fd, found = _fs.open_known(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return Document(None, exists=False)
    except OSError as error:
        return Document(None, f"can't be read: {error.strerror}", whole=False)
    try:
        if found.st_size > _LIMIT_BYTES:
            return Document(None, f"too large for a document ({found.st_size} bytes)", whole=False)
        data = fs.read(fd, found.st_size + 1)
        while len(data) <= found.st_size and (more := fs.read(fd, 1 << 16)):
            data += more
    except OSError as error:
        return Document(None, f"can't be read: {error.strerror}", whole=False)
    finally:
        fs.close(fd)
    document = parse_document(data)
    document.mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return document


def parse_document(data: bytes) -> Document:
    """Parse the bytes of a document by the policy of this room."""
    body = data.strip(b" \t\r\n\x00")
    if body.startswith(BOM):
        body = body[len(BOM) :].lstrip()
    if not body:
        return Document(None, "empty" if not data.strip(b"\0") else "blank", whole=not data)
    try:
        value = decode_value(body, exact=True)
    except ValueError:
        return _parse_prefix(body)
    if not isinstance(value, dict):
        return Document(None, "not a JSON object", whole=False)
    return Document(value)


def _parse_prefix(body: bytes) -> Document:
    """Old bytes may follow a shorter document that was written over a longer one: the first object still counts."""
    text = body.decode("utf-8", "replace")
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError:
        return Document(None, "nested too deeply", whole=False)
    except ValueError as error:
        return Document(None, f"not valid JSON ({error})", whole=False)
    if not isinstance(value, dict):
        return Document(None, "not a JSON object", whole=False)
    return Document(value, f"{len(text) - end} characters of junk after the document", whole=False)


def bad_bytes(data: bytes) -> tuple[int, int]:
    """Return where a document stops being one: offset and length of the bytes that are no part of a JSON object."""
    text = data.decode("utf-8", "surrogateescape")
    start = len(text) - len(text.lstrip(_BEFORE))
    try:
        _, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        end = error.pos
    except (ValueError, RecursionError):
        end = start  # a number too long to read, or nested too deeply: where is not told
    offset = len(text[:end].encode("utf-8", "surrogateescape"))
    return (offset, len(data) - offset) if offset < len(data) else (0, len(data))


def salvage(data: bytes) -> dict[str, Any]:
    """
    Return the whole fields at the beginning of a JSON object that was cut short or goes wrong further on.

    A value counts if what follows it is a comma or the object's end: a number that was cut is a number too.
    """
    text = data.decode("utf-8", "replace").lstrip(_BEFORE)
    found: dict[str, Any] = {}
    if not text.startswith("{"):
        return found
    at = 1
    try:
        while True:
            key, at = _DECODER.raw_decode(text, _past_space(text, at))
            at = _past_space(text, at)
            if not isinstance(key, str) or text[at] != ":":
                return found
            value, at = _DECODER.raw_decode(text, _past_space(text, at + 1))
            at = _past_space(text, at)
            if text[at] not in ",}":
                return found
            found[key] = value
            if text[at] == "}":
                return found
            at += 1
    except (ValueError, IndexError, RecursionError):
        return found


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def dump_document(value: dict[str, Any]) -> bytes:
    """
    Return a document's bytes: two spaces of indent, non-ASCII kept, as the real client writes its own.

    One that would be too large with its indents, or is nested too deeply for them, has none. Raises OSError for one
    that even so could not be written, or not be read again.
    """
    try:
        data = _encoded(value, indent=2)
    except RecursionError:
        data = b""  # the encoder that does not indent goes three times as deep
    if not data or len(data) > _LIMIT_BYTES:
        try:
            data = _encoded(value, indent=None)
        except RecursionError:
            raise OSError(errno.EFBIG, "nested too deeply to be written") from None
    if len(data) > _LIMIT_BYTES:
        # It could not be read again.
        raise OSError(errno.EFBIG, f"too large for a document ({len(data)} bytes)")
    return data


def _encoded(value: dict[str, Any], *, indent: int | None) -> bytes:
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent).encode("ascii")


def set_aside(name: str, *, dir_fd: int) -> str:
    """
    Give a damaged file a further name that is never reused, and return it; its bytes stay for a person to look at.

    The old name still holds the same file afterwards: the replace that follows takes it away.
    """
    names = (f"{name}{layout.DAMAGED_INFIX}{number}" for number in count(1))
    return _fs.add_name(name, names, dir_fd=dir_fd)


def move_aside(name: str, kept: str, *, dir_fd: int) -> None:
    """
    Rename a document that has had its day to ``kept``, or to ``kept-2``, ``kept-3``… where that is taken.

    One that is not there is passed over. The caller holds the lock. Raises OSError.
    """
    fs = _fs.active()
    number = 1
    free = kept
    while _fs.exists(free, dir_fd=dir_fd):
        number += 1
        free = f"{kept}-{number}"
    try:
        fs.rename(name, free, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except FileNotFoundError:
        return


def update_document(name: str, change: Change, *, dir_fd: int, folder: str) -> dict[str, Any] | None:
    """
    Read a document, let ``change`` say what it should be, and replace it. The caller holds the lock.

    ``change`` gets the document as it is on disk and returns the new value, or None to leave it alone. Just before
    the rename the file is looked at again: if a program without our lock replaced it meanwhile, ``change`` is asked
    anew. A file that did not parse is set aside first. Durable when it returns. Returns what was written, or None.

    Raises WriteError; then the old file is as it was.
    """
    path = os.path.join(folder, name)
    try:
        for _ in range(_RETRIES):
            document = read_document(name, dir_fd=dir_fd)
            value = change(document)
            if value is None:
                return None
            mark = document.mark
            if document.exists and mark is None:
                raise WriteError(path=path, reason=document.problem)
            if document.exists and not document.whole and mark is not None and mark[2] > 0:
                set_aside(name, dir_fd=dir_fd)
            if _fs.replace_file(
                name,
                dump_document(value),
                dir_fd=dir_fd,
                before_replace=_unchanged(name, dir_fd, mark),
            ):
                return value
    except WriteError:
        raise
    except OSError as error:
        raise WriteError.of(error, path) from error
    raise WriteError(path=path, reason="another program keeps changing it")


def _unchanged(name: str, dir_fd: int, mark: tuple[int, int, int, int] | None) -> Callable[[], bool]:
    return lambda: _mark_of(name, dir_fd) == mark


def _mark_of(name: str, dir_fd: int) -> tuple[int, int, int, int] | None:
    try:
        found = _fs.active().stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
