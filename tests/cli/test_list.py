"""`kimi-sessions list`: which sessions, in which order, and how they look."""

from __future__ import annotations

import json
import os
import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_sessions import Session, ShareLayout

from .conftest import Make, Run, Shell


def cells(text: str) -> int:
    """Count the cells of a line by its own rule: two for wide characters, none for what sits on another."""
    return sum(
        0
        if unicodedata.combining(char) or char in "\u200d\ufe0f"
        else 2
        if unicodedata.east_asian_width(char) in "WF"
        else 1
        for char in text
    )


def test_without_a_command_the_list_is_printed(run: Run, make: Make) -> None:
    """`kimi-sessions` alone is `kimi-sessions list`."""
    make("Hello there")
    assert run().out == run("list").out == run("ls").out
    assert "Hello there" in run().out


def test_a_list_is_a_table_with_ids_times_and_titles(run: Run, make: Make) -> None:
    """One line a session, newest first, under a header; nothing on stderr."""
    old, new = make("The old one"), make("The new one", "and more")
    done = run("list")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0].split() == ["ID", "UPDATED", "TITLE"]
    assert [line.split()[0] for line in lines[1:]] == [new.id[:8], old.id[:8]]
    assert lines[1].endswith("The new one")


def test_json_has_the_facts_of_every_session(run: Run, make: Make, work_dir: Path) -> None:
    """One document with both kinds of time, and keys that do not depend on the session."""
    session = make("Hello there")
    done = run("list", "--json")
    (found,) = done.data["sessions"]
    assert done.data["problems"] == []
    assert found["id"] == session.id
    assert found["title"] == "Hello there"
    assert found["updated_at"] == 1_700_000_002
    assert found["updated_at_iso"] == "2023-11-14T22:13:22.000Z"
    assert found["work_dir"] == str(work_dir)
    assert found["path"] == str(session.path)
    assert [found[name] for name in ("archived", "empty", "trusted", "problems")] == [False, False, True, []]


def test_old_sessions_without_a_title_are_told_by_what_was_said_first(
    run: Run, corpus: Callable[[str], Path]
) -> None:
    """Clients up to 0.58 wrote no wire log, which titles are made of: all their sessions are called Untitled."""
    where = ("--share-dir", str(corpus("0.58")), "--all-dirs")
    listed = run("list", *where, "--json").data["sessions"]
    assert {session["title"] for session in listed} == {"Untitled"}
    words = {session["first_words"] for session in listed}
    assert {"Run a slow command.", "A turn that fails."} <= words
    lines = run("list", *where).out.splitlines()[1:]
    assert all("Untitled: " in line for line in lines)
    (line,) = run("list", *where, "--title", "SLOW command").out.splitlines()[1:]
    assert "Untitled: Run a slow" in line


def test_a_session_with_a_title_needs_no_first_words(run: Run, make: Make) -> None:
    """Nor has an empty one any."""
    make("Hello")
    make()
    found = run("list", "--empty", "--json").data["sessions"]
    assert [session["first_words"] for session in found] == [None, None]


def test_where_nothing_is_the_document_is_empty_and_stderr_says_so(run: Run, work_dir: Path) -> None:
    """No session is no error: JSON says it by empty lists, the table by one line on stderr."""
    assert run("list", "--json").data == {"sessions": [], "problems": []}
    done = run("list")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("note: no sessions for ")


def test_an_empty_list_points_to_the_sessions_kimi_cli_has(run: Run, make: Make) -> None:
    """Who looks into the wrong store is told of the other one."""
    make("Hello", layout=ShareLayout())
    done = run("list")
    assert "--share" in done.err
    assert "Hello" in run("--share", "list").out


def test_a_work_dir_that_is_not_there_has_no_sessions(run: Run, tmp_path: Path) -> None:
    """It is an empty list that names the reason."""
    done = run("list", "-w", str(tmp_path / "gone"))
    assert (done.code, done.out) == (0, "")
    assert "there is no such folder" in done.err


@pytest.mark.parametrize("args", [(), ("--all-dirs",)])
def test_a_folder_that_is_no_store_of_kimi_cli_is_not_called_an_empty_one(
    run: Run, tmp_path: Path, args: tuple[str, ...]
) -> None:
    """As when the folder above it was named: no sessions there, and why."""
    (tmp_path / "share" / "sessions").mkdir(parents=True)
    above = run("--share-dir", str(tmp_path), "list", *args)
    assert (above.code, above.out) == (0, "")
    assert f"{tmp_path} holds no store of Kimi CLI" in above.err
    assert "holds no store" not in run("--share-dir", str(tmp_path / "share"), "list", *args).err


def test_a_share_dir_that_is_not_there_is_an_error(run: Run, tmp_path: Path) -> None:
    """A typing mistake in --share-dir is not an empty store."""
    done = run("list", "--share-dir", str(tmp_path / "nope"))
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: no such folder")


