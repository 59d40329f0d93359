"""Messages that are decoded when they are looked at are the messages that are decoded at once."""

from __future__ import annotations

import copy
import json
import pickle
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kimi_sessions import Finding
from kimi_sessions._lines import decode_line
from kimi_sessions.context import ContextFile, Message
from kimi_sessions.context.history import (
    HistoryFold,
    read_history,
    refuse,
    refuse_control,
    refuse_message,
)
from kimi_sessions.context.records import dump_message, parse_message_record
from kimi_sessions.context.unread import is_plain_control, unread_message

from .conftest import CONTEXT_LOGS, damaged, opened

RECORD = b'{"role": "user", "content": "hi", "later": [1, {"a": null}]}'


def unread() -> Message:
    """Give a message that nobody has looked at."""
    message = unread_message(RECORD)
    assert message is not None
    return message


def check_line(line: bytes) -> None:
    """Whatever is taken unread is one whole record that the slow way takes, and becomes the same message."""
    message = unread_message(line)
    if message is not None:
        decoded = decode_line(line, refuse)
        assert not decoded.damage
        (span,) = decoded.records
        assert refuse_message(span.value) is None
        assert message == parse_message_record(line) == parse_message_record(span.value)
        assert type(message) is Message
    if is_plain_control(line):
        decoded = decode_line(line, refuse)
        assert not decoded.damage
        (span,) = decoded.records
        assert span.value["role"].startswith("_")
        assert refuse_control(span.value) is None


