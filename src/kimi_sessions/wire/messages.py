"""
The typed messages of a wire log: all events, requests, parts and blocks of protocol 1.1 to 1.10.

Here are the shapes, and the way from a record's ``type`` and ``payload`` to a model and back. Lines, headers and
timestamps are the business of the wire's records and file; nothing here opens a file.

Rules kept here:

- Field names, order, defaults and nulls are Kimi CLI's: what ``dump_payload`` gives is what that client writes.
- A field that a model does not name stays on the model (``model_extra``) and is written back, at every level
  but one: beside ``type`` and ``payload`` of the event inside a ``SubagentEvent``.
- A content part or display block of an unknown type is kept as it is, in ``UnknownContentPart`` and
  ``UnknownDisplayBlock``. An unknown *message* type is an error that names it: its caller keeps the raw record.
- Values are taken as leniently as Kimi CLI takes them (``"3"`` is a good integer), integers of any length stay
  exact, and text with lone surrogates is read, kept and written.
- Types that are read by the hundred thousand have no Python code in their validation.

The protocol version in each docstring is the one that documents the type. It is a weak hint: several types
were written by clients before the number was raised, and a file keeps the number it began with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeGuard, TypeVar, get_args

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from kimi_sessions._lines import decode_value
from kimi_sessions.errors import InvalidRecordError

__all__ = [
    "CONTENT_PART_TYPES",
    "DISPLAY_BLOCK_TYPES",
    "EVENT_TYPES",
    "REQUEST_TYPES",
    "AnyContentPart",
    "AnyDisplayBlock",
    "ApprovalRequest",
    "ApprovalResponse",
    "AudioURLPart",
    "BackgroundTaskDisplayBlock",
    "BriefDisplayBlock",
    "BtwBegin",
    "BtwEnd",
    "CompactionBegin",
    "CompactionEnd",
    "ContentPart",
    "DiffDisplayBlock",
    "DisplayBlock",
    "Event",
    "HookRequest",
    "HookResolved",
    "HookTriggered",
    "ImageURLPart",
    "MCPLoadingBegin",
    "MCPLoadingEnd",
    "MCPServerSnapshot",
    "MCPStatusSnapshot",
    "Notification",
    "PlanDisplay",
    "QuestionItem",
    "QuestionOption",
    "QuestionRequest",
    "Request",
    "ShellDisplayBlock",
    "StatusUpdate",
    "SteerInput",
    "StepBegin",
    "StepInterrupted",
    "StepRetry",
    "SubagentEvent",
    "TextPart",
    "ThinkPart",
    "TodoDisplayBlock",
    "TodoDisplayItem",
    "TokenUsage",
    "ToolCall",
    "ToolCallPart",
    "ToolCallRequest",
    "ToolResult",
    "ToolReturnValue",
    "TurnBegin",
    "TurnEnd",
    "UnknownContentPart",
    "UnknownDisplayBlock",
    "UnknownMessageTypeError",
    "VideoURLPart",
    "WireMessage",
    "WireModel",
    "dump_model",
    "dump_payload",
    "is_event",
    "is_request",
    "message_type",
    "parse_json",
    "parse_message",
]

_Model = TypeVar("_Model")


class UnknownMessageTypeError(InvalidRecordError):
    """
    No message of this name is known; the record it came in is to be kept as it is.

    ``type_name`` is the name as it stood in the record.
    """

    _fields = ("type_name",)

    def __init__(self, *, type_name: str) -> None:
        self.type_name = type_name
        super().__init__(reason=f"unknown wire message type {type_name!r}")


class WireModel(BaseModel):
    """The base of all typed records. Fields that a model does not name stay, and are written back last."""

    # "constants": a NaN that a client wrote stays a NaN. As null it would make a required number unreadable.
    model_config = ConfigDict(extra="allow", protected_namespaces=(), ser_json_inf_nan="constants")


# ---- content parts -----------------------------------------------------------------------------


class ContentPart(WireModel):
    """
    One piece of what the user, the model or a tool said. The base of all parts, for ``isinstance``.

    On the wire a part is an event of its own: a step's output as it streams, joined with its neighbours of
    the same kind before it is written, so that one record usually holds a whole text. It comes between a
    ``StepBegin`` and the step's ``ToolCall``s or the next step. Parts also stand inside ``TurnBegin``, ``SteerInput``
    and ``ToolResult``, and in the messages of the context. All five kinds are in protocol 1.1.
    """

    type: str


class TextPart(ContentPart):
    """
    Text, for the reader or for the model. Any number in a step, usually one, after its ``ThinkPart``.

    Since 1.1.
    """

    type: Literal["text"] = "text"
    text: str


class ThinkPart(ContentPart):
    """
    The model's reasoning, ahead of the text or the tool calls it led to. Since 1.1.

    ``encrypted`` is the provider's signature or ciphertext; once it is set, later reasoning begins a new part.
    """

    type: Literal["think"] = "think"
    think: str
    encrypted: str | None = None


class ImageURLPart(ContentPart):
    """
    An image, mostly in a ``TurnBegin`` (the user's) or in a ``ToolResult`` (a file that was read).

    Since 1.1.
    """

    class ImageURL(WireModel):
        """Where the image is: a URL, often a whole ``data:`` one; ``id`` tells several images apart."""

        url: str
        id: str | None = None

    type: Literal["image_url"] = "image_url"
    image_url: ImageURL


class AudioURLPart(ContentPart):
    """A sound, in the same places as an image. Since 1.1."""

    class AudioURL(WireModel):
        """Where the sound is: a URL, often a whole ``data:`` one; ``id`` tells several sounds apart."""

        url: str
        id: str | None = None

    type: Literal["audio_url"] = "audio_url"
    audio_url: AudioURL


class VideoURLPart(ContentPart):
    """
    A video, in the same places as an image; its URL may name a file of the session's ``uploads``.

    Since 1.1.
    """

    class VideoURL(WireModel):
        """Where the video is: a URL, often a whole ``data:`` one; ``id`` tells several videos apart."""

        url: str
        id: str | None = None

    type: Literal["video_url"] = "video_url"
    video_url: VideoURL


_KnownPart = TextPart | ThinkPart | ImageURLPart | AudioURLPart | VideoURLPart

#: The content parts that have a model of their own, by the ``type`` in their payload.
CONTENT_PART_TYPES: Final[Mapping[str, type[ContentPart]]] = MappingProxyType(
    {cls.model_fields["type"].default: cls for cls in get_args(_KnownPart)}
)


def _unknown_part_type(name: str) -> str:
    """Refuse a known type: a damaged text part is an error and not a part of a new kind."""
    if name in CONTENT_PART_TYPES:
        raise ValueError("a part of a known type with fields that do not fit")
    return name


class UnknownContentPart(ContentPart):
    """A part of a kind that came after protocol 1.10. All its fields are kept, in ``model_extra``."""

    type: Annotated[str, AfterValidator(_unknown_part_type)]


#: Any part, by its ``type``; one without a ``type`` is refused.
AnyContentPart: TypeAlias = Annotated[
    Annotated[_KnownPart, Discriminator("type")] | UnknownContentPart, Field(union_mode="left_to_right")
]

_UserInput: TypeAlias = Annotated[str | list[AnyContentPart], Field(union_mode="left_to_right")]


# ---- display blocks ----------------------------------------------------------------------------


class DisplayBlock(WireModel):
    """
    Something a tool shows to the user and not to the model. The base of all blocks, for ``isinstance``.

    Blocks stand in the ``display`` of a ``ToolResult`` and of an ``ApprovalRequest``.
    """

    type: str


class BriefDisplayBlock(DisplayBlock):
    """One line on how a call went. Since 1.1; before the header existed its text was written as ``data``."""

    type: Literal["brief"] = "brief"
    text: str = Field(validation_alias=AliasChoices("text", "data"))


class DiffDisplayBlock(DisplayBlock):
    """
    One change to a file, before and after. Since 1.1; line numbers (from 1) and ``is_summary`` since 1.8.

    A summary stands for a change too large to show: its texts are short descriptions.
    """

    type: Literal["diff"] = "diff"
    path: str
    old_text: str
    new_text: str
    old_start: int = 1
    new_start: int = 1
    is_summary: bool = False


class TodoDisplayItem(WireModel):
    """One line of a shown to-do list."""

    title: str
    status: Literal["pending", "in_progress", "done"]


class TodoDisplayBlock(DisplayBlock):
    """The whole to-do list after the to-do tool changed it. Since 1.1."""

    type: Literal["todo"] = "todo"
    items: list[TodoDisplayItem]


class ShellDisplayBlock(DisplayBlock):
    """The command that an approval is asked for. Since 1.1."""

    type: Literal["shell"] = "shell"
    language: str
    command: str


class BackgroundTaskDisplayBlock(DisplayBlock):
    """The state of a background task that a tool started, looked at or stopped. Written since 1.5."""

    type: Literal["background_task"] = "background_task"
    task_id: str
    kind: str
    status: str
    description: str


_KnownBlock = (
    BriefDisplayBlock | DiffDisplayBlock | TodoDisplayBlock | ShellDisplayBlock | BackgroundTaskDisplayBlock
)

#: The display blocks that have a model of their own, by their ``type``.
DISPLAY_BLOCK_TYPES: Final[Mapping[str, type[DisplayBlock]]] = MappingProxyType(
    {cls.model_fields["type"].default: cls for cls in get_args(_KnownBlock)}
)


def _unknown_block_type(name: str) -> str:
    """Refuse a known type: a damaged diff is an error and not a block of a new kind."""
    if name in DISPLAY_BLOCK_TYPES:
        raise ValueError("a block of a known type with fields that do not fit")
    return name


class UnknownDisplayBlock(DisplayBlock):
    """
    A block of a tool that is not known here, written back exactly as it was read.

    Kimi CLI wraps such a block as ``{type, data}`` when it reads and writes it, once more each time. Both
    shapes are taken as they stand, and nothing is wrapped here.
    """

    type: Annotated[str, AfterValidator(_unknown_block_type)]

    @property
    def data(self) -> Any:
        """The block's content: what is under ``data`` if there is nothing else, or all fields but ``type``."""
        fields = self.model_extra or {}
        return fields["data"] if fields.keys() == {"data"} else dict(fields)


#: Any display block, by its ``type``; one without a ``type`` is refused.
AnyDisplayBlock: TypeAlias = Annotated[
    Annotated[_KnownBlock, Discriminator("type")] | UnknownDisplayBlock, Field(union_mode="left_to_right")
]


# ---- turns and steps ---------------------------------------------------------------------------


class TurnBegin(WireModel):
    """
    The user (or a slash command) said something and a turn starts. Opens every turn; since 1.1.

    Follows the end of the turn before, or comes first. A turn may begin inside another one. Steps follow,
    then ``TurnEnd``.
    """

    user_input: _UserInput


class SteerInput(WireModel):
    """
    The user added something while a turn was running. Inside a turn, before the step that sees it.

    Since 1.5.
    """

    user_input: _UserInput


class TurnEnd(WireModel):
    """
    The turn is over. Since 1.2.

    Older logs have none, and an interrupted turn may lack it before CLI 1.30.
    """


class StepBegin(WireModel):
    """
    One call to the model starts. Inside a turn, ahead of all that the step does; ``n`` counts from 1.

    Since 1.1.
    """

    n: int


class StepInterrupted(WireModel):
    """
    The running step was stopped, by the user or by an error. Ends that step and mostly its turn.

    Since 1.1.
    """


class StepRetry(WireModel):
    """
    The running step failed and is tried again after ``wait_s`` seconds.

    Between its ``StepBegin`` and its output. Since 1.10. ``status_code`` is the HTTP status, where there was one.
    """

    n: int
    next_attempt: int
    max_attempts: int
    wait_s: float
    error_type: str
    status_code: int | None = None


class CompactionBegin(WireModel):
    """
    The context is about to be replaced by a summary. Within a turn; a ``CompactionEnd`` is next.

    Since 1.1.
    """


class CompactionEnd(WireModel):
    """The context has been replaced by a summary. Comes right after its ``CompactionBegin``. Since 1.1."""


# ---- what goes on beside the conversation ------------------------------------------------------


class HookTriggered(WireModel):
    """
    A group of hooks starts, because of ``event``, on ``target`` (a tool, a subagent).

    Before its ``HookResolved``. Since 1.7. Only clients that speak the wire protocol write it.
    """

    event: str
    target: str = ""
    hook_count: int = 1


class HookResolved(WireModel):
    """
    A group of hooks is done, ``duration_ms`` after its ``HookTriggered``.

    One hook that blocks blocks the group. Since 1.7.
    """

    event: str
    target: str = ""
    action: Literal["allow", "block"] = "allow"
    reason: str = ""
    duration_ms: int = 0


class MCPLoadingBegin(WireModel):
    """
    Tools of MCP servers are being loaded. At the start of a turn; an ``MCPLoadingEnd`` follows.

    Written since 1.3.
    """


class MCPLoadingEnd(WireModel):
    """The tools of MCP servers are there, or failed. After its ``MCPLoadingBegin``. Written since 1.3."""


class MCPServerSnapshot(WireModel):
    """How far one MCP server has come, and the names of its tools."""

    name: str
    status: Literal["pending", "connecting", "connected", "failed", "unauthorized"]
    tools: tuple[str, ...] = ()


class MCPStatusSnapshot(WireModel):
    """How far all MCP servers have come: how many of ``total`` are connected, and how many tools they bring."""

    loading: bool
    connected: int
    total: int
    tools: int
    servers: tuple[MCPServerSnapshot, ...] = ()


class TokenUsage(WireModel):
    """What one step cost, in tokens. The three kinds of input do not overlap."""

    input_other: int
    output: int
    input_cache_read: int = 0
    input_cache_creation: int = 0

    @property
    def input(self) -> int:
        """All input, cached or not."""
        return self.input_other + self.input_cache_read + self.input_cache_creation

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.input + self.output


class StatusUpdate(WireModel):
    """
    Some of the figures shown beside a conversation changed; null means unchanged. Since 1.1.

    Comes after a step's output, and whenever else a figure changes, also between turns. ``context_usage`` is a
    share from 0 to 1.
    ``token_usage`` and ``message_id`` are the step's. Fields were added over time; all may be missing.
    """

    context_usage: float | None = None
    context_tokens: int | None = None
    max_context_tokens: int | None = None
    token_usage: TokenUsage | None = None
    message_id: str | None = None
    plan_mode: bool | None = None
    mcp_status: MCPStatusSnapshot | None = None


class Notification(WireModel):
    """
    Something happened outside the conversation, as a background task that ended. At any step.

    Written since 1.5. ``created_at`` is in epoch seconds.
    """

    id: str
    category: str
    type: str
    source_kind: str
    source_id: str
    title: str
    body: str
    severity: str
    created_at: float
    payload: dict[str, Any] = Field(default_factory=dict)


class PlanDisplay(WireModel):
    """
    A plan, as Markdown, and the file it is in. In plan mode, ahead of the question whether to go on.

    Since 1.7.
    """

    content: str
    file_path: str


class BtwBegin(WireModel):
    """
    A side question is being answered apart from the conversation. A ``BtwEnd`` of the same id follows.

    Since 1.9.
    """

    id: str
    question: str


class BtwEnd(WireModel):
    """The side question has its answer or its error. After the ``BtwBegin`` of the same id; since 1.9."""

    id: str
    response: str | None = None
    error: str | None = None


# ---- tools -------------------------------------------------------------------------------------


class ToolCall(WireModel):
    """
    The model asks for a tool. After the step's text; a ``ToolResult`` of the same id follows in the step.

    Since 1.1. A call whose step was cut short has no result.
    """

    class FunctionBody(WireModel):
        """The tool's name, and its arguments as JSON text (null: none came)."""

        name: str
        arguments: str | None = None

    type: Literal["function"] = "function"
    id: str
    function: FunctionBody
    extras: dict[str, Any] | None = None


class ToolCallPart(WireModel):
    """
    More of the arguments of the call before it. Rare in files: parts are joined to their call first.

    Since 1.1.
    """

    arguments_part: str | None = None


class ToolReturnValue(WireModel):
    """What a tool gave back: ``output`` and ``message`` for the model, ``display`` for the user."""

    is_error: bool
    output: _UserInput
    message: str
    display: list[AnyDisplayBlock]
    extras: dict[str, Any] | None = None


class ToolResult(WireModel):
    """A tool is done. After the ``ToolCall`` of that id, in the order in which tools end; since 1.1."""

    tool_call_id: str
    return_value: ToolReturnValue


class ApprovalResponse(WireModel):
    """
    The user decided on the ``ApprovalRequest`` of that id. Right after it or later.

    Since 1.1, feedback since 1.6. Was ``ApprovalRequestResolved`` in the oldest logs. Clients from 1.25 on
    write neither requests nor responses.
    """

    request_id: str
    response: Literal["approve", "approve_for_session", "reject"]
    feedback: str = ""


def _event_of(value: object) -> Event:
    """
    Return the event in an envelope of a ``SubagentEvent``, or the event itself.

    Raises ValueError for anything else.
    """
    if isinstance(value, Mapping):
        name, payload = value.get("type"), value.get("payload")
        if not isinstance(name, str) or not isinstance(payload, Mapping):
            raise ValueError("an event is an object with a type and a payload")  # noqa: TRY004 (pydantic's way)
        value = parse_message(name, payload)
    if not is_event(value):
        raise ValueError("only an event can come from a subagent")
    return value


def _envelope_of(event: Event) -> dict[str, Any]:
    """Return the type and the payload of an event, the latter left to the serializer that is running."""
    return {"type": message_type(event), "payload": event}


class SubagentEvent(WireModel):
    """
    An event of a subagent, inside the log of the agent that called it. Since 1.1.

    The ids of the agent since 1.6. Comes between the parent's ``ToolCall`` and its ``ToolResult``, for a
    background agent also later. The subagent's own events arrive in their order, each wrapped once per level.
    Requests are not wrapped.
    ``parent_tool_call_id`` was ``task_tool_call_id`` before 1.6.
    """

    parent_tool_call_id: str | None = Field(
        default=None, validation_alias=AliasChoices("parent_tool_call_id", "task_tool_call_id")
    )
    agent_id: str | None = None
    subagent_type: str | None = None
    event: Annotated[
        Event, PlainValidator(_event_of), PlainSerializer(_envelope_of, return_type=dict[str, Any])
    ]


# ---- requests: messages that wait for an answer ------------------------------------------------


class ApprovalRequest(WireModel):
    """
    A tool wants the user's leave. After its ``ToolCall``, before an ``ApprovalResponse`` of the same id.

    Since 1.1. Who asks (``source_kind`` and after) is there since 1.6. Clients from 1.25 on write no requests
    into the log.
    """

    id: str
    tool_call_id: str
    sender: str
    action: str
    description: str
    source_kind: Literal["foreground_turn", "background_agent"] | None = None
    source_id: str | None = None
    agent_id: str | None = None
    subagent_type: str | None = None
    source_description: str | None = None
    display: list[AnyDisplayBlock] = Field(default_factory=list)


class ToolCallRequest(WireModel):
    """
    A tool that lives in the program on the other end of the wire is called.

    After the ``ToolCall`` of that id. Since 1.1.
    """

    id: str
    name: str
    arguments: str | None = None


class QuestionOption(WireModel):
    """One answer to choose."""

    label: str
    description: str = ""


class QuestionItem(WireModel):
    """One question with its answers, and the words for an answer of the user's own."""

    question: str
    header: str = ""
    options: list[QuestionOption]
    multi_select: bool = False
    body: str = ""
    other_label: str = ""
    other_description: str = ""


class QuestionRequest(WireModel):
    """
    The model asks the user to choose. After its ``ToolCall``; the answer is in the ``ToolResult``.

    Since 1.4.
    """

    id: str
    tool_call_id: str
    questions: list[QuestionItem]


class HookRequest(WireModel):
    """A hook that lives on the other end of the wire is to decide. After its ``HookTriggered``; since 1.7."""

    id: str
    subscription_id: str = ""
    event: str
    target: str = ""
    input_data: dict[str, Any] = Field(default_factory=dict)


# ---- the tables, and the way in and out --------------------------------------------------------

#: A message that tells what happened.
Event: TypeAlias = (
    TurnBegin
    | SteerInput
    | TurnEnd
    | StepBegin
    | StepInterrupted
    | StepRetry
    | CompactionBegin
    | CompactionEnd
    | HookTriggered
    | HookResolved
    | MCPLoadingBegin
    | MCPLoadingEnd
    | StatusUpdate
    | Notification
    | PlanDisplay
    | BtwBegin
    | BtwEnd
    | ContentPart
    | ToolCall
    | ToolCallPart
    | ToolResult
    | ApprovalResponse
    | SubagentEvent
)

#: A message that waits for an answer.
Request: TypeAlias = ApprovalRequest | ToolCallRequest | QuestionRequest | HookRequest

#: Any message of the wire.
WireMessage: TypeAlias = Event | Request

SubagentEvent.model_rebuild()

#: The events by the name in their envelope. All content parts are under ``ContentPart``, their base.
EVENT_TYPES: Final[Mapping[str, type[WireModel]]] = MappingProxyType(
    {cls.__name__: cls for cls in get_args(Event)}
)

#: The requests by the name in their envelope.
REQUEST_TYPES: Final[Mapping[str, type[WireModel]]] = MappingProxyType(
    {cls.__name__: cls for cls in get_args(Request)}
)

_EVENT_CLASSES: Final = tuple(EVENT_TYPES.values())
_REQUEST_CLASSES: Final = tuple(REQUEST_TYPES.values())

_TYPE_NAMES: Final[Mapping[type, str]] = {
    **{cls: name for table in (EVENT_TYPES, REQUEST_TYPES) for name, cls in table.items()},
    **dict.fromkeys((*CONTENT_PART_TYPES.values(), UnknownContentPart), "ContentPart"),
}

_VALIDATORS: Final = {
    **{cls.__name__: cls.__pydantic_validator__ for cls in (*_EVENT_CLASSES, *_REQUEST_CLASSES)},
    # The oldest logs' name for the same thing.
    "ApprovalRequestResolved": ApprovalResponse.__pydantic_validator__,
    "ContentPart": TypeAdapter[AnyContentPart](AnyContentPart).validator,
}


def is_event(value: object) -> TypeGuard[Event]:
    """Tell whether this is an event: a message that tells what happened."""
    return isinstance(value, _EVENT_CLASSES)


def is_request(value: object) -> TypeGuard[Request]:
    """Tell whether this is a request: a message that waits for an answer."""
    return isinstance(value, _REQUEST_CLASSES)


def message_type(message: WireMessage) -> str:
    """
    Return the name under which a message is written: ``ContentPart`` for every part, the class's name for all else.

    Raises TypeError for something that is no message.
    """
    name = _TYPE_NAMES.get(type(message))
    if name is not None:
        return name
    for base in type(message).__mro__:
        if base in _TYPE_NAMES:
            return _TYPE_NAMES[base]
    raise TypeError(f"not a wire message: {type(message).__name__}")


def parse_message(type_name: str, payload: Mapping[str, object] | bytes) -> WireMessage:
    """
    Return the message of this name with this payload: an object, or the JSON of one.

    The JSON is read leniently, as ``parse_json`` does.
    Raises ``UnknownMessageTypeError`` for a name that is not known, and another ValueError (mostly pydantic's)
    for a payload that does not fit its type.
    """
    validator = _VALIDATORS.get(type_name)
    if validator is None:
        raise UnknownMessageTypeError(type_name=type_name)
    message: WireMessage
    if isinstance(payload, bytes):
        message = parse_json(validator.validate_json, validator.validate_python, payload)
    else:
        message = _unless_too_deep(
            validator.validate_python, payload if type(payload) is dict else dict(payload)
        )
    return message


def dump_payload(message: WireMessage) -> bytes:
    """
    Return a message's payload as compact JSON in UTF-8.

    No field is left out: these are the values that Kimi CLI writes. Lone surrogates are written as ``\\udXXX``.
    Raises ValueError for what JSON cannot hold.
    """
    return dump_model(message)


def parse_json(
    from_json: Callable[[bytes], _Model], from_python: Callable[[Any], _Model], data: bytes
) -> _Model:
    """
    Return a model from its JSON: the fast way, and for JSON that is merely untidy the lenient one.

    Untidy is: raw control characters and lone surrogates in strings, and bytes that are not UTF-8 (each
    becomes U+FFFD).
    Raises ValueError, pydantic's where the JSON is no JSON at all or does not fit the model.
    """
    try:
        return from_json(data)
    except ValidationError as error:
        if (
            error.error_count() != 1
            or error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
        ):
            raise
        try:
            value = decode_value(data)
        except ValueError:
            raise error from None
    return _unless_too_deep(from_python, value)


def dump_model(model: WireModel) -> bytes:
    """
    Return a model as compact JSON in UTF-8, lone surrogates as ``\\udXXX``.

    Raises ValueError for what JSON cannot hold.
    """
    try:
        return model.__pydantic_serializer__.to_json(model)
    except PydanticSerializationError:
        # Lone surrogates, or a nesting beyond the fast writer's limit.
        try:
            text = json.dumps(model.model_dump(), separators=(",", ":"), default=to_jsonable_python)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRecordError(reason=f"not something JSON can hold: {error}") from error
        return text.encode("ascii")


def _unless_too_deep(from_python: Callable[[Any], _Model], value: object) -> _Model:
    """Validate, with a nesting that exhausts the interpreter reported as the bad value it is."""
    try:
        return from_python(value)
    except RecursionError:
        raise InvalidRecordError(reason="nested too deeply") from None
