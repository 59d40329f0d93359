"""
Messages that are checked when they are read and decoded when they are first looked at.

A conversation is held as the bytes of its records; whoever asks a message for anything gets a ``Message`` like any
other, made at that moment. A hundred megabytes of messages so take little more than a hundred megabytes.

The rule: ``unread_message`` takes only lines of which it is certain that ``parse_message_record`` takes them, so that
looking at a message never fails. All others are for the whole policy.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from pydantic import BaseModel

from .records import Message, parse_message_record
from .roles import CHECKPOINT_ROLE, SYSTEM_PROMPT_ROLE, USAGE_ROLE

__all__ = ["is_plain_control", "unread_message"]

#: Where pydantic keeps what these models have none of. It holds the record's bytes until they are decoded.
_PRIVATE: Any = BaseModel.__dict__["__pydantic_private__"]
_EXTRA: Any = BaseModel.__dict__["__pydantic_extra__"]
_FIELDS_SET: Any = BaseModel.__dict__["__pydantic_fields_set__"]

#: Integers of more digits than any decoder takes are possible in lines longer than this.
_SHORT_BYTES = 4000
_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_TOO_LONG = b"0" * _SHORT_BYTES


class _UnreadMessage(Message):
    """A message as its record's bytes. It is a ``Message`` from the first look on, and the same object."""

    def __getattribute__(self, name: str) -> Any:
        _read(self)
        return getattr(self, name)


_new_unread = _UnreadMessage.__new__
_set_private = _PRIVATE.__set__


def _read(message: Message) -> None:
    raw = _PRIVATE.__get__(message)
    if raw is not None:
        parsed = parse_message_record(raw)
        # Two threads may be here with one message; the values of the first stay.
        fields = object.__getattribute__(message, "__dict__")
        for name, value in parsed.__dict__.items():
            fields.setdefault(name, value)
        _FIELDS_SET.__set__(message, parsed.__pydantic_fields_set__)
        _EXTRA.__set__(message, parsed.__pydantic_extra__)
    object.__setattr__(message, "__class__", Message)
    _PRIVATE.__set__(message, None)


# --- what can't fail -----------------------------------------------------------------------------------------------


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Think(msgspec.Struct, tag_field="type", tag="think"):
    think: str
    encrypted: str | None = None


_Part: TypeAlias = _Text | _Think


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None


class _Call(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    extras: dict[str, Any] | None = None


class _Shape(msgspec.Struct):
    """The shape of a message as nearly all of them are."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    partial: bool | None = None


_decode_shape = msgspec.json.Decoder(_Shape).decode


def unread_message(line: bytes) -> Message | None:
    """Return the message of a line that is a plain message and nothing else; None if it needs the whole policy."""
    try:
        shape = _decode_shape(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(line) > _SHORT_BYTES and _TOO_LONG in line.translate(_DIGITS):
        return None
    content, calls = shape.content, shape.tool_calls
    if calls is not None or type(content) is list:
        # A type that is given twice is read by one decoder and not by the other.
        parts = len(content) if type(content) is list else 0
        if line.count(b'"type"') != parts + len(calls or ()) or b"\\u" in line:
            return None
    message = _new_unread(_UnreadMessage)
    _set_private(message, line)
    return message


class _Control(msgspec.Struct):
    role: str
    content: Any = None
    id: Any = None
    token_count: Any = None


_decode_control = msgspec.json.Decoder(_Control).decode


def is_plain_control(line: bytes) -> bool:
    """Tell whether a line is a control record that says what it should, and nothing else. False: look closer."""
    try:
        record = _decode_control(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if record.role == CHECKPOINT_ROLE:
        return type(record.id) is int and record.id >= 0
    if record.role == USAGE_ROLE:
        return type(record.token_count) is int and record.token_count >= 0
    return record.role == SYSTEM_PROMPT_ROLE and isinstance(record.content, str)
