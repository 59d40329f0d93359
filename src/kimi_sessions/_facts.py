"""
What a list shows of a session, read from as few bytes as will do.

The facts of a session (title, times, whether it is empty, what is wrong) come from the head and the tail of its wire
log and from its small documents; the context is opened only where the wire log says nothing. Nothing here writes,
and nothing raises because of what a file holds: that becomes a problem of the session.

All paths are relative to an open sessions folder, so a folder that is renamed meanwhile can't lead elsewhere.
"""

from __future__ import annotations

import math
import os
import stat as stat_module
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from . import _fs, layout
from ._document import Document, parse_document
from ._lines import decode_line, iter_blocks, iter_lines_backwards
from ._text import UNTITLED, clean, title_from
from .findings import Finding
from .wire.scan import (
    HEAD_BYTES,
    first_prompt,
    holds_more_than_headers,
    lines_from_end,
    prompt_in_head,
    records_of,
    turn_record,
)

__all__ = [
    "AHEAD_S",
    "Facts",
    "Marks",
    "created_at",
    "facts_of",
    "is_empty",
    "read_facts",
    "read_flat_facts",
    "sane_time",
]

#: The largest document that is read in one go; larger ones take the slow way.
_DOCUMENT_BYTES = 1 << 14
#: The largest wire log that is read in one go.
_WHOLE_BYTES = 1 << 15
#: A larger log may take long to find a prompt in.
_LONG_BYTES = 4 << 20
#: How far ahead of the clock a time may be and count: clocks differ, but not by more than a day.
AHEAD_S = 86_400.0


class Facts(msgspec.Struct, gc=False, eq=False):
    """
    What is known of one session without opening it.

    ``state`` and ``extra`` are state.json and session.json as decoded objects ({} where there is nothing to read),
    decoded when first asked for; a legacy metadata.json is merged into ``state`` in memory. Times are epoch seconds.
    ``flat`` names the flat file that an old client's session still is, where it could not be moved; else "".
    """

    # No cycle can come about here, and a list makes ten thousand: the garbage collector need not know of them.
    id: str
    title: str = UNTITLED
    updated_at: float = 0.0
    empty: bool = True
    flat: str = ""
    merged_legacy: bool = False
    _state: dict[str, Any] | bytes = b""
    _extra: dict[str, Any] | bytes = b""
    _problems: list[Finding] | None = None

    @property
    def problems(self) -> list[Finding]:
        """What was found wrong; most sessions never have a list made."""
        if self._problems is None:
            self._problems = []
        return self._problems

    @problems.setter
    def problems(self, value: list[Finding]) -> None:
        self._problems = value

    @property
    def state(self) -> dict[str, Any]:
        """The state document."""
        value = self._state
        if isinstance(value, bytes):
            value = self._state = _decoded(value)
        return value

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self._state = value

    @property
    def extra(self) -> dict[str, Any]:
        """The document of our own facts."""
        value = self._extra
        if not value:
            return {}  # as it was, so that whoever keeps facts sees that nothing was decoded
        if isinstance(value, bytes):
            value = self._extra = _decoded(value)
        return value

    @extra.setter
    def extra(self, value: dict[str, Any]) -> None:
        self._extra = value

    @property
    def documents(self) -> tuple[dict[str, Any] | bytes, dict[str, Any] | bytes]:
        """State and extra as they are held: bytes of JSON where nobody has asked yet."""
        return self._state, self._extra

    @property
    def has_problems(self) -> bool:
        """True if anything was found wrong."""
        return bool(self._problems)

    def hold(self, state: bytes, extra: bytes) -> None:
        """Take both documents as bytes of JSON, to be decoded when asked for."""
        self._state = state
        self._extra = extra


def _decoded(data: bytes) -> dict[str, Any]:
    return (parse_document(data).value or {}) if data else {}


class Marks(msgspec.Struct, gc=False, eq=False):
    """
    What the facts of a session were read from: a later look at the same files tells whether they still hold.

    Each is None where the file was not there. ``lasting`` is False where the facts depend on more than these and on
    what is there (the clock, a file that could not be read, uploads). ``needs_context`` is True where they depend on
    the context, of which else only its being there counts. ``recall`` may be set to something that knows the first
    prompt of a long log faster than by looking for it: called with the open log, the session's id, what is known of
    the log, and its head. ``hurry``, where it is set, is called before anything that may take longer than a moment.
    """

    wire: os.stat_result | None = None
    state: os.stat_result | None = None
    extra: os.stat_result | None = None
    legacy: os.stat_result | None = None
    context: os.stat_result | None = None
    lasting: bool = True
    needs_context: bool = False
    recall: Callable[[int, str, os.stat_result, bytes], str] | None = None
    hurry: Callable[[], None] | None = None