async def check_file(data: bytes) -> None:
    """All messages of a context, and what is said to be wrong with it, are those of the fold over every line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "context.jsonl")
        path.write_bytes(data)
        found: list[Finding] = []
        messages = await ContextFile(path).messages(on_finding=found.append)
    with opened(data) as fd:
        fold: HistoryFold = read_history(fd)
    assert messages == [parse_message_record(entry.record) for entry in fold.messages]
    assert found == fold.findings


@pytest.mark.parametrize("place", ["%s", '"content": [{"type": "text", "text": "a", %s}]'])
async def test_half_a_surrogate_in_a_field_s_name_hides_no_message(place: str) -> None:
    """Of the message or of a part of it; the name is read with a replacement character."""
    line = ('{"role": "user", ' + place % '"\\ud800x": 1' + "}").encode()
    await check_file(line + b"\n" + RECORD)
    assert "\ufffdx" in repr(parse_message_record(line))


async def test_old_contexts_give_the_same_messages_unread_and_read() -> None:
    """Over all that released clients wrote; nearly all of their messages are plain."""
    plain = 0
    for data in CONTEXT_LOGS:
        await check_file(data)
        for line in data.split(b"\n"):
            check_line(line)
            plain += unread_message(line) is not None
    assert plain > 500


@given(damaged(CONTEXT_LOGS))
async def test_a_damaged_context_gives_the_same_messages_and_findings(data: bytes) -> None:
    """Under cuts, insertions, glued lines and flipped bytes."""
    await check_file(data)
    for line in data.split(b"\n"):
        check_line(line)


VALUES = st.recursive(
    st.sampled_from(
        [None, True, 0, 1.5, "", "hi", "text", "think", "image_url", "function", "\ud800", 10**30]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "think", "encrypted", "id", "function", "name", "arguments", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)
NAMES = ["content", "name", "tool_calls", "tool_call_id", "partial", "id", "token_count", "x"]
ROLES = ["user", "assistant", "tool", "system", "_checkpoint", "_usage", "_system_prompt", "_new", "odd", 3]


@given(st.sampled_from(ROLES), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
def test_a_record_of_any_shape_is_taken_unread_only_if_it_can_be_read(
    role: object, fields: dict[str, Any]
) -> None:
    """Looking at a message never fails."""
    check_line(json.dumps({"role": role} | fields).encode())


PART = b'{"type": "text", "text": "a"%s}'
TWICE = PART % rb', "type": "image_url"'
CALL = b'{"type": "function", "id": "1", "function": {"name": "R"}%s}'


@pytest.mark.parametrize(
    "line",
    [
        b'{"role": "user", "content": [%s]}' % TWICE,
        b'{"role": "user", "content": [%s]}' % (PART % rb', "\u0074ype": "image_url"'),
        b'{"role": "user", "content": [%s], "tool_calls": [{"id": "1", "function": {"name": "R"}}]}' % TWICE,
        b'{"role": "assistant", "tool_calls": [%s]}' % (CALL % b', "extras": 5'),
        b'{"role": "assistant", "tool_calls": [%s]}' % (CALL % b', "extras": {"a": 1}'),
        b'{"role": "user", "content": "a", "x": %s}' % (b"9" * 5000),
        b'{"role": "user", "content": "a", "x": %s}' % (b"[" * 900 + b"]" * 900),
        b'{"role": "user", "content": "a", "x": %s}' % (b"[" * 90000 + b"]" * 90000),
        b'{"role": "user", "content": "\xff"}',
        b'{"role": "user", "content": "a", "x": "\xff"}',
        b'{"role": "user", "content": "\\ud800"}',
        b'{"role": "user", "role": "assistant", "content": null}',
        b'{"role": "user", "content": 5, "content": "a"}',
        b'\xef\xbb\xbf{"role": "user", "content": "a"}',
        b'{"role": "user", "content": "a"}\0',
        b' {"role": "user", "content": "a"}\r',
        b'{"role": "user", "content": "a"}{"role": "user", "content": "a"}',
        b'{"role": "_checkpoint", "id": 1.0}',
        b'{"role": "_checkpoint", "id": true}',
        b'{"role": "_usage", "token_count": -1}',
        b'{"role": "_usage", "token_count": 123456789012345678901234567890}',
        b'{"role": "_system_prompt", "content": ["a"]}',
    ],
)
def test_a_strange_line_is_taken_unread_only_if_it_can_be_read(line: bytes) -> None:
    """Names given twice, numbers without end, nesting, and bytes that are no text."""
    check_line(line)


@pytest.mark.parametrize(
    "look",
    [
        lambda message: message.role,
        lambda message: message.content,
        lambda message: message.later,
        lambda message: message.text,
        lambda message: message == Message(role="user"),
        lambda message: Message(role="user") == message,
        repr,
        str,
        list,
        lambda message: message.model_dump(),
        lambda message: message.model_dump_json(),
        lambda message: message.model_fields_set,
        lambda message: message.model_extra,
        lambda message: message.__dict__,
        lambda message: setattr(message, "name", None),
        lambda message: hasattr(message, "nothing"),
        dump_message,
    ],
)
def test_a_message_is_read_by_the_first_look_at_it(look: Callable[[Message], object]) -> None:
    """Whichever way it is looked at, it is then what it would have been from the start, and the same object."""
    message, plain = unread(), parse_message_record(RECORD)
    assert isinstance(message, Message)
    assert look(message) == look(plain)
    assert type(message) is Message
    assert message == plain
    assert message.model_fields_set == plain.model_fields_set


@pytest.mark.parametrize(
    "make",
    [
        copy.copy,
        copy.deepcopy,
        lambda message: pickle.loads(pickle.dumps(message)),
        lambda message: message.model_copy(),
        Message.model_validate,
    ],
)
def test_a_copy_of_an_unread_message_is_the_message(make: Callable[[Message], Message]) -> None:
    """Copied, pickled or put into a model."""
    copied = make(unread())
    assert copied == parse_message_record(RECORD)
    assert copied.text == "hi"
    assert type(copied) is Message
    assert dump_message(copied) == dump_message(parse_message_record(RECORD))


def test_a_change_to_an_unread_message_stays() -> None:
    """Also one that is its first use."""
    message = unread()
    message.content = []
    assert message.content == []
    assert message.role == "user"
    assert json.loads(dump_message(message)) == {
        "role": "user",
        "content": [],
        "later": [1, {"a": None}],
    }


def test_two_threads_look_at_one_message_and_see_the_same_parts() -> None:
    """The parts that one of them was given are the message's own."""
    for _ in range(50):
        message = unread()
        barrier = threading.Barrier(4)
        seen: list[Any] = []

        def look(message: Message = message, barrier: threading.Barrier = barrier, seen: Any = seen) -> None:
            barrier.wait()
            seen.append(message.content)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(parts is message.content for parts in seen)


@given(st.binary(max_size=60))
@example(b"")
@example(b"{}")
def test_bytes_that_are_no_record_are_not_taken(line: bytes) -> None:
    """Junk is neither a message nor a control record."""
    check_line(line)
