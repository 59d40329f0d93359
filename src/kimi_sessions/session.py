"""
One open session, and the verbs that make, find, list, continue and remove sessions.

A ``Session`` pairs an identity that never changes with a state that does. It is made from a few facts; its state, its
logs and its paths come into being when they are first used, so a list of ten thousand is cheap. Every verb works on
both layouts. What lies on disk, and how it gets there, is the store's business; this room is the asynchronous skin
and the meaning: titles, trust, the last session, reload before save.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _facts, _fs, ids, metadata
from . import layout as _layout
from ._async import answered, in_thread
from ._document import Document, move_aside, read_document, update_document
from ._folder import SessionFolder
from ._log import logger
from ._store import GIT_DELETES, Listing, Located, WorkDirStore
from ._text import clean
from ._trash import TrashEntry
from .errors import (
    AmbiguousIdError,
    InvalidIdError,
    NotFoundError,
    SessionNotFoundError,
    SessionsError,
    UntrustedSessionError,
    WriteError,
)
from .findings import Finding
from .layout import Layout, ProjectLayout, work_dir_path
from .metadata import WorkDirMeta
from .trust import Verdict, approvals_of, mask_approvals

if TYPE_CHECKING:
    from ._append_log import AppendLog, Durability
    from ._appender import Appender
    from .context.file import ContextFile
    from .state import SessionState
    from .wire.file import WireFile
    from .wire.turns import Turn

__all__ = ["LAST", "Session", "SessionList", "TrashEntry", "choose"]

#: What stands for the last session where an id is asked for.
LAST = "@last"
_TITLE_LIMIT = 200
#: ``Session.list`` hides the built-in inside the class.
_List = list


class SessionList(list["Session"]):
    """Sessions, newest first, with what was found wrong with the store they came from (``problems``)."""

    __slots__ = ("problems",)

    def __init__(self, sessions: Iterable[Session] = (), problems: Iterable[Finding] = ()) -> None:
        super().__init__(sessions)
        self.problems: list[Finding] = list(problems)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Session:
    """
    One session of one work dir.

    Attributes:
        title: what a list shows; never the id.
        updated_at: epoch seconds of the last activity.

    Fixed for life are ``id``, ``work_dir``, ``work_dir_meta``, ``context_file``, ``wire_file`` and ``context``;
    ``state`` may be changed and is written by ``save_state``. Get one from ``create``, ``find``, ``open``, ``list`` or
    ``continue_``.
    """

    title: str
    updated_at: float
    _store: WorkDirStore
    _found: _facts.Facts
    _sessions_path: str
    _known: bool = True
    _kaos: str = _layout.LOCAL_KAOS
    _folder_made: SessionFolder | None = field(default=None, init=False)
    _state: SessionState | None = field(default=None, init=False)
    _base: dict[str, Any] = field(default_factory=dict, init=False)
    _durability: Durability = field(default="os", init=False)
    _appenders: list[Appender] = field(default_factory=list, init=False)
    _wire: WireFile | None = field(default=None, init=False)
    _context: ContextFile | None = field(default=None, init=False)
    _meta: WorkDirMeta | None = field(default=None, init=False)
    _verdict: Verdict | None = field(default=None, init=False)
    _created_at: float | None = field(default=None, init=False)
    _used: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, title={self.title!r}, work_dir={str(self.work_dir)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    # --- identity ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id: the name of its folder."""
        return self._found.id

    @property
    def work_dir(self) -> Path:
        """
        The work dir, in the spelling it was asked for.

        Where no registry names it (``work_dir_known`` is False) this is the folder that holds its sessions.
        """
        return self._store.work_dir

    @property
    def work_dir_known(self) -> bool:
        """False for a session of a share folder whose work dir no registry names."""
        return self._known

    @property
    def work_dir_key(self) -> str:
        """The name of the folder that holds this work dir's sessions in Kimi CLI's layout."""
        if isinstance(self._store.layout, ProjectLayout):
            return _layout.work_dir_key(str(self._store.work_dir))
        return os.path.basename(self._sessions_path)

    @property
    def work_dir_meta(self) -> WorkDirMeta:
        """The work dir's registry entry as it was when this was first asked for."""
        if self._meta is None:
            self._meta = metadata.load_work_dir_meta(
                self._store.layout, self._store.work_dir, self._store.resolved
            )
        return self._meta

    @property
    def layout(self) -> Layout:
        """The layout the session lies in."""
        return self._store.layout

    @property
    def _path(self) -> str:
        return os.path.join(self._sessions_path, self._found.id)

    @property
    def path(self) -> Path:
        """The session's folder; arithmetic, nothing is made."""
        return Path(self._path)

    @property
    def context_file(self) -> Path:
        """Path of the context log."""
        return Path(self._context_path)

    @property
    def _context_path(self) -> str:
        flat = self._found.flat
        return os.path.join(self._sessions_path, flat) if flat else os.path.join(self._path, _layout.CONTEXT)

    @property
    def dir(self) -> Path:
        """
        The session's folder, which is there when this returns.

        Raises SessionNotFoundError if the session was deleted: nothing deleted comes back.
        """
        if not os.path.isdir(self._path):
            raise self._folder.gone()
        return Path(self._path)

    @property
    def subagents_dir(self) -> Path:
        """The folder of subagents, made if it is not there. Raises SessionNotFoundError, WriteError."""
        with self._folder.opened() as fd:
            try:
                _fs.ensure_folder(_layout.SUBAGENTS, dir_fd=fd)
            except OSError as error:
                raise WriteError.of(error, self._path) from error
        return Path(self._path, _layout.SUBAGENTS)

    @property
    def _folder(self) -> SessionFolder:
        if self._folder_made is None:
            self._folder_made = SessionFolder(self._found.id, self._sessions_path, self._found)
        return self._folder_made

    # --- facts ---------------------------------------------------------------------------------------------------

    @property
    def created_at(self) -> float:
        """Epoch seconds: session.json's, else the first wire record's, else the context's mtime."""
        if self._created_at is None:
            try:
                fd = _fs.open_folder(self._sessions_path)
            except OSError:
                return 0.0
            try:
                self._created_at = _facts.created_at(fd, self._found.id, self._found.extra, time.time())
            finally:
                _fs.active().close(fd)
        return self._created_at

    @property
    def archived(self) -> bool:
        """True if the session is archived, by its state as loaded or as changed since."""
        if self._state is not None:
            return self._state.archived
        return self._found.state.get("archived") is True

    @property
    def empty(self) -> bool:
        """True if the session was empty when it was found; ``is_empty()`` looks again."""
        return self._found.empty

    @property
    def tags(self) -> tuple[str, ...]:
        """The session's tags, sorted."""
        tags = self._found.extra.get("tags")
        return tuple(sorted(tag for tag in tags if isinstance(tag, str))) if isinstance(tags, list) else ()

    @property
    def pinned(self) -> bool:
        """True if the session is pinned."""
        return self._found.extra.get("pinned") is True

    @property
    def parent(self) -> dict[str, Any] | None:
        """Where a fork came from: ``{"session_id": …, "turn_index": …}``; None for a session that is no fork."""
        parent = self._found.extra.get("parent")
        return dict(parent) if isinstance(parent, dict) else None

    @property
    def trusted(self) -> bool:
        """
        True if this user sealed the session (always so in Kimi CLI's own share dir).

        An untrusted one may have come with a cloned repository: its approvals read as none.
        """
        return self._judged.trusted

    @property
    def claimed_approvals(self) -> dict[str, Any]:
        """
        What the session's state, as it was read, would allow without asking: what ``trust`` would seal.

        Not what is in force: of an untrusted session ``state`` has the defaults instead. The values are the file's
        own, of whatever type.
        """
        state = self._found.state
        approval = state.get("approval")
        allowed = approval if isinstance(approval, dict) else {}
        return {
            "yolo": allowed.get("yolo", False),
            "afk": allowed.get("afk", False),
            "auto_approve_actions": allowed.get("auto_approve_actions", []),
            "additional_dirs": state.get("additional_dirs", []),
        }

    @property
    def _judged(self) -> Verdict:
        if self._verdict is None:
            self._verdict = self._store.verdict(self._found, self._sessions_path)
        return self._verdict

    @property
    def problems(self) -> _List[Finding]:
        """What was found wrong in what was read so far; the whole check is ``check``'s."""
        problems = list(self._found.problems)
        if self._store.layout.sealed and self._judged.problem:
            problems.append(
                Finding("untrusted" if not self.trusted else "approvals", _layout.SEAL, self._judged.problem)
            )
        return problems

    def is_empty(self) -> bool:
        """
        True if there is nothing in the session, on disk or in this object's state: no title, no record, no upload.

        A file that can't be read counts as something.
        """
        if self._state is not None and self._state.custom_title:
            return False
        try:
            fd = _fs.open_folder(self._sessions_path)
        except OSError:
            return True
        try:
            return _facts.is_empty(fd, self._found.id)
        finally:
            _fs.active().close(fd)

    def first_words(self) -> str:
        """
        Return the beginning of what was said first, cut like a title; "" if nothing is known to be a user's words.

        From the contexts, the oldest first: for sessions of clients up to 0.58, which wrote no wire log and so are all
        called "Untitled". Reads no more than it takes; what can't be read says nothing.
        """
        try:
            fd = _fs.open_folder(self._sessions_path)
        except OSError:
            return ""
        try:
            return _facts.first_words(fd, self._found.id, self._found.flat)
        finally:
            _fs.active().close(fd)

    # --- logs ----------------------------------------------------------------------------------------------------

    @property
    def durability(self) -> Durability:
        """
        What an append to its logs waits for: ``"os"``, the operating system, or ``"disk"``, the device.

        It can be set at any time and counts from the next append on. Any other value raises ValueError.
        """
        return self._durability

    @durability.setter
    def durability(self, value: Durability) -> None:
        from ._appender import checked_durability

        self._durability = checked_durability(value)
        for appender in self._appenders:
            appender.set_durability(value)

    def _appender_of(self, log: AppendLog) -> Appender:
        from ._appender import Appender

        appender = Appender(log, durability=self._durability, on_first=self._after_first_append)
        self._appenders.append(appender)
        return appender

    @property
    def wire_file(self) -> WireFile:
        """The wire log, bound to this session's locks."""
        if self._wire is None:
            from ._append_log import AppendLog
            from .wire.file import WireFile
            from .wire.records import WireFileMetadata

            folder = self._folder
            path = os.path.join(self._path, _layout.WIRE)
            log = AppendLog(path, lock=folder.step_lock, header=WireFileMetadata().to_line() + b"\n")
            self._wire = WireFile.bound(Path(path), self._appender_of(log))
        return self._wire

    @property
    def context(self) -> ContextFile:
        """The context log, bound to this session's locks."""
        if self._context is None:
            from ._append_log import AppendLog
            from .context.file import ContextFile

            folder = self._folder
            path = self._context_path
            log = AppendLog(path, lock=folder.step_lock)
            self._context = ContextFile.bound(Path(path), self._appender_of(log), folder.owned)
        return self._context

    @property
    def _is_registered_here(self) -> bool:
        """False where what stands for the work dir must not get into a registry: unknown, or on another machine."""
        return self._known and self._kaos == _layout.LOCAL_KAOS

    def _register(self) -> None:
        if self._is_registered_here:
            self._store.register()

    def _after_first_append(self) -> None:
        """Record this session as the last one. The record itself is written; failing here must not unsay that."""
        if self._used:
            return
        self._used = True
        try:
            self.mark_last()
            self._register()
        except SessionsError as error:
            logger().warning(
                "session %s is written, but could not be recorded as the last one: %s", self.id, error
            )

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """The mutable state. Change it, then ``save_state()``."""
        return self._state if self._state is not None else self._take_state(self._found.state)

    @state.setter
    def state(self, value: SessionState) -> None:
        if self._state is None:
            self._take_state(self._found.state)
        self._state = value

    def _take_state(self, document: dict[str, Any]) -> SessionState:
        """Make a document, as loaded or as just saved, the state and its base."""
        from .state import dump_state, parse_state

        verdict = self._judged
        masked = document if verdict.trusted and verdict.approvals_ok else mask_approvals(document)
        state, bad = parse_state(masked)
        for name in bad:
            finding = Finding(
                "bad-field", _layout.STATE, f"{name} has no usable value; its default stands in"
            )
            if finding not in self._found.problems:
                self._found.problems.append(finding)
        self._state = state
        self._base = dump_state(state)
        return state

    def save_state(self) -> None:
        """
        Write the state: reload what is on disk, merge three ways, replace the file whole.

        What this object changed since it loaded is its own, all else is the disk's, unknown fields stay. Afterwards
        ``state`` is the merged result. Durable when it returns.

        Raises SessionNotFoundError, SessionBusyError, WriteError.
        """
        from ._state_merge import merge_state
        from .state import dump_state

        mine = dump_state(self.state)
        base = self._base
        self._save(lambda disk: merge_state(base, mine, disk), fallback=base)

    def _save(
        self,
        merge: Callable[[dict[str, Any]], dict[str, Any]],
        *,
        fallback: dict[str, Any],
    ) -> None:
        from ._state_merge import keep_approvals, merge_legacy_metadata

        folder = self._folder
        sealed = self._store.layout.sealed
        believed = sealed and self._state is not None and self._judged.trusted and self._judged.approvals_ok
        with folder.step() as fd:
            legacy = read_document(_layout.METADATA, dir_fd=fd)
            saved: dict[str, Any] = {}

            def change(document: Document) -> dict[str, Any] | None:
                nonlocal saved
                disk = dict(document.value) if document.value is not None else dict(fallback)
                if legacy.value is not None:
                    disk, _ = merge_legacy_metadata(disk, legacy.value)
                merged = merge(disk)
                if sealed:
                    verdict = self._store.verdict_at(fd, self.id, document.value or {})
                    if not (verdict.trusted and verdict.approvals_ok):
                        if believed and approvals_of(merged) != approvals_of(disk):
                            # Dropping what the user allowed, and saying it was saved, would be worse.
                            raise WriteError(
                                path=os.path.join(self._path, _layout.STATE),
                                reason=f"what the session may do can't be saved now: {verdict.problem}",
                            )
                        merged = keep_approvals(merged, disk)
                    elif approvals_of(merged) != approvals_of(disk):
                        # Both are held while the file changes, so that a crash in between locks nobody out.
                        problems = self._store.seal(self.id, fd, merged, also=disk)
                        verdict = self._store.verdict_at(fd, self.id, merged)
                        if not (verdict.trusted and verdict.approvals_ok):
                            # Written without a seal, they would read as none.
                            raise WriteError(
                                path=os.path.join(self._path, _layout.SEAL),
                                reason="; ".join(str(each) for each in problems) or verdict.problem,
                            )
                saved = merged
                return None if document.value == merged and document.whole else merged

            written = update_document(_layout.STATE, change, dir_fd=fd, folder=self._path)
            if sealed and written is not None:
                verdict = self._store.verdict_at(fd, self.id, saved)
                if verdict.trusted and verdict.approvals_ok:
                    self._store.seal(self.id, fd, saved)
            if legacy.value is not None:
                move_aside(_layout.METADATA, _layout.METADATA_MERGED, dir_fd=fd)
        self._verdict = None
        self._found.state = saved
        self._take_state(saved)
        self._retitle()

    def _edit(self, **changes: Any) -> None:
        """Write some fields of the state, leaving unsaved changes of others unsaved."""
        from .state import dump_state

        pending = None
        if self._state is not None:
            now = dump_state(self._state)
            pending = {
                key: value
                for key, value in now.items()
                if value != self._base.get(key) and key not in changes
            }
        self._save(lambda disk: disk | changes, fallback=self._base or dict(self._found.state))
        if pending:
            for key, value in pending.items():
                setattr(self.state, key, type(self.state).model_validate({key: value}).__getattribute__(key))

    def _retitle(self) -> None:
        custom = (
            self._state.custom_title if self._state is not None else self._found.state.get("custom_title")
        )
        shown = clean(custom) if isinstance(custom, str) else ""
        if shown:
            self.title = shown

    async def refresh(self) -> None:
        """
        Look at the disk again: state (unsaved changes of this object stay), title, time, problems.

        Raises SessionNotFoundError if the session is gone.
        """
        located = await in_thread(self._store.locate, self.id)
        if located is None:
            raise self._folder.gone()
        mine: dict[str, Any] | None = None
        base = self._base
        if self._state is not None:
            from .state import dump_state

            mine = dump_state(self._state)
        self._found = located.facts
        self._verdict = None
        self._created_at = None
        self.updated_at = located.facts.updated_at
        self.title = located.facts.title
        if mine is not None:
            from ._state_merge import merge_state
            from .state import parse_state

            self._take_state(located.facts.state)
            if mine != base:
                self._state, _ = parse_state(merge_state(base, mine, self._base))
            self._retitle()

    async def rename(self, title: str) -> None:
        """
        Give the session a title of a person's choosing; no automatic one replaces it. Durable when it returns.

        White space is collapsed, and at most 200 characters are kept. Raises ValueError for a title with no text.
        """
        text = " ".join(clean(title).split())[:_TITLE_LIMIT].rstrip()
        if not text:
            message = "a title needs some text"
            raise ValueError(message)
        await in_thread(self._edit, custom_title=text, title_generated=True)
        self.title = text

    async def archive(self) -> None:
        """Hide the session from ordinary lists. It can still be found, read, forked and continued by its id."""
        await in_thread(self._edit, archived=True, archived_at=time.time(), auto_archive_exempt=False)

    async def unarchive(self) -> None:
        """Bring an archived session back; automatic archiving passes it over from now on."""
        await in_thread(self._edit, archived=False, archived_at=None, auto_archive_exempt=True)

    # --- our own facts beside the client's -----------------------------------------------------------------------

    def _edit_extra(self, change: Callable[[dict[str, Any]], None]) -> None:
        folder = self._folder
        saved: dict[str, Any] = {}

        def apply(document: Document) -> dict[str, Any] | None:
            nonlocal saved
            value = (
                dict(document.value) if document.value is not None else {"version": 1, **self._found.extra}
            )
            change(value)
            saved = value
            return None if value == document.value else value

        with folder.step() as fd:
            update_document(_layout.SESSION, apply, dir_fd=fd, folder=self._path)
        self._found.extra = saved

    async def tag(self, *tags: str) -> None:
        """Add tags. A tagged session is not empty."""
        for tag in tags:
            if not isinstance(tag, str):
                message = f"a tag is text, not {type(tag).__name__}"
                raise TypeError(message)
        wanted = {" ".join(clean(tag).split()) for tag in tags}
        if "" in wanted:
            message = "a tag needs some text"
            raise ValueError(message)

        def change(value: dict[str, Any]) -> None:
            value["tags"] = sorted({*_strings(value.get("tags")), *wanted})

        await in_thread(self._edit_extra, change)

    async def untag(self, *tags: str) -> None:
        """Take tags away; ones that are not there are passed over."""

        def change(value: dict[str, Any]) -> None:
            value["tags"] = sorted({*_strings(value.get("tags"))} - set(tags))

        await in_thread(self._edit_extra, change)

    async def pin(self, pinned: bool = True) -> None:
        """Mark the session as one to keep at hand, or unmark it."""

        def change(value: dict[str, Any]) -> None:
            value["pinned"] = bool(pinned)

        await in_thread(self._edit_extra, change)

    # --- use -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, program: str | None = None) -> AsyncIterator[Session]:
        """
        Own the session while the block runs: a second owner, a delete or a rewrite by others is refused.

        Others' short steps (append, rename, archive) still pass, and if this process dies the hold is free at once.
        Raises SessionBusyError naming the holder, SessionNotFoundError, WriteError.
        """
        lock = self._folder.hold_lock
        lock.take(program)
        try:
            await in_thread(self._after_first_append)
            yield self
        finally:
            lock.give_back()

    def mark_last(self) -> None:
        """Record this session as its work dir's last one: what ``continue_`` gives. Raises WriteError."""
        if self._is_registered_here:
            store = self._store
            metadata.set_last_session_id(store.layout, store.work_dir, store.resolved, self.id)
            self._meta = None

    def _unmark_last(self) -> None:
        """Forget a session that is gone as the last one. An id that stays leads nowhere, so failing is no error."""
        if self._is_registered_here:
            store = self._store
            try:
                metadata.set_last_session_id(
                    store.layout, store.work_dir, store.resolved, None, only_if=self.id
                )
            except SessionsError as error:
                logger().warning(
                    "session %s is gone, but is still recorded as the last one: %s", self.id, error
                )

    async def close(self, ok: bool = True) -> None:
        """
        End a run as the old client does: a session that is empty on disk is discarded, else it is the last one.

        With ``ok`` False (the run failed) a session with content is left as it is and not made the last one.
        """
        await in_thread(self._close, ok)

    def _close(self, ok: bool) -> None:
        try:
            discarded = self._store.trash.discard_if_empty(self._folder)
        except NotFoundError:
            discarded = True
        if discarded:
            self._unmark_last()
        elif ok:
            self.mark_last()
        self._let_go()

    def _let_go(self) -> None:
        """Close descriptors; the objects stay usable and open them again."""
        for log in (self._wire, self._context):
            if log is not None:
                log.close()
        if self._folder_made is not None and not self._folder_made.held_here:
            self._folder_made.close()

    async def turns(self) -> _List[Turn]:
        """Return the turns of the wire log, in order. Memory grows with the number of turns, not with the log."""
        from .catalog.turns import session_turns

        return await in_thread(session_turns, self._sessions_path, self._found.id)

    async def fork(self, turn_index: int | None = None, *, title: str | None = None) -> Session:
        """
        Make a new session from turns 0 to ``turn_index`` (inclusive) of this one; None takes everything.

        Both logs are cut at the same turn. This session stays byte-identical; the new one records its parent, is
        complete before it can be seen, and is sealed as this user's own.

        Raises InvalidTurnError (nothing is left behind), SessionNotFoundError, WriteError.
        """
        return await in_thread(self._fork, turn_index, title)

    def _fork(self, turn_index: int | None, title: str | None) -> Session:
        from .fork import fork_in_store, fork_title

        facts, path, problems = fork_in_store(
            self._store,
            self._path,
            turn_index=turn_index,
            title=fork_title(self._title_now()) if title is None else title,
            register=self._is_registered_here,
        )
        facts.problems.extend(problems)
        return self._sibling(Located(facts, path))

    def _title_now(self) -> str:
        """Return the title with what was said since this object was made, unless the program gave one itself."""
        if self.title != self._found.title:
            return self.title
        located = self._store.locate(self.id)
        return self.title if located is None else located.facts.title

    def _sibling(self, located: Located) -> Session:
        return session_of(self._store, located, known=self._known, kaos=self._kaos)

    # --- end -----------------------------------------------------------------------------------------------------

    async def delete(self, force: bool = False) -> None:
        """
        Remove the session for good. A crash leaves it whole or gone; whoever still has it open can't bring it back.

        Raises SessionBusyError if another program holds it (unless ``force``), SessionNotFoundError, WriteError.
        """
        await in_thread(self._delete, force)

    def _delete(self, force: bool) -> None:
        self._let_go()
        self._store.trash.delete(self._folder, force=force)
        self._unmark_last()
        _forget(self._sessions_path, self.id)

    async def trash(self, reason: str = "", *, force: bool = False) -> None:
        """Put the session into the trash; ``Session.restore`` gives it back byte for byte. Raises as ``delete``."""
        await in_thread(self._trash, reason, force)

    def _trash(self, reason: str, force: bool) -> None:
        self._let_go()
        self._store.trash.put(self._folder, title=self._title_now(), reason=reason, force=force)
        self._unmark_last()
        _forget(self._sessions_path, self.id)

    # --- verbs on a work dir -------------------------------------------------------------------------------------

    @staticmethod
    async def create(
        work_dir: object, session_id: str | None = None, *, layout: Layout | None = None
    ) -> Session:
        """
        Make a new, empty session and return it. It is on disk, private, and durable when this returns.

        Raises InvalidIdError before any file is touched; WorkDirNotFoundError; SessionExistsError if the id is taken
        (nothing is ever truncated); WriteError (nothing is left behind).
        """
        new_id = ids.new_session_id() if session_id is None else ids.parse_new_session_id(session_id)
        store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
        facts, path, problems = await in_thread(store.create, new_id)
        facts.problems.extend(problems)
        if store.is_linked_worktree():
            logger().warning("%s is a linked git worktree: %s", store.work_dir, GIT_DELETES)
        return session_of(store, Located(facts, path))

    @staticmethod
    async def find(work_dir: object, session_id: str, *, layout: Layout | None = None) -> Session | None:
        """Return the session of this id, None if there is none. Raises InvalidIdError before any file is touched."""
        wanted = ids.parse_session_id(session_id)
        store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
        located = store.locate_at_once(wanted)
        if located is None:
            located = await in_thread(store.locate, wanted)
        return None if located is None else session_of(store, located)

    @staticmethod
    async def open(work_dir: object, text: str, *, layout: Layout | None = None) -> Session:
        """
        Return the session that a person means by ``text``: a whole id, a unique prefix, or ``@last``.

        Raises SessionNotFoundError (with near matches), AmbiguousIdError, InvalidIdError.
        """
        if text == LAST:
            last = await Session.continue_(work_dir, layout=layout, allow_untrusted=True)
            if last is None:
                raise SessionNotFoundError(session_id=LAST, searched=(str(work_dir_path(work_dir)),))
            return last
        found = await Session.find(work_dir, text, layout=layout)
        if found is not None:
            return found
        sessions = await Session.list(work_dir, layout=layout, include_empty=True)
        return choose(text, sessions, str(work_dir_path(work_dir)))

    @staticmethod
    async def list(
        work_dir: object,
        *,
        layout: Layout | None = None,
        include_empty: bool = False,
        limit: int | None = None,
    ) -> SessionList:
        """
        Return the sessions of a work dir, newest first, ties by id; archived ones are included.

        Never raises because of one session: a damaged one is listed with its ``problems``. The list's own
        ``problems`` tell what is wrong with the store.
        """
        store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
        stores = [(store, store.is_named, _layout.LOCAL_KAOS)]
        return await answered(lambda rest: _list(stores, include_empty, limit, rest))

    @staticmethod
    async def list_all(
        *, layout: Layout | None = None, include_empty: bool = False, limit: int | None = None
    ) -> SessionList:
        """Return the sessions of every known work dir, also of ones that are gone, newest first."""
        which = layout or ProjectLayout()
        return await answered(lambda rest: _list_all(which, include_empty, limit, rest))

    @staticmethod
    async def continue_(
        work_dir: object, *, layout: Layout | None = None, allow_untrusted: bool = False
    ) -> Session | None:
        """
        Return the session to go on with: the recorded last one if it is there, else the newest that is not empty.

        Archived and untrusted sessions are passed over. Raises UntrustedSessionError if an untrusted one is all there
        is (``allow_untrusted`` returns it instead).
        """
        store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
        session = _last_at_once(store)
        if session is not None:
            return session
        return await answered(lambda rest: _continue(store, allow_untrusted, rest))

    @staticmethod
    async def restore(work_dir: object, session_id: str, *, layout: Layout | None = None) -> Session:
        """
        Bring back the session of this id that was trashed last, byte for byte.

        Raises SessionNotFoundError, SessionExistsError (its place is taken), WriteError.
        """
        wanted = ids.parse_session_id(session_id)
        store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
        return await in_thread(_restore, store, wanted)

    @staticmethod
    async def list_trash(work_dir: object, *, layout: Layout | None = None) -> _List[TrashEntry]:
        """Return what is in the trash of a work dir, newest first."""
        store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
        return await in_thread(store.trash.entries)

    @staticmethod
    async def empty_trash(
        work_dir: object,
        session_id: str | None = None,
        *,
        layout: Layout | None = None,
        older_than_s: float | None = None,
    ) -> int:
        """
        Remove trashed sessions for good and return how many went; only those of ``session_id``, or trashed longer
        than ``older_than_s`` seconds ago, if given.
        """
        wanted = None if session_id is None else ids.parse_session_id(session_id)
        store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
        now = time.time()

        def keep(entry: TrashEntry) -> bool:
            if wanted is not None and entry.session_id != wanted:
                return True
            return older_than_s is not None and now - entry.deleted_at < older_than_s

        return await in_thread(store.trash.empty, keep)

    async def trust(self) -> None:
        """
        Seal the session as this user's own, with the approvals that ``claimed_approvals`` shows: look at them first.

        Raises SessionNotFoundError; WriteError, also if the disk holds other ones by now (``refresh`` reads them).
        """
        await in_thread(self._trust)

    def _trust(self) -> None:
        folder = self._folder
        with folder.step() as fd:
            document = read_document(_layout.STATE, dir_fd=fd)
            # What this user's own program changed meanwhile is sealed already.
            if (
                approvals_of(document.value) != approvals_of(self._found.state)
                and not self._store.verdict_at(fd, self.id, document.value or {}).approvals_ok
            ):
                raise WriteError(
                    path=os.path.join(self._path, _layout.STATE),
                    reason="what it would allow changed since it was looked at; nothing was sealed",
                )
            # The seal names the store, so a store that came without a name of its own gets one first.
            if self._store.layout.sealed:
                metadata.ensure_store(self._store.layout, self._store.work_dir, self._store.resolved)
            self._register()
            problems = self._store.seal(self.id, fd, document.value or {})
        if problems:
            raise WriteError(path=os.path.join(self._path, _layout.SEAL), reason=problems[0].reason)
        self._verdict = None
        self._found.state = document.value or {}
        self._state = None


