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
import time
from typing import Any

import orjson

from kimi_sessions import _fs, layout
from kimi_sessions._facts import Facts, Marks, facts_of
from kimi_sessions.findings import Finding
from kimi_sessions.wire.scan import first_prompt

from ._database import Connection, ensure_folder_id, folder_id, opened, writing
from ._logs import PROMPT, Place, find_position, marks_of, resumes, save_position, tail_of

__all__ = ["list_facts", "one_facts"]

#: How old a change must be for its mark to be believed: longer than a tick of the clock that file systems use, which is
#: at most 10 ms where they keep nanoseconds at all, and 2 s on the coarsest ones.
_SETTLED_NS = 100_000_000
_SETTLED_COARSE_NS = 2_500_000_000
_DAY_S = 86_400.0

_PLACE = "name, wire_ino, wire_size, wire_ctime, context_ino, context_size, context_ctime, updated_at"
_COLUMNS = (
    f"{_PLACE}, dir_ino, dir_ctime, state_ino, state_size, state_ctime, extra_ino, extra_size, extra_ctime, "
    "title, problems, state, extra"
)
_ALL_PLACES = f"SELECT {_PLACE} FROM listed WHERE folder = ?"  # noqa: S608 - fixed text, here and below
_ALL = f"SELECT {_COLUMNS} FROM listed WHERE folder = ?"  # noqa: S608
_ONE = f"{_ALL} AND name = ?"
_PUT = f"INSERT OR REPLACE INTO listed (folder, {_COLUMNS}) VALUES ({', '.join('?' * 21)})"  # noqa: S608
_Row = tuple[Any, ...]


def list_facts(fd: int, path: str, names: list[str], *, now: float, limit: int | None = None) -> list[Facts]:
    """
    Return the facts of those of ``names`` in an open sessions folder that are sessions.

    With ``limit`` the newest so many that are not empty are among them, and others may be missing. Raises
    CatalogUnusableError if the catalog can't be had.
    """
    with opened() as connection:
        number = folder_id(connection, path)
        scan = _Scan(fd, now, connection, number)
        if number is None:
            found = [facts for name in names if (facts := scan.read(name)) is not None]
            gone: set[str] = set()
        elif limit is None:
            found, gone = _all(scan, connection, number, names)
        else:
            found, gone = _newest(scan, connection, number, names, limit)
        scan.save(path, gone)
    return found


def one_facts(fd: int, path: str, name: str) -> Facts | None:
    """Return the facts of one session whose log takes long to read. Raises CatalogUnusableError."""
    with opened() as connection:
        number = folder_id(connection, path)
        scan = _Scan(fd, time.time(), connection, number)
        row = None if number is None else connection.execute(_ONE, (number, name)).fetchone()
        if row is not None and scan.holds(row):
            return _facts_from(row)
        facts = scan.read(name)
        scan.save(path, set())
    return facts


