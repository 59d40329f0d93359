"""
Acts on what a check found, and throws no byte away.

A repair owns the session while it works: a held one is refused, and appends by others wait a moment or are brought
along. What it does, file by file:

- A log with damage is rewritten. First the whole old log gets a second name, ``<log>.before-repair-<n>``; then
  every piece that is no record goes to ``<log>.torn``, and the new log holds the whole records, one per line, byte
  for byte. Runs of NUL and byte order marks beside records are left out (they stay in the old log's copy).
- In a context, a call without a result gets one, behind the other results of its message: an error that says the
  call was interrupted, in the form in which Kimi CLI writes one (``INTERRUPTED``). A result without a call goes to the
  ``.torn`` file: the model's provider would refuse the conversation because of it.
- A state.json or session.json that does not parse, or has bad fields, is set aside as ``<name>.damaged-<n>`` and
  rebuilt from what can be read of it. Any other damaged document, an empty wire log, a half-written file whose
  writer is gone, and a link, pipe or folder in a file's place are set aside under such a name and not replaced.
- Loose modes are tightened, a missing context is made (empty), an old client's flat file that clashes with the
  session's own becomes its next rotated context.

What is set aside is never removed here, is no session and no message to anyone, and is ignored by Kimi CLI. Times of
modification stay, so that no list is reordered. Every step leaves the old or the new file in place, so a repair that
is cut short can be run again; a second run finds nothing to do.

A ``.torn`` file has two lines per piece: a JSON object that says where it came from (``file``, ``line``, ``offset``,
``length`` and ``reason``), and the piece itself.
"""

from __future__ import annotations

import stat as stat_module
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from . import _fs
from . import layout as _layout
from ._append_log import AppendLog, open_for_reading
from ._async import in_thread
from ._document import Document, salvage, set_aside, update_document
from ._folder import SessionFolder
from ._lines import BOM, PADDING
from ._store import WorkDirStore
from ._survey import (
    ContextReading,
    Issue,
    LogLine,
    Remedy,
    bad_extra_fields,
    bad_state_fields,
    log_lines,
)
from ._text import clean
from .check import Report, flat_target, loose_store_folders, report_of, survey_session
from .context.history import refuse as refuse_context
from .errors import SessionBusyError, SessionsError, WriteError
from .findings import Finding
from .layout import Layout, ProjectLayout, work_dir_path
from .session import Session, inside
from .wire.records import WireFileMetadata, dump_json
from .wire.records import refuse as refuse_wire

__all__ = ["INTERRUPTED", "Action", "RepairReport", "repair", "repair_store"]

#: The result of a call that never got one. The tag and the word ERROR are how Kimi CLI marks a failed call.
INTERRUPTED = (
    "<system>ERROR: The tool call was interrupted before it gave a result. "
    "This result was added by a repair.</system>"
)
#: One remedy can bring another about (a link set aside leaves a context missing), but not many in a row.
_ROUNDS = 4
#: How long an unfinished last line must keep its length to count as torn, and how often that is looked at.
_LOOK_S = 0.02
_LOOKS = 100


