"""
Kimi CLI's registry of work dirs: ``<share>/kimi.json``.

    {"work_dirs": [{"path": …, "kaos": "local", "last_session_id": …}, …]}

Order and unknown keys are kept, it is reread just before it is replaced, and not written when nothing changes. A
damaged one is never written over: that is refused with an error that names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import _document, _fs
from ._document import Change
from ._places import ensure_folders, locked
from .errors import WriteError
from .layout import (
    KIMI_JSON_LOCK,
    LOCAL_KAOS,
    ShareLayout,
)

__all__ = [
    "entries_of",
    "entry_key",
    "move_work_dirs",
    "new_entry",
    "read_registry",
    "register_in_share",
    "share_paths",
    "spellings",
    "update_kimi_json",
    "work_dirs",
    "writable_registry",
]

#: A kaos becomes part of a folder's name, so it must not be able to lead anywhere.
_KAOS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
#: What ``parse_document`` says of a file that holds nothing: no more than a missing one.
_NOTHING = frozenset({"empty", "blank"})


def work_dirs(document: _document.Document) -> tuple[list[Any], str]:
    """Return the entries of ``kimi.json`` as they lie there, and what is wrong with the file."""
    if document.value is None:
        return [], "" if document.problem in _NOTHING else document.problem
    entries = document.value.get("work_dirs")
    if entries is None:
        return [], document.problem
    if not isinstance(entries, list):
        return [], "work_dirs is not a list"
    return entries, document.problem


def read_registry(layout: ShareLayout) -> _document.Document:
    """Read ``kimi.json``; it may be a link that its owner made. Never raises for what the file holds or lacks."""
    path = str(layout.kimi_json_path)
    return _document.read_document(os.path.realpath(path) if os.path.islink(path) else path)


def entry_key(entry: object) -> tuple[str, str] | None:
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


def entries_of(
    entries: list[Any], work_dir: Path, resolved: Path | Callable[[], Path]
) -> Iterator[dict[str, Any]]:
    """
    Give a work dir's entries: the first by the text given, then the first by the resolved text.

    ``resolved`` may be a function that is called only if more than the first is asked for.
    """
    text = str(work_dir)
    for entry in entries:
        if entry_key(entry) == (text, LOCAL_KAOS):
            yield entry
            break
    other = str(resolved() if callable(resolved) else resolved)
    if other == text:
        return
    for entry in entries:
        if entry_key(entry) == (other, LOCAL_KAOS):
            yield entry
            break


def new_entry(work_dir: Path) -> dict[str, Any]:
    """Return the entry of a work dir that has none yet, as the client makes one."""
    return {"path": str(work_dir), "kaos": LOCAL_KAOS, "last_session_id": None}


def writable_registry(document: _document.Document, layout: ShareLayout) -> tuple[dict[str, Any], list[Any]]:
    """Return the registry and its entries, to be changed; refuse what would have to be thrown away."""
    entries, problem = work_dirs(document)
    if problem:
        path = layout.kimi_json_path
        raise WriteError(path=str(path), reason=f"it is damaged and was left as it is ({problem})")
    value = document.value if document.value is not None else {}
    if value.get("work_dirs") is None:
        value["work_dirs"] = entries
    return value, entries


def update_kimi_json(share: ShareLayout, change: Change) -> None:
    """
    Change the registry under its lock, if anything would change. Durable when it returns.

    Raises WriteError, SessionBusyError, and what ``change`` raises.
    """
    # A dotfile manager may keep the file elsewhere and a link here: the file is replaced, not the link.
    target = os.path.realpath(share.kimi_json_path)
    if change(_document.read_document(target)) is None:
        return
    folder, name = os.path.split(target)
    with locked(str(Path(os.path.realpath(share.share), KIMI_JSON_LOCK))):
        try:
            fd = _fs.open_folder(folder)
        except OSError as error:
            raise WriteError.of(error, target) from error
        try:
            _document.update_document(name, change, dir_fd=fd, folder=folder)
        finally:
            _fs.active().close(fd)


def register_in_share(layout: ShareLayout, work_dir: Path, resolved: Path) -> None:
    """
    Add a work dir at the end of a share's registry, which is made if missing, unless it is there by either path.

    Durable when it returns. Raises WriteError, also if ``kimi.json`` is damaged; SessionBusyError.
    """

    def change(document: _document.Document) -> dict[str, Any] | None:
        value, entries = writable_registry(document, layout)
        if any(entries_of(entries, work_dir, resolved)):
            return None
        entries.append(new_entry(work_dir))
        return value

    try:
        _fs.active().close(ensure_folders(layout.share))
    except OSError as error:
        raise WriteError.of(error, str(layout.share)) from error
    update_kimi_json(layout, change)


def share_paths(layout: ShareLayout) -> tuple[list[str], list[str]]:
    """Return the paths of a share's local work dirs, as the registry spells them, and what is wrong with it."""
    kimi_json = layout.kimi_json_path
    entries, problem = work_dirs(read_registry(layout))
    parsed = (entry_key(entry) for entry in entries)
    found = dict.fromkeys(each[0] for each in parsed if each is not None and each[1] == LOCAL_KAOS)
    return list(found), [f"{kimi_json}: {problem}"] if problem else []


def spellings(layout: ShareLayout, resolved: Path) -> list[Path]:
    """Return the paths under which a share's registry knows a folder, given with its links resolved."""
    wanted = str(resolved)
    name = resolved.name
    paths, _ = share_paths(layout)
    return [Path(path) for path in paths if path != wanted and _leads_to(path, name, wanted)]


def _leads_to(path: str, name: str, wanted: str) -> bool:
    # Another last name leads there only by being a link itself; that is cheaper to see than where each path leads.
    if os.path.basename(path) != name and not os.path.islink(path):
        return False
    return os.path.realpath(path) == wanted


def move_work_dirs(layout: ShareLayout, moves: Mapping[str, str]) -> None:
    """
    Give local work dirs of a share's registry new paths (old spelling to new), in their places, and once.

    Where the new path has an entry already, that one stays and takes the last session of the other if it has none.
    Durable when it returns. Raises WriteError, also if ``kimi.json`` is damaged; SessionBusyError.
    """

    def change(document: _document.Document) -> dict[str, Any] | None:
        value, entries = writable_registry(document, layout)
        changed = False
        for entry in list(entries):
            parsed = entry_key(entry)
            new = moves.get(parsed[0]) if parsed is not None and parsed[1] == LOCAL_KAOS else None
            if new is None:
                continue
            changed = True
            there = next((other for other in entries if entry_key(other) == (new, LOCAL_KAOS)), None)
            if there is None:
                entry["path"] = new
                continue
            if there.get("last_session_id") is None:
                there["last_session_id"] = entry.get("last_session_id")
            # By identity: an equal entry may stand elsewhere in the list.
            entries[:] = [other for other in entries if other is not entry]
        return value if changed else None

    update_kimi_json(layout, change)
