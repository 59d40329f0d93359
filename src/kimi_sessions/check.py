"""
What is wrong with a session, or with a store: the whole check, which writes nothing at all.

Here every file of a session is looked at, where ``find`` and ``list`` read only what they need; what to do about a
finding is ``repair``'s business. The rules:

- Log lines go through the one decoder and the one policy of readers, so the totals of a report are those of
  ``iter_records``, ``turns`` and ``messages`` on the same bytes.
- Nothing is moved, merged, locked or made; flat files of old clients are looked at where they lie.
- A *finding* is something that a repair acts on or a person should; a *note* is worth knowing and wrong with nothing.
- No file is followed out of the session: links, pipes and devices are named and not opened.
"""

from __future__ import annotations

import os
import stat as stat_module
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _fs, ids, metadata
from . import layout as _layout
from ._async import in_thread
from ._document import read_document
from ._facts import Facts, read_facts
from ._flats import flats_of
from ._locking import read_holder
from ._store import GIT_DELETES, Located, WorkDirStore
from ._survey import Issue, LogTotals, Remedy, Survey, survey_flat, survey_folder
from ._text import clean
from .errors import InvalidIdError, NotFoundError, SessionNotFoundError
from .findings import Finding
from .layout import Layout, ProjectLayout, work_dir_path
from .session import LAST, Session, choose, inside, session_of

__all__ = ["LogTotals", "Report", "StoreReport", "check", "check_folder", "check_work_dir", "find_as_it_lies"]


# --- what comes out ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """What a check of one session found: ``findings`` to act on, ``notes`` to know, and the totals of its ``logs``."""

    session_id: str
    path: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    logs: tuple[LogTotals, ...] = ()

    @property
    def clean(self) -> bool:
        """True if there is no finding; there may be notes."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a plain dict, for JSON."""
        return {
            "id": clean(self.session_id),
            "path": clean(self.path),
            "clean": self.clean,
            "findings": [finding.as_dict() for finding in self.findings],
            "notes": [note.as_dict() for note in self.notes],
            "logs": [totals.as_dict() for totals in self.logs],
        }


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a check of a work dir found: of the store itself, and of each of its sessions, in the order of their ids."""

    work_dir: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    sessions: tuple[Report, ...] = ()

    @property
    def clean(self) -> bool:
        """True if there is no finding, neither of the store nor of a session."""
        return not self.findings and all(report.clean for report in self.sessions)


def report_of(survey: Survey, session_id: str, path: str) -> Report:
    """Sort what was seen into a report."""
    return Report(
        session_id,
        path,
        tuple(issue.finding for issue in survey.issues if not issue.is_note),
        tuple(issue.finding for issue in survey.issues if issue.is_note),
        tuple(survey.logs),
    )


# --- one session -------------------------------------------------------------------------------------------------


def check_folder(path: _fs.Path) -> Report:
    """
    Check a session folder by its path alone; what the store knows of it (seal, flat files, work dir) is left out.

    Raises SessionNotFoundError if there is no session, OSError if the folder can't be opened.
    """
    text = os.fspath(path)
    try:
        fd = _fs.open_folder(text)
    except FileNotFoundError:
        raise _gone(text) from None
    try:
        survey = survey_folder(fd)
    finally:
        _fs.active().close(fd)
    if not survey.is_session:
        raise _gone(text)
    return report_of(survey, Path(text).name, text)


def _gone(path: str) -> SessionNotFoundError:
    return SessionNotFoundError(session_id=Path(path).name, searched=(str(Path(path).parent),))


async def check(session: Session) -> Report:
    """
    Check everything of a session and return what was found. Nothing is written, moved, merged or locked.

    Raises SessionNotFoundError if the session is gone.
    """
    return await in_thread(check_now, session)


def check_now(session: Session) -> Report:
    """Do the work of ``check``, in this thread."""
    return report_of(survey_session(session), session.id, str(session.path))


def survey_session(session: Session) -> Survey:
    """Look at a session's folder, and at what the store around it knows. Raises SessionNotFoundError."""
    survey = Survey()
    try:
        store, folder, _ = inside(session)
        root_fd = store.open_sessions(folder.sessions_path)
        if root_fd is None:
            raise _gone(str(session.path))
        try:
            _survey_below(root_fd, session, survey)
        finally:
            _fs.active().close(root_fd)
    except OSError as error:
        finding = Finding("unreadable", ".", f"can't be read: {error.strerror}")
        survey.issues.append(Issue(finding, (), Remedy.NOTHING))
    return survey