def test_archived_and_empty_sessions_are_shown_when_asked_for(run: Run, make: Make) -> None:
    """They are hidden first, and an empty list says that they are there."""
    archived, empty = make("Put away"), make()
    assert run("archive", archived.id).code == 0
    done = run("list")
    assert done.out == ""
    assert "1 archived (--archived shows it), 1 empty (--empty shows it)" in done.err
    assert archived.id in run("list", "--archived", "--json").out
    assert empty.id in run("list", "--empty", "--json").out
    assert "[archived] Put away" in run("list", "--archived").out


def test_what_is_cut_off_is_stated(run: Run, make: Make) -> None:
    """`--limit` keeps the newest and says how many there are; 0 is no limit."""
    for number in range(4):
        make(f"Number {number}")
    done = run("list", "--limit", "2")
    assert len(done.out.splitlines()) == 3
    assert done.err == "note: 2 of 4 sessions; --limit 0 shows all\n"
    assert len(run("list", "--limit", "2", "--json").data["sessions"]) == 2
    assert len(run("list", "--limit", "0", "--json").data["sessions"]) == 4


@pytest.mark.parametrize("sort", ["updated", "created", "title"])
def test_the_order_is_that_of_the_column_that_is_shown(
    run: Run, make: Make, stamp: Callable[[Session, float], None], sort: str
) -> None:
    """A list sorted by creation shows when sessions were created, and so on."""
    sessions = [make("b"), make("c"), make("a")]
    for session, at in zip(sessions, (1_700_300_000, 1_700_100_000, 1_700_200_000), strict=True):
        stamp(session, at)
    found = run("list", "--sort", sort, "--json").data["sessions"]
    key = {"updated": "updated_at", "created": "created_at", "title": "title"}[sort]
    values = [session[key] for session in found]
    assert values == sorted(values, reverse=sort != "title")
    head = run("list", "--sort", sort).out.splitlines()[0]
    assert ("CREATED" in head) == (sort == "created")


def test_filters_leave_the_sessions_that_match(run: Run, make: Make) -> None:
    """--title looks for text, case aside; --tag for a tag."""
    import asyncio

    fix, _ = make("Fix the LOGIN page"), make("Write docs")
    asyncio.run(fix.tag("web"))
    for filter_ in (["--title", "login"], ["--tag", "web"]):
        assert [session["id"] for session in run("list", *filter_, "--json").data["sessions"]] == [fix.id]
    assert "[#web] Fix the LOGIN page" in run("list").out


def test_every_known_work_dir_is_listed_also_one_that_is_gone(
    run: Run, make: Make, tmp_path: Path, work_dir: Path
) -> None:
    """--all-dirs has a column for the work dir; one that no registry names is null with its key in JSON."""
    share = tmp_path / "share"
    known = make("Known", layout=ShareLayout(share))
    lost = make("Lost", session_id="lost", layout=ShareLayout(share))
    stray = share / "sessions" / ("0" * 32)
    stray.mkdir(0o700)
    os.rename(lost.path, stray / "lost")
    os.rename(work_dir, tmp_path / "moved-away")
    done = run("list", "--share-dir", str(share), "--all-dirs", "--json")
    facts = {session["id"]: session for session in done.data["sessions"]}
    assert facts[known.id]["work_dir"] == str(work_dir)
    assert (facts["lost"]["work_dir"], facts["lost"]["key"]) == (None, "0" * 32)
    table = run("list", "--share-dir", str(share), "--all-dirs").out
    assert table.splitlines()[0].split() == ["ID", "UPDATED", "WORK", "DIR", "TITLE"]
    assert "project" in table


def test_a_damaged_session_is_listed_named_and_hides_no_other(run: Run, make: Make) -> None:
    """Its line is marked, stderr names it, JSON has the finding, and the exit code is 0."""
    good, bad = make("Good"), make("Bad")
    (bad.path / "state.json").write_bytes(b"{")
    with open(bad.path / "wire.jsonl", "ab") as log:
        log.write(b'{"timestamp": 17')
    done = run("list")
    assert done.code == 0
    assert "[damaged] Bad" in done.out
    assert "Good" in done.out
    assert done.err.count("\n") == 1
    assert f"session {bad.id}: state.json" in done.err
    facts = {session["id"]: session for session in run("list", "--json").data["sessions"]}
    assert {problem["kind"] for problem in facts[bad.id]["problems"]} == {"bad-state", "torn-tail"}
    assert facts[good.id]["problems"] == []


def test_many_damaged_sessions_are_counted_and_the_way_to_all_of_them_is_named(
    shell: Shell, make: Make, work_dir: Path
) -> None:
    """It is the doctor, by the options that were given."""
    for number in range(6):
        (make(f"Bad {number}", layout=ShareLayout()).path / "state.json").write_bytes(b"{")
    assert (
        "6 sessions have problems; 'kimi-sessions --share doctor' names them all"
        in shell("list", "--share").err
    )
    assert (
        "6 sessions have problems; 'kimi-sessions --share doctor --all-dirs' names them all"
        in shell("list", "--share", "--all-dirs").err
    )
    assert shell("--share", "doctor", "--all-dirs").code == 5