class _StateFields(msgspec.Struct):
    """The fields of state.json that a list needs of every session; of any type, as they come."""

    custom_title: Any = None
    wire_mtime: Any = None


class _ExtraFields(msgspec.Struct):
    """The fields of session.json that a list needs of every session."""

    created_at: Any = None
    parent: Any = None
    origin: Any = None


_decode_state = msgspec.json.Decoder(_StateFields).decode
_decode_extra = msgspec.json.Decoder(_ExtraFields).decode


def sane_time(value: object, now: float) -> float | None:
    """Return a time in epoch seconds if it can be one: finite, not negative, at most a day ahead."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isfinite(number) and 0 <= number <= now + AHEAD_S:
        return number
    return None


def _read_document(path: str, root_fd: int) -> tuple[bytes | None, os.stat_result | None, str]:
    """Read the bytes of a document: ``(data, what it is, problem)``; None and no problem where there is none."""
    fs = _fs.active()
    try:
        fd, found = _fs.open_known(path, dir_fd=root_fd)
    except FileNotFoundError:
        return None, None, ""
    except OSError as error:
        return None, None, f"can't be read: {error.strerror}"
    try:
        # One byte more than there should be: so one read tells that this is all.
        want = min(found.st_size + 1, _DOCUMENT_BYTES)
        data = fs.read(fd, want)
        if len(data) == want or len(data) < found.st_size:
            data = _fs.read_small(path, dir_fd=root_fd)
    except OSError as error:
        return None, found, f"can't be read: {error.strerror}"
    finally:
        fs.close(fd)
    return data, found, ""


def read_facts(
    root_fd: int, name: str, *, now: float | None = None, marks: Marks | None = None
) -> Facts | None:
    """
    Read the facts of the session folder ``name`` in an open sessions folder; None if it is no session.

    A session is a folder with a context.jsonl, a wire.jsonl or a rotated context. ``now`` is in epoch seconds.
    ``marks`` is filled with what was read from. Raises what ``marks.recall`` and ``marks.hurry`` raise, and OSError
    for a failure that no rule of this room foresees.
    """
    if now is None:
        now = time.time()
    reading = _Reading(root_fd, name + "/", now, Marks() if marks is None else marks, Facts(name), [])
    reading.read_state()
    reading.read_extra()
    reading.read_legacy()
    reading.read_wire()
    return reading.facts_with_context()


class _Reading(msgspec.Struct, gc=False, eq=False):
    """The facts of one session as they are being read. The methods are called once each, in their order."""

    root_fd: int
    prefix: str
    now: float
    marks: Marks
    facts: Facts
    problems: list[Finding]
    #: True once something could not be read: then nothing is taken for what it is usually.
    odd: bool = False
    custom: object = None
    wire_mtime: object = None
    created: object = None
    latest: float | None = None
    title: str = ""
    prompt: str = ""
    wire_there: bool = True

    def read_state(self) -> None:
        """Read state.json: a title that a person gave, a time."""
        facts = self.facts
        data, self.marks.state, problem = _read_document(self.prefix + layout.STATE, self.root_fd)
        self.odd = bool(problem)
        if data is not None:
            try:
                fields = _decode_state(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                document = parse_document(data)
                facts.state = document.value or {}
                problem = document.problem
                self._take_state()
            else:
                facts._state = data
                self.custom, self.wire_mtime = fields.custom_title, fields.wire_mtime
        if problem:
            # What can't be read may be a title, a tag, anything: then the session is not taken for empty.
            facts.empty = facts.empty and data == b""
            self.problems.append(Finding("bad-state", layout.STATE, problem))

    def _take_state(self) -> None:
        state = self.facts.state
        self.custom, self.wire_mtime = state.get("custom_title"), state.get("wire_mtime")

    def read_extra(self) -> None:
        """Read session.json: when a fork or what was migrated was made."""
        if not (self.odd or _fs.may_exist(self.prefix + layout.SESSION, self.root_fd)):
            return
        facts = self.facts
        data, self.marks.extra, problem = _read_document(self.prefix + layout.SESSION, self.root_fd)
        self.odd = self.odd or bool(problem)
        if data is not None:
            try:
                own = _decode_extra(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                document = parse_document(data)
                extra = facts.extra = document.value or {}
                problem = document.problem
                if extra.get("parent") or extra.get("origin"):
                    self.created = extra.get("created_at")
            else:
                facts._extra = data
                if own.parent or own.origin:
                    self.created = own.created_at
        if problem:
            facts.empty = facts.empty and data == b""
            self.problems.append(Finding("bad-document", layout.SESSION, problem))

    def read_legacy(self) -> None:
        """Read metadata.json, which old clients had beside state.json or in its place."""
        if not (self.odd or _fs.may_exist(self.prefix + layout.METADATA, self.root_fd)):
            return
        data, self.marks.legacy, problem = _read_document(self.prefix + layout.METADATA, self.root_fd)
        self.odd = self.odd or bool(problem)
        if data is not None or problem:
            document = parse_document(data) if data is not None else Document(None, problem, whole=False)
            _merge_legacy(self.facts, document, self.problems)
            self._take_state()

    def read_wire(self) -> None:
        """Look into wire.jsonl for the time of the last record and, where nobody gave a title, the first prompt."""
        custom = self.custom
        if isinstance(custom, str):
            self.title = clean(custom)
        try:
            fd, found = _fs.open_known(self.prefix + layout.WIRE, dir_fd=self.root_fd)
        except FileNotFoundError:
            self.wire_there = False
            return
        except OSError as error:
            self._unreadable_wire(error)
            return
        self.marks.wire = found
        try:
            self._look_into_wire(fd, found)
        except OSError as error:
            self._unreadable_wire(error)
        finally:
            _fs.active().close(fd)

    def _unreadable_wire(self, error: OSError) -> None:
        self.odd = True
        self.facts.empty = False
        self.problems.append(Finding("unreadable", layout.WIRE, f"can't be read: {error.strerror}"))

    def _look_into_wire(self, fd: int, found: os.stat_result) -> None:
        size = found.st_size
        head = _fs.read_fd(fd, 0, size if size <= _WHOLE_BYTES else HEAD_BYTES)
        if len(head) < size <= _WHOLE_BYTES:
            size = len(head)
        latest = _last_time(fd, head, size, now=self.now, problems=self.problems, marks=self.marks)
        self.latest = latest
        if latest is not None or (size and holds_more_than_headers(fd)):
            self.facts.empty = False
        if self.title:
            return
        self.prompt = prompt_in_head(head, size)
        if self.prompt:
            return
        recall = self.marks.recall
        if recall is not None and size > _LONG_BYTES:
            self.prompt = recall(fd, self.facts.id, found, head)
        elif size > len(head):
            if self.marks.hurry is not None:
                self.marks.hurry()
            self.prompt = first_prompt(fd, head, size)

    def facts_with_context(self) -> Facts | None:
        """
        Look at context.jsonl, and into it where the wire log said nothing. Return the facts; None if this is no
        session.
        """
        facts, marks = self.facts, self.marks
        context_mtime = 0.0
        try:
            found = _fs.active().stat(
                self.prefix + layout.CONTEXT, dir_fd=self.root_fd, follow_symlinks=False
            )
        except FileNotFoundError:
            if not self._is_session_without_context():
                return None
        except OSError as error:
            self.odd = True
            if not self.wire_there:
                self.problems.append(
                    Finding("unreadable", layout.CONTEXT, f"can't be read: {error.strerror}")
                )
        else:
            marks.context = found
            context_mtime = found.st_mtime
            if not stat_module.S_ISREG(found.st_mode):
                facts.empty = False
                self.problems.append(
                    Finding("irregular", layout.CONTEXT, "not a regular file; it was not read")
                )
        facts.title = self.title or self.prompt or UNTITLED
        facts.updated_at = self._time_with(context_mtime)
        if facts.empty:
            self._look_whether_empty()
        if self.odd:
            marks.lasting = False
        if self.problems:
            facts.problems = self.problems
        return facts

    def _is_session_without_context(self) -> bool:
        children = _children(self.root_fd, self.facts.id)
        if children is None:
            self.odd = True
            finding = Finding("unreadable", ".", "its folder can't be looked into")
        elif not self.wire_there and all(layout.rotated_number(child) is None for child in children):
            return False
        else:
            finding = Finding("no-context", layout.CONTEXT, "the context is missing; it reads as empty")
        self.problems.append(finding)
        return True

    def _time_with(self, context_mtime: float) -> float:
        """Return the latest time that was found, in epoch seconds; that of the context where there is none."""
        latest, now, marks = self.latest, self.now, self.marks
        for value in (self.wire_mtime, self.created):
            if value is not None:
                seconds = sane_time(value, now)
                if seconds is None:
                    marks.lasting = marks.lasting and not _may_come(value)
                elif latest is None or seconds > latest:
                    latest = seconds
        if latest is None:
            marks.needs_context = True
            latest = sane_time(context_mtime, now)
            if latest is None:
                marks.lasting = marks.lasting and not _may_come(context_mtime)
                latest = 0.0
        return latest

    def _look_whether_empty(self) -> None:
        """Settle whether a session without a wire record is empty, and what that depends on."""
        facts, marks = self.facts, self.marks
        if self.title:
            facts.empty = False
            return
        if marks.hurry is not None and marks.context is not None and marks.context.st_size > _WHOLE_BYTES:
            marks.hurry()
        filled_by = _what_fills(self.root_fd, facts.id, facts.extra)
        facts.empty = filled_by is None
        if filled_by == layout.CONTEXT:
            marks.needs_context = True
        elif filled_by != layout.SESSION:
            marks.lasting = False


def facts_of(
    root_fd: int, name: str, *, now: float | None = None, marks: Marks | None = None
) -> Facts | None:
    """Like ``read_facts``, and never raise: what keeps a session from being read is a problem of it."""
    try:
        return read_facts(root_fd, name, now=now, marks=marks)
    except OSError as error:
        if marks is not None:
            marks.lasting = False
        facts = Facts(name)
        facts.empty = False
        facts.problems.append(Finding("unreadable", clean(name), f"can't be read: {error.strerror}"))
        return facts


def _may_come(value: object) -> bool:
    """Tell whether a time that was refused may be taken later, when the clock has come nearer."""
    return isinstance(value, (int, float)) and value > 0


def _merge_legacy(facts: Facts, document: Document, problems: list[Finding]) -> None:
    """Merge metadata.json (1.7 to 1.28) in memory; the file is moved aside by the next save, not by a reader."""
    if document.value is None:
        facts.empty = facts.empty and document.whole
        problems.append(Finding("bad-document", layout.METADATA, document.problem or "not a JSON object"))
        return
    from ._state_merge import merge_legacy_metadata

    facts.state, facts.merged_legacy = merge_legacy_metadata(facts.state, document.value)


def _last_time(
    fd: int, head: bytes, size: int, *, now: float, problems: list[Finding], marks: Marks
) -> float | None:
    """Return the time of the last record that has a readable one."""
    tail = head if size <= len(head) else _fs.read_fd(fd, size - HEAD_BYTES, HEAD_BYTES)
    if tail.endswith(b"\n"):
        # Most logs end in a plain record on a line of its own.
        cut = tail.rfind(b"\n", 0, len(tail) - 1)
        if cut >= 0:
            plain = turn_record(tail[cut + 1 : -1])
            if plain is not None and 0 <= plain.timestamp <= now:
                return plain.timestamp
    if size <= len(head):
        lines: Iterator[tuple[int, bytes]] = lines_from_end(head)
    else:
        if marks.hurry is not None:
            marks.hurry()  # a torn line may be as long as the log, and is looked through for what is whole in it
        lines = iter_lines_backwards(fd, size)
    terminated = tail.endswith(b"\n")
    for offset, line in lines:
        records = records_of(line)
        if not records and not terminated and line.strip():
            reason = "the last line is no whole record"
            problems.append(Finding("torn-tail", layout.WIRE, reason, offset=offset, length=len(line)))
        terminated = True
        for record in reversed(records):
            found = sane_time(record.timestamp, now)
            if found is not None:
                return found
            marks.lasting = marks.lasting and not _may_come(record.timestamp)
    return None


def _children(root_fd: int, name: str) -> list[str] | None:
    """Return the names in a folder, none for one that is gone; None if they can't be had, so anything may be there."""
    fs = _fs.active()
    try:
        fd = _fs.open_folder(name, dir_fd=root_fd)
    except (FileNotFoundError, _fs.IrregularFileError):
        # Gone or replaced while we looked; whoever asked has other ways to notice.
        return []
    except OSError:
        return None
    try:
        with fs.scandir(fd) as entries:
            return sorted(entry.name for entry in entries)
    except OSError:
        return None
    finally:
        fs.close(fd)