@dataclass(frozen=True, slots=True)
class Action:
    """
    One thing that a repair did, or would do in a dry run.

    Attributes:
        file: path relative to the session folder, as text safe to show.
        what: what was done, in words.
        kept_as: name of the file that keeps what was there before, where there is one; None in a dry run.
        findings: what it was done about.
    """

    file: str
    what: str
    kept_as: str | None = None
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        kept = f" (kept as {self.kept_as})" if self.kept_as else ""
        return f"{self.file}: {self.what}{kept}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dict, for JSON."""
        return {
            "file": self.file,
            "what": self.what,
            "kept_as": self.kept_as,
            "findings": [finding.as_dict() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class RepairReport:
    """
    What a repair did to one session.

    ``before`` is the check it began with and ``after`` the one it ended with: the findings of ``after`` are those that
    only a person can do something about. In a dry run nothing was done and ``actions`` say what would be.
    """

    session_id: str
    path: str
    before: Report
    actions: tuple[Action, ...]
    after: Report
    dry_run: bool = False

    @property
    def changed(self) -> bool:
        """True if something was done."""
        return bool(self.actions) and not self.dry_run

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a plain dict, for JSON."""
        return {
            "id": clean(self.session_id),
            "path": clean(self.path),
            "dry_run": self.dry_run,
            "actions": [action.as_dict() for action in self.actions],
            "left": [finding.as_dict() for finding in (() if self.dry_run else self.after.findings)],
        }


async def repair(session: Session, *, dry_run: bool = False) -> RepairReport:
    """
    Act on everything that ``check`` finds in a session; with ``dry_run`` only say what would be done.

    Durable when it returns. Afterwards the session object shows what is on disk now.

    Raises SessionBusyError at once if another program holds the session, SessionNotFoundError, WriteError. What was
    done before a failure stays done; the next run goes on from there.
    """
    if dry_run:
        return await in_thread(_dry_run, session)
    report = await in_thread(_repair, session)
    if report.changed:
        await session.refresh()
    return report


def _dry_run(session: Session) -> RepairReport:
    survey = survey_session(session)
    report = report_of(survey, session.id, str(session.path))
    actions = tuple(
        Action(_name_of(issues), _plan(remedy, issues), findings=tuple(issue.finding for issue in issues))
        for remedy, _, issues in _jobs(survey.issues)
    )
    return RepairReport(session.id, report.path, report, actions, report, dry_run=True)


def _repair(session: Session) -> RepairReport:
    folder = inside(session).folder
    try:
        return _repair_owned(session, folder)
    except SessionsError:
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not Path(folder.path).exists():
            raise folder.gone() from error
        raise WriteError.of(error, folder.path) from error


def _repair_owned(session: Session, folder: SessionFolder) -> RepairReport:
    path = str(session.path)
    # What an old client left flat moves into place first; what can't is a clash and has its own remedy.
    if inside(session).store.locate(session.id) is None:
        raise folder.gone()
    worker = _Worker(session)
    worker.free_the_locks()
    with folder.owned(), folder.step():
        survey = survey_session(session)
        before = after = report_of(survey, session.id, path)
        for _ in range(_ROUNDS):
            if not worker.run(survey.issues):
                break
            survey = survey_session(session)
            after = report_of(survey, session.id, path)
    return RepairReport(session.id, path, before, tuple(worker.actions), after)


# --- what is to be done ------------------------------------------------------------------------------------------


def _jobs(issues: list[Issue]) -> Iterator[tuple[Remedy, tuple[str, ...], list[Issue]]]:
    """Yield what to do, and where, in the order in which it is done; all issues of one file and remedy together."""
    for remedy in _ORDER:
        found: dict[tuple[str, ...], list[Issue]] = {}
        for issue in issues:
            if issue.remedy is remedy and not issue.is_note:
                found.setdefault(issue.parts, []).append(issue)
        for parts, several in found.items():
            yield remedy, parts, several


#: Private before anything is copied, out of the way before anything is put in its place.
_ORDER = (
    Remedy.TIGHTEN,
    Remedy.SET_ASIDE,
    Remedy.REBUILD,
    Remedy.CREATE,
    Remedy.REWRITE,
    Remedy.BRING_IN,
)


def _name_of(issues: list[Issue]) -> str:
    return issues[0].finding.file


def _plan(remedy: Remedy, issues: list[Issue]) -> str:
    """Say in words what is done about the issues of one file."""
    match remedy:
        case Remedy.TIGHTEN:
            return "make it private"
        case Remedy.SET_ASIDE:
            return f"set it aside ({issues[0].finding.reason})"
        case Remedy.REBUILD:
            return "set it aside and rebuild it from what can be read"
        case Remedy.CREATE:
            return "make an empty one"
        case Remedy.BRING_IN:
            return "bring it in as the session's next rotated context"
        case _:
            return "; ".join(_rewriting([issue.finding for issue in issues]))


def _rewriting(findings: list[Finding]) -> Iterator[str]:
    kinds = [finding.kind for finding in findings]

    def many(one: str, several: str, *names: str) -> Iterator[str]:
        number = sum(kinds.count(name) for name in names)
        if number:
            yield one if number == 1 else several.format(number)

    yield from many(
        "move a damaged piece to the .torn file",
        "move {} damaged pieces to the .torn file",
        "damaged-line",
        "torn-tail",
        "bad-record",
    )
    yield from many(
        "give fused records lines of their own", "give fused records lines of their own", "fused-line"
    )
    size = sum(finding.length or 0 for finding in findings if finding.kind == "nul-bytes")
    runs = f"of NUL bytes, {size} bytes in all"
    yield from many(f"leave out a run {runs}", f"leave out {{}} runs {runs}", "nul-bytes")
    yield from many("leave out a byte order mark", "leave out {} byte order marks", "stray-bom")
    yield from many("end the last record with a newline", "", "unterminated-tail")
    yield from many(
        "close a tool call without a result", "close {} tool calls without results", "unmatched-call"
    )
    yield from many(
        "move a result without a call to the .torn file",
        "move {} results without calls to the .torn file",
        "orphan-result",
    )


# --- doing it ----------------------------------------------------------------------------------------------------


class _Worker:
    """Does the jobs of one repair. The caller owns the session and has its lock."""

    def __init__(self, session: Session) -> None:
        self._session_id = session.id
        self._store, self.folder, self._found = inside(session)
        self.actions: list[Action] = []

    def free_the_locks(self) -> None:
        """A link or a folder in a lock's place would keep everyone out, this repair included: set it aside first."""
        with self.folder.opened() as fd:
            for name in (_layout.LOCK, _layout.HOLD):
                try:
                    mode = _fs.active().stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    continue
                if not stat_module.S_ISREG(mode):
                    reason = f"is {_fs.kind_of(mode)}, not a regular file"
                    kept = _set_aside(name, fd)
                    self.actions.append(
                        Action(name, f"set it aside ({reason})", kept, (Finding("irregular", name, reason),))
                    )

    def run(self, issues: list[Issue]) -> bool:
        """Do everything there is to do; False if that was nothing."""
        did = False
        for remedy, parts, several in _jobs(issues):
            kept = self._do(remedy, parts)
            did = True
            self.actions.append(
                Action(
                    _name_of(several), _plan(remedy, several), kept, tuple(issue.finding for issue in several)
                )
            )
        return did

    def _do(self, remedy: Remedy, parts: tuple[str, ...]) -> str | None:
        if remedy is Remedy.BRING_IN:
            return self._bring_in(parts[-1])
        with self.folder.opened() as top, _opened(top, parts[:-1]) as fd:
            name = parts[-1] if parts else "."
            match remedy:
                case Remedy.TIGHTEN:
                    _tighten(fd, parts)
                case Remedy.SET_ASIDE:
                    return _shown(_set_aside(name, fd))
                case Remedy.CREATE:
                    _create(name, fd)
                case Remedy.REBUILD:
                    return _shown(self._rebuild(name, fd))
                case _:
                    return _shown(self._rewrite(parts))
        return None

    # --- documents -----------------------------------------------------------------------------------------------

    def _rebuild(self, name: str, fd: int) -> str | None:
        """Set a document aside and put what can be read of it in its place."""
        fs = _fs.active()
        data = _fs.read_small(name, dir_fd=fd)
        times = fs.stat(name, dir_fd=fd, follow_symlinks=False)
        kept = _already_aside(name, fd)

        def change(document: Document) -> dict[str, Any] | None:
            nonlocal kept
            if not document.problem and not _bad_fields(name, document.value or {}):
                return None  # another program has replaced it by a good one meanwhile
            value = self._readable_part(name, document, data, fd)
            if kept is None and (document.whole or not data):
                kept = set_aside(name, dir_fd=fd)
            return value

        known = set(_aside_names(name, fd))
        try:
            written = update_document(name, change, dir_fd=fd, folder=self.folder.path)
        except _NothingReadableError:
            return _set_aside(name, fd)
        if written is not None:
            fs.utime(name, ns=(times.st_atime_ns, times.st_mtime_ns), dir_fd=fd, follow_symlinks=False)
        new = [other for other in _aside_names(name, fd) if other not in known]
        return kept if kept is not None else (new[0] if new else None)

    def _readable_part(self, name: str, document: Document, data: bytes, fd: int) -> dict[str, Any]:
        value = document.value if document.value is not None else salvage(data)
        if name == _layout.STATE:
            from .state import dump_state, parse_state

            value = dump_state(parse_state(value)[0])
            if document.problem:
                verdict = self._store.verdict_at(fd, self._session_id, value)
                if verdict.trusted and not verdict.approvals_ok:
                    # Half of what was sealed is not what was sealed, and would lock the user out of the rest.
                    for key in ("approval", "additional_dirs"):
                        value.pop(key, None)
            return value
        for field_name in bad_extra_fields(value):
            value.pop(field_name, None)
        # Whoever has the session open knows it by this time.
        known = self._found.extra.get("created_at")
        if "created_at" not in value and isinstance(known, (int, float)):
            value["created_at"] = known
        if not value:
            raise _NothingReadableError
        return value

    # --- logs ----------------------------------------------------------------------------------------------------

    def _rewrite(self, parts: tuple[str, ...]) -> str | None:
        """Rewrite a log without its damage; return the name that the whole old one is kept under."""
        name = parts[-1]
        path = str(Path(self.folder.path, *parts))
        wire = name == _layout.WIRE
        live = name == _layout.CONTEXT
        _wait_for_writer(path)
        torn = AppendLog(path + _layout.TORN_SUFFIX, lock=self.folder.step_lock)
        log = AppendLog(path, lock=self.folder.step_lock)
        try:

            def build(old: int, end: int, new: int) -> None:
                pieces = _Pieces("/".join(parts))
                if wire:
                    _copy_records(log_lines(old, end, refuse_wire), new, pieces, _Edits())
                    if _fs.active().fstat(new).st_size == 0:
                        # Nothing was whole. A log with its header is one that the next record can go into.
                        _fs.write_all(new, WireFileMetadata().to_line() + b"\n")
                else:
                    edits = _Edits.of_context(old, end, live=live)
                    _copy_records(log_lines(old, end, refuse_context), new, pieces, edits)
                _keep_pieces(torn, pieces.data)
                found = _fs.active().fstat(old)
                _fs.active().utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))

            names = (f"{name}{_layout.BACKUP_INFIX}{number}" for number in count(1))
            return log.rewrite(build, keep_as=names)
        finally:
            torn.close_locked()
            log.close_locked()

    # --- flat files ----------------------------------------------------------------------------------------------

    def _bring_in(self, name: str) -> str | None:
        """Move a flat file into the session's folder as the next rotation (or subagent context) there."""
        fs = _fs.active()
        target = flat_target(name, self._session_id)
        root_fd = _fs.open_folder(self.folder.sessions_path)
        try:
            with self.folder.opened() as fd:
                with fs.scandir(fd) as entries:
                    taken = [entry.name for entry in entries]
                kept = _move_in(name, root_fd, _layout.further_context_names(target, taken), fd)
                _fs.sync_folder_fd(fd)
                _fs.sync_folder_fd(root_fd)
        finally:
            fs.close(root_fd)
        return kept


