"""
Statistics of sessions: what was done in them, and what it took.

Counted from the wire log, in one pass, which the next call goes on from. What subagents did (events wrapped in
``SubagentEvent``, to any depth) counts as the session's work: steps, tool calls, tokens, errors. Their turns do not,
nor do they anywhere else. A reply's tokens count once, however often its message id comes. A session without a wire
log is counted from its context, which knows turns and tool calls only.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kimi_sessions import _fs, layout
from kimi_sessions._append_log import open_for_reading
from kimi_sessions._async import in_thread
from kimi_sessions._lines import iter_lines
from kimi_sessions._log import logger
from kimi_sessions.context.history import context_records, is_injected_user_message, refuse_message
from kimi_sessions.layout import Layout
from kimi_sessions.session import Session, SessionList
from kimi_sessions.wire.records import WireMessageRecord, record_from_line, refuse
from kimi_sessions.wire.turns import records_in_line

from ._database import CatalogUnusableError, Connection, ensure_folder_id, folder_id, opened, writing
from ._logs import (
    STATS,
    UNSETTLED,
    Place,
    Position,
    find_position,
    iter_growing,
    marks_of,
    resumes,
    save_position,
    tail_of,
)

__all__ = ["SessionStats", "session_stats", "total", "work_dir_stats"]

#: A longer silence between two records is a pause, not work.
_PAUSE_S = 300.0
#: Calls whose result is awaited are remembered up to here; a log with more of them open is damaged.
_MAX_WAITING = 256
_MAX_DEPTH = 32


@dataclass(slots=True)
class SessionStats:
    """
    What was counted in one session, or (``total``) in several.

    Attributes:
        turns: prompts of the user.
        steps: requests to the model, retries not counted.
        tool_calls: calls by tool.
        tool_errors: of these, the ones whose result was an error, by tool.
        compactions: how often the context was compacted.
        errors: failed tool calls, interrupted steps and refused approvals.
        input_tokens: all that was sent, cached or not; ``cached_tokens`` of it came from the provider's cache.
        output_tokens: what the model wrote.
        first_at: epoch seconds of the first record, None without one; ``last_at`` of the last.
        active_s: seconds between records, silences of more than five minutes left out.
        records: records of the wire log.
        size_bytes: wire log and context together.
    """

    turns: int = 0
    steps: int = 0
    tool_calls: dict[str, int] = field(default_factory=dict)
    tool_errors: dict[str, int] = field(default_factory=dict)
    compactions: int = 0
    errors: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    active_s: float = 0.0
    records: int = 0
    size_bytes: int = 0


async def session_stats(session: Session) -> SessionStats:
    """Count what is in a session. Raises OSError if its log is there but can't be read."""
    return await in_thread(_session_stats, os.fspath(session.path.parent), session.id)


async def work_dir_stats(
    work_dir: object | None = None, *, layout: Layout | None = None, limit: int | None = None
) -> list[tuple[Session, SessionStats]]:
    """
    Count what is in each session of a work dir (None: of every known one), newest first; ``total`` adds them up.

    ``limit`` takes the newest so many. A session whose log can't be read counts as nothing, which is logged.
    """
    sessions: SessionList
    if work_dir is None:
        sessions = await Session.list_all(layout=layout, limit=limit)
    else:
        sessions = await Session.list(work_dir, layout=layout, limit=limit)
    return await in_thread(_stats_of, sessions)


def total(each: Iterable[SessionStats]) -> SessionStats:
    """Add up statistics: times span all of them, the rest is summed."""
    result = SessionStats()
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for stats in each:
        calls.update(stats.tool_calls)
        errors.update(stats.tool_errors)
        for name in _SUMMED:
            setattr(result, name, getattr(result, name) + getattr(stats, name))
        if stats.first_at is not None:
            result.first_at = (
                stats.first_at if result.first_at is None else min(result.first_at, stats.first_at)
            )
        if stats.last_at is not None:
            result.last_at = stats.last_at if result.last_at is None else max(result.last_at, stats.last_at)
    result.tool_calls = dict(calls)
    result.tool_errors = dict(errors)
    return result


_SUMMED = (
    "turns",
    "steps",
    "compactions",
    "errors",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "active_s",
    "records",
    "size_bytes",
)


# --- reading on ---------------------------------------------------------------------------------------------------


def _stats_of(sessions: list[Session]) -> list[tuple[Session, SessionStats]]:
    try:
        with opened() as connection:
            return [(session, _stats_of_one(session, connection)) for session in sessions]
    except CatalogUnusableError as error:
        logger().debug("counting without the catalog: %s", error)
        return [(session, _stats_of_one(session, None)) for session in sessions]


