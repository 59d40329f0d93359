"""
One append-only file: append, rewrite, open for reading.

A log is whole lines, each ended by ``\\n``. What a line means is not known here. The rules of writing:

- One append is one ``write`` of whole lines on an ``O_APPEND`` descriptor, under the lock, with the header in the
  same write where the file is new.
- A tail without its newline is never cut, because another program may be in the middle of writing it: the append
  puts a ``\\n`` before its own line, in the same write.
- A short write (full disk, size limit) is undone if nothing else was written since, else closed with ``\\n``; either
  way WriteError, and nothing was acknowledged.
- A rewrite puts the new content beside the old, brings along what was appended to the old one meanwhile, and renames:
  the old or the new log is whole at every instant.

Durability is the caller's choice: ``"os"`` returns when the operating system has the bytes (they survive this
process), ``"disk"`` when the device has them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from . import _fs
from ._locking import StepLock
from .errors import WriteError

__all__ = ["AppendLog", "Durability", "join_lines", "open_for_reading"]

Durability: TypeAlias = Literal["os", "disk"]


class AppendLog:
    """
    One log file of one opener.

    ``path`` need not exist; ``header`` (a whole line) is written in front of the first record of a new file. The
    lock is shared with whatever else must not interleave with an append. Keeps a descriptor open between appends.
    """

    __slots__ = (
        "_beside_lock",
        "_created",
        "_dirty",
        "_fd",
        "_id",
        "_known_end",
        "_name",
        "header",
        "lock",
        "path",
    )

    def __init__(self, path: str, *, lock: StepLock, header: bytes = b"") -> None:
        self.path = path
        self.lock = lock
        self.header = header
        folder, self._name = os.path.split(path)
        #: Where log and lock share a folder, the lock's look at its own path vouches for the folder's.
        self._beside_lock = folder == os.path.dirname(lock.path)
        self._fd = -1
        self._id: tuple[int, int] = (-1, -1)
        #: A size at which the file is known to end in a newline, because our own append ended there.
        self._known_end = -1
        #: True until the folder entry of a file that we made was synced.
        self._created = False
        #: True while something was appended that no sync has covered.
        self._dirty = False

    def __del__(self) -> None:
        self._close()

    def close(self) -> None:
        """Close the descriptor, once the append that another thread is in has ended; the next one opens it again."""
        with self.lock.idle():
            self._close()

    def close_locked(self) -> None:
        """Like ``close``, for a caller who holds the lock: nobody else is in an append then."""
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        self._known_end = -1
        if fd >= 0:
            _fs.active().close(fd)

    # --- appending -----------------------------------------------------------------------------------------------

    def try_append(self, data: bytes) -> bool:
        """
        Append whole lines if the lock is free right now; False means it is not, and nothing happened.

        When it returns True the operating system has the bytes. Raises WriteError, SessionNotFoundError.
        """
        lock = self.lock
        if not lock.try_acquire():
            return False
        try:
            self.append_locked(data)
        finally:
            lock.release()
        return True

    def append(self, data: bytes) -> None:
        """Like ``try_append``, waiting for the lock. Raises SessionBusyError after LOCK_TIMEOUT_S."""
        self.lock.acquire()
        try:
            self.append_locked(data)
        finally:
            self.lock.release()

    def append_locked(self, data: bytes) -> None:
        """Append whole lines; the caller holds the lock (to work out what to append from what is there)."""
        fs = _fs.active()
        size = self._size_of_current(fs)
        if size == 0:
            data = self.header + data
        elif size != self._known_end:
            try:
                last = fs.pread(self._fd, 1, size - 1)
            except OSError as error:
                raise WriteError.of(error, self.path) from error
            if last != b"\n":
                data = b"\n" + data
        try:
            written = fs.write(self._fd, data)
        except OSError as error:
            self._known_end = -1
            raise WriteError.of(error, self.path) from error
        if written != len(data):
            self._undo_short_write(size, written, len(data))
        self._known_end = size + written
        self._dirty = True

    def _size_of_current(self, fs: _fs.FileSystem) -> int:
        """Make the descriptor the file that the path names now, and return its size."""
        if self._fd >= 0:
            try:
                if self._beside_lock:
                    found = fs.stat(self._name, dir_fd=self.lock.folder_fd, follow_symlinks=False)
                else:
                    found = fs.stat(self.path, follow_symlinks=False)
            except FileNotFoundError:
                self._close()
            except OSError as error:
                raise WriteError.of(error, self.path) from error
            else:
                if (found.st_dev, found.st_ino) == self._id:
                    return found.st_size
                # Rewritten by another program. What we appended to the old file may not be synced yet.
                self.sync()
                self._close()
        try:
            existed = True
            try:
                fd = _fs.open_regular(self.path, os.O_RDWR | os.O_APPEND)
            except FileNotFoundError:
                existed = False
                fd = _fs.append_fd(self.path, create=True)
        except OSError as error:
            raise WriteError.of(error, self.path) from error
        try:
            found = fs.fstat(fd)
        except OSError as error:
            fs.close(fd)
            raise WriteError.of(error, self.path) from error
        self._fd = fd
        self._id = (found.st_dev, found.st_ino)
        # A log that is its own lock was made by the lock a moment ago.
        self._created = self._created or not existed or found.st_size == 0
        return found.st_size

    def _undo_short_write(self, size: int, written: int, wanted: int) -> None:
        fs = _fs.active()
        self._known_end = -1
        reason = f"the disk is full or a limit was reached: only {written} of {wanted} bytes went in"
        cause = OSError(errno.ENOSPC, reason)
        try:
            if fs.fstat(self._fd).st_size == size + written:
                fs.ftruncate(self._fd, size)
            else:
                fs.write(self._fd, b"\n")
        except OSError as error:
            # The torn piece stays; the next append closes it with its own newline. Say so rather than hide it.
            error.__cause__ = cause
            raise WriteError(
                path=self.path,
                reason=f"short write, and it could not be undone: {error.strerror}",
                code=error.errno,
            ) from error
        raise WriteError.of(cause, self.path) from cause

    def begin_sync(self) -> Callable[[], None]:
        """
        Return what makes everything appended so far durable on the device, the file's name included.

        Call this where no append is in the middle of its work (under the lock, or in its ``idle``), and the result
        anywhere, also in another thread; both raise WriteError.
        After a failed sync the device may lack records that were appended: nothing since the last good sync may be
        taken as durable.
        """
        if self._fd < 0 or not self._dirty:
            return _nothing
        fs = _fs.active()
        # A descriptor of its own: an append may close ours, and the number could then mean another file.
        try:
            fd = fs.dup(self._fd)
        except OSError as error:
            raise WriteError.of(error, self.path) from error
        created, self._created = self._created, False
        self._dirty = False

        def finish() -> None:
            try:
                fs.fdatasync(fd)
                if created:
                    _fs.sync_folder(os.path.dirname(self.path))
            except OSError as error:
                self._dirty = True
                self._created = self._created or created
                raise WriteError.of(error, self.path) from error
            finally:
                fs.close(fd)

        return finish

    def sync(self) -> None:
        """Make everything appended so far durable on the device. Raises WriteError."""
        self.begin_sync()()

    # --- rewriting -----------------------------------------------------------------------------------------------

    def rewrite(
        self,
        build: Callable[[int, int, int], None],
        *,
        keep_as: Iterable[str] | None = None,
        bring_along: bool = True,
    ) -> str | None:
        """
        Replace the log by what ``build(old_fd, end, new_fd)`` writes. The caller holds the lock.

        ``build`` reads the old log up to ``end`` bytes; ``old_fd`` is -1 where there is no old log. With
        ``bring_along``, what another program appends to the old log beyond ``end`` while this runs is added to the
        new one. With ``keep_as``, the old log also stays, under the first of these names (in the same folder) that
        is free. Durable when it returns: the new file, its name, and the old one's. Returns the name it was kept
        under, or None.

        Raises WriteError; then the old log is whole and in place.
        """
        fs = _fs.active()
        folder, name = os.path.split(self.path)
        try:
            dir_fd = _fs.open_folder(folder)
        except OSError as error:
            raise WriteError.of(error, folder) from error
        kept: str | None = None
        old_fd = -1
        temp = _fs.temp_name()
        made = False
        try:
            try:
                old_fd = _fs.open_regular(name, dir_fd=dir_fd)
            except FileNotFoundError:
                old_fd = -1
            seen = fs.fstat(old_fd).st_size if old_fd >= 0 else 0
            # For appending: once it has its name, a program without our lock may write to it before we are done.
            new_fd = _fs.create_file(temp, os.O_APPEND, dir_fd=dir_fd)
            made = True
            try:
                build(old_fd, seen, new_fd)
                if bring_along:
                    seen = self._bring_along(old_fd, new_fd, seen)
                fs.fsync(new_fd)
                if old_fd >= 0 and keep_as is not None:
                    fs.fsync(old_fd)
                    # A second name first, so that the old log is never without one.
                    kept = _fs.add_name(name, keep_as, dir_fd=dir_fd)
                try:
                    fs.replace(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
                except BaseException:
                    # What is appended from now on would show up in the kept log too.
                    if kept is not None:
                        _fs.unlink_if_there(kept, dir_fd)
                    raise
                made = False
                if bring_along:
                    # A program without our lock may have opened the old file just before the rename.
                    self._bring_along(old_fd, new_fd, seen)
            finally:
                fs.close(new_fd)
            _fs.sync_folder_fd(dir_fd)
        except WriteError:
            raise
        except OSError as error:
            raise WriteError.of(error, self.path) from error
        finally:
            if made:
                _fs.unlink_if_there(temp, dir_fd)
            if old_fd >= 0:
                fs.close(old_fd)
            fs.close(dir_fd)
            self._close()
            self._dirty = False
        return kept

    @staticmethod
    def _bring_along(old_fd: int, new_fd: int, seen: int) -> int:
        """Copy what was appended to the old log beyond ``seen`` bytes; return its size now."""
        if old_fd < 0:
            return seen
        fs = _fs.active()
        size = fs.fstat(old_fd).st_size
        if size > seen:
            _fs.copy_bytes(old_fd, new_fd, seen, size)
            return size
        return seen


def _nothing() -> None:
    """The sync of a log that nothing was appended to."""


@contextmanager
def open_for_reading(path: _fs.Path) -> Iterator[int | None]:
    """
    Give a descriptor of a log for reading, or None if the log is not there.

    Raises IrregularFileError or OSError for what is there but can't be read.
    """
    try:
        fd = _fs.open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield fd
    finally:
        _fs.active().close(fd)


def join_lines(lines: Iterable[bytes]) -> bytes:
    """Join records (without newlines) into the bytes of one append."""
    return b"".join([line + b"\n" for line in lines])
