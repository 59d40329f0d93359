"""
Hold a lock; say who holds it.

Kernel locks (flock) on small files inside a session folder, so that a dead holder blocks nobody. Two kinds:

- ``StepLock`` (``.lock``) guards one short step: an append, a save, a rename. Steps never await while they hold it.
- ``HoldLock`` (``.hold``) belongs to a running agent for as long as it likes; its file's text names the holder.

A lock is only worth something if its file is still the one its path names: after taking it, the inode is compared
with the path. If the folder was deleted meanwhile (and perhaps a new session of the same name made), that is
``gone``: the caller's step must not happen.

Children made by fork close the descriptors they inherited, so a child can't keep a parent's lock alive.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

from . import _fs
from ._lines import decode_value
from ._text import clean
from .errors import Holder, LocksUnavailableError, SessionBusyError, SessionNotFoundError, WriteError
from .layout import LOCK

__all__ = ["LOCK_TIMEOUT_S", "HoldLock", "StepLock", "bare_lock", "read_holder"]

#: How long a short step waits for another's short step. Steps take microseconds; ten seconds of them is a fault.
LOCK_TIMEOUT_S = 10.0
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_HOLDER_BYTES = 4096
_T = TypeVar("_T")

# Needed by the fork hook alone, which has no other way to reach the locks: they leave by themselves.
_OPEN_LOCKS: weakref.WeakSet[_LockFile] = weakref.WeakSet()


class _LockFile:
    """One lock file of one opener: a descriptor of its own, so that two openers in one process exclude each other."""

    __slots__ = (
        "__weakref__",
        "_fd",
        "_folder_id",
        "_gone",
        "_id",
        "_is_same",
        "_mutex",
        "folder_fd",
        "path",
    )

    def __init__(
        self, path: str, *, gone: Callable[[], Exception], is_same: Callable[[int], bool] | None = None
    ) -> None:
        self.path = path
        self._gone = gone
        #: Tells of an open folder whether it is still the session that this lock was made for.
        self._is_same = is_same
        self._folder_id: tuple[int, int] | None = None
        self._fd = -1
        self._id: tuple[int, int] = (0, 0)
        #: The folder the lock file lies in, open for as long as the lock file is; -1 while it is not.
        self.folder_fd = -1
        # flock knows descriptors, not threads: two threads on one descriptor would both be let in.
        self._mutex = threading.Lock()

    def __del__(self) -> None:
        self._close()

    @property
    def is_open(self) -> bool:
        """True while the lock file is kept open, locked or not."""
        return self._fd >= 0

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Keep this program's steps out while the block runs, and wait for the one that is on; nothing is locked."""
        with self._mutex:
            yield

    def close(self) -> None:
        """Close the descriptors, once the step that another thread is in has ended."""
        with self._mutex:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        folder_fd, self.folder_fd = self.folder_fd, -1
        if fd >= 0:
            _fs.active().close(fd)
        if folder_fd >= 0:
            _fs.active().close(folder_fd)

    def _after_fork(self) -> None:
        self._mutex = threading.Lock()
        self._close()

    def _open(self) -> None:
        fs = _fs.active()
        folder, name = os.path.split(self.path)
        try:
            folder_fd = _fs.open_folder(folder)
        except _fs.IrregularFileError as error:
            raise WriteError.of(error, folder) from error
        except FileNotFoundError:
            raise self._gone() from None
        except OSError as error:
            raise WriteError.of(error, folder) from error
        fd = -1
        try:
            folder_id = _fs.identity(fs.fstat(folder_fd))
            # While the folder was closed, its inode number may have been given to a later one of the same name.
            same = self._is_same is None or self._is_same(folder_fd)
            if not same or self._folder_id not in (None, folder_id):
                raise self._gone()
            self._folder_id = folder_id
            fd = _fs.append_fd(name, create=True, dir_fd=folder_fd)
            self._id = _fs.identity(fs.fstat(fd))
        except BaseException as error:
            fs.close(folder_fd)
            if fd >= 0:
                fs.close(fd)
            if isinstance(error, FileNotFoundError):
                raise self._gone() from None
            if isinstance(error, OSError):
                raise WriteError.of(error, self.path) from error
            raise
        self._fd = fd
        self.folder_fd = folder_fd
        _OPEN_LOCKS.add(self)

    def _try(self) -> bool:
        """Take the lock if it is free and still the one its path names. The caller holds the mutex."""
        fs = _fs.active()
        for _ in range(3):
            if self._fd < 0:
                self._open()
            try:
                fs.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return False
                if error.errno in _NO_LOCKS:
                    raise LocksUnavailableError.of(error, self.path) from error
                raise WriteError.of(error, self.path) from error
            try:
                found = fs.stat(self.path, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                found = None
            except OSError as error:
                self._close()
                raise WriteError.of(error, self.path) from error
            if found is not None and (found.st_dev, found.st_ino) == self._id:
                return True
            # Closing frees what was taken. Opening again tells a removed lock file (the folder is the same one)
            # from a removed session (it is not).
            self._close()
        raise self._gone()

    def _free(self) -> None:
        if self._fd >= 0:
            _fs.active().flock(self._fd, fcntl.LOCK_UN)


def _after_fork_in_child() -> None:
    for lock in list(_OPEN_LOCKS):
        lock._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


class StepLock(_LockFile):
    """
    The lock of short steps on one session (or one log).

    Use ``try_acquire`` / ``release`` in line, or ``acquire`` where waiting is allowed.
    """

    __slots__ = ()

    def try_acquire(self) -> bool:
        """
        Take the lock if nobody has it, at once.

        Raises SessionNotFoundError if the session is gone, WriteError if the lock can't be had at all.
        """
        if not self._mutex.acquire(blocking=False):
            return False
        taken = False
        try:
            taken = self._try()
        finally:
            if not taken:
                self._mutex.release()
        return taken

    def acquire(self, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Take the lock, waiting up to ``timeout_s`` seconds. Raises as ``try_acquire``, and SessionBusyError."""
        if self.try_acquire():
            return
        deadline = time.monotonic() + timeout_s
        pause = 0.0002
        while True:
            time.sleep(pause)
            if self.try_acquire():
                return
            if time.monotonic() > deadline:
                raise SessionBusyError(path=self.path, holder=None)
            pause = min(pause * 1.5, 0.01)

    def release(self) -> None:
        """Free the lock."""
        try:
            self._free()
        finally:
            self._mutex.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class HoldLock(_LockFile):
    """The lock of a session's owner. Its file's text says who that is, for the others' error."""

    __slots__ = ("held",)

    def __init__(
        self, path: str, *, gone: Callable[[], Exception], is_same: Callable[[int], bool] | None = None
    ) -> None:
        super().__init__(path, gone=gone, is_same=is_same)
        self.held = False

    def _after_fork(self) -> None:
        super()._after_fork()
        self.held = False

    def take(self, program: str | None = None) -> None:
        """
        Become the holder, or raise SessionBusyError at once, naming who is.

        Raises SessionNotFoundError, WriteError.
        """
        with self._mutex:
            if self.held or not self._try():
                raise SessionBusyError(path=self.path, holder=read_holder(self.path))
            fs = _fs.active()
            text = json.dumps(
                {
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                    "program": program or os.path.basename(sys.argv[0] if sys.argv else "") or "python",
                    "since": time.time(),
                }
            )
            try:
                fs.ftruncate(self._fd, 0)
                _fs.write_all(self._fd, text.encode("utf-8", "replace") + b"\n")
            except OSError as error:
                # A full disk has no room for a name. The lock is what holds, and a delete must be able to make room.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    self._close()
                    raise WriteError.of(error, self.path) from error
            self.held = True

    def give_back(self) -> None:
        """Stop being the holder. The session may have been deleted meanwhile; that is no error here."""
        with self._mutex:
            if not self.held:
                return
            self.held = False
            try:
                _fs.active().ftruncate(self._fd, 0)
            except OSError:
                pass  # the text only names who held it last
            try:
                # A child forked a moment ago may not have closed its copy yet: closing ours frees nothing then.
                self._free()
            except OSError:
                pass  # where it is not shared, closing frees it
            finally:
                self._close()


def read_holder(path: str) -> Holder | None:
    """Return who the text of a hold file names, or None if it names nobody that can be read."""
    try:
        raw = _fs.read_small(path, limit=_HOLDER_BYTES)
        record = decode_value(raw)
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict):
        return None

    def typed(key: str, kind: type[_T]) -> _T | None:
        value = record.get(key)
        return value if isinstance(value, kind) and not isinstance(value, bool) else None

    def shown(key: str) -> str | None:
        # The file may have come with a cloned project, and this ends up on a terminal.
        value = typed(key, str)
        return None if value is None else clean(value)[:100]

    since = typed("since", float)
    if since is None and (whole := typed("since", int)) is not None and abs(whole) < 1 << 53:
        since = float(whole)
    return Holder(pid=typed("pid", int), host=shown("host"), program=shown("program"), since=since)


def session_gone(session_id: str, folder: str) -> Callable[[], Exception]:
    """Return what a lock raises when its session is not there any more."""
    return lambda: SessionNotFoundError(session_id=session_id, searched=(folder,))


def bare_lock(path: str) -> StepLock:
    """Return the lock of a log that was opened by its path alone: the ``.lock`` beside it, else the log itself."""
    folder, name = os.path.split(os.path.abspath(path))
    beside = os.path.join(folder, LOCK)
    lock_path = beside if os.path.exists(beside) else os.path.join(folder, name)
    return StepLock(lock_path, gone=session_gone(os.path.basename(folder), folder))