class Inside(NamedTuple):
    """What a session object is made of, for the rooms that treat sessions from outside (check, repair)."""

    store: WorkDirStore
    folder: SessionFolder
    found: _facts.Facts


def inside(session: Session) -> Inside:
    """Return what a session object is made of; opens nothing. The facts are those of when it was last found."""
    return Inside(session._store, session._folder, session._found)


def session_of(
    store: WorkDirStore, located: Located, *, known: bool | None = None, kaos: str = _layout.LOCAL_KAOS
) -> Session:
    """Make the session object of what was found; ``known`` says, unless the store does, if its work dir is known."""
    facts = located.facts
    return Session(
        title=facts.title,
        updated_at=facts.updated_at,
        _store=store,
        _found=facts,
        _sessions_path=located.sessions_path,
        _known=store.is_named if known is None else known,
        _kaos=kaos,
    )


def _list(
    stores: list[tuple[WorkDirStore, bool, str]],
    include_empty: bool,
    limit: int | None,
    rest: list[Callable[[], None]],
) -> SessionList:
    """List sessions; put into ``rest`` what may be done when the answer was given."""
    found: list[tuple[float, str, int, Located]] = []
    problems: list[Finding] = []
    for index, (store, _, _) in enumerate(stores):
        listing: Listing = store.scan(limit)
        problems.extend(listing.problems)
        rest.extend(listing.rest)
        for located in listing.located:
            facts = located.facts
            if include_empty or not facts.empty:
                found.append((-facts.updated_at, facts.id, index, located))
    # One store has one session of an id: no two are told apart by what stands last.
    found.sort()
    if limit is not None:
        found = found[: max(limit, 0)]
    sessions = []
    for _, _, index, located in found:
        store, known, kaos = stores[index]
        sessions.append(session_of(store, located, known=known, kaos=kaos))
    return SessionList(sessions, problems)


