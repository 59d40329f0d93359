"""
Flux data as a source: the snapshots of Flux-CLI, and the message table of a Flux SQLite file.

    <data dir>/sessions/<id>.json       {"session_id", "created_at", "updated_at", "messages", "total_usage", …}
    <data dir>/checkpoints/<id>_*.json  earlier snapshots of the same shape
    <data dir>/user_memory.json         what the user told it to remember
    <file>                              SQLite: messages(session_id, role, content, metadata, created_at)

Here records are made, not copied: each message becomes a context record, and the turns they form a wire log, with
Flux's own times (of a snapshot only the first and the last are known) and its usage as a StatusUpdate. What has no
place there is carried beside, under ``imported/``: the snapshot and its checkpoints byte for byte, the memory, the
table's rows. A message that can't be a record is named.

A database is read from a copy of its own, so that not even a lock file is left beside it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
import stat as stat_module
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kimi_sessions import _fs, ids, layout
from kimi_sessions._document import parse_document
from kimi_sessions._lines import decode_value
from kimi_sessions._text import clean, title_from, user_text
from kimi_sessions.context.roles import MESSAGE_ROLES, SYSTEM_PROMPT_ROLE
from kimi_sessions.errors import DamagedError, SourceNotFoundError
from kimi_sessions.wire.records import WireFileMetadata, dump_json

from .sources import Left, SourceFile, SourceFolder, SourceSession, SourceWorkDir

__all__ = ["read_flux"]

_MAGIC = b"SQLite format 3\0"
_COLUMNS = frozenset({"session_id", "role", "content"})
#: Epoch times above this are in milliseconds.
_MILLISECONDS = 1e11


class _Message(NamedTuple):
    """A message of Flux: its record as it will stand in the context, and its time in epoch seconds."""

    record: dict[str, Any]
    at: float


_NO_FLUX = "no Flux data: neither a folder with sessions/ or checkpoints/ nor a SQLite file"


def read_flux(path: str) -> SourceWorkDir:
    """
    Take stock of Flux's data dir or of a SQLite file. Reads only.

    Raises SourceNotFoundError if there is nothing of Flux, DamagedError for a database without the table.
    """
    path = os.path.abspath(path)
    source = SourceWorkDir(os.path.basename(path) or path, None, path)
    if os.path.isdir(path):
        found = [name for name in ("sessions", "checkpoints") if os.path.isdir(os.path.join(path, name))]
        if not found:
            raise SourceNotFoundError(path=path, reason=_NO_FLUX)
        _read_data_dir(source, path)
        return source
    try:
        fd = _fs.open_regular(path)
    except OSError as error:
        raise SourceNotFoundError(path=path, reason=_NO_FLUX) from error
    try:
        magic = _fs.read_fd(fd, 0, len(_MAGIC))
    finally:
        _fs.active().close(fd)
    if magic != _MAGIC:
        raise SourceNotFoundError(path=path, reason=_NO_FLUX)
    _read_database(source, path)
    return source


# --- the data dir -------------------------------------------------------------------------------------------------


class _Snapshot(NamedTuple):
    place: str
    value: dict[str, Any]
    size_bytes: int
    mtime_ns: int


def _read_data_dir(source: SourceWorkDir, path: str) -> None:
    sessions = {str(each.value["session_id"]): each for each in _snapshots(source, path, "sessions")}
    checkpoints: dict[str, list[_Snapshot]] = {}
    for each in _snapshots(source, path, "checkpoints"):
        checkpoints.setdefault(str(each.value["session_id"]), []).append(each)
    memory = _file_facts(os.path.join(path, "user_memory.json"))
    for flux_id in sorted({*sessions, *checkpoints}):
        earlier = sorted(
            checkpoints.get(flux_id, ()),
            key=lambda each: (_time_of(each.value.get("updated_at")), each.place),
        )
        main = sessions.get(flux_id)
        session = _new_session(flux_id, path, "flux snapshot")
        if main is None:
            main = earlier[-1]
            session.notes.append("it was saved as checkpoints only; the newest one is its conversation")
        beside = [main, *(each for each in earlier if each is not main)]
        session.places = tuple(each.place for each in beside)
        for each in beside:
            name = f"{layout.MADE_OF}/{each.place}"
            session.files.append(SourceFile(name, path, each.place, each.size_bytes, each.mtime_ns))
        if memory is not None:
            size, mtime_ns = memory
            session.files.append(
                SourceFile(f"{layout.MADE_OF}/user_memory.json", path, "user_memory.json", size, mtime_ns)
            )
        _add_snapshot(session, main)
        source.sessions.append(session)


def _snapshots(source: SourceWorkDir, path: str, folder: str) -> Iterator[_Snapshot]:
    try:
        fd = _fs.open_folder(os.path.join(path, folder))
    except FileNotFoundError:
        return
    except OSError as error:
        source.left.append(Left(folder, f"can't be read: {error.strerror}"))
        return
    try:
        with _fs.active().scandir(fd) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            place = f"{folder}/{entry.name}"
            facts = entry.stat(follow_symlinks=False)
            if not entry.name.endswith(".json"):
                source.notes.append(f"{clean(place)} is no snapshot; it stays where it is")
                continue
            if not stat_module.S_ISREG(facts.st_mode):
                kind = _fs.kind_of(facts.st_mode)
                source.left.append(Left(clean(place), f"{kind}; neither followed nor copied"))
                continue
            try:
                document = parse_document(_fs.read_small(entry.name, dir_fd=fd, limit=1 << 30))
            except OSError as error:
                source.left.append(Left(clean(place), f"can't be read: {error.strerror}"))
                continue
            value = document.value
            if (
                value is None
                or not isinstance(value.get("session_id"), str)
                or not isinstance(value.get("messages"), list)
            ):
                reason = document.problem or "it lacks session_id or messages"
                source.left.append(Left(clean(place), f"not a snapshot: {reason}"))
                continue
            yield _Snapshot(place, value, facts.st_size, facts.st_mtime_ns)
    finally:
        _fs.active().close(fd)


def _file_facts(path: str) -> tuple[int, int] | None:
    try:
        facts = _fs.active().stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (facts.st_size, facts.st_mtime_ns) if stat_module.S_ISREG(facts.st_mode) else None


def _add_snapshot(session: SourceSession, snapshot: _Snapshot) -> None:
    value = snapshot.value
    begun = _time_of(value.get("created_at")) or snapshot.mtime_ns / 1e9
    ended = max(_time_of(value.get("updated_at")) or begun, begun)
    usage = value.get("total_usage")
    messages = [_Message(record, begun) for record in _records(value["messages"], session)]
    _add_logs(session, lambda: messages, begun, ended, usage if isinstance(usage, dict) else None)


# --- the database -------------------------------------------------------------------------------------------------


class _Database:
    """A private copy of a SQLite file, for as long as the object lives."""

    def __init__(self, path: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kimi-sessions-")
        self._finish = weakref.finalize(self, self.folder.cleanup)
        self.copy = os.path.join(self.folder.name, "flux.db")
        for suffix in ("", "-wal"):
            if not suffix or os.path.exists(path + suffix):
                self._take(path + suffix, self.copy + suffix)

    @staticmethod
    def _take(source: str, target: str) -> None:
        source_fd = _fs.open_regular(source)
        try:
            target_fd = _fs.create_file(target)
            try:
                _fs.copy_bytes(source_fd, target_fd)
            finally:
                _fs.active().close(target_fd)
        finally:
            _fs.active().close(source_fd)

    def query(self, sql: str, *values: object) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self.copy)
        try:
            connection.row_factory = sqlite3.Row
            connection.text_factory = _lenient_text
            return [dict(row) for row in connection.execute(sql, values)]
        finally:
            connection.close()


def _lenient_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _read_database(source: SourceWorkDir, path: str) -> None:
    database = _Database(path)
    try:
        columns = {str(row["name"]) for row in database.query("PRAGMA table_info(messages)")}
        if not columns >= _COLUMNS:
            raise DamagedError(
                path=path, reason="it has no table 'messages' with session_id, role and content"
            )
        found = database.query(
            "SELECT session_id, COUNT(*) AS count FROM messages GROUP BY session_id ORDER BY MIN(rowid)"
        )
    except sqlite3.Error as error:
        raise DamagedError(path=path, reason=f"it can't be read as a SQLite file ({error})") from error
    mtime_ns = _fs.active().stat(path).st_mtime_ns
    for row in found:
        _add_database_session(source, database, row["session_id"], path, mtime_ns)


def _add_database_session(
    source: SourceWorkDir, database: _Database, flux_id: object, path: str, mtime_ns: int
) -> None:
    session = _new_session(str(flux_id), os.path.dirname(path), "flux database")
    session.places = (os.path.basename(path),)
    rows = _rows_of(database, flux_id)
    messages = [message for row in rows() for message in _row_messages(row, session, mtime_ns / 1e9)]
    begun = min((message.at for message in messages), default=mtime_ns / 1e9)
    ended = max((message.at for message in messages), default=begun)
    _add_logs(session, lambda: messages, begun, ended, None)
    name = f"{layout.MADE_OF}/messages.jsonl"
    session.files.append(SourceFile(name, path, "", 0, int(ended * 1e9), lambda: _dump_rows(rows())))
    source.sessions.append(session)


def _rows_of(database: _Database, session_id: object) -> Callable[[], list[dict[str, Any]]]:
    return lambda: database.query(
        "SELECT rowid AS rowid, * FROM messages WHERE session_id IS ? ORDER BY rowid", session_id
    )


def _dump_rows(rows: list[dict[str, Any]]) -> bytes:
    """Return rows as JSON lines, every column as it is; what JSON has no type for is marked."""

    def plain(value: object) -> object:
        return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value

    lines = [
        json.dumps({key: plain(value) for key, value in row.items()}, ensure_ascii=False) for row in rows
    ]
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")


def _row_messages(row: dict[str, Any], session: SourceSession, fallback: float) -> Iterator[_Message]:
    message: dict[str, Any] = {"role": row["role"], "content": row["content"]}
    metadata = row.get("metadata")
    if isinstance(metadata, str) and metadata.strip():
        try:
            parsed = decode_value(metadata.encode("utf-8", "surrogatepass"))
        except ValueError:
            parsed = metadata
        if isinstance(parsed, dict):
            for key in ("name", "tool_calls", "tool_call_id"):
                if key in parsed:
                    message[key] = parsed.pop(key)
        if parsed:
            message["metadata"] = parsed
    at = _time_of(row.get("created_at")) or fallback
    for record in _records([message], session, first=int(row["rowid"])):
        yield _Message(record, at)


# --- messages to records ------------------------------------------------------------------------------------------


def _new_session(flux_id: str, path: str, era: str) -> SourceSession:
    session_id = flux_id
    if not ids.is_session_id(flux_id):
        session_id = f"flux-{hashlib.sha256(flux_id.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    session = SourceSession(id=session_id, era=era, sessions_path=path, places=())
    if session_id != flux_id:
        session.notes.append(f"its id {clean(flux_id)!r} can't be a session's here")
    session.folders.append(SourceFolder(layout.MADE_OF, time.time_ns()))
    return session


def _records(messages: list[Any], session: SourceSession, *, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield messages as they will stand in a context; those that can't are named, by their number."""
    for number, message in enumerate(messages, first):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in MESSAGE_ROLES:
            reason = (
                f"its role is {clean(str(role))!r}" if isinstance(message, dict) else "it is not an object"
            )
            session.left.append(Left(f"message {number}", f"{reason}; its bytes are in {layout.MADE_OF}/"))
            continue
        record = {**message, "content": _content(message.get("content"))}
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            record["tool_calls"] = [_tool_call(call, index) for index, call in enumerate(calls)]
        else:
            record.pop("tool_calls", None)
        yield {key: value for key, value in record.items() if value is not None}


