"""
A new session from a prefix of another: both logs cut at the same turn, the source only read.

Here lies where the logs are cut and how the new folder is put together; which message belongs to which turn
is found by ``context.alignment``. What becomes of the new session in its store (seal, registry) is the
store's.

The rules:

- ``turn_index`` counts as ``turns()`` does: every TurnBegin is a turn, and the fork holds exactly the turns
  up to and including that one. Of a turn with turns inside it (a flow, a loop) the fork holds what came
  before the first of them that is left out; of the last turn inside, also the end of the turns around it.
  Nothing is made up to close a turn that is cut open.
- The wire log is kept up to the end of the turn, or where it has none up to the next one. The context is
  the one that was in use when the turn ended, taken from a rotation where a compaction or a clear came
  later, up to the first message of the next turn. Bytes are copied as they are: unknown records and damaged
  lines go along.
- The last line is the exception. If it lacks its newline it gets one; if it is torn, the piece is set aside
  in a ``.torn`` file of the fork, so that the next record is not glued to it.
- Titles, logs and referenced uploads are taken along. Approvals, plan, to-dos, subagents, tasks,
  notifications and rotations are not: the fork is a new conversation. Without a turn index everything that
  is not one of those is taken, files of other programs included.
- The fork appears whole, by one rename, or not at all. No lock of the source is needed: what is appended to
  it while this runs is not taken.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _fs, ids, layout
from ._document import dump_document, read_document
from ._lines import Accept, decode_line, iter_lines_backwards
from ._log import logger
from ._text import UNTITLED, clean, title_from
from .context import history
from .context.alignment import (
    WireOutline,
    find_cut_place,
    outline_context,
    outline_of_turns,
    outline_wire,
)
from .errors import InvalidTurnError, SessionExistsError, SessionNotFoundError, WriteError
from .findings import Finding
from .wire import records
from .wire.turns import Turn, read_turns, scan_turns

if TYPE_CHECKING:
    from ._facts import Facts
    from ._store import WorkDirStore

__all__ = [
    "LogCut",
    "cut_context",
    "cut_wire",
    "enumerate_turns",
    "fork_in_store",
    "fork_into",
    "fork_session",
    "fork_title",
    "truncate_context_at_turn",
    "truncate_wire_at_turn",
]

# --- where the logs are cut --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogCut:
    """
    What of a log is kept.

    Attributes:
        spans: the byte ranges to copy, in order.
        closing: whether a newline has to follow them.
        torn: the byte range of a torn piece at the end that is set aside, None if there is none.
    """

    spans: tuple[tuple[int, int], ...] = ()
    closing: bool = False
    torn: tuple[int, int] | None = None


def cut_wire(fd: int, outline: WireOutline, turn_index: int, size: int) -> LogCut:
    """
    Find what of an open wire log of ``size`` bytes is turns 0 to ``turn_index``.

    Raises InvalidTurnError, OSError.
    """
    turns = outline.turns
    if not 0 <= turn_index < len(turns):
        raise InvalidTurnError(turn_index=turn_index, turn_count=len(turns))
    begun = turns[turn_index].offset
    following = turns[turn_index + 1].offset if turn_index + 1 < len(turns) else size
    # A prompt that was torn is no turn, but what follows it is not part of this one either.
    barrier = min((offset for offset in outline.torn if begun < offset < following), default=following)
    ends = [end for latest, end in outline.ends if latest == turn_index and end <= barrier]
    return _closed(fd, max(ends, default=barrier), records.refuse)


def cut_context(
    contexts: Sequence[tuple[str, int, int]], wire: WireOutline, turn_index: int
) -> tuple[int, LogCut, str]:
    """
    Find the context as it was at the end of a turn.

    ``contexts`` are ``(name, descriptor, size)`` of the open context files, oldest first, the one in use
    last. Returns which of them it is in (-1: there are none), what of it is kept, and "" or what could not
    be found. Raises OSError.
    """
    alone = len(contexts) == 1
    outlines = [outline_context(fd, size, alone=alone) for _, fd, size in contexts]
    place = find_cut_place(wire, outlines, turn_index)
    if place.file_index < 0:
        return -1, LogCut(), place.problem
    fd = contexts[place.file_index][1]
    if len(place.spans) == 1 and place.spans[0][0] == 0:
        return place.file_index, _closed(fd, place.spans[0][1], history.refuse), place.problem
    # Single records, each of which gets its newline by being copied up to the next line.
    return place.file_index, LogCut(place.spans, closing=bool(place.spans)), place.problem


def _closed(fd: int, end: int, accept: Accept) -> LogCut:
    """Keep a log up to ``end`` and see to it that what is kept ends with a whole line."""
    if end <= 0:
        return LogCut()
    start, line = next(iter_lines_backwards(fd, end))
    if start + len(line) < end:
        return LogCut(((0, end),))
    decoded = decode_line(line, accept)
    kept = start
    if decoded.records:
        last = decoded.records[-1]
        kept = start + last.offset + len(last.raw)
    torn = (kept, end) if _fs.read_fd(fd, kept, end - kept).strip() else None
    return LogCut(((0, kept),) if kept else (), closing=kept > start, torn=torn)


# --- on paths ----------------------------------------------------------------------------------------------


class _WireNotFoundError(InvalidTurnError):
    """No turn of this index, because there is no wire log."""

    def _sentence(self) -> str:
        return f"turn {self.turn_index} out of range: {layout.WIRE} not found; without one a session is forked whole"


def enumerate_turns(wire_path: layout.StrPath) -> list[Turn]:
    """Return the turns of a wire log, in order; none if it is not there. Raises OSError if it can't be read."""
    return read_turns(wire_path)