def _stats_of_one(session: Session, connection: Connection | None) -> SessionStats:
    """Count what can be read of one session among many."""
    try:
        return _count(os.fspath(session.path.parent), session.id, connection)
    except OSError as error:
        logger().warning("session %s: its log can't be read: %s", session.id, error.strerror)
        return SessionStats()


def _session_stats(sessions_path: str, name: str) -> SessionStats:
    try:
        with opened() as connection:
            return _count(sessions_path, name, connection)
    except CatalogUnusableError as error:
        logger().debug("counting without the catalog: %s", error)
        return _count(sessions_path, name, None)


def _count(sessions_path: str, name: str, connection: Connection | None) -> SessionStats:
    folder = os.path.join(sessions_path, name)  # noqa: PTH118 - text is enough
    with open_for_reading(f"{folder}/{layout.WIRE}") as fd:
        found = None if fd is None else _fs.active().fstat(fd)
        if fd is None or found is None or not found.st_size:
            return _from_context(folder)
        if connection is None:
            fold = Fold()
            _feed(fold, fd, 0, found.st_size)
        else:
            fold = _read_on(connection, sessions_path, name, fd=fd, found=found)
        stats = fold.stats
        stats.size_bytes = found.st_size + _size(f"{folder}/{layout.CONTEXT}")
        return stats


def _size(path: str) -> int:
    try:
        return _fs.active().stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0


def _read_on(
    connection: Connection, sessions_path: str, name: str, *, fd: int, found: os.stat_result
) -> Fold:
    position: Position | None = None
    number = folder_id(connection, sessions_path)
    if number is not None:
        position = find_position(connection, Place(number, name, layout.WIRE), STATS)
        if position is not None and not resumes(position, fd, found):
            position = None
    fold = Fold()
    offset = 0
    if position is not None:
        fold.load(position.fold)
        offset = position.offset
        log = position.id

        def is_counted(message: int) -> bool:
            row = connection.execute("SELECT 1 FROM counted WHERE log = ? AND message = ?", (log, message))
            return row.fetchone() is not None

        fold.is_counted = is_counted
    end, settled = _feed(fold, fd, offset, found.st_size)
    if position is not None and end == offset:
        return fold
    with writing(connection):
        number = ensure_folder_id(connection, sessions_path)
        log = save_position(
            connection,
            Place(number, name, layout.WIRE),
            STATS,
            marks=marks_of(found),
            offset=end,
            tail=tail_of(fd, end) if settled else UNSETTLED,
            fold=fold.dump(),
        )
        if position is None:
            connection.execute("DELETE FROM counted WHERE log = ?", (log,))
        connection.executemany(
            "INSERT OR IGNORE INTO counted (log, message) VALUES (?, ?)",
            [(log, message) for message in fold.counted],
        )
    return fold


def _feed(fold: Fold, fd: int, offset: int, end: int) -> tuple[int, bool]:
    """Feed a log from an offset to where it ends; return where the next call goes on, and whether it can."""
    settled = True
    for start, lines, settled in iter_growing(fd, offset, end, refuse):  # noqa: B007 - the last one's counts
        for line in lines:
            record = record_from_line(line)
            if record is not None:
                fold.feed(record)
            elif line:
                for _, _, record in records_in_line(line)[0]:
                    fold.feed(record)
        offset = min(start + sum(map(len, lines)) + len(lines), end)
    return offset, settled


# --- counting -----------------------------------------------------------------------------------------------------


class _Returned(msgspec.Struct):
    is_error: Any = None


class _Result(msgspec.Struct):
    tool_call_id: Any = None
    return_value: _Returned | None = None


_decode_result = msgspec.json.Decoder(_Result).decode
#: Records of these types have nothing in them that is counted.
_PASSED_OVER = frozenset(
    {"TurnEnd", "ContentPart", "ToolCallPart", "CompactionEnd", "StepRetry", "SteerInput", "Notification"}
)


