"""
The list columns of sessions, kept so that a list need not open every session again.

A row holds what was read of one session and marks of all that it was read from: the session's folder and each file
in it that can change an answer. It counts only while every mark is as it was, so an answer with the catalog is the
answer without it. Not kept are sessions without content (anything may fill them), and facts that depend on more than
files (the clock, a file that can't be read). As with git's index, what was changed in the same moment as it was read
is not believed: a second change within one tick of the file system's clock would leave the marks the same.
"""

from __future__ import annotations

import heapq
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import orjson

from kimi_sessions import _fs, layout
from kimi_sessions._facts import AHEAD_S, Facts, Marks, facts_of
from kimi_sessions._log import logger
from kimi_sessions.findings import Finding
from kimi_sessions.wire.scan import first_prompt

from ._database import (
    CatalogMissingError,
    CatalogUnusableError,
    Connection,
    ensure_folder_id,
    folder_id,
    opened,
    writing,
)
from ._logs import PROMPT, Place, find_position, marks_of, resumes, save_position, tail_of

__all__ = ["list_facts", "one_facts"]

#: How old a change must be for its mark to be believed: longer than a tick of the clock that file systems use, which is
#: at most 10 ms where they keep nanoseconds at all, and 2 s on the coarsest ones.
_SETTLED_NS = 100_000_000
_SETTLED_COARSE_NS = 2_500_000_000

#: What was looked at, of two kinds of marks: which of the four files count (a bit each, in this order), the folder's
#: inode and ctime, and inode, size and ctime of the wire log, the context, the state and our own facts. Behind them
#: stands a sum over the row: SQLite does not notice a byte that went bad.
_MARKS = struct.Struct("<B Qq QQq QQq QQq QQq")
_SUM = struct.Struct("<I")
_TIME = struct.Struct("<d")
_WIRE, _CONTEXT, _STATE, _EXTRA = 1, 2, 4, 8
_NO_MARK = (0, 0, 0)