class _NothingReadableError(Exception):
    """Of a damaged document nothing can be read, and nothing is better than an empty one."""


def _shown(name: str | None) -> str | None:
    return None if name is None else clean(name)


@contextmanager
def _opened(fd: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Give a descriptor of a folder below an open one; no link is followed on the way."""
    opened: list[int] = []
    try:
        for part in parts:
            fd = _fs.open_folder(part, dir_fd=fd)
            opened.append(fd)
        yield fd
    finally:
        for each in reversed(opened):
            _fs.active().close(each)


def _tighten(fd: int, parts: tuple[str, ...]) -> None:
    fs = _fs.active()
    if not parts:
        fs.fchmod(fd, _fs.FOLDER_MODE)
        return
    found = fs.stat(parts[-1], dir_fd=fd, follow_symlinks=False)
    is_folder = stat_module.S_ISDIR(found.st_mode)
    inner = _fs.open_folder(parts[-1], dir_fd=fd) if is_folder else _fs.open_regular(parts[-1], dir_fd=fd)
    try:
        wanted = _fs.FOLDER_MODE if is_folder else _fs.FILE_MODE
        fs.fchmod(inner, stat_module.S_IMODE(found.st_mode) & wanted)
    finally:
        fs.close(inner)


def _create(name: str, fd: int) -> None:
    try:
        made = _fs.create_file(name, dir_fd=fd)
    except FileExistsError:
        return  # its client has just made it
    try:
        _fs.active().fsync(made)
    finally:
        _fs.active().close(made)
    _fs.sync_folder_fd(fd)


def _aside_names(name: str, fd: int) -> list[str]:
    with _fs.active().scandir(fd) as entries:
        prefix = name + _layout.DAMAGED_INFIX
        return sorted(entry.name for entry in entries if entry.name.startswith(prefix))


def _already_aside(name: str, fd: int) -> str | None:
    """Return the name under which this very file was set aside by a repair that got no further."""
    fs = _fs.active()
    wanted = _fs.identity(fs.stat(name, dir_fd=fd, follow_symlinks=False))
    for other in _aside_names(name, fd):
        if _fs.identity(fs.stat(other, dir_fd=fd, follow_symlinks=False)) == wanted:
            return other
    return None


def _set_aside(name: str, fd: int) -> str:
    """Rename whatever has this name (file, link, folder) to the first free ``.damaged-<n>``; return that name."""
    taken = set(_aside_names(name, fd))
    kept = next(
        other for number in count(1) if (other := f"{name}{_layout.DAMAGED_INFIX}{number}") not in taken
    )
    _fs.active().rename(name, kept, src_dir_fd=fd, dst_dir_fd=fd)
    _fs.sync_folder_fd(fd)
    return kept


def _move_in(name: str, root_fd: int, candidates: Iterator[str], fd: int) -> str | None:
    """Move a file into a folder under the first free of some names; it always has a name, and nothing is replaced."""
    fs = _fs.active()
    for kept in candidates:
        try:
            fs.link(name, kept, src_dir_fd=root_fd, dst_dir_fd=fd, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _fs.NO_HARD_LINKS:
                raise
            fs.rename(name, kept, src_dir_fd=root_fd, dst_dir_fd=fd)
            return kept
        fs.unlink(name, dir_fd=root_fd)
        return kept
    return None


def _bad_fields(name: str, value: dict[str, Any]) -> list[str]:
    return bad_state_fields(value) if name == _layout.STATE else bad_extra_fields(value)


# --- rewriting a log ---------------------------------------------------------------------------------------------


class _Pieces:
    """What is moved aside from one log, in the form of its ``.torn`` file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._parts: list[bytes] = []

    @property
    def data(self) -> bytes:
        """The bytes to add to the ``.torn`` file."""
        return b"".join(self._parts)

    def add(self, line_number: int, offset: int, piece: bytes, reason: str) -> None:
        """Take a piece, with where it came from."""
        origin = {
            "file": self._file,
            "line": line_number,
            "offset": offset,
            "length": len(piece),
            "reason": reason,
        }
        self._parts += (dump_json(origin), b"\n", piece, b"\n")


class _Edits:
    """Records of a log to move aside (by first byte), and lines to put in (by the byte after the record before)."""

    def __init__(self) -> None:
        self.moved: dict[int, str] = {}
        self.added: dict[int, list[bytes]] = {}

    @classmethod
    def of_context(cls, fd: int, end: int, *, live: bool) -> _Edits:
        """Work out what to do about the records of a context; only a live one has its calls paired."""
        reading = ContextReading()
        for line in log_lines(fd, end, refuse_context):
            reading.feed(line)
        edits = cls()
        for place, reason in reading.bad:
            edits.moved[place.offset] = reason
        if live:
            reading.pair()
            for place, _ in reading.orphans:
                edits.moved[place.offset] = "a result without a call"
            for _, call, end_of_results in reading.unanswered:
                edits.added.setdefault(end_of_results, []).append(_interrupted(call.tool_call_id))
        return edits


def _wait_for_writer(path: str) -> None:
    """
    Let a program without our lock finish the line it is in the middle of writing: half of it is no damage.

    Raises SessionBusyError if it does not stop.
    """
    fs = _fs.active()
    seen = -1
    for _ in range(_LOOKS):
        with open_for_reading(path) as fd:
            if fd is None:
                return
            size = fs.fstat(fd).st_size
            if size in {0, seen} or _fs.read_fd(fd, size - 1, 1) == b"\n":
                return
        seen = size
        time.sleep(_LOOK_S)
    raise SessionBusyError(path=path)


def _interrupted(tool_call_id: str) -> bytes:
    return dump_json({"role": "tool", "content": INTERRUPTED, "tool_call_id": tool_call_id})


def _copy_records(lines: Iterator[LogLine], new: int, pieces: _Pieces, edits: _Edits) -> None:
    """Write the whole records of a log into a new one, and collect what is no record."""
    out: list[bytes] = []
    size = 0
    for line in lines:
        kept = _kept_of(line, pieces, edits)
        out.extend(kept)
        size += sum(map(len, kept))
        if size > _fs.CHUNK_BYTES:
            _fs.write_all(new, b"".join(out))
            out, size = [], 0
    _fs.write_all(new, b"".join(out))


def _kept_of(line: LogLine, pieces: _Pieces, edits: _Edits) -> list[bytes]:
    """Return what a line leaves in the new log, newlines included."""
    first_of = [line.offset + span.offset for span in line.records]
    ends = [first + len(span.raw) for first, span in zip(first_of, line.records, strict=True)]
    touched = any(first in edits.moved for first in first_of) or any(end in edits.added for end in ends)
    if line.is_plain and not touched:
        return [line.raw, b"\n"] if line.terminated or line.records else [line.raw]
    reasons = {damage.offset: damage.reason for damage in line.damage}
    kept: list[bytes] = []
    at = 0
    for span, first, end in zip(line.records, first_of, ends, strict=True):
        _keep_gap(line, at, span.offset, reasons, pieces)
        at = span.offset + len(span.raw)
        if first in edits.moved:
            pieces.add(line.number, first, span.raw, edits.moved[first])
        else:
            kept += (span.raw, b"\n")
        for added in edits.added.get(end, ()):
            kept += (added, b"\n")
    _keep_gap(line, at, len(line.raw), reasons, pieces)
    return kept


def _keep_gap(line: LogLine, start: int, stop: int, reasons: dict[int, str], pieces: _Pieces) -> None:
    """Move what lies between records aside, unless it is nothing but space, NUL and byte order marks."""
    gap = line.raw[start:stop]
    if gap.replace(BOM, b"").strip(PADDING):
        reason = next((reason for at, reason in reasons.items() if start <= at < stop), "no whole record")
        pieces.add(line.number, line.offset + start, gap, reason)


def _keep_pieces(torn: AppendLog, data: bytes) -> None:
    """Add pieces to a ``.torn`` file, durably, unless a repair that was cut short has put these very ones there."""
    if not data:
        return
    try:
        fd = _fs.open_regular(torn.path)
    except FileNotFoundError:
        pass
    else:
        try:
            size = _fs.active().fstat(fd).st_size
            there = size >= len(data) and _fs.read_fd(fd, size - len(data), len(data)) == data
        finally:
            _fs.active().close(fd)
        if there:
            return
    torn.append_locked(data)
    torn.sync()


# --- a store -----------------------------------------------------------------------------------------------------


async def repair_store(
    work_dir: object, *, layout: Layout | None = None, dry_run: bool = False
) -> list[Action]:
    """
    Make the store's own folders private, where they are open to others; with ``dry_run`` only say so.

    All else that can be wrong with a store (links, names that are no ids) is for a person to decide. Raises WriteError.
    """
    store = WorkDirStore(layout or ProjectLayout(), work_dir_path(work_dir))
    return await in_thread(_repair_store, store, dry_run=dry_run)


def _repair_store(store: WorkDirStore, *, dry_run: bool) -> list[Action]:
    actions = []
    for name, path, reason in loose_store_folders(store):
        actions.append(Action(name, "make it private", None, (Finding("loose-mode", name, reason),)))
        if dry_run:
            continue
        try:
            fd = _fs.open_folder(path)
            try:
                _fs.active().fchmod(fd, _fs.FOLDER_MODE)
            finally:
                _fs.active().close(fd)
        except OSError as error:
            raise WriteError.of(error, path) from error
    return actions
