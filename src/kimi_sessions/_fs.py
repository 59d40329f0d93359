"""
The few calls that touch the disk, behind a protocol that a test can make fail.

Every other room asks ``active()`` for the file system and uses it; nothing else opens, renames or removes a file.
The active one belongs to the current context (``using``), so a test can replace it for one operation and no global
is changed.

Three habits are kept here so that nobody can forget them: descriptors are close-on-exec, what we make is private
(0600 files, 0700 folders, under any umask), and what we open inside a store is opened without following a link and
without blocking, and must be a regular file.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from . import layout

try:
    import fcntl
except ImportError as error:  # pragma: no cover - not on a system that the tests run on
    message = "kimi_sessions needs the file locks of Linux or macOS; on Windows it runs under WSL"
    raise ImportError(message) from error

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = [
    "CHUNK_BYTES",
    "FILE_MODE",
    "FOLDER_MODE",
    "NO_HARD_LINKS",
    "FileSystem",
    "IrregularFileError",
    "OsFileSystem",
    "Path",
    "active",
    "add_name",
    "append_fd",
    "copy_bytes",
    "create_file",
    "ensure_folder",
    "exists",
    "identity",
    "iter_chunks",
    "kind_of",
    "may_exist",
    "open_folder",
    "open_known",
    "open_regular",
    "read_fd",
    "read_small",
    "remove_if_empty",
    "remove_tree",
    "replace_file",
    "sync_folder",
    "sync_folder_fd",
    "temp_name",
    "unlink_if_there",
    "using",
    "write_all",
]

Path: TypeAlias = "str | os.PathLike[str]"

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
FILE_MODE = 0o600
FOLDER_MODE = 0o700
#: One read of a long scan: large enough to be cheap per byte, small enough to stay flat.
CHUNK_BYTES = 1 << 18
#: One read of a copy: larger ones get fresh memory each time, which costs more than the calls they save.
_COPY_BYTES = CHUNK_BYTES
#: What a file system without hard links answers.
NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})


class IrregularFileError(OSError):
    """A link, pipe, device, socket or folder stands in a regular file's place; it was neither followed nor read."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(errno.ELOOP, f"is {kind}, not a regular file", path)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return IrregularFileError, (self.filename, self.kind)


class FileSystem(Protocol):
    """
    The calls the library makes. Each does what the ``os`` function of its name does, and raises OSError as that does.

    A test wraps one of these to make the Nth call fail, or to record calls.
    """

    @property
    def open(self) -> Callable[..., int]: ...
    @property
    def dup(self) -> Callable[..., int]: ...
    @property
    def close(self) -> Callable[..., None]: ...
    @property
    def read(self) -> Callable[..., bytes]: ...
    @property
    def pread(self) -> Callable[..., bytes]: ...
    @property
    def write(self) -> Callable[..., int]: ...
    @property
    def stat(self) -> Callable[..., os.stat_result]: ...
    @property
    def access(self) -> Callable[..., bool]: ...
    @property
    def fstat(self) -> Callable[..., os.stat_result]: ...
    @property
    def ftruncate(self) -> Callable[..., None]: ...
    @property
    def fsync(self) -> Callable[..., None]: ...
    @property
    def fdatasync(self) -> Callable[..., None]: ...
    @property
    def rename(self) -> Callable[..., None]: ...
    @property
    def replace(self) -> Callable[..., None]: ...
    @property
    def link(self) -> Callable[..., None]: ...
    @property
    def unlink(self) -> Callable[..., None]: ...
    @property
    def mkdir(self) -> Callable[..., None]: ...
    @property
    def rmdir(self) -> Callable[..., None]: ...
    @property
    def scandir(self) -> Callable[..., Any]: ...
    @property
    def fchmod(self) -> Callable[..., None]: ...
    @property
    def utime(self) -> Callable[..., None]: ...
    @property
    def flock(self) -> Callable[..., None]: ...


