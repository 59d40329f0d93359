"""`kimi-sessions search`: what is found, and how it looks."""

from __future__ import annotations

import pytest

from .conftest import Make, Run, Shell


def test_a_hit_has_its_session_its_turn_and_the_text(run: Run, make: Make) -> None:
    """Two lines a hit, newest first; nothing on stderr."""
    session = make("Where is the parser?", "Never mind", "The parser again")
    done = run("search", "parser")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) == 8
    assert lines[0].startswith(session.id)
    assert "assistant, turn 2" in lines[0]
    assert lines[1].strip() == "You said: The parser again"
    assert "user, turn 0" in lines[6]


def test_json_has_all_that_is_known_of_a_hit(run: Run, make: Make, work_dir: object) -> None:
    """One document; times as seconds and as text."""
    session = make("数据库 question")
    data = run("search", "--json", "数据", "--role", "user").data
    assert data["query"] == "数据"
    assert data["more"] is False
    (hit,) = data["hits"]
    assert hit["id"] == session.id
    assert hit["title"] == "数据库 question"
    assert hit["work_dir"] == str(work_dir)
    assert (hit["role"], hit["turn_index"], hit["time"]) == ("user", 0, 1_700_000_000.0)
    assert hit["time_iso"] == "2023-11-14T22:13:20.000Z"
    assert hit["snippet"] == "数据库 question"
    assert hit["archived"] is False


def test_a_limit_says_that_there_is_more(run: Run, make: Make) -> None:
    """The note goes to stderr; 0 gives all."""
    make(*(f"word {number}" for number in range(5)))
    done = run("search", "word", "--limit", "3")
    assert len(done.out.splitlines()) == 6
    assert "--limit 0" in done.err
    everything = run("search", "word", "--limit", "0")
    assert len(everything.out.splitlines()) == 20
    assert everything.err == ""


def test_nothing_found_is_no_failure(run: Run, make: Make) -> None:
    """It is said on stderr, and the JSON is empty."""
    make("Hello")
    done = run("search", "quokka")
    assert (done.code, done.out) == (0, "")
    assert "nothing was found" in done.err
    assert run("search", "--json", "quokka").data == {"query": "quokka", "hits": [], "more": False}


@pytest.mark.parametrize("arguments", [["--", "!?"], [""], ["x", "--role", "nobody"], []])
def test_a_query_that_makes_no_sense_is_wrong_usage(run: Run, arguments: list[str]) -> None:
    """Exit code 2 and a sentence."""
    done = run("search", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err


def test_all_dirs_names_the_work_dir_of_a_hit(run: Run, make: Make, tmp_path: object) -> None:
    """From anywhere, every known work dir is searched."""
    make("Hello there")
    done = run("-w", str(tmp_path), "search", "hello", "--all-dirs", "--json")
    assert {hit["role"] for hit in done.data["hits"]} == {"user", "assistant"}
    assert "project" in run("-w", str(tmp_path), "search", "hello", "--all-dirs").out
    assert run("-w", str(tmp_path), "search", "hello").out == ""


def test_no_text_of_a_session_reaches_the_terminals_controls(shell: Shell, make: Make) -> None:
    """Escapes are taken out of what is shown."""
    make("needle \x1b[31mred \u202e backwards")
    done = shell("search", "needle")
    assert "needle" in done.out
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out


def test_a_damaged_session_hides_no_other(run: Run, make: Make) -> None:
    """What can be read is searched."""
    bad, good = make("a needle here"), make("a needle there")
    wire = bad.path / "wire.jsonl"
    wire.write_bytes(b'\0\xff{"torn' + b"\n" + wire.read_bytes())
    found = {hit["id"] for hit in run("search", "needle", "--json").data["hits"]}
    assert found == {bad.id, good.id}
