"""
Full-text search over sessions.

The index is brought up to date by each search: logs that grew are read on from where they were left, sessions that
are gone are forgotten, and nothing else is opened. It holds words and where they stand, not the text: what is shown
of a hit is read from its log again. Where the catalog can't be had the same index is made in a temporary file for the
one question, so the answer is the same and takes longer.

What can be searched for, and what a query means, is told in ``_text``.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat as stat_module
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from kimi_sessions import _fs, layout
from kimi_sessions._async import in_thread
from kimi_sessions._document import parse_document
from kimi_sessions._facts import AHEAD_S
from kimi_sessions._log import logger
from kimi_sessions._text import clean
from kimi_sessions.context.history import refuse as refuse_context
from kimi_sessions.layout import Layout
from kimi_sessions.session import Session
from kimi_sessions.wire.records import refuse as refuse_wire

from ._database import CatalogUnusableError, Connection, ensure_folder_id, folder_id, opened, scratch, writing
from ._logs import (
    TEXT,
    UNSETTLED,
    Place,
    Position,
    drop_text,
    find_position,
    forget_sessions,
    iter_growing,
    marks_of,
    pack_words,
    resumes,
    save_position,
    tail_of,
)
from ._scope import Scope, scopes
from ._text import (
    ROLES,
    TITLE,
    WIRE_HINTS,
    Text,
    find_in,
    match_expression,
    split_words,
    texts_of_context_line,
    texts_of_wire_line,
)

__all__ = ["Hit", "SearchResult", "search"]

#: How long a search waits for another process that is indexing; its steps are much shorter.
_PATIENCE_MS = 5_000
#: One step of indexing: so much text is put into the index and committed together.
_STEP_CHARS = 4 << 20
#: A smaller log holds a header (49 bytes) at most: the shortest record with a word in it has 75.
_SHORTEST_BYTES = 75
_SNIPPET_BEFORE = 40
_SNIPPET_CHARS = 160
_ID_BITS = 20


@dataclass(frozen=True, slots=True)
class Hit:
    """
    One message that was found.

    Attributes:
        session: the session it is in, as it is now.
        role: ``user``, ``assistant``, ``tool`` (a call with its arguments) or ``title`` (one that a person gave).
        turn_index: the turn it belongs to, from 0; None before the first one and for a title.
        time: epoch seconds of its record, None where the log has none (titles, sessions without a wire log).
        snippet: the text around the first word that was asked for, safe to show.
        file: the log it stands in, relative to the session.
        offset: first byte of its record there.
    """

    session: Session
    role: str
    turn_index: int | None
    time: float | None
    snippet: str
    file: str
    offset: int


@dataclass(slots=True)
class SearchResult:
    """Hits, newest first. ``more`` is True if there are others beyond the limit."""

    hits: list[Hit] = field(default_factory=list)
    more: bool = False


async def search(
    query: str,
    work_dir: object | None = None,
    *,
    layout: Layout | None = None,
    role: str | None = None,
    limit: int | None = 50,
    include_archived: bool = True,
) -> SearchResult:
    """
    Find messages of a work dir (None: of every known one) that hold all words of ``query``, newest first.

    A part in double quotes is a phrase, a word ending in ``*`` the beginning of one; case and accents are ignored.
    ``role`` takes only messages of one kind, ``limit`` None gives all. What a fork shares with its parent is given
    once. Raises ValueError for a query without a word and for a role that is none.
    """
    if role is not None and role not in ROLES:
        message = f"a role is one of {', '.join(ROLES)}, not {role!r}"
        raise ValueError(message)
    if match_expression(query, []) is None:
        message = f"there is no word to search for in {query!r}"
        raise ValueError(message)
    wish = _Wish(query, None if role is None else ROLES.index(role), limit, include_archived)
    return await in_thread(_search, wish, work_dir, layout)


class _Wish(NamedTuple):
    query: str
    role: int | None
    limit: int | None
    include_archived: bool


def _search(wish: _Wish, work_dir: object | None, layout_: Layout | None) -> SearchResult:
    places = scopes(work_dir, layout_)
    try:
        with opened() as connection:
            return _answer(connection, wish, places)
    except CatalogUnusableError as error:
        logger().debug("searching without the catalog: %s", error)
        with scratch() as connection:
            return _answer(connection, wish, places)


def _answer(connection: Connection, wish: _Wish, places: list[Scope]) -> SearchResult:
    connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS:d}")
    numbers: dict[int, Scope] = {}
    for place in places:
        refresh(connection, place)
        number = folder_id(connection, place.path)
        if number is not None:
            numbers[number] = place
    result = SearchResult()
    if numbers:
        _collect(connection, wish, numbers, result)
    return result


# --- bringing the index up to date --------------------------------------------------------------------------------


class _Job(NamedTuple):
    """A file of a session that is to be read, on from where it was left or from its beginning."""

    name: str
    file: str


def refresh(connection: Connection, place: Scope) -> None:
    """Bring what is known of the words of a sessions folder up to date; of one that can't be read it stays."""
    try:
        _refresh(connection, place)
    except OSError as error:
        logger().warning("can't look into %s: %s", place.path, error)