class OsFileSystem:
    """The real file system: the functions of ``os`` themselves, so that going through here costs nothing."""

    open = staticmethod(os.open)
    dup = staticmethod(os.dup)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    pread = staticmethod(os.pread)
    write = staticmethod(os.write)
    stat = staticmethod(os.stat)
    access = staticmethod(os.access)
    fstat = staticmethod(os.fstat)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    # macOS has no fdatasync; a full sync is the stronger promise.
    fdatasync = staticmethod(getattr(os, "fdatasync", os.fsync))
    rename = staticmethod(os.rename)
    replace = staticmethod(os.replace)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    scandir = staticmethod(os.scandir)
    fchmod = staticmethod(os.fchmod)
    utime = staticmethod(os.utime)
    flock = staticmethod(fcntl.flock)


_REAL: FileSystem = OsFileSystem()
_ACTIVE: ContextVar[FileSystem] = ContextVar("kimi_sessions_fs", default=_REAL)

#: The file system of the current context.
active: Callable[[], FileSystem] = _ACTIVE.get


@contextmanager
def using(fs: FileSystem) -> Iterator[None]:
    """Make ``fs`` the active file system in this context (and the tasks and thread hops started in it)."""
    token = _ACTIVE.set(fs)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def kind_of(mode: int) -> str:
    """Name what stands where a regular file should be, for a sentence: ``a link``, ``a pipe``."""
    for test, name in (
        (stat_module.S_ISLNK, "a link"),
        (stat_module.S_ISDIR, "a folder"),
        (stat_module.S_ISFIFO, "a pipe"),
        (stat_module.S_ISSOCK, "a socket"),
        (stat_module.S_ISCHR, "a device"),
        (stat_module.S_ISBLK, "a device"),
    ):
        if test(mode):
            return name
    return "something else"


def _explain(error: OSError, path: Path, dir_fd: int | None) -> OSError:
    """Tell a refused link, pipe or folder apart from other failures to open."""
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.ENOTDIR, errno.EOPNOTSUPP):
        try:
            mode = active().stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
        except OSError:
            return error
        if not stat_module.S_ISREG(mode):
            return IrregularFileError(os.fspath(path), kind_of(mode))
    return error


def open_regular(path: Path, flags: int = 0, *, dir_fd: int | None = None) -> int:
    """
    Open an existing regular file for reading (or with extra ``flags``, such as ``O_RDWR | O_APPEND``).

    Never follows a link in the last component, never blocks. Raises IrregularFileError for anything but a regular
    file, OSError otherwise.
    """
    return open_known(path, flags, dir_fd=dir_fd)[0]


def open_known(path: Path, flags: int = 0, *, dir_fd: int | None = None) -> tuple[int, os.stat_result]:
    """Like ``open_regular``, and give what was known of the file when it was opened."""
    fs = active()
    try:
        fd = fs.open(path, _READ | flags, dir_fd=dir_fd)
    except OSError as error:
        raise _explain(error, path, dir_fd) from error
    try:
        found = fs.fstat(fd)
        if not stat_module.S_ISREG(found.st_mode):
            raise IrregularFileError(os.fspath(path), kind_of(found.st_mode))
    except BaseException:
        fs.close(fd)
        raise
    return fd, found


def append_fd(path: Path, *, create: bool, dir_fd: int | None = None) -> int:
    """
    Open a log for appending and reading; with ``create``, make it (0600) if it is not there, never its folder.

    Raises IrregularFileError or OSError.
    """
    fs = active()
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    if create:
        try:
            fd = fs.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE, dir_fd=dir_fd)
        except FileExistsError:
            pass
        else:
            return _made_private(fd)
    return open_regular(path, os.O_RDWR | os.O_APPEND, dir_fd=dir_fd)


def _made_private(fd: int) -> int:
    """Give a file just made its mode whatever the umask took away (a umask can only remove, never add)."""
    fs = active()
    try:
        if stat_module.S_IMODE(fs.fstat(fd).st_mode) != FILE_MODE:
            fs.fchmod(fd, FILE_MODE)
    except BaseException:
        fs.close(fd)
        raise
    return fd


