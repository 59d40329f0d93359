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

import os
import stat as stat_module
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _document, _fs, ids
from ._kimi_json import (
    entries_of,
    entry_key,
    move_work_dirs,
    new_entry,
    read_registry,
    share_paths,
    spellings,
    update_kimi_json,
    work_dirs,
    writable_registry,
)
from ._places import (
    create_whole,
    ensure_store,
    open_state_home,
    read_store_id,
    read_work_dir_file,
    update_work_dir_file,
    with_store_id,
)
from ._registry import Standing, follow_move, register_work_dir, registry_files, standing, store_ids_at
from .errors import InvalidIdError, WriteError
from .layout import (
    DELETING_PREFIX,
    LOCAL_KAOS,
    Layout,
    ProjectLayout,
    ShareLayout,
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
    "spellings",
    "standing",
    "store_ids_at",
]


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


# --- last session -------------------------------------------------------------------------------------------


def load_work_dir_meta(layout: Layout, work_dir: Path, resolved: Path | Callable[[], Path]) -> WorkDirMeta:
    """
    Read what the registry says about a work dir: by the text given, else by the resolved text (or by what a function
    gives for it, called only then).

    A missing registry gives no last session; a damaged one, or an id that can't be one, gives none and a
    ``problem``. Raises HomeNotFoundError where a share can't be located, nothing else.
    """
    if isinstance(layout, ShareLayout):
        path = layout.kimi_json_path
        entries, problem = work_dirs(read_registry(layout))
        own = entries_of(entries, work_dir, resolved)
        found: Iterable[object] = (entry.get("last_session_id") for entry in own)
    else:
        path = ProjectLayout().work_dir_file_path(work_dir)
        document = read_work_dir_file(work_dir)
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
        value, entries = writable_registry(document, layout)
        own = list(entries_of(entries, work_dir, resolved))
        if only_if is not None:
            concerned = [entry for entry in own if entry.get("last_session_id") == only_if]
        elif own or session_id is None:
            concerned = own[:1]
        else:
            concerned = [new_entry(work_dir)]
            entries.extend(concerned)
        stale = [entry for entry in concerned if entry.get("last_session_id") != session_id]
        for entry in stale:
            entry["last_session_id"] = session_id
        return value if stale else None

    update_kimi_json(layout, change)


def _set_last_in_project(work_dir: Path, session_id: str | None, only_if: str | None) -> None:
    def change(document: _document.Document) -> dict[str, Any] | None:
        value = document.value or {}
        now = value.get("last_session_id")
        if now == session_id or (only_if is not None and now != only_if):
            return None
        return {**(with_store_id(document) or value), "last_session_id": session_id}

    try:
        update_work_dir_file(work_dir, change)
    except FileNotFoundError as error:
        if session_id is not None:
            raise WriteError.of(error, str(ProjectLayout().work_dir_file_path(work_dir))) from error


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
    entries, problems = registry_files()
    known: dict[str, KnownWorkDir] = {}
    for entry in entries:
        # The first spelling is the one shown, while it still leads there.
        text = entry.path if os.path.realpath(entry.path) == entry.resolved else entry.resolved
        path = Path(text)
        known.setdefault(entry.resolved, KnownWorkDir(path, work_dir_key(text), layout.sessions_path(path)))
    return list(known.values()), problems


def _known_in_share(layout: ShareLayout) -> tuple[list[KnownWorkDir], list[str]]:
    kimi_json = layout.kimi_json_path
    entries, problem = work_dirs(read_registry(layout))
    problems = [f"{kimi_json}: {problem}"] if problem else []
    known: dict[str, KnownWorkDir] = {}
    for index, entry in enumerate(entries):
        parsed = entry_key(entry)
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
