"""
The folder of one open session, and its locks.

Everything that writes into a session shares one of these: it is what makes a step the only one, an owner the only
owner, and a session that was deleted (and perhaps made anew under the same id) one that nobody writes to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import _fs, layout
from ._document import read_document
from ._facts import Facts
from ._locking import HoldLock, StepLock
from .errors import SessionNotFoundError, WriteError

__all__ = ["SessionFolder"]


class SessionFolder:
    """
    The folder of one open session and its locks, shared by everything that writes into it.

    Cheap to make; opens nothing before it is asked to.
    """

    __slots__ = ("_found", "_hold", "_step", "id", "path")

    def __init__(self, session_id: str, sessions_path: str, found: Facts | None = None) -> None:
        self._found = found
        self.id = session_id
        self.path = os.path.join(sessions_path, session_id)
        self._step: StepLock | None = None
        self._hold: HoldLock | None = None

    @property
    def sessions_path(self) -> str:
        """The folder this session's folder lies in."""
        return os.path.dirname(self.path)

    def gone(self) -> SessionNotFoundError:
        """Return the error of a session that is not there any more."""
        return SessionNotFoundError(session_id=self.id, searched=(self.sessions_path,))

    def _gone_or_flat(self) -> Exception:
        if self._found is not None and self._found.flat:
            path = os.path.join(self.sessions_path, self._found.flat)
            return WriteError(
                path=path, reason="an old client's flat file, which can't be moved into a folder here"
            )
        return self.gone()

    def _is_same(self, folder_fd: int) -> bool:
        """
        Tell whether an open folder is the session that was found, not a later one of the same name.

        Sessions of ours are told apart by when they were made; of the old client's only the name is known.
        """
        created = None if self._found is None else self._found.extra.get("created_at")
        if created is None:
            return True
        document = read_document(layout.SESSION, dir_fd=folder_fd)
        return document.value is None or document.value.get("created_at") == created

    @property
    def step_lock(self) -> StepLock:
        """The lock of short steps."""
        if self._step is None:
            self._step = StepLock(
                os.path.join(self.path, layout.LOCK),
                gone=self._gone_or_flat,
                is_same=self._is_same,
            )
        return self._step

    @property
    def hold_lock(self) -> HoldLock:
        """The lock of the owner."""
        if self._hold is None:
            self._hold = HoldLock(
                os.path.join(self.path, layout.HOLD),
                gone=self._gone_or_flat,
                is_same=self._is_same,
            )
        return self._hold

    @property
    def held_here(self) -> bool:
        """True while this very object holds the session."""
        return self._hold is not None and self._hold.held

    @contextmanager
    def owned(self, *, force: bool = False) -> Iterator[None]:
        """
        Be the only owner for a step that ends or rewrites the session.

        Raises SessionBusyError at once if another holds it, unless ``force``.
        """
        if force or self.held_here:
            yield
            return
        lock = self.hold_lock
        lock.take()
        try:
            yield
        finally:
            lock.give_back()

    @contextmanager
    def step(self) -> Iterator[int]:
        """
        Lock out all other steps while the block runs, and give a descriptor of the session's folder.

        A lock file that was not open before is closed again, so that a program may change any number of sessions one
        after the other; one that appends keep open stays open. Raises SessionNotFoundError, SessionBusyError,
        WriteError.
        """
        lock = self.step_lock
        was_open = lock.is_open
        try:
            with lock, self.opened() as fd:
                yield fd
        finally:
            if not was_open:
                lock.close()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Give a descriptor of the session's folder. Raises SessionNotFoundError, WriteError."""
        try:
            fd = _fs.open_folder(self.path)
        except FileNotFoundError:
            raise self.gone() from None
        except OSError as error:
            raise WriteError.of(error, self.path) from error
        try:
            yield fd
        finally:
            _fs.active().close(fd)

    def close(self) -> None:
        """Close what is open; locks held through it are free then."""
        if self._step is not None:
            self._step.close()
        if self._hold is not None:
            self._hold.give_back()
            self._hold.close()
