"""
``kimi-sessions show``: one session's facts, then its conversation by turns.

The wire log is read once and printed while it is read, so a long one needs no more memory than a short one. A session
whose client kept no wire log is shown from its contexts, the rotated ones first. What is damaged is passed over, and
said on stderr.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kimi_sessions import clean

from ._conversation import Entry, WireReader, from_messages
from ._exit import complain
from ._options import SessionId, where
from ._render import (
    as_text,
    clean_path,
    fit,
    iso,
    json_text,
    line_width,
    out,
    print_json,
    session_facts,
    shown_dir,
    when,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_sessions import Finding, Session

__all__ = ["command"]

_COMPLAINTS = 10


def command(
    ctx: typer.Context,
    *,
    session_id: SessionId,
    turns: Annotated[bool, typer.Option("--turns", help="List the turns only, one a line.")] = False,
    thinking: Annotated[bool, typer.Option("--thinking", help="The model's thoughts too.")] = False,
) -> None:
    """
    Show one session: its facts, then the conversation.

    Turns are numbered from 0, which is how 'fork --turn' counts. A tool call is folded to one line: what was called,
    and the first line of what came back; --json has all of it.
    """
    place = where(ctx)
    session = place.open(session_id, far=True)
    with _silent_library():
        if turns:
            asyncio.run(_show_turns(session, as_json=place.as_json))
        elif place.as_json:
            asyncio.run(_print_as_json(session, thinking=thinking))
        else:
            asyncio.run(_print(session, thinking=thinking))


@contextmanager
def _silent_library() -> Iterator[None]:
    """Keep the library from logging the damage that is reported here by ``_report``."""
    log = logging.getLogger("kimi_sessions")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


# --- reading -----------------------------------------------------------------------------------------------------


async def _entries(session: Session, on_finding: Callable[[Finding], None]) -> AsyncIterator[Entry]:
    """Yield the conversation's entries, from the wire log or, where that holds nothing, from the contexts."""
    reader = WireReader()
    any_record = False
    try:
        async for record in session.wire_file.iter_records(on_finding=on_finding):
            any_record = True
            for entry in reader.feed(record.type, record.message.payload, record.timestamp):
                yield entry
        for entry in reader.end():
            yield entry
    except OSError as error:
        complain(f"session {session.id}: the wire log can't be read: {error.strerror}", kind="warning")
    if any_record:
        return
    index = 0
    for context in _contexts(session):
        try:
            messages = await context.messages(on_finding=on_finding)
        except OSError as error:
            complain(
                f"session {session.id}: {context.path.name} can't be read: {error.strerror}", kind="warning"
            )
            continue
        if context.path != session.context_file and messages:
            yield {"type": "note", "text": f"an earlier context, {context.path.name}"}
        for entry in from_messages(
            (message.model_dump(mode="json") for message in messages), turn_index=index
        ):
            index += entry["type"] == "turn"
            yield entry


def _contexts(session: Session) -> Iterator[Any]:
    """Yield the session's context logs, the oldest first."""
    from kimi_sessions import ContextFile
    from kimi_sessions.layout import rotated_number

    try:
        names = [path.name for path in session.path.iterdir()]
    except OSError:
        names = []
    rotated = sorted((number, name) for name in names if (number := rotated_number(name)) is not None)
    for _, name in rotated:
        yield ContextFile(session.path / name)
    yield session.context


def _all_problems(session: Session, findings: list[Finding]) -> list[Finding]:
    """Return what listing and reading found, one finding for each place."""
    places = {(finding.file, finding.offset) for finding in findings if finding.offset is not None}
    return [
        problem for problem in session.problems if (problem.file, problem.offset) not in places
    ] + findings


def _report(session: Session, findings: list[Finding]) -> None:
    shown = [str(problem) for problem in _all_problems(session, findings)]
    for text in shown[:_COMPLAINTS]:
        complain(f"session {session.id}: {text}", kind="warning")
    if len(shown) > _COMPLAINTS:
        more = len(shown) - _COMPLAINTS
        complain(f"{more} problems more; 'kimi-sessions doctor {session.id}' has all", kind="warning")


# --- for people --------------------------------------------------------------------------------------------------


async def _print(session: Session, *, thinking: bool) -> None:
    findings: list[Finding] = []
    _print_facts(session)
    width = line_width()
    last = ""
    async for entry in _entries(session, findings.append):
        kind = entry["type"]
        if kind == "thinking" and not thinking:
            continue
        if kind == "turn":
            at = when(entry["at"], time.time()) if _is_time(entry["at"]) else ""
            out()
            out(f"=== turn {entry['index']}" + (f" ({at})" if at else ""))
            _print_block(entry["text"], "> ")
        elif kind == "tool":
            if last != "tool":
                out()
            out(_tool_line(entry, width, f"{session.work_dir}/"))
        elif kind == "note":
            out()
            out(fit(f"  ({_one_line(entry['text'])})", width))
        else:
            out()
            _print_block(entry["text"], {"steer": "> ", "thinking": "~ "}.get(kind, ""))
        last = kind
    if not last:
        out()
        out("(no conversation)")
    sys.stdout.flush()
    _report(session, findings)


