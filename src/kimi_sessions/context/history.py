"""
Context records in, history out: messages, system prompt, usage, checkpoints, and what is wrong.

A context log holds messages (role system, user, assistant or tool) and control records, whose role starts
with ``_``. Of several system prompts and usages the last one counts. A control record of a kind nobody
knows is carried and is no message. What is no message by its shape is a finding, and is passed over.

Everything here works on decoded objects; giving one a type is the business of ``records``, when somebody
asks for it. ``HistoryFold`` reads a log from its beginning; ``newest_messages`` and
``find_checkpoint_offset`` read from its end, and no further than they must.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kimi_sessions import layout
from kimi_sessions._lines import Damage, Span, decode_line, iter_lines, iter_lines_backwards
from kimi_sessions._text import user_text
from kimi_sessions.findings import Finding

from .roles import CHECKPOINT_ROLE, MESSAGE_ROLES, SYSTEM_PROMPT_ROLE, USAGE_ROLE

__all__ = [
    "Entry",
    "HistoryFold",
    "UnmatchedCall",
    "find_checkpoint_offset",
    "first_text",
    "is_injected_user_message",
    "newest_messages",
    "read_history",
    "refuse",
    "refuse_message",
    "unmatched_tool_calls",
]

_CHECKPOINT = CHECKPOINT_ROLE.encode()
_MARKER = re.compile(r"<system>CHECKPOINT \d+</system>")
#: What a user message begins with that the client wrote and not the user. ``<system>`` covers checkpoint
#: markers, compaction summaries, imports, and the messages of /init and /add-dir.
_INJECTED_STARTS = ("<system>", "<system-reminder>", "<notification ")
COMPACTION_START = "<system>Previous context has been compacted"


class Entry(NamedTuple):
    """A record with its place in the log: first byte, first byte after it, and the decoded object."""

    offset: int
    end_offset: int
    record: dict[str, Any]


def refuse(value: dict[str, Any]) -> str | None:
    """Tell why an object is no record of a context log; None if it is one. The ``accept`` of context logs."""
    if not isinstance(value.get("role"), str):
        return "a record without a role"
    return None


def refuse_message(record: dict[str, Any]) -> str | None:
    """Tell why a record can't be a message; None if it is one that the typed model takes. Control records aren't."""
    role = record.get("role")
    if role not in MESSAGE_ROLES:
        return f"a message of the unknown role {str(role)[:40]!r}"
    content = record.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                return "a message with a content part that has no type"
    elif content is not None and not isinstance(content, str):
        return "a message whose content is neither text nor parts"
    calls = record.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            return "a message whose tool calls are no list"
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if (
                not isinstance(function, dict)
                or not isinstance(call.get("id"), str)
                or not isinstance(function.get("name"), str)
            ):
                return "a message with a tool call that has no id or no name"
    call_id = record.get("tool_call_id")
    if call_id is not None and not isinstance(call_id, str):
        return "a message whose tool call id is no text"
    return None if _is_ordinary(record) else _refuse_by_model(record)


def _is_ordinary(record: dict[str, Any]) -> bool:
    """Tell whether all fields, of the right shape so far, hold what the model of a message surely takes."""
    if not _is_text_or_none(record.get("name")) or record.get("partial") is not None:
        return False
    content = record.get("content")
    if isinstance(content, list):
        for part in content:
            kind = part["type"]
            if kind not in {"text", "think"} or not isinstance(part.get(kind), str):
                return False
            if kind == "think" and not _is_text_or_none(part.get("encrypted")):
                return False
    for call in record.get("tool_calls") or ():
        if call.get("type", "function") != "function" or call.get("extras") is not None:
            return False
        if not _is_text_or_none(call["function"].get("arguments")):
            return False
    return True


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _refuse_by_model(record: dict[str, Any]) -> str | None:
    """Ask the typed model, which has the last word: what is counted as a message here must be readable as one."""
    from .records import parse_message_record

    try:
        parse_message_record(record)
    except ValueError:
        return "a message with a field that does not fit"
    return None


def refuse_control(record: dict[str, Any]) -> str | None:
    """Tell why a control record says nothing; None if it does, or if its kind is not known here."""
    role = record["role"]
    if role == SYSTEM_PROMPT_ROLE and not isinstance(record.get("content"), str):
        return "a system prompt without text"
    if role == CHECKPOINT_ROLE and not _is_count(record.get("id")):
        return "a checkpoint without a number"
    if role == USAGE_ROLE and not _is_count(record.get("token_count")):
        return "a usage without a number"
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class HistoryFold:
    """
    Records of a context log in, in file order; the history out.

    Attributes:
        messages: the messages, with their places.
        system_prompt: the last one, None if there is none.
        token_count: of the last usage, 0 if there is none.
        pending_from: index of the first message after the last usage; what those cost is not counted yet.
        checkpoints: offset of the last record of each checkpoint id.
        next_checkpoint_id: the id that the next checkpoint gets.
        control_count: how many control records there were, those of unknown kinds included.
        findings: damage and refused records.
    """

    __slots__ = (
        "_line_number",
        "checkpoints",
        "control_count",
        "file",
        "findings",
        "messages",
        "next_checkpoint_id",
        "pending_from",
        "system_prompt",
        "token_count",
    )

    def __init__(self, file: str = layout.CONTEXT, *, first_line: int = 1) -> None:
        self.file = file
        self.messages: list[Entry] = []
        self.system_prompt: str | None = None
        self.token_count = 0
        self.pending_from = 0
        self.checkpoints: dict[int, int] = {}
        self.next_checkpoint_id = 0
        self.control_count = 0
        self.findings: list[Finding] = []
        self._line_number = first_line - 1

    @property
    def pending_messages(self) -> list[Entry]:
        """The messages after the last usage."""
        return self.messages[self.pending_from :]

    def feed_line(self, line: bytes, offset: int) -> None:
        """Take one line (without its newline) that begins at ``offset``; blank ones count as lines."""
        self._line_number += 1
        if not line:
            return
        decoded = decode_line(line, refuse)
        for damage in decoded.damage:
            self._find("damaged-line", damage.reason, offset + damage.offset, damage.length)
        for span in decoded.records:
            first = offset + span.offset
            self.feed(Entry(first, first + len(span.raw), span.value))

    def feed(self, entry: Entry) -> None:
        """Take one record."""
        record = entry.record
        role = record["role"]
        refusal = refuse_control(record) if role.startswith("_") else refuse_message(record)
        if refusal is not None:
            self._find("bad-record", refusal, entry.offset, entry.end_offset - entry.offset)
            return
        if not role.startswith("_"):
            self.messages.append(entry)
            return
        self.control_count += 1
        if role == SYSTEM_PROMPT_ROLE:
            self.system_prompt = record["content"]
        elif role == USAGE_ROLE:
            self.token_count = record["token_count"]
            self.pending_from = len(self.messages)
        elif role == CHECKPOINT_ROLE:
            self.checkpoints[record["id"]] = entry.offset
            self.next_checkpoint_id = record["id"] + 1

    def _find(self, kind: str, reason: str, offset: int, length: int) -> None:
        self.findings.append(
            Finding(
                kind, self.file, reason, line_number=self._line_number or None, offset=offset, length=length
            )
        )


def read_history(fd: int, end: int | None = None, *, file: str = layout.CONTEXT) -> HistoryFold:
    """Fold an open context log, up to ``end`` bytes. All its messages are held in memory. Raises OSError."""
    fold = HistoryFold(file)
    for offset, line in iter_lines(fd, 0, end):
        fold.feed_line(line, offset)
    return fold


# --- from the end ------------------------------------------------------------------------------------------


def newest_messages(fd: int, end: int, limit: int | None = None) -> list[Entry]:
    """
    Return the newest ``limit`` messages (None: all), oldest first.

    Reads an open log backwards from ``end`` (usually its size), and no further than it takes. What is no
    message is passed over. Raises OSError.
    """
    found: list[Entry] = []
    if limit is not None and limit <= 0:
        return found
    for offset, line in iter_lines_backwards(fd, end):
        for span in reversed(context_records(line)[0]):
            record = span.value
            if record["role"].startswith("_") or refuse_message(record) is not None:
                continue
            first = offset + span.offset
            found.append(Entry(first, first + len(span.raw), record))
            if len(found) == limit:
                break
        if len(found) == limit:
            break
    found.reverse()
    return found


def find_checkpoint_offset(fd: int, checkpoint_id: int, end: int) -> int | None:
    """
    Return where to cut a context log to go back to a checkpoint: the first byte of its record, None without
    one.

    Ids are unique in a healthy log. Where two programs wrote at once and one id stands twice, the last one
    is meant: that is the cut that takes the least away. The byte may lie within a line, after a torn piece
    of another record. Raises OSError.
    """
    for offset, line in iter_lines_backwards(fd, end):
        if _CHECKPOINT not in line:
            continue
        for span in reversed(context_records(line)[0]):
            record = span.value
            if record["role"] != CHECKPOINT_ROLE or refuse_control(record) is not None:
                continue
            if record["id"] == checkpoint_id:
                place: int = offset + span.offset
                return place
    return None


def context_records(line: bytes) -> tuple[list[Span], list[Damage]]:
    """Return the records of one line of a context log, placed in it, and what in it is no record."""
    if not line:
        return [], []
    decoded = decode_line(line, refuse)
    return decoded.records, decoded.damage


# --- whose words -------------------------------------------------------------------------------------------


def first_text(record: dict[str, Any]) -> str:
    """Return the text a message begins with: its content, or the first of its parts that is text."""
    content = record.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
                text: str = part["text"]
                return text
    return ""


def is_checkpoint_marker(record: dict[str, Any]) -> bool:
    """Tell whether a user message only names a checkpoint to the model."""
    return (
        record.get("role") == "user"
        and _MARKER.fullmatch(user_text(record.get("content")).strip()) is not None
    )


def is_injected_user_message(record: dict[str, Any]) -> bool:
    """
    Tell whether a user message was written by the client and not by the user.

    Checkpoint markers, reminders, notifications, compaction summaries, imports, and what /init and /add-dir
    tell the model. What a steer, a hook, a skill or a flow added can't be told from a user's words by its
    text.
    """
    return record.get("role") == "user" and first_text(record).lstrip().startswith(_INJECTED_STARTS)


def first_said(fd: int) -> str:
    """Return the first words in an open context that its user wrote, "" if there are none. Raises OSError."""
    for _, line in iter_lines(fd):
        for span in context_records(line)[0]:
            record = span.value
            if record["role"] == "user" and refuse_message(record) is None:
                text = user_text(record.get("content"))
                if text.strip() and not is_injected_user_message(record):
                    return text
    return ""


# --- tool calls --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnmatchedCall:
    """
    A tool call without a result, or (``is_orphan``) a result without a call.

    ``message_index`` is that of the message that holds it, counted from 0 in the messages given. ``name``
    is the called tool's, "" for an orphan.
    """

    message_index: int
    tool_call_id: str
    name: str
    is_orphan: bool


def unmatched_tool_calls(messages: Iterable[dict[str, Any]]) -> list[UnmatchedCall]:
    """
    Pair tool calls with results, and return what is left of both, in message order.

    A result belongs to a call of the assistant message before it that has its id and no result yet; results
    may come in any order, with other messages between. The next assistant message ends the wait: the model
    went on without them. So an id that was used again in a later turn is no confusion.
    """
    left: list[UnmatchedCall] = []
    waiting: list[UnmatchedCall] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            left.extend(waiting)
            waiting = list(_calls_of(message, index))
        elif role == "tool":
            call_id = message.get("tool_call_id")
            call = next((call for call in waiting if call.tool_call_id == call_id), None)
            if call is not None:
                waiting.remove(call)
            else:
                left.append(
                    UnmatchedCall(index, call_id if isinstance(call_id, str) else "", "", is_orphan=True)
                )
    left.extend(waiting)
    left.sort(key=lambda call: call.message_index)
    return left


def _calls_of(message: dict[str, Any], index: int) -> Iterator[UnmatchedCall]:
    for call in message.get("tool_calls") or ():
        yield UnmatchedCall(index, call["id"], call["function"]["name"], is_orphan=False)