class _Scan:
    """One look at a sessions folder: what was read, and what of it is worth keeping."""

    __slots__ = ("_checked_ns", "_connection", "_fd", "_fs", "_now", "_number", "_prompts", "_rows", "_stat")

    def __init__(self, fd: int, now: float, connection: Connection, number: int | None) -> None:
        self._connection = connection
        self._number = number
        self._prompts: list[tuple[str, tuple[int, int, int], bytes, str]] = []
        self._fd = fd
        self._fs = _fs.active()
        self._stat = self._fs.stat
        self._now = now
        self._rows: list[_Row] = []
        self._checked_ns = time.time_ns()

    def read(self, name: str) -> Facts | None:
        """Read a session, and note its row."""
        try:
            folder = self._stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return facts_of(self._fd, name, now=self._now)
        marks = Marks()
        marks.recall = lambda fd, found, head: self._prompt(name, fd, found, head)
        facts = facts_of(self._fd, name, now=self._now, marks=marks)
        if facts is None or facts.empty or not marks.lasting or marks.legacy is not None:
            return facts
        state, extra = facts.documents
        if not isinstance(state, bytes) or not isinstance(extra, bytes):
            return facts  # damaged: it took the slow decoder, and will again
        for result in (folder, marks.wire, marks.state, marks.extra, marks.context):
            if result is not None and not _is_settled(result.st_ctime_ns, self._checked_ns):
                return facts
        self._rows.append(
            (
                name,
                *_mark(marks.wire),
                *_mark(marks.context if marks.needs_context else None),
                facts.updated_at,
                folder.st_ino,
                folder.st_ctime_ns,
                *_mark(marks.state),
                *_mark(marks.extra),
                facts.title,
                _dump_problems(facts.problems),
                state,
                extra,
            )
        )
        return facts

    def holds(self, row: _Row) -> bool:
        """Tell whether all that a row was read from is as it was."""
        stat, fd, name = self._stat, self._fd, row[0]
        try:
            found = stat(name, dir_fd=fd, follow_symlinks=False)
            if found.st_ctime_ns != row[9] or found.st_ino != row[8]:
                return False
            # What was not there is not there now: else the folder itself would have changed.
            if row[3] is not None:
                found = stat(f"{name}/{layout.WIRE}", dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != row[3] or found.st_size != row[2] or found.st_ino != row[1]:
                    return False
            if row[6] is not None:
                found = stat(f"{name}/{layout.CONTEXT}", dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != row[6] or found.st_size != row[5] or found.st_ino != row[4]:
                    return False
            if row[12] is not None:
                found = stat(f"{name}/{layout.STATE}", dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != row[12] or found.st_size != row[11] or found.st_ino != row[10]:
                    return False
            if row[15] is not None:
                found = stat(f"{name}/{layout.SESSION}", dir_fd=fd, follow_symlinks=False)
                if found.st_ctime_ns != row[15] or found.st_size != row[14] or found.st_ino != row[13]:
                    return False
        except OSError:
            return False
        return bool(row[7] <= self._now + _DAY_S)

    def same_log(self, row: _Row) -> bool:
        """Tell whether the files that most often move a session in a list are as they were."""
        try:
            if row[3] is not None:
                found = self._stat(f"{row[0]}/{layout.WIRE}", dir_fd=self._fd, follow_symlinks=False)
                if found.st_ctime_ns != row[3] or found.st_size != row[2] or found.st_ino != row[1]:
                    return False
            else:
                found = self._stat(f"{row[0]}/{layout.CONTEXT}", dir_fd=self._fd, follow_symlinks=False)
                if found.st_ctime_ns != row[6] or found.st_size != row[5] or found.st_ino != row[4]:
                    return False
        except OSError:
            return False
        return bool(row[7] <= self._now + _DAY_S)

    def _prompt(self, name: str, fd: int, found: os.stat_result, head: bytes) -> str:
        """Return the first prompt of a long log: looked for once, it stays the first as long as the log only grows."""
        if self._number is not None:
            position = find_position(self._connection, Place(self._number, name, layout.WIRE), PROMPT)
            if position is not None and resumes(position, fd, found):
                return str(position.fold)
        prompt = first_prompt(fd, head, found.st_size)
        if prompt:
            self._prompts.append((name, marks_of(found), tail_of(fd, found.st_size), prompt))
        return prompt

    def save(self, path: str, gone: set[str]) -> None:
        """Keep what was read, and forget what is gone."""
        if not self._rows and not gone and not self._prompts:
            return
        connection = self._connection
        with writing(connection):
            number = ensure_folder_id(connection, path)
            connection.executemany(_PUT, [(number, *row) for row in self._rows])
            connection.executemany(
                "DELETE FROM listed WHERE folder = ? AND name = ?", [(number, name) for name in gone]
            )
            for name, marks, tail, prompt in self._prompts:
                place = Place(number, name, layout.WIRE)
                save_position(connection, place, PROMPT, marks=marks, offset=marks[1], tail=tail, fold=prompt)


def _is_settled(changed_ns: int, checked_ns: int) -> bool:
    """Tell whether a change is old enough that any later one has a later time."""
    age = checked_ns - changed_ns
    return age > _SETTLED_COARSE_NS or (age > _SETTLED_NS and changed_ns % 1_000_000 != 0)


def _mark(result: os.stat_result | None) -> tuple[int | None, int | None, int | None]:
    if result is None:
        return None, None, None
    return result.st_ino, result.st_size, result.st_ctime_ns


def _dump_problems(problems: list[Finding]) -> bytes | None:
    return orjson.dumps([problem.as_dict() for problem in problems]) if problems else None


def _facts_from(row: _Row) -> Facts:
    facts = Facts(row[0])
    facts.empty = False
    facts.updated_at = row[7]
    facts.title = row[16]
    if row[17] is not None:
        facts.problems = [Finding(**problem) for problem in orjson.loads(row[17])]
    facts.hold(row[18], row[19])
    return facts


def _all(scan: _Scan, connection: Connection, number: int, names: list[str]) -> tuple[list[Facts], set[str]]:
    rows: dict[str, _Row] = {}
    for row in connection.execute(_ALL, (number,)):
        rows[row[0]] = row
    found = []
    holds, read = scan.holds, scan.read
    for name in names:
        row = rows.pop(name, None)
        if row is not None and holds(row):
            found.append(_facts_from(row))
        else:
            facts = read(name)
            if facts is not None:
                found.append(facts)
    return found, set(rows)


def _newest(
    scan: _Scan, connection: Connection, number: int, names: list[str], limit: int
) -> tuple[list[Facts], set[str]]:
    """Return at least the newest ``limit``: rows whose log is as it was stand in line, and are checked in turn."""
    rows: dict[str, _Row] = {}
    for row in connection.execute(_ALL_PLACES, (number,)):
        rows[row[0]] = row
    found: list[Facts] = []
    line: list[tuple[float, str, Facts | None]] = []
    read, grew_not = scan.read, scan.same_log
    for name in names:
        row = rows.pop(name, None)
        if row is not None and grew_not(row):
            line.append((-row[7], name, None))
            continue
        facts = read(name)
        if facts is None:
            continue
        if facts.empty:
            found.append(facts)
        else:
            line.append((-facts.updated_at, name, facts))
    heapq.heapify(line)
    left = limit
    while line and left > 0:
        _, name, facts = heapq.heappop(line)
        if facts is None:
            row = connection.execute(_ONE, (number, name)).fetchone()
            if row is not None and scan.holds(row):
                facts = _facts_from(row)
            else:
                facts = read(name)
                if facts is not None and not facts.empty:
                    heapq.heappush(line, (-facts.updated_at, name, facts))
                elif facts is not None:
                    found.append(facts)
                continue
        found.append(facts)
        left -= 1
    return found, set(rows)