def _refresh(connection: Connection, place: Scope) -> None:
    with place.opened() as fd:
        names = [] if fd is None else place.names(fd)
        number = folder_id(connection, place.path)
        known: dict[tuple[str, str], tuple[int, int, int]] = {}
        if number is not None:
            rows = connection.execute(
                "SELECT name, file, ino, size, ctime FROM log WHERE folder = ? AND purpose = ?",
                (number, TEXT),
            ).fetchall()
            known = {row[:2]: row[2:] for row in rows}
            gone = {row[0] for row in rows}.difference(names)
            if gone:
                forget_sessions(connection, number, sorted(gone))
        if fd is not None:
            jobs = list(_jobs(fd, names, known))
            if jobs:
                _Indexer(connection, place.path, fd).run(jobs)


def _jobs(fd: int, names: list[str], known: dict[tuple[str, str], tuple[int, int, int]]) -> Iterator[_Job]:
    """Yield the files that are not as they were."""
    stat = _fs.active().stat

    def look(path: str) -> os.stat_result | None:
        try:
            found = stat(path, dir_fd=fd, follow_symlinks=False)
        except OSError:
            return None
        return found if stat_module.S_ISREG(found.st_mode) else None

    for name in names:
        file = layout.WIRE
        found = look(f"{name}/{file}")
        if found is None or found.st_size < _SHORTEST_BYTES:
            other = look(f"{name}/{layout.CONTEXT}")
            if other is not None and other.st_size:
                file, found = layout.CONTEXT, other
        for file_, found_ in ((file, found), (layout.STATE, look(f"{name}/{layout.STATE}"))):
            marks = known.get((name, file_))
            if found_ is None:
                if marks is not None:
                    yield _Job(name, file_)
            elif marks != marks_of(found_):
                yield _Job(name, file_)


