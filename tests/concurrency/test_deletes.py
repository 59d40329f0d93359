"""Sessions that go while somebody uses them: nothing deleted comes back, and no lost append says it was written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.children import finish, start
from tests.stores import said, say, strays, told, write

from kimi_sessions import (
    Layout,
    ProjectLayout,
    Session,
    SessionBusyError,
    SessionNotFoundError,
    ShareLayout,
    WireFile,
)
from kimi_sessions.wire import TurnBegin


async def two(work_dir: Path, layout: Layout | None = None) -> tuple[Session, Session]:
    """Make a session with one record and give it as two programs would have it."""
    first = await Session.create(work_dir, "old", layout=layout)
    await write(first, ["one"])
    await say(first, ["uno"])
    second = await Session.find(work_dir, "old", layout=layout)
    assert second is not None
    return first, second


STEPS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "append": lambda session: write(session, ["late"]),
    "say": lambda session: say(session, ["late"]),
    "checkpoint": lambda session: session.context.checkpoint(),
    "clear": lambda session: session.context.clear(),
    "rename": lambda session: session.rename("late"),
    "tag": lambda session: session.tag("late"),
    "delete": lambda session: session.delete(),
    "trash": lambda session: session.trash(),
    "fork": lambda session: session.fork(),
    "refresh": lambda session: session.refresh(),
}


@pytest.mark.parametrize("layout_name", ["project", "share"])
@pytest.mark.parametrize("removed", ["deleted", "trashed"])
@pytest.mark.parametrize("opened", ["log open", "closed since", "never opened"])
async def test_nobody_writes_to_a_session_that_is_gone(
    work_dir: Path, home: Path, layout_name: str, removed: str, opened: str
) -> None:
    """Whoever still has it gets "not found" from every step, and nothing of it comes back."""
    layout: Layout = ProjectLayout() if layout_name == "project" else ShareLayout(home / ".kimi")
    ours, theirs = await two(work_dir, layout)
    if opened != "never opened":
        await write(ours, ["two"])
        await say(ours, ["due"])
        ours.state.plan_slug = "late"
    if opened == "closed since":
        await ours.close()
    await (theirs.delete() if removed == "deleted" else theirs.trash())
    for name, step in STEPS.items():
        with pytest.raises(SessionNotFoundError):
            await step(ours)
        assert not ours.path.exists(), name
    with pytest.raises(SessionNotFoundError):
        ours.save_state()
    with pytest.raises(SessionNotFoundError):
        async with ours.hold():
            pass
    with pytest.raises(SessionNotFoundError):
        _ = ours.dir
    assert await Session.list(work_dir, layout=layout, include_empty=True) == []


@pytest.mark.parametrize("opened", ["log open", "closed since", "never opened"])
async def test_nobody_writes_into_a_later_session_of_the_same_name(work_dir: Path, opened: str) -> None:
    """A new session of the same id was made since: the old one's holder is told, the new one stays as it is."""
    ours, theirs = await two(work_dir)
    if opened == "never opened":
        found = await Session.find(work_dir, "old")
        assert found is not None
        ours = found
    elif opened == "closed since":
        await ours.close()
    before = ours.path.stat().st_ino
    await theirs.delete()
    # File systems give an inode number out again soon; the folder with the old one's number is the hard case.
    for _ in range(50):
        new = await Session.create(work_dir, "old")
        if new.path.stat().st_ino == before:
            break
        await new.delete()
    else:
        new = await Session.create(work_dir, "old")
    await write(new, ["new"])
    await say(new, ["nuovo"])
    for step in STEPS.values():
        if step in (STEPS["refresh"], STEPS["fork"]):
            continue  # these look anew by the id, and find the one that is there
        with pytest.raises(SessionNotFoundError):
            await step(ours)
    with pytest.raises(SessionNotFoundError):
        ours.save_state()
    found = await Session.find(work_dir, "old")
    assert found is not None
    assert (await told(found), await said(found), found.tags) == (["new"], ["nuovo"], ())
    assert found.title == "new"


