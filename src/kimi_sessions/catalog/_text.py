"""
Which words of a record can be searched for, and what a query means. Pure functions, no files.

Searched are what the user wrote (prompts and what was said in between), what the assistant said, tool calls with
their arguments, and titles people gave. Not searched: thinking and what tools printed, which would bury the rest.
Where there is no wire log (old clients) the context's messages stand in.

A word is what SQLite's unicode61 takes for one: letters and digits, case and accents ignored. Chinese, Japanese and
Korean have no spaces, so a run of them is taken apart into overlapping pairs, and a query for a run is the phrase
of its pairs.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from kimi_sessions._lines import decode_line
from kimi_sessions._text import user_text
from kimi_sessions.context.history import is_injected_user_message, refuse_message
from kimi_sessions.context.history import refuse as refuse_context
from kimi_sessions.wire.records import WireMessageRecord
from kimi_sessions.wire.turns import records_in_line

__all__ = [
    "ROLES",
    "Text",
    "find_in",
    "match_expression",
    "split_words",
    "texts_of_context_line",
    "texts_of_wire_line",
]

#: By number, as the catalog keeps them.
ROLES = ("user", "assistant", "tool", "title")
USER, ASSISTANT, TOOL, TITLE = range(4)

_CJK_CLASS = (
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_CJK_RUN = re.compile(f"[{_CJK_CLASS}]+")
_SURROGATES = re.compile("[\ud800-\udfff]")
_TERM = re.compile(r'"([^"]*)"?|(\S+)')
_WORD = re.compile(r"\w", re.UNICODE)
#: Longer text is searched by its beginning; nobody typed it.
_LONGEST = 1 << 18


class Text(NamedTuple):
    """The text of one record: where the record lies in its line, its time (None: not known), whose words, the words."""

    start: int
    stop: int
    time: float | None
    role: int
    text: str


class _Part(msgspec.Struct):
    type: Any = None
    text: Any = None


class _Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _Call(msgspec.Struct):
    function: _Function | None = None


_decode_part = msgspec.json.Decoder(_Part).decode
_decode_call = msgspec.json.Decoder(_Call).decode


def split_words(text: str) -> str:
    """Return text as it is indexed: CJK runs as overlapping pairs, and the last character alone."""
    if text.isascii():
        return text
    return _SURROGATES.sub(" ", _CJK_RUN.sub(_pairs, text))


def _pairs(match: re.Match[str]) -> str:
    run = match[0]
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    return f" {' '.join(pairs)} {run[-1]} "


def _phrase(match: re.Match[str]) -> str:
    run = match[0]
    return f" {' '.join(run[i : i + 2] for i in range(len(run) - 1)) or run} "


# --- queries ------------------------------------------------------------------------------------------------------


def _terms(query: str) -> list[str]:
    found = []
    for quoted, bare in _TERM.findall(query):
        term = (quoted or bare).strip()
        if _WORD.search(term):
            found.append(term)
    return found


def match_expression(query: str, tags: list[list[str]]) -> str | None:
    """
    Return a query in FTS5's language: all of its words, a quoted part as a phrase, a word ending in ``*`` as a
    beginning. Of each list of ``tags`` one must be there. None if there is no word in the query.
    """
    parts = []
    for term in _terms(query):
        prefix = term.endswith("*")
        words = _SURROGATES.sub(" ", _CJK_RUN.sub(_phrase, term)).replace('"', " ").replace("\0", " ").strip()
        last = words.split()[-1]
        # A single character of a run is the beginning of a pair, or the last one, which is indexed alone.
        if prefix or (len(last) == 1 and _CJK_RUN.fullmatch(last)):
            parts.append(f'"{words.rstrip("*")}" *')
        else:
            parts.append(f'"{words}"')
    if not parts:
        return None
    scopes = "".join(
        f" AND (tags : ({' OR '.join(f'{chr(34)}{tag}{chr(34)}' for tag in each)}))" for each in tags
    )
    return f"(words : ({' AND '.join(parts)})){scopes}"


def find_in(text: str, query: str) -> int:
    """Return where in a text a query's first word stands, 0 if it can't be told."""
    folded = text.casefold()
    for term in _terms(query):
        at = folded.find(term.rstrip("*").casefold())
        if at >= 0:
            return min(at, len(text))
    return 0


# --- records ------------------------------------------------------------------------------------------------------


def texts_of_wire_line(line: bytes) -> tuple[list[Text], int]:
    """Return what can be searched for on a line of a wire log, and how many turns begin on it."""
    found: list[Text] = []
    turns = 0
    for start, stop, record in records_in_line(line)[0]:
        if record.type == "TurnBegin":
            turns += 1
        text, role = _text_of(record)
        if text:
            found.append(Text(start, stop, record.timestamp, role, text[:_LONGEST]))
    return found, turns


#: A line without any of these holds nothing to search for; looked for before anything is decoded.
WIRE_HINTS = (b'"TurnBegin"', b'"SteerInput"', b'"ContentPart"', b'"ToolCall"')


def _text_of(record: WireMessageRecord) -> tuple[str, int]:
    kind = record.type
    if kind == "ContentPart":
        try:
            part = _decode_part(record.message.payload_json)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            payload = record.message.payload
            part = _Part(payload.get("type"), payload.get("text"))
        return (part.text if part.type == "text" and isinstance(part.text, str) else ""), ASSISTANT
    if kind in {"TurnBegin", "SteerInput"}:
        return user_text(record.message.payload.get("user_input")), USER
    if kind == "ToolCall":
        try:
            call = _decode_call(record.message.payload_json)
            name, arguments = (call.function.name, call.function.arguments) if call.function else ("", "")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            function = record.message.payload.get("function")
            function = function if isinstance(function, dict) else {}
            name, arguments = function.get("name"), function.get("arguments")
        return " ".join(text for text in (name, arguments) if isinstance(text, str)), TOOL
    return "", USER


def texts_of_context_line(line: bytes) -> tuple[list[Text], int]:
    """Return what can be searched for on a line of a context log, and how many turns begin on it."""
    found: list[Text] = []
    turns = 0
    for span in decode_line(line, refuse_context).records if line else ():
        value = span.value
        role = value.get("role")
        if (
            role not in {"user", "assistant"}
            or refuse_message(value) is not None
            or is_injected_user_message(value)
        ):
            continue
        stop = span.offset + len(span.raw)
        if role == "user":
            turns += 1
        text = user_text(value.get("content"))
        if text:
            found.append(
                Text(span.offset, stop, None, USER if role == "user" else ASSISTANT, text[:_LONGEST])
            )
        for call in value.get("tool_calls") or ():
            function = call["function"]
            text = " ".join(
                text for text in (function["name"], function.get("arguments")) if isinstance(text, str)
            )
            found.append(Text(span.offset, stop, None, TOOL, text[:_LONGEST]))
    return found, turns
