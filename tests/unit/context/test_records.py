"""Context records: messages go in and out as Kimi CLI writes them, control records are what it expects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kimi_sessions.context.records import (
    Message,
    Role,
    dump_checkpoint,
    dump_message,
    dump_system_prompt,
    dump_usage,
    parse_message_record,
    to_message_bytes,
)
from kimi_sessions.context.roles import MESSAGE_ROLES
from kimi_sessions.wire.messages import ImageURLPart, TextPart, ThinkPart, ToolCall, UnknownContentPart

CORPUS = Path(__file__).parents[3] / "fixtures" / "corpus"
LONE = "\ud83d"
CALL = {"type": "function", "id": "c", "function": {"name": "Shell", "arguments": "{}"}}

any_text = st.text(st.characters(codec=None, categories=None))


def reread(record: dict[str, Any]) -> dict[str, Any]:
    """Give what a record looks like once it was read and written again, from JSON and from objects alike."""
    from_json = dump_message(parse_message_record(json.dumps(record).encode()))
    assert from_json == to_message_bytes(record)
    value: dict[str, Any] = json.loads(from_json)
    return value


# ---- messages made by a program ------------------------------------------------------------------


@pytest.mark.parametrize("role", MESSAGE_ROLES)
def test_text_and_one_text_part_are_the_same_message(role: Role) -> None:
    """Either way the message holds one part, and is written with a plain string."""
    message = Message(role=role, content="hi")
    assert message == Message(role=role, content=[TextPart(text="hi")])
    assert message.content == [TextPart(text="hi")]
    assert dump_message(message) == b'{"role":"%s","content":"hi"}' % role.encode()


def test_a_message_without_content_holds_no_parts() -> None:
    """None, nothing and an empty list are written as an empty list."""
    for message in (
        Message(role="assistant"),
        Message(role="assistant", content=None),
        Message(role="assistant", content=[]),
    ):
        assert message.content == []
        assert message.text == ""
        assert dump_message(message) == b'{"role":"assistant","content":[]}'


def test_the_text_of_a_message_is_its_text_parts_put_together() -> None:
    """Reasoning and images are no text, and nothing comes between the parts."""
    image = ImageURLPart(image_url=ImageURLPart.ImageURL(url="u"))
    message = Message(
        role="user", content=[ThinkPart(think="hm"), TextPart(text="a"), image, TextPart(text="b")]
    )
    assert message.text == "ab"


def test_a_message_is_written_with_the_keys_the_order_and_the_nulls_of_kimi_cli() -> None:
    """Null fields of message and call are left out, those of parts are kept."""
    message = Message(
        role="assistant",
        content=[ThinkPart(think="hm"), TextPart(text="on it")],
        name="coder",
        tool_calls=[ToolCall(id="c", function=ToolCall.FunctionBody(name="Shell", arguments="{}"))],
        partial=True,
    )
    assert dump_message(message).decode() == (
        '{"role":"assistant","name":"coder",'
        '"content":[{"type":"think","think":"hm","encrypted":null},{"type":"text","text":"on it"}],'
        '"tool_calls":[{"type":"function","id":"c","function":{"name":"Shell","arguments":"{}"}}],'
        '"partial":true}'
    )
    answer = Message(role="tool", content="done", tool_call_id="c")
    assert dump_message(answer) == b'{"role":"tool","content":"done","tool_call_id":"c"}'


def test_what_pydantic_dumps_is_what_is_written() -> None:
    """`model_dump` and `model_dump_json` give the record too: there is one shape, not three."""
    message = Message(role="assistant", content="a", tool_calls=[ToolCall.model_validate(CALL)])
    assert json.loads(dump_message(message)) == message.model_dump() == json.loads(message.model_dump_json())


def test_a_dict_is_taken_for_the_message_it_spells() -> None:
    """A program may append plain dicts; they are checked and written like messages."""
    assert to_message_bytes({"role": "user", "content": [{"type": "text", "text": "hi"}]}) == (
        b'{"role":"user","content":"hi"}'
    )
    assert to_message_bytes(Message(role="user", content="hi")) == b'{"role":"user","content":"hi"}'


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"content": "no role"},
        {"role": None, "content": "x"},
        {"role": "developer", "content": "x"},
        {"role": "_checkpoint", "id": 3},
        {"role": "_system_prompt", "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": ["bare"]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "assistant", "content": "x", "tool_calls": "none"},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "c"}]},
    ],
)
def test_what_is_no_message_is_a_value_error(record: dict[str, Any]) -> None:
    """Control records and damaged messages are refused, from objects and from JSON."""
    with pytest.raises(ValidationError):
        to_message_bytes(record)
    with pytest.raises(ValidationError):
        parse_message_record(json.dumps(record).encode())


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b'{"role":"user","content":"x"', b"null"])
def test_json_that_is_no_record_is_a_validation_error(junk: bytes) -> None:
    """Torn and foreign bytes raise."""
    with pytest.raises(ValidationError):
        parse_message_record(junk)


# ---- messages that old clients wrote ---------------------------------------------------------------


def context_messages() -> Iterator[dict[str, Any]]:
    """Give every message record of every context in the corpus."""
    for path in sorted(CORPUS.glob("**/*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # a line that some client left torn
            if isinstance(record, dict) and record.get("role") in MESSAGE_ROLES:
                yield record


def as_written_today(record: dict[str, Any]) -> dict[str, Any]:
    """Give an old record as the newest client would write it again."""
    record = dict(record)
    content = record["content"]
    if content is None:
        record["content"] = []
    elif isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text":
        record["content"] = content[0]["text"]
    for call in record.get("tool_calls", ()):
        call["function"].setdefault("arguments", None)
    return record


def test_every_message_of_every_released_client_comes_through_with_equal_values() -> None:
    """Over the whole corpus, reading and writing changes only what the newest client writes otherwise."""
    count = 0
    for record in context_messages():
        assert reread(record) == as_written_today(record)
        count += 1
    assert count > 3000


@pytest.mark.parametrize("function", [{"name": "f", "arguments": None}, {"name": "f"}])
def test_a_call_without_arguments_is_written_with_null(function: dict[str, Any]) -> None:
    """Left out, the newest client would drop the whole message when it reads it."""
    record = {"role": "assistant", "content": [], "tool_calls": [{**CALL, "function": function}]}
    assert reread(record)["tool_calls"][0]["function"] == {"name": "f", "arguments": None}


def test_a_record_without_content_is_a_message_without_parts() -> None:
    """The newest client stops on such a record; here it is a message."""
    assert reread({"role": "assistant", "tool_calls": [CALL]}) == {
        "role": "assistant",
        "content": [],
        "tool_calls": [CALL],
    }


# ---- what is not known, and what breaks other readers ----------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        {"role": "user", "content": "x", "cache": None, "tags": {"a": [1]}},
        {"role": "user", "content": [{"type": "text", "text": "x", "annotations": []}]},
        {"role": "user", "content": [{"type": "hologram", "url": "u"}]},
        {
            "role": "assistant",
            "content": [],
            "tool_calls": [{**CALL, "extras": {"sig": None}, "index": 0}],
        },
    ],
)
def test_fields_and_parts_of_a_newer_client_survive(record: dict[str, Any]) -> None:
    """A part with more than its text is not shortened to a string; unknown parts and fields stay."""
    assert reread(record) == record


def test_a_part_of_an_unknown_kind_is_there_to_be_looked_at() -> None:
    """It is an `UnknownContentPart`, and no text."""
    message = parse_message_record({"role": "user", "content": [{"type": "hologram", "text": "no"}]})
    assert isinstance(message.content[0], UnknownContentPart)
    assert message.text == ""


def test_lone_surrogates_and_raw_control_characters_are_read_and_written() -> None:
    """Half an emoji stays half an emoji; a raw control character is taken as it is."""
    data = dump_message(Message(role="user", content=f"a{LONE}"))
    assert data == b'{"role":"user","content":"a\\ud83d"}'
    assert parse_message_record(data).text == f"a{LONE}"
    assert parse_message_record(b'{"role":"user","content":"a\x01\xff"}').text == "a\x01\ufffd"


@given(texts=st.lists(any_text, max_size=3), extra=st.dictionaries(st.text(), st.integers() | any_text))
def test_any_texts_and_any_unknown_fields_survive(texts: list[str], extra: dict[str, Any]) -> None:
    """Whatever a message holds comes back equal, and a single text is a string on disk."""
    fields = {"name", "tool_calls", "tool_call_id", "partial"}
    record: dict[str, Any] = {key: value for key, value in extra.items() if key not in fields}
    record |= {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}
    written = reread(record)
    assert written == record | {"content": texts[0] if len(texts) == 1 else record["content"]}
    assert parse_message_record(written) == parse_message_record(record)


# ---- control records -------------------------------------------------------------------------------


def test_control_records_have_the_fields_that_kimi_cli_reads() -> None:
    """Role and value, nothing else, in ASCII."""
    assert json.loads(dump_system_prompt("Sei brav ✅")) == {
        "role": "_system_prompt",
        "content": "Sei brav ✅",
    }
    assert json.loads(dump_checkpoint(0)) == {"role": "_checkpoint", "id": 0}
    assert json.loads(dump_usage(12345)) == {"role": "_usage", "token_count": 12345}
    assert dump_system_prompt("✅").isascii()


@given(text=any_text)
def test_any_system_prompt_can_be_written(text: str) -> None:
    """Also one with lone surrogates, on one line."""
    data = dump_system_prompt(text)
    assert b"\n" not in data
    assert json.loads(data)["content"] == text