WAITER = """
from kimi_sessions.wire import TurnBegin
async def main(work_dir):
    session = await Session.find(work_dir, "old")
    await write(session, ["ready"])
    tell("ready")
    n = 0
    while True:
        try:
            await write(session, [f"waiter {n}"])
        except SessionNotFoundError:
            tell("gone")
            return
        tell("wrote", n)
        n += 1
asyncio.run(main(args[0]))
"""


@pytest.mark.parametrize("verb", ["delete", "trash"])
@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.torture)])
async def test_no_append_that_loses_against_a_delete_says_it_was_written(
    work_dir: Path, verb: str, rounds: int
) -> None:
    """Programs append while another removes the session and makes a new one: each record is where it was put."""
    for _ in range(rounds):
        session = await Session.create(work_dir, "old")
        children = [start(WAITER, work_dir) for _ in range(2)]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        await asyncio.sleep(random.uniform(0, 0.05))
        if verb == "trash":
            await session.trash()
        else:
            await session.delete()
        new = await Session.create(work_dir, "old")
        await write(new, ["new"])
        lines = finish(children)
        assert all(each[-1] == "gone" for each in lines)
        assert await told(new) == ["new"]
        if verb == "trash":
            await new.delete()
            back = await Session.restore(work_dir, "old")
            texts = await told(back)
            for each in lines:
                for line in each[:-1]:
                    assert f"waiter {line.split()[1]}" in texts
            await back.delete()
        else:
            await new.delete()
    assert strays(work_dir) == []


async def test_a_held_session_names_its_holder_and_lets_short_steps_pass(work_dir: Path) -> None:
    """Another program holds it: appends and names pass; owning, removing and rewriting are refused, by name."""
    await two(work_dir)
    child = start(
        """
async def main(work_dir):
    session = await Session.find(work_dir, "old")
    async with session.hold("the other agent"):
        tell(os.getpid())
        while True:
            await asyncio.sleep(1)
asyncio.run(main(args[0]))
""",
        work_dir,
    )
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    session = await Session.find(work_dir, "old")
    assert session is not None
    await write(session, ["two"])
    await say(session, ["due"])
    await session.rename("A name")
    await session.context.checkpoint()
    session.save_state()

    async def hold() -> None:
        async with session.hold():
            raise AssertionError

    refused: list[Callable[[], Awaitable[object]]] = [
        hold,
        session.delete,
        session.trash,
        session.context.clear,
        lambda: session.context.revert_to(0),
        lambda: session.context.set_system_prompt("late"),
    ]
    for step in refused:
        began = time.monotonic()
        with pytest.raises(SessionBusyError) as caught:
            await step()
        assert time.monotonic() - began < 5, "refused at once, not after waiting for the lock"
        holder = caught.value.holder
        assert holder is not None
        assert (holder.pid, holder.program) == (pid, "the other agent")
        assert holder.host == os.uname().nodename
        assert holder.since is not None
        assert abs(holder.since - time.time()) < 100
        assert str(pid) in str(caught.value)
    await session.close()
    assert [each.title for each in await Session.list(work_dir)] == ["A name"]
    # A holder that is killed blocks nobody.
    child.send_signal(signal.SIGKILL)
    child.communicate()
    async with session.hold():
        await write(session, ["three"])
    await session.context.clear()
    await session.delete()


async def test_a_hold_in_this_program_binds_its_other_objects_too(work_dir: Path) -> None:
    """Two objects of one session in one program obey the rules of two programs."""
    ours, other = await two(work_dir)
    async with ours.hold("me"):
        for step in (other.delete, other.trash, other.context.clear):
            with pytest.raises(SessionBusyError):
                await step()
        with pytest.raises(SessionBusyError):
            async with ours.hold():
                pass
        await write(other, ["two"])
        await ours.context.clear()  # the holder may
    await other.trash()