def _print_facts(session: Session) -> None:
    now = time.time()
    marks = [
        word
        for word, holds in (
            ("pinned", session.pinned),
            ("archived", session.archived),
            ("empty", session.empty),
            ("not trusted", not session.trusted),
        )
        if holds
    ]
    facts = [
        ("id", session.id),
        ("work dir", shown_dir(session, unknown="unknown ({})")),
        ("folder", clean_path(str(session.path))),
        ("created", when(session.created_at, now)),
        ("updated", when(session.updated_at, now)),
        ("forked", _origin(session.parent) if session.parent else ""),
        ("tags", ", ".join(session.tags)),
        ("state", ", ".join(marks)),
    ]
    out(session.title)
    for name, value in facts:
        if value:
            out(f"  {name:9} {clean(value)}")


def _origin(parent: dict[str, Any]) -> str:
    last = parent.get("turn_index")
    turns = "all turns" if last is None else f"turns 0 to {as_text(last)}"
    return f"from {as_text(parent.get('session_id'))}, {turns}"


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _print_block(text: str, mark: str) -> None:
    for line in text.expandtabs(4).splitlines() or [""]:
        out((mark + clean(line)).rstrip())


def _one_line(text: str) -> str:
    return " ".join(clean(text[:2000]).split())


def _tool_line(entry: Entry, width: int, inside: str) -> str:
    """Return a call and its result on one line; paths ``inside`` the work dir are shown from there."""
    said = _one_line(entry["summary"].replace(inside, ""))
    call = f"  * {clean(entry['name']) or '(result without a call)'} {said}".rstrip()
    if entry["is_error"] is None:
        result = "no result"
    else:
        lines = [line for line in entry["output"].splitlines() if line.strip()]
        result = _one_line(lines[0].replace(inside, "")) if lines else "ok"
        if len(lines) > 1:
            result += f" (+{len(lines) - 1} lines)"
        if entry["is_error"]:
            result = f"error: {result}"
    room = max(width - 4, 16)
    half = room // 2
    call = fit(call, max(half, room - len(result)))
    return fit(f"{call} -> {result}", width)


# --- for programs ------------------------------------------------------------------------------------------------


async def _print_as_json(session: Session, *, thinking: bool) -> None:
    """Print the document piece by piece: no more than one turn is in memory."""
    findings: list[Finding] = []
    facts = session_facts(session)
    del facts["problems"]
    sys.stdout.write('{\n  "session": ' + json_text(facts, depth=1) + ',\n  "turns": [')
    turn: dict[str, Any] | None = None
    between = "\n    "
    async for entry in _entries(session, findings.append):
        if entry["type"] == "turn":
            if turn is not None:
                sys.stdout.write(between + json_text(turn, depth=2))
                between = ",\n    "
            at = entry["at"] if _is_time(entry["at"]) else None
            turn = {
                "index": entry["index"],
                "started_at": at,
                "started_at_iso": iso(at),
                "user_text": entry["text"],
                "entries": [],
            }
        elif entry["type"] != "thinking" or thinking:
            if turn is None:
                turn = {
                    "index": None,
                    "started_at": None,
                    "started_at_iso": None,
                    "user_text": None,
                    "entries": [],
                }
            turn["entries"].append(entry)
    if turn is not None:
        sys.stdout.write(between + json_text(turn, depth=2))
    problems = [problem.as_dict() for problem in _all_problems(session, findings)]
    sys.stdout.write('\n  ],\n  "problems": ' + json_text(problems, depth=1) + "\n}\n")
    sys.stdout.flush()
    _report(session, findings)


async def _show_turns(session: Session, *, as_json: bool) -> None:
    found = await session.turns()
    if as_json:
        print_json(
            {
                "id": session.id,
                "turns": [
                    {
                        "index": turn.index,
                        "user_text": turn.user_text,
                        "started_at": turn.started_at,
                        "started_at_iso": iso(turn.started_at),
                        "ended_at": turn.ended_at,
                        "ended_at_iso": iso(turn.ended_at),
                    }
                    for turn in found
                ],
            }
        )
        return
    now = time.time()
    width = line_width()
    for turn in found:
        at = when(turn.started_at, now) if turn.started_at is not None else "-"
        out(fit(f"{turn.index:4}  {at:16}  {_one_line(turn.user_text) or '(no text)'}", width))
    if not found:
        complain(f"session {session.id} has no turns in its wire log", kind="note")