def _list_all(
    layout_: Layout, include_empty: bool, limit: int | None, rest: list[Callable[[], None]]
) -> SessionList:
    known, texts = metadata.known_work_dirs(layout_)
    stores = []
    for entry in known:
        sessions_path = entry.sessions_path
        store = WorkDirStore(layout_, entry.path or sessions_path, sessions_path=sessions_path)
        stores.append((store, entry.path is not None, entry.kaos))
    sessions = _list(stores, include_empty, limit, rest)
    sessions.problems.extend(Finding("registry", "", text) for text in texts)
    return sessions


def _last_at_once(store: WorkDirStore) -> Session | None:
    """Return the recorded last session if it is plainly the one to go on with; None says that it takes a look."""
    last_id = metadata.load_work_dir_meta(
        store.layout, store.work_dir, lambda: store.resolved
    ).last_session_id
    located = None if last_id is None else store.locate_at_once(last_id)
    if located is None:
        return None
    session = session_of(store, located)
    return session if not session.archived and session.trusted else None


def _continue(store: WorkDirStore, allow_untrusted: bool, rest: list[Callable[[], None]]) -> Session | None:
    untrusted: Session | None = None
    last_id = metadata.load_work_dir_meta(
        store.layout, store.work_dir, lambda: store.resolved
    ).last_session_id
    if last_id is not None:
        located = store.locate(last_id)
        if located is not None:
            session = session_of(store, located)
            if not session.archived:
                if session.trusted or allow_untrusted:
                    return session
                untrusted = session
    sessions = _list([(store, store.is_named, _layout.LOCAL_KAOS)], False, None, rest)
    for session in sessions:
        if session.archived:
            continue
        if session.trusted or allow_untrusted:
            return session
        if untrusted is None:
            untrusted = session
    if untrusted is not None:
        raise UntrustedSessionError(session_id=untrusted.id, path=str(untrusted.path))
    return None


