"""
The sessions of one work dir as they lie on disk: the one scan, and the steps that add, move or remove a session.

Synchronous and path-level: what a session means to a program is ``session``'s business. The rules:

- Reading follows no link below the store and writes nothing, with one exception that users asked for: a flat file of
  an old client is moved into its folder when it is found or listed, once, atomically, and the move is logged.
- A session appears and disappears whole. What would overwrite stays where it is, and the clash is reported.
- Nothing here removes by age or on its own account.
"""

from __future__ import annotations

import os
import stat as stat_module
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from . import _fs, ids, layout, metadata
from ._document import dump_document
from ._facts import Facts, Marks, facts_of, read_facts, read_flat_facts
from ._flats import flats_of, may_have_flats, move_flats, move_flats_of
from ._log import logger
from ._text import clean
from ._trash import Trash
from .errors import (
    InvalidIdError,
    SessionBusyError,
    SessionExistsError,
    SessionsError,
    WorkDirNotFoundError,
    WriteError,
)
from .findings import Finding
from .layout import Layout, ProjectLayout, ShareLayout
from .trust import Trust, Verdict, write_seal

_TRUSTED = Verdict(trusted=True, approvals_ok=True, problem="")
#: Fewer sessions than this are read faster than a catalog is opened.
_MANY = 200
#: What threatens the sessions of a linked git worktree.
GIT_DELETES = "'git worktree remove' and 'git clean -fdx' delete its sessions unasked"

__all__ = ["GIT_DELETES", "Listing", "Located", "WorkDirStore", "is_session_name"]


class Located(msgspec.Struct, gc=False):
    """A session that was found: its facts, and the sessions folder it lies in."""

    facts: Facts
    sessions_path: str


@dataclass(slots=True)
class Listing:
    """
    What a scan found: sessions in no particular order, and what is wrong with the store itself.

    ``rest`` is what may be done when the answer was given: keep in the catalog what had to be read.
    """

    located: list[Located] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    rest: list[Callable[[], None]] = field(default_factory=list)