def _content(content: object) -> object:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    ):
        return content
    return json.dumps(content, ensure_ascii=False, default=str)


def _tool_call(call: object, index: int) -> dict[str, Any]:
    given = call if isinstance(call, dict) else {"name": str(call)}
    inner = given.get("function")
    function = inner if isinstance(inner, dict) else given
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return {
        "type": "function",
        "id": str(given.get("id") or f"call_{index}"),
        "function": {"name": str(function.get("name") or "unknown"), "arguments": arguments},
    }


def _add_logs(
    session: SourceSession,
    messages: Callable[[], list[_Message]],
    begun: float,
    ended: float,
    usage: dict[str, Any] | None,
) -> None:
    session.created_at = begun
    session.mtime_ns = int(ended * 1e9)
    session.title = next(
        (
            title
            for message in messages()
            if message.record["role"] == "user"
            and (title := title_from(user_text(message.record["content"])))
        ),
        "",
    )
    for name, make in (
        (layout.CONTEXT, lambda: _context_log(messages())),
        (layout.WIRE, lambda: _wire_log(messages(), ended, usage)),
    ):
        session.files.append(SourceFile(name, session.sessions_path, "", 0, int(ended * 1e9), make))


def _context_log(messages: list[_Message]) -> bytes:
    lines = []
    for number, message in enumerate(messages):
        record = message.record
        if number == 0 and record["role"] == "system" and isinstance(record["content"], str):
            record = {**record, "role": SYSTEM_PROMPT_ROLE}
        lines.append(_line(record))
    return b"".join(lines)


