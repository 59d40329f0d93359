"""
The folders a store is written into, and the small file that says which store it is.

    <work_dir>/.kimi/                  0700, with a .gitignore holding *
    <work_dir>/.kimi/work_dir.json     {"version": 1, "store_id": …, "last_session_id": …}

Making them follows no link below the place that the user named, and two processes that make them at the same moment
end up with one store. What is in the registries is ``_registry``'s and ``_kimi_json``'s.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import _document, _fs, _locking
from ._document import Change
from .errors import SessionsError, WorkDirNotFoundError, WriteError
from .layout import (
    GITIGNORE,
    KIMI,
    LOCK,
    SESSIONS,
    WORK_DIR_FILE,
    Layout,
    ProjectLayout,
    ShareLayout,
    state_home,
)

__all__ = [
    "create_whole",
    "ensure_folders",
    "ensure_store",
    "kimi_folder",
    "locked",
    "new_store_id",
    "open_state_home",
    "read_store_id",
    "read_work_dir_file",
    "store_id_of",
    "update_work_dir_file",
    "with_store_id",
]

_VERSION = 1
_STORE_ID = re.compile(r"[0-9a-f]{32,128}")
_IGNORE_ALL = b"*\n"
_A_LINK = "a link"


def ensure_store(layout: Layout, work_dir: Path, resolved: Path) -> Path:  # noqa: ARG001 - as its siblings
    """
    Make what is missing for writing sessions of a work dir, and return the folder they go into.

    What is made is private (0700, 0600); what is there is left as it is. A project's store gets a
    ``.gitignore`` that keeps it out of commits, unless one is there, and a random store id, once: callers at
    the same moment agree.

    Raises WorkDirNotFoundError (ProjectLayout); WriteError, also for a ``.kimi`` that is no folder or a link
    that leads out of the project; SessionBusyError; HomeNotFoundError (ShareLayout).
    """
    path = layout.sessions_path(work_dir)
    try:
        if isinstance(layout, ShareLayout):
            _ensure_share_folders(layout, path.name)
        else:
            _ensure_project_folders(work_dir)
    except WriteError:
        raise
    except OSError as error:
        raise WriteError.of(error, str(path)) from error
    return path


def _ensure_share_folders(layout: ShareLayout, key: str) -> None:
    fs = _fs.active()
    share = ensure_folders(layout.share)
    try:
        made = _fs.ensure_folder(SESSIONS, dir_fd=share)
        # The user's own tree: `sessions` may be a link, say to a larger disk. The folders in it may not.
        sessions = _open_folder(SESSIONS, dir_fd=share, follow=True, path=layout.all_sessions_path)
        try:
            if _fs.ensure_folder(key, dir_fd=sessions):
                _fs.sync_folder_fd(sessions)
            fs.close(_open_folder(key, dir_fd=sessions, path=layout.key_path(key)))
        finally:
            fs.close(sessions)
        if made:
            _fs.sync_folder_fd(share)
    finally:
        fs.close(share)


def _ensure_project_folders(work_dir: Path) -> None:
    fs = _fs.active()
    try:
        root = _fs.open_folder(work_dir, follow=True)
    except (FileNotFoundError, NotADirectoryError, _fs.IrregularFileError):
        raise WorkDirNotFoundError(path=str(work_dir)) from None
    try:
        if _fs.ensure_folder(KIMI, dir_fd=root):
            _fs.sync_folder_fd(root)
    finally:
        fs.close(root)
    kimi_path = ProjectLayout().kimi_path(work_dir)
    try:
        kimi, _ = _open_kimi(work_dir)
    except OSError as error:
        raise _refusal(error, kimi_path) from error
    try:
        _ensure_ignored(kimi)
        if _fs.ensure_folder(SESSIONS, dir_fd=kimi):
            _fs.sync_folder_fd(kimi)
        fs.close(_open_folder(SESSIONS, dir_fd=kimi, path=kimi_path / SESSIONS))
        known = store_id_of(_document.read_document(WORK_DIR_FILE, dir_fd=kimi).value)
    finally:
        fs.close(kimi)
    if known is None:
        update_work_dir_file(work_dir, with_store_id)


def _ensure_ignored(kimi: int) -> None:
    """Conversations are not committed by accident. A ``.gitignore`` that is there is someone's decision."""
    try:
        _fs.active().stat(GITIGNORE, dir_fd=kimi, follow_symlinks=False)
    except FileNotFoundError:
        create_whole(GITIGNORE, _IGNORE_ALL, dir_fd=kimi)


def with_store_id(document: _document.Document) -> dict[str, Any] | None:
    """Return a ``work_dir.json`` with a store id of its own; None if it has one."""
    value = document.value or {}
    if store_id_of(value) is not None:
        return None
    made = {"version": _VERSION, "store_id": None, "last_session_id": None, **value}
    return {**made, "store_id": new_store_id()}


def _refusal(error: OSError, path: Path) -> WriteError:
    """Build the error for something else standing where a folder of the store should be."""
    if isinstance(error, _fs.IrregularFileError):
        return WriteError(path=str(path), reason=f"it is {error.kind} and not a folder", code=error.errno)
    return WriteError.of(error, str(path))


