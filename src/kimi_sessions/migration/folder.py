"""
The layout of Kimi CLI since 0.59 and of our own: a folder for each session.

What the folder held changed with every era (headerless wire logs, wire logs alone, subagent contexts beside the main
one, metadata.json, state.json, then subagents, tasks and notifications in folders of their own). A migration need
not know: every regular file in the tree is carried under its own name, byte for byte, known or not. Only what this
library itself keeps while it runs (locks, the trust seal) stays behind.

Reads only, and takes the tree as it finds it; nothing is followed out of it.
"""

from __future__ import annotations

import os
import stat as stat_module
import time

from kimi_sessions import _fs, ids, layout
from kimi_sessions._facts import created_at, read_facts
from kimi_sessions._text import clean
from kimi_sessions.errors import InvalidIdError

from .sources import NO_LOG, Left, SourceFile, SourceFolder, SourceSession

__all__ = ["read_folder_session"]

#: Ours, and only of use where they are: locks, and a seal that is made anew for the session's new place.
_STAYS = frozenset({layout.LOCK, layout.HOLD, layout.SEAL})
#: Deeper trees are no session's; without a limit a hostile one could use up the stack and the descriptors.
_DEEPEST = 40


def read_folder_session(sessions_fd: int, sessions_path: str, name: str) -> SourceSession:
    """Take stock of the session folder ``name`` in an open sessions folder. Raises OSError if it can't be opened."""
    session = SourceSession(id=name, era="folder", sessions_path=sessions_path, places=(name,))
    try:
        ids.parse_session_id(name)
    except InvalidIdError as error:
        session.refusal = f"its name can't be a session's: {error.reason}"
    fd = _fs.open_folder(name, dir_fd=sessions_fd)
    try:
        session.mtime_ns = _fs.active().fstat(fd).st_mtime_ns
        _take_stock(fd, "", session, depth=0)
    finally:
        _fs.active().close(fd)
    tops = {file.name for file in session.files if "/" not in file.name}
    if layout.CONTEXT in tops:
        session.era = "folder"
    elif layout.WIRE in tops:
        session.era = "wire log alone"
    elif any(layout.rotated_number(top) is not None for top in tops):
        session.era = "rotated contexts alone"
    else:
        session.era = NO_LOG
    now = time.time()
    facts = read_facts(sessions_fd, name, now=now)
    if facts is not None:
        session.title, session.empty = facts.title, facts.empty
        session.created_at = created_at(sessions_fd, name, facts.extra, now)
        slug = facts.state.get("plan_slug")
        if isinstance(slug, str):
            add_plan(session, slug)
    else:
        session.notes.append("it holds no log, so it is no session; it is carried as it is")
    return session


def _take_stock(fd: int, prefix: str, session: SourceSession, *, depth: int) -> None:
    with _fs.active().scandir(fd) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        name = prefix + entry.name
        if not prefix and entry.name in _STAYS:
            continue
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # gone between the two looks: it was a temp file, or the session is in use
        if stat_module.S_ISREG(facts.st_mode):
            place = f"{session.id}/{name}"
            session.files.append(
                SourceFile(name, session.sessions_path, place, facts.st_size, facts.st_mtime_ns)
            )
        elif not stat_module.S_ISDIR(facts.st_mode):
            session.left.append(
                Left(clean(name), f"{_fs.kind_of(facts.st_mode)}; neither followed nor copied")
            )
        elif depth >= _DEEPEST:
            session.left.append(Left(clean(name), "a folder nested too deeply"))
        else:
            session.folders.append(SourceFolder(name, facts.st_mtime_ns))
            _enter(fd, name, session, depth)


def _enter(fd: int, name: str, session: SourceSession, depth: int) -> None:
    try:
        below = _fs.open_folder(name.rpartition("/")[2], dir_fd=fd)
    except OSError as error:
        session.left.append(Left(clean(name), f"can't be read: {error.strerror}"))
        return
    try:
        _take_stock(below, name + "/", session, depth=depth + 1)
    finally:
        _fs.active().close(below)


def add_plan(session: SourceSession, slug: str) -> None:
    """
    Add the plan file that a state's ``plan_slug`` points to, as ``plans/<slug>.md``.

    Kimi CLI keeps plans under the home folder whatever its share dir is, so that is where it is looked for.
    """
    name = f"{layout.PLANS}/{slug}.md"
    if any(file.name == name for file in session.files):
        return
    home = os.path.expanduser("~")
    root = os.path.join(home, layout.KIMI, layout.PLANS)
    if not os.path.isabs(home) or not slug or "/" in slug or "\0" in slug or slug.startswith("."):
        return
    try:
        facts = _fs.active().stat(os.path.join(root, f"{slug}.md"), follow_symlinks=False)
    except OSError:
        session.notes.append(f"its plan {clean(slug)} is not in {root}")
        return
    if not stat_module.S_ISREG(facts.st_mode):
        session.left.append(Left(clean(name), f"{_fs.kind_of(facts.st_mode)}; neither followed nor copied"))
        return
    if not any(folder.name == layout.PLANS for folder in session.folders):
        session.folders.append(SourceFolder(layout.PLANS, facts.st_mtime_ns))
    session.files.append(SourceFile(name, root, f"{slug}.md", facts.st_size, facts.st_mtime_ns))