def _what_fills(root_fd: int, name: str, extra: dict[str, Any]) -> str | None:
    """Name what keeps a session without a wire record from being empty: a file, or what can't be seen; else None."""
    if extra.get("tags") or extra.get("pinned"):
        return layout.SESSION
    children = _children(root_fd, name)
    if children is None:
        return name
    for child in children:
        path = f"{name}/{child}"
        if (child == layout.CONTEXT or layout.rotated_number(child) is not None) and not _context_is_empty(
            path, root_fd
        ):
            return child
        if child == layout.UPLOADS and _children(root_fd, path) != []:
            return child
    return None


def read_flat_facts(root_fd: int, session_id: str, flats: Sequence[str]) -> Facts | None:
    """
    Read the facts of a session that is still a flat file, because it could not be moved; None if it is none.

    ``flats`` are its flat files in the open sessions folder, rotations among them.
    """
    facts = Facts(session_id)
    facts.flat = session_id + layout.FLAT_SUFFIX
    fs = _fs.active()
    try:
        found = fs.stat(facts.flat, dir_fd=root_fd, follow_symlinks=False)
        try:
            place = fs.stat(session_id, dir_fd=root_fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            place = stat_module.S_IFDIR
    except OSError:
        return None
    # A link in its folder's place would make a wire log out of whatever it leads to.
    if not stat_module.S_ISREG(found.st_mode) or not stat_module.S_ISDIR(place):
        return None
    facts.updated_at = sane_time(found.st_mtime, time.time()) or 0.0
    facts.empty = all(_context_is_empty(name, root_fd) for name in flats)
    return facts


def first_words(root_fd: int, name: str, flat: str = "") -> str:
    """
    Return the title that the first words of a session's contexts would make, the oldest context first; "" for none.

    ``flat`` is its flat file, where it still is one. What can't be read says nothing.
    """
    from .context.history import first_said

    rotated = sorted(
        (number, child)
        for child in _children(root_fd, name) or ()
        if (number := layout.rotated_number(child)) is not None
    )
    paths = [f"{name}/{child}" for _, child in rotated] + [flat or f"{name}/{layout.CONTEXT}"]
    for path in paths:
        try:
            fd = _fs.open_regular(path, dir_fd=root_fd)
        except OSError:
            continue
        try:
            words = title_from(first_said(fd))
        except OSError:
            continue
        finally:
            _fs.active().close(fd)
        if words:
            return words
    return ""


def _no_refusal(_: dict[str, Any]) -> str | None:
    return None


def _context_is_empty(path: str, root_fd: int) -> bool:
    """Tell whether a context holds only records whose role starts with ``_``; unreadable is not empty."""
    try:
        fd = _fs.open_regular(path, dir_fd=root_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        for block in iter_blocks(fd, size=HEAD_BYTES):
            for line in block.lines:
                if not line.strip():
                    continue
                decoded = decode_line(line, _no_refusal)
                if decoded.damage:
                    return False
                for span in decoded.records:
                    role = span.value.get("role")
                    if not isinstance(role, str) or not role.startswith("_"):
                        return False
    except OSError:
        return False
    finally:
        _fs.active().close(fd)
    return True


def is_empty(root_fd: int, name: str) -> bool:
    """Tell afresh, from disk, whether a session is empty. A session that is not there is."""
    facts = read_facts(root_fd, name)
    return facts is None or facts.empty


def first_record_time(root_fd: int, name: str, now: float) -> float | None:
    """Return the time of the first wire record that has a readable one."""
    try:
        fd = _fs.open_regular(f"{name}/{layout.WIRE}", dir_fd=root_fd)
    except OSError:
        return None
    try:
        for block in iter_blocks(fd, size=HEAD_BYTES):
            for line in block.lines:
                for record in records_of(line):
                    found = sane_time(record.timestamp, now)
                    if found is not None:
                        return found
    except OSError:
        return None
    finally:
        _fs.active().close(fd)
    return None


def created_at(root_fd: int, name: str, extra: dict[str, Any], now: float) -> float:
    """Return when a session began: session.json, else the first wire record, else the context's mtime, else 0."""
    found = sane_time(extra.get("created_at"), now)
    if found is None:
        found = first_record_time(root_fd, name, now)
    if found is None:
        try:
            mtime = (
                _fs.active().stat(f"{name}/{layout.CONTEXT}", dir_fd=root_fd, follow_symlinks=False).st_mtime
            )
        except OSError:
            return 0.0
        found = sane_time(mtime, now)
    return 0.0 if found is None else found
