"""Typed wire messages: what Kimi CLI wrote is read, and what is written is what Kimi CLI would write."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kimi_sessions.errors import InvalidRecordError, SessionsError
from kimi_sessions.wire import messages
from kimi_sessions.wire.messages import (
    ApprovalRequest,
    ApprovalResponse,
    AudioURLPart,
    BackgroundTaskDisplayBlock,
    BriefDisplayBlock,
    BtwBegin,
    BtwEnd,
    CompactionBegin,
    CompactionEnd,
    ContentPart,
    DiffDisplayBlock,
    HookRequest,
    HookResolved,
    HookTriggered,
    ImageURLPart,
    MCPLoadingBegin,
    MCPLoadingEnd,
    MCPServerSnapshot,
    MCPStatusSnapshot,
    Notification,
    PlanDisplay,
    QuestionItem,
    QuestionOption,
    QuestionRequest,
    ShellDisplayBlock,
    StatusUpdate,
    SteerInput,
    StepBegin,
    StepInterrupted,
    StepRetry,
    SubagentEvent,
    TextPart,
    ThinkPart,
    TodoDisplayBlock,
    TodoDisplayItem,
    TokenUsage,
    ToolCall,
    ToolCallPart,
    ToolCallRequest,
    ToolResult,
    ToolReturnValue,
    TurnBegin,
    TurnEnd,
    UnknownContentPart,
    UnknownDisplayBlock,
    UnknownMessageTypeError,
    VideoURLPart,
    WireMessage,
    dump_payload,
    is_event,
    is_request,
    message_type,
    parse_message,
)

CORPUS = Path(__file__).parents[3] / "fixtures" / "corpus"
LONE = "\ud83d"

# A message, its type, and the payload that the newest Kimi CLI writes: keys in its order, with its nulls.
WRITTEN: list[tuple[WireMessage, str, dict[str, Any]]] = [
    (TurnBegin(user_input="héllo"), "TurnBegin", {"user_input": "héllo"}),
    (
        TurnBegin(user_input=[TextPart(text="see"), ImageURLPart(image_url=ImageURLPart.ImageURL(url="u"))]),
        "TurnBegin",
        {
            "user_input": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "u", "id": None}},
            ]
        },
    ),
    (SteerInput(user_input="left"), "SteerInput", {"user_input": "left"}),
    (TurnEnd(), "TurnEnd", {}),
    (StepBegin(n=1), "StepBegin", {"n": 1}),
    (StepInterrupted(), "StepInterrupted", {}),
    (
        StepRetry(n=1, next_attempt=2, max_attempts=3, wait_s=0.5, error_type="APIStatusError"),
        "StepRetry",
        {
            "n": 1,
            "next_attempt": 2,
            "max_attempts": 3,
            "wait_s": 0.5,
            "error_type": "APIStatusError",
            "status_code": None,
        },
    ),
    (CompactionBegin(), "CompactionBegin", {}),
    (CompactionEnd(), "CompactionEnd", {}),
    (HookTriggered(event="Stop"), "HookTriggered", {"event": "Stop", "target": "", "hook_count": 1}),
    (
        HookResolved(event="PreToolUse", target="Shell", action="block", reason="no", duration_ms=7),
        "HookResolved",
        {"event": "PreToolUse", "target": "Shell", "action": "block", "reason": "no", "duration_ms": 7},
    ),
    (MCPLoadingBegin(), "MCPLoadingBegin", {}),
    (MCPLoadingEnd(), "MCPLoadingEnd", {}),
    (
        StatusUpdate(context_usage=0.25),
        "StatusUpdate",
        {
            "context_usage": 0.25,
            "context_tokens": None,
            "max_context_tokens": None,
            "token_usage": None,
            "message_id": None,
            "plan_mode": None,
            "mcp_status": None,
        },
    ),
    (
        StatusUpdate(
            context_tokens=10,
            max_context_tokens=100,
            token_usage=TokenUsage(input_other=1, output=2),
            message_id="m",
            plan_mode=True,
            mcp_status=MCPStatusSnapshot(
                loading=True,
                connected=1,
                total=2,
                tools=1,
                servers=(MCPServerSnapshot(name="a", status="connected", tools=("t",)),),
            ),
        ),
        "StatusUpdate",
        {
            "context_usage": None,
            "context_tokens": 10,
            "max_context_tokens": 100,
            "token_usage": {"input_other": 1, "output": 2, "input_cache_read": 0, "input_cache_creation": 0},
            "message_id": "m",
            "plan_mode": True,
            "mcp_status": {
                "loading": True,
                "connected": 1,
                "total": 2,
                "tools": 1,
                "servers": [{"name": "a", "status": "connected", "tools": ["t"]}],
            },
        },
    ),
    (
        Notification(
            id="n1",
            category="task",
            type="task.completed",
            source_kind="background_task",
            source_id="bash-1",
            title="t",
            body="b",
            severity="success",
            created_at=1.5,
        ),
        "Notification",
        {
            "id": "n1",
            "category": "task",
            "type": "task.completed",
            "source_kind": "background_task",
            "source_id": "bash-1",
            "title": "t",
            "body": "b",
            "severity": "success",
            "created_at": 1.5,
            "payload": {},
        },
    ),
    (PlanDisplay(content="# Plan", file_path="/p"), "PlanDisplay", {"content": "# Plan", "file_path": "/p"}),
    (BtwBegin(id="b", question="why"), "BtwBegin", {"id": "b", "question": "why"}),
    (BtwEnd(id="b", response="so"), "BtwEnd", {"id": "b", "response": "so", "error": None}),
    (TextPart(text="hi"), "ContentPart", {"type": "text", "text": "hi"}),
    (ThinkPart(think="hm"), "ContentPart", {"type": "think", "think": "hm", "encrypted": None}),
    (
        ImageURLPart(image_url=ImageURLPart.ImageURL(url="u", id="i")),
        "ContentPart",
        {"type": "image_url", "image_url": {"url": "u", "id": "i"}},
    ),
    (
        AudioURLPart(audio_url=AudioURLPart.AudioURL(url="u")),
        "ContentPart",
        {"type": "audio_url", "audio_url": {"url": "u", "id": None}},
    ),
    (
        VideoURLPart(video_url=VideoURLPart.VideoURL(url="u")),
        "ContentPart",
        {"type": "video_url", "video_url": {"url": "u", "id": None}},
    ),
    (
        ToolCall(id="c", function=ToolCall.FunctionBody(name="Shell", arguments="{}")),
        "ToolCall",
        {"type": "function", "id": "c", "function": {"name": "Shell", "arguments": "{}"}, "extras": None},
    ),
    (ToolCallPart(arguments_part='{"a'), "ToolCallPart", {"arguments_part": '{"a'}),
    (
        ToolResult(
            tool_call_id="c",
            return_value=ToolReturnValue(
                is_error=False,
                output=[TextPart(text="out")],
                message="done",
                display=[
                    BriefDisplayBlock(text="short"),
                    DiffDisplayBlock(path="a.py", old_text="a", new_text="b"),
                    TodoDisplayBlock(items=[TodoDisplayItem(title="t", status="done")]),
                    ShellDisplayBlock(language="bash", command="ls"),
                    BackgroundTaskDisplayBlock(task_id="b1", kind="bash", status="running", description="d"),
                    UnknownDisplayBlock.model_validate({"type": "chart", "data": {"x": 1}}),
                ],
            ),
        ),
        "ToolResult",
        {
            "tool_call_id": "c",
            "return_value": {
                "is_error": False,
                "output": [{"type": "text", "text": "out"}],
                "message": "done",
                "display": [
                    {"type": "brief", "text": "short"},
                    {
                        "type": "diff",
                        "path": "a.py",
                        "old_text": "a",
                        "new_text": "b",
                        "old_start": 1,
                        "new_start": 1,
                        "is_summary": False,
                    },
                    {"type": "todo", "items": [{"title": "t", "status": "done"}]},
                    {"type": "shell", "language": "bash", "command": "ls"},
                    {
                        "type": "background_task",
                        "task_id": "b1",
                        "kind": "bash",
                        "status": "running",
                        "description": "d",
                    },
                    {"type": "chart", "data": {"x": 1}},
                ],
                "extras": None,
            },
        },
    ),
    (
        ApprovalResponse(request_id="r", response="approve_for_session"),
        "ApprovalResponse",
        {"request_id": "r", "response": "approve_for_session", "feedback": ""},
    ),
    (
        SubagentEvent(
            parent_tool_call_id="c", agent_id="a1", subagent_type="coder", event=TextPart(text="from below")
        ),
        "SubagentEvent",
        {
            "parent_tool_call_id": "c",
            "agent_id": "a1",
            "subagent_type": "coder",
            "event": {"type": "ContentPart", "payload": {"type": "text", "text": "from below"}},
        },
    ),
    (
        ApprovalRequest(id="r", tool_call_id="c", sender="Shell", action="run", description="Run `ls`"),
        "ApprovalRequest",
        {
            "id": "r",
            "tool_call_id": "c",
            "sender": "Shell",
            "action": "run",
            "description": "Run `ls`",
            "source_kind": None,
            "source_id": None,
            "agent_id": None,
            "subagent_type": None,
            "source_description": None,
            "display": [],
        },
    ),
    (
        ToolCallRequest(id="c", name="f", arguments=None),
        "ToolCallRequest",
        {"id": "c", "name": "f", "arguments": None},
    ),
    (
        QuestionRequest(
            id="q",
            tool_call_id="c",
            questions=[QuestionItem(question="Which?", options=[QuestionOption(label="A")])],
        ),
        "QuestionRequest",
        {
            "id": "q",
            "tool_call_id": "c",
            "questions": [
                {
                    "question": "Which?",
                    "header": "",
                    "options": [{"label": "A", "description": ""}],
                    "multi_select": False,
                    "body": "",
                    "other_label": "",
                    "other_description": "",
                }
            ],
        },
    ),
    (
        HookRequest(id="h", event="Stop", input_data={"k": None}),
        "HookRequest",
        {"id": "h", "subscription_id": "", "event": "Stop", "target": "", "input_data": {"k": None}},
    ),
]

WRITTEN_IDS = [f"{number}-{name}" for number, (_, name, _) in enumerate(WRITTEN)]


def result_showing(*blocks: dict[str, Any]) -> dict[str, Any]:
    """Give the payload of a tool result that shows these blocks."""
    return {
        "tool_call_id": "c",
        "return_value": {
            "is_error": False,
            "output": "",
            "message": "",
            "display": list(blocks),
            "extras": None,
        },
    }


def reread(type_name: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Give what a payload looks like once it was read and written again, from JSON and from objects alike."""
    from_json = dump_payload(parse_message(type_name, json.dumps(payload).encode()))
    from_objects = dump_payload(parse_message(type_name, payload))
    assert from_json == from_objects
    value: dict[str, Any] = json.loads(from_json)
    return value


