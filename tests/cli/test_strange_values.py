"""Values that no writer of ours would write: every command answers, in valid JSON where it was asked for."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import Make, Run, Shell

NESTED = "[" * 990 + "]" * 990


def refuse(constant: str) -> Any:
    """Take NaN and its kin for what they are: no JSON."""
    pytest.fail(f"{constant} is not JSON")


def record(kind: str, payload: str, timestamp: str = "1700000009.0") -> str:
    """Give a line of a wire log whose payload is this text."""
    return f'{{"timestamp": {timestamp}, "message": {{"type": "{kind}", "payload": {payload}}}}}\n'


def add(path: Path, text: str) -> None:
    """Write at the end of a file."""
    with path.open("a") as file:
        file.write(text)


def answers(run: Run, session_id: str) -> None:
    """Expect every command that reads to end well, as text and as JSON that any parser takes."""
    for command in (
        ["list"],
        ["show", session_id],
        ["search", "Hello"],
        ["stats"],
        ["stats", session_id],
        ["continue"],
        ["doctor"],
        ["trust", "--all", "--dry-run"],
    ):
        done = run(*command)
        assert done.code in {0, 5}, (command, done)
        done = run(*command, "--json")
        assert done.code in {0, 5}, (command, done)
        json.loads(done.out, parse_constant=refuse)


@pytest.mark.parametrize(
    "timestamp", ["99999999999999999999999", "1e308", '"1e30"', "-1e18", "NaN", "1e999", '"inf"']
)
def test_a_time_that_no_calendar_has_is_shown_as_none(run: Run, make: Make, timestamp: str) -> None:
    """One record of a broken clock hides nothing."""
    session = make("Hello")
    add(session.path / "wire.jsonl", record("TurnBegin", '{"user_input": "Hello again"}', timestamp))
    answers(run, session.id)
    assert "Hello again" in run("show", session.id).out
    assert "turns        2" in run("stats", session.id).out


@pytest.mark.parametrize(
    "value", ["NaN", "1e999", "-1e999", NESTED, f'{{"a": {NESTED}}}', "9" * 4000, '"\\u001b[31m"']
)
def test_json_is_json_whatever_a_file_has_in_it(run: Run, make: Make, value: str) -> None:
    """NaN and infinities are null, and so is what is nested too deeply to be written."""
    session = make("Hello")
    (session.path / "session.json").write_text(f'{{"version": 1, "parent": {{"session_id": {value}}}}}')
    (session.path / "state.json").write_text(
        f'{{"approval": {{"auto_approve_actions": {value}, "yolo": {value}}}, "additional_dirs": [{value}]}}'
    )
    answers(run, session.id)


@pytest.mark.parametrize(
    "kind,payload",
    [
        ("ContentPart", '{"type": ["text"], "text": NaN}'),
        ("TurnBegin", '{"user_input": [5, null, {"type": {}}, {"type": "text", "text": 5}]}'),
        ("ToolCall", '{"id": ["x"], "function": {"name": {}, "arguments": "{\\"a\\": [NaN, 1e999]}"}}'),
        ("ToolCall", f'{{"id": 5, "function": {{"name": null, "arguments": {json.dumps(NESTED)}}}}}'),
        (
            "ToolResult",
            '{"tool_call_id": {"a": NaN}, "return_value": {"output": [{"type": []}], "is_error": NaN}}',
        ),
        ("SubagentEvent", '{"event": {"type": "SubagentEvent", "payload": {"event": 5}}}'),
        ("StatusUpdate", '{"message_id": [], "token_usage": {"output": NaN, "input_other": "x"}}'),
        pytest.param("TurnBegin", '{"user_input": "x", "n": ' + "9" * 5_000 + "}", id="endless number"),
        ("QuestionRequest", '{"questions": [5, {"question": NaN}]}'),
    ],
)
def test_a_record_with_values_of_the_wrong_kind_hides_no_other(
    run: Run, make: Make, kind: str, payload: str
) -> None:
    """It is shown as far as it says anything; what stands around it is shown, counted and found."""
    session = make("Hello")
    add(session.path / "wire.jsonl", record(kind, payload))
    add(session.path / "wire.jsonl", record("TurnBegin", '{"user_input": "Hello again"}'))
    answers(run, session.id)
    assert "Hello again" in run("show", session.id).out


@pytest.mark.parametrize(
    "command", [["list", "--all-dirs"], ["search", "quokka", "--all-dirs"], ["show", "one"]]
)
def test_a_folder_with_control_characters_in_its_name_colours_no_terminal(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    """Of a work dir that no registry names only its folder in the share is known, and anyone may have named that."""
    folder = tmp_path / "share" / "sessions" / "\x1b[31mred\nX" / "one"
    folder.mkdir(parents=True)
    (folder / "context.jsonl").touch()
    (folder / "wire.jsonl").write_text(record("TurnBegin", '{"user_input": "quokka"}'))
    done = run("--share-dir", str(tmp_path / "share"), *command)
    assert (done.code, done.err) == (0, "")
    assert "[31mred X" in done.out
    assert "\x1b" not in done.out


#: No locale, and no UTF-8 mode in its stead: Python takes what is typed for ASCII.
NO_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def test_words_that_are_typed_where_no_locale_is_set_are_taken_as_they_are(shell: Shell, make: Make) -> None:
    """A title lost all but its ASCII, and a search said that there was no word in the query."""
    session = make("한국어 질문", session_id="one")
    assert shell("search", "한국어", "--json", env=NO_LOCALE).data["hits"]
    assert shell("rename", "one", "제목 🦊 é", env=NO_LOCALE).code == 0
    forked = shell("fork", "one", "--title", "포크", env=NO_LOCALE).out.strip()
    asyncio.run(session.tag("빨강"))
    (one,) = shell("list", "--title", "제목", "--tag", "빨강", "--json", env=NO_LOCALE).data["sessions"]
    assert (one["id"], one["title"]) == ("one", "제목 🦊 é")
    assert [each["title"] for each in shell("list", "--json").data["sessions"] if each["id"] == forked] == [
        "포크"
    ]


@pytest.mark.parametrize(
    "command",
    [["rename", "one"], ["fork", "one", "--title"], ["search"], ["list", "--title"], ["list", "--tag"]],
)
@pytest.mark.parametrize("text", [os.fsdecode(b"caf\xe9"), "caf\ud800"])
def test_words_that_are_no_text_are_refused_and_not_cut_down_to_what_is(
    run: Run, make: Make, command: list[str], text: str
) -> None:
    """Bytes of another encoding: wrong usage, and nothing changes."""
    make("Hello", session_id="one")
    done = run(*command, text)
    assert (done.code, done.out) == (2, "")
    assert "UTF-8" in done.err
    assert [each["title"] for each in run("list", "--json").data["sessions"]] == ["Hello"]
