"""
The lines of a wire log as values: header, record, envelope. Shapes only, no files.

    {"type": "metadata", "protocol_version": "1.10"}                                 header, first line since 0.85
    {"timestamp": 1700000000.0, "message": {"type": "TurnBegin", "payload": {…}}}    record

A header is an object with a string ``protocol_version`` and ``type`` absent or ``metadata``; it may stand anywhere.
A record needs a numeric ``timestamp`` (a numeric string will do), a string ``type`` and an object ``payload``. What
the type means is the business of ``messages``: a type nobody knows is still a record, and keeps its bytes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from kimi_sessions._lines import Span, decode_line, decode_value
from kimi_sessions.errors import InvalidRecordError

if TYPE_CHECKING:
    from .messages import WireMessage

__all__ = [
    "WIRE_PROTOCOL_LEGACY_VERSION",
    "WIRE_PROTOCOL_VERSION",
    "WireFileMetadata",
    "WireMessageEnvelope",
    "WireMessageRecord",
    "parse_wire_file_line",
]

#: What we write in the header of a new log.
WIRE_PROTOCOL_VERSION = "1.10"
#: What a log without a header is.
WIRE_PROTOCOL_LEGACY_VERSION = "1.1"


class WireFileMetadata:
    """The header of a wire log. ``protocol_version`` is a weak hint: newer records may follow an older header."""

    __slots__ = ("protocol_version",)

    type = "metadata"

    def __init__(self, *, protocol_version: str = WIRE_PROTOCOL_VERSION, type: str = "metadata") -> None:
        if type != "metadata":
            raise InvalidRecordError(reason=f"a header has the type 'metadata', not {type!r}")
        self.protocol_version = protocol_version

    def __repr__(self) -> str:
        return f"WireFileMetadata(protocol_version={self.protocol_version!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WireFileMetadata) and other.protocol_version == self.protocol_version

    def __hash__(self) -> int:
        return hash(self.protocol_version)

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """Return the header as a plain dict."""
        return {"type": "metadata", "protocol_version": self.protocol_version}

    def model_dump_json(self) -> str:
        """Return the header as one line of JSON, without its newline."""
        return self.to_line().decode()

    def to_line(self) -> bytes:
        """Return the header as one line of JSON, without its newline."""
        return orjson.dumps(self.model_dump())


class WireMessageEnvelope:
    """The message of a record: its ``type`` (a message class's name) and its ``payload`` as a plain dict."""

    __slots__ = ("_payload", "type")

    def __init__(self, *, type: str, payload: dict[str, Any] | msgspec.Raw) -> None:
        self.type = type
        self._payload = payload

    @property
    def payload(self) -> dict[str, Any]:
        """The payload, decoded when first asked for."""
        payload = self._payload
        if not isinstance(payload, dict):
            decoded = decode_value(bytes(payload))
            self._payload = payload = decoded if isinstance(decoded, dict) else {}
        return payload

    @property
    def payload_json(self) -> bytes:
        """The payload as JSON: its own bytes from the log where nobody has decoded it yet."""
        if isinstance(self._payload, dict):
            return dump_json(self._payload)
        return bytes(self._payload)

    def __repr__(self) -> str:
        return f"WireMessageEnvelope(type={self.type!r}, payload={self.payload!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WireMessageEnvelope)
            and other.type == self.type
            and other.payload == self.payload
        )

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """Return the envelope as a plain dict."""
        return {"type": self.type, "payload": self.payload}

    def to_wire_message(self) -> WireMessage:
        """Return the typed message. Raises ValueError for a type or payload that is not known."""
        from .messages import parse_message

        payload = self._payload
        return parse_message(self.type, payload if isinstance(payload, dict) else bytes(payload))

    @classmethod
    def from_wire_message(cls, message: WireMessage) -> WireMessageEnvelope:
        """Wrap a typed message."""
        from .messages import dump_payload, message_type

        return cls(type=message_type(message), payload=msgspec.Raw(dump_payload(message)))


class WireMessageRecord:
    """
    One record of a wire log.

    ``timestamp`` is in epoch seconds: when the record was written, not when the event happened. ``raw`` holds the
    record's bytes where it was read from a log, and those are what is written if it is appended elsewhere.
    """

    __slots__ = ("_message", "_payload", "_type", "raw", "timestamp")

    def __init__(self, *, timestamp: float, message: WireMessageEnvelope | dict[str, Any]) -> None:
        if isinstance(message, dict):
            message = WireMessageEnvelope(type=message["type"], payload=message["payload"])
        self.timestamp = float(timestamp)
        self.raw: bytes | None = None
        self._message: WireMessageEnvelope | None = message
        self._type = message.type
        self._payload: Any = None

    @property
    def message(self) -> WireMessageEnvelope:
        """The envelope."""
        if self._message is None:
            self._message = WireMessageEnvelope(type=self._type, payload=self._payload)
            self._payload = None
        return self._message

    @property
    def type(self) -> str:
        """The message's type, without making the envelope."""
        return self._type

    def __repr__(self) -> str:
        return f"WireMessageRecord(timestamp={self.timestamp!r}, message={self.message!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WireMessageRecord)
            and other.timestamp == self.timestamp
            and other.message == self.message
        )

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """Return the record as a plain dict."""
        return {"timestamp": self.timestamp, "message": self.message.model_dump()}

    def model_dump_json(self) -> str:
        """Return the record as one line of JSON, without its newline."""
        return self.to_line().decode("utf-8", "replace")

    def to_wire_message(self) -> WireMessage:
        """Return the typed message. Raises ValueError for a type or payload that is not known."""
        if self._message is not None:
            return self._message.to_wire_message()
        from .messages import parse_message

        return parse_message(self._type, bytes(self._payload))

    @classmethod
    def from_wire_message(cls, message: WireMessage, timestamp: float | None = None) -> WireMessageRecord:
        """Wrap a typed message; ``timestamp`` None means now."""
        if timestamp is None:
            import time

            timestamp = time.time()
        return cls(timestamp=timestamp, message=WireMessageEnvelope.from_wire_message(message))

    def to_line(self) -> bytes:
        """
        Return the record as one line of JSON, without its newline; the bytes it was read from, if it was.

        Raises InvalidRecordError for a timestamp or payload that JSON can't hold.
        """
        if self.raw is not None:
            if b"\n" not in self.raw and b"\0" not in self.raw:
                return self.raw
            return dump_json(decode_value(self.raw))
        return record_line(self._type, self.message.payload_json, self.timestamp)


