"""
What is known about work dirs: their last session, their store, and the list of them all.

Two kinds of registry, one set of functions. ShareLayout's is Kimi CLI's own ``kimi.json``, which the real
client reads and rewrites without a lock. ProjectLayout's is ours: one small file per work dir in this user's
state folder, and ``work_dir.json`` inside the project. Sessions are not known here, only the folder they go
into.

    <share>/kimi.json                 {"work_dirs": [{"path", "kaos", "last_session_id"}, ...]}
    <work_dir>/.kimi/work_dir.json    {"version": 1, "store_id", "last_session_id"}
    <state>/work_dirs/<hash>.json     {"version": 1, "path", "resolved", "store_id", "first_seen", "former"}

The rules kept:

- Reading never writes, and never raises for what a file holds: the damage becomes a problem, in words.
- A change is made under the lock of its file, on what the file holds at that moment, and not at all if
  nothing would change. Order and unknown keys stay. A ``kimi.json`` that does not parse is never replaced.
- A store id says which store a seal was made for, so it belongs to one place. A store that turns up where the
  registry does not have it has *moved* if its old place no longer holds it; if that place still does, this
  one is a *copy*, and the first write here gives the copy an id of its own. Otherwise, creating one session
  in a copied store would vouch for all the sessions that came with it.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import re
import secrets
import stat as stat_module
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from . import _document, _fs, _locking, ids
from .errors import HomeNotFoundError, InvalidIdError, SessionsError, WorkDirNotFoundError, WriteError
from .layout import (
    DELETING_PREFIX,
    GITIGNORE,
    KIMI,
    KIMI_JSON_LOCK,
    LOCAL_KAOS,
    LOCK,
    SESSIONS,
    WORK_DIR_FILE,
    WORK_DIRS,
    Layout,
    ProjectLayout,
    ShareLayout,
    state_home,
    work_dir_key,
)

__all__ = [
    "KnownWorkDir",
    "Standing",
    "WorkDirMeta",
    "create_whole",
    "ensure_store",
    "follow_move",
    "known_work_dirs",
    "load_work_dir_meta",
    "move_work_dirs",
    "open_state_home",
    "read_store_id",
    "register_work_dir",
    "set_last_session_id",
    "share_paths",
    "standing",
]

_VERSION = 1
_STORE_ID = re.compile(r"[0-9a-f]{32,128}")
#: A kaos becomes part of a folder's name, so it must not be able to lead anywhere.
_KAOS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
#: What ``parse_document`` says of a file that holds nothing: no more than a missing one.
_NOTHING = frozenset({"empty", "blank"})
_IGNORE_ALL = b"*\n"
_A_LINK = "a link"
#: From the document as it is on disk to what it should be, or None to leave it alone.
_Change: TypeAlias = "Callable[[_document.Document], dict[str, Any] | None]"


# --- the types ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkDirMeta:
    """
    What a registry says about one work dir at the moment it was read.

    ``path`` is the work dir's path as text, ``kaos`` where that path lives, ``last_session_id`` the session
    to continue (it may be gone by now). ``problem`` tells what was wrong with the registry, "" if nothing.
    """

    path: str
    kaos: str = LOCAL_KAOS
    last_session_id: str | None = None
    problem: str = field(default="", repr=False, compare=False, kw_only=True)
    _layout: Layout = field(default_factory=ShareLayout, repr=False, compare=False, kw_only=True)

    @property
    def sessions_dir(self) -> Path:
        """The folder of this work dir's sessions, there or not; made by hand: in the environment's share."""
        if isinstance(self._layout, ShareLayout):
            return self._layout.key_path(work_dir_key(self.path, self.kaos))
        return self._layout.sessions_path(Path(self.path))


@dataclass(frozen=True, slots=True)
class KnownWorkDir:
    """
    One work dir that has, or had, sessions.

    ``path`` is None for a folder of a share that no registry names; its ``key`` is all that is known then.
    Neither the work dir nor ``sessions_path`` need exist.
    """

    path: Path | None
    key: str
    sessions_path: Path
    kaos: str = LOCAL_KAOS


class Standing(enum.Enum):
    """How a store id, found in some place, stands to this user's registry."""

    HERE = "known at this place"
    MOVED = "known at a place that no longer holds it"
    COPY = "known at another place that still holds it"
    UNKNOWN = "not known"


# --- last session -------------------------------------------------------------------------------------------


