"""
Programs killed at a random moment: every record whose number they had printed can be read.

A kill takes a program's memory and leaves the operating system's: this says nothing of a loss of power.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.children import start
from tests.stores import said, strays, told

from kimi_sessions import Session

# Prints "<what> <number>" only after the call that acknowledged it returned.
WRITER = """
from kimi_sessions.wire import TurnBegin
async def main(work_dir, first, durability):
    session = await Session.find(work_dir, "old")
    session.durability = durability
    n = first
    tell("begun")
    with _fs.using(UnsyncedFs()) if durability == "os" else _fs.using(_fs.OsFileSystem()):
        while True:
            await session.wire_file.append_message(TurnBegin(user_input=f"{n} " + "x" * (n % 7 * 900)))
            tell("wire", n)
            await session.context.append({"role": "user", "content": f"{n} " + "y" * (n % 5 * 900)})
            tell("context", n)
            if n % 5 == 0:
                session.state.plan_slug = str(n)
                session.save_state()
                tell("state", n)
            if n % 11 == 0:
                await session.rename(f"name {n}")
                tell("name", n)
            if n % 40 == 0:
                await session.context.clear()
                tell("cleared", n)
            n += 1
asyncio.run(main(args[0], int(args[1]), args[2]))
"""


NAMES = re.compile(r'"(\d+) ')


def all_lines(path: Path) -> list[str]:
    """Give the texts of every context there ever was: the rotated ones and the one in use."""
    return [path.read_text("utf-8", "replace") for path in sorted(path.parent.glob("context*.jsonl"))]


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("rounds", [4, pytest.param(25, marks=pytest.mark.torture)])
async def test_what_a_killed_program_had_acknowledged_is_there(
    work_dir: Path, durability: str, rounds: int
) -> None:
    """Records, messages (rotated ones too), state and name survive SIGKILL at any moment, again and again."""
    await (await Session.create(work_dir, "old")).tag("kept")
    acknowledged: dict[str, list[int]] = {"wire": [], "context": [], "state": [], "name": [], "cleared": []}
    first = 1
    for _ in range(rounds):
        child = start(WRITER, work_dir, first, durability)
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        time.sleep(random.uniform(0.0, 0.5))  # noqa: ASYNC251 - nothing else runs here
        child.kill()
        out, errors = child.communicate()
        assert errors == b""
        for line in out.decode().splitlines():
            what, counted = line.split()
            acknowledged[what].append(int(counted))
        first = max([first, *acknowledged["wire"]]) + 2  # the one after the last may have been written too

        session = await Session.find(work_dir, "old")
        assert session is not None
        assert session.trusted
        numbers = [int(text.split()[0]) for text in await told(session)]
        assert set(acknowledged["wire"]) <= set(numbers)
        assert numbers == sorted(set(numbers))
        written = Counter(
            int(name) for text in all_lines(session.context_file) for name in NAMES.findall(text)
        )
        assert all(written[number] == 1 for number in acknowledged["context"])
        last = max(acknowledged["state"], default=0)
        assert int(session.state.plan_slug or 0) in (last, last + 5, *range(first - 2, first + 6))
        named = max(acknowledged["name"], default=0)
        assert int((session.state.custom_title or "name 0").split()[1]) >= named
        assert [finding.kind for finding in session.problems if finding.kind != "torn-tail"] == []
        kept = len(list(session.path.glob("context_*.jsonl")))
        assert kept >= len(acknowledged["cleared"])
        # The next one can go on.
        assert len(await said(session)) >= 0
    assert len(acknowledged["wire"]) > 0


CREATOR = """
async def main(work_dir):
    tell("begun")
    with _fs.using(UnsyncedFs()):
        while True:
            session = await Session.create(work_dir)
            tell("made", session.id)
            await write(session, ["one"])
            await say(session, ["uno"])
            tell("filled", session.id)
            fork = await session.fork()
            tell("filled", fork.id)
            await fork.trash()
            tell("trashed", fork.id)
            await Session.restore(work_dir, fork.id)
            tell("filled", fork.id)
            await session.delete()
            tell("deleted", session.id)
asyncio.run(main(args[0]))
"""


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.torture)])
async def test_a_killed_program_leaves_whole_sessions_or_none(work_dir: Path, rounds: int) -> None:
    """Create, fork, trash, restore and delete, stopped anywhere: no half session, and the last word counts."""
    for _ in range(rounds):
        child = start(CREATOR, work_dir)
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        time.sleep(random.uniform(0.0, 0.6))  # noqa: ASYNC251 - nothing else runs here
        child.kill()
        out, errors = child.communicate()
        assert errors == b""
        # Of what the program was in the middle of, either outcome is right: its last word is left out.
        words = [line.split() for line in out.decode().splitlines()]
        fate = {session_id: word for word, session_id in words}
        unsure = {words[-1][1]} if words else set()
        here = {each.id: each for each in await Session.list(work_dir, include_empty=True)}
        trashed = {entry.session_id for entry in await Session.list_trash(work_dir)}
        for session_id, word in fate.items():
            assert not (session_id in here and session_id in trashed)
            if word == "deleted":
                assert session_id not in here
                assert session_id not in trashed
            elif session_id not in unsure and word == "filled" and session_id in here:
                assert await told(here[session_id]) == ["one"]
                assert await said(here[session_id]) == ["uno"]
        for each in here.values():
            assert await told(each) in ([], ["one"])
            assert each.trusted or each.empty, each.problems
        # What was begun and not finished is finished by the next delete, and is nobody's in between.
        for each in here.values():
            await each.delete()
        assert await Session.list(work_dir, include_empty=True) == []
    await Session.empty_trash(work_dir)
    assert strays(work_dir, prefixes=("deleting~",)) == [
        name for name in strays(work_dir) if name.endswith(".tmp")
    ]