def _survey_below(root_fd: int, session: Session, survey: Survey) -> None:
    flats = flats_of(root_fd, session.id)
    fd = -1
    try:
        fd = _fs.open_folder(session.id, dir_fd=root_fd)
    except FileNotFoundError:
        if not flats:
            raise _gone(str(session.path)) from None
    try:
        if fd >= 0:
            survey.add(survey_folder(fd))
            if not survey.is_session and not flats:
                raise _gone(str(session.path))
            _around(survey, session, fd)
        for name in flats:
            issue = _flat_issue(root_fd, name, session.id, fd)
            survey.issues.append(issue)
            if issue.is_note:
                survey.add(survey_flat(root_fd, name, live=flat_target(name, session.id) == _layout.CONTEXT))
    finally:
        if fd >= 0:
            _fs.active().close(fd)


def flat_target(name: str, session_id: str) -> str:
    """Return the name that a flat file of a session has inside the session's folder."""
    side = _layout.split_flat_side(name)
    return _layout.CONTEXT if name == session_id + _layout.FLAT_SUFFIX or side is None else side[1]


def _flat_issue(root_fd: int, name: str, session_id: str, fd: int) -> Issue:
    fs = _fs.active()
    target = flat_target(name, session_id)
    try:
        flat = fs.stat(name, dir_fd=root_fd, follow_symlinks=False)
        inside = None if fd < 0 else fs.stat(target, dir_fd=fd, follow_symlinks=False)
    except OSError:
        inside = None
    if inside is None or _fs.identity(flat) == _fs.identity(inside):
        reason = (
            "an old client's flat file; it moves into its folder when the session is next found or listed"
        )
        return Issue(Finding("flat", clean(name), reason), (name,), Remedy.NOTHING, is_note=True)
    reason = f"an old flat file beside {target} of the same session"
    if flat.st_mtime_ns > inside.st_mtime_ns:
        reason += ", written to since: an old client may still be using it"
    return Issue(Finding("flat-clash", clean(name), reason), (name,), Remedy.BRING_IN)


def _around(survey: Survey, session: Session, fd: int) -> None:
    """Add the notes about who holds a session, whose it is, and where it lies."""

    def note(kind: str, file: str, reason: str) -> None:
        survey.issues.append(Issue(Finding(kind, file, reason), (), Remedy.NOTHING, is_note=True))

    holder = read_holder(str(session.path / _layout.HOLD))
    if holder is not None:
        note(
            "held", _layout.HOLD, f"{clean(str(holder))} holds it, or died holding it; a turn may be running"
        )
    store = inside(session).store
    if store.layout.sealed:
        document = read_document(_layout.STATE, dir_fd=fd)
        verdict = store.verdict_at(fd, session.id, document.value or {})
        if verdict.problem:
            note("approvals" if verdict.trusted else "untrusted", _layout.SEAL, verdict.problem)
        if store.is_linked_worktree():
            note("worktree", ".", _WORKTREE)


_WORKTREE = f"in a linked git worktree: {GIT_DELETES}"


# --- a store -----------------------------------------------------------------------------------------------------


async def check_work_dir(work_dir: object, *, layout: Layout | None = None) -> StoreReport:
    """
    Check the store of a work dir and every session in it. Nothing is written or moved.

    Never raises because of one session.
    """
    store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
    return await in_thread(_check_store, store)


async def find_as_it_lies(work_dir: object, text: str, *, layout: Layout | None = None) -> Session:
    """
    Return the session that a person means by ``text``, as ``Session.open`` does, but leaving flat files in place.

    Raises SessionNotFoundError (with near matches), AmbiguousIdError, InvalidIdError.
    """
    store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
    if text != LAST:
        ids.parse_session_id(text)
    return await in_thread(_find, store, text)


def _find(store: WorkDirStore, text: str) -> Session:
    sessions = list(_Looker(store).sessions.values())
    searched = str(store.work_dir)
    if text != LAST:
        return choose(text, sessions, searched)
    last_id = metadata.load_work_dir_meta(store.layout, store.work_dir, store.resolved).last_session_id
    for session in sessions:
        if session.id == last_id and not session.archived:
            return session
    newest = sorted(sessions, key=lambda session: (-session.updated_at, session.id))
    for session in newest:
        if not session.empty and not session.archived:
            return session
    raise SessionNotFoundError(session_id=LAST, searched=store.paths)