# ---- what is written ---------------------------------------------------------------------------


@pytest.mark.parametrize("message,type_name,payload", WRITTEN, ids=WRITTEN_IDS)
def test_a_message_is_written_with_the_keys_the_order_and_the_nulls_of_kimi_cli(
    message: WireMessage, type_name: str, payload: dict[str, Any]
) -> None:
    """Every type comes out under its envelope name, with exactly these keys in this order."""
    assert message_type(message) == type_name
    assert json.dumps(json.loads(dump_payload(message))) == json.dumps(payload)


@pytest.mark.parametrize("message,type_name,payload", WRITTEN, ids=WRITTEN_IDS)
def test_a_message_comes_back_equal_from_its_json_and_from_its_objects(
    message: WireMessage, type_name: str, payload: dict[str, Any]
) -> None:
    """Reading what was written gives an equal message of the same class."""
    for source in (dump_payload(message), payload):
        again = parse_message(type_name, source)
        assert type(again) is type(message)
        assert again == message


def test_every_type_in_the_tables_is_among_the_written_ones() -> None:
    """The list of exact payloads leaves no event, request, part or block out."""
    names = {name for _, name, _ in WRITTEN}
    assert names == set(messages.EVENT_TYPES) | set(messages.REQUEST_TYPES)
    parts = {payload["type"] for _, name, payload in WRITTEN if name == "ContentPart"}
    assert parts == set(messages.CONTENT_PART_TYPES)
    shown = next(m for m, name, _ in WRITTEN if name == "ToolResult")
    assert isinstance(shown, ToolResult)
    known = {block.type for block in shown.return_value.display} - {"chart"}
    assert known == set(messages.DISPLAY_BLOCK_TYPES)