class _Indexer:
    """Puts what logs hold into the index, in steps that are committed one by one."""

    __slots__ = ("_chars", "_connection", "_fd", "_folder", "_latest_ms", "_path", "_rows")

    def __init__(self, connection: Connection, path: str, fd: int) -> None:
        self._connection = connection
        self._path = path
        self._fd = fd
        self._folder = 0
        self._rows: list[tuple[int, int, int, int, int | None, int, str, str]] = []
        self._chars = 0
        self._latest_ms = int((time.time() + AHEAD_S) * 1000)

    def run(self, jobs: list[_Job]) -> None:
        """Read the files on."""
        waiting = list(reversed(jobs))
        while waiting:
            with writing(self._connection):
                self._folder = ensure_folder_id(self._connection, self._path)
                while waiting and self._chars < _STEP_CHARS:
                    if self._read_on(waiting[-1]):
                        waiting.pop()
                self._flush()

    def _read_on(self, job: _Job) -> bool:
        """Read a file on until it ends (True) or this step is full."""
        place = Place(self._folder, *job)
        position = find_position(self._connection, place, TEXT)
        try:
            fd, found = _fs.open_known(f"{job.name}/{job.file}", dir_fd=self._fd)
        except OSError:
            if position is not None:
                self._drop(position)
            return True
        try:
            if job.file == layout.STATE:
                self._read_title(place, position, fd, found)
                return True
            return self._read_log(place, position, fd, found)
        except OSError as error:
            logger().warning("can't read %s of session %s: %s", job.file, job.name, error)
            return True
        finally:
            _fs.active().close(fd)

    def _drop(self, position: Position) -> None:
        drop_text(self._connection, position.id)
        self._connection.execute("DELETE FROM log WHERE id = ?", (position.id,))

    def _read_title(self, place: Place, position: Position | None, fd: int, found: os.stat_result) -> None:
        if position is not None:
            drop_text(self._connection, position.id)
        data = _fs.read_fd(fd, 0, min(found.st_size, 1 << 24))
        title = (parse_document(data).value or {}).get("custom_title")
        log = save_position(
            self._connection, place, TEXT, marks=marks_of(found), offset=0, tail=b"", fold=[0, 0]
        )
        if isinstance(title, str) and title.strip():
            text = Text(0, len(data), found.st_mtime, TITLE, title)
            self._add(log, 0, text, None, 0)

    def _read_log(self, place: Place, position: Position | None, fd: int, found: os.stat_result) -> bool:
        is_wire = place.file == layout.WIRE
        texts_of = texts_of_wire_line if is_wire else texts_of_context_line
        offset, turns, last = 0, 0, 0
        if position is not None and resumes(position, fd, found):
            offset, (turns, last) = position.offset, position.fold
        elif position is not None:
            drop_text(self._connection, position.id)
        else:
            self._drop_other(place)
        log = self._save(place, fd, found, offset, [turns, last], whole=False)
        settled = True
        try:
            for start, lines, settled in iter_growing(  # noqa: B007 - the last one's counts
                fd, offset, found.st_size, refuse_wire if is_wire else refuse_context
            ):
                at = start
                for line in lines:
                    if not is_wire or any(hint in line for hint in WIRE_HINTS):
                        found_texts, begun = texts_of(line)
                        turns += begun
                        for text in found_texts:
                            if text.time is None:
                                text = text._replace(time=found.st_mtime)  # noqa: PLW2901 - the same, with a time
                            last = self._add(log, at, text, turns - 1 if turns else None, last)
                    at += len(line) + 1
                offset = min(at, found.st_size)
                if self._chars >= _STEP_CHARS and offset < found.st_size:
                    self._save(place, fd, found, offset, [turns, last], whole=False)
                    return False
        except OSError as error:
            # Half a log is better than none, and the next search goes on from here.
            logger().warning("can't read %s of session %s to its end: %s", place.file, place.name, error)
            self._save(place, fd, found, offset, [turns, last], whole=False)
            return True
        self._save(place, fd, found, offset, [turns, last], whole=True, settled=settled)
        return True

    def _save(
        self,
        place: Place,
        fd: int,
        found: os.stat_result,
        offset: int,
        fold: list[int],
        *,
        whole: bool,
        settled: bool = True,
    ) -> int:
        """Keep how far a log was read; one that was read in part is not taken for one that is up to date."""
        marks = marks_of(found) if whole else (marks_of(found)[0], offset, -1)
        tail = tail_of(fd, offset) if settled else UNSETTLED
        return save_position(self._connection, place, TEXT, marks=marks, offset=offset, tail=tail, fold=fold)

    def _drop_other(self, place: Place) -> None:
        """Of a session's two logs only one is searched: drop what is known of the other."""
        other = layout.CONTEXT if place.file == layout.WIRE else layout.WIRE
        position = find_position(self._connection, place._replace(file=other), TEXT)
        if position is not None:
            self._drop(position)

    def _add(self, log: int, at: int, text: Text, turn: int | None, last: int) -> int:
        """Note a message, and return its id: larger than those before it in the log, and growing with time."""
        milliseconds = text.time * 1000 if text.time is not None and math.isfinite(text.time) else 0
        milliseconds = int(min(max(milliseconds, 0), self._latest_ms))
        number = milliseconds << _ID_BITS | log & (1 << _ID_BITS) - 1
        if last:
            number = max(number, last + (1 << _ID_BITS))
        words = split_words(text.text)
        tags = f"f{self._folder} r{text.role}"
        self._rows.append(
            (number, log, at + text.start, text.stop - text.start, turn, text.role, words, tags)
        )
        self._chars += len(words) + 40
        return number

    def _flush(self) -> None:
        # In order of their ids, which is what the index is quickest with.
        rows = sorted(self._rows)
        put = self._connection.executemany
        put(
            "INSERT INTO message (id, log, offset, length, turn, role) VALUES (?, ?, ?, ?, ?, ?)",
            [r[:6] for r in rows],
        )
        put("INSERT INTO found (rowid, words, tags) VALUES (?, ?, ?)", [(r[0], r[6], r[7]) for r in rows])
        by_log: dict[int, list[tuple[int, str, str]]] = {}
        for row in rows:
            by_log.setdefault(row[1], []).append((row[0], row[6], row[7]))
        put(
            "INSERT INTO words (log, packed) VALUES (?, ?)",
            [(log, pack_words(each)) for log, each in by_log.items()],
        )
        self._rows = []
        self._chars = 0


# --- answering ----------------------------------------------------------------------------------------------------

_QUERY = "SELECT rowid FROM found WHERE found MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?"
_PLACES = (
    "SELECT m.id, m.offset, m.length, m.turn, m.role, l.folder, l.name, l.file "
    "FROM message m JOIN log l ON l.id = m.log WHERE m.id IN (SELECT value FROM json_each(?))"
)


