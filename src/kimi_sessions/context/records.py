"""
The records of a context log: the typed ``Message``, and the control records beside it.

    {"role":"_system_prompt","content":"…"}    normally the first line; the last one counts
    {"role":"_checkpoint","id":0}              a place to come back to; ids count from 0
    {"role":"_usage","token_count":123}        tokens up to here; the last one counts
    {"role":"user","content":"…"}              a message: system, user, assistant or tool

Shapes only; which records are in force is found by the fold over them, and no file is opened here.

A message is written as Kimi CLI writes it: a content of exactly one plain text part as a string, any other as
a list; null fields of the message and of its tool calls left out, those of parts kept. One thing differs: a
tool call's ``arguments`` are written even when null, because that client drops a message that lacks them.
Fields that are not named stay, at every level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationError, model_serializer

from kimi_sessions.wire.messages import (
    AnyContentPart,
    ContentPart,
    TextPart,
    ToolCall,
    WireModel,
    dump_model,
    parse_json,
)

from .roles import CHECKPOINT_ROLE, SYSTEM_PROMPT_ROLE, USAGE_ROLE

__all__ = [
    "Message",
    "Role",
    "dump_checkpoint",
    "dump_message",
    "dump_system_prompt",
    "dump_usage",
    "parse_message_record",
    "to_message_bytes",
]

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


def _as_text_part(text: str) -> list[ContentPart]:
    return [TextPart(text=text)]


def _as_no_parts(_: None) -> list[ContentPart]:
    return []


# Text and null become lists once they are recognised; a list of parts is validated without Python code.
_Content: TypeAlias = Annotated[
    list[AnyContentPart]
    | Annotated[str, AfterValidator(_as_text_part)]
    | Annotated[None, AfterValidator(_as_no_parts)],
    Field(union_mode="left_to_right"),
]


class Message(WireModel):
    """
    One message of the conversation as the model sees it.

    ``content`` may be given as text, as parts or as None, and is a list of parts from then on.
    ``tool_calls`` are the assistant's; ``tool_call_id`` is there on the tool message that answers one of them.
    """

    role: Role
    name: str | None = None
    if TYPE_CHECKING:
        content: list[ContentPart]
    else:
        content: _Content = Field(default_factory=list)
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    partial: bool | None = None

    if TYPE_CHECKING:
        # What may be passed is more than what is then there. At run time pydantic's own constructor takes it.
        def __init__(
            self,
            *,
            role: Role,
            content: str | Iterable[ContentPart] | None = None,
            name: str | None = None,
            tool_calls: list[ToolCall] | None = None,
            tool_call_id: str | None = None,
            partial: bool | None = None,
            **fields: object,
        ) -> None: ...

    @property
    def text(self) -> str:
        """The text of all text parts, put together without anything between them."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @model_serializer
    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"role": self.role}
        if self.name is not None:
            record["name"] = self.name
        parts = self.content
        if len(parts) == 1 and isinstance(parts[0], TextPart) and not parts[0].model_extra:
            record["content"] = parts[0].text
        else:
            record["content"] = parts
        if self.tool_calls is not None:
            record["tool_calls"] = [_call_record(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            record["tool_call_id"] = self.tool_call_id
        if self.partial is not None:
            record["partial"] = self.partial
        return record | (self.model_extra or {})


def _call_record(call: ToolCall) -> dict[str, Any]:
    """Return a tool call as it stands in a message: the wire's shape, without the extras that are not there."""
    record: dict[str, Any] = {"type": call.type, "id": call.id, "function": call.function}
    if call.extras is not None:
        record["extras"] = call.extras
    return record | (call.model_extra or {})


_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def parse_message_record(record: Mapping[str, object] | bytes) -> Message:
    """
    Return the message in a record: an object, or the JSON of one, read leniently.

    Raises ValueError (mostly pydantic's) for what is no message, control records included.
    """
    if isinstance(record, bytes):
        message: Message = parse_json(Message.__pydantic_validator__.validate_json, _from_python, record)
        return message
    return _from_python(record if type(record) is dict else dict(record))


def _from_python(value: Any) -> Message:
    validate = Message.__pydantic_validator__.validate_python
    message: Message
    try:
        message = validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        if all(each["type"] != "string_unicode" for each in errors):
            raise
        # Half a surrogate pair in the name of a field: the one place where text has to be whole.
        message = validate(_with_whole_names(value))
    return message


def _with_whole_names(value: Any) -> Any:
    """Give a value with each lone surrogate in a field's name replaced by U+FFFD."""
    if isinstance(value, dict):
        return {_LONE_SURROGATES.sub("\ufffd", name): _with_whole_names(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_whole_names(each) for each in value]
    return value


def dump_message(message: Message) -> bytes:
    """
    Return the record of a message as compact JSON in UTF-8, without a newline.

    Raises ValueError for what JSON cannot hold.
    """
    return dump_model(message)


def to_message_bytes(message: Message | Mapping[str, object]) -> bytes:
    """
    Return the record of a message, or of an object that is one by its fields. A control record is refused.

    Raises ValueError, as ``parse_message_record`` and ``dump_message`` do; TypeError for what is neither.
    """
    if not isinstance(message, (Message, Mapping)):
        text = f"a message is a Message or a mapping, not {type(message).__name__}"
        raise TypeError(text)
    return dump_message(message if isinstance(message, Message) else parse_message_record(message))


def dump_system_prompt(text: str) -> bytes:
    """Return the record that sets the system prompt."""
    return _dump_control({"role": SYSTEM_PROMPT_ROLE, "content": text})


def dump_checkpoint(checkpoint_id: int) -> bytes:
    """Return the record that marks a place to come back to."""
    return _dump_control({"role": CHECKPOINT_ROLE, "id": checkpoint_id})


def dump_usage(token_count: int) -> bytes:
    """Return the record of how many tokens the context holds up to here."""
    return _dump_control({"role": USAGE_ROLE, "token_count": token_count})


def _dump_control(record: dict[str, object]) -> bytes:
    # ASCII, as Kimi CLI writes these records: a lone surrogate in a prompt then needs no care.
    return json.dumps(record, separators=(",", ":")).encode("ascii")