def test_a_registry_that_can_not_be_read_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where its folder should be is no empty registry."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("KIMI_SESSIONS_HOME", str(tmp_path / "file"))
    done = run("list", "--all-dirs")
    assert done.code == 0
    assert f"warning: {tmp_path}/file/work_dirs: can't be read: Not a directory\n" in done.err


def test_ids_are_cut_to_what_tells_them_apart(run: Run, make: Make) -> None:
    """The beginning that is shown is one that every command takes."""
    first = make("First", session_id="12345678-90ab-4def-8000-000000000001")
    second = make("Second", session_id="12345678-90ab-4def-8000-000000000002")
    named = make("Third", session_id="a-name-of-my-own-that-is-long")
    shown = [line.split()[0] for line in run("list").out.splitlines()[1:]]
    assert sorted(shown) == sorted([first.id, second.id, named.id])
    assert run("path", first.id).out.strip() == str(first.path)


def test_no_line_is_wider_than_80_cells_whatever_the_titles(
    run: Run, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CJK, emoji, joined emoji, combining marks: cut by cells, not by characters."""
    monkeypatch.delenv("COLUMNS", raising=False)
    for title in (
        "请仔细阅读以下需求说明，" * 4,
        "🎉" * 50,
        "👩‍👩‍👧‍👦 family " * 5,
        "e\u0301" * 50,
        "한국어 제목 " * 9,
        "x" * 60,
    ):
        assert run("rename", make("prompt").id, title).code == 0
    for extra in ([], ["--all-dirs"]):
        lines = run("list", *extra).out.splitlines()
        assert len(lines) == 7
        assert max(map(cells, lines)) <= 80
    head, *lines = run("list").out.splitlines()
    assert {line.index("  ", line.index(":")) + 2 for line in lines} == {head.index("TITLE")}


def test_columns_says_how_wide_the_table_may_be(
    run: Run, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wider place shows whole titles, a narrow one cuts earlier."""
    title = "word " * 30 + "end"
    run("rename", make("prompt").id, title)
    monkeypatch.setenv("COLUMNS", "300")
    assert run("list").out.endswith("end\n")
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, run("list").out.splitlines())) <= 40


def test_terminal_escapes_in_titles_and_paths_never_get_out(
    run: Run, make: Make, tmp_path: Path, shell: Shell
) -> None:
    """A title from a cloned repository can't colour, move or hide anything; nor can the name of a folder."""
    evil = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202egnol"
    session = make("prompt")
    (session.path / "state.json").write_text(json.dumps({"custom_title": evil}), "utf-8")
    odd = tmp_path / "a\x1b[2Jb"
    odd.mkdir()
    for done in (run("list"), run("list", "--json"), run("show", session.id), run("list", "-w", str(odd))):
        for text in (done.out, done.err):
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_lone_surrogate_comes_out_as_the_replacement_character(run: Run, make: Make) -> None:
    """JSON stays JSON that every reader takes."""
    session = make("prompt")
    wire = session.path / "wire.jsonl"
    wire.write_bytes(
        b'{"timestamp": 1700000000.0, "message": {"type": "TurnBegin", "payload": {"user_input": "a\\ud800b"}}}\n'
    )
    found = run("show", session.id, "--json").data
    assert found["turns"][0]["user_text"] == "a\ufffdb"
    assert run("list", "--json").data["sessions"][0]["title"] == "ab"


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Midway"])
def test_json_has_utc_in_every_zone(shell: Shell, make: Make, zone: str) -> None:
    """Local time is for people only."""
    make("Hello")
    (found,) = shell("list", "--json", env={"TZ": zone}).data["sessions"]
    assert found["updated_at_iso"] == "2023-11-14T22:13:22.000Z"
    day = {"Pacific/Kiritimati": "2023-11-15 12:13", "Pacific/Midway": "2023-11-14 11:13"}[zone]
    assert day in shell("list", env={"TZ": zone}).out


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["list"],
        ["ls", "--archived", "--empty"],
        ["list", "--limit", "1"],
        ["--json", "list"],
        ["list", "--json", "--limit", "0", "--all-dirs"],
    ],
)
def test_the_quick_way_past_the_parser_reads_a_line_as_the_parser_does(
    run: Run, make: Make, args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain lists are read without the parser; both readings are one."""
    make("One"), make("Two"), make()
    quick = run(*args)
    monkeypatch.setattr("kimi_sessions.cli._quick.read_plain_list", lambda _: None)
    assert run(*args) == quick


def test_times_on_a_terminal_are_short() -> None:
    """(The rule by itself; what a terminal shows is tested with a terminal.)"""
    from kimi_sessions.cli import _render

    assert _render.when(0, time.time()) == "-"
    assert _render.iso(None) is None
    assert _render.iso(1e30) is None