def record_line(type_name: str, payload_json: bytes, timestamp: float) -> bytes:
    """Return the line (without newline) of a record whose payload is JSON already."""
    if not math.isfinite(timestamp):
        raise InvalidRecordError(reason=f"a record's timestamp is in epoch seconds, not {timestamp!r}")
    number = orjson.dumps(float(timestamp))
    return b'{"timestamp": ' + number + _envelope_head(type_name) + payload_json + b"}}"


@lru_cache(maxsize=256)
def _envelope_head(type_name: str) -> bytes:
    return b', "message": {"type": ' + orjson.dumps(type_name) + b', "payload": '


def dump_json(value: Any) -> bytes:
    """
    Return ``value`` as one line of compact JSON. Integers of any size and lone surrogates are kept; NaN and
    infinities, which JSON has not, may become null.

    Raises InvalidRecordError for what JSON can't hold.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        pass  # large integers and lone surrogates: the standard encoder can
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecordError(reason=f"not something JSON can hold: {error}") from error
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


# --- reading -----------------------------------------------------------------------------------------------------


_OPEN_BRACE = ord("{")


class _FastEnvelope(msgspec.Struct):
    type: str
    payload: msgspec.Raw


class _FastRecord(msgspec.Struct):
    timestamp: float
    message: _FastEnvelope


_decode_fast = msgspec.json.Decoder(_FastRecord).decode


def record_from_line(line: bytes) -> WireMessageRecord | None:
    """
    Decode a line that is a plain record, fast; None if it needs the whole policy of ``decode_line``.

    Never gives a record that the slow way would not give.
    """
    try:
        fast = _decode_fast(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    payload = fast.message.payload
    if memoryview(payload)[0] != _OPEN_BRACE:
        return None
    record = _new_record(WireMessageRecord)
    record.timestamp = fast.timestamp
    record.raw = line
    record._message = None
    record._type = fast.message.type
    record._payload = payload
    return record


_new_record = WireMessageRecord.__new__


def is_header(value: dict[str, Any]) -> bool:
    """Tell whether a decoded line is a header."""
    return (
        isinstance(value.get("protocol_version"), str)
        and value.get("type", "metadata") == "metadata"
        and "message" not in value
    )


def timestamp_of(value: object) -> float | None:
    """Return a record's timestamp as a number, None if it is none (NaN and infinities are numbers here)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def refuse(value: dict[str, Any]) -> str | None:
    """Tell why an object is neither a record nor a header; None if it is one. The ``accept`` of wire logs."""
    message = value.get("message")
    if isinstance(message, dict) and "timestamp" in value:
        if not isinstance(message.get("type"), str):
            return "a record without a type"
        if not isinstance(message.get("payload"), dict):
            return "a record without a payload"
        if timestamp_of(value["timestamp"]) is None:
            return "a record without a readable timestamp"
        return None
    if is_header(value):
        return None
    return "an object that is no wire record"


def record_from_span(span: Span) -> WireMessageRecord | None:
    """Return the record of a decoded span, None for a header."""
    value = span.value
    message = value.get("message")
    if not isinstance(message, dict):
        return None
    timestamp = timestamp_of(value["timestamp"])
    record = _new_record(WireMessageRecord)
    record.timestamp = math.nan if timestamp is None else timestamp
    record.raw = span.raw
    record._message = WireMessageEnvelope(type=message["type"], payload=message["payload"])
    record._type = message["type"]
    record._payload = None
    return record


def parse_wire_file_line(line: str | bytes) -> WireFileMetadata | WireMessageRecord:
    """
    Parse one line of a wire log: its header, or a record.

    Raises InvalidRecordError (a ValueError) for anything else, a line holding more than one record included.
    """
    raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else bytes(line)
    decoded = decode_line(raw, refuse)
    if len(decoded.records) != 1 or decoded.damage:
        reason = decoded.damage[0].reason if decoded.damage else f"{len(decoded.records)} records on one line"
        raise InvalidRecordError(reason=reason)
    span = decoded.records[0]
    record = record_from_span(span)
    if record is not None:
        return record
    return WireFileMetadata(protocol_version=span.value["protocol_version"])