def create_file(path: Path, flags: int = 0, *, dir_fd: int | None = None) -> int:
    """
    Make a new private file for writing and return its descriptor.

    ``flags`` are further ones for ``open``. Raises FileExistsError if the name is taken, OSError.
    """
    fd = active().open(path, _NEW | flags, FILE_MODE, dir_fd=dir_fd)
    try:
        return _made_private(fd)
    except BaseException:
        # Nobody else can have written to it: the caller, who knows of no file, could not clean it up.
        unlink_if_there(path, dir_fd)
        raise


def open_folder(path: Path, *, dir_fd: int | None = None, follow: bool = False) -> int:
    """Open a folder to look things up in. A link is refused (IrregularFileError) unless ``follow``."""
    flags = _FOLDER & ~os.O_NOFOLLOW if follow else _FOLDER
    try:
        return active().open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        raise _explain(error, path, dir_fd) from error


def identity(result: os.stat_result) -> tuple[int, int]:
    """Return what tells one file from another for as long as either is open: device and inode number."""
    return result.st_dev, result.st_ino


def read_fd(fd: int, offset: int, length: int) -> bytes:
    """Read up to ``length`` bytes at ``offset``; shorter only at the end of the file."""
    fs = active()
    data = fs.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    pieces = [data]
    got = len(data)
    while got < length:
        data = fs.pread(fd, length - got, offset + got)
        if not data:
            break
        pieces.append(data)
        got += len(data)
    return b"".join(pieces)


def read_small(path: Path, *, dir_fd: int | None = None, limit: int = 64 << 20) -> bytes:
    """
    Read a small regular file whole.

    Raises IrregularFileError, OSError, or OSError(EFBIG) when it is larger than ``limit`` bytes.
    """
    fs = active()
    fd = open_regular(path, dir_fd=dir_fd)
    try:
        size = fs.fstat(fd).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", os.fspath(path))
        pieces = []
        left = limit + 1
        while left > 0:
            data = fs.read(fd, min(left, max(size + 1, 4096)))
            if not data:
                break
            pieces.append(data)
            left -= len(data)
        if left <= 0:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", os.fspath(path))
        return b"".join(pieces)
    finally:
        fs.close(fd)


def iter_chunks(fd: int, start: int = 0, end: int | None = None, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the bytes of an open file from ``start`` to ``end`` (or to where it ends now), in pieces."""
    fs = active()
    offset = start
    while end is None or offset < end:
        want = size if end is None else min(size, end - offset)
        data = fs.pread(fd, want, offset)
        if not data:
            return
        offset += len(data)
        yield data


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data`` to a file nobody else sees yet. Raises OSError if it can't."""
    fs = active()
    view = data
    while view:
        written = fs.write(fd, view)
        if written <= 0:
            raise OSError(errno.ENOSPC, "no progress while writing")
        view = view[written:]


def copy_bytes(source: int, target: int, start: int = 0, end: int | None = None) -> int:
    """Copy bytes between open files and return how many; ``target`` is a file nobody else sees yet."""
    count = 0
    for chunk in iter_chunks(source, start, end, _COPY_BYTES):
        write_all(target, chunk)
        count += len(chunk)
    return count


def sync_folder(path: Path, *, dir_fd: int | None = None) -> None:
    """Make renames and new names in a folder durable. File systems that can't sync a folder are let off."""
    fs = active()
    fd = fs.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY, dir_fd=dir_fd)
    try:
        sync_folder_fd(fd)
    finally:
        fs.close(fd)


def sync_folder_fd(fd: int) -> None:
    """Like ``sync_folder``, on an open folder."""
    try:
        active().fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


def temp_name() -> str:
    """Return a name no two writers share, for a file that will be renamed into place."""
    return f"{layout.TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(6)}{layout.TEMP_SUFFIX}"