def test_every_model_tells_when_it_may_occur() -> None:
    """Each event and request has a docstring of its own that names a protocol version."""
    for cls in (*messages.EVENT_TYPES.values(), *messages.REQUEST_TYPES.values()):
        assert cls.__doc__ is not None
        assert "1." in cls.__doc__, cls.__name__


# ---- what kind of message ----------------------------------------------------------------------


@pytest.mark.parametrize("message,type_name,payload", WRITTEN, ids=WRITTEN_IDS)
def test_a_message_is_an_event_or_a_request_and_never_both(
    message: WireMessage, type_name: str, payload: dict[str, Any]
) -> None:
    """The two predicates agree with the two tables."""
    assert is_event(message) is (type_name in messages.EVENT_TYPES)
    assert is_request(message) is (type_name in messages.REQUEST_TYPES)
    assert is_event(message) is not is_request(message)


def test_what_is_no_message_is_neither_event_nor_request_and_has_no_type() -> None:
    """A dict that looks like a payload is no message, and neither is half of one."""
    for value in ({"n": 1}, None, TokenUsage(input_other=1, output=1), BriefDisplayBlock(text="b")):
        assert not is_event(value)
        assert not is_request(value)
    with pytest.raises(TypeError, match="TokenUsage"):
        message_type(TokenUsage(input_other=1, output=1))  # type: ignore[arg-type]


