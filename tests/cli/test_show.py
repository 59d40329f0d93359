"""`kimi-sessions show`: facts, then the conversation by turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kimi_sessions import Session

from .conftest import Make, Run

TURN: list[tuple[str, dict[str, Any]]] = [
    (
        "TurnBegin",
        {
            "user_input": [
                {"type": "text", "text": "Look at this"},
                {"type": "image_url", "image_url": {"url": "data:x"}},
            ]
        },
    ),
    ("StepBegin", {"n": 1}),
    ("ContentPart", {"type": "think", "think": "I wonder."}),
    ("ContentPart", {"type": "text", "text": "First line.\nSecond line."}),
    (
        "ToolCall",
        {"type": "function", "id": "t1", "function": {"name": "Shell", "arguments": '{"command": "ls -la"}'}},
    ),
    (
        "ToolCall",
        {
            "type": "function",
            "id": "t2",
            "function": {"name": "ReadFile", "arguments": '{"path": "gone.txt"}'},
        },
    ),
    (
        "ToolResult",
        {
            "tool_call_id": "t2",
            "return_value": {"is_error": True, "output": "", "message": "no such file", "display": []},
        },
    ),
    (
        "ToolResult",
        {
            "tool_call_id": "t1",
            "return_value": {"is_error": False, "output": "a\nb\nc", "message": "", "display": []},
        },
    ),
    ("ToolCall", {"type": "function", "id": "t3", "function": {"name": "Grep", "arguments": None}}),
    ("SteerInput", {"user_input": "Stop there"}),
    ("StepInterrupted", {}),
    ("SomethingOfTheFuture", {"x": 1}),
    ("TurnEnd", {}),
    ("TurnBegin", {"user_input": "Second prompt"}),
]


def write_wire(session: Session, records: list[tuple[str, dict[str, Any]]]) -> None:
    """Put these records into the session's wire log, a minute apart."""
    lines = [
        json.dumps({"timestamp": 1_700_000_000.0 + 60 * at, "message": {"type": kind, "payload": payload}})
        for at, (kind, payload) in enumerate(records)
    ]
    (session.path / "wire.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def test_a_conversation_is_shown_turn_by_turn(run: Run, make: Make) -> None:
    """Prompts are quoted, answers plain, a tool call is one line with what came back; the unknown is passed over."""
    session = make("x")
    write_wire(session, TURN)
    done = run("show", session.id)
    assert (done.code, done.err) == (0, "")
    facts, first, second = done.out.split("=== turn ")
    assert facts.startswith("Look at this\n  id        " + session.id)
    body = [line for line in first.splitlines()[1:] if line]
    assert body == [
        "> Look at this",
        "> [image]",
        "First line.",
        "Second line.",
        "  * ReadFile gone.txt -> error: no such file",
        "  * Shell ls -la -> a (+2 lines)",
        "> Stop there",
        "  (interrupted)",
        "  * Grep -> no result",
    ]
    assert second.splitlines()[1] == "> Second prompt"


def test_thoughts_are_shown_when_asked_for(run: Run, make: Make) -> None:
    """--thinking adds them, in text and in JSON."""
    session = make("x")
    write_wire(session, TURN)
    assert "I wonder." not in run("show", session.id).out + run("show", session.id, "--json").out
    assert "~ I wonder." in run("show", session.id, "--thinking").out
    assert "I wonder." in run("show", session.id, "--thinking", "--json").out


def test_json_has_the_turns_with_whole_calls(run: Run, make: Make) -> None:
    """Arguments and outputs are not folded there; the facts are those of the list."""
    session = make("x")
    write_wire(session, TURN)
    found = run("show", session.id, "--json").data
    assert found["session"]["id"] == session.id
    assert [turn["index"] for turn in found["turns"]] == [0, 1]
    assert found["turns"][0]["started_at_iso"] == "2023-11-14T22:13:20.000Z"
    calls = {entry["id"]: entry for entry in found["turns"][0]["entries"] if entry["type"] == "tool"}
    assert calls["t1"]["arguments"] == {"command": "ls -la"}
    assert calls["t1"]["output"] == "a\nb\nc"
    assert [calls[name]["is_error"] for name in ("t1", "t2", "t3")] == [False, True, None]
    assert found["problems"] == []


def test_turns_alone_are_one_line_each(run: Run, make: Make) -> None:
    """The numbers are those that `fork --turn` takes."""
    session = make("One", "Two\nlines")
    lines = run("show", session.id, "--turns").out.splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1"]
    assert lines[1].endswith("Two lines")
    found = run("show", session.id, "--turns", "--json").data
    assert [turn["user_text"] for turn in found["turns"]] == ["One", "Two\nlines"]


def test_a_damaged_session_shows_the_rest_and_says_what_is_wrong(run: Run, make: Make) -> None:
    """Each damaged place is one line on stderr; the exit code is 0 and all else is there."""
    session = make("One", "Two")
    wire = session.path / "wire.jsonl"
    lines = wire.read_bytes().split(b"\n")
    lines.insert(2, b'{"timestamp": 1, "mess')
    wire.write_bytes(b"\n".join(lines))
    with open(wire, "ab") as log:
        log.write(b'{"torn')
    done = run("show", session.id)
    assert done.code == 0
    assert "> One" in done.out
    assert "You said: Two" in done.out
    assert [line.split(": ")[0] for line in done.err.splitlines()] == ["warning", "warning"]
    assert "wire.jsonl:3" in done.err
    assert len(run("show", session.id, "--json").data["problems"]) == 2


def test_a_session_without_a_wire_log_is_shown_from_its_contexts(
    run: Run, corpus: Callable[[str], Path]
) -> None:
    """Clients before 0.59 kept none; what was rotated away comes first."""
    share = corpus("0.58")
    listed = run("list", "--share-dir", str(share), "--all-dirs", "--json").data["sessions"]
    rotated = [session for session in listed if (Path(session["path"]) / "context_1.jsonl").exists()]
    assert rotated
    for session in listed:
        done = run("show", "--share-dir", str(share), session["id"])
        assert done.code == 0
        assert "=== turn 0" in done.out
    shown = run("show", "--share-dir", str(share), rotated[0]["id"]).out
    assert shown.index("(an earlier context, context_1.jsonl)") < shown.index("=== turn 0")


def test_an_empty_session_is_shown_as_one(run: Run, make: Make) -> None:
    """There is nothing to read in it, and that is said."""
    session = make()
    done = run("show", session.id)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("(no conversation)\n")
    assert run("show", session.id, "--json").data["turns"] == []


def test_a_session_is_found_from_another_folder(run: Run, make: Make, tmp_path: Path) -> None:
    """Its id, or a unique beginning, is enough to read it; to change it takes the whole id."""
    session = make("Hello")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    there = ["-w", str(elsewhere)]
    assert "> Hello" in run("show", session.id[:8], *there).out
    assert run("path", session.id[:8], *there).out.strip() == str(session.path)
    done = run("rename", session.id[:8], "New", *there)
    assert done.code == 3
    assert session.id in done.err
    assert run("rename", session.id, "New", *there).code == 0
    assert asyncio.run(Session.open(session.work_dir, session.id)).title == "New"


def test_a_fork_says_what_it_was_made_of(run: Run, make: Make) -> None:
    """The facts name the parent and the turns that were taken: some, or all of them."""
    session = make("One", "Two")
    some, everything = (run("fork", session.id, *turn).out.strip() for turn in (("--turn", "0"), ()))
    assert f"  forked    from {session.id}, turns 0 to 0\n" in run("show", some).out
    assert f"  forked    from {session.id}, all turns\n" in run("show", everything).out