def _open_folder(name: str, *, dir_fd: int, path: Path, follow: bool = False) -> int:
    """Open a folder of a store; whatever else stands there is named in the error."""
    try:
        return _fs.open_folder(name, dir_fd=dir_fd, follow=follow)
    except OSError as error:
        raise _refusal(error, path) from error


def ensure_folders(path: Path) -> int:
    """Make a folder of this user's and those above it, private where they are new, and return it opened."""
    missing = []
    for folder in (path, *path.parents):
        try:
            fd = _fs.open_folder(folder, follow=True)
            break
        except FileNotFoundError:
            missing.append(folder)
    else:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    fs = _fs.active()
    for folder in reversed(missing):
        try:
            _fs.ensure_folder(folder.name, dir_fd=fd)
            below = _fs.open_folder(folder.name, dir_fd=fd, follow=True)
        finally:
            fs.close(fd)
        fd = below
    return fd


def open_state_home() -> int:
    """
    Open the folder of what is this user's outside every project, made if missing.

    Raises OSError, HomeNotFoundError.
    """
    return ensure_folders(state_home())


def create_whole(name: str, data: bytes, *, dir_fd: int) -> bool:
    """
    Make a private file with all of its content at once; return False and touch nothing if the name is taken.

    Nobody ever sees it half written: it is linked into place when whole. Only where a file system has no hard
    links it is written under its own name. Durable when it returns. Raises OSError.
    """
    fs = _fs.active()
    temp = _fs.temp_name()
    _write_new(temp, data, dir_fd)
    try:
        fs.link(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _fs.NO_HARD_LINKS:
            raise
        try:
            _write_new(name, data, dir_fd)
        except FileExistsError:
            return False
    finally:
        _fs.unlink_if_there(temp, dir_fd)
    _fs.sync_folder_fd(dir_fd)
    return True


def _write_new(name: str, data: bytes, dir_fd: int) -> None:
    fs = _fs.active()
    fd = _fs.create_file(name, dir_fd=dir_fd)
    try:
        _fs.write_all(fd, data)
        fs.fsync(fd)
    except BaseException:
        _fs.unlink_if_there(name, dir_fd)
        raise
    finally:
        fs.close(fd)


# --- work_dir.json ------------------------------------------------------------------------------------------


def read_store_id(work_dir: Path) -> str | None:
    """Return the id of the store in a project, or None if it has none that can be read. Never raises."""
    return store_id_of(read_work_dir_file(work_dir).value)


def store_id_of(value: dict[str, Any] | None) -> str | None:
    """Return the store id that a document names, None if it names none that can be one."""
    found = (value or {}).get("store_id")
    return found if isinstance(found, str) and _STORE_ID.fullmatch(found) else None


def new_store_id() -> str:
    """Return a fresh random store id."""
    return secrets.token_hex(16)


def _open_kimi(work_dir: Path) -> tuple[int, str]:
    """
    Open a project's ``.kimi`` and return it with a path that has no link at its end.

    It may be a link to another folder of the same project. Leading out of it, it would make another project's
    store look like this one's. Raises IrregularFileError, OSError.
    """
    path = str(ProjectLayout().kimi_path(work_dir))
    try:
        return _fs.open_folder(path), path
    except _fs.IrregularFileError as error:
        if error.kind != _A_LINK:
            raise
    real = os.path.realpath(path)
    if Path(os.path.realpath(work_dir)) not in Path(real).parents:
        raise _fs.IrregularFileError(path, "a link that leads out of the project")
    return _fs.open_folder(real), real


@contextmanager
def kimi_folder(work_dir: Path) -> Iterator[tuple[int, str]]:
    """Give a descriptor of a project's ``.kimi``, and a path of it without a link. Raises OSError if there is none."""
    fd, path = _open_kimi(work_dir)
    try:
        yield fd, path
    finally:
        _fs.active().close(fd)


def read_work_dir_file(work_dir: Path) -> _document.Document:
    """Read ``work_dir.json``. Never raises: what is wrong is the document's problem."""
    try:
        with kimi_folder(work_dir) as (fd, _):
            return _document.read_document(WORK_DIR_FILE, dir_fd=fd)
    except (FileNotFoundError, NotADirectoryError):
        return _document.Document(None, exists=False)
    except OSError as error:
        return _document.Document(None, f"can't be read: {error.strerror}", whole=False)


def update_work_dir_file(work_dir: Path, change: Change) -> None:
    """Change ``work_dir.json`` under its lock. Raises WriteError; FileNotFoundError without a store."""
    try:
        with kimi_folder(work_dir) as (fd, path):
            if change(_document.read_document(WORK_DIR_FILE, dir_fd=fd)) is None:
                return
            with locked(str(Path(path, LOCK))):
                _document.update_document(WORK_DIR_FILE, change, dir_fd=fd, folder=path)
    except (SessionsError, FileNotFoundError):
        raise
    except OSError as error:
        raise _refusal(error, ProjectLayout().kimi_path(work_dir)) from error


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock file at ``path`` while the block runs. Raises SessionBusyError after ten seconds, WriteError."""

    def gone() -> Exception:
        return WriteError(path=path, reason="the folder was removed meanwhile", code=errno.ENOENT)

    lock = _locking.StepLock(path, gone=gone)
    try:
        with lock:
            yield
    finally:
        lock.close()