class Fold:
    """Records in, in file order; ``stats`` out. ``dump`` and ``load`` carry it from one reading to the next."""

    __slots__ = ("_last", "_waiting", "counted", "is_counted", "stats")

    def __init__(self) -> None:
        self.stats = SessionStats()
        #: Replies counted in this reading, by the hash of their message id; ``is_counted`` knows earlier ones.
        self.counted: set[int] = set()
        self.is_counted: Callable[[int], bool] = _never
        self._waiting: dict[str, str] = {}
        self._last: float | None = None

    def dump(self) -> dict[str, Any]:
        """Return all of it as plain values, the counted replies apart."""
        stats = {name: getattr(self.stats, name) for name in SessionStats.__dataclass_fields__}
        return {"stats": stats, "waiting": self._waiting, "last": self._last}

    def load(self, dumped: dict[str, Any]) -> None:
        """Go on from what ``dump`` gave."""
        self.stats = SessionStats(**dumped["stats"])
        self._waiting = dumped["waiting"]
        self._last = dumped["last"]

    def feed(self, record: WireMessageRecord) -> None:
        """Count one record."""
        stats = self.stats
        stats.records += 1
        now = record.timestamp
        if math.isfinite(now) and now > 0:
            if stats.first_at is None:
                stats.first_at = now
            if self._last is not None and 0 < now - self._last <= _PAUSE_S:
                stats.active_s += now - self._last
            self._last = now
            stats.last_at = now if stats.last_at is None else max(stats.last_at, now)
        kind = record.type
        if kind in _PASSED_OVER:
            return
        if kind == "TurnBegin":
            stats.turns += 1
        elif kind == "StepBegin":
            stats.steps += 1
        elif kind == "ToolResult":
            try:
                result = _decode_result(record.message.payload_json)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._count(kind, record.message.payload, 0)
            else:
                value = result.return_value
                self._take_result(result.tool_call_id, failed=value is not None and value.is_error is True)
        else:
            self._count(kind, record.message.payload, 0)

    def _count(self, kind: str, payload: dict[str, Any], depth: int) -> None:
        stats = self.stats
        if kind == "StepBegin":
            stats.steps += 1
        elif kind == "StepInterrupted":
            stats.errors += 1
        elif kind == "CompactionBegin":
            stats.compactions += 1
        elif kind == "ToolCall":
            function = payload.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            name = name if isinstance(name, str) and name else "?"
            stats.tool_calls[name] = stats.tool_calls.get(name, 0) + 1
            call_id = payload.get("id")
            if isinstance(call_id, str) and len(self._waiting) < _MAX_WAITING:
                self._waiting[call_id] = name
        elif kind == "ToolResult":
            value = payload.get("return_value")
            self._take_result(
                payload.get("tool_call_id"), failed=isinstance(value, dict) and value.get("is_error") is True
            )
        elif kind in {"ApprovalResponse", "ApprovalRequestResolved"}:
            stats.errors += payload.get("response") == "reject"
        elif kind == "StatusUpdate":
            self._take_usage(payload)
        elif kind == "SubagentEvent" and depth < _MAX_DEPTH:
            event = payload.get("event")
            if isinstance(event, dict):
                inner, inside = event.get("type"), event.get("payload")
                if isinstance(inner, str) and isinstance(inside, dict):
                    self._count(inner, inside, depth + 1)

    def _take_result(self, call_id: object, *, failed: bool) -> None:
        name = self._waiting.pop(call_id, "?") if isinstance(call_id, str) else "?"
        if failed:
            self.stats.errors += 1
            self.stats.tool_errors[name] = self.stats.tool_errors.get(name, 0) + 1

    def _take_usage(self, payload: dict[str, Any]) -> None:
        usage = payload.get("token_usage")
        if not isinstance(usage, dict):
            return
        message_id = payload.get("message_id")
        if isinstance(message_id, str) and message_id:
            digest = hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            message = int.from_bytes(digest, "big", signed=True)
            if message in self.counted or self.is_counted(message):
                return
            self.counted.add(message)
        cached = _count_of(usage, "input_cache_read")
        stats = self.stats
        stats.input_tokens += (
            _count_of(usage, "input_other") + cached + _count_of(usage, "input_cache_creation")
        )
        stats.cached_tokens += cached
        stats.output_tokens += _count_of(usage, "output")


def _never(_message: int) -> bool:
    return False


def _count_of(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


def _from_context(folder: str) -> SessionStats:
    stats = SessionStats()
    with open_for_reading(f"{folder}/{layout.CONTEXT}") as fd:
        if fd is None:
            return stats
        for _, line in iter_lines(fd):
            for span in context_records(line)[0]:
                value = span.value
                if value["role"].startswith("_") or refuse_message(value) is not None:
                    continue
                if value["role"] == "user" and not is_injected_user_message(value):
                    stats.turns += 1
                elif value["role"] == "assistant":
                    stats.steps += 1
                    for call in value.get("tool_calls") or ():
                        name = call["function"]["name"]
                        stats.tool_calls[name] = stats.tool_calls.get(name, 0) + 1
        stats.size_bytes = _fs.active().fstat(fd).st_size
    return stats
