"""
The sessions of one work dir as they lie on disk: the one scan, and the steps that add, move or remove a session.

Synchronous and path-level: what a session means to a program is ``session``'s business. The rules:

- Reading follows no link below the store and writes nothing, with one exception that users asked for: a flat file of
  an old client is moved into its folder when it is found or listed, once, atomically, and the move is logged.
- A session appears and disappears whole. What would overwrite stays where it is, and the clash is reported.
- Nothing here removes by age or on its own account.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat as stat_module
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _fs, ids, layout, metadata
from ._document import dump_document, read_document
from ._facts import Facts, facts_of, is_empty, read_facts, sane_time
from ._locking import HoldLock, StepLock, session_gone
from ._text import clean
from .errors import (
    InvalidIdError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    SessionsError,
    WorkDirNotFoundError,
    WriteError,
)
from .findings import Finding
from .layout import Layout, ProjectLayout
from .trust import Trust, Verdict, write_seal

_TRUSTED = Verdict(trusted=True, approvals_ok=True, problem="")
#: A trash entry's name also carries a number and an ending, and 255 bytes is all a name may have.
_LONGEST_STEM = 230
#: Fewer sessions than this are read faster than a catalog is opened.
_MANY = 200
#: A wire log from this size on may take longer to look through than a catalog to open.
_LONG_BYTES = 16 << 20

__all__ = ["Listing", "Located", "SessionFolder", "TrashEntry", "WorkDirStore"]


@dataclass(slots=True)
class Located:
    """A session that was found: its facts, and the sessions folder it lies in."""

    facts: Facts
    sessions_path: str


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """
    A session in the trash: where it lies, where it came from, when (epoch seconds) and why it was put there.

    ``entry`` is its name in the trash folder, unique there.
    """

    session_id: str
    entry: str
    trash_path: str
    sessions_path: str
    deleted_at: float
    reason: str
    title: str


@dataclass(slots=True)
class Listing:
    """What a scan found: sessions in no particular order, and what is wrong with the store itself."""

    located: list[Located] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)


class SessionFolder:
    """
    The folder of one open session and its locks, shared by everything that writes into it.

    Cheap to make; opens nothing before it is asked to.
    """

    __slots__ = ("_found", "_hold", "_step", "id", "path", "store")

    def __init__(
        self, store: WorkDirStore, session_id: str, sessions_path: str, found: Facts | None = None
    ) -> None:
        self.store = store
        self._found = found
        self.id = session_id
        self.path = os.path.join(sessions_path, session_id)
        self._step: StepLock | None = None
        self._hold: HoldLock | None = None

    @property
    def sessions_path(self) -> str:
        """The folder this session's folder lies in."""
        return os.path.dirname(self.path)

    def gone(self) -> SessionNotFoundError:
        """Return the error of a session that is not there any more."""
        return SessionNotFoundError(session_id=self.id, searched=(self.sessions_path,))

    def _is_same(self, folder_fd: int) -> bool:
        """
        Tell whether an open folder is the session that was found, not a later one of the same name.

        Sessions of ours are told apart by when they were made; of the old client's only the name is known.
        """
        created = None if self._found is None else self._found.extra.get("created_at")
        if created is None:
            return True
        document = read_document(layout.SESSION, dir_fd=folder_fd)
        return document.value is None or document.value.get("created_at") == created

    @property
    def step_lock(self) -> StepLock:
        """The lock of short steps."""
        if self._step is None:
            self._step = StepLock(
                os.path.join(self.path, layout.LOCK),
                gone=session_gone(self.id, self.sessions_path),
                is_same=self._is_same,
            )
        return self._step

    @property
    def hold_lock(self) -> HoldLock:
        """The lock of the owner."""
        if self._hold is None:
            self._hold = HoldLock(
                os.path.join(self.path, layout.HOLD),
                gone=session_gone(self.id, self.sessions_path),
                is_same=self._is_same,
            )
        return self._hold

    @property
    def held_here(self) -> bool:
        """True while this very object holds the session."""
        return self._hold is not None and self._hold.held

    @contextmanager
    def owned(self, *, force: bool = False) -> Iterator[None]:
        """
        Be the only owner for a step that ends or rewrites the session.

        Raises SessionBusyError at once if another holds it, unless ``force``.
        """
        if force or self.held_here:
            yield
            return
        lock = self.hold_lock
        lock.take()
        try:
            yield
        finally:
            lock.give_back()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Give a descriptor of the session's folder. Raises SessionNotFoundError, WriteError."""
        try:
            fd = _fs.open_folder(self.path)
        except FileNotFoundError:
            raise self.gone() from None
        except OSError as error:
            raise WriteError.of(error, self.path) from error
        try:
            yield fd
        finally:
            _fs.active().close(fd)

    def close(self) -> None:
        """Close what is open; locks held through it are free then."""
        if self._step is not None:
            self._step.close()
        if self._hold is not None:
            self._hold.give_back()
            self._hold.close()