def load_work_dir_meta(layout: Layout, work_dir: Path, resolved: Path) -> WorkDirMeta:
    """
    Read what the registry says about a work dir: by the text given, else by the resolved text.

    A missing registry gives no last session; a damaged one, or an id that can't be one, gives none and a
    ``problem``. Raises HomeNotFoundError where a share can't be located, nothing else.
    """
    if isinstance(layout, ShareLayout):
        path = layout.kimi_json_path
        entries, problem = _work_dirs(_document.read_document(os.path.realpath(path)))
        own = _entries_of(entries, work_dir, resolved)
        found: list[object] = [entry.get("last_session_id") for entry in own]
    else:
        path = ProjectLayout().work_dir_file_path(work_dir)
        document = _read_work_dir_file(work_dir)
        problem = document.problem
        found = [(document.value or {}).get("last_session_id")]
    problems = [f"{path}: {problem}"] if problem else []
    last = None
    for value in found:
        if value is None:
            continue
        try:
            last = ids.parse_session_id(value)
            break
        except InvalidIdError as error:
            problems.append(f"{path}: last_session_id: {error}")
    return WorkDirMeta(str(work_dir), LOCAL_KAOS, last, problem="; ".join(problems), _layout=layout)


def set_last_session_id(
    layout: Layout, work_dir: Path, resolved: Path, session_id: str | None, *, only_if: str | None = None
) -> None:
    """
    Record (or with None forget) a work dir's last session. Durable when it returns.

    With ``only_if`` only where that id is recorded now: so an id is forgotten without taking another's away.

    Raises InvalidIdError; WriteError, also if ``kimi.json`` is damaged; SessionBusyError after ten seconds.
    """
    if session_id is not None:
        ids.parse_session_id(session_id)
    if isinstance(layout, ShareLayout):
        _set_last_in_share(layout, work_dir, resolved, session_id, only_if)
    else:
        _set_last_in_project(work_dir, session_id, only_if)


def _set_last_in_share(
    layout: ShareLayout, work_dir: Path, resolved: Path, session_id: str | None, only_if: str | None
) -> None:
    def change(document: _document.Document) -> dict[str, Any] | None:
        value, entries = _writable_registry(document, layout)
        own = list(_entries_of(entries, work_dir, resolved))
        if only_if is not None:
            concerned = [entry for entry in own if entry.get("last_session_id") == only_if]
        elif own or session_id is None:
            concerned = own[:1]
        else:
            concerned = [_new_entry(work_dir)]
            entries.extend(concerned)
        stale = [entry for entry in concerned if entry.get("last_session_id") != session_id]
        for entry in stale:
            entry["last_session_id"] = session_id
        return value if stale else None

    _update_kimi_json(layout, change)


def _set_last_in_project(work_dir: Path, session_id: str | None, only_if: str | None) -> None:
    def change(document: _document.Document) -> dict[str, Any] | None:
        value = document.value or {}
        now = value.get("last_session_id")
        if now == session_id or (only_if is not None and now != only_if):
            return None
        return {**(_with_store_id(document) or value), "last_session_id": session_id}

    try:
        _update_work_dir_file(work_dir, change)
    except FileNotFoundError as error:
        if session_id is not None:
            raise WriteError.of(error, str(ProjectLayout().work_dir_file_path(work_dir))) from error


# --- making the folders -------------------------------------------------------------------------------------


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
    share = _ensure_folders(layout.share)
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
        known = _store_id_of(_document.read_document(WORK_DIR_FILE, dir_fd=kimi).value)
    finally:
        fs.close(kimi)
    if known is None:
        _update_work_dir_file(work_dir, _with_store_id)


def _ensure_ignored(kimi: int) -> None:
    """Conversations are not committed by accident. A ``.gitignore`` that is there is someone's decision."""
    try:
        _fs.active().stat(GITIGNORE, dir_fd=kimi, follow_symlinks=False)
    except FileNotFoundError:
        create_whole(GITIGNORE, _IGNORE_ALL, dir_fd=kimi)


def _with_store_id(document: _document.Document) -> dict[str, Any] | None:
    value = document.value or {}
    if _store_id_of(value) is not None:
        return None
    made = {"version": _VERSION, "store_id": None, "last_session_id": None, **value}
    return {**made, "store_id": _new_store_id()}


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


def _ensure_folders(path: Path) -> int:
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
    return _ensure_folders(state_home())


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
    return _store_id_of(_read_work_dir_file(work_dir).value)


def _store_id_of(value: dict[str, Any] | None) -> str | None:
    found = (value or {}).get("store_id")
    return found if isinstance(found, str) and _STORE_ID.fullmatch(found) else None