def test_a_subclass_of_a_message_is_written_under_the_name_of_that_message() -> None:
    """Programs may add methods to a message without adding a type to the log."""

    class LoudText(TextPart):
        """A text part of somebody's own."""

    assert message_type(LoudText(text="!")) == "ContentPart"
    assert dump_payload(LoudText(text="!")) == b'{"type":"text","text":"!"}'


def test_an_unknown_type_is_an_error_that_names_it() -> None:
    """The name is in the text and on the error, which is one of the library's and survives pickling."""
    with pytest.raises(ValueError, match="FooBegin") as caught:
        parse_message("FooBegin", {})
    assert isinstance(caught.value, UnknownMessageTypeError)
    assert isinstance(caught.value, SessionsError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.type_name == "FooBegin"
    assert str(again) == str(caught.value)


@pytest.mark.parametrize(
    "type_name,payload",
    [
        ("TurnBegin", {}),
        ("TurnBegin", {"user_input": None}),
        ("TurnBegin", {"user_input": ["bare"]}),
        ("TurnBegin", {"user_input": [{"text": "no type"}]}),
        ("StepBegin", {"n": "first"}),
        ("StepBegin", {"n": 1.5}),
        ("ContentPart", {}),
        ("ContentPart", {"type": 5}),
        ("ContentPart", {"type": "text"}),
        ("ToolCall", {"type": "other", "id": "c", "function": {"name": "f", "arguments": None}}),
        ("ToolResult", {"tool_call_id": "c"}),
        ("ToolResult", result_showing({"type": "diff", "path": "a"})),
        ("ToolResult", result_showing({"no": "type"})),
        ("ApprovalResponse", {"request_id": "r", "response": "maybe"}),
        ("SubagentEvent", {}),
        ("SubagentEvent", {"event": {"type": "TurnEnd"}}),
        ("SubagentEvent", {"event": {"type": "FooBegin", "payload": {}}}),
        ("SubagentEvent", {"event": {"type": "HookRequest", "payload": {"id": "h", "event": "Stop"}}}),
    ],
)
def test_a_payload_that_does_not_fit_is_a_value_error(type_name: str, payload: dict[str, Any]) -> None:
    """What Kimi CLI refuses is refused; a damaged part of a known type is no unknown part."""
    with pytest.raises(ValueError):  # noqa: PT011 (any ValueError is the promise)
        parse_message(type_name, payload)
    with pytest.raises(ValueError):  # noqa: PT011
        parse_message(type_name, json.dumps(payload).encode())


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b"null", b'{"n":1', b'{"n":1}x', b"\xff"])
def test_json_that_is_no_object_is_a_validation_error(junk: bytes) -> None:
    """Torn and foreign bytes raise, and never give a message made of defaults."""
    with pytest.raises(ValidationError):
        parse_message("StepBegin", junk)


