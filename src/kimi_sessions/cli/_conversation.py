"""
Records in, what a person reads out: prompts, answers, tool calls folded to a line, and what happened beside them.

Nothing is printed here and no file is opened. ``WireReader`` takes the records of a wire log one by one and gives
back entries as soon as they are whole, so a log of any length needs little memory. ``from_messages`` does the same
with the messages of a context, for sessions whose client kept no wire log.

An entry is a plain object: {"type": "turn" | "text" | "thinking" | "steer" | "tool" | "note", …}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["Entry", "WireReader", "from_messages", "text_of"]

Entry = dict[str, Any]

#: The argument that says best what a call does, first match first.
_TELLING = (
    "command",
    "path",
    "file_path",
    "query",
    "pattern",
    "url",
    "description",
    "subagent_name",
    "prompt",
    "title",
)
_MEDIA = {"image_url": "[image]", "audio_url": "[audio]", "video_url": "[video]"}


def text_of(content: object) -> str:
    """Return the text of a content: a string, or parts, of which images and the like are named in brackets."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    pieces = []
    for part in content:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind == "text" and isinstance(part.get("text"), str):
                pieces.append(part["text"])
            elif isinstance(kind, str) and kind in _MEDIA:
                pieces.append(_MEDIA[kind])
            elif kind != "think":
                pieces.append(f"[{kind}]")
    return "\n".join(pieces)


def _arguments(text: object) -> Any:
    """Return a call's arguments decoded, or as they stand where they are no JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text


def _telling(arguments: Any) -> str:
    """Return the one argument that a person wants to see of a call."""
    if not isinstance(arguments, dict):
        return arguments if isinstance(arguments, str) else ""
    for name in _TELLING:
        if isinstance(arguments.get(name), str) and arguments[name]:
            return str(arguments[name])
    if not arguments:
        return ""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        return ""


class _Calls:
    """Tool calls that wait for their results, in the order they were made."""

    def __init__(self) -> None:
        self._waiting: list[Entry] = []

    def made(self, call: Mapping[str, Any]) -> None:
        function = call.get("function")
        if not isinstance(function, dict):
            function = {}
        arguments = _arguments(function.get("arguments"))
        self._waiting.append(
            {
                "type": "tool",
                "id": call.get("id"),
                "name": str(function.get("name", "")),
                "summary": _telling(arguments),
                "arguments": arguments,
                "is_error": None,
                "output": None,
            }
        )

    def more_arguments(self, text: object) -> None:
        """Take a further piece of the last call's arguments; old logs can hold calls in pieces."""
        if self._waiting and isinstance(text, str):
            last = self._waiting[-1]
            before = last["arguments"]
            last["arguments"] = _arguments((before if isinstance(before, str) else "") + text)
            last["summary"] = _telling(last["arguments"])

    def answered(self, call_id: object, output: str, *, is_error: bool) -> Entry:
        """Return the call of this id with its result; a result without a call is a call without a name."""
        entry: Entry = {"type": "tool", "id": call_id, "name": "", "summary": "", "arguments": None}
        for at, waiting in enumerate(self._waiting):
            if waiting["id"] == call_id:
                entry = self._waiting.pop(at)
                break
        return entry | {"is_error": is_error, "output": output}

    def left(self) -> list[Entry]:
        """Return the calls that got no result, and forget them."""
        left, self._waiting = self._waiting, []
        return left


class WireReader:
    """Records of a wire log in, in file order; entries out. Call ``end`` after the last record."""

    def __init__(self) -> None:
        self._turns = 0
        self._calls = _Calls()

    def feed(self, kind: str, payload: Mapping[str, Any], timestamp: float) -> Iterator[Entry]:
        """Take one record and yield the entries that are whole now."""
        if kind == "TurnBegin":
            yield from self._calls.left()
            yield {
                "type": "turn",
                "index": self._turns,
                "text": text_of(payload.get("user_input")),
                "at": timestamp,
            }
            self._turns += 1
        elif kind == "ContentPart":
            yield from self._part(payload)
        elif kind == "ToolCall":
            self._calls.made(payload)
        elif kind == "ToolCallPart":
            self._calls.more_arguments(payload.get("arguments_part"))
        elif kind == "ToolResult":
            result = payload.get("return_value")
            result = result if isinstance(result, dict) else {}
            output = text_of(result.get("output"))
            message = result.get("message")
            if not output and isinstance(message, str):
                output = message
            yield self._calls.answered(
                payload.get("tool_call_id"), output, is_error=result.get("is_error") is True
            )
        elif kind == "TurnEnd":
            yield from self._calls.left()
        else:
            yield from self._beside(kind, payload)

    def end(self) -> list[Entry]:
        """Return what still waited: calls without results."""
        return self._calls.left()

    @staticmethod
    def _part(part: Mapping[str, Any]) -> Iterator[Entry]:
        kind = part.get("type")
        if kind == "think":
            if isinstance(part.get("think"), str) and part["think"].strip():
                yield {"type": "thinking", "text": part["think"]}
            return
        text = text_of([dict(part)])
        if text.strip():
            yield {"type": "text", "text": text}

    @staticmethod
    def _beside(kind: str, payload: Mapping[str, Any]) -> Iterator[Entry]:
        """Yield what a person should know of the rarer records; the others say nothing to a reader."""
        if kind == "SteerInput":
            yield {"type": "steer", "text": text_of(payload.get("user_input"))}
        elif kind == "StepInterrupted":
            yield _note("interrupted")
        elif kind == "CompactionEnd":
            yield _note("the context was compacted here")
        elif kind == "PlanDisplay":
            yield _note(f"plan: {payload.get('file_path')}")
        elif kind == "Notification":
            yield _note(f"notification: {payload.get('title')}")
        elif kind == "BtwBegin":
            yield _note(f"asked beside: {payload.get('question')}")
        elif kind == "BtwEnd":
            yield _note(f"answered beside: {payload.get('response') or payload.get('error')}")
        elif kind == "QuestionRequest":
            questions = payload.get("questions")
            for question in questions if isinstance(questions, list) else ():
                if isinstance(question, dict):
                    yield _note(f"asked the user: {question.get('question')}")
        elif kind in {"ApprovalResponse", "ApprovalRequestResolved"} and payload.get("response") == "reject":
            yield _note("the user rejected a tool call")


def _note(text: str) -> Entry:
    return {"type": "note", "text": text}


def from_messages(messages: Iterable[Mapping[str, Any]], *, turn_index: int = 0) -> Iterator[Entry]:
    """Yield the entries of a context's messages; each user message that a client did not write begins a turn."""
    from kimi_sessions.context.history import is_injected_user_message

    calls = _Calls()
    for message in messages:
        role = message.get("role")
        content = message.get("content")
        if role == "user":
            yield from calls.left()
            if is_injected_user_message(dict(message)):
                yield _note(f"from the client: {text_of(content)}")
            else:
                yield {"type": "turn", "index": turn_index, "text": text_of(content), "at": None}
                turn_index += 1
        elif role == "assistant":
            yield from calls.left()
            for part in (
                content if isinstance(content, list) else [{"type": "text", "text": text_of(content)}]
            ):
                if isinstance(part, dict):
                    yield from WireReader._part(part)
            for call in message.get("tool_calls") or ():
                calls.made(call)
        elif role == "tool":
            output = text_of(content)
            is_error = output.lstrip().startswith("<system>ERROR")
            yield calls.answered(message.get("tool_call_id"), output, is_error=is_error)
    yield from calls.left()