class WorkDirStore:
    """
    The sessions of one work dir in one layout.

    Of sessions whose work dir no registry names, ``Session.work_dir`` is the folder that holds them; it is taken here
    too, and leads to them. New ones can't be made there.
    """

    __slots__ = ("_paths", "_resolved", "_trust", "first_path", "is_named", "layout", "work_dir")

    def __init__(self, layout_: Layout, work_dir: Path, *, sessions_path: Path | None = None) -> None:
        self.layout = layout_
        self.work_dir = work_dir
        self._resolved: Path | None = None
        self._trust: Trust | None = None
        self._paths: tuple[str, ...] | None = None
        #: The folder that new sessions go into, and most are found in.
        self.first_path = str(layout_.sessions_path(work_dir) if sessions_path is None else sessions_path)
        #: False where the folder with the sessions stands for a work dir that no registry names.
        self.is_named = True
        if sessions_path is not None:
            self._paths = (self.first_path,)
        elif isinstance(layout_, ShareLayout):
            text = str(work_dir)
            if os.path.dirname(text) == os.path.dirname(self.first_path):
                self.is_named = False
                self.first_path = text
                self._paths = (text,)

    @property
    def paths(self) -> tuple[str, ...]:
        """Every folder to look in, that for new sessions first."""
        if self._paths is None:
            layout_ = self.layout
            found = list(layout_.sessions_paths(self.work_dir, None if layout_.sealed else self.resolved))
            if isinstance(layout_, ShareLayout):
                # Whoever made a session through a link has it under the key of that spelling.
                found += map(layout_.sessions_path, metadata.spellings(layout_, self.resolved))
            self._paths = tuple(dict.fromkeys(map(str, found)))
        return self._paths

    @property
    def resolved(self) -> Path:
        """The work dir with its links resolved."""
        if self._resolved is None:
            self._resolved = Path(os.path.realpath(self.work_dir))
        return self._resolved

    @property
    def trust(self) -> Trust:
        """The judge of this work dir's seals (ProjectLayout only)."""
        if self._trust is None:
            self._trust = Trust(self.work_dir, self.resolved)
        return self._trust

    @property
    def trash(self) -> Trash:
        """The trash of this work dir's sessions."""
        return Trash(self)

    # --- looking -------------------------------------------------------------------------------------------------

    def open_sessions(self, path: str) -> int | None:
        """Open a sessions folder to look into it; None if there is none. No link is followed below the store's root."""
        try:
            if isinstance(self.layout, ProjectLayout):
                outer = _fs.open_folder(
                    os.path.dirname(path), follow=self._kimi_link_is_inside(os.path.dirname(path))
                )
            else:
                # The share dir, and its sessions folder, may be links that the user made.
                outer = _fs.open_folder(os.path.dirname(path), follow=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return _fs.open_folder(os.path.basename(path), dir_fd=outer)
        except FileNotFoundError:
            return None
        finally:
            _fs.active().close(outer)

    def _kimi_link_is_inside(self, kimi: str) -> bool:
        """A ``.kimi`` that is a link is followed for reading where the user made it lead within the project."""
        if not os.path.islink(kimi):
            return False
        return os.path.realpath(kimi).startswith(str(self.resolved) + os.sep)

    def scan(self, limit: int | None = None) -> Listing:
        """
        Read the facts of every session; flat files are moved into place on the way. Never raises for one session.

        With ``limit``, sessions older than the newest so many that are not empty may be missing. Where there are
        many sessions the catalog tells which of them need not be read again.
        """
        listing = Listing()
        seen: set[str] = set()
        for path in self.paths:
            try:
                fd = self.open_sessions(path)
            except OSError as error:
                listing.problems.append(
                    Finding("unreadable", clean(path), f"can't be read: {error.strerror}")
                )
                continue
            if fd is None:
                continue
            try:
                self._scan_folder(fd, path, seen, listing, limit=limit)
            except OSError as error:
                listing.problems.append(
                    Finding("unreadable", clean(path), f"can't be read: {error.strerror}")
                )
            finally:
                _fs.active().close(fd)
        return listing

    def _scan_folder(
        self, fd: int, path: str, seen: set[str], listing: Listing, *, limit: int | None
    ) -> None:
        now = time.time()
        flats: list[str] = []
        with _fs.active().scandir(fd) as entries:
            there = list(entries)
        names = [entry.name for entry in there if entry.is_dir(follow_symlinks=False)]
        for entry in there if len(names) < len(there) else ():
            if entry.is_symlink():
                listing.problems.append(
                    Finding("link", clean(entry.name), "a link in a sessions folder; not followed")
                )
            elif entry.name.endswith(layout.FLAT_SUFFIX) and entry.is_file(follow_symlinks=False):
                flats.append(entry.name)
        clashes: dict[str, list[Finding]] = {}
        if flats:
            clashes = move_flats(fd, path, flats, {name for name in names if name[0] not in ".-"})
            with _fs.active().scandir(fd) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        if seen:
            names = [name for name in names if name not in seen]
        found = [Located(facts, path) for facts in _read_all(fd, path, names, listing, now=now, limit=limit)]
        listing.located += found
        if not clashes and path == self.paths[-1]:
            return
        seen.update([located.facts.id for located in found])
        for located in found if clashes else ():
            located.facts.problems.extend(clashes.pop(located.facts.id, ()))
        for session_id, problems in clashes.items():
            # A store that can't be written can still be read: the flat file, where it is.
            flat = read_flat_facts(fd, session_id, flats_of(fd, session_id))
            if flat is None or session_id in seen:
                listing.problems.extend(problems)
                continue
            flat.problems.extend(problems)
            seen.add(session_id)
            listing.located.append(Located(flat, path))

    def locate_at_once(self, session_id: str) -> Located | None:
        """
        Find a session where nearly all are: in its folder, with a log that is read in microseconds.

        None says only that it takes ``locate`` to tell.
        """
        path = self.first_path
        try:
            fd = self.open_sessions(path)
            if fd is None:
                return None
            try:
                if may_have_flats(fd, session_id):
                    return None
                mode = _fs.active().stat(session_id, dir_fd=fd, follow_symlinks=False).st_mode
                if not stat_module.S_ISDIR(mode):
                    return None
                marks = Marks(recall=_takes_time, hurry=_takes_time)
                facts = read_facts(fd, session_id, marks=marks)
                return None if facts is None else Located(facts, path)
            finally:
                _fs.active().close(fd)
        except (OSError, _TakesTimeError):
            return None  # it is looked at again, and told then

    def locate(self, session_id: str) -> Located | None:
        """
        Find one session by its id; its flat file is moved into place first. None if it is not there.

        A flat file that can't be moved is read where it is. Raises WriteError where the store can't be looked into.
        """
        for path in self.paths:
            try:
                fd = self.open_sessions(path)
            except _fs.IrregularFileError:
                continue
            except OSError as error:
                raise WriteError.of(error, path) from error
            if fd is None:
                continue
            try:
                clashes = move_flats_of(fd, path, session_id)
                try:
                    mode = _fs.active().stat(session_id, dir_fd=fd, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    mode = 0
                facts = _read_one(fd, path, session_id) if stat_module.S_ISDIR(mode) else None
                if facts is not None:
                    facts.problems.extend(clashes)
                    return Located(facts, path)
                if clashes:
                    flat = read_flat_facts(fd, session_id, flats_of(fd, session_id))
                    if flat is None:
                        # It is there and can't be had: "no such session" would be untrue.
                        raise WriteError(path=os.path.join(path, session_id), reason=clashes[0].reason)
                    flat.problems.extend(clashes)
                    return Located(flat, path)
            except SessionsError:
                raise
            except OSError as error:
                raise WriteError.of(error, os.path.join(path, session_id)) from error
            finally:
                _fs.active().close(fd)
        return None

    # --- adding --------------------------------------------------------------------------------------------------

    def create(
        self, session_id: str, *, extra: dict[str, Any] | None = None
    ) -> tuple[Facts, str, list[Finding]]:
        """
        Make an empty session and return its facts, the sessions folder it went into, and problems.

        The folder's making is exclusive: of two callers one gets SessionExistsError. Raises WorkDirNotFoundError,
        SessionExistsError, WriteError; then nothing is left behind.
        """
        self.check_work_dir()
        sessions = metadata.ensure_store(self.layout, self.work_dir, self.resolved)
        path = str(sessions)
        fs = _fs.active()
        self.refuse_taken(session_id)
        try:
            fd = _fs.open_folder(path)
        except OSError as error:
            raise WriteError.of(error, path) from error
        try:
            try:
                made = _fs.ensure_folder(session_id, dir_fd=fd)
            except OSError as error:
                raise WriteError.of(error, os.path.join(path, session_id)) from error
            if not made:
                raise SessionExistsError(session_id=session_id, path=os.path.join(path, session_id))
            facts = Facts(session_id)
            facts.extra = {"version": 1, "created_at": time.time(), **(extra or {})}
            ours = False
            try:
                folder_fd = _fs.open_folder(session_id, dir_fd=fd)
                try:
                    fs.close(_fs.create_file(layout.CONTEXT, dir_fd=folder_fd))
                    ours = True
                    _fs.replace_file(layout.SESSION, dump_document(facts.extra), dir_fd=folder_fd)
                    problems = self.seal(session_id, folder_fd, {})
                    facts.updated_at = fs.stat(layout.CONTEXT, dir_fd=folder_fd).st_mtime
                finally:
                    fs.close(folder_fd)
                _fs.sync_folder_fd(fd)
            except BaseException as error:
                if ours:
                    _fs.remove_tree(session_id, dir_fd=fd)
                else:
                    # While our folder was empty, a restore may have put a session in its place.
                    _fs.remove_if_empty(session_id, dir_fd=fd)
                if isinstance(error, FileExistsError):
                    raise SessionExistsError(
                        session_id=session_id, path=os.path.join(path, session_id)
                    ) from error
                if isinstance(error, OSError) and not isinstance(error, WriteError):
                    raise WriteError.of(error, os.path.join(path, session_id)) from error
                raise
        finally:
            fs.close(fd)
        problems.extend(self.register())
        return facts, path, problems

    def work_dir_is_there(self) -> bool:
        """Tell whether the work dir is a folder."""
        return os.path.isdir(self.work_dir)

    def check_work_dir(self) -> None:
        """Raise WorkDirNotFoundError unless the work dir is a folder, and known."""
        if not (self.is_named and self.work_dir_is_there()):
            raise WorkDirNotFoundError(path=str(self.work_dir))

    def is_linked_worktree(self) -> bool:
        """Tell whether the work dir is a linked git worktree (``GIT_DELETES``); False also where that can't be seen."""
        if not self.layout.sealed:
            return False
        try:
            mode = _fs.active().stat(os.path.join(self.work_dir, layout.GIT)).st_mode
        except OSError:
            return False
        return stat_module.S_ISREG(mode)

    def refuse_taken(self, session_id: str) -> None:
        """Raise SessionExistsError if a folder or a flat file of this id is there already."""
        for path in self.paths:
            for name in (session_id, session_id + layout.FLAT_SUFFIX):
                taken = os.path.join(path, name)
                if os.path.lexists(taken):
                    raise SessionExistsError(session_id=session_id, path=taken)

    # --- trust ---------------------------------------------------------------------------------------------------

    def seal(
        self, session_id: str, folder_fd: int, state: dict[str, Any], *, also: dict[str, Any] | None = None
    ) -> list[Finding]:
        """
        Write a session's trust seal, where this layout has seals; ``also`` is a second state that verifies too.

        A seal that can't be made is a problem, no error. Raises WriteError if the folder can't be written.
        """
        if not self.layout.sealed:
            return []
        problem = write_seal(self.work_dir, self.resolved, session_id, folder_fd, state, also=also)
        self._trust = None
        return [Finding("unsealed", layout.SEAL, problem)] if problem else []

    def register(self) -> list[Finding]:
        """Make this work dir known. That it could not be is a problem, no error: the store itself works without."""
        try:
            problem = metadata.register_work_dir(self.layout, self.work_dir, self.resolved)
        except (WriteError, SessionBusyError) as error:
            problem = f"this work dir could not be recorded: {error}"
            logger().warning("%s: %s", self.work_dir, problem)
        return [Finding("unregistered", "", problem)] if problem else []

    def verdict(self, facts: Facts, sessions_path: str) -> Verdict:
        """Judge a session's seal by the facts that were read. Never raises, never writes."""
        if not self.layout.sealed:
            return _TRUSTED
        seal = os.path.join(sessions_path, facts.id, layout.SEAL)
        return self.trust.judge(facts.id, seal, facts.state)

    def verdict_at(self, folder_fd: int, session_id: str, state: dict[str, Any]) -> Verdict:
        """Judge a session's seal by what its open folder holds now."""
        if not self.layout.sealed:
            return _TRUSTED
        return self.trust.judge(session_id, layout.SEAL, state, dir_fd=folder_fd)


class _TakesTimeError(Exception):
    """What was asked takes longer than a moment."""


def _takes_time(*_: object) -> NoReturn:
    raise _TakesTimeError


def is_session_name(name: str, problems: list[Finding] | None = None) -> bool:
    """
    Tell whether the name of a folder among the sessions can be a session's.

    A hidden name, and one that marks a folder whose removal has begun, can't; any other that can't is put into
    ``problems``, since somebody may miss a session there.
    """
    if ids.is_plain(name):
        return True
    if name[0] in ".-" or name.startswith(layout.DELETING_PREFIX):
        return False
    try:
        ids.parse_session_id(name)
    except InvalidIdError as error:
        if problems is not None:
            reason = f"not a session's name: {error.reason}"
            problems.append(Finding("bad-name", clean(name), reason))
        return False
    return True


def _read_all(
    fd: int, path: str, names: list[str], listing: Listing, *, now: float, limit: int | None
) -> Iterable[Facts]:
    """
    Read the facts of sessions, with the catalog where there are many, without it where it can't be had.

    Names that can't be a session's go into the problems of ``listing``.
    """
    is_session = partial(is_session_name, problems=listing.problems)
    if len(names) > _MANY:
        from .catalog import listing as catalog_listing
        from .catalog._database import CatalogUnusableError

        told = len(listing.problems)
        try:
            found, keep = catalog_listing.list_facts(fd, path, names, is_session, now=now, limit=limit)
        except CatalogUnusableError as error:
            logger().debug("listing %s without the catalog: %s", path, error)
            del listing.problems[told:]  # it is told below
        else:
            listing.rest.append(keep)
            return found
    return (
        facts for name in names if is_session(name) and (facts := facts_of(fd, name, now=now)) is not None
    )


def _read_one(fd: int, path: str, name: str) -> Facts | None:
    """Read the facts of one session, with the catalog where looking for its first prompt takes time."""
    try:
        return read_facts(fd, name, marks=Marks(recall=_takes_time))
    except _TakesTimeError:
        from .catalog import listing as catalog_listing
        from .catalog._database import CatalogUnusableError

        try:
            return catalog_listing.one_facts(fd, path, name)
        except CatalogUnusableError as error:
            logger().debug("reading %s without the catalog: %s", name, error)
    return read_facts(fd, name)