_ALL_PLACES = "SELECT name, -updated_at, log, log_size, log_ctime FROM listed WHERE folder = ?"
_ALL = "SELECT name, updated_at, marks, title, problems, state, extra FROM listed WHERE folder = ?"
_ONE = f"{_ALL} AND name = ?"
_PUT = (
    "INSERT OR REPLACE INTO listed (folder, name, updated_at, log, log_size, log_ctime, "
    "marks, title, problems, state, extra) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_Row = tuple[Any, ...]
#: Title, problems, state and extra.
_Shown = Sequence[Any]
_WIRE_TAIL, _CONTEXT_TAIL = f"/{layout.WIRE}", f"/{layout.CONTEXT}"
_STATE_TAIL, _EXTRA_TAIL = f"/{layout.STATE}", f"/{layout.SESSION}"


def list_facts(
    fd: int,
    path: str,
    names: Iterable[str],
    is_session: Callable[[str], bool],
    *,
    now: float,
    limit: int | None = None,
) -> tuple[list[Facts], Callable[[], None]]:
    """
    Return the facts of those of ``names`` in an open sessions folder that are sessions, and a step that keeps in the
    catalog what had to be read, to be called when the answer was given; it never raises.

    ``is_session`` tells of a name whether it can be one's; a name that is in the catalog was one's. With ``limit``
    the newest so many that are not empty are among them, and others may be missing. Raises CatalogUnusableError if a
    catalog is there and can't be had.
    """
    scan = _Scan(fd, now)
    left = set(names)
    found: list[Facts] = []
    try:
        with opened(make=False) as connection:
            number = scan.use(connection, path)
            # Both take out of ``left`` what they tell of.
            if limit is None:
                found = list(scan.unchanged(connection.execute(_ALL, (number,)), left))
                found += scan.read_all(left, is_session)
            else:
                line = scan.unmoved(connection, left)
                fresh = scan.read_all(left, is_session)
                found = scan.newest(connection, line, fresh, limit) + fresh
    except CatalogMissingError:
        found = scan.read_all(left, is_session)
    return found, partial(scan.keep, path)


def one_facts(fd: int, path: str, name: str) -> Facts | None:
    """Return the facts of one session whose log takes long to read. Raises CatalogUnusableError."""
    scan = _Scan(fd, time.time())
    with opened() as connection:
        number = scan.use(connection, path)
        row = connection.execute(_ONE, (number, name)).fetchone()
        if row is not None and scan.holds(row):
            return _facts_from(row)
        facts = scan.read(name)
    scan.keep(path)
    return facts


class _Scan:
    """One look at a sessions folder: what was read, and what of it is worth keeping."""

    __slots__ = (
        "_checked_ns",
        "_connection",
        "_fd",
        "_gone",
        "_now",
        "_number",
        "_prompts",
        "_read",
        "_stat",
    )

    def __init__(self, fd: int, now: float) -> None:
        self._connection: Connection | None = None
        #: The folder's number in the catalog; none is 0.
        self._number = 0
        self._prompts: list[tuple[str, tuple[int, int, int], bytes, str]] = []
        self._fd = fd
        self._stat = _fs.active().stat
        self._now = now
        #: Id, time, marks, and what else a row has: title, problems, state and extra.
        self._read: list[tuple[str, float, bytes, str, bytes | None, bytes, bytes]] = []
        self._gone: list[str] = []
        self._checked_ns = time.time_ns()

    def use(self, connection: Connection, path: str) -> int:
        """Look into a catalog for what is known; return the folder's number in it."""
        self._connection = connection
        self._number = folder_id(connection, path) or 0
        return self._number

    def read_all(self, names: Iterable[str], is_session: Callable[[str], bool]) -> list[Facts]:
        """Read the sessions among these names."""
        read = self.read
        return [facts for name in names if is_session(name) and (facts := read(name)) is not None]

    def read(self, name: str) -> Facts | None:
        """Read a session, and note what may be kept of it."""
        try:
            # Before what is in it: a change meanwhile makes the mark an old one.
            folder = self._stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return facts_of(self._fd, name, now=self._now)
        marks = Marks(recall=self._prompt)
        facts = facts_of(self._fd, name, now=self._now, marks=marks)
        if facts is None or facts.empty or not marks.lasting or marks.legacy is not None:
            return facts
        wire = marks.wire
        state, extra = facts.documents
        # What is not held as bytes is damaged: it took the slow decoder, and will again.
        if (wire or marks.context) is not None and isinstance(state, bytes) and isinstance(extra, bytes):
            flags = 0 if wire is None else _WIRE
            if marks.needs_context:
                flags |= _CONTEXT
            if marks.state is not None:
                flags |= _STATE
            if marks.extra is not None:
                flags |= _EXTRA
            # Packed at once: the numbers of ten thousand sessions would keep the garbage collector busy.
            seen = _MARKS.pack(
                flags,
                folder.st_ino,
                folder.st_ctime_ns,
                *(_NO_MARK if wire is None else _mark(wire)),
                *(_NO_MARK if marks.context is None else _mark(marks.context)),
                *(_NO_MARK if marks.state is None else _mark(marks.state)),
                *(_NO_MARK if marks.extra is None else _mark(marks.extra)),
            )
            # Values, as they were read: whoever gets the facts may change them before they are kept.
            problems = _dump_problems(facts.problems) if facts.has_problems else None
            self._read.append((name, facts.updated_at, seen, facts.title, problems, state, extra))
        return facts

    def _rows(self, there: Callable[[str], bool]) -> Iterator[_Row]:
        """Yield the rows of what was read, is there, and can't have changed since the look began."""
        settled, checked = _is_settled, self._checked_ns
        for name, updated_at, marks, *shown in self._read:
            flags, *numbers = _MARKS.unpack(marks)
            counted = [numbers[1], *(numbers[3 * n + 4] for n in range(4) if flags & 1 << n)]
            if not all(settled(changed, checked) for changed in counted) or not there(name):
                continue
            log, size, ctime = "", 0, 0
            if flags & (_WIRE | _CONTEXT) == _WIRE:
                log, (_, size, ctime) = name + _WIRE_TAIL, numbers[2:5]
            summed = marks + _SUM.pack(_sum_of(updated_at, marks, shown))
            yield (name, updated_at, log, size, ctime, summed, *shown)

    def holds(self, row: _Row) -> bool:
        """Tell whether all that a row was read from is as it was."""
        stat, fd, name = self._stat, self._fd, row[0]
        flags, ino, ctime, *files = _numbers_of(row)
        try:
            found = stat(name, dir_fd=fd, follow_symlinks=False)
            # What was not there is not there now: else the folder itself would have changed.
            if found.st_ctime_ns != ctime or found.st_ino != ino:
                return False
            if flags & _WIRE:
                found = stat(name + _WIRE_TAIL, dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != files[2] or found.st_size != files[1] or found.st_ino != files[0]:
                    return False
            if flags & _STATE:
                found = stat(name + _STATE_TAIL, dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != files[8] or found.st_size != files[7] or found.st_ino != files[6]:
                    return False
            if flags & _CONTEXT:
                found = stat(name + _CONTEXT_TAIL, dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != files[5] or found.st_size != files[4] or found.st_ino != files[3]:
                    return False
            if flags & _EXTRA:
                found = stat(name + _EXTRA_TAIL, dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != files[11] or found.st_size != files[10] or found.st_ino != files[9]:
                    return False
        except OSError:
            return False
        return bool(row[1] <= self._now + AHEAD_S)

    def unchanged(self, rows: Iterable[_Row], names: set[str]) -> Iterator[Facts]:
        """Yield the facts of the rows that hold; their names, and no others, leave ``names``."""
        holds, gone = self.holds, self._gone
        for row in rows:
            name = row[0]
            if name not in names:
                gone.append(name)
            elif holds(row):
                names.discard(name)
                yield _facts_from(row)

    def unmoved(self, connection: Connection, names: set[str]) -> list[tuple[float, str]]:
        """
        Return ``(-time, name)`` of the rows whose log is as it was; their names, and no others, leave ``names``.

        The log is what moves a session in a list. Where it has no time, or is not there yet, anything may, and the
        whole row must hold. Else its state can do so in theory (``wire_mtime``), and then no further than to the time
        of a log that was copied without its times; the full list sees that.
        """
        stat, fd, earliest = self._stat, self._fd, -self._now - AHEAD_S
        line = []
        known = set()
        unsure = []
        for name, minus_at, log, size, ctime in connection.execute(_ALL_PLACES, (self._number,)):
            if name in known:
                message = "a damaged table: it has the same row twice"
                raise ValueError(message)
            known.add(name)
            if not log:
                unsure.append(name)
                continue
            try:
                found = stat(log, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if found.st_ctime_ns == ctime and found.st_size == size and minus_at >= earliest:
                line.append((minus_at, name))
        for name in unsure:
            row = connection.execute(_ONE, (self._number, name)).fetchone()
            if row is not None and self.holds(row):
                line.append((-row[1], name))
        self._gone += known - names
        names.difference_update([name for _, name in line])
        return line

    def newest(
        self, connection: Connection, line: list[tuple[float, str]], fresh: list[Facts], limit: int
    ) -> list[Facts]:
        """
        Return the facts of those in ``line`` that are among the newest ``limit``, with others.

        ``fresh`` were read just now, and stand in line too.
        """
        known = {facts.id: facts for facts in fresh if not facts.empty}
        line += [(-facts.updated_at, name) for name, facts in known.items()]
        heapq.heapify(line)
        found: list[Facts] = []
        left = limit
        while line and left > 0:
            _, name = heapq.heappop(line)
            if name not in known:
                row = connection.execute(_ONE, (self._number, name)).fetchone()
                if row is None or not self.holds(row):
                    facts = self.read(name)
                    if facts is not None:
                        found.append(facts)
                        if not facts.empty:
                            known[name] = facts
                            heapq.heappush(line, (-facts.updated_at, name))
                    continue
                found.append(_facts_from(row))
            left -= 1
        return found

    def _prompt(self, fd: int, name: str, found: os.stat_result, head: bytes) -> str:
        """Return the first prompt of a long log: looked for once, it stays the first as long as the log only grows."""
        if self._connection is not None and self._number:
            position = find_position(self._connection, Place(self._number, name, layout.WIRE), PROMPT)
            if position is not None and resumes(position, fd, found):
                return str(position.fold)
        prompt = first_prompt(fd, head, found.st_size)
        if prompt:
            self._prompts.append((name, marks_of(found), tail_of(fd, found.st_size), prompt))
        return prompt

    def keep(self, path: str) -> None:
        """Keep what was read, and forget what is gone; where the catalog can't be had, don't."""
        if not self._read and not self._gone and not self._prompts:
            return
        try:
            fd = _fs.open_folder(path)
        except OSError as error:
            logger().debug("what was read of %s is not kept: %s", path, error)
            return
        access = _fs.active().access

        def there(name: str) -> bool:
            return access(name, os.F_OK, dir_fd=fd, follow_symlinks=False)

        try:
            with opened() as connection, writing(connection):
                number = ensure_folder_id(connection, path)
                # In the order of the table: it is filled from front to back then. What is there now and is deleted
                # later is forgotten later; what is gone was forgotten before, and must not come back.
                connection.executemany(_PUT, [(number, *row) for row in sorted(self._rows(there))])
                connection.executemany(
                    "DELETE FROM listed WHERE folder = ? AND name = ?",
                    [(number, name) for name in self._gone],
                )
                for name, marks, tail, prompt in self._prompts:
                    if there(name):
                        place = Place(number, name, layout.WIRE)
                        save_position(
                            connection, place, PROMPT, marks=marks, offset=marks[1], tail=tail, fold=prompt
                        )
        except CatalogUnusableError as error:
            logger().debug("what was read of %s is not kept: %s", path, error)
        finally:
            _fs.active().close(fd)


def _is_settled(changed_ns: int, checked_ns: int) -> bool:
    """Tell whether a change is old enough that any later one has a later time."""
    age = checked_ns - changed_ns
    return age > _SETTLED_COARSE_NS or (age > _SETTLED_NS and changed_ns % 1_000_000 != 0)


def _sum_of(updated_at: float, marks: bytes, shown: _Shown) -> int:
    """Return the sum over what a row says."""
    title, problems, state, extra = shown
    return zlib.crc32(
        b"\0".join((_TIME.pack(updated_at), marks, title.encode(), problems or b"", state, extra))
    )


def _numbers_of(row: _Row) -> tuple[int, ...]:
    """Return the numbers of a row's marks. Raises ValueError for a row that nobody has written so."""
    _, updated_at, data, *shown = row
    try:
        marks = data[: _MARKS.size]
        if data[_MARKS.size :] == _SUM.pack(_sum_of(updated_at, marks, shown)):
            return _MARKS.unpack(marks)
    except (struct.error, TypeError, AttributeError) as error:
        message = f"a damaged row: {error}"
        raise ValueError(message) from error
    message = "a damaged row"
    raise ValueError(message)


def _mark(result: os.stat_result) -> tuple[int, int, int]:
    return result.st_ino, result.st_size, result.st_ctime_ns


def _dump_problems(problems: list[Finding]) -> bytes:
    return orjson.dumps([problem.as_dict() for problem in problems])


def _facts_from(row: _Row) -> Facts:
    name, updated_at, _, title, problems, state, extra = row
    facts = Facts(name, title, updated_at, empty=False, _state=state, _extra=extra)
    if problems is not None:
        facts.problems = [Finding(**problem) for problem in orjson.loads(problems)]
    return facts
