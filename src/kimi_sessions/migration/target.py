"""
The place a migration writes to: the sessions of one work dir, and beside them what runs leave there.

    <work_dir>/.kimi/migration/   or   <share>/migration/
        report-<time>-<run>.json      what a run did; see ``report``
        marks/<hash of key and id>.json
                                      one per session: what was carried, so that a later run can tell what changed since
        .hold                         held by the run that is at work; a second one waits

A mark is written just before its session appears. A session without a mark was not put there by a migration; a mark
without its session was left by a run that was stopped, or the session was removed since.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_sessions import _fs, layout, metadata
from kimi_sessions._document import dump_document, read_document
from kimi_sessions._locking import HoldLock
from kimi_sessions._store import WorkDirStore
from kimi_sessions.errors import SessionBusyError, WriteError
from kimi_sessions.layout import Layout, ShareLayout

__all__ = ["Mark", "Target", "migration_path", "write_report"]

_VERSION = 1
_MARKS = "marks"
#: How long a run waits for another one on the same store.
_WAIT_S = 600.0


@dataclass(slots=True)
class Mark:
    """What a run carried into one session: its files by name, each with length and hash; and what it made there."""

    run: str
    source: str
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)


def migration_path(layout_: Layout, work_dir: Path) -> str:
    """Return the folder of reports and marks that belongs to a store."""
    if isinstance(layout_, ShareLayout):
        return str(layout_.share / layout.MIGRATION)
    return str(work_dir / layout.KIMI / layout.MIGRATION)


class Target:
    """The sessions of one work dir, seen by a migration. Looks without writing until ``owned`` is entered."""

    __slots__ = ("folder", "layout", "sessions_path", "store", "work_dir")

    def __init__(self, layout_: Layout, work_dir: Path) -> None:
        self.layout = layout_
        self.work_dir = work_dir
        self.store = WorkDirStore(layout_, work_dir)
        self.sessions_path = self.store.paths[0]
        self.folder = migration_path(layout_, work_dir)

    def find(self, session_id: str) -> str | None:
        """Return the path of the session's folder, None if there is none."""
        for path in self.store.paths:
            folder = os.path.join(path, session_id)
            if os.path.lexists(folder):
                return folder
        return None

    def flat_in_the_way(self, session_id: str) -> str | None:
        """Return the path of an old flat file of this session's name, None if there is none."""
        for path in self.store.paths:
            flat = os.path.join(path, session_id + layout.FLAT_SUFFIX)
            if os.path.lexists(flat):
                return flat
        return None

    @contextmanager
    def owned(self, waiting: Callable[[str], None] | None = None) -> Iterator[int]:
        """
        Make what is missing of the store, be the only run at work on it, and give its open sessions folder.

        Waits for another run, which is named to ``waiting`` once. Raises WorkDirNotFoundError, WriteError,
        SessionBusyError (another one was at work for ten minutes).
        """
        metadata.ensure_store(self.layout, self.work_dir, self.store.resolved)
        self._ensure_own_folders()
        lock = HoldLock(os.path.join(self.folder, layout.HOLD), gone=self._gone)
        self._take(lock, waiting)
        try:
            try:
                fd = _fs.open_folder(self.sessions_path)
            except OSError as error:
                raise WriteError.of(error, self.sessions_path) from error
            try:
                yield fd
            finally:
                _fs.active().close(fd)
        finally:
            lock.give_back()
            lock.close()

    def _ensure_own_folders(self) -> None:
        try:
            for path in (self.folder, os.path.join(self.folder, _MARKS)):
                _fs.ensure_folder(path)
                _fs.active().close(_fs.open_folder(path))
        except OSError as error:
            raise WriteError.of(error, self.folder) from error

    def _gone(self) -> WriteError:
        return WriteError(path=self.folder, reason="the folder was removed meanwhile", code=errno.ENOENT)

    @staticmethod
    def _take(lock: HoldLock, waiting: Callable[[str], None] | None) -> None:
        deadline = time.monotonic() + _WAIT_S
        told = False
        while True:
            try:
                lock.take("kimi-sessions migrate")
            except SessionBusyError as error:
                if time.monotonic() > deadline:
                    raise
                if not told and waiting is not None:
                    waiting(str(error.holder or "another run"))
                told = True
                time.sleep(0.1)
            else:
                return

    def staging_name(self, session_id: str) -> str:
        """Return the name under which a session is put together, the same in every run."""
        return layout.CREATING_PREFIX + self._hash_of(session_id)

    def _hash_of(self, session_id: str) -> str:
        text = f"{os.path.basename(self.sessions_path)}/{session_id}"
        return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]

    # --- marks ---------------------------------------------------------------------------------------------------

    def _mark_name(self, session_id: str) -> str:
        return self._hash_of(session_id) + ".json"

    def read_mark(self, session_id: str) -> Mark | None:
        """Return a session's mark, None if it has none that can be read."""
        path = os.path.join(self.folder, _MARKS, self._mark_name(session_id))
        value = read_document(path).value
        if value is None or value.get("session_id") != session_id:
            return None
        files = value.get("files")
        run = value.get("run")
        if not isinstance(files, dict) or not isinstance(run, str):
            return None
        known: dict[str, tuple[int, str]] = {}
        for name, facts in files.items():
            if isinstance(facts, list) and len(facts) == 2 and isinstance(facts[1], str):
                known[name] = (facts[0], facts[1])
        made = value.get("made")
        names = [name for name in made if isinstance(name, str)] if isinstance(made, list) else []
        return Mark(run, str(value.get("source")), known, names)

    def write_mark(self, session_id: str, mark: Mark) -> None:
        """Write a session's mark, whole or not at all. Raises OSError."""
        value: dict[str, Any] = {
            "version": _VERSION,
            "session_id": session_id,
            "run": mark.run,
            "source": mark.source,
            "made": mark.made,
            "files": {name: list(facts) for name, facts in mark.files.items()},
        }
        fd = _fs.open_folder(os.path.join(self.folder, _MARKS))
        try:
            _fs.replace_file(self._mark_name(session_id), dump_document(value), dir_fd=fd, sync=False)
        finally:
            _fs.active().close(fd)

    def remove_mark(self, session_id: str) -> None:
        """Remove a session's mark, if it has one. Raises OSError."""
        try:
            _fs.active().unlink(os.path.join(self.folder, _MARKS, self._mark_name(session_id)))
        except FileNotFoundError:
            return

    # --- reports -------------------------------------------------------------------------------------------------

    def has_report_of(self, run: str) -> bool:
        """Tell whether a run came to the point of writing its report here."""
        try:
            with _fs.active().scandir(self.folder) as entries:
                return any(entry.name.endswith(f"-{run}.json") for entry in entries)
        except OSError:
            return False


def write_report(folder: str, name: str, value: dict[str, Any]) -> None:
    """Write a report into a store's migration folder. Durable when it returns. Raises OSError."""
    fd = _fs.open_folder(folder)
    try:
        _fs.replace_file(name, dump_document(value), dir_fd=fd)
    finally:
        _fs.active().close(fd)