def truncate_wire_at_turn(wire_path: layout.StrPath, turn_index: int) -> list[str]:
    """
    Return the lines of a wire log that are turns 0 to ``turn_index``, headers included.

    Raises InvalidTurnError (a ValueError) if there is no such turn or no log, OSError.
    """
    with ExitStack() as stack:
        fd = _opened(stack, wire_path)
        if fd is None:
            raise _WireNotFoundError(turn_index=turn_index, turn_count=0)
        size = _fs.active().fstat(fd).st_size
        return _lines_of(fd, cut_wire(fd, outline_wire(fd, size), turn_index, size))


def truncate_context_at_turn(context_path: layout.StrPath, turn_index: int) -> list[str]:
    """
    Return the lines of a context that are turns 0 to ``turn_index``; all of them if there are no more turns.

    Turns are those of the wire log beside it; where there is none, a turn is a message that the user began
    one with. Rotations are not looked into (a fork does). A context that is not there has no lines. Raises
    OSError.
    """
    with ExitStack() as stack:
        fd = _opened(stack, context_path)
        if fd is None:
            return []
        size = _fs.active().fstat(fd).st_size
        wire_fd = _opened(stack, Path(context_path).with_name(layout.WIRE))
        wire = WireOutline() if wire_fd is None else outline_wire(wire_fd)
        if not wire.turns:
            wire = outline_of_turns(outline_context(fd, size, alone=True))
        _, cut, _ = cut_context([(layout.CONTEXT, fd, size)], wire, turn_index)
        return _lines_of(fd, cut)