def replace_file(
    name: str,
    data: bytes,
    *,
    dir_fd: int,
    before_replace: Callable[[], bool] | None = None,
    sync: bool = True,
) -> bool:
    """
    Replace ``name`` in an open folder by a private file holding ``data``: the old or the new one is there, never a mix.

    Written to a temp file in the same folder, synced, renamed, and the folder synced. ``before_replace`` is called
    just before the rename; if it returns False nothing is replaced and False is returned. On any failure the old
    file is as it was and no temp file is left.
    """
    fs = active()
    temp = temp_name()
    fd = create_file(temp, dir_fd=dir_fd)
    try:
        try:
            write_all(fd, data)
            if sync:
                fs.fsync(fd)
        finally:
            fs.close(fd)
        if before_replace is not None and not before_replace():
            fs.unlink(temp, dir_fd=dir_fd)
            return False
        fs.replace(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        unlink_if_there(temp, dir_fd)
        raise
    if sync:
        sync_folder_fd(dir_fd)
    return True


def unlink_if_there(name: Path, dir_fd: int | None) -> None:
    """Clean up a temp file on the way out of a failure, whose own error matters more than this one's."""
    try:
        active().unlink(name, dir_fd=dir_fd)
    except OSError:
        return


def add_name(name: str, candidates: Iterable[str], *, dir_fd: int) -> str:
    """
    Give a file in an open folder a further name, the first of ``candidates`` that is free, and return that one.

    Where the file system has no hard links it is the name of a private copy, synced. Nothing is replaced, and the old
    name stays. Raises OSError.
    """
    fs = active()
    for kept in candidates:
        try:
            fs.link(name, kept, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            try:
                _copy_beside(name, kept, dir_fd)
            except FileExistsError:
                continue
        return kept
    raise FileExistsError(errno.EEXIST, "no name is free", name)


def _copy_beside(name: str, copy: str, dir_fd: int) -> None:
    fs = active()
    source = open_regular(name, dir_fd=dir_fd)
    try:
        target = create_file(copy, dir_fd=dir_fd)
        try:
            copy_bytes(source, target)
            fs.fsync(target)
        except BaseException:
            unlink_if_there(copy, dir_fd)
            raise
        finally:
            fs.close(target)
    finally:
        fs.close(source)


def exists(name: Path, *, dir_fd: int | None = None) -> bool:
    """Tell whether something of this name is there, a link included. Raises OSError where that can't be seen."""
    try:
        active().stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def may_exist(name: Path, dir_fd: int) -> bool:
    """
    Tell cheaply that nothing of this name is in an open folder. True may be wrong where the call itself fails; who
    may not look into the folder is told False.
    """
    try:
        return active().access(name, os.F_OK, dir_fd=dir_fd, follow_symlinks=False)
    except (OSError, NotImplementedError):
        return True


def ensure_folder(path: Path, *, dir_fd: int | None = None) -> bool:
    """Make one private folder if it is not there (not its parents). Return True if this call made it."""
    fs = active()
    try:
        fs.mkdir(path, FOLDER_MODE, dir_fd=dir_fd)
    except FileExistsError:
        return False
    try:
        # mkdir's mode went through the umask, which may have taken the owner's bits too.
        fd = fs.open(path, _FOLDER, dir_fd=dir_fd)
        try:
            if stat_module.S_IMODE(fs.fstat(fd).st_mode) != FOLDER_MODE:
                fs.fchmod(fd, FOLDER_MODE)
        finally:
            fs.close(fd)
    except BaseException:
        # Not half made: the next one who asks for it would take it for somebody else's.
        remove_if_empty(path, dir_fd=dir_fd)
        raise
    return True


def remove_if_empty(path: Path, *, dir_fd: int | None) -> None:
    """Take away a folder on the way out of a failure; one that somebody put something into stays."""
    try:
        active().rmdir(path, dir_fd=dir_fd)
    except OSError:
        return


def remove_tree(name: str, *, dir_fd: int) -> None:
    """Remove a folder and all in it, never through a link. What is gone already is passed over; failures are raised."""
    fs = active()
    try:
        fd = open_folder(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    except IrregularFileError:
        fs.unlink(name, dir_fd=dir_fd)
        return
    try:
        with fs.scandir(fd) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for child, is_folder in names:
            if is_folder:
                remove_tree(child, dir_fd=fd)
            else:
                try:
                    fs.unlink(child, dir_fd=fd)
                except FileNotFoundError:
                    continue
    finally:
        fs.close(fd)
    try:
        fs.rmdir(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return