# ---- old records -------------------------------------------------------------------------------


def test_the_oldest_name_of_an_approval_response_is_understood() -> None:
    """`ApprovalRequestResolved` gives an `ApprovalResponse` without feedback."""
    message = parse_message("ApprovalRequestResolved", {"request_id": "r", "response": "reject"})
    assert message == ApprovalResponse(request_id="r", response="reject", feedback="")
    assert message_type(message) == "ApprovalResponse"


def test_the_old_name_of_the_parents_call_is_understood() -> None:
    """`task_tool_call_id` fills `parent_tool_call_id`; the newer ids are null."""
    old = {"task_tool_call_id": "c", "event": {"type": "StepBegin", "payload": {"n": 1}}}
    assert reread("SubagentEvent", old) == {
        "parent_tool_call_id": "c",
        "agent_id": None,
        "subagent_type": None,
        "event": {"type": "StepBegin", "payload": {"n": 1}},
    }


def test_a_brief_block_with_its_text_under_data_is_understood() -> None:
    """The clients around 0.60 wrote `data`; it is written back as `text`."""
    message = parse_message("ToolResult", result_showing({"type": "brief", "data": "File not found"}))
    assert isinstance(message, ToolResult)
    assert message.return_value.display == [BriefDisplayBlock(text="File not found")]


@pytest.mark.parametrize("function", [{"name": "f", "arguments": None}, {"name": "f"}])
def test_a_call_without_arguments_is_read_and_written_with_null(function: dict[str, Any]) -> None:
    """Missing and null are the same, and are always written: a client that misses them drops the call."""
    written = reread("ToolCall", {"id": "c", "function": function})
    assert written["function"] == {"name": "f", "arguments": None}


@pytest.mark.parametrize("n", ["3", 3.0, 3])
def test_numbers_are_taken_as_leniently_as_the_client_takes_them(n: object) -> None:
    """A whole number written as text or with a point is that whole number."""
    assert parse_message("StepBegin", {"n": n}) == StepBegin(n=3)
    assert parse_message("StepBegin", json.dumps({"n": n}).encode()) == StepBegin(n=3)


def test_token_usage_adds_up() -> None:
    """Input is all input, and the total has the output too."""
    usage = TokenUsage(input_other=1, output=20, input_cache_read=300, input_cache_creation=4000)
    assert (usage.input, usage.total) == (4301, 4321)


