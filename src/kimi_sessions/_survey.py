"""
Everything that can be seen of one session folder: the damage in its logs and documents, and what else is amiss.

One walk over the folder, from an open descriptor; nothing is written and nothing is followed out. ``check`` makes a
report of what is seen here, ``repair`` acts on it and reads the lines of a log by the same rules, so the two can't
disagree. What the store around the session knows (its seal, flat files of old clients) is not seen from here.
"""

from __future__ import annotations

import enum
import math
import os
import stat as stat_module
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import _fs, layout
from ._document import bad_bytes, read_document
from ._lines import BOM, PADDING, Accept, Damage, Span, decode_line, decode_value, iter_blocks
from ._text import clean
from .context.history import UnmatchedCall, refuse_control, refuse_message, unmatched_tool_calls
from .context.history import refuse as refuse_context
from .context.roles import MESSAGE_ROLES, USAGE_ROLE
from .findings import Finding
from .wire.records import is_header
from .wire.records import refuse as refuse_wire

__all__ = [
    "ContextReading",
    "Issue",
    "LogLine",
    "LogTotals",
    "RecordPlace",
    "Remedy",
    "Survey",
    "bad_extra_fields",
    "bad_state_fields",
    "log_lines",
    "survey_flat",
    "survey_folder",
]

#: The real client writes a document in milliseconds; a temp file older than this has lost its writer.
_TEMP_AGE_S = 60.0
#: Nothing a client makes goes deeper than three; each level of the walk keeps a descriptor open.
_DEEPEST = 40
_TURN_END_SINCE = (1, 2)


