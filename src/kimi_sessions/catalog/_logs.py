"""
How far a log was read, and whether reading can go on from there.

A log grows at its end. What was derived from it up to an offset holds while the file is the same one, no shorter,
and its bytes just before the offset are as they were; a change that did not make it longer is no append, and starts
it anew. Nothing else is assumed, and no log is ever locked.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from kimi_sessions import _fs
from kimi_sessions._lines import Accept, decode_line, iter_blocks
from kimi_sessions._log import logger

from ._database import (
    CatalogMissingError,
    CatalogUnusableError,
    Connection,
    folder_id,
    opened,
    writing,
)

__all__ = [
    "PROMPT",
    "STATS",
    "TEXT",
    "TURNS",
    "UNSETTLED",
    "Place",
    "Position",
    "find_position",
    "iter_growing",
    "marks_of",
    "resumes",
    "save_position",
]

TURNS = 1
STATS = 2
TEXT = 3
PROMPT = 4

_TAIL_BYTES = 64
#: The tail of a position behind a line that was not settled: no log ends so, and one that changed is read anew.
UNSETTLED = b"\0" * (_TAIL_BYTES + 1)
_FIND = (
    "SELECT id, ino, size, ctime, offset, tail, fold "
    "FROM log WHERE folder = ? AND purpose = ? AND name = ? AND file = ?"
)
#: Naming every purpose has the index by folder, purpose and name used.
_PURPOSES = ", ".join(map(str, (TURNS, STATS, TEXT, PROMPT)))
_FIND_ALL = f"SELECT id FROM log WHERE folder = ? AND purpose IN ({_PURPOSES}) AND name = ?"  # noqa: S608 - our numbers


class Place(NamedTuple):
    """A log of a session: the number of its sessions folder, the session's name, the file's."""

    folder: int
    name: str
    file: str


class Position(NamedTuple):
    """How far a log was read for one purpose, and what was known then. ``fold`` is the purpose's own."""

    id: int
    ino: int
    size: int
    ctime: int
    offset: int
    tail: bytes
    fold: Any


def find_position(connection: Connection, place: Place, purpose: int) -> Position | None:
    """Return how far a log was read, None if it was not."""
    row = connection.execute(_FIND, (place.folder, purpose, place.name, place.file)).fetchone()
    if row is None:
        return None
    number, ino, size, ctime, offset, tail, fold = row
    return Position(number, ino, size, ctime, offset, tail, orjson.loads(fold))


def marks_of(found: os.stat_result) -> tuple[int, int, int]:
    """
    Return what tells a log from what it was before: inode, size in bytes, and time of the last change in nanoseconds.

    SQLite's numbers have a sign. Some file systems (FUSE, CIFS) give inode numbers that need all 64 bits, so those
    from 2**63 on come out negative.
    """
    ino = found.st_ino
    return ino if ino < 1 << 63 else ino - (1 << 64), found.st_size, found.st_ctime_ns


def resumes(position: Position, fd: int, found: os.stat_result) -> bool:
    """Tell whether an open log only grew since it was read. Raises OSError."""
    ino, size, ctime = marks_of(found)
    if position.ino != ino or position.offset > size:
        return False
    if size == position.size and position.ctime != ctime:
        return False
    if position.tail == UNSETTLED:
        return size == position.size
    return tail_of(fd, position.offset) == position.tail


def tail_of(fd: int, offset: int) -> bytes:
    """Return the bytes of an open log just before an offset. Raises OSError."""
    first = max(offset - _TAIL_BYTES, 0)
    return _fs.read_fd(fd, first, offset - first)


def save_position(
    connection: Connection,
    place: Place,
    purpose: int,
    *,
    marks: tuple[int, int, int],
    offset: int,
    tail: bytes,
    fold: Any,
) -> int:
    """Keep how far a log was read, with marks of what it was then (``marks_of``), and return its number."""
    values = (*marks, offset, tail, orjson.dumps(fold).decode())
    row = connection.execute(
        "INSERT INTO log (folder, purpose, name, file, ino, size, ctime, offset, tail, fold) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (folder, purpose, name, file) DO UPDATE SET "
        "ino = excluded.ino, size = excluded.size, ctime = excluded.ctime, offset = excluded.offset, "
        "tail = excluded.tail, fold = excluded.fold RETURNING id",
        (place.folder, purpose, place.name, place.file, *values),
    ).fetchone()
    return int(row[0])


def pack_words(rows: list[tuple[int, str, str]]) -> bytes:
    """Pack ``(id, words, tags)`` of indexed messages: the index can only forget what it is told word for word."""
    return zlib.compress(orjson.dumps(rows), 1)


def drop_text(connection: Connection, log: int) -> None:
    """Take the messages of a log out of the index."""
    for (packed,) in connection.execute("SELECT packed FROM words WHERE log = ?", (log,)).fetchall():
        connection.executemany(
            "INSERT INTO found (found, rowid, words, tags) VALUES ('delete', ?, ?, ?)",
            orjson.loads(zlib.decompress(packed)),
        )
    connection.execute("DELETE FROM words WHERE log = ?", (log,))
    connection.execute("DELETE FROM message WHERE log = ?", (log,))


def forget_sessions(connection: Connection, folder: int, names: Iterable[str]) -> None:
    """
    Forget all that is known of sessions that are gone, and leave no trace of their words in the file.

    The index keeps old words in its segments until these are merged, and the write-ahead log keeps old pages until it
    is cut; both are done here, so this costs time in proportion to the catalog's size.
    """
    had_words = False
    with writing(connection):
        for name in names:
            connection.execute("DELETE FROM listed WHERE folder = ? AND name = ?", (folder, name))
            logs = connection.execute(_FIND_ALL, (folder, name)).fetchall()
            for (log,) in logs:
                had_words = had_words or _has_words(connection, log)
                drop_text(connection, log)
                connection.execute("DELETE FROM turn WHERE log = ?", (log,))
                connection.execute("DELETE FROM counted WHERE log = ?", (log,))
                connection.execute("DELETE FROM log WHERE id = ?", (log,))
        if had_words:
            connection.execute("INSERT INTO found (found) VALUES ('optimize')")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _has_words(connection: Connection, log: int) -> bool:
    return connection.execute("SELECT 1 FROM words WHERE log = ?", (log,)).fetchone() is not None


def forget_session(sessions_path: str, name: str) -> None:
    """Forget a session that was deleted, if there is a catalog; whatever stands in the way, the next search will."""
    try:
        with opened(make=False) as connection:
            number = folder_id(connection, sessions_path)
            if number is not None:
                forget_sessions(connection, number, [name])
    except CatalogMissingError:
        return
    except CatalogUnusableError as error:
        logger().debug("%s stays in the catalog for now: %s", name, error)


class Run(NamedTuple):
    """Lines of a log as they follow each other. ``settled`` is False where they may still become something else."""

    offset: int
    lines: list[bytes]
    settled: bool


def iter_growing(fd: int, offset: int, end: int, accept: Accept) -> Iterator[Run]:
    """
    Yield the lines of a log in runs.

    A last line without newline may still be growing. It is given only if it holds a record, and is settled only if
    it holds nothing else.
    """
    for block in iter_blocks(fd, offset, end):
        settled = True
        if not block.terminated:
            decoded = decode_line(block.lines[0], accept)
            if not decoded.records:
                return
            settled = not decoded.damage
        yield Run(block.offset, block.lines, settled)