def logged_messages() -> Iterator[tuple[str, dict[str, Any]]]:
    """Give type and payload of every wire record in the corpus."""
    for path in sorted(CORPUS.glob("**/*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # a line that some client left torn
            if isinstance(record, dict) and isinstance(record.get("message"), dict):
                yield record["message"]["type"], record["message"]["payload"]


def missing_from(new: object, old: object, path: str = "") -> list[str]:
    """Give the paths of values in `old` that `new` lacks or has otherwise; more fields in `new` are fine."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for key, value in old.items()
            for found in (missing_from(new[key], value, f"{path}.{key}") if key in new else [f"{path}.{key}"])
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [found for a, b in zip(new, old, strict=True) for found in missing_from(a, b, f"{path}[]")]
    return [] if new == old else [path]


def test_every_record_of_every_released_client_is_read_and_nothing_of_it_is_lost() -> None:
    """Over the whole corpus, all that was written is written again, but for two old names of fields."""
    lost: dict[str, int] = {}
    count = 0
    for type_name, payload in logged_messages():
        count += 1
        for path in missing_from(reread(type_name, payload), payload):
            lost[type_name + path] = lost.get(type_name + path, 0) + 1
    assert count > 7000
    assert set(lost) == {
        "SubagentEvent.task_tool_call_id",  # now parent_tool_call_id
        "ToolResult.return_value.display[].data",  # now the text of a brief block
    }


# ---- what is not known is kept -------------------------------------------------------------------


@pytest.mark.parametrize(
    "type_name,payload",
    [
        ("TurnEnd", {"reason": "done"}),
        ("ContentPart", {"type": "text", "text": "t", "annotations": [{"a": None}]}),
        ("TurnBegin", {"user_input": [{"type": "text", "text": "t", "new": 1}], "origin": {"ui": "web"}}),
        (
            "ToolCall",
            {
                "type": "function",
                "id": "c",
                "function": {"name": "f", "arguments": "{}", "strict": True},
                "extras": {"k": None},
                "index": 0,
            },
        ),
        ("ToolResult", {**result_showing({"type": "brief", "text": "b", "icon": "x"}), "took_s": 1.25}),
        (
            "SubagentEvent",
            {
                "parent_tool_call_id": None,
                "agent_id": None,
                "subagent_type": None,
                "event": {"type": "StepBegin", "payload": {"n": 1, "model": "k2"}},
                "depth": 1,
            },
        ),
    ],
)
def test_fields_of_a_newer_client_survive(type_name: str, payload: dict[str, Any]) -> None:
    """Reading and writing loses no field at any level."""
    assert reread(type_name, payload) == payload


@pytest.mark.parametrize(
    "part",
    [
        {"type": "hologram"},
        {"type": "hologram", "url": "u", "nested": {"type": "text"}},
        {"type": "file", "data": None},
    ],
)
def test_a_part_of_an_unknown_kind_is_kept_as_it_is(part: dict[str, Any]) -> None:
    """On its own, in a prompt and in a tool's output."""
    message = parse_message("ContentPart", part)
    assert isinstance(message, UnknownContentPart)
    assert isinstance(message, ContentPart)
    assert message_type(message) == "ContentPart"
    assert reread("ContentPart", part) == part
    assert reread("TurnBegin", {"user_input": [part]}) == {"user_input": [part]}


@pytest.mark.parametrize(
    "block,data",
    [
        ({"type": "chart", "rows": [1, 2]}, {"rows": [1, 2]}),
        ({"type": "chart", "data": {"rows": [1, 2]}}, {"rows": [1, 2]}),
        ({"type": "chart", "data": {"data": {"rows": 1}}}, {"data": {"rows": 1}}),
        ({"type": "chart", "data": None}, None),
        ({"type": "chart"}, {}),
    ],
)
def test_a_block_of_an_unknown_kind_is_kept_and_nests_no_deeper(block: dict[str, Any], data: object) -> None:
    """Bare or wrapped by the client, the bytes stay the same however often they are read and written."""
    payload = result_showing(block)
    once = dump_payload(parse_message("ToolResult", payload))
    twice = dump_payload(parse_message("ToolResult", once))
    assert once == twice
    assert json.loads(once) == payload
    message = parse_message("ToolResult", once)
    assert isinstance(message, ToolResult)
    (shown,) = message.return_value.display
    assert isinstance(shown, UnknownDisplayBlock)
    assert (shown.type, shown.data) == ("chart", data)


# ---- values that break other writers and readers ---------------------------------------------------


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**80), 10**40, 9007199254740993])
def test_integers_of_any_length_stay_exact(number: int) -> None:
    """Named, unnamed and nested ones, through JSON and back."""
    payload = {"n": number, "other": number, "deep": [{"x": number}]}
    assert reread("StepBegin", payload) == payload


