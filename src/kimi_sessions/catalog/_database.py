"""
The catalog's file: opened, made, thrown away.

One SQLite file in the user's cache folder, private, shared by all processes of this user. Everything in it is
derived from session folders and can be derived again, so nothing here is precious: a file that is broken or of an
older shape is removed and made anew, one of a newer shape is left alone, and whoever can't have it does without
(``CatalogUnusableError``). A connection lives for one operation and never crosses a fork.

SQLite is imported here and nowhere else, and only by who uses the catalog.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat as stat_module
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kimi_sessions import _fs, layout
from kimi_sessions._places import ensure_folders
from kimi_sessions.errors import HomeNotFoundError, WriteError

__all__ = [
    "CatalogMissingError",
    "CatalogUnusableError",
    "Connection",
    "catalog_path",
    "ensure_folder_id",
    "folder_id",
    "opened",
    "writing",
]

Connection = sqlite3.Connection

#: The shape of what is below. Raised with every change to it.
_VERSION = 5
#: How long to wait for another process's write before doing without. Readers never wait for it.
_BUSY_S = 0.25
#: How SQLite says that a file can't be written (the first byte tells the kind).
_NO_ROOM = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
)
#: What SQLite says of a table or column that is not there, or should not be, and Python of text that it can't decode.
_NOT_OURS = ("no such", "has no column", "already exists", "Could not decode")
_SCHEMA = """
-- A folder that holds session folders, as bytes.
CREATE TABLE folder (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE);

-- What a list shows of a session, and marks of the files that says it. Sessions without content are not here.
CREATE TABLE listed (
  folder INTEGER NOT NULL, name TEXT NOT NULL, updated_at REAL NOT NULL,
  log TEXT NOT NULL, log_size INTEGER NOT NULL, log_ctime INTEGER NOT NULL, marks BLOB NOT NULL,
  title TEXT NOT NULL, problems BLOB, state BLOB NOT NULL, extra BLOB NOT NULL,
  PRIMARY KEY (folder, name)
) WITHOUT ROWID;

-- A log that was read to an offset, and what its bytes looked like there. purpose: 1 turns, 2 statistics,
-- 3 text, 4 first prompt.
CREATE TABLE log (
  id INTEGER PRIMARY KEY, folder INTEGER NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL, purpose INTEGER NOT NULL,
  ino INTEGER NOT NULL, size INTEGER NOT NULL, ctime INTEGER NOT NULL, offset INTEGER NOT NULL, tail BLOB NOT NULL,
  fold TEXT NOT NULL,
  UNIQUE (folder, purpose, name, file)
);

-- The turns of a log, so many to a row: the number of the first, and their values as JSON.
CREATE TABLE turn (
  log INTEGER NOT NULL, first INTEGER NOT NULL, packed TEXT NOT NULL,
  PRIMARY KEY (log, first)
) WITHOUT ROWID;

-- Replies whose tokens were counted, by a hash of their message id.
CREATE TABLE counted (log INTEGER NOT NULL, message INTEGER NOT NULL, PRIMARY KEY (log, message)) WITHOUT ROWID;

-- A message that can be searched: where its record lies. Its id grows with its time.
CREATE TABLE message (
  id INTEGER PRIMARY KEY, log INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
  turn INTEGER, role INTEGER NOT NULL
);
CREATE INDEX message_log ON message (log);
-- The words of messages, in pieces as they were indexed, packed: what it takes to take them out again.
CREATE TABLE words (id INTEGER PRIMARY KEY, log INTEGER NOT NULL, packed BLOB NOT NULL);
CREATE INDEX words_log ON words (log);
CREATE VIRTUAL TABLE found USING fts5(
  words, tags, content='', columnsize=0, tokenize='unicode61 remove_diacritics 2'
);
"""


class CatalogUnusableError(Exception):
    """The catalog can't be had now; do without. Never leaves this library."""


class CatalogMissingError(CatalogUnusableError):
    """There is no catalog yet."""


def catalog_path() -> str:
    """Return where the catalog is. Raises HomeNotFoundError."""
    return str(layout.cache_home() / layout.CATALOG)


@contextmanager
def opened(*, make: bool = True) -> Iterator[Connection]:
    """
    Give a connection for one operation; its changes are made in ``writing``.

    With ``make`` False a catalog that is not there is not made. Raises CatalogMissingError then, CatalogUnusableError
    for one that can't be had and for any failure of SQLite inside the block; a file that turned out to be broken is
    removed first.
    """
    with _in_use():
        yield from _opened(make=make)


def _opened(*, make: bool) -> Iterator[Connection]:
    try:
        path = catalog_path()
        connection = _connect(path, make=make)
    except FileNotFoundError as error:
        raise CatalogMissingError(str(error)) from error
    except (HomeNotFoundError, OSError, UnicodeDecodeError, sqlite3.Error) as error:
        raise CatalogUnusableError(str(error)) from error
    try:
        yield connection
    except sqlite3.Error as error:
        if _is_broken(error):
            connection.close()
            _remove(path)
        raise CatalogUnusableError(str(error)) from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        # A row that no version of this code has written: the file was made or changed by something else.
        connection.close()
        _remove(path)
        raise CatalogUnusableError(f"not a catalog of ours: {error}") from error
    finally:
        connection.close()


@contextmanager
def scratch() -> Iterator[Connection]:
    """
    Give a catalog of its own to one operation, in a temporary file that goes with it.

    Raises OSError in a process that can't use SQLite since it was forked, WriteError where that file can't be written.
    """
    with _in_use():
        connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        try:
            _make(connection)
            yield connection
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _NO_ROOM:
                raise
            raise WriteError(
                path=tempfile.gettempdir(), reason=f"the index for one search: {error}"
            ) from error
        finally:
            connection.close()