def _new_store_id() -> str:
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
def _kimi_folder(work_dir: Path) -> Iterator[tuple[int, str]]:
    fd, path = _open_kimi(work_dir)
    try:
        yield fd, path
    finally:
        _fs.active().close(fd)


def _read_work_dir_file(work_dir: Path) -> _document.Document:
    try:
        with _kimi_folder(work_dir) as (fd, _):
            return _document.read_document(WORK_DIR_FILE, dir_fd=fd)
    except (FileNotFoundError, NotADirectoryError):
        return _document.Document(None, exists=False)
    except OSError as error:
        return _document.Document(None, f"can't be read: {error.strerror}", whole=False)


def _update_work_dir_file(work_dir: Path, change: _Change) -> None:
    """Change ``work_dir.json`` under its lock. Raises WriteError; FileNotFoundError without a store."""
    try:
        with _kimi_folder(work_dir) as (fd, path):
            if change(_document.read_document(WORK_DIR_FILE, dir_fd=fd)) is None:
                return
            with _locked(str(Path(path, LOCK))):
                _document.update_document(WORK_DIR_FILE, change, dir_fd=fd, folder=path)
    except (SessionsError, FileNotFoundError):
        raise
    except OSError as error:
        raise _refusal(error, ProjectLayout().kimi_path(work_dir)) from error


@contextmanager
def _locked(path: str) -> Iterator[None]:
    def gone() -> Exception:
        return WriteError(path=path, reason="the folder was removed meanwhile", code=errno.ENOENT)

    lock = _locking.StepLock(path, gone=gone)
    try:
        with lock:
            yield
    finally:
        lock.close()


# --- kimi.json ----------------------------------------------------------------------------------------------


def _work_dirs(document: _document.Document) -> tuple[list[Any], str]:
    """Return the entries of ``kimi.json`` as they lie there, and what is wrong with the file."""
    if document.value is None:
        return [], "" if document.problem in _NOTHING else document.problem
    entries = document.value.get("work_dirs")
    if entries is None:
        return [], document.problem
    if not isinstance(entries, list):
        return [], "work_dirs is not a list"
    return entries, document.problem


def _entry_key(entry: object) -> tuple[str, str] | None:
    """Return path text and kaos of an entry, None if it is damaged. Clients before 0.60 wrote no kaos."""
    if not isinstance(entry, dict):
        return None
    path = entry.get("path")
    kaos = entry.get("kaos", LOCAL_KAOS)
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    if not isinstance(kaos, str) or _KAOS.fullmatch(kaos) is None:
        return None
    return path, kaos


def _entries_of(entries: list[Any], work_dir: Path, resolved: Path) -> Iterator[dict[str, Any]]:
    """Give a work dir's entries: the first by the text given, then the first by the resolved text."""
    for text in dict.fromkeys((str(work_dir), str(resolved))):
        for entry in entries:
            if _entry_key(entry) == (text, LOCAL_KAOS):
                yield entry
                break


def _new_entry(work_dir: Path) -> dict[str, Any]:
    return {"path": str(work_dir), "kaos": LOCAL_KAOS, "last_session_id": None}


def _writable_registry(document: _document.Document, layout: ShareLayout) -> tuple[dict[str, Any], list[Any]]:
    """Return the registry and its entries, to be changed; refuse what would have to be thrown away."""
    entries, problem = _work_dirs(document)
    if problem:
        path = layout.kimi_json_path
        raise WriteError(path=str(path), reason=f"it is damaged and was left as it is ({problem})")
    value = document.value if document.value is not None else {}
    if value.get("work_dirs") is None:
        value["work_dirs"] = entries
    return value, entries


def _update_kimi_json(share: ShareLayout, change: _Change) -> None:
    # A dotfile manager may keep the file elsewhere and a link here: the file is replaced, not the link.
    target = os.path.realpath(share.kimi_json_path)
    if change(_document.read_document(target)) is None:
        return
    folder, name = os.path.split(target)
    with _locked(str(Path(os.path.realpath(share.share), KIMI_JSON_LOCK))):
        try:
            fd = _fs.open_folder(folder)
        except OSError as error:
            raise WriteError.of(error, target) from error
        try:
            _document.update_document(name, change, dir_fd=fd, folder=folder)
        finally:
            _fs.active().close(fd)


