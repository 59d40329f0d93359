"""
Let a store follow projects that were moved or renamed.

In Kimi CLI's share dir a folder of sessions is named by a hash of its work dir's path, so a moved project needs its
folder renamed and its registry entry changed. A project's own store moves along with it and is recognised by itself;
there only the registry is told, and what else names the old place. In both, ``additional_dirs`` at or below the old
path are changed, at name boundaries. No text of a conversation is touched.

The plan is made by looking only. Carrying it out goes folder by folder, the registry last: stopped in between, the same
command finishes it, and once more it finds nothing to do. Nothing that stands at the new place is overwritten.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_sessions import _fs, layout, metadata
from kimi_sessions._document import Document, read_document, update_document
from kimi_sessions._folder import SessionFolder
from kimi_sessions._store import WorkDirStore
from kimi_sessions._text import clean
from kimi_sessions.errors import SessionsError, WriteError
from kimi_sessions.layout import Layout, ProjectLayout, ShareLayout, work_dir_key

from .paths import PathMap

__all__ = ["Relink", "RelinkStep", "apply_relink", "plan_relink"]


@dataclass(slots=True)
class RelinkStep:
    """
    One work dir that moves: its old and new path, how many sessions go with it, and what is left where it is.

    ``done`` is True once it is carried out whole.
    """

    old: str
    new: str
    sessions: int
    left: list[str] = field(default_factory=list)
    done: bool = False


@dataclass(slots=True)
class Relink:
    """
    What a relink does, or did: the work dirs that move, and the sessions whose ``additional_dirs`` change.

    ``dirs`` holds (path of the session, old dir, new dir). ``refused`` tells what can't be done and why.
    """

    steps: list[RelinkStep] = field(default_factory=list)
    dirs: list[tuple[str, str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "work_dirs": [
                {
                    "old": step.old,
                    "new": step.new,
                    "sessions": step.sessions,
                    "done": step.done,
                    "left": step.left,
                }
                for step in self.steps
            ],
            "additional_dirs": [{"session": path, "old": old, "new": new} for path, old, new in self.dirs],
            "refused": [{"what": what, "reason": reason} for what, reason in self.refused],
            "problems": self.problems,
        }


def plan_relink(layout_: Layout, paths: PathMap) -> Relink:
    """Find what names a path that ``paths`` moves. Reads only. Raises HomeNotFoundError."""
    plan = Relink()
    if isinstance(layout_, ShareLayout):
        _plan_share(plan, layout_, paths)
    else:
        _plan_projects(plan, paths)
    for path, document in _states(layout_):
        for old, new in _moved_dirs(document, paths):
            plan.dirs.append((path, old, new))
    return plan


def apply_relink(layout_: Layout, paths: PathMap, plan: Relink) -> None:
    """
    Carry out a plan in place; what can't be done is told in it and does not stop the rest.

    Raises WriteError if the registry can't be written, SessionBusyError.
    """
    moves: dict[str, str] = {}
    for step in plan.steps:
        try:
            if isinstance(layout_, ShareLayout):
                _move_keys(layout_, step)
            else:
                _follow(step)
        except (OSError, SessionsError) as error:
            plan.refused.append((step.old, _told(error)))
            continue
        if not step.left:
            step.done = True
            moves[step.old] = step.new
    # From where the sessions are now.
    plan.dirs = []
    for path, document in list(_states(layout_)):
        changes = list(_moved_dirs(document, paths))
        if not changes:
            continue
        try:
            refusal = _change_dirs(layout_, path, paths)
        except (OSError, SessionsError) as error:
            refusal = _told(error)
        if refusal:
            plan.refused.append((path, refusal))
        else:
            plan.dirs.extend((path, old, new) for old, new in changes)
    if isinstance(layout_, ShareLayout) and moves:
        metadata.move_work_dirs(layout_, moves)


def _told(error: Exception) -> str:
    if isinstance(error, SessionsError):
        return str(error)
    return getattr(error, "strerror", None) or str(error)


# --- a share dir --------------------------------------------------------------------------------------------------


def _plan_share(plan: Relink, share: ShareLayout, paths: PathMap) -> None:
    known, problems = metadata.share_paths(share)
    plan.problems.extend(problems)
    # A path that the registry has lost, and whose folder is still there, is found by its key.
    lost = [
        old for old in paths.olds() if old not in known and os.path.isdir(share.key_path(work_dir_key(old)))
    ]
    for old in [*known, *lost]:
        new = paths.apply(old)
        if new is not None and new != old:
            plan.steps.append(RelinkStep(old, new, _count(share.key_path(work_dir_key(old)))))


def _count(path: Path) -> int:
    try:
        with _fs.active().scandir(path) as entries:
            return sum(
                1
                for entry in entries
                if not entry.name.startswith(".")
                and (entry.is_dir(follow_symlinks=False) or entry.name.endswith(layout.FLAT_SUFFIX))
            )
    except OSError:
        return 0


def _move_keys(share: ShareLayout, step: RelinkStep) -> None:
    old, new = work_dir_key(step.old), work_dir_key(step.new)
    for folder in (share.all_sessions_path, share.share / layout.SHARE_TRASH):
        try:
            fd = _fs.open_folder(folder, follow=True)
        except FileNotFoundError:
            continue
        try:
            _move_key(fd, old, new, step)
        finally:
            _fs.active().close(fd)


def _move_key(fd: int, old: str, new: str, step: RelinkStep) -> None:
    """Rename one folder; where the new name is taken, move what is in it, except what would meet its like."""
    fs = _fs.active()
    if not _is_folder(old, fd):
        return
    if not _is_folder(new, fd):
        fs.rename(old, new, src_dir_fd=fd, dst_dir_fd=fd)
        _fs.sync_folder_fd(fd)
        return
    old_fd = _fs.open_folder(old, dir_fd=fd)
    try:
        new_fd = _fs.open_folder(new, dir_fd=fd)
        try:
            with fs.scandir(old_fd) as entries:
                names = sorted(entry.name for entry in entries)
            with fs.scandir(new_fd) as entries:
                taken = {_stem(entry.name) for entry in entries}
            for name in names:
                if _stem(name) in taken:
                    step.left.append(f"{clean(name)}: something of this name is at the new place already")
                else:
                    fs.rename(name, name, src_dir_fd=old_fd, dst_dir_fd=new_fd)
            _fs.sync_folder_fd(new_fd)
            _fs.sync_folder_fd(old_fd)
        finally:
            fs.close(new_fd)
    finally:
        fs.close(old_fd)
    if not step.left:
        fs.rmdir(old, dir_fd=fd)
        _fs.sync_folder_fd(fd)


def _stem(name: str) -> str:
    """Return the name of a session for its folder and its flat file alike."""
    return name.removesuffix(layout.FLAT_SUFFIX)


def _is_folder(name: str, fd: int) -> bool:
    try:
        mode = _fs.active().stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    if not stat_module.S_ISDIR(mode):
        raise _fs.IrregularFileError(name, _fs.kind_of(mode))
    return True


# --- projects -----------------------------------------------------------------------------------------------------


def _plan_projects(plan: Relink, paths: PathMap) -> None:
    known, problems = metadata.known_work_dirs(ProjectLayout())
    plan.problems.extend(problems)
    for entry in known:
        new = paths.apply(str(entry.path)) if entry.path is not None else None
        if new is None or new == str(entry.path):
            continue
        here, there = Path(str(entry.path)) / layout.KIMI, Path(new) / layout.KIMI
        if not there.is_dir():
            plan.refused.append((str(entry.path), f"there is no store in {clean(new)}"))
        elif here.is_dir() and here.samefile(there):
            reason = f"it leads to the same folder as {clean(new)}; its sessions are found by both"
            plan.refused.append((str(entry.path), reason))
        elif here.is_dir():
            plan.refused.append((str(entry.path), "its store is still there; it has not moved"))
        else:
            plan.steps.append(
                RelinkStep(str(entry.path), new, _count(ProjectLayout().sessions_path(Path(new))))
            )


def _follow(step: RelinkStep) -> None:
    new = Path(step.new)
    problem = metadata.follow_move(new, Path(os.path.realpath(new)))
    if problem:
        raise WriteError(path=step.new, reason=problem)


# --- additional dirs ----------------------------------------------------------------------------------------------


def _states(layout_: Layout) -> Iterator[tuple[str, Document]]:
    """Yield every session of every known work dir that has a state: its folder, and the document."""
    known, _ = metadata.known_work_dirs(layout_)
    for entry in known:
        try:
            fd = _fs.open_folder(entry.sessions_path)
        except OSError:
            continue
        try:
            with _fs.active().scandir(fd) as entries:
                names = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
            for name in names:
                document = read_document(f"{name}/{layout.STATE}", dir_fd=fd)
                if document.value is not None:
                    yield str(entry.sessions_path / name), document
        finally:
            _fs.active().close(fd)


def _moved_dirs(document: Document, paths: PathMap) -> Iterator[tuple[str, str]]:
    dirs = (document.value or {}).get("additional_dirs")
    for old in dirs if isinstance(dirs, list) else ():
        new = paths.apply(old) if isinstance(old, str) else None
        if new is not None and new != old:
            yield old, new


def _change_dirs(layout_: Layout, path: str, paths: PathMap) -> str:
    """Change a session's ``additional_dirs`` under its lock, and its seal with them; return why not, "" if done."""
    sessions_path, session_id = os.path.split(path)
    work_dir = Path(sessions_path).parent.parent if layout_.sealed else Path(sessions_path)
    store = WorkDirStore(layout_, work_dir, sessions_path=Path(sessions_path))
    folder = SessionFolder(session_id, sessions_path)

    def changed(document: Document) -> dict[str, Any] | None:
        value = document.value
        moved = dict(_moved_dirs(document, paths))
        if value is None or not moved:
            return None
        return {**value, "additional_dirs": [moved.get(each, each) for each in value["additional_dirs"]]}

    with folder.step() as fd:
        now = read_document(layout.STATE, dir_fd=fd)
        wanted = changed(now)
        if wanted is None:
            return ""
        verdict = store.verdict_at(fd, session_id, now.value or {})
        if not (verdict.trusted and verdict.approvals_ok):
            return f"its dirs were left as they are: {verdict.problem}"
        # Both are sealed while they change, so that being stopped in between locks nobody out.
        store.seal(session_id, fd, now.value or {}, also=wanted)
        written = update_document(layout.STATE, changed, dir_fd=fd, folder=path)
        if written is not None:
            store.seal(session_id, fd, written)
    return ""