class _Looker:
    """Looks over the folders of a store without moving anything."""

    def __init__(self, store: WorkDirStore) -> None:
        self.store = store
        self.sessions: dict[str, Session] = {}
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        for path in store.paths:
            try:
                fd = store.open_sessions(path)
                if fd is None:
                    continue
                try:
                    self._look_into(path, fd)
                finally:
                    _fs.active().close(fd)
            except OSError as error:
                self._find("unreadable", path, f"can't be read: {error.strerror}")
        for path in store.paths:
            self._look_into_trash(path)

    def _find(self, kind: str, name: str, reason: str) -> None:
        self.findings.append(Finding(kind, clean(name), reason))

    def _note(self, kind: str, name: str, reason: str) -> None:
        self.notes.append(Finding(kind, clean(name), reason))

    def _look_into(self, path: str, fd: int) -> None:
        with _fs.active().scandir(fd) as entries:
            names = sorted((entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries)
        flats = [n for n, mode in names if stat_module.S_ISREG(mode) and n.endswith(_layout.FLAT_SUFFIX)]
        for name, mode in names:
            if stat_module.S_ISDIR(mode):
                self._look_at_folder(path, fd, name, flats)
            elif not stat_module.S_ISREG(mode):
                self._find("irregular", name, f"{_fs.kind_of(mode)} in a sessions folder; not followed")
        for name in flats:
            owner = _layout.flat_owner(name, flats, set(self.sessions))
            session_id = owner if owner is not None else name[: -len(_layout.FLAT_SUFFIX)]
            if session_id not in self.sessions and self._is_id(session_id, name):
                facts = Facts(session_id)
                facts.empty = False
                self._add(facts, path)

    def _look_into_trash(self, path: str) -> None:
        try:
            names = self.store.trash.unfinished(path)
        except OSError as error:
            trash = self.store.trash.path_of(path)
            self._find("unreadable", trash, f"can't be read: {error.strerror}")
            return
        for name in names:
            reason = (
                "what is left of a session that was being removed; the next delete for good takes it along"
            )
            self._note("unfinished", f"{_layout.TRASH}/{name}", reason)

    def _look_at_folder(self, path: str, fd: int, name: str, flats: list[str]) -> None:
        if name.startswith(_layout.CREATING_PREFIX):
            self._note("unfinished", name, "a session that was being put together when its writer stopped")
        elif name.startswith(".") or not self._is_id(name, name):
            return
        elif name in self.sessions:
            self._note("hidden", name, f"a second session of this id, in {clean(path)}; not used")
        else:
            facts = _facts_of(fd, name)
            if facts is not None:
                self._add(facts, path)
            elif name + _layout.FLAT_SUFFIX not in flats:
                self._note("no-session", name, "a folder without a log; it is no session")

    def _is_id(self, session_id: str, name: str) -> bool:
        try:
            ids.parse_session_id(session_id)
        except InvalidIdError as error:
            self._find("bad-name", name, f"not a session's name: {error.reason}")
            return False
        return True

    def _add(self, facts: Facts, path: str) -> None:
        self.sessions[facts.id] = session_of(self.store, Located(facts, path))


def _facts_of(fd: int, name: str) -> Facts | None:
    try:
        return read_facts(fd, name)
    except OSError:
        facts = Facts(name)  # what keeps it from being read is said when it is checked
        facts.empty = False
        return facts


def _check_store(store: WorkDirStore) -> StoreReport:
    looker = _Looker(store)
    findings, notes = looker.findings, looker.notes
    findings.extend(Finding("loose-mode", name, reason) for name, _, reason in loose_store_folders(store))
    findings.extend(_registry_findings(store))
    if store.is_linked_worktree():
        notes.append(Finding("worktree", ".", _WORKTREE))
    reports = []
    for _, session in sorted(looker.sessions.items()):
        try:
            reports.append(check_now(session))
        except SessionNotFoundError:
            continue  # deleted while we looked
        except OSError as error:
            finding = Finding("unreadable", ".", f"can't be read: {error.strerror or error}")
            reports.append(Report(session.id, str(session.path), (finding,)))
    return StoreReport(str(store.work_dir), tuple(findings), tuple(notes), tuple(reports))


def _registry_findings(store: WorkDirStore) -> list[Finding]:
    problem = metadata.load_work_dir_meta(store.layout, store.work_dir, store.resolved).problem
    try:
        _, texts = metadata.known_work_dirs(store.layout)
    except NotFoundError as error:
        texts = [str(error)]
    return [Finding("registry", "", clean(text)) for text in dict.fromkeys([problem, *texts]) if text]


def loose_store_folders(store: WorkDirStore) -> list[tuple[str, str, str]]:
    """Return the store's own folders that are open to others: name to show, path, reason. Kimi CLI's are its own."""
    if not isinstance(store.layout, ProjectLayout):
        return []
    found = []
    for path in (store.layout.kimi_path(store.work_dir), store.layout.sessions_path(store.work_dir)):
        try:
            mode = _fs.active().stat(path, follow_symlinks=False).st_mode
        except OSError:
            break
        if not stat_module.S_ISDIR(mode):
            break  # a link: what lies behind it is not looked at
        if mode & 0o077:
            reason = f"open to other users (mode {stat_module.S_IMODE(mode):04o})"
            found.append((str(path.relative_to(store.work_dir)), str(path), reason))
    return found