# --- what is seen ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogTotals:
    """
    What one log holds, counted by the policy that every reader follows.

    Attributes:
        file: path relative to the session folder.
        size_bytes: length of the file.
        lines: how many lines, blank ones included.
        records: whole records; of a wire log without its headers, of a context with its control records.
        headers: headers of a wire log.
        messages: messages of a context log.
        turns: turns of a wire log.
    """

    file: str
    size_bytes: int = 0
    lines: int = 0
    records: int = 0
    headers: int = 0
    messages: int = 0
    turns: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dict, for JSON."""
        return {name: getattr(self, name) for name in LogTotals.__slots__}


class Remedy(enum.Enum):
    """What a repair does about an issue."""

    NOTHING = "nothing"
    TIGHTEN = "tighten"
    SET_ASIDE = "set aside"
    REBUILD = "rebuild"
    CREATE = "create"
    REWRITE = "rewrite"
    BRING_IN = "bring in"


class Issue(NamedTuple):
    """A finding (or a note), the real names that lead to its file, and what a repair does about it."""

    finding: Finding
    parts: tuple[str, ...]
    remedy: Remedy
    is_note: bool = False


@dataclass(slots=True)
class Survey:
    """What was seen in a session folder."""

    issues: list[Issue] = field(default_factory=list)
    logs: list[LogTotals] = field(default_factory=list)
    #: False if the folder holds nothing that makes it a session.
    is_session: bool = True

    def add(self, other: Survey) -> None:
        """Take what another survey saw as well."""
        self.issues += other.issues
        self.logs += other.logs
        self.is_session = self.is_session and other.is_session


# --- the lines of a log ------------------------------------------------------------------------------------------


class LogLine(NamedTuple):
    """A line of a log as it lies in the file, with the whole records in it and the damage."""

    number: int
    offset: int
    raw: bytes
    terminated: bool
    records: list[Span]
    damage: list[Damage]

    @property
    def is_plain(self) -> bool:
        """True for a blank line, and for one whole record and nothing else."""
        if self.damage or len(self.records) > 1:
            return False
        return not self.records or not self.starts_with_mark

    @property
    def starts_with_mark(self) -> bool:
        """True if a byte order mark stands before the record."""
        return self.raw.lstrip(PADDING).startswith(BOM)


def log_lines(fd: int, end: int | None, accept: Accept) -> Iterator[LogLine]:
    """Yield the lines of an open log up to ``end`` bytes. Raises OSError."""
    number = 0
    for block in iter_blocks(fd, 0, end):
        offset = block.offset
        for raw in block.lines:
            number += 1
            decoded = decode_line(raw, accept)
            yield LogLine(number, offset, raw, block.terminated, decoded.records, decoded.damage)
            offset += len(raw) + 1


def line_findings(line: LogLine, file: str) -> Iterator[Finding]:
    """Yield what is wrong with a line, whatever its log is about."""
    ends_torn = False
    for damage in line.damage:
        last = line.raw[damage.offset + damage.length :].strip(PADDING) == b""
        if "NUL bytes" in damage.reason:
            kind = "nul-bytes"
        elif last and not line.terminated:
            kind, ends_torn = "torn-tail", True
        else:
            kind = "damaged-line"
        yield Finding(kind, file, damage.reason, line.number, line.offset + damage.offset, damage.length)
    if len(line.records) > 1:
        yield Finding(
            "fused-line",
            file,
            f"{len(line.records)} records on one line",
            line.number,
            line.offset,
            len(line.raw),
        )
    if line.records and line.starts_with_mark:
        yield Finding(
            "stray-bom", file, "a byte order mark before a record", line.number, line.offset, len(BOM)
        )
    if line.records and not line.terminated and not ends_torn:
        last_record = line.records[-1]
        yield Finding(
            "unterminated-tail",
            file,
            "the last record lacks its newline",
            line.number,
            line.offset + last_record.offset,
            len(last_record.raw),
        )


class RecordPlace(NamedTuple):
    """Where a record of a log lies: line number, first byte, first byte after it."""

    line_number: int
    offset: int
    end_offset: int


@dataclass(slots=True)
class ContextReading:
    """
    The records of a context that say nothing or fit nowhere, and where its tool calls went unanswered.

    ``bad`` and ``orphans`` are records to move aside, with the reason. ``unanswered`` are calls, each with the place
    of its message and the offset after which its result belongs: behind the other results of the same message.
    """

    bad: list[tuple[RecordPlace, str]] = field(default_factory=list)
    unknown: list[tuple[RecordPlace, str]] = field(default_factory=list)
    orphans: list[tuple[RecordPlace, UnmatchedCall]] = field(default_factory=list)
    unanswered: list[tuple[RecordPlace, UnmatchedCall, int]] = field(default_factory=list)
    messages: int = 0
    records: int = 0
    _slim: list[dict[str, Any]] = field(default_factory=list)
    _places: list[RecordPlace] = field(default_factory=list)
    _results_end: dict[int, int] = field(default_factory=dict)
    _open: int | None = None

    def feed(self, line: LogLine) -> None:
        """Take the records of a line."""
        for span in line.records:
            first = line.offset + span.offset
            self._feed(RecordPlace(line.number, first, first + len(span.raw)), span.value)

    def _feed(self, place: RecordPlace, record: dict[str, Any]) -> None:
        role = record["role"]
        if role.startswith("_"):
            refusal = refuse_control(record)
            if refusal is not None:
                self.bad.append((place, refusal))
                return
            self.records += 1
            if self._open is not None and role == USAGE_ROLE:
                # A usage stands between a message and the results of its calls.
                self._results_end[self._open] = place.end_offset
            else:
                self._open = None
            return
        if role not in MESSAGE_ROLES:
            self.unknown.append((place, role))
            return
        refusal = refuse_message(record)
        if refusal is not None:
            self.bad.append((place, refusal))
            return
        self.records += 1
        index = self.messages
        self.messages += 1
        self._places.append(place)
        self._slim.append({key: record.get(key) for key in ("role", "tool_calls", "tool_call_id")})
        if role == "assistant":
            self._open = index
            self._results_end[index] = place.end_offset
        elif role == "tool" and self._open is not None:
            self._results_end[self._open] = place.end_offset
        else:
            self._open = None

    def pair(self) -> None:
        """Pair calls with results, once all lines were taken."""
        for call in unmatched_tool_calls(self._slim):
            place = self._places[call.message_index]
            if call.is_orphan:
                self.orphans.append((place, call))
            else:
                self.unanswered.append((place, call, self._results_end[call.message_index]))


# --- one session folder ------------------------------------------------------------------------------------------


class _Kind(enum.Enum):
    WIRE = enum.auto()
    #: A context that goes to the model; its tool calls must have results.
    LIVE_CONTEXT = enum.auto()
    OLD_CONTEXT = enum.auto()
    STATE = enum.auto()
    EXTRA = enum.auto()
    DOCUMENT = enum.auto()
    NAMES = enum.auto()
    LOCK = enum.auto()
    TORN = enum.auto()
    TEMP = enum.auto()
    KEPT = enum.auto()
    FOLDER = enum.auto()
    OTHER = enum.auto()


_TOP = {
    layout.STATE: _Kind.STATE,
    layout.SESSION: _Kind.EXTRA,
    layout.METADATA: _Kind.DOCUMENT,
    layout.SEAL: _Kind.DOCUMENT,
    layout.LOCK: _Kind.LOCK,
    layout.HOLD: _Kind.LOCK,
    layout.UPLOADS: _Kind.FOLDER,
    layout.SUBAGENTS: _Kind.FOLDER,
    layout.TASKS: _Kind.FOLDER,
    layout.NOTIFICATIONS: _Kind.FOLDER,
}
_BELOW = {
    layout.SUBAGENTS: frozenset({layout.AGENT_META, layout.STATE}),
    layout.TASKS: frozenset(layout.TASK_DOCUMENTS),
    layout.NOTIFICATIONS: frozenset(layout.NOTIFICATION_DOCUMENTS),
}


def _kind_of(parts: tuple[str, ...]) -> _Kind:
    """Say what a name below a session folder stands for."""
    name = parts[-1]
    if layout.is_set_aside_name(name):
        return _Kind.KEPT
    if layout.is_temp_name(name):
        return _Kind.TEMP
    if name.endswith(layout.TORN_SUFFIX):
        return _Kind.TORN
    is_agent = len(parts) == 3 and parts[0] == layout.SUBAGENTS
    if len(parts) == 1 or is_agent:
        if name == layout.WIRE:
            return _Kind.WIRE
        if name == layout.CONTEXT:
            return _Kind.LIVE_CONTEXT
        if layout.rotated_number(name) is not None or layout.old_subagent_number(name) is not None:
            return _Kind.OLD_CONTEXT
    if len(parts) == 1:
        return _TOP.get(name, _Kind.OTHER)
    if parts == (layout.UPLOADS, layout.UPLOADS_SENT):
        return _Kind.NAMES
    if len(parts) == 3 and name in _BELOW.get(parts[0], ()):
        return _Kind.DOCUMENT
    return _Kind.OTHER


_TAKEN_AS_FOUND = frozenset({_Kind.OTHER, _Kind.KEPT, _Kind.TEMP})


class _Surveyor:
    """Walks one session folder."""

    def __init__(self, now: float) -> None:
        self.survey = Survey()
        self._now = now
        self._seen: set[str] = set()
        self._answered = False

    def note(self, kind: str, file: str, reason: str, parts: tuple[str, ...] = (), **place: int) -> None:
        self.survey.issues.append(
            Issue(Finding(kind, file, reason, **place), parts, Remedy.NOTHING, is_note=True)
        )

    def find(self, finding: Finding, parts: tuple[str, ...], remedy: Remedy) -> None:
        self.survey.issues.append(Issue(finding, parts, remedy))

    def unreadable(self, parts: tuple[str, ...], error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            return  # gone since its folder was read: another program's temp file, or the session itself
        self.find(
            Finding("unreadable", _shown(parts), f"can't be read: {error.strerror}"), parts, Remedy.NOTHING
        )

    # --- the tree ------------------------------------------------------------------------------------------------

    def run(self, fd: int) -> Survey:
        self._mode(_fs.active().fstat(fd).st_mode, (), _fs.FOLDER_MODE)
        self._visit(fd, ())
        top = self._seen
        rotated = any(layout.rotated_number(name) is not None for name in top)
        wire_or_rotated = layout.WIRE in top or rotated
        if layout.CONTEXT not in top:
            if wire_or_rotated:
                self.find(
                    Finding("no-context", layout.CONTEXT, "the context is missing; it reads as empty"),
                    (layout.CONTEXT,),
                    Remedy.CREATE,
                )
            else:
                self.survey.is_session = False
        elif self._answered and not rotated:
            self._forgotten()
        return self.survey

    def _forgotten(self) -> None:
        """Note a context of no bytes in a session where the model answered: as a full disk leaves one."""
        if any(each.file == layout.CONTEXT and each.size_bytes == 0 for each in self.survey.logs):
            self.note(
                "empty-context",
                layout.CONTEXT,
                "no bytes, though the model was asked: who goes on with this session remembers nothing of it",
                (layout.CONTEXT,),
            )

    def flat(self, fd: int, name: str, mode: int, *, live: bool) -> None:
        """Look at one context that lies outside any session folder."""
        self._mode(mode, (name,), _fs.FILE_MODE)
        self._context(fd, (name,), live=live)

    def _visit(self, fd: int, parts: tuple[str, ...]) -> None:
        fs = _fs.active()
        try:
            with fs.scandir(fd) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as error:
            self.unreadable(parts, error)
            return
        if not parts:
            self._seen.update(names)
        for name in names:
            below = (*parts, name)
            try:
                found = fs.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                self.unreadable(below, error)
                continue
            self._visit_one(fd, below, found)

    def _visit_one(self, fd: int, parts: tuple[str, ...], found: os.stat_result) -> None:
        kind = _kind_of(parts)
        if stat_module.S_ISDIR(found.st_mode):
            if kind is not _Kind.FOLDER and kind not in _TAKEN_AS_FOUND:
                self._irregular(parts, "a folder", kind)
                return
            self._mode(found.st_mode, parts, _fs.FOLDER_MODE)
            if len(parts) >= _DEEPEST:
                self.note("too-deep", _shown(parts), "nested too deeply; not looked into", parts)
                return
            try:
                inner = _fs.open_folder(parts[-1], dir_fd=fd)
            except OSError as error:
                self.unreadable(parts, error)
                return
            try:
                self._visit(inner, parts)
            finally:
                _fs.active().close(inner)
            return
        if not stat_module.S_ISREG(found.st_mode):
            self._irregular(parts, _fs.kind_of(found.st_mode), kind)
            return
        if kind is _Kind.FOLDER:
            self._irregular(parts, "a file", kind)
            return
        self._mode(found.st_mode, parts, _fs.FILE_MODE)
        try:
            self._read(fd, parts, kind, found)
        except OSError as error:
            self.unreadable(parts, error)

    def _irregular(self, parts: tuple[str, ...], what: str, kind: _Kind) -> None:
        wanted = "a folder" if kind is _Kind.FOLDER else "a regular file"
        if kind is _Kind.KEPT:
            return
        if kind is _Kind.OTHER:
            self.note("irregular", _shown(parts), f"is {what}; it is neither followed nor copied", parts)
            return
        self.find(
            Finding("irregular", _shown(parts), f"is {what}, not {wanted}; it was not read"),
            parts,
            Remedy.SET_ASIDE,
        )

    def _mode(self, mode: int, parts: tuple[str, ...], wanted: int) -> None:
        loose = stat_module.S_IMODE(mode) & ~wanted
        if loose:
            who = "open to other users" if loose & 0o077 else "more than private"
            self.find(
                Finding("loose-mode", _shown(parts), f"{who} (mode {stat_module.S_IMODE(mode):04o})"),
                parts,
                Remedy.TIGHTEN,
            )

    def _read(self, fd: int, parts: tuple[str, ...], kind: _Kind, found: os.stat_result) -> None:
        match kind:
            case _Kind.WIRE:
                self._wire(fd, parts)
            case _Kind.LIVE_CONTEXT | _Kind.OLD_CONTEXT:
                self._context(fd, parts, live=kind is _Kind.LIVE_CONTEXT)
            case _Kind.STATE:
                self._state(fd, parts)
            case _Kind.EXTRA:
                self._extra(fd, parts)
            case _Kind.DOCUMENT:
                self._document(fd, parts, "bad-document", Remedy.SET_ASIDE)
            case _Kind.NAMES:
                self._names(fd, parts)
            case _Kind.TEMP:
                if self._now - found.st_mtime > _TEMP_AGE_S:
                    self.find(
                        Finding("leftover-temp", _shown(parts), "a half-written file whose writer is gone"),
                        parts,
                        Remedy.SET_ASIDE,
                    )
                else:
                    self.note(
                        "temp",
                        _shown(parts),
                        "a file that is being written, or was until a moment ago",
                        parts,
                    )

    # --- documents -----------------------------------------------------------------------------------------------

    def _document(self, fd: int, parts: tuple[str, ...], kind: str, remedy: Remedy) -> dict[str, Any] | None:
        """Read a document and report what keeps it from being read as it is; None if it was reported."""
        document = read_document(parts[-1], dir_fd=fd)
        if not document.problem:
            return document.value
        if document.mark is None:
            # It was not read. Too large is for good; anything else may be better next time.
            too_large = document.problem.startswith("too large")
            self.find(
                Finding(kind if too_large else "unreadable", _shown(parts), document.problem),
                parts,
                Remedy.SET_ASIDE if too_large else Remedy.NOTHING,
            )
            return None
        data = _fs.read_small(parts[-1], dir_fd=fd)
        offset, length = bad_bytes(data)
        self.find(Finding(kind, _shown(parts), document.problem, offset=offset, length=length), parts, remedy)
        return None

    def _state(self, fd: int, parts: tuple[str, ...]) -> None:
        value = self._document(fd, parts, "bad-state", Remedy.REBUILD)
        for name in bad_state_fields(value) if value is not None else ():
            self.find(
                Finding("bad-field", _shown(parts), f"{name} has no usable value; its default stands in"),
                parts,
                Remedy.REBUILD,
            )

    def _extra(self, fd: int, parts: tuple[str, ...]) -> None:
        value = self._document(fd, parts, "bad-document", Remedy.REBUILD)
        for name in bad_extra_fields(value) if value is not None else ():
            self.find(
                Finding("bad-field", _shown(parts), f"{clean(name)} has no usable value"),
                parts,
                Remedy.REBUILD,
            )

    def _names(self, fd: int, parts: tuple[str, ...]) -> None:
        data = _fs.read_small(parts[-1], dir_fd=fd)
        try:
            value = decode_value(data)
        except ValueError:
            value = None
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.find(
                Finding("bad-document", _shown(parts), "not a list of names", offset=0, length=len(data)),
                parts,
                Remedy.SET_ASIDE,
            )

    # --- logs ----------------------------------------------------------------------------------------------------

    def _line(self, line: LogLine, parts: tuple[str, ...], file: str) -> None:
        self._lost_text(line, parts, file)
        if line.is_plain and (line.terminated or not line.records):
            return
        for finding in line_findings(line, file):
            self.find(finding, parts, Remedy.REWRITE)

    def _lost_text(self, line: LogLine, parts: tuple[str, ...], file: str) -> None:
        """Note what no client writes within a record, and readers let through: a disk lost what stood there."""
        for span in line.records:
            at = line.offset + span.offset
            nul = span.raw.find(0)
            if nul >= 0:
                reason = f"{span.raw.count(0)} NUL bytes inside a record, which is read with them"
                self.note("nul-bytes", file, reason, parts, line_number=line.number, offset=at + nul)
            try:
                span.raw.decode()
            except UnicodeDecodeError as error:
                reason = "bytes that are no UTF-8 inside a record, shown as U+FFFD"
                self.note("bad-utf8", file, reason, parts, line_number=line.number, offset=at + error.start)

    def _wire(self, fd: int, parts: tuple[str, ...]) -> None:
        file = _shown(parts)
        log = _fs.open_regular(parts[-1], dir_fd=fd)
        try:
            size = _fs.active().fstat(log).st_size
            records = headers = lines = begun = still_open = 0
            version: tuple[int, ...] | None = None
            first_is_header: bool | None = None
            ends = False
            for line in log_lines(log, size, refuse_wire):
                lines += 1
                self._line(line, parts, file)
                for span in line.records:
                    header = _header_version(span.value)
                    if first_is_header is None:
                        first_is_header = header is not None
                    if header is not None:
                        headers += 1
                        version = max(version or header, header)
                        continue
                    records += 1
                    type_ = span.value["message"]["type"]
                    if type_ == "TurnBegin":
                        begun += 1
                        still_open += 1
                    elif type_ == "TurnEnd":
                        ends = True
                        still_open = max(still_open - 1, 0)
                    elif type_ == "StepBegin" and len(parts) == 1:
                        self._answered = True
        finally:
            _fs.active().close(log)
        self.survey.logs.append(LogTotals(file, size, lines, records, headers, turns=begun))
        if size == 0:
            self.find(
                Finding(
                    "empty-file", file, "an empty log; its header is written with its first record", offset=0
                ),
                parts,
                Remedy.SET_ASIDE,
            )
        if first_is_header is False:
            self.note(
                "no-header", file, "the log does not begin with a header; it reads as version 1.1", parts
            )
        if still_open and (ends or (version or (0,)) >= _TURN_END_SINCE):
            self.note("open-turn", file, f"{_count(still_open, 'turn')} without an end (interrupted)", parts)

    def _context(self, fd: int, parts: tuple[str, ...], *, live: bool) -> None:
        file = _shown(parts)
        reading = ContextReading()
        lines = 0
        log = _fs.open_regular(parts[-1], dir_fd=fd)
        try:
            size = _fs.active().fstat(log).st_size
            for line in log_lines(log, size, refuse_context):
                lines += 1
                self._line(line, parts, file)
                reading.feed(line)
        finally:
            _fs.active().close(log)
        self.survey.logs.append(LogTotals(file, size, lines, reading.records, messages=reading.messages))
        for place, reason in reading.bad:
            self.find(_at(place, "bad-record", file, reason), parts, Remedy.REWRITE)
        for place, role in reading.unknown:
            reason = (
                f"a record of the unknown role {clean(role)[:40]!r}; it is carried along and is no message"
            )
            self.survey.issues.append(
                Issue(_at(place, "unknown-record", file, reason), parts, Remedy.NOTHING, is_note=True)
            )
        if not live:
            return
        reading.pair()
        for place, call, _ in reading.unanswered:
            self.find(
                _at(place, "unmatched-call", file, f"the call of {_tool(call)} has no result"),
                parts,
                Remedy.REWRITE,
            )
        for place, call in reading.orphans:
            self.find(
                _at(place, "orphan-result", file, f"a result without a call ({clean(call.tool_call_id)})"),
                parts,
                Remedy.REWRITE,
            )


def _tool(call: UnmatchedCall) -> str:
    return f"{clean(call.name)} ({clean(call.tool_call_id)})"


def _at(place: RecordPlace, kind: str, file: str, reason: str) -> Finding:
    return Finding(kind, file, reason, place.line_number, place.offset, place.end_offset - place.offset)


def _shown(parts: tuple[str, ...]) -> str:
    """Return a path below the session folder as text that is safe to show; the folder itself is ``.``."""
    return clean("/".join(parts)) if parts else "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _header_version(value: dict[str, Any]) -> tuple[int, ...] | None:
    """Return a header's version, (0,) for one that is no number, None for what is no header."""
    if not is_header(value):
        return None
    try:
        return tuple(int(part) for part in value["protocol_version"].split("."))
    except ValueError:
        return (0,)


def bad_state_fields(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields of a state document that have no usable value."""
    from .state import parse_state

    return parse_state(document)[1]


def bad_extra_fields(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields of a session.json that have no usable value."""
    return [name for name, fits in _EXTRA_FIELDS.items() if name in document and not fits(document[name])]


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_EXTRA_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "created_at": _is_time,
    "tags": lambda value: isinstance(value, list) and all(isinstance(tag, str) for tag in value),
    "pinned": lambda value: isinstance(value, bool),
    "parent": lambda value: value is None or isinstance(value, dict),
    "origin": lambda value: value is None or isinstance(value, (dict, str)),
}


def survey_folder(fd: int) -> Survey:
    """Look at everything in an open session folder. Never raises for what a file holds."""
    return _Surveyor(time.time()).run(fd)


def survey_flat(fd: int, name: str, *, live: bool) -> Survey:
    """Look at an old client's flat file in an open sessions folder: a context that is not in its folder yet."""
    surveyor = _Surveyor(time.time())
    try:
        found = _fs.active().stat(name, dir_fd=fd, follow_symlinks=False)
        surveyor.flat(fd, name, found.st_mode, live=live)
    except OSError as error:
        surveyor.unreadable((name,), error)
    return surveyor.survey