class WorkDirStore:
    """The sessions of one work dir in one layout."""

    __slots__ = ("_resolved", "_trust", "layout", "paths", "work_dir")

    def __init__(self, layout_: Layout, work_dir: Path, *, sessions_path: Path | None = None) -> None:
        self.layout = layout_
        self.work_dir = work_dir
        self._resolved: Path | None = None
        self._trust: Trust | None = None
        if sessions_path is not None:
            self.paths: tuple[str, ...] = (str(sessions_path),)
        else:
            found = layout_.sessions_paths(work_dir, None if layout_.sealed else self.resolved)
            self.paths = tuple(map(str, found))

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
        folders: list[str] = []
        flats: list[str] = []
        with _fs.active().scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    if name[0] not in ".-":
                        folders.append(name)
                elif entry.is_symlink():
                    listing.problems.append(
                        Finding("link", clean(name), "a link in a sessions folder; not followed")
                    )
                elif name.endswith(layout.FLAT_SUFFIX) and entry.is_file(follow_symlinks=False):
                    flats.append(name)
        clashes: dict[str, list[Finding]] = {}
        if flats:
            clashes = self._move_flats(fd, path, flats, set(folders))
            with _fs.active().scandir(fd) as entries:
                folders = [
                    e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] not in ".-"
                ]
        names = []
        for name in folders:
            if name in seen or name.startswith(layout.DELETING_PREFIX):
                continue
            if not (name.isascii() and name.replace("-", "").isalnum()):
                try:
                    ids.parse_session_id(name)
                except InvalidIdError as error:
                    listing.problems.append(
                        Finding("bad-name", clean(name), f"not a session's name: {error.reason}")
                    )
                    continue
            names.append(name)
        for facts in _read_all(fd, path, names, now, limit):
            facts.problems.extend(clashes.pop(facts.id, ()))
            seen.add(facts.id)
            listing.located.append(Located(facts, path))
        # Of flat files that could not be moved at all there is no session to tell it.
        for problems in clashes.values():
            listing.problems.extend(problems)

    def locate(self, session_id: str) -> Located | None:
        """
        Find one session by its id; its flat file is moved into place first. None if it is not there.

        Raises WriteError where the store can't be looked into, or the flat file can't be moved.
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
                clashes = self._move_flats_of(fd, path, session_id)
                try:
                    mode = _fs.active().stat(session_id, dir_fd=fd, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    mode = 0
                facts = _read_one(fd, path, session_id) if stat_module.S_ISDIR(mode) else None
                if facts is not None:
                    facts.problems.extend(clashes)
                    return Located(facts, path)
                if clashes:
                    # It is there and can't be had: "no such session" would be untrue.
                    raise WriteError(path=os.path.join(path, session_id), reason=clashes[0].reason)
            except SessionsError:
                raise
            except OSError as error:
                raise WriteError.of(error, os.path.join(path, session_id)) from error
            finally:
                _fs.active().close(fd)
        return None

    # --- flat files of old clients -------------------------------------------------------------------------------

    def _move_flats_of(self, fd: int, path: str, session_id: str) -> list[Finding]:
        """Move the flat files of one session, if there are any."""
        flat = session_id + layout.FLAT_SUFFIX
        fs = _fs.active()
        there = False
        try:
            there = stat_module.S_ISREG(fs.stat(flat, dir_fd=fd, follow_symlinks=False).st_mode)
        except OSError:
            there = False
        folder_there = False
        if not there:
            try:
                folder_there = stat_module.S_ISDIR(
                    fs.stat(session_id, dir_fd=fd, follow_symlinks=False).st_mode
                )
            except OSError:
                return []
        if not there and not (folder_there and self._has_flat_sides(fd, session_id)):
            return []
        with fs.scandir(fd) as entries:
            names = [
                (e.name, e.is_dir(follow_symlinks=False), e.is_file(follow_symlinks=False)) for e in entries
            ]
        flats = [n for n, _, is_file in names if is_file and n.endswith(layout.FLAT_SUFFIX)]
        folders = {n for n, is_dir, _ in names if is_dir}
        mine = [n for n in flats if n == flat or layout.flat_owner(n, flats, folders) == session_id]
        return self._move_flats(fd, path, mine, folders, all_flats=flats).get(session_id, [])

    def _has_flat_sides(self, fd: int, session_id: str) -> bool:
        """Look for ``<id>_1.jsonl`` and ``<id>_sub_1.jsonl`` without reading the whole folder."""
        fs = _fs.active()
        for name in (f"{session_id}_1.jsonl", f"{session_id}_sub_1.jsonl"):
            try:
                fs.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            return True
        return False

    def _move_flats(
        self, fd: int, path: str, flats: list[str], folders: set[str], *, all_flats: list[str] | None = None
    ) -> dict[str, list[Finding]]:
        """Move flat files into their sessions' folders; return the clashes by session id."""
        problems: dict[str, list[Finding]] = {}
        names = all_flats if all_flats is not None else flats
        for name in sorted(flats):
            owner = layout.flat_owner(name, names, folders)
            if owner is not None:
                side = layout.split_flat_side(name)
                session_id, target = owner, side[1] if side is not None else layout.CONTEXT
            else:
                session_id, target = name[: -len(layout.FLAT_SUFFIX)], layout.CONTEXT
            try:
                ids.parse_session_id(session_id)
            except InvalidIdError:
                continue
            problem = self._move_flat(fd, path, name, session_id, target)
            if problem is not None:
                problems.setdefault(session_id, []).append(problem)
        return problems

    def _move_flat(self, fd: int, path: str, name: str, session_id: str, target: str) -> Finding | None:
        fs = _fs.active()
        try:
            _fs.ensure_folder(session_id, dir_fd=fd)
            folder_fd = _fs.open_folder(session_id, dir_fd=fd)
        except OSError as error:
            return Finding("flat-not-moved", clean(name), f"can't be moved into its folder: {error.strerror}")
        try:
            # A link first, so that nothing is ever overwritten and the file always has a name; a second process
            # doing the same finds either the flat name gone, or both names being one file.
            try:
                fs.link(name, target, src_dir_fd=fd, dst_dir_fd=folder_fd, follow_symlinks=False)
            except FileExistsError:
                if not _same_file(name, fd, target, folder_fd):
                    return self._clash(name, target, fd)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in _fs.NO_HARD_LINKS:
                    raise
                if _exists(target, folder_fd):
                    return self._clash(name, target, fd)
                fs.rename(name, target, src_dir_fd=fd, dst_dir_fd=folder_fd)
                _logger().info("moved %s into its folder as %s", os.path.join(path, name), target)
                return None
            try:
                fs.unlink(name, dir_fd=fd)
            except FileNotFoundError:
                return None
            _logger().info("moved %s into its folder as %s", os.path.join(path, name), target)
        except OSError as error:
            return Finding("flat-not-moved", clean(name), f"can't be moved into its folder: {error.strerror}")
        finally:
            fs.close(folder_fd)
        return None

    @staticmethod
    def _clash(name: str, target: str, fd: int) -> Finding | None:
        if not _exists(name, fd):
            return None  # another process finished the same move
        return Finding(
            "flat-clash", clean(name), f"an old flat file beside {target} of the same session; both are kept"
        )

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

    def check_work_dir(self) -> None:
        """Raise WorkDirNotFoundError unless the work dir is a folder."""
        if not os.path.isdir(self.work_dir):
            raise WorkDirNotFoundError(path=str(self.work_dir))

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
            _logger().warning("%s: %s", self.work_dir, problem)
        return [Finding("unregistered", "", problem)] if problem else []

    def verdict(self, facts: Facts, sessions_path: str) -> Verdict:
        """Judge a session's seal by the facts that were read. Never raises, never writes."""
        if not self.layout.sealed:
            return _TRUSTED
        return self._judge(os.path.join(sessions_path, facts.id, layout.SEAL), None, facts.id, facts.state)

    def verdict_at(self, folder_fd: int, session_id: str, state: dict[str, Any]) -> Verdict:
        """Judge a session's seal by what its open folder holds now."""
        if not self.layout.sealed:
            return _TRUSTED
        return self._judge(layout.SEAL, folder_fd, session_id, state)

    def _judge(self, seal: str, dir_fd: int | None, session_id: str, state: dict[str, Any]) -> Verdict:
        document = read_document(seal, dir_fd=dir_fd)
        if document.value is None and document.exists:
            return Verdict(
                trusted=False, approvals_ok=False, problem=f"its seal is damaged: {document.problem}"
            )
        return self.trust.verify(session_id, document.value, state)

    # --- removing ------------------------------------------------------------------------------------------------

    def trash_path(self, sessions_path: str) -> str:
        """Return the trash folder that belongs to a sessions folder (a rename away on the same file system)."""
        if isinstance(self.layout, ProjectLayout):
            return str(self.layout.trash_path(self.work_dir))
        share = os.path.dirname(os.path.dirname(sessions_path))
        return os.path.join(share, layout.SHARE_TRASH, os.path.basename(sessions_path))

    def _ensure_trash(self, sessions_path: str) -> str:
        trash = self.trash_path(sessions_path)
        try:
            if not isinstance(self.layout, ProjectLayout):
                _fs.ensure_folder(os.path.dirname(trash))
            _fs.ensure_folder(trash)
            # Refuses a link: what is thrown away must not leave the store.
            _fs.active().close(_fs.open_folder(trash))
        except OSError as error:
            raise WriteError.of(error, trash) from error
        return trash

    def discard_if_empty(self, folder: SessionFolder) -> bool:
        """
        Remove a session for good if nothing is in it and nobody else holds it; True if it is gone now.

        Emptiness is looked at under the locks, so a first record by somebody else is never thrown away.
        """
        try:
            return self.delete(folder, only_if_empty=True)
        except SessionBusyError:
            return False

    def delete(self, folder: SessionFolder, *, force: bool = False, only_if_empty: bool = False) -> bool:
        """
        Remove a session for good: a crash leaves it whole or gone, and the next delete finishes what is left.

        Returns False only for a session that is not empty where ``only_if_empty``. Raises SessionNotFoundError,
        SessionBusyError (held, and not ``force``), WriteError.
        """
        with self._detached(folder, force=force) as (root_fd, trash, flats):
            if only_if_empty and (flats or not is_empty(root_fd, folder.id)):
                return False
            doomed = f"{layout.DELETING_PREFIX}{secrets.token_hex(8)}"
            trash_fd = _fs.open_folder(trash)
            try:
                fs = _fs.active()
                fs.rename(folder.id, doomed, src_dir_fd=root_fd, dst_dir_fd=trash_fd)
                for name in flats:
                    fs.rename(
                        name,
                        f"{layout.DELETING_PREFIX}{secrets.token_hex(8)}",
                        src_dir_fd=root_fd,
                        dst_dir_fd=trash_fd,
                    )
                _fs.sync_folder_fd(root_fd)
                _fs.sync_folder_fd(trash_fd)
            finally:
                _fs.active().close(trash_fd)
        self.finish_deletes(folder.sessions_path)
        return True

    def finish_deletes(self, sessions_path: str) -> None:
        """Remove what earlier deletes began to remove. Raises WriteError naming what would not go."""
        trash = self.trash_path(sessions_path)
        try:
            fd = _fs.open_folder(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            raise WriteError.of(error, trash) from error
        fs = _fs.active()
        try:
            with fs.scandir(fd) as entries:
                doomed = [
                    (entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in entries
                    if entry.name.startswith(layout.DELETING_PREFIX)
                ]
            for name, is_folder in doomed:
                if is_folder:
                    _fs.remove_tree(name, dir_fd=fd)
                else:
                    try:
                        fs.unlink(name, dir_fd=fd)
                    except FileNotFoundError:
                        continue
        except OSError as error:
            raise WriteError.of(error, trash) from error
        finally:
            fs.close(fd)

    @contextmanager
    def _detached(self, folder: SessionFolder, *, force: bool) -> Iterator[tuple[int, str, list[str]]]:
        """Own a session, lock out its writers, and give what a rename out of the sessions folder needs."""
        fs = _fs.active()
        try:
            root_fd = _fs.open_folder(folder.sessions_path)
        except FileNotFoundError:
            raise folder.gone() from None
        except OSError as error:
            raise WriteError.of(error, folder.sessions_path) from error
        try:
            with folder.owned(force=force), folder.step_lock:
                trash = self._ensure_trash(folder.sessions_path)
                try:
                    yield root_fd, trash, self._flats_of(root_fd, folder.id)
                except FileNotFoundError as error:
                    if not _exists(folder.id, root_fd):
                        raise folder.gone() from error
                    raise WriteError.of(error, folder.path) from error
                except OSError as error:
                    raise (
                        error if isinstance(error, WriteError) else WriteError.of(error, folder.path)
                    ) from error
        finally:
            # A holder whose step was refused, or failed, goes on holding.
            if not folder.held_here or not _exists(folder.id, root_fd):
                folder.close()
            fs.close(root_fd)

    @staticmethod
    def _flats_of(root_fd: int, session_id: str) -> list[str]:
        """List flat files that would bring the session back: they go where it goes."""
        with _fs.active().scandir(root_fd) as entries:
            names = [
                e.name
                for e in entries
                if e.name.endswith(layout.FLAT_SUFFIX) and e.is_file(follow_symlinks=False)
            ]
        mine = session_id + layout.FLAT_SUFFIX
        return [n for n in names if n == mine or layout.flat_owner(n, names, {session_id}) == session_id]

    def trash(self, folder: SessionFolder, *, title: str, reason: str, force: bool = False) -> TrashEntry:
        """
        Put a session into the trash, from where ``restore`` gives it back byte for byte.

        Raises as ``delete``.
        """
        with self._detached(folder, force=force) as (root_fd, trash, flats):
            fs = _fs.active()
            record = {
                "version": 1,
                "session_id": folder.id,
                "title": title,
                "deleted_at": time.time(),
                "reason": reason,
                "sessions_path": folder.sessions_path,
                "work_dir": str(self.work_dir),
                "flat_files": flats,
            }
            trash_fd = _fs.open_folder(trash)
            try:
                entry = self._write_sidecar(trash_fd, folder.id, record)
                for name in flats:
                    _fs.ensure_folder(entry + ".flat", dir_fd=trash_fd)
                    flat_fd = _fs.open_folder(entry + ".flat", dir_fd=trash_fd)
                    try:
                        fs.rename(name, name, src_dir_fd=root_fd, dst_dir_fd=flat_fd)
                    finally:
                        fs.close(flat_fd)
                fs.rename(folder.id, entry, src_dir_fd=root_fd, dst_dir_fd=trash_fd)
                _fs.sync_folder_fd(root_fd)
                _fs.sync_folder_fd(trash_fd)
            finally:
                fs.close(trash_fd)
        return TrashEntry(
            folder.id, entry, trash, folder.sessions_path, float(str(record["deleted_at"])), reason, title
        )

    @staticmethod
    def _write_sidecar(trash_fd: int, session_id: str, record: dict[str, Any]) -> str:
        stem = session_id
        if len(os.fsencode(stem)) > _LONGEST_STEM:
            stem = hashlib.sha256(os.fsencode(session_id)).hexdigest()[:32]
        number = 1
        while True:
            entry = f"{stem}~{number}"
            if _exists(entry, trash_fd):
                number += 1
                continue
            try:
                fd = _fs.create_file(entry + ".json", dir_fd=trash_fd)
            except FileExistsError:
                number += 1
                continue
            try:
                _fs.write_all(fd, dump_document(record))
                _fs.active().fsync(fd)
            finally:
                _fs.active().close(fd)
            return entry

    def trashed(self) -> list[TrashEntry]:
        """
        List the sessions in the trash, newest first. Unfinished deletes are not among them.

        Raises WriteError for a trash that is there but can't be looked into.
        """
        found: list[TrashEntry] = []
        for path in self.paths:
            trash = self.trash_path(path)
            try:
                fd = _fs.open_folder(trash)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise WriteError.of(error, trash) from error
            try:
                try:
                    with _fs.active().scandir(fd) as entries:
                        names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
                except OSError as error:
                    raise WriteError.of(error, trash) from error
                found.extend(
                    self._trash_entry(fd, trash, path, name)
                    for name in names
                    if not name.startswith((layout.DELETING_PREFIX, "."))
                    and not name.endswith(".flat")
                    and "~" in name
                )
            finally:
                _fs.active().close(fd)
        return sorted(found, key=lambda entry: (-entry.deleted_at, entry.entry))

    @staticmethod
    def _trash_entry(fd: int, trash: str, sessions_path: str, name: str) -> TrashEntry:
        # Without a note that can be read, the folder itself says enough to bring the session back.
        note = read_document(name + ".json", dir_fd=fd).value or {}

        def text(key: str, default: str) -> str:
            value = note.get(key)
            return value if isinstance(value, str) else default

        return TrashEntry(
            session_id=text("session_id", name.rpartition("~")[0]),
            entry=name,
            trash_path=trash,
            sessions_path=sessions_path,
            deleted_at=sane_time(note.get("deleted_at"), time.time()) or 0.0,
            reason=text("reason", ""),
            title=clean(text("title", "")),
        )

    def restore(self, entry: TrashEntry) -> None:
        """
        Bring a session back from the trash, byte for byte.

        Raises SessionExistsError if its place is taken (nothing changes then), SessionNotFoundError, WriteError.
        """
        self.refuse_taken(entry.session_id)
        fs = _fs.active()
        try:
            trash_fd = _fs.open_folder(entry.trash_path)
        except FileNotFoundError as error:
            raise SessionNotFoundError(session_id=entry.session_id, searched=(entry.trash_path,)) from error
        except OSError as error:
            raise WriteError.of(error, entry.trash_path) from error
        try:
            root_fd = _fs.open_folder(entry.sessions_path)
            try:
                try:
                    fs.rename(entry.entry, entry.session_id, src_dir_fd=trash_fd, dst_dir_fd=root_fd)
                except FileNotFoundError as error:
                    raise SessionNotFoundError(
                        session_id=entry.session_id, searched=(entry.trash_path,)
                    ) from error
                self._restore_flats(entry, trash_fd, root_fd)
                try:
                    fs.unlink(entry.entry + ".json", dir_fd=trash_fd)
                except FileNotFoundError:
                    pass  # the sidecar is only a note
                _fs.sync_folder_fd(root_fd)
                _fs.sync_folder_fd(trash_fd)
            finally:
                fs.close(root_fd)
        except OSError as error:
            raise (
                error if isinstance(error, WriteError) else WriteError.of(error, entry.sessions_path)
            ) from error
        finally:
            fs.close(trash_fd)

    @staticmethod
    def _restore_flats(entry: TrashEntry, trash_fd: int, root_fd: int) -> None:
        fs = _fs.active()
        try:
            flat_fd = _fs.open_folder(entry.entry + ".flat", dir_fd=trash_fd)
        except FileNotFoundError:
            return
        try:
            with fs.scandir(flat_fd) as entries:
                names = [e.name for e in entries]
            for name in names:
                fs.rename(name, name, src_dir_fd=flat_fd, dst_dir_fd=root_fd)
        finally:
            fs.close(flat_fd)
        fs.rmdir(entry.entry + ".flat", dir_fd=trash_fd)

    def empty_trash(self, keep: Callable[[TrashEntry], bool] = lambda _: False) -> int:
        """Remove trashed sessions for good, except those that ``keep`` says to keep; return how many went."""
        count = 0
        for entry in self.trashed():
            if keep(entry):
                continue
            fs = _fs.active()
            try:
                fd = _fs.open_folder(entry.trash_path)
            except OSError as error:
                raise WriteError.of(error, entry.trash_path) from error
            try:
                doomed = f"{layout.DELETING_PREFIX}{secrets.token_hex(8)}"
                fs.rename(entry.entry, doomed, src_dir_fd=fd, dst_dir_fd=fd)
                for name, is_folder in ((entry.entry + ".flat", True), (entry.entry + ".json", False)):
                    if is_folder:
                        _fs.remove_tree(name, dir_fd=fd)
                    elif _exists(name, fd):
                        fs.unlink(name, dir_fd=fd)
            except OSError as error:
                raise WriteError.of(error, entry.trash_path) from error
            finally:
                fs.close(fd)
            self.finish_deletes(entry.sessions_path)
            count += 1
        for path in self.paths:
            self.finish_deletes(path)
        return count


def _read_all(fd: int, path: str, names: list[str], now: float, limit: int | None) -> Iterable[Facts]:
    """Read the facts of sessions, with the catalog where there are many, without it where it can't be had."""
    if len(names) > _MANY:
        from .catalog import listing as catalog_listing
        from .catalog._database import CatalogUnusableError

        try:
            return catalog_listing.list_facts(fd, path, names, now=now, limit=limit)
        except CatalogUnusableError as error:
            _logger().debug("listing %s without the catalog: %s", path, error)
    return (facts for name in names if (facts := facts_of(fd, name, now=now)) is not None)


def _read_one(fd: int, path: str, name: str) -> Facts | None:
    """Read the facts of one session, with the catalog where its log is so long that looking for a prompt takes time."""
    try:
        size = _fs.active().stat(f"{name}/{layout.WIRE}", dir_fd=fd, follow_symlinks=False).st_size
    except OSError:
        size = 0
    if size >= _LONG_BYTES:
        from .catalog import listing as catalog_listing
        from .catalog._database import CatalogUnusableError

        try:
            return catalog_listing.one_facts(fd, path, name)
        except CatalogUnusableError as error:
            _logger().debug("reading %s without the catalog: %s", name, error)
    return read_facts(fd, name)


def _exists(name: str, dir_fd: int) -> bool:
    try:
        _fs.active().stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _same_file(first: str, first_fd: int, second: str, second_fd: int) -> bool:
    fs = _fs.active()
    try:
        one = fs.stat(first, dir_fd=first_fd, follow_symlinks=False)
        two = fs.stat(second, dir_fd=second_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return _fs.identity(one) == _fs.identity(two)


def _logger() -> Any:
    import logging

    return logging.getLogger("kimi_sessions")
