"""What holds for all commands alike: where they look, what reading leaves behind, and what nothing ever changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stores import snapshot

from kimi_sessions import Layout, ProjectLayout, Session, ShareLayout
from kimi_sessions.wire import CompactionBegin, CompactionEnd, TurnBegin, TurnEnd

from .conftest import Make, Run

READING = (
    ["list"],
    ["list", "--all-dirs", "--archived", "--empty"],
    ["show", "@last"],
    ["show", "@last", "--turns"],
    ["search", "said", "--all-dirs"],
    ["stats"],
    ["stats", "@last"],
    ["continue"],
    ["path"],
    ["path", "@last"],
    ["doctor"],
    ["doctor", "--repair", "--dry-run"],
    ["trash", "list"],
    ["trust", "--all", "--dry-run"],
    ["migrate", "--dry-run"],
    ["fork", "@last", "--turn", "999"],
)


@pytest.fixture(params=["project", "share"])
def layout(request: pytest.FixtureRequest, home: Path) -> Layout:
    """Give each layout; the share is Kimi CLI's own."""
    return ProjectLayout() if request.param == "project" else ShareLayout(home / ".kimi")


def told(layout: Layout) -> list[str]:
    """Give the options that lead there."""
    return ["--share"] if isinstance(layout, ShareLayout) else []


@pytest.fixture
def four(make: Make, tmp_path: Path, home: Path) -> dict[str, list[str]]:
    """Make one session each in four stores; give the options that lead to each session."""
    other = tmp_path / "other"
    other.mkdir()
    make("one", session_id="ours")
    make("two", session_id="share", layout=ShareLayout(home / ".kimi"))
    make("three", session_id="elsewhere", layout=ShareLayout(tmp_path / "elsewhere"))
    asyncio.run(_begin(other, "theirs"))
    return {
        "ours": [],
        "share": ["--share"],
        "elsewhere": ["--share-dir", str(tmp_path / "elsewhere")],
        "theirs": ["-w", str(other)],
    }


async def _begin(work_dir: Path, session_id: str) -> None:
    session = await Session.create(work_dir, session_id)
    await session.wire_file.append_many([TurnBegin(user_input="said"), TurnEnd()])
    await session.close()


def test_every_command_keeps_to_the_store_it_was_told_of(
    run: Run, four: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag for another store was honoured by the list, and not by what continues."""
    for wanted, where in [*four.items(), ("elsewhere", ["--share"])]:
        if where == ["--share"] and wanted == "elsewhere":
            monkeypatch.setenv("KIMI_SHARE_DIR", str(tmp_path / "elsewhere"))
        assert [each["id"] for each in run(*where, "list", "--json").data["sessions"]] == [wanted]
        assert run(*where, "continue").out == f"{wanted}\n"
        assert Path(run(*where, "path", "@last").out.strip()).name == wanted
        assert run(*where, "show", "@last", "--json").data["session"]["id"] == wanted
        assert run(*where, "rename", "@last", f"A title of {wanted}").code == 0
        hits = run(*where, "search", "title", "--json").data["hits"]
        assert [hit["title"] for hit in hits if hit["role"] == "title"] == [f"A title of {wanted}"]
        assert [each["id"] for each in run(*where, "doctor", "--json").data["sessions"]] == [wanted]
        assert run(*where, "delete", "@last", "--yes").code == 0
        assert [each["id"] for each in run(*where, "trash", "list", "--json").data["trash"]] == [wanted]
        assert run(*where, "trash", "restore", wanted).code == 0
        fork = run(*where, "fork", wanted).out.strip()
        assert {each["id"] for each in run(*where, "list", "--json").data["sessions"]} == {wanted, fork}
        assert run(*where, "delete", fork, "--permanent", "--yes").code == 0


def test_commands_that_read_leave_a_store_as_it_is_however_old_its_sessions_are(
    run: Run, make: Make, layout: Layout, work_dir: Path, home: Path
) -> None:
    """Sessions of another decade went at start-up, unasked; and a tool that only reads left files behind."""
    for name in ("one", "two"):
        session = make("said", session_id=name, layout=layout)
        for path in (*session.path.iterdir(), session.path):
            os.utime(path, (1e8, 1e8))
    assert run(*told(layout), "delete", "two", "--yes").code == 0
    roots = (work_dir, home / ".kimi")
    before = [snapshot(root) for root in roots]
    for command in READING:
        assert run(*told(layout), *command).code in {0, 2, 3}, command
        assert [snapshot(root) for root in roots] == before, command


@pytest.mark.parametrize("version", ["0.58", "1.20.0"])
def test_commands_that_read_leave_a_store_of_kimi_cli_as_it_is(
    run: Run, corpus: Callable[[str], Path], version: str
) -> None:
    """Once its flat files have moved, nothing of a foreign store changes by being looked at."""
    share = corpus(version)
    where = ["--share-dir", str(share)]
    sessions = run(*where, "list", "--all-dirs", "--archived", "--empty", "--json").data["sessions"]
    before = snapshot(share)
    for command in READING:
        run(*where, *command)
    for each in sessions:
        at = [*where, "-w", each["work_dir"] or "."]
        for name in ("show", "stats", "path", "continue", "doctor"):
            run(*at, name, each["id"])
    assert len(sessions) > 1
    assert snapshot(share) == before


def test_what_was_logged_stays_whatever_is_done_to_a_session(run: Run, make: Make, layout: Layout) -> None:
    """An old record that was rewritten was needed later: the first bytes of both logs never change."""
    session = make("one", "two", session_id="old", layout=layout)
    logs = [session.path / name for name in ("wire.jsonl", "context.jsonl")]
    before = [path.read_bytes() for path in logs]
    for command in (
        ["rename", "old", "A title"],
        ["archive", "old"],
        ["fork", "old", "--turn", "0"],
        ["unarchive", "old"],
        ["doctor", "--repair"],
        ["trust", "--all"],
    ):
        assert run(*told(layout), *command).code == 0, command
        assert [path.read_bytes() for path in logs] == before, command
    for command in (["delete", "old", "--yes"], ["trash", "restore", "old"]):
        assert run(*told(layout), *command).code == 0, command
    assert [path.read_bytes() for path in logs] == before


async def _compact(session: Session) -> None:
    await session.wire_file.append_many([TurnBegin(user_input="/compact"), CompactionBegin()])
    await session.context.clear()
    await session.context.append({"role": "user", "content": "They talked."})
    await session.wire_file.append_many(
        [CompactionEnd(), TurnEnd(), TurnBegin(user_input="word 7"), TurnEnd()]
    )
    await session.context.append({"role": "user", "content": "word 7"})


def test_a_compacted_session_has_as_many_turns_wherever_they_are_counted(
    run: Run, make: Make, work_dir: Path, layout: Layout
) -> None:
    """After a compaction, one reader saw all of the conversation and another its end only."""
    session = make(*(f"word {number}" for number in range(7)), session_id="old", layout=layout)
    asyncio.run(_compact(session))
    fork = run(*told(layout), "fork", "old").out.strip()
    for each in ("old", fork):
        assert len(run(*told(layout), "show", each, "--json").data["turns"]) == 9
        assert len(run(*told(layout), "show", each, "--turns").out.splitlines()) == 9
        assert run(*told(layout), "stats", each, "--json").data["turns"] == 9
    hits = run(*told(layout), "search", "word", "--role", "user", "--limit", "0", "--json").data["hits"]
    assert len(hits) == 8