class _CutOffError(CatalogUnusableError, OSError):
    """This process was forked while another thread was in SQLite, whose locks it then holds for ever."""


class _Uses:
    """
    Who is in SQLite now, in this process: one entry for each use, a thread's number.

    A fork waits for them, since the child would wait for ever for the locks of a thread that it has not. ``gate`` keeps
    others out while it waits.
    """

    __slots__ = ("cut_off", "gate", "threads")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.threads: list[int] = []
        #: True in a process whose fork waited in vain.
        self.cut_off = False

    def by_others(self) -> bool:
        """Tell whether another thread is in SQLite."""
        mine = threading.get_ident()
        return any(thread != mine for thread in self.threads)

    def before_fork(self) -> None:
        """Wait until no other thread is, and let none in."""
        end = time.monotonic() + _PATIENCE_S
        self.gate.acquire()
        while self.by_others() and time.monotonic() < end:
            time.sleep(0.001)

    def after_fork_in_parent(self) -> None:
        """Let others in again."""
        self.gate.release()

    def after_fork_in_child(self) -> None:
        """Forget the threads that are not here; if one was in SQLite, nobody here can be any more."""
        self.cut_off = self.cut_off or self.by_others()
        mine = threading.get_ident()
        self.threads = [thread for thread in self.threads if thread == mine]
        self.gate = threading.Lock()


#: How long a fork waits, in seconds.
_PATIENCE_S = 5.0
_uses = _Uses()
os.register_at_fork(
    before=_uses.before_fork,
    after_in_parent=_uses.after_fork_in_parent,
    after_in_child=_uses.after_fork_in_child,
)


@contextmanager
def _in_use() -> Iterator[None]:
    """Tell forks that SQLite is used while the block runs."""
    if _uses.cut_off:
        raise _CutOffError(errno.EDEADLK, "this process was forked while the catalog was in use")
    mine = threading.get_ident()
    with _uses.gate:
        _uses.threads.append(mine)
    try:
        yield
    finally:
        _uses.threads.remove(mine)


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """Make the block's changes as one. Raises sqlite3's errors, with nothing changed."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def folder_id(connection: Connection, path: str) -> int | None:
    """Return the number of a sessions folder, None if it has none yet."""
    row = connection.execute("SELECT id FROM folder WHERE path = ?", (os.fsencode(path),)).fetchone()
    return None if row is None else int(row[0])


def ensure_folder_id(connection: Connection, path: str) -> int:
    """Return the number of a sessions folder, given one now if it has none. Call it in ``writing``."""
    connection.execute("INSERT OR IGNORE INTO folder (path) VALUES (?)", (os.fsencode(path),))
    number = folder_id(connection, path)
    assert number is not None  # noqa: S101 - put there just above, under the write lock
    return number


def _connect(path: str, *, make: bool) -> Connection:
    try:
        return _try_to_connect(path, make=make)
    except sqlite3.Error as error:
        if not _is_broken(error):
            raise
    except UnicodeDecodeError:
        pass  # SQLite quotes what is broken, and Python can't read the quotation
    _remove(path)
    return _try_to_connect(path, make=make)


def _try_to_connect(path: str, *, make: bool) -> Connection:
    _ensure_file(path, make=make)
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        version = _version(connection)
        if version == 0:
            # What fills it first goes straight into the file; beside a log it would be written twice.
            _make(connection)
            version = _version(connection)
        else:
            _let_readers_through(connection)
        if version > _VERSION:
            message = f"the catalog has version {version}"
            raise CatalogUnusableError(message)
        if version < _VERSION:
            message = f"file is not a database of version {_VERSION}"
            raise sqlite3.DatabaseError(message)
        # Sessions that are deleted leave nothing behind in the file.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _make(connection: Connection) -> None:
    connection.execute("PRAGMA page_size = 8192")
    with writing(connection):
        if _version(connection) != 0:
            return  # another process was first
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            message = "file is not a database of ours"
            raise sqlite3.DatabaseError(message)
        for statement in _SCHEMA.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION:d}")


def _let_readers_through(connection: Connection) -> None:
    """Have changes written to a log beside the file from now on, so that nobody who reads waits for one who writes."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        # Somebody is at it just now: the next one who opens it will do this.


def _is_broken(error: sqlite3.Error) -> bool:
    """Tell a file that is no use to anybody from one that can't be had just now."""
    if isinstance(error, sqlite3.OperationalError):
        # Somebody else's database, or one half made by something old, or with text in it that is none.
        return any(words in str(error) for words in _NOT_OURS)
    return isinstance(error, sqlite3.DatabaseError)


def _ensure_file(path: str, *, make: bool) -> None:
    """Have a private file there before SQLite opens it; its side files take over the mode. Raises OSError."""
    fs = _fs.active()
    try:
        fd, found = _fs.open_known(path)
    except FileNotFoundError:
        if not make:
            raise
        fs.close(ensure_folders(Path(path).parent))
        try:
            fs.close(_fs.create_file(path))
        except FileExistsError:
            return
        return
    try:
        if stat_module.S_IMODE(found.st_mode) & 0o077:
            fs.fchmod(fd, _fs.FILE_MODE)
    finally:
        fs.close(fd)


def _remove(path: str) -> None:
    """Remove the catalog. What can't be removed is left: it is as useless as before."""
    for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        try:
            _fs.active().unlink(name)
        except OSError:
            continue