def _register_in_share(layout: ShareLayout, work_dir: Path, resolved: Path) -> None:
    def change(document: _document.Document) -> dict[str, Any] | None:
        value, entries = _writable_registry(document, layout)
        if any(_entries_of(entries, work_dir, resolved)):
            return None
        entries.append(_new_entry(work_dir))
        return value

    try:
        _fs.active().close(_ensure_folders(layout.share))
    except OSError as error:
        raise WriteError.of(error, str(layout.share)) from error
    _update_kimi_json(layout, change)


def share_paths(layout: ShareLayout) -> tuple[list[str], list[str]]:
    """Return the paths of a share's local work dirs, as the registry spells them, and what is wrong with it."""
    kimi_json = layout.kimi_json_path
    entries, problem = _work_dirs(_document.read_document(os.path.realpath(kimi_json)))
    parsed = (_entry_key(entry) for entry in entries)
    found = dict.fromkeys(each[0] for each in parsed if each is not None and each[1] == LOCAL_KAOS)
    return list(found), [f"{kimi_json}: {problem}"] if problem else []


def move_work_dirs(layout: ShareLayout, moves: Mapping[str, str]) -> None:
    """
    Give local work dirs of a share's registry new paths (old spelling to new), in their places, and once.

    Where the new path has an entry already, that one stays and takes the last session of the other if it has none.
    Durable when it returns. Raises WriteError, also if ``kimi.json`` is damaged; SessionBusyError.
    """

    def change(document: _document.Document) -> dict[str, Any] | None:
        value, entries = _writable_registry(document, layout)
        changed = False
        for entry in list(entries):
            parsed = _entry_key(entry)
            new = moves.get(parsed[0]) if parsed is not None and parsed[1] == LOCAL_KAOS else None
            if new is None:
                continue
            changed = True
            there = next((other for other in entries if _entry_key(other) == (new, LOCAL_KAOS)), None)
            if there is None:
                entry["path"] = new
                continue
            if there.get("last_session_id") is None:
                there["last_session_id"] = entry.get("last_session_id")
            # By identity: an equal entry may stand elsewhere in the list.
            entries[:] = [other for other in entries if other is not entry]
        return value if changed else None

    _update_kimi_json(layout, change)


# --- our registry -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    """One file of our registry. ``former`` are the store ids this place had before its present one."""

    name: str
    path: str
    resolved: str
    store_id: str
    first_seen: float
    former: list[str]
    raw: dict[str, Any]

    def knows(self, store_id: str) -> bool:
        return store_id == self.store_id or store_id in self.former

    def document(self) -> dict[str, Any]:
        return {
            **self.raw,
            "version": _VERSION,
            "path": self.path,
            "resolved": self.resolved,
            "store_id": self.store_id,
            "first_seen": self.first_seen,
            "former": self.former,
        }


def _registry_path() -> Path:
    return state_home() / WORK_DIRS


def _entry_name(resolved: str) -> str:
    return hashlib.sha256(os.fsencode(resolved)).hexdigest()[:32] + ".json"


def _parse_registry_file(name: str, document: _document.Document) -> _Entry | None:
    value = document.value
    if value is None:
        return None
    path, store_id = value.get("path"), _store_id_of(value)
    resolved = value.get("resolved", path)
    if not _is_absolute(path) or not _is_absolute(resolved) or store_id is None:
        return None
    first_seen = value.get("first_seen")
    former = value.get("former")
    return _Entry(
        name=name,
        path=path,
        resolved=resolved,
        store_id=store_id,
        first_seen=float(first_seen) if isinstance(first_seen, (int, float)) else 0.0,
        former=[each for each in former if isinstance(each, str)] if isinstance(former, list) else [],
        raw=value,
    )


