"""
Take back what one run added, by its report, and nothing else.

A session goes only if it still is what that run put there, byte for byte and file for file, nobody holds it, and its
source is still there to come back from: this is a way back, not a way to lose something. All else is refused, with
its reason, and left untouched. A rollback can be repeated; what is gone already counts as taken away.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_sessions import _fs, layout, metadata
from kimi_sessions._document import read_document
from kimi_sessions._folder import SessionFolder
from kimi_sessions._lines import decode_value
from kimi_sessions.errors import (
    DamagedError,
    NotFoundError,
    SessionsError,
    SourceNotFoundError,
    UnsupportedVersionError,
)
from kimi_sessions.ids import parse_session_id
from kimi_sessions.layout import Layout, ProjectLayout, ShareLayout

from .report import REPORT_VERSION
from .target import Target
from .verify import hash_file, open_target

__all__ = ["Rollback", "roll_back"]

#: Made by locks and reading programs in a session's folder; no content.
_NO_CONTENT = frozenset({layout.LOCK, layout.HOLD})
_TAKEN_BACK = frozenset({"added", "completed"})


@dataclass(slots=True)
class Rollback:
    """What a rollback did: sessions taken away with their paths, and those it left, with the reason."""

    run: str
    removed: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "run": self.run,
            "removed": [{"session": session, "path": path} for session, path in self.removed],
            "refused": [{"session": session, "reason": reason} for session, reason in self.refused],
        }


def roll_back(report: Path, *, dry_run: bool = False) -> Rollback:
    """
    Take away what the run of a report added, in every store that it wrote to.

    Raises SourceNotFoundError if there is no such report, DamagedError if it can't be read as one,
    UnsupportedVersionError, WriteError, SessionBusyError (a migration is at work).
    """
    first = _load(str(report))
    result = Rollback(str(first["run"]))
    others = [path for path in first["reports"] if isinstance(path, str) and not _same(path, str(report))]
    documents = [first]
    for path in others:
        try:
            documents.append(_load(path))
        except SessionsError as error:
            result.refused.append(("*", f"another report of the same run can't be used: {error}"))
    for document in documents:
        if document.get("run") == result.run:
            for work_dir in document["work_dirs"]:
                _roll_back_work_dir(work_dir, result, dry_run=dry_run)
    return result


def _same(first: str, second: str) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _load(path: str) -> dict[str, Any]:
    try:
        value = decode_value(_fs.read_small(path, limit=1 << 30))
    except FileNotFoundError as error:
        raise SourceNotFoundError(path=path, reason="there is no such report") from error
    except (ValueError, OSError) as error:
        raise DamagedError(path=path, reason=f"it can't be read as a report: {error}") from error
    # A file of another kind may have "work_dirs", too: Kimi CLI's registry does, and no version.
    if not (
        isinstance(value, dict)
        and isinstance(value.get("work_dirs"), list)
        and value.get("version") is not None
    ):
        raise DamagedError(path=path, reason="it is no report of a migration")
    if value.get("version") != REPORT_VERSION:
        raise UnsupportedVersionError(
            path=path, found=str(value.get("version")), supported=str(REPORT_VERSION)
        )
    if not isinstance(value.get("run"), str) or not isinstance(value.get("reports"), list):
        raise DamagedError(path=path, reason="it names no run")
    return value


def _roll_back_work_dir(work_dir: dict[str, Any], result: Rollback, *, dry_run: bool) -> None:
    added = [each for each in work_dir.get("sessions", ()) if each.get("status") in _TAKEN_BACK]
    if not added or work_dir.get("target") is None:
        return
    layout_: Layout = ProjectLayout()
    if work_dir.get("layout") == "share":
        # <share>/sessions/<key>
        layout_ = ShareLayout(os.path.dirname(os.path.dirname(str(work_dir["sessions_path"]))))
    target = Target(layout_, Path(str(work_dir["target"])))
    if not os.path.isdir(target.sessions_path):
        result.removed.extend((str(each["id"]), str(each["path"])) for each in added)
        return
    if dry_run:
        _each(added, target, result, dry_run=True)
        return
    with target.owned():
        _each(added, target, result, dry_run=False)
        last = work_dir.get("last_session_id_set")
        if isinstance(last, str) and target.find(last) is None:
            store = target.store
            metadata.set_last_session_id(layout_, store.work_dir, store.resolved, None, only_if=last)


def _each(added: list[dict[str, Any]], target: Target, result: Rollback, *, dry_run: bool) -> None:
    for session in added:
        session_id = parse_session_id(session["id"])
        path = os.path.join(target.sessions_path, session_id)
        try:
            refusal = _why_not(session, path) if os.path.lexists(path) else ""
            if not refusal and not dry_run:
                _take_away(session, session_id, target)
        except (SessionsError, OSError) as error:
            refusal = str(error) if isinstance(error, SessionsError) else error.strerror or str(error)
        if refusal:
            result.refused.append((session_id, refusal))
        else:
            result.removed.append((session_id, path))


def _why_not(session: dict[str, Any], path: str) -> str:
    """Return what stands against taking a session away, "" if nothing does."""
    if session.get("source_removed"):
        return "its source was removed by the same run; this is the only copy"
    gone = [place for place in session.get("from", ()) if not os.path.lexists(place)]
    if gone and not session["era"].startswith("flux"):
        return f"its source is not there any more ({gone[0]}); this may be the only copy"
    completed = set(session.get("completed", ())) if session["status"] == "completed" else None
    known = {name: (size, digest) for name, size, digest in session["files"]}
    fd = _fs.open_folder(path)
    try:
        for name, facts in known.items():
            if completed is not None and name not in completed:
                continue
            try:
                file_fd = open_target(name, fd)
            except FileNotFoundError:
                return f"{name} is not there any more"
            try:
                if hash_file(file_fd) != facts:
                    return f"{name} has changed since"
            finally:
                _fs.active().close(file_fd)
        if completed is None:
            mine = {*known, *session.get("made", ()), *_NO_CONTENT}
            extra = sorted(name for name in _names(fd, "") if name not in mine)
            if extra:
                return f"{extra[0]} was added since"
            if layout.SESSION in session.get("made", ()) and _has_own_marks(fd):
                return "it was tagged, pinned or made the parent of something since"
    finally:
        _fs.active().close(fd)
    return ""


def _has_own_marks(fd: int) -> bool:
    value = read_document(layout.SESSION, dir_fd=fd).value or {}
    return bool(set(value) - {"version", "created_at", "origin"})


def _names(fd: int, prefix: str) -> list[str]:
    names = []
    with _fs.active().scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            names.append(prefix + name)
            continue
        below = _fs.open_folder(name, dir_fd=fd)
        try:
            names.extend(_names(below, f"{prefix}{name}/"))
        finally:
            _fs.active().close(below)
    return names


def _take_away(session: dict[str, Any], session_id: str, target: Target) -> None:
    if session["status"] == "completed":
        _take_away_files(session["completed"], session_id, target)
        return
    try:
        target.store.trash.delete(SessionFolder(session_id, target.sessions_path))
    except NotFoundError:
        pass  # gone already, which is what was asked for
    target.remove_mark(session_id)


def _take_away_files(names: list[str], session_id: str, target: Target) -> None:
    fs = _fs.active()
    path = os.path.join(target.sessions_path, session_id)
    for name in names:
        folder, _, last = name.rpartition("/")
        fd = _fs.open_folder(os.path.join(path, folder))
        try:
            fs.unlink(last, dir_fd=fd)
        finally:
            fs.close(fd)
    mark = target.read_mark(session_id)
    if mark is not None:
        mark.files = {name: facts for name, facts in mark.files.items() if name not in names}
        target.write_mark(session_id, mark)