def _opened(stack: ExitStack, path: layout.StrPath, dir_fd: int | None = None) -> int | None:
    """Open a file for as long as the stack lives; None if it is not there."""
    try:
        fd = _fs.open_regular(path, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    stack.callback(_fs.active().close, fd)
    return fd


def _lines_of(fd: int, cut: LogCut) -> list[str]:
    data = b"".join(_fs.read_fd(fd, start, end - start) + b"\n" for start, end in cut.spans)
    lines = (line.strip() for line in data.split(b"\n"))
    return [line.decode("utf-8", "surrogateescape") for line in lines if line]


# --- the new session ---------------------------------------------------------------------------------------

_PREFIXES = ("Fork", "Undo")
#: What a session folder may hold that a fork doesn't take; everything else is somebody's, and goes along
#: with a fork of everything.
_LEFT_BEHIND = frozenset(
    {
        layout.CONTEXT,
        layout.WIRE,
        layout.STATE,
        layout.METADATA,
        layout.METADATA_MERGED,
        layout.SESSION,
        layout.SEAL,
        layout.LOCK,
        layout.HOLD,
        layout.UPLOADS,
        layout.SUBAGENTS,
        layout.TASKS,
        layout.NOTIFICATIONS,
    }
)


def fork_title(source_title: str, prefix: str = "Fork") -> str:
    """Return the title of a fork: ``"<prefix>: <title>"``. The prefix of an earlier fork is not repeated."""
    title = source_title
    while True:
        head, colon, rest = title.partition(": ")
        if not colon or not rest or head not in (*_PREFIXES, prefix):
            return f"{prefix}: {title}"
        title = rest


def fork_into(
    source: layout.StrPath,
    sessions_path: layout.StrPath,
    new_id: str,
    *,
    turn_index: int | None,
    title: str,
    now: float,
    before_publish: Callable[[int], None] | None = None,
) -> list[Finding]:
    """
    Make session ``new_id`` in an existing sessions folder out of turns 0 to ``turn_index`` of the session
    in folder ``source``; None takes everything.

    ``now`` is the fork's time in epoch seconds. ``before_publish`` is called with a descriptor of the
    finished folder just before it gets its name. Durable when it returns. Returns what could not be taken
    along.

    Raises InvalidTurnError, SessionNotFoundError, SessionExistsError, WriteError; then nothing is left
    behind and the source is as it was, as always.
    """
    source = Path(os.path.abspath(source))  # noqa: PTH100 - as the user named it, links not resolved
    fs = _fs.active()
    with ExitStack() as stack:
        try:
            source_fd = _fs.open_folder(source)
        except FileNotFoundError:
            raise SessionNotFoundError(session_id=source.name, searched=(str(source.parent),)) from None
        except OSError as error:
            raise WriteError.of(error, str(source)) from error
        stack.callback(fs.close, source_fd)
        try:
            plan = _plan(stack, source_fd, turn_index)
        except OSError as error:
            raise WriteError.of(error, str(source)) from error
        path = str(Path(sessions_path, new_id))
        try:
            sessions_fd = _fs.open_folder(sessions_path)
            stack.callback(fs.close, sessions_fd)
            with _new_folder(sessions_fd, new_id, path) as fd:
                problems = _fill(fd, source_fd, plan, turn_index=turn_index)
                parent = {"session_id": source.name, "turn_index": turn_index}
                _write_documents(fd, parent, title=title, now=now, has_wire=plan.wire is not None)
                if before_publish is not None:
                    before_publish(fd)
                _fs.sync_folder_fd(fd)
        except OSError as error:
            if isinstance(error, WriteError):
                raise
            raise WriteError.of(error, path) from error
    return problems


@dataclass(frozen=True, slots=True)
class _Plan:
    """What of which open files is copied, and what could not be found."""

    wire: tuple[int, LogCut] | None
    context: tuple[int, LogCut] | None
    problems: tuple[Finding, ...]


def _plan(stack: ExitStack, source_fd: int, turn_index: int | None) -> _Plan:
    """Open the source's logs, and decide what of them is taken. Sizes are taken first: a log may grow meanwhile."""
    fs = _fs.active()
    wire_fd = _opened(stack, layout.WIRE, source_fd)
    context_fd = _opened(stack, layout.CONTEXT, source_fd)
    wire_size = 0 if wire_fd is None else fs.fstat(wire_fd).st_size
    current = [] if context_fd is None else [(layout.CONTEXT, context_fd, fs.fstat(context_fd).st_size)]
    if turn_index is None:
        wire = None if wire_fd is None else (wire_fd, _closed(wire_fd, wire_size, records.refuse))
        context = None
        for _, fd, size in current:
            context = (fd, _closed(fd, size, history.refuse))
        return _Plan(wire, context, ())
    if wire_fd is None:
        raise _WireNotFoundError(turn_index=turn_index, turn_count=0)
    outline = outline_wire(wire_fd, wire_size)
    wire_cut = cut_wire(wire_fd, outline, turn_index, wire_size)
    contexts = [*_rotations(stack, source_fd, current), *current]
    index, context_cut, problem = cut_context(contexts, outline, turn_index)
    problems = (Finding("context-lost", layout.CONTEXT, problem),) if problem else ()
    return _Plan((wire_fd, wire_cut), None if index < 0 else (contexts[index][1], context_cut), problems)


def _rotations(
    stack: ExitStack, source_fd: int, current: Sequence[tuple[str, int, int]]
) -> list[tuple[str, int, int]]:
    """Open the rotated contexts, oldest first; not the open one again, if it was rotated just now."""
    fs = _fs.active()
    with fs.scandir(source_fd) as entries:
        numbers = sorted(
            number for entry in entries if (number := layout.rotated_number(entry.name)) is not None
        )
    known = {_fs.identity(fs.fstat(fd)) for _, fd, _ in current}
    found = []
    for number in numbers:
        name = layout.rotated_name(number)
        fd = _opened(stack, name, source_fd)
        if fd is None:
            continue
        stat = fs.fstat(fd)
        if stat.st_size > 0 and _fs.identity(stat) not in known:
            found.append((name, fd, stat.st_size))
    return found


@contextmanager
def _new_folder(sessions_fd: int, new_id: str, path: str) -> Iterator[int]:
    """Give a descriptor of a folder to fill; it gets its name when the block is left well, else it is removed."""
    fs = _fs.active()
    for name in (new_id, new_id + layout.FLAT_SUFFIX):
        if _fs.exists(name, dir_fd=sessions_fd):
            raise SessionExistsError(session_id=new_id, path=path)
    unfinished = f"{layout.CREATING_PREFIX}{secrets.token_hex(8)}"
    try:
        _fs.ensure_folder(unfinished, dir_fd=sessions_fd)
        fd = _fs.open_folder(unfinished, dir_fd=sessions_fd)
        try:
            yield fd
        finally:
            fs.close(fd)
        try:
            fs.rename(unfinished, new_id, src_dir_fd=sessions_fd, dst_dir_fd=sessions_fd)
        except OSError as error:
            if _fs.exists(new_id, dir_fd=sessions_fd):
                raise SessionExistsError(session_id=new_id, path=path) from error
            raise
        try:
            _fs.sync_folder_fd(sessions_fd)
        except BaseException:
            # It would be there for now, though its maker is told that it is not.
            fs.rename(new_id, unfinished, src_dir_fd=sessions_fd, dst_dir_fd=sessions_fd)
            raise
    except BaseException:
        _fs.remove_tree(unfinished, dir_fd=sessions_fd)
        raise


def _fill(fd: int, source_fd: int, plan: _Plan, *, turn_index: int | None) -> list[Finding]:
    """Copy what the plan says into the new folder."""
    problems = list(plan.problems)
    for name, part in ((layout.WIRE, plan.wire), (layout.CONTEXT, plan.context)):
        if part is not None:
            old, cut = part
            _copy_log(old, cut, name, fd)
            if cut.torn is not None:
                start, end = cut.torn
                _copy_log(old, LogCut((cut.torn,)), name + layout.TORN_SUFFIX, fd)
                reason = "the torn end was set aside"
                problems.append(Finding("torn-tail", name, reason, offset=start, length=end - start))
        elif name == layout.CONTEXT:
            _fs.active().close(_fs.create_file(name, dir_fd=fd))
    wanted = None if turn_index is None else [part for part in (plan.wire, plan.context) if part is not None]
    problems += _copy_uploads(source_fd, fd, wanted)
    if turn_index is None:
        problems += _copy_rest(source_fd, fd)
    return problems


def _copy_log(old: int, cut: LogCut, name: str, fd: int) -> None:
    def write(new: int) -> None:
        for index, (start, end) in enumerate(cut.spans):
            if index:
                _fs.write_all(new, b"\n")
            _fs.copy_bytes(old, new, start, end)
        if cut.closing:
            _fs.write_all(new, b"\n")

    _write_file(name, fd, write)


def _write_file(name: str, dir_fd: int, write: Callable[[int], object]) -> None:
    """Make a private file and sync what ``write`` puts into it."""
    fs = _fs.active()
    new = _fs.create_file(name, dir_fd=dir_fd)
    try:
        write(new)
        fs.fsync(new)
    finally:
        fs.close(new)


def _write_documents(fd: int, parent: dict[str, Any], *, title: str, now: float, has_wire: bool) -> None:
    """Write the fork's state, fresh but for its title, and where it came from."""
    from .state import SessionState, dump_state

    state = SessionState(custom_title=title, title_generated=True, wire_mtime=now if has_wire else None)
    about = {"version": 1, "created_at": now, "parent": parent}
    _fs.replace_file(layout.STATE, dump_document(dump_state(state)), dir_fd=fd)
    _fs.replace_file(layout.SESSION, dump_document(about), dir_fd=fd)


# --- uploads, and what else there is -----------------------------------------------------------------------

_REFERENCE = b"uploads/"


def _copy_uploads(source_fd: int, fd: int, wanted: Sequence[tuple[int, LogCut]] | None) -> list[Finding]:
    """Copy the uploads that the kept parts of the logs name (None: all), and note them as sent, as the client does."""
    fs = _fs.active()
    try:
        uploads_fd = _fs.open_folder(layout.UPLOADS, dir_fd=source_fd)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Finding("unreadable", layout.UPLOADS, f"not taken along: {error.strerror}")]
    problems: list[Finding] = []
    copied: list[str] = []
    with ExitStack() as stack:
        stack.callback(fs.close, uploads_fd)
        with fs.scandir(uploads_fd) as entries:
            names = sorted(entry.name for entry in entries if entry.name != layout.UPLOADS_SENT)
        if wanted is not None:
            names = _named(names, wanted)
        if not names:
            return []
        _fs.ensure_folder(layout.UPLOADS, dir_fd=fd)
        new_fd = _fs.open_folder(layout.UPLOADS, dir_fd=fd)
        stack.callback(fs.close, new_fd)
        for name in names:
            was_copied = _copy_entry(name, uploads_fd, new_fd, f"{layout.UPLOADS}/{name}", problems)
            copied += [name] if was_copied else []
        data = json.dumps(copied).encode("ascii")
        _write_file(layout.UPLOADS_SENT, new_fd, lambda new: _fs.write_all(new, data))
        _fs.sync_folder_fd(new_fd)
    return problems


