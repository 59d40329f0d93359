"""`kimi-sessions stats`: figures of one session, and of all."""

from __future__ import annotations

import json
import os

from .conftest import Make, Run


def test_one_session_is_counted(run: Run, make: Make) -> None:
    """By its id or a unique beginning; the title first, then the figures."""
    session = make("Hello", "And more")
    done = run("stats", session.id[:8])
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "Hello"
    assert "turns        2" in done.out.splitlines()
    data = run("stats", session.id, "--json").data
    assert (data["id"], data["turns"], data["records"]) == (session.id, 2, 6)
    assert data["first_at_iso"] == "2023-11-14T22:13:20.000Z"
    assert data["active_s"] == 62.0


def test_a_work_dir_is_summed_up(run: Run, make: Make) -> None:
    """Each session and the total."""
    make("One", "Two")
    make("Three")
    done = run("stats")
    assert done.out.splitlines()[:2] == ["2 sessions", "turns        3"]
    data = run("stats", "--json").data
    assert sorted(session["turns"] for session in data["sessions"]) == [1, 2]
    assert data["total"]["turns"] == 3
    assert run("stats", "--all-dirs", "--json").data["total"] == data["total"]


def test_a_limit_takes_the_newest(run: Run, make: Make) -> None:
    """The sum is over those; beside an id it makes no sense."""
    make("Old", session_id="old")
    make("New", session_id="new")
    found = run("stats", "--limit", "1", "--json").data
    assert [each["id"] for each in found["sessions"]] == ["new"]
    assert found["total"]["turns"] == 1
    assert len(run("stats", "--json").data["sessions"]) == 2
    assert run("stats", "new", "--limit", "1").code == 2


def test_tools_are_listed_by_how_often_they_were_called(run: Run, make: Make) -> None:
    """The most used first, with what failed."""
    session = make("Hello")
    with (session.path / "wire.jsonl").open("ab") as file:
        for number, (tool, failed) in enumerate([("Shell", True), ("Shell", False), ("\x1b[1mGrep", False)]):
            for kind, payload in (
                ("ToolCall", {"id": str(number), "function": {"name": tool, "arguments": "{}"}}),
                ("ToolResult", {"tool_call_id": str(number), "return_value": {"is_error": failed}}),
            ):
                record = {"timestamp": 1_700_000_003.0, "message": {"type": kind, "payload": payload}}
                file.write(json.dumps(record).encode() + b"\n")
    lines = run("stats", session.id).out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("CALLS"))
    assert [line.split() for line in lines[at + 1 :]] == [["2", "1", "Shell"], ["1", "0", "[1mGrep"]]


def test_time_is_told_in_its_own_units_and_not_where_no_record_has_one(run: Run, make: Make) -> None:
    """Seconds alone below a minute; no time at all for the logs of clients that wrote none down."""
    session = make("Hello")
    assert "active       2 s" in run("stats", session.id).out.splitlines()
    (session.path / "wire.jsonl").unlink()
    without = run("stats", session.id)
    assert without.code == 0
    assert "turns        1" in without.out.splitlines()
    assert "active" not in without.out


def test_an_empty_work_dir_has_zeroes(run: Run) -> None:
    """No session is no failure."""
    done = run("stats")
    assert done.code == 0
    assert done.out.startswith("0 sessions\nturns        0\n")


def test_a_log_that_can_not_be_read_is_said_and_fails_nothing(run: Run, make: Make) -> None:
    """A pipe in its place is not waited for; there are zeroes, and a warning."""
    session = make("Hello")
    session.wire_file.path.unlink()
    os.mkfifo(session.wire_file.path)
    done = run("stats", session.id)
    assert done.code == 0
    assert "turns        0\n" in done.out
    assert "its log can't be read" in done.err


def test_a_session_that_is_not_there_is_said(run: Run, make: Make) -> None:
    """Exit code 3; an id beside --all-dirs is wrong usage."""
    make("Hello")
    assert run("stats", "nothere").code == 3
    assert run("stats", "x", "--all-dirs").code == 2


def test_a_sum_says_which_session_is_missing_from_it(run: Run, make: Make) -> None:
    """A session whose log can't be read counts as nothing, and is named; the others count."""
    make("One")
    session = make("Two")
    session.wire_file.path.unlink()
    os.mkfifo(session.wire_file.path)
    done = run("stats")
    assert done.code == 0
    assert done.out.splitlines()[:2] == ["2 sessions", "turns        1"]
    assert (
        done.err == f"warning: session {session.id}: its log can't be read: is a pipe, not a regular file\n"
    )