@pytest.mark.parametrize("text", [LONE, f"before {LONE} after", f"{LONE}😀", "\udc80é"])
def test_text_with_lone_surrogates_is_written_and_read_back(text: str) -> None:
    """Half an emoji, cut by a stream, neither fails a write nor is lost."""
    for message in (
        TextPart(text=text),
        TurnBegin(user_input=[TextPart(text=text)]),
        SubagentEvent(event=TextPart(text=text)),
        HookRequest(id="h", event="e", input_data={text: [text]}),
        parse_message("TurnEnd", {"note": text}),
    ):
        data = dump_payload(message)
        data.decode("ascii")
        assert b"\\ud" in data
        assert parse_message(message_type(message), data) == message


def test_raw_control_characters_and_broken_utf8_are_read() -> None:
    """Control characters stay as they are, and a byte that is no UTF-8 becomes U+FFFD."""
    assert parse_message("ContentPart", b'{"type":"text","text":"a\x01b\tc"}') == TextPart(text="a\x01b\tc")
    assert parse_message("ContentPart", b'{"type":"text","text":"a\xffb"}') == TextPart(text="a\ufffdb")


def test_numbers_that_are_none_come_back_as_they_were() -> None:
    """NaN and infinity are written as Kimi CLI writes them, so that a required number stays readable."""
    data = dump_payload(parse_message("StatusUpdate", b'{"context_usage":NaN,"x":-Infinity}'))
    again = parse_message("StatusUpdate", data)
    assert isinstance(again, StatusUpdate)
    assert again.context_usage is not None
    assert again.context_usage != again.context_usage  # only NaN does this
    assert again.model_extra == {"x": float("-inf")}


def test_nesting_beyond_the_fast_reader_is_read_and_written() -> None:
    """A tool's output may be nested some hundred levels deep."""
    value: object = 1
    for _ in range(400):
        value = {"a": value}
    payload = {"id": "h", "subscription_id": "", "event": "e", "target": "", "input_data": {"a": value}}
    assert reread("HookRequest", payload) == payload


def test_nesting_beyond_the_interpreter_is_a_value_error() -> None:
    """A line made to exhaust the stack is a bad line and not a crash."""
    deep = b'{"id":"h","event":"e","input_data":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"
    with pytest.raises(ValueError):  # noqa: PT011
        parse_message("HookRequest", deep)
    wrapped: dict[str, Any] = {"type": "TurnEnd", "payload": {}}
    for _ in range(2_000):
        wrapped = {"type": "SubagentEvent", "payload": {"event": wrapped}}
    with pytest.raises(ValueError):  # noqa: PT011
        parse_message("SubagentEvent", wrapped["payload"])


def test_what_json_cannot_hold_is_refused_when_written() -> None:
    """An object of one's own, and a dict that holds itself, give an error of the library."""
    circle: dict[str, Any] = {}
    circle["again"] = circle
    for data in ({"x": object()}, circle):
        with pytest.raises(InvalidRecordError):
            dump_payload(HookRequest(id="h", event="e", input_data=data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@given(
    text=st.text(st.characters(codec=None, categories=None)), extra=st.dictionaries(st.text(), json_values)
)
def test_any_text_and_any_unknown_fields_survive(text: str, extra: dict[str, Any]) -> None:
    """Whatever a record holds beside the named fields comes back the same, as do all of Unicode's texts."""
    payload = {**extra, "type": "text", "text": text}
    part = parse_message("ContentPart", payload)
    assert json.loads(dump_payload(part)) == payload
    assert parse_message("ContentPart", dump_payload(part)) == part
