"""Wire lines become headers and records, fast ones as slow ones, and go back to the bytes they came from."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kimi_sessions._lines import decode_line
from kimi_sessions.errors import InvalidRecordError
from kimi_sessions.wire import TextPart, TurnBegin
from kimi_sessions.wire.records import (
    WireFileMetadata,
    WireMessageEnvelope,
    WireMessageRecord,
    dump_json,
    is_header,
    parse_wire_file_line,
    record_from_line,
    record_from_span,
    record_line,
    refuse,
    timestamp_of,
)

RECORD = b'{"timestamp": 1700000000.5, "message": {"type": "TurnBegin", "payload": {"user_input": "hi"}}}'


def record_of(raw: bytes) -> WireMessageRecord:
    """Give the one record of a line."""
    parsed = parse_wire_file_line(raw)
    assert isinstance(parsed, WireMessageRecord)
    return parsed


# --- headers -------------------------------------------------------------------------------------------------------


def test_a_header_s_line_is_the_client_s() -> None:
    """Type and protocol version, nothing else."""
    header = WireFileMetadata()
    assert json.loads(header.to_line()) == {"type": "metadata", "protocol_version": "1.10"}
    assert header.model_dump_json() == header.to_line().decode()
    assert parse_wire_file_line(header.to_line()) == header
    assert repr(WireFileMetadata(protocol_version="1.1")) == "WireFileMetadata(protocol_version='1.1')"
    assert len({header, WireFileMetadata(), WireFileMetadata(protocol_version="1.1")}) == 2
    with pytest.raises(InvalidRecordError):
        WireFileMetadata(type="other")


@pytest.mark.parametrize(
    "value,header",
    [
        ({"type": "metadata", "protocol_version": "1.3"}, True),
        ({"protocol_version": "1.1"}, True),
        ({"type": "metadata", "protocol_version": "9.9", "client": {"name": "x"}}, True),
        ({"type": "metadata", "protocol_version": 1.1}, False),
        ({"type": "metadata"}, False),
        ({"type": "other", "protocol_version": "1.1"}, False),
        ({"type": None, "protocol_version": "1.1"}, False),
        ({"protocol_version": "1.1", "timestamp": 1, "message": {"type": "T", "payload": {}}}, False),
    ],
)
def test_a_header_is_known_by_its_version(value: dict[str, Any], header: bool) -> None:
    """Extra keys are fine; a record that also has a version is a record and is not dropped."""
    assert is_header(value) is header


# --- records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw,timestamp",
    [
        (b'{"timestamp": 17, "message": {"type": "T", "payload": {}}}', 17.0),
        (b'{"timestamp": "17.5", "message": {"type": "T", "payload": {}}}', 17.5),
        (b'{"timestamp": " 17 ", "message": {"type": "T", "payload": {}}}', 17.0),
        (b'{"message":{"payload":{},"type":"T"},"timestamp":17}', 17.0),
        (b'{"timestamp": 17, "extra": [1], "message": {"more": 1, "type": "T", "payload": {}}}', 17.0),
        (b'{"timestamp": 17, "protocol_version": "1.1", "message": {"type": "T", "payload": {}}}', 17.0),
        (b'\xef\xbb\xbf{"timestamp": 17, "message": {"type": "T", "payload": {}}}\r', 17.0),
    ],
)
def test_a_record_is_read_in_every_shape_that_clients_wrote(raw: bytes, timestamp: float) -> None:
    """Whole, fractional and textual times, any order of keys, keys that nobody knows."""
    record = record_of(raw)
    assert (record.timestamp, record.type, record.message.payload) == (timestamp, "T", {})


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b'"nan"'])
def test_a_record_with_a_time_that_is_no_time_is_still_a_record(word: bytes) -> None:
    """What it says is worth keeping; who needs a time sees that it has none."""
    record = record_of(b'{"timestamp": %s, "message": {"type": "T", "payload": {"a": 1}}}' % word)
    assert not math.isfinite(record.timestamp)
    assert record.message.payload == {"a": 1}


@pytest.mark.parametrize(
    "raw,reason",
    [
        (b'{"message": {"type": "T", "payload": {}}}', "no wire record"),
        (b'{"timestamp": null, "message": {"type": "T", "payload": {}}}', "timestamp"),
        (b'{"timestamp": true, "message": {"type": "T", "payload": {}}}', "timestamp"),
        (b'{"timestamp": "soon", "message": {"type": "T", "payload": {}}}', "timestamp"),
        (b'{"timestamp": 1' + b"0" * 400 + b', "message": {"type": "T", "payload": {}}}', "timestamp"),
        (b'{"timestamp": 1, "message": {"payload": {}}}', "without a type"),
        (b'{"timestamp": 1, "message": {"type": 5, "payload": {}}}', "without a type"),
        (b'{"timestamp": 1, "message": {"type": "T"}}', "without a payload"),
        (b'{"timestamp": 1, "message": {"type": "T", "payload": null}}', "without a payload"),
        (b'{"timestamp": 1, "message": {"type": "T", "payload": [1]}}', "without a payload"),
        (b'{"timestamp": 1, "message": null}', "no wire record"),
        (b'{"timestamp": 1}', "no wire record"),
        (b"{}", "no wire record"),
        (b"[]", "an array"),
        (b"", "0 records"),
        (RECORD + RECORD, "2 records"),
        (RECORD[:-1], "torn"),
        (RECORD[:20] + RECORD, "torn"),
    ],
)
def test_a_line_that_is_not_one_record_is_refused_with_a_reason(raw: bytes, reason: str) -> None:
    """One line, one record; the fast way does not let through what the slow one refuses."""
    assert record_from_line(raw) is None
    with pytest.raises(InvalidRecordError, match=reason):
        parse_wire_file_line(raw)


def test_a_line_may_be_given_as_text() -> None:
    """Also one with half a pair in it."""
    assert parse_wire_file_line(RECORD.decode()) == parse_wire_file_line(RECORD)
    assert record_of(RECORD.replace(b"hi", "项目".encode())).message.payload == {"user_input": "项目"}
    odd = '{"timestamp": 1, "message": {"type": "T", "payload": {"a": "\ud83d"}}}'
    assert isinstance(parse_wire_file_line(odd), WireMessageRecord)


@pytest.mark.parametrize("value", [1, 1.5, "2", " 3 ", "1e3", "nan"])
def test_a_time_is_a_number_or_a_text_of_one(value: object) -> None:
    """As the old reader takes it."""
    assert isinstance(timestamp_of(value), float)


@pytest.mark.parametrize("value", [None, True, "", "x", [1], {}, 10**400])
def test_anything_else_is_no_time(value: object) -> None:
    """Booleans and numbers beyond all measure included."""
    assert timestamp_of(value) is None


# --- fast and slow -------------------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.builds(
    lambda timestamp, type_, payload, extra: {
        **extra,
        "timestamp": timestamp,
        "message": {"type": type_, "payload": payload},
    },
    st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none(), st.just("12.5")),
    st.one_of(st.sampled_from(["TurnBegin", "字", ""]), st.integers(), st.text(max_size=3)),
    st.one_of(st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3), JSON_VALUES),
    st.sampled_from([{}, {"protocol_version": "1.1"}, {"extra": 1}, {"message": 5}]),
)
ODD_BYTES = [
    b"\0",
    b"\xff",
    b"\\",
    b'"',
    b"{",
    b"}",
    b",",
    b"\\q",
    b"\\ud800",
    b"\x01",
    b"9" * 25,
    b"e999",
    b" ",
    b"\r",
]


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    """Give a record's line with bytes taken out, put in or changed somewhere."""
    value = draw(RECORDS)
    raw = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        gone = draw(st.integers(0, 2))
        put = draw(st.sampled_from([b"", *ODD_BYTES]) | st.binary(max_size=2))
        raw = raw[:at] + put + raw[at + gone :]
    return raw.replace(b"\n", b" ")


