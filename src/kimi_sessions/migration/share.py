"""
Kimi CLI's share dir as a source: which folders of sessions it has, and whose they are.

The registry (``kimi.json``) names work dirs; a folder's name is a hash of the path, so a folder that no entry accounts
for can be named only by its key. Two kinds of folder never have a work dir of this machine: those of another kaos
(``ssh_<key>``), and ``imported_sessions``, whose sessions came out of files.

A source is scanned without the steps that ``find`` and ``list`` take: no flat file is moved, no document is merged.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat as stat_module
from collections.abc import Iterator

from kimi_sessions import _fs, layout, metadata
from kimi_sessions._text import clean
from kimi_sessions.layout import ShareLayout

from .flat import add_flat_files
from .folder import read_folder_session
from .sources import Left, SourceSession, SourceWorkDir, open_source

__all__ = ["fill_work_dir", "is_foreign", "list_work_dirs", "suggest_work_dir"]

#: Text that may be a path: what stands between characters that end one in JSON text or prose.
_PATH_TEXT = re.compile(rb"(?:/|[A-Za-z]:(?:\\\\|/))[^\x00-\x1f\"'`<>|*?]{1,1000}")
_SCAN_BYTES = 4 << 20
_MOST_PATHS = 20_000


def list_work_dirs(share: ShareLayout) -> tuple[list[SourceWorkDir], list[str]]:
    """
    Return the folders of sessions in a share dir, unread, and what was wrong with the registry.

    In the registry's order, then the folders it does not name, then ``imported_sessions``. Raises HomeNotFoundError.
    """
    known, problems = metadata.known_work_dirs(share)
    found = []
    for entry in known:
        path = None if entry.path is None else str(entry.path)
        work_dir = SourceWorkDir(entry.key, path, str(entry.sessions_path), entry.kaos)
        if entry.path is not None and entry.kaos == layout.LOCAL_KAOS:
            meta = metadata.load_work_dir_meta(share, entry.path, entry.path)
            work_dir.last_session_id = meta.last_session_id
            if meta.problem and meta.problem not in problems:
                problems.append(meta.problem)
        found.append(work_dir)
    imported = share.share / layout.IMPORTED
    if os.path.isdir(imported):
        found.append(SourceWorkDir(layout.IMPORTED, None, str(imported)))
    return found, problems


def fill_work_dir(work_dir: SourceWorkDir) -> None:
    """Take stock of the sessions of one folder. What can't be read is named in its ``left``."""
    try:
        fd = _fs.open_folder(work_dir.sessions_path)
    except FileNotFoundError:
        return
    except OSError as error:
        work_dir.left.append(Left(clean(work_dir.sessions_path), f"can't be read: {error.strerror}"))
        return
    try:
        _fill(fd, work_dir)
    finally:
        _fs.active().close(fd)


def _fill(fd: int, work_dir: SourceWorkDir) -> None:
    path = work_dir.sessions_path
    folders: list[str] = []
    flats: dict[str, os.stat_result] = {}
    with _fs.active().scandir(fd) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        name = entry.name
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat_module.S_ISDIR(facts.st_mode):
            if name.startswith((layout.CREATING_PREFIX, layout.DELETING_PREFIX)):
                work_dir.notes.append(
                    f"{clean(name)} is what an unfinished step left behind; it is no session"
                )
            else:
                folders.append(name)
        elif not stat_module.S_ISREG(facts.st_mode):
            what = _fs.kind_of(facts.st_mode)
            work_dir.left.append(Left(clean(name), f"{what}; neither followed nor copied"))
        elif name.endswith(layout.FLAT_SUFFIX) and len(name) > len(layout.FLAT_SUFFIX):
            flats[name] = facts
        elif name.startswith("."):
            work_dir.notes.append(f"{clean(name)} belongs to no session; it stays where it is")
        else:
            work_dir.left.append(Left(clean(name), "a file that belongs to no session"))
    sessions: dict[str, SourceSession] = {}
    for name in folders:
        try:
            sessions[name] = read_folder_session(fd, path, name)
        except OSError as error:
            work_dir.left.append(Left(clean(name), f"can't be read: {error.strerror}"))
    add_flat_files(flats, sessions, path)
    work_dir.sessions = list(sessions.values())


def suggest_work_dir(work_dir: SourceWorkDir) -> str | None:
    """
    Return the path whose key this folder's name is, if a record of its sessions names that path or one below it.

    No guess: a path counts only if the client's own hash of it gives the folder's name.
    """
    digest = work_dir.key.rpartition("_")[2].encode()
    if len(digest) != 32:
        return None
    seen: set[bytes] = set()
    for text in _paths_in(work_dir):
        for candidate in _itself_and_above(text):
            if candidate in seen:
                continue
            seen.add(candidate)
            if hashlib.md5(candidate, usedforsecurity=False).hexdigest().encode() == digest:
                return candidate.decode("utf-8", "surrogateescape")
        if len(seen) > _MOST_PATHS:
            return None
    return None


def _itself_and_above(text: bytes) -> Iterator[bytes]:
    """Yield a path, cut at each place where a name, or a sentence, may end."""
    cut = len(text)
    while cut > 1:
        yield text[:cut]
        cut = max(text.rfind(mark, 1, cut) for mark in (b"/", b"\\", b" ", b",", b":", b".", b")"))


def _paths_in(work_dir: SourceWorkDir) -> Iterator[bytes]:
    for session in work_dir.sessions:
        for file in session.files:
            if not file.name.endswith((".jsonl", ".json", ".txt", ".md")):
                continue
            try:
                fd = open_source(file)
            except OSError:
                continue  # it is named where it is copied; here it only could have helped
            try:
                data = _fs.read_fd(fd, 0, _SCAN_BYTES)
            except OSError:
                continue
            finally:
                _fs.active().close(fd)
            for match in _PATH_TEXT.finditer(data):
                # In JSON a backslash stands twice, and non-ASCII may be escaped.
                yield match[0].replace(b"\\\\", b"\\")


def is_foreign(path: str) -> bool:
    """Tell whether a work dir's path can't be one of this system."""
    return not path.startswith(("/", "~", "."))