def _is_absolute(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and "\0" not in text and Path(text).is_absolute()


def _registry_file_of(resolved: Path) -> _Entry | None:
    name = _entry_name(str(resolved))
    entry = _parse_registry_file(name, _document.read_document(str(_registry_path() / name)))
    return entry if entry is not None and entry.resolved == str(resolved) else None


def _registry_files() -> tuple[list[_Entry], list[str]]:
    """Read our registry, oldest work dir first, and what was wrong with it."""
    folder = _registry_path()
    try:
        with _fs.active().scandir(folder) as found:
            names = [each.name for each in found if each.name.endswith(".json")]
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        return [], [f"{folder}: can't be read: {error.strerror}"]
    entries, problems = [], []
    for name in names:
        document = _document.read_document(str(folder / name))
        entry = _parse_registry_file(name, document)
        if entry is not None:
            entries.append(entry)
        elif document.exists:
            problems.append(f"{folder / name}: {document.problem or 'not the entry of a work dir'}")
    entries.sort(key=lambda entry: (entry.first_seen, entry.name))
    return entries, sorted(problems)


def standing(work_dir: Path, resolved: Path, store_id: str) -> Standing:
    """
    Tell how a store id, found in this work dir, stands to the registry. Reads only.

    The same folder reached by two paths (a bind mount, a link where the project was, another letter case) is
    one place. An old place that can't be looked at counts as still holding the store.

    Raises HomeNotFoundError.
    """
    here = _registry_file_of(resolved)
    if here is not None and here.knows(store_id):
        return Standing.HERE
    knowing = [entry for entry in _registry_files()[0] if entry.knows(store_id)]
    if not knowing:
        return Standing.UNKNOWN
    own = _kimi_identity(work_dir)
    copied = False
    for entry in knowing:
        place = Path(entry.resolved)
        document = _read_work_dir_file(place)
        if document.value is None and not document.exists:
            continue
        if document.value is not None and _store_id_of(document.value) != store_id:
            continue
        if own is not None and _kimi_identity(place) == own:
            return Standing.HERE
        copied = True
    return Standing.COPY if copied else Standing.MOVED


def _kimi_identity(work_dir: Path) -> tuple[int, int] | None:
    try:
        with _kimi_folder(work_dir) as (fd, _):
            return _fs.identity(_fs.active().fstat(fd))
    except OSError:
        return None  # no folder to compare with; the caller then takes the two for different ones


def register_work_dir(layout: Layout, work_dir: Path, resolved: Path) -> str:
    """
    Make a work dir known to its registry, if it is not. Return "" or (ProjectLayout) what kept it from that.

    ShareLayout: adds the work dir at the end of ``kimi.json``, made if missing. Raises WriteError, also if
    the file is damaged; SessionBusyError.

    ProjectLayout: call it after ``ensure_store``. An entry follows a store that moved; a copied store gets a
    new store id first, so that what was sealed for the original is untrusted here. The store works without a
    registry, so a failure is logged and returned, not raised.
    """
    if isinstance(layout, ShareLayout):
        _register_in_share(layout, work_dir, resolved)
        return ""
    return _settle_or_say(work_dir, resolved, adopt=True)


def follow_move(work_dir: Path, resolved: Path) -> str:
    """Let the registry follow if a project's store was moved there. Return "" or what kept it from that."""
    return _settle_or_say(work_dir, resolved, adopt=False)


def _settle_or_say(work_dir: Path, resolved: Path, *, adopt: bool) -> str:
    try:
        _settle(work_dir, resolved, adopt=adopt)
    except (OSError, HomeNotFoundError) as error:
        problem = f"this work dir could not be recorded in the registry: {error}"
        import logging

        logging.getLogger(__name__).warning("%s: %s", work_dir, problem)
        return problem
    return ""


def _settle(work_dir: Path, resolved: Path, *, adopt: bool) -> None:
    if _unsettled(work_dir, resolved, adopt=adopt) is None:
        return
    fs = _fs.active()
    folder = Path(os.path.realpath(_registry_path()))
    fd = _ensure_folders(folder)
    try:
        # One lock for all changes: of two copies that turn up at one moment only one can be the moved one.
        with _locked(str(folder / LOCK)):
            store_id = _unsettled(work_dir, resolved, adopt=adopt)
            if store_id is None:
                return
            now = standing(work_dir, resolved, store_id)
            if now is Standing.COPY:
                store_id = _renew_store_id(work_dir, store_id)
            left = []
            if now is Standing.MOVED:
                others = (entry for entry in _registry_files()[0] if entry.resolved != str(resolved))
                left = [entry for entry in others if entry.knows(store_id)]
            # The new entry first: stopped in between, the store is known twice and not forgotten.
            _write_entry(_entry_for(work_dir, resolved, store_id, left), fd)
            for old in left:
                if old.store_id == store_id:
                    fs.unlink(old.name, dir_fd=fd)
                else:
                    old.former.remove(store_id)
                    _write_entry(old, fd)
    finally:
        fs.close(fd)


def _write_entry(entry: _Entry, dir_fd: int) -> None:
    _fs.replace_file(entry.name, _document.dump_document(entry.document()), dir_fd=dir_fd)


def _unsettled(work_dir: Path, resolved: Path, *, adopt: bool) -> str | None:
    """Return the store's id if the registry has to change for it, else None."""
    store_id = read_store_id(work_dir)
    if store_id is None:
        return None
    here = _registry_file_of(resolved)
    if here is not None and here.store_id == store_id:
        return None
    now = standing(work_dir, resolved, store_id)
    if now is Standing.HERE:
        # Known here from an earlier time: it is back. Otherwise the same folder is known by another path.
        return store_id if adopt and here is not None and here.knows(store_id) else None
    return store_id if adopt or now is Standing.MOVED else None


def _entry_for(work_dir: Path, resolved: Path, store_id: str, left: list[_Entry]) -> _Entry:
    """Build this work dir's entry out of the one it has and those of the places its store has left."""
    here = _registry_file_of(resolved)
    sources = [*([here] if here is not None else []), *(old for old in left if old.store_id == store_id)]
    former = dict.fromkeys(each for source in sources for each in (*source.former, source.store_id))
    former.pop(store_id, None)
    return _Entry(
        name=_entry_name(str(resolved)),
        path=here.path if here is not None else str(work_dir),
        resolved=str(resolved),
        store_id=store_id,
        first_seen=min((source.first_seen for source in sources), default=time.time()),
        former=list(former),
        raw=sources[0].raw if sources else {},
    )


def _renew_store_id(work_dir: Path, old: str) -> str:
    fresh = _new_store_id()

    def change(document: _document.Document) -> dict[str, Any] | None:
        value = document.value
        if value is None or _store_id_of(value) != old:
            return None
        return {**value, "store_id": fresh}

    _update_work_dir_file(work_dir, change)
    found = read_store_id(work_dir)
    if found is None or found == old:
        path = ProjectLayout().work_dir_file_path(work_dir)
        raise WriteError(path=str(path), reason="the store id did not change")
    return found


# --- all work dirs ------------------------------------------------------------------------------------------


def known_work_dirs(layout: Layout) -> tuple[list[KnownWorkDir], list[str]]:
    """
    Return every work dir that is known, and what was wrong with what was read. Writes nothing.

    ShareLayout: the entries of ``kimi.json`` in order, each once, then the session folders that no entry
    accounts for, by name. ProjectLayout: the entries of our registry, oldest first, also those whose folder
    is gone.

    Raises HomeNotFoundError where this user's folders can't be located.
    """
    if isinstance(layout, ShareLayout):
        return _known_in_share(layout)
    entries, problems = _registry_files()
    known: dict[str, KnownWorkDir] = {}
    for entry in entries:
        # The first spelling is the one shown, while it still leads there.
        text = entry.path if os.path.realpath(entry.path) == entry.resolved else entry.resolved
        path = Path(text)
        known.setdefault(entry.resolved, KnownWorkDir(path, work_dir_key(text), layout.sessions_path(path)))
    return list(known.values()), problems


def _known_in_share(layout: ShareLayout) -> tuple[list[KnownWorkDir], list[str]]:
    kimi_json = layout.kimi_json_path
    entries, problem = _work_dirs(_document.read_document(os.path.realpath(kimi_json)))
    problems = [f"{kimi_json}: {problem}"] if problem else []
    known: dict[str, KnownWorkDir] = {}
    for index, entry in enumerate(entries):
        parsed = _entry_key(entry)
        if parsed is None:
            problems.append(f"{kimi_json}: entry {index} of work_dirs is damaged")
            continue
        path, kaos = parsed
        key = work_dir_key(path, kaos)
        known.setdefault(key, KnownWorkDir(Path(path), key, layout.key_path(key), kaos))
    names, refused = _key_folders(layout)
    for key in names:
        if key not in known:
            known[key] = KnownWorkDir(None, key, layout.key_path(key), _kaos_of(key))
    return list(known.values()), problems + refused


def _kaos_of(key: str) -> str:
    kaos, mark, _ = key.rpartition("_")
    return kaos if mark and kaos else LOCAL_KAOS


def _key_folders(share: ShareLayout) -> tuple[list[str], list[str]]:
    """Return the names of the folders in a share's ``sessions``, and what was wrong there."""
    folder = share.all_sessions_path
    names, problems = [], []
    try:
        with _fs.active().scandir(folder) as found:
            for each in found:
                if each.name.startswith((".", DELETING_PREFIX)):
                    continue
                if stat_module.S_ISLNK(each.stat(follow_symlinks=False).st_mode):
                    problems.append(f"{folder / each.name}: is a link and was not followed")
                elif each.is_dir(follow_symlinks=False):
                    names.append(each.name)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        problems.append(f"{folder}: can't be read: {error.strerror}")
    return sorted(names), sorted(problems)