async def test_a_step_that_fails_does_not_end_the_hold(work_dir: Path) -> None:
    """Closing, or a delete that was refused, inside of a hold leaves the hold in force until its block ends."""
    ours, other = await two(work_dir)
    async with ours.hold():
        await ours.close()
        with pytest.raises(SessionBusyError):
            await other.delete()
        await write(ours, ["two"])
    await other.delete()


async def test_force_removes_a_held_session_and_its_holder_is_told(work_dir: Path) -> None:
    """With force a held session goes; the holder's next record is refused, and leaving the hold is no error."""
    ours, other = await two(work_dir)
    async with ours.hold():
        await other.delete(force=True)
        with pytest.raises(SessionNotFoundError):
            await write(ours, ["late"])
    assert not ours.path.exists()


REWRITER = """
async def main(work_dir, rounds):
    for n in range(rounds):
        session = await Session.find(work_dir, "old")
        with _fs.using(UnsyncedFs()):
            if n % 3 == 0:
                await session.context.clear()
            elif n % 3 == 1:
                await session.context.set_system_prompt(f"prompt {n}")
            else:
                mark = await session.context.checkpoint()
                await session.context.revert_to(mark)
        await session.close()
    tell("done")
asyncio.run(main(args[0], int(args[1])))
"""
SPEAKER = """
async def main(work_dir, name, count):
    session = await Session.find(work_dir, "old")
    for n in range(count):
        await say(session, [f"{name} {n} " + "x" * 5000])
        tell(n)
asyncio.run(main(args[0], args[1], int(args[2])))
"""


@pytest.mark.parametrize("rounds, count", [(12, 150), pytest.param(300, 4000, marks=pytest.mark.torture)])
async def test_a_rewrite_while_others_append_loses_nothing(work_dir: Path, rounds: int, count: int) -> None:
    """Clear, revert and a late system prompt while two programs append: every message is in one of the contexts."""
    session, _ = await two(work_dir)
    children = [start(SPEAKER, work_dir, name, count) for name in "ab"]
    children.append(start(REWRITER, work_dir, rounds))
    finish(children)
    contexts = [path.read_text() for path in sorted(session.path.glob("context*.jsonl"))]
    for name in "ab":
        for n in range(count):
            assert sum(f'"{name} {n} ' in text for text in contexts) >= 1, (name, n)
    assert strays(work_dir) == []


REPAIRER = """
from kimi_sessions.repair import repair
async def main(work_dir, rounds):
    for n in range(rounds):
        session = await Session.find(work_dir, "old")
        for name in ("wire.jsonl", "context.jsonl"):
            with open(session.path / name, "ab") as log:
                log.write(b'{"torn": "piece %d\\n' % n)
        with _fs.using(UnsyncedFs()):
            await repair(session)
    tell("done")
asyncio.run(main(args[0], int(args[1])))
"""


@pytest.mark.parametrize("rounds, count", [(8, 100), pytest.param(100, 2000, marks=pytest.mark.torture)])
async def test_a_repair_while_others_append_loses_nothing(work_dir: Path, rounds: int, count: int) -> None:
    """Torn pieces are moved out of both logs while two programs append: each of their messages is there once."""
    session, _ = await two(work_dir)
    children = [start(SPEAKER, work_dir, name, count) for name in "ab"]
    children.append(start(REPAIRER, work_dir, rounds))
    finish(children)
    texts = [text.split(" x")[0] for text in await said(session)]
    assert texts[0] == "uno"
    assert sorted(texts[1:]) == sorted(f"{name} {n}" for name in "ab" for n in range(count))
    kept = (session.path / "context.jsonl.torn").read_bytes() + (session.path / "context.jsonl").read_bytes()
    for n in range(rounds):
        assert f'"piece {n}\n'.encode() in kept