def _named(names: Sequence[str], wanted: Sequence[tuple[int, LogCut]]) -> list[str]:
    """
    Return the names that follow ``uploads/`` somewhere in the kept parts of logs.

    The folder is asked for its names, not the log: so spaces in a name are no matter, and no path can be
    made up.
    """
    spelled: dict[bytes, str] = {}
    for name in names:
        spelled[json.dumps(name)[1:-1].encode("ascii")] = name
        spelled[json.dumps(name, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")] = name
    longest = max(map(len, spelled), default=0)
    found: set[str] = set()
    for fd, cut in wanted:
        for start, end in cut.spans:
            rest = b""
            for chunk in _fs.iter_chunks(fd, start, end, 1 << 20):
                data = rest + chunk
                at = data.find(_REFERENCE)
                while at >= 0:
                    after = data[at + len(_REFERENCE) : at + len(_REFERENCE) + longest]
                    found.update(name for text, name in spelled.items() if after.startswith(text))
                    at = data.find(_REFERENCE, at + 1)
                rest = data[-(len(_REFERENCE) + longest) :]
    return [name for name in names if name in found]


def _copy_rest(source_fd: int, fd: int) -> list[Finding]:
    """Copy what is not the client's and not ours: files of other programs."""
    problems: list[Finding] = []
    with _fs.active().scandir(source_fd) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if not _is_ours(name):
            _copy_entry(name, source_fd, fd, name, problems)
    return problems


def _is_ours(name: str) -> bool:
    return (
        name in _LEFT_BEHIND
        or layout.is_context_name(name)
        or layout.is_set_aside_name(name)
        or name.endswith((layout.TORN_SUFFIX, layout.TEMP_SUFFIX))
    )


def _copy_entry(name: str, source_fd: int, fd: int, shown: str, problems: list[Finding]) -> bool:
    """Copy one file, or a folder with all in it; links, pipes and what can't be read are problems. True if copied."""
    fs = _fs.active()
    try:
        old = _fs.open_regular(name, dir_fd=source_fd)
    except _fs.IrregularFileError as error:
        if error.kind == "a folder":
            return _copy_folder(name, source_fd, fd, shown, problems)
        problems.append(Finding("irregular", clean(shown), f"not taken along: it {error.strerror}"))
        return False
    except OSError as error:
        problems.append(Finding("unreadable", clean(shown), f"not taken along: {error.strerror}"))
        return False
    try:
        _write_file(name, fd, lambda new: _fs.copy_bytes(old, new))
    finally:
        fs.close(old)
    return True


def _copy_folder(name: str, source_fd: int, fd: int, shown: str, problems: list[Finding]) -> bool:
    fs = _fs.active()
    try:
        old = _fs.open_folder(name, dir_fd=source_fd)
    except OSError as error:
        problems.append(Finding("unreadable", clean(shown), f"not taken along: {error.strerror}"))
        return False
    with ExitStack() as stack:
        stack.callback(fs.close, old)
        _fs.ensure_folder(name, dir_fd=fd)
        new = _fs.open_folder(name, dir_fd=fd)
        stack.callback(fs.close, new)
        with fs.scandir(old) as entries:
            children = sorted(entry.name for entry in entries)
        for child in children:
            _copy_entry(child, old, new, f"{shown}/{child}", problems)
        _fs.sync_folder_fd(new)
    return True


# --- in a store --------------------------------------------------------------------------------------------


def fork_in_store(
    store: WorkDirStore, source: layout.StrPath, *, turn_index: int | None, title: str, register: bool = True
) -> tuple[Facts, str, list[Finding]]:
    """
    Fork the session in folder ``source`` into a store; seal it and, with ``register``, make the work dir
    known.

    Returns the fork's facts, the sessions folder it went into, and problems: the one for new sessions, or that of the
    source where its work dir is gone, or is not known (``register`` False). Raises as ``fork_into``, and
    WorkDirNotFoundError for a work dir that holds its store and is gone.
    """
    from . import metadata
    from ._facts import facts_of

    new_id = ids.new_session_id()
    beside = str(Path(source).parent)
    if (register and store.work_dir_is_there()) or store.layout.sealed or beside not in store.paths:
        store.check_work_dir()
        path = str(metadata.ensure_store(store.layout, store.work_dir, store.resolved))
    else:
        path = beside
    sealed: list[Finding] = []
    try:
        sessions_fd = _fs.open_folder(path)
    except OSError as error:
        raise WriteError.of(error, path) from error
    try:
        problems = fork_into(
            source,
            path,
            new_id,
            turn_index=turn_index,
            title=title,
            now=time.time(),
            before_publish=lambda fd: sealed.extend(store.seal(new_id, fd, _state_of(fd))),
        )
        problems += sealed
        if register:
            problems += store.register()
        # What can't be read of it just now is a problem of the fork; it is there.
        facts = facts_of(sessions_fd, new_id)
    finally:
        _fs.active().close(sessions_fd)
    if facts is None:
        raise SessionNotFoundError(session_id=new_id, searched=(path,))
    return facts, path, problems


def _state_of(fd: int) -> dict[str, Any]:
    return read_document(layout.STATE, dir_fd=fd).value or {}


class _ForkedId(str):
    """The id of a fork. May be awaited too: programs written for the old client do that, and get the same id."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, str]:
        return str(self)
        yield


def fork_session(
    source_dir: layout.StrPath,
    work_dir: object,
    turn_index: int | None = None,
    title_prefix: str = "Fork",
    source_title: str | None = None,
) -> str:
    """
    Make a new session of ``work_dir`` from turns 0 to ``turn_index`` of the session in folder
    ``source_dir``; None takes everything. Returns the new id, which may also be awaited.

    The fork goes into the store the source is in, or what that store has for ``work_dir``. Its title is
    ``"<title_prefix>: <source_title>"``; without a source title, the source's own is taken.

    Raises InvalidTurnError (a ValueError), SessionNotFoundError, WorkDirNotFoundError, WriteError; then
    nothing is left behind.
    """
    from ._store import WorkDirStore

    source = Path(os.path.abspath(source_dir))  # noqa: PTH100 - as the user named it, links not resolved
    store = WorkDirStore(_layout_of(source), layout.work_dir_path(work_dir))
    if source_title is None:
        source_title = _title_of(source)
    facts, _, problems = fork_in_store(
        store, source, turn_index=turn_index, title=fork_title(source_title, title_prefix)
    )
    if problems:
        for problem in problems:
            logger().warning("fork of %s: %s", source.name, problem)
    return _ForkedId(facts.id)


def _layout_of(source: Path) -> layout.Layout:
    """Tell the layout of a store by where a session in it lies."""
    if source.parent.name != layout.SESSIONS and source.parent.parent.name == layout.SESSIONS:
        return layout.ShareLayout(source.parent.parent.parent)
    return layout.ProjectLayout()


def _title_of(source: Path) -> str:
    """Return a session's own title: the one it was given, else its first prompt."""
    try:
        fd = _fs.open_folder(source)
    except FileNotFoundError:
        raise SessionNotFoundError(session_id=source.name, searched=(str(source.parent),)) from None
    with ExitStack() as stack:
        stack.callback(_fs.active().close, fd)
        custom = _state_of(fd).get("custom_title")
        if isinstance(custom, str) and clean(custom):
            return custom
        wire_fd = _opened(stack, layout.WIRE, fd)
        turns = () if wire_fd is None else scan_turns(wire_fd).turns
    titles = (title_from(turn.user_text) for turn in turns)
    return next((title for title in titles if title), UNTITLED)
