"""
The trash of a work dir's sessions, and the end of a session for good.

    <trash>/<id>~<n>/         a trashed session: its folder, as it was
    <trash>/<id>~<n>.json     when, why and from where; written first, only a note
    <trash>/<id>~<n>.flat/    flat files of an old client that would have brought the session back
    <trash>/deleting~<x>      what is being removed: never listed, never restored, finished by the next delete

A session leaves by one rename, under its locks, and comes back by one. Nothing leaves the trash by itself.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _fs, ids, layout
from ._document import dump_document, read_document
from ._facts import is_empty, sane_time
from ._flats import flats_of
from ._folder import SessionFolder
from ._text import clean
from .errors import (
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    WriteError,
)
from .layout import ProjectLayout

if TYPE_CHECKING:
    from ._store import WorkDirStore

__all__ = ["Trash", "TrashEntry"]

#: A trash entry's name also carries a number and an ending, and 255 bytes is all a name may have.
_LONGEST_STEM = 230


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """
    A session in the trash: where it lies, where it came from, when (epoch seconds) and why it was put there.

    ``entry`` is its name in the trash folder, unique there. ``flats_only`` is True for what is left where a program was
    killed while it put the session there: an old client's flat files, their session still in its place.
    """

    session_id: str
    entry: str
    trash_path: str
    sessions_path: str
    deleted_at: float
    reason: str
    title: str
    flats_only: bool = False


class Trash:
    """The trash of one work dir in one layout, and deletes for good."""

    __slots__ = ("_store",)

    def __init__(self, store: WorkDirStore) -> None:
        self._store = store

    def path_of(self, sessions_path: str) -> str:
        """Return the trash folder that belongs to a sessions folder (a rename away on the same file system)."""
        if isinstance(self._store.layout, ProjectLayout):
            return str(self._store.layout.trash_path(self._store.work_dir))
        share = os.path.dirname(os.path.dirname(sessions_path))
        return os.path.join(share, layout.SHARE_TRASH, os.path.basename(sessions_path))

    def _ensure_trash(self, sessions_path: str) -> str:
        trash = self.path_of(sessions_path)
        try:
            if not isinstance(self._store.layout, ProjectLayout):
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

    def unfinished(self, sessions_path: str) -> list[str]:
        """Return the names in the trash of what earlier deletes began to remove. Raises OSError."""
        try:
            fd = _fs.open_folder(self.path_of(sessions_path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return sorted(name for name, _ in _doomed(fd))
        finally:
            _fs.active().close(fd)

    def finish_deletes(self, sessions_path: str) -> None:
        """Remove what earlier deletes began to remove. Raises WriteError naming what would not go."""
        trash = self.path_of(sessions_path)
        try:
            fd = _fs.open_folder(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            raise WriteError.of(error, trash) from error
        fs = _fs.active()
        try:
            for name, is_folder in _doomed(fd):
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
                    yield root_fd, trash, flats_of(root_fd, folder.id)
                except FileNotFoundError as error:
                    if not _fs.exists(folder.id, dir_fd=root_fd):
                        raise folder.gone() from error
                    raise WriteError.of(error, folder.path) from error
                except WriteError:
                    raise
                except OSError as error:
                    raise WriteError.of(error, folder.path) from error
        finally:
            # A holder whose step was refused, or failed, goes on holding.
            if not (folder.held_here and _may_exist(folder.id, root_fd)):
                folder.close()
            fs.close(root_fd)

    def put(self, folder: SessionFolder, *, title: str, reason: str, force: bool = False) -> TrashEntry:
        """
        Put a session into the trash, from where ``restore`` gives it back byte for byte. Durable when it returns.

        Raises as ``delete``; then the session is where it was, unless it was only the last sync that failed. Flat files
        of its that had moved by then are in the trash, as an entry of their own (``TrashEntry.flats_only``).
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
                "work_dir": str(self._store.work_dir),
                "flat_files": flats,
            }
            trash_fd = _fs.open_folder(trash)
            try:
                entry = self._write_sidecar(trash_fd, folder.id, record)
                moved = False
                try:
                    for name in flats:
                        _fs.ensure_folder(entry + layout.TRASH_FLATS_SUFFIX, dir_fd=trash_fd)
                        flat_fd = _fs.open_folder(entry + layout.TRASH_FLATS_SUFFIX, dir_fd=trash_fd)
                        try:
                            fs.rename(name, name, src_dir_fd=root_fd, dst_dir_fd=flat_fd)
                        finally:
                            fs.close(flat_fd)
                        moved = True
                    fs.rename(folder.id, entry, src_dir_fd=root_fd, dst_dir_fd=trash_fd)
                except BaseException:
                    if not moved:
                        # A note of nothing would be listed nowhere, and never be removed.
                        _fs.remove_if_empty(entry + layout.TRASH_FLATS_SUFFIX, dir_fd=trash_fd)
                        _fs.unlink_if_there(entry + layout.TRASH_NOTE_SUFFIX, trash_fd)
                    raise
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
        if len(os.fsencode(stem)) > _LONGEST_STEM or stem.startswith(layout.DELETING_PREFIX):
            stem = hashlib.sha256(os.fsencode(session_id)).hexdigest()[:32]
        number = 1
        while True:
            entry = f"{stem}~{number}"
            if _fs.exists(entry, dir_fd=trash_fd) or _fs.exists(
                entry + layout.TRASH_FLATS_SUFFIX, dir_fd=trash_fd
            ):
                number += 1
                continue
            try:
                fd = _fs.create_file(entry + layout.TRASH_NOTE_SUFFIX, dir_fd=trash_fd)
            except FileExistsError:
                number += 1
                continue
            try:
                _fs.write_all(fd, dump_document(record))
                _fs.active().fsync(fd)
            except BaseException:
                _fs.unlink_if_there(entry + layout.TRASH_NOTE_SUFFIX, trash_fd)
                raise
            finally:
                _fs.active().close(fd)
            return entry

    def entries(self) -> list[TrashEntry]:
        """
        List the sessions in the trash, newest first. Unfinished deletes are not among them.

        Raises WriteError for a trash that is there but can't be looked into.
        """
        found: list[TrashEntry] = []
        for path in self._store.paths:
            trash = self.path_of(path)
            try:
                fd = _fs.open_folder(trash)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise WriteError.of(error, trash) from error
            try:
                try:
                    with _fs.active().scandir(fd) as entries:
                        names = {e.name for e in entries if e.is_dir(follow_symlinks=False)}
                except OSError as error:
                    raise WriteError.of(error, trash) from error
                for name in names:
                    if name.startswith((layout.DELETING_PREFIX, ".")) or "~" not in name:
                        continue
                    whole = name.removesuffix(layout.TRASH_FLATS_SUFFIX)
                    if whole == name:
                        found.append(self._trash_entry(fd, trash, path, name))
                    elif whole not in names:
                        found.append(self._trash_entry(fd, trash, path, whole, flats_only=True))
            finally:
                _fs.active().close(fd)
        return sorted(found, key=lambda entry: (-entry.deleted_at, entry.entry))

    @staticmethod
    def _trash_entry(
        fd: int, trash: str, sessions_path: str, name: str, *, flats_only: bool = False
    ) -> TrashEntry:
        # Without a note that can be read, the folder itself says enough to bring the session back.
        note = read_document(name + layout.TRASH_NOTE_SUFFIX, dir_fd=fd).value or {}

        def text(key: str, default: str) -> str:
            value = note.get(key)
            return value if isinstance(value, str) else default

        session_id = text("session_id", "")
        if not ids.is_session_id(session_id):
            session_id = name.rpartition("~")[0]  # a note that somebody else wrote
        return TrashEntry(
            session_id=session_id,
            entry=name,
            trash_path=trash,
            sessions_path=sessions_path,
            deleted_at=sane_time(note.get("deleted_at"), time.time()) or 0.0,
            reason=text("reason", ""),
            title=clean(text("title", "")),
            flats_only=flats_only,
        )

    def restore(self, entry: TrashEntry) -> None:
        """
        Bring a session back from the trash, byte for byte.

        Raises SessionExistsError if its place is taken (nothing changes then), SessionNotFoundError, WriteError.
        """
        if not entry.flats_only:
            self._store.refuse_taken(entry.session_id)
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
                if not entry.flats_only:
                    try:
                        fs.rename(entry.entry, entry.session_id, src_dir_fd=trash_fd, dst_dir_fd=root_fd)
                    except FileNotFoundError as error:
                        raise SessionNotFoundError(
                            session_id=entry.session_id, searched=(entry.trash_path,)
                        ) from error
                left = self._restore_flats(entry, trash_fd, root_fd)
                if left and entry.flats_only:
                    taken = os.path.join(entry.sessions_path, left[0])
                    raise SessionExistsError(session_id=entry.session_id, path=taken)
                if not left:
                    try:
                        fs.unlink(entry.entry + layout.TRASH_NOTE_SUFFIX, dir_fd=trash_fd)
                    except FileNotFoundError:
                        pass  # the sidecar is only a note
                _fs.sync_folder_fd(root_fd)
                _fs.sync_folder_fd(trash_fd)
            finally:
                fs.close(root_fd)
        except WriteError:
            raise
        except OSError as error:
            raise WriteError.of(error, entry.sessions_path) from error
        finally:
            fs.close(trash_fd)

    @staticmethod
    def _restore_flats(entry: TrashEntry, trash_fd: int, root_fd: int) -> list[str]:
        """Bring back the flat files of an entry; return those that stay, because their names are taken."""
        fs = _fs.active()
        try:
            flat_fd = _fs.open_folder(entry.entry + layout.TRASH_FLATS_SUFFIX, dir_fd=trash_fd)
        except FileNotFoundError:
            return []
        left = []
        try:
            with fs.scandir(flat_fd) as entries:
                names = sorted(e.name for e in entries)
            for name in names:
                # What an old client wrote under this name meanwhile stays where it is, and so does ours.
                if _fs.exists(name, dir_fd=root_fd):
                    left.append(name)
                else:
                    fs.rename(name, name, src_dir_fd=flat_fd, dst_dir_fd=root_fd)
        finally:
            fs.close(flat_fd)
        _fs.remove_if_empty(entry.entry + layout.TRASH_FLATS_SUFFIX, dir_fd=trash_fd)
        return left

    def empty(self, keep: Callable[[TrashEntry], bool] = lambda _: False) -> int:
        """Remove trashed sessions for good, except those that ``keep`` says to keep; return how many went."""
        count = 0
        for entry in self.entries():
            if keep(entry):
                continue
            fs = _fs.active()
            try:
                fd = _fs.open_folder(entry.trash_path)
            except OSError as error:
                raise WriteError.of(error, entry.trash_path) from error
            try:
                doomed = f"{layout.DELETING_PREFIX}{secrets.token_hex(8)}"
                if not entry.flats_only:
                    fs.rename(entry.entry, doomed, src_dir_fd=fd, dst_dir_fd=fd)
                _fs.remove_tree(entry.entry + layout.TRASH_FLATS_SUFFIX, dir_fd=fd)
                note = entry.entry + layout.TRASH_NOTE_SUFFIX
                if _fs.exists(note, dir_fd=fd):
                    fs.unlink(note, dir_fd=fd)
            except OSError as error:
                raise WriteError.of(error, entry.trash_path) from error
            finally:
                fs.close(fd)
            self.finish_deletes(entry.sessions_path)
            count += 1
        for path in self._store.paths:
            self.finish_deletes(path)
        return count


def _doomed(trash_fd: int) -> list[tuple[str, bool]]:
    """Return what is being removed: name, and whether it is a folder."""
    with _fs.active().scandir(trash_fd) as entries:
        return [
            (entry.name, entry.is_dir(follow_symlinks=False))
            for entry in entries
            if entry.name.startswith(layout.DELETING_PREFIX)
        ]


def _may_exist(name: str, dir_fd: int) -> bool:
    try:
        return _fs.exists(name, dir_fd=dir_fd)
    except OSError:
        return True