def _restore(store: WorkDirStore, session_id: str) -> Session:
    entries = [entry for entry in store.trash.entries() if entry.session_id == session_id]
    if not entries:
        raise SessionNotFoundError(
            session_id=session_id, searched=tuple(map(store.trash.path_of, store.paths))
        )
    store.trash.restore(entries[0])
    located = store.locate(session_id)
    if located is None:
        raise SessionNotFoundError(session_id=session_id, searched=store.paths)
    return session_of(store, located)


def choose(text: str, sessions: Iterable[Session], searched: str) -> Session:
    """
    Return the one session whose id is ``text`` or starts with it.

    Raises AmbiguousIdError, or SessionNotFoundError with the ids that look most alike.
    """
    import difflib

    if not text:
        raise InvalidIdError(value=text, reason="it is empty")
    everyone = list(sessions)
    exact = [session for session in everyone if session.id == text]
    found = exact or [session for session in everyone if session.id.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise AmbiguousIdError(prefix=text, candidates=tuple(sorted(_told_apart(found))))
    near = difflib.get_close_matches(text, [session.id for session in everyone], n=3, cutoff=0.5)
    raise SessionNotFoundError(session_id=text, searched=(searched,), near=tuple(near))


def _told_apart(sessions: list[Session]) -> Iterator[str]:
    """Give the ids of sessions; where one is in several work dirs, with the folder that each of them is in."""
    seen = [session.id for session in sessions]
    for session in sessions:
        place = session.work_dir if session.work_dir_known else session.path.parent
        yield session.id if seen.count(session.id) == 1 else f"{session.id} in {place}"


def _forget(sessions_path: str, session_id: str) -> None:
    """Take a session that is gone out of the catalog, if there is one; failing here unsays nothing."""
    try:
        there = os.path.exists(_layout.cache_home() / _layout.CATALOG)
    except NotFoundError:
        return
    if there:
        from .catalog._logs import forget_session

        forget_session(sessions_path, session_id)


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