async def test_a_late_system_prompt_brings_along_what_an_unlocked_program_appends(work_dir: Path) -> None:
    """A program without our lock appends while the log is rewritten: its messages are in the new log."""
    session = await Session.create(work_dir, "old")
    await say(session, ["x" * 200_000 for _ in range(20)])
    child = start(
        """
import json
for n in range(400):
    with open(args[0], "a") as log:
        log.write(json.dumps({"role": "user", "content": f"foreign {n}"}) + "\\n")
    tell(n)
""",
        session.context_file,
    )
    assert child.stdout is not None
    child.stdout.readline()
    await session.context.set_system_prompt("late")
    finish([child])
    texts = await said(session)
    assert [text for text in texts if text.startswith("foreign")] == [f"foreign {n}" for n in range(400)]
    assert session.context.history.system_prompt == "late"


MOVER = """
async def main(work_dir):
    while not Path(work_dir, "go").exists():
        pass
    for _ in range(10):
        listed = await Session.list(work_dir)
        found = [await Session.find(work_dir, f"flat-{n}") for n in range(5)]
        tell(*[len(await said(each)) for each in found])
asyncio.run(main(args[0]))
"""


async def test_two_programs_move_the_same_flat_file(work_dir: Path) -> None:
    """Both list a store of an old client at once: each session is whole for both, and moved once."""
    await Session.create(work_dir, "other")
    sessions = work_dir / ".kimi" / "sessions"
    for n in range(5):
        (sessions / f"flat-{n}.jsonl").write_text('{"role": "user", "content": "one"}\n')
        (sessions / f"flat-{n}_1.jsonl").write_text('{"role": "user", "content": "rotated"}\n')
        (sessions / f"flat-{n}_sub_1.jsonl").write_text('{"role": "user", "content": "sub"}\n')
    children = [start(MOVER, work_dir) for _ in range(3)]
    (work_dir / "go").touch()
    assert finish(children) == [["1 1 1 1 1"] * 10] * 3
    for n in range(5):
        names = {path.name for path in (sessions / f"flat-{n}").iterdir()}
        assert names >= {"context.jsonl", "context_1.jsonl", "context_sub_1.jsonl"}
    assert sorted(path.name for path in sessions.iterdir()) == sorted(
        ["other", *(f"flat-{n}" for n in range(5))]
    )
    assert [each.problems for each in await Session.list(work_dir) if each.trusted] == []


async def test_a_restore_and_a_create_of_one_id_at_the_same_moment_lose_nothing(work_dir: Path) -> None:
    """One of them gets the id, the other is told; a trashed session is in the trash or back, whole."""
    for _ in range(15):
        session = await Session.create(work_dir, "old")
        await write(session, ["precious"])
        await session.trash()
        results = await asyncio.gather(
            Session.restore(work_dir, "old"), Session.create(work_dir, "old"), return_exceptions=True
        )
        assert any(isinstance(result, Session) for result in results), results
        if not isinstance(results[0], Session):
            found = await Session.find(work_dir, "old")
            assert found is not None
            await found.delete()
            await Session.restore(work_dir, "old")
        back = await Session.find(work_dir, "old")
        assert back is not None
        assert await told(back) == ["precious"]
        await back.delete()


async def test_lock_files_of_dead_programs_are_in_nobodys_way(work_dir: Path) -> None:
    """Lock files left behind, with the text of a holder that is no more, or with any text at all."""
    ours, other = await two(work_dir)
    for text in (
        b'{"pid": 1, "host": "elsewhere", "program": "x", "since": 1}',
        b"\xff\xfe" * 40,
        b"[" * 5000,
    ):
        (ours.path / ".hold").write_bytes(text)
        (ours.path / ".lock").write_bytes(text)
        await write(ours, ["two"])
        async with other.hold():
            await other.context.clear()
    for name in (".hold", ".lock"):
        (ours.path / name).unlink()
    await write(ours, ["three"])
    async with ours.hold():
        with contextlib.suppress(FileNotFoundError):
            (ours.path / ".lock").unlink()
        await write(other, ["four"])
        await write(ours, ["five"])
    assert (await told(ours))[-3:] == ["three", "four", "five"]
    bare = WireFile(ours.path / "wire.jsonl")
    await bare.append_message(TurnBegin(user_input="six"))
    bare.close()
    await other.delete()