def _line(value: dict[str, Any]) -> bytes:
    return dump_json(value) + b"\n"


def _wire_log(messages: list[_Message], ended: float, usage: dict[str, Any] | None) -> bytes:
    lines = [WireFileMetadata().to_line() + b"\n"]

    def add(kind: str, payload: dict[str, Any], at: float) -> None:
        lines.append(_line({"timestamp": at, "message": {"type": kind, "payload": payload}}))

    open_turn = False
    step = 0
    for message in messages:
        record, at = message
        role, content = record["role"], record["content"]
        if role == "user":
            if open_turn:
                add("TurnEnd", {}, at)
            add("TurnBegin", {"user_input": content}, at)
            open_turn, step = True, 0
        elif role == "assistant":
            step += 1
            add("StepBegin", {"n": step}, at)
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                if part.get("type") != "text" or part.get("text"):
                    add("ContentPart", part, at)
            for call in record.get("tool_calls", ()):
                add("ToolCall", call, at)
        elif role == "tool":
            result = {"is_error": False, "output": content, "message": "", "display": []}
            add(
                "ToolResult",
                {"tool_call_id": str(record.get("tool_call_id", "")), "return_value": result},
                at,
            )
    if usage is not None:
        add("StatusUpdate", {"token_usage": _token_usage(usage)}, ended)
    if open_turn:
        add("TurnEnd", {}, ended)
    return b"".join(lines)


def _token_usage(usage: dict[str, Any]) -> dict[str, int]:
    def count(key: str) -> int:
        value = usage.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    cached = count("cached_tokens")
    return {
        "input_other": max(count("prompt_tokens") - cached, 0),
        "output": count("completion_tokens"),
        "input_cache_read": cached,
        "input_cache_creation": 0,
    }


def _time_of(value: object) -> float:
    """Return a time of Flux in epoch seconds, 0.0 if it is none. SQLite's own format is UTC, Python's local time."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) / (1000 if value > _MILLISECONDS else 1) if value > 0 else 0.0
    if not isinstance(value, str):
        return 0.0
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return 0.0
    if moment.tzinfo is None and "T" not in value:
        moment = moment.replace(tzinfo=UTC)
    try:
        return max(moment.timestamp(), 0.0)
    except (OverflowError, ValueError, OSError):
        return 0.0