class _Found(NamedTuple):
    offset: int
    length: int
    turn: int | None
    role: int
    folder: int
    name: str
    file: str


def _collect(connection: Connection, wish: _Wish, numbers: dict[int, Scope], result: SearchResult) -> None:
    tags = [[f"f{number}" for number in numbers]]
    if wish.role is not None:
        tags.append([f"r{wish.role}"])
    expression = match_expression(wish.query, tags)
    wanted = math.inf if wish.limit is None else max(wish.limit, 0)
    reader = _Reader(numbers)
    seen: set[bytes] = set()
    try:
        for found in _newest_first(connection, expression, int(min(wanted + 1, 1000))):
            hit = reader.hit(found, wish, seen)
            if hit is None:
                continue
            if len(result.hits) >= wanted:
                result.more = True
                return
            result.hits.append(hit)
    finally:
        reader.close()


def _newest_first(connection: Connection, expression: str | None, step: int) -> Iterator[_Found]:
    """Yield what matches, newest first; of one millisecond by session and place, whatever order they were read in."""
    before = (1 << 63) - 1
    together: list[_Found] = []
    moment = -1
    while True:
        numbers = [row[0] for row in connection.execute(_QUERY, (expression, before, step))]
        places = {row[0]: row[1:] for row in connection.execute(_PLACES, (orjson.dumps(numbers).decode(),))}
        for number in numbers:
            row = places.get(number)
            if row is None:
                continue
            if number >> _ID_BITS != moment:
                yield from sorted(together, key=_by_place)
                together = []
                moment = number >> _ID_BITS
            together.append(_Found(*row))
        if len(numbers) < step:
            break
        before = numbers[-1]
        step = min(step * 2, 1000)
    yield from sorted(together, key=_by_place)


def _by_place(found: _Found) -> tuple[str, str, int, int]:
    return found.name, found.file, found.offset, found.role


class _Reader:
    """Reads what was found from the sessions themselves; a session is looked at once."""

    __slots__ = ("_fds", "_places", "_sessions")

    def __init__(self, places: dict[int, Scope]) -> None:
        self._places = places
        self._fds: dict[int, int | None] = {}
        self._sessions: dict[tuple[int, str], Session | None] = {}

    def close(self) -> None:
        for fd in self._fds.values():
            if fd is not None:
                _fs.active().close(fd)

    def _folder(self, number: int) -> int | None:
        if number not in self._fds:
            place = self._places[number]
            try:
                self._fds[number] = place.store.open_sessions(place.path)
            except OSError:
                self._fds[number] = None
        return self._fds[number]

    def hit(self, found: _Found, wish: _Wish, seen: set[bytes]) -> Hit | None:
        """Return a hit; None if it is gone, given already, or not wanted."""
        root = self._folder(found.folder)
        if root is None:
            return None
        try:
            fd = _fs.open_regular(f"{found.name}/{found.file}", dir_fd=root)
            try:
                data = _fs.read_fd(fd, found.offset, found.length)
            finally:
                _fs.active().close(fd)
        except OSError:
            return None
        if found.role == TITLE:
            title = (parse_document(data).value or {}).get("custom_title")
            text = Text(0, 0, None, TITLE, title if isinstance(title, str) else "")
        else:
            # A fork's records are its parent's, byte for byte.
            digest = hashlib.blake2b(data, digest_size=16).digest() + bytes([found.role])
            if digest in seen:
                return None
            texts, _ = (texts_of_wire_line if found.file == layout.WIRE else texts_of_context_line)(data)
            several = [text for text in texts if text.role == found.role]
            if not several:
                return None
            text = next((text for text in several if find_in(text.text, wish.query)), several[0])
            seen.add(digest)
        key = (found.folder, found.name)
        if key not in self._sessions:
            self._sessions[key] = self._places[found.folder].session(root, found.name)
        session = self._sessions[key]
        if session is None or (session.archived and not wish.include_archived):
            return None
        at_time = text.time if text.time is not None and math.isfinite(text.time) else None
        return Hit(
            session,
            ROLES[found.role],
            found.turn,
            at_time,
            _snippet(text.text, wish.query),
            found.file,
            found.offset,
        )


def _snippet(text: str, query: str) -> str:
    at = find_in(text, query)
    first = max(at - _SNIPPET_BEFORE, 0)
    if first:
        space = text.find(" ", first, at)
        first = space + 1 if space >= 0 else first
    piece = " ".join(clean(text[first : first + _SNIPPET_CHARS]).split())
    return f"{'…' if first else ''}{piece}{'…' if first + _SNIPPET_CHARS < len(text) else ''}"