def outcome(record: WireMessageRecord) -> tuple[object, ...]:
    """Give all that a reader gets of a record, in a form that compares."""
    return repr(record.timestamp), record.type, repr(record.message.payload), record.to_line().strip(b" \t\r")


@given(damaged_lines())
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": "\\q"}}}')
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": "\\u12"}}}')
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": "\xff"}}}')
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": "\x01"}}}')
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": 1e999}}}')
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": 01}}}')
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": [1,]}}}')
@example(b'{"timestamp": 1, "x": "\\q", "message": {"type": "T", "payload": {}}}')
@example(b'{"timestamp": 1, "x": "\xff", "message": {"type": "T", "payload": {}}}')
@example(b'{"timestamp": 1, "x": 1e999, "message": {"type": "T", "payload": {}}}')
@example(b'{"timestamp": 1, "message": {"type": "\\ud800", "payload": {}}}')
@example(b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": ' + b"[" * 2000 + b"]" * 2000 + b"}}}")
@example(b'{"timestamp": 1, "timestamp": 2, "message": {"type": "T", "payload": {}, "payload": {"a": 1}}}')
def test_the_fast_way_never_gives_what_the_slow_way_would_not(raw: bytes) -> None:
    """Whatever was done to a line: a record read fast is the record read slowly, with payload and bytes."""
    fast = record_from_line(raw)
    if fast is None:
        return
    decoded = decode_line(raw, refuse)
    assert decoded.damage == []
    (span,) = decoded.records
    slow = record_from_span(span)
    assert slow is not None
    assert outcome(fast) == outcome(slow)


