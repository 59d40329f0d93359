"""
Our registry of work dirs: one small file per work dir in the user's state folder.

    <state>/work_dirs/<hash>.json     {"version": 1, "path", "resolved", "store_id", "first_seen", "former"}

One file each, so that two processes never rewrite the same one. It is what tells a store that moved from a copy of one
that is still in its place. Entries are written by create, fork, migrate, hold and a first append, never by reading.
"""

from __future__ import annotations

import enum
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from . import _document, _fs
from ._kimi_json import register_in_share
from ._log import logger
from ._places import (
    ensure_folders,
    kimi_folder,
    locked,
    new_store_id,
    read_store_id,
    read_work_dir_file,
    store_id_of,
    update_work_dir_file,
)
from .errors import HomeNotFoundError, SessionsError, WriteError
from .layout import (
    LOCK,
    WORK_DIRS,
    Layout,
    ProjectLayout,
    ShareLayout,
    state_home,
)

__all__ = [
    "Entry",
    "Standing",
    "follow_move",
    "register_work_dir",
    "registry_files",
    "standing",
    "store_ids_at",
]

_VERSION = 1


class Standing(enum.Enum):
    """How a store id, found in some place, stands to this user's registry."""

    HERE = "known at this place"
    MOVED = "known at a place that no longer holds it"
    COPY = "known at another place that still holds it"
    UNKNOWN = "not known"


@dataclass(slots=True)
class Entry:
    """One file of our registry. ``former`` are the store ids this place had before its present one."""

    name: str
    path: str
    resolved: str
    store_id: str
    first_seen: float
    former: list[str]
    raw: dict[str, Any]

    def knows(self, store_id: str) -> bool:
        """Tell whether a store of this id is, or was, at this place."""
        return store_id == self.store_id or store_id in self.former

    def document(self) -> dict[str, Any]:
        """Return the file's new content; keys that are not known here stay."""
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


def _parse_registry_file(name: str, document: _document.Document) -> Entry | None:
    value = document.value
    if value is None:
        return None
    path, store_id = value.get("path"), store_id_of(value)
    resolved = value.get("resolved", path)
    if not _is_absolute(path) or not _is_absolute(resolved) or store_id is None:
        return None
    first_seen = value.get("first_seen")
    former = value.get("former")
    return Entry(
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


def _registry_file_of(resolved: Path) -> Entry | None:
    name = _entry_name(str(resolved))
    entry = _parse_registry_file(name, _document.read_document(str(_registry_path() / name)))
    return entry if entry is not None and entry.resolved == str(resolved) else None


def registry_files() -> tuple[list[Entry], list[str]]:
    """Read our registry, oldest work dir first, and what was wrong with it."""
    folder = _registry_path()
    try:
        with _fs.active().scandir(folder) as found:
            names = [each.name for each in found if each.name.endswith(".json")]
    except FileNotFoundError:
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
    knowing = [entry for entry in registry_files()[0] if entry.knows(store_id)]
    if not knowing:
        return Standing.UNKNOWN
    own = _kimi_identity(work_dir)
    copied = False
    for entry in knowing:
        place = Path(entry.resolved)
        document = read_work_dir_file(place)
        if document.value is None and not document.exists:
            continue
        if document.value is not None and store_id_of(document.value) != store_id:
            continue
        if own is not None and _kimi_identity(place) == own:
            return Standing.HERE
        copied = True
    return Standing.COPY if copied else Standing.MOVED


def store_ids_at(resolved: Path) -> tuple[str, ...]:
    """Return the ids of the stores that this user's registry has, or had, at a place. Raises HomeNotFoundError."""
    here = _registry_file_of(resolved)
    return () if here is None else (here.store_id, *here.former)


def _kimi_identity(work_dir: Path) -> tuple[int, int] | None:
    try:
        with kimi_folder(work_dir) as (fd, _):
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
        register_in_share(layout, work_dir, resolved)
        return ""
    return _settle_or_say(work_dir, resolved, adopt=True)


def follow_move(work_dir: Path, resolved: Path) -> str:
    """Let the registry follow if a project's store was moved there. Return "" or what kept it from that."""
    return _settle_or_say(work_dir, resolved, adopt=False)


def _settle_or_say(work_dir: Path, resolved: Path, *, adopt: bool) -> str:
    try:
        _settle(work_dir, resolved, adopt=adopt)
    except (OSError, HomeNotFoundError) as error:
        reason = str(error)
        if isinstance(error, OSError) and not isinstance(error, SessionsError) and error.strerror:
            # A step that works from an open folder knows a name alone, or no name at all.
            reason = f"{error.strerror} ({_registry_path()})"
        problem = f"this work dir could not be recorded in the registry: {reason}"
        logger().warning("%s: %s", work_dir, problem)
        return problem
    return ""


def _settle(work_dir: Path, resolved: Path, *, adopt: bool) -> None:
    if _unsettled(work_dir, resolved, adopt=adopt) is None:
        return
    fs = _fs.active()
    folder = Path(os.path.realpath(_registry_path()))
    fd = ensure_folders(folder)
    try:
        # One lock for all changes: of two copies that turn up at one moment only one can be the moved one.
        with locked(str(folder / LOCK)):
            store_id = _unsettled(work_dir, resolved, adopt=adopt)
            if store_id is None:
                return
            now = standing(work_dir, resolved, store_id)
            if now is Standing.COPY:
                store_id = _renew_store_id(work_dir, store_id)
            left = []
            if now is Standing.MOVED:
                others = (entry for entry in registry_files()[0] if entry.resolved != str(resolved))
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


def _write_entry(entry: Entry, dir_fd: int) -> None:
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


def _entry_for(work_dir: Path, resolved: Path, store_id: str, left: list[Entry]) -> Entry:
    """Build this work dir's entry out of the one it has and those of the places its store has left."""
    here = _registry_file_of(resolved)
    sources = [*([here] if here is not None else []), *(old for old in left if old.store_id == store_id)]
    former = dict.fromkeys(each for source in sources for each in (*source.former, source.store_id))
    former.pop(store_id, None)
    return Entry(
        name=_entry_name(str(resolved)),
        path=here.path if here is not None else str(work_dir),
        resolved=str(resolved),
        store_id=store_id,
        first_seen=min((source.first_seen for source in sources), default=time.time()),
        former=list(former),
        raw=sources[0].raw if sources else {},
    )


def _renew_store_id(work_dir: Path, old: str) -> str:
    fresh = new_store_id()

    def change(document: _document.Document) -> dict[str, Any] | None:
        value = document.value
        if value is None or store_id_of(value) != old:
            return None
        return {**value, "store_id": fresh}

    update_work_dir_file(work_dir, change)
    found = read_store_id(work_dir)
    if found is None or found == old:
        path = ProjectLayout().work_dir_file_path(work_dir)
        raise WriteError(path=str(path), reason="the store id did not change")
    return found