@given(RECORDS)
def test_a_healthy_line_comes_back_as_it_was_written(value: dict[str, Any]) -> None:
    """Read and written again it has the same bytes, whatever its payload."""
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        parsed = parse_wire_file_line(raw)
    except InvalidRecordError:
        return
    if isinstance(parsed, WireMessageRecord):
        assert parsed.to_line() == raw


# --- writing -------------------------------------------------------------------------------------------------------


def test_a_typed_message_becomes_a_record_and_back() -> None:
    """Its envelope names its type; the time is now unless given."""
    message = TurnBegin(user_input=[TextPart(text="项目")])
    before = time.time()
    record = WireMessageRecord.from_wire_message(message)
    assert before <= record.timestamp <= time.time()
    assert record.type == record.message.type == "TurnBegin"
    assert record.to_wire_message() == message
    again = record_of(WireMessageRecord.from_wire_message(message, timestamp=5.0).to_line())
    assert again.timestamp == 5.0
    assert again.to_wire_message() == message
    assert again.model_dump() == {
        "timestamp": 5.0,
        "message": {"type": "TurnBegin", "payload": {"user_input": [{"type": "text", "text": "项目"}]}},
    }
    assert json.loads(again.model_dump_json()) == again.model_dump()


def test_a_record_can_be_made_by_hand_from_plain_values() -> None:
    """An unknown type too; it is refused only when somebody wants it typed."""
    record = WireMessageRecord(timestamp=1, message={"type": "Novelty", "payload": {"a": 10**30}})
    assert record.to_line() == (
        b'{"timestamp": 1.0, "message": {"type": "Novelty", "payload": {"a":1000000000000000000000000000000}}}'
    )
    assert record_of(record.to_line()) == record
    with pytest.raises(ValueError, match="Novelty"):
        record.to_wire_message()
    with pytest.raises(ValueError, match="Novelty"):
        record_of(record.to_line()).to_wire_message()


@pytest.mark.parametrize("timestamp", [float("nan"), float("inf"), float("-inf")])
def test_a_time_that_json_has_not_is_not_written(timestamp: float) -> None:
    """Readers of other makes would stop there."""
    with pytest.raises(InvalidRecordError, match="timestamp"):
        record_line("T", b"{}", timestamp)


@given(JSON_VALUES)
def test_dumped_json_is_one_line_that_reads_as_the_same_value(value: Any) -> None:
    """Integers of any size included."""
    raw = dump_json(value)
    assert b"\n" not in raw
    assert json.loads(raw) == value


@pytest.mark.parametrize("value", ["half \ud83d", {"\udc00": 1}, [10**40, "half \ud83d"]])
def test_half_a_pair_is_written_escaped(value: Any) -> None:
    """The bytes stay UTF-8 and the value comes back."""
    raw = dump_json(value)
    assert raw.isascii()
    assert json.loads(raw) == value


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", {"a": {"b": object()}}])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidRecordError):
        dump_json(value)


def test_a_record_read_from_a_line_with_nuls_is_written_without_them() -> None:
    """Its value is kept; the bytes that can't stand in a line are not."""
    raw = b'{"timestamp": 1, "message": {"type": "T", "payload": {"a": "x\x00y"}}}'
    record = record_of(raw)
    assert b"\0" not in record.to_line()
    assert record_of(record.to_line()).message.payload == {"a": "x\0y"}


def test_envelopes_and_records_compare_by_what_they_say() -> None:
    """Read or made, fast or slow; and they have a readable form."""
    made = WireMessageEnvelope(type="TurnBegin", payload={"user_input": "hi"})
    record = record_of(RECORD)
    assert record.message == made
    assert record == WireMessageRecord(timestamp=1700000000.5, message=made)
    assert record != WireMessageRecord(timestamp=1.0, message=made)
    assert made.payload_json == b'{"user_input":"hi"}'
    fast = record_from_line(RECORD)
    assert fast is not None
    assert fast.message.payload_json == b'{"user_input": "hi"}'
    assert fast == record
    assert "TurnBegin" in repr(record)
    assert "TurnBegin" in repr(made)
    assert made.model_dump() == {"type": "TurnBegin", "payload": {"user_input": "hi"}}
