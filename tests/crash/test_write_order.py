"""What is written in which order, seen as calls to the disk: what docs/durability.md says step by step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.seam import RecordingFs
from tests.stores import said, say, told, write

from kimi_sessions import Session
from kimi_sessions._fs import using
from kimi_sessions.wire import TurnBegin

Event = tuple[str, str]
WATCHED = frozenset(
    {"write", "fsync", "fdatasync", "rename", "replace", "link", "unlink", "mkdir", "ftruncate", "rmdir"}
)


class TracingFs(RecordingFs):
    """The real disk, and what was changed on it in order: the call, and the name of the file it was made on."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.written: list[bytes] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = super().__getattr__(name)
        if name not in WATCHED:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            path = args[1] if name in ("rename", "replace", "link") else args[0]
            on = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
            self.events.append((name, "temp" if ".tmp-" in on else Path(on).name))
            if name == "write":
                self.written.append(bytes(args[1]))
            return real(*args, **kwargs)

        self.__dict__[name] = call
        return call

    def order_of(self, *wanted: Event) -> list[Event]:
        """Give the events that are among these, in the order they came."""
        return [event for event in self.events if event in wanted]


pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names are looked up in /proc")


async def session_in_use(work_dir: Path) -> Session:
    """Make a session that is the last one already, so that appends have nothing to do besides."""
    session = await Session.create(work_dir, "old")
    await write(session, ["one"])
    await say(session, ["uno"])
    return session


async def test_an_append_is_one_write_whatever_has_to_go_with_it(work_dir: Path) -> None:
    """The header of a new log, the line break after a torn tail, many records: each append is one call."""
    session = await session_in_use(work_dir)
    wire = session.path / "wire.jsonl"
    wire.unlink()
    for prepare, begins in (
        (None, b'{"type":"metadata"'),
        (None, b'{"timestamp"'),
        (b'{"torn', b"\n{"),
        (b'{"role": "whole but unended"}', b"\n{"),
    ):
        if prepare is not None:
            wire.write_bytes(wire.read_bytes() + prepare)
        fs = TracingFs()
        with using(fs):
            await session.wire_file.append_many([TurnBegin(user_input=text) for text in ("a", "b", "c")])
        assert fs.events == [("write", "wire.jsonl")]
        assert fs.written[0].startswith(begins)
        assert fs.written[0].endswith(b"\n")


async def test_in_disk_durability_an_append_returns_after_the_sync_that_covers_it(work_dir: Path) -> None:
    """The write, the sync of the log, and of the folder where the log is new; then it is acknowledged."""
    session = await Session.create(work_dir, "old")
    session.durability = "disk"
    await say(session, ["uno"])
    fs = TracingFs()
    with using(fs):
        await write(session, ["one"])
    assert fs.events[:3] == [("write", "wire.jsonl"), ("fdatasync", "wire.jsonl"), ("fsync", "old")]
    fs = TracingFs()
    with using(fs):
        await write(session, ["two"])
    assert fs.events == [("write", "wire.jsonl"), ("fdatasync", "wire.jsonl")]


async def test_disk_durability_that_is_asked_for_late_counts_from_the_next_append(work_dir: Path) -> None:
    """Also for a log that was taken in hand before, and for the records that "os" left with the system."""
    session = await Session.create(work_dir, "old")
    wire = session.wire_file
    await write(session, ["one"])
    session.durability = "disk"
    fs = TracingFs()
    with using(fs):
        await wire.append_message(TurnBegin(user_input="two"))
    assert fs.events == [("write", "wire.jsonl"), ("fdatasync", "wire.jsonl"), ("fsync", "old")]
    session.durability = "os"
    fs = TracingFs()
    with using(fs):
        await wire.append_message(TurnBegin(user_input="three"))
    assert fs.events == [("write", "wire.jsonl")]


async def test_appends_at_the_same_time_share_a_sync_that_began_after_their_writes(work_dir: Path) -> None:
    """64 tasks need far fewer than 64 syncs, and none is acknowledged before one that covers it has ended."""
    session = await Session.create(work_dir, "old")
    session.durability = "disk"
    await write(session, ["first"])
    fs = TracingFs()
    acknowledged_at: list[int] = []

    async def append(n: int) -> None:
        await write(session, [f"{n}"])
        synced = [at for at, event in enumerate(fs.events) if event[0] == "fdatasync"]
        mine = next(at for at, data in enumerate(fs.written) if f'"{n}"'.encode() in data)
        my_write = [at for at, event in enumerate(fs.events) if event[0] == "write"][mine]
        assert any(at > my_write for at in synced)
        acknowledged_at.append(n)

    with using(fs):
        await asyncio.gather(*(append(n) for n in range(64)))
    assert len(acknowledged_at) == 64
    assert sum(event[0] == "fdatasync" for event in fs.events) < 20


async def test_a_document_is_replaced_only_when_the_new_one_is_on_the_device(work_dir: Path) -> None:
    """Temp file, sync, rename, sync of the folder: at no instant is there no document, or half of one."""
    session = await session_in_use(work_dir)
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: session.rename("A name"),
        lambda: session.tag("tag"),
        lambda: asyncio.to_thread(session.save_state),
    ]
    for step in steps:
        session.state.plan_slug = os.urandom(4).hex()
        fs = TracingFs()
        with using(fs):
            await step()
        names = [name for name, on in fs.events]
        assert names == ["write", "fsync", "replace", "fsync"], fs.events
        assert fs.events[0][1] == fs.events[1][1] == "temp"
        assert fs.events[3] == ("fsync", "old")


async def test_approvals_are_sealed_before_they_are_written(work_dir: Path) -> None:
    """A seal of old and new, the state, the seal of the new: whoever stops in between has what he had, or the new."""
    session = await session_in_use(work_dir)
    session.state.approval.yolo = True
    fs = TracingFs()
    with using(fs):
        session.save_state()
    replaced = [on for name, on in fs.events if name == "replace"]
    assert replaced == ["seal.json", "state.json", "seal.json"]


async def test_a_rewrite_has_the_new_log_on_the_device_and_the_old_one_named_first(work_dir: Path) -> None:
    """The new log is synced, the old one gets its second name, the new one takes its place, the folder is synced."""
    session = await session_in_use(work_dir)
    mark = await session.context.checkpoint()
    await say(session, ["due"])
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: session.context.revert_to(mark),
        session.context.clear,
    ]
    for step in steps:
        fs = TracingFs()
        with using(fs):
            await step()
        kept = next(on for name, on in fs.events if name == "link")
        assert kept.startswith("context_")
        order = fs.order_of(("fsync", "temp"), ("link", kept), ("replace", "context.jsonl"), ("fsync", "old"))
        assert order == [("fsync", "temp"), ("link", kept), ("replace", "context.jsonl"), ("fsync", "old")]
    assert (await said(session), await told(session)) == ([], ["one"])


async def test_a_delete_takes_the_session_out_of_sight_before_it_removes_anything(work_dir: Path) -> None:
    """One rename, synced on both sides, and only then files go."""
    session = await session_in_use(work_dir)
    fs = TracingFs()
    with using(fs):
        await session.delete()
    names = [name for name, _ in fs.events]
    first_removal = names.index("unlink")
    assert names.index("rename") < first_removal
    synced = [on for name, on in fs.events[names.index("rename") : first_removal] if name == "fsync"]
    assert set(synced) == {"sessions", "trash"}


async def test_a_fork_is_whole_on_the_device_before_it_has_its_name(work_dir: Path) -> None:
    """Every file and the folder are synced under a name that nobody looks at; then comes the rename."""
    session = await session_in_use(work_dir)
    fs = TracingFs()
    with using(fs):
        fork = await session.fork()
    assert ("mkdir", fork.id) not in fs.events
    renamed = fs.events.index(("rename", fork.id))
    before = fs.events[:renamed]
    for name in ("wire.jsonl", "context.jsonl"):
        assert before.index(("write", name)) < before.index(("fsync", name))
    assert [on for name, on in before if name == "replace"][-3:] == [
        "state.json",
        "session.json",
        "seal.json",
    ]
    assert ("fsync", "sessions") in fs.events[renamed:]


class InBetweenFs(RecordingFs):
    """The real disk on which something else happens just before a call of a given name, each time it is made."""

    def __init__(self, happens: dict[str, Callable[[], None]]) -> None:
        super().__init__()
        self.happens = happens

    def before(self, name: str) -> None:
        """Let it happen."""
        if name in self.happens:
            self.happens[name]()


async def test_what_an_unlocked_program_writes_during_a_rewrite_is_in_the_new_log(work_dir: Path) -> None:
    """Just before the sync, before the rename, and after it into the old and the new file: each is there once."""
    session = await session_in_use(work_dir)
    path = session.context_file
    expected: list[str] = []

    def append(file: Any, when: str) -> None:
        expected.append(f"{when} {len(expected)}")
        os.write(file, f'{{"role": "user", "content": "{expected[-1]}"}}\n'.encode())

    old = os.open(path, os.O_WRONLY | os.O_APPEND)
    renamed = False

    def before_rename() -> None:
        nonlocal renamed
        append(old, "before the rename")
        renamed = True

    def after_rename() -> None:
        # Once, before the last look at the old one: what comes after that look is beyond anybody's reach.
        if renamed and not any(text.startswith("in the new one") for text in expected):
            new = os.open(path, os.O_WRONLY | os.O_APPEND)
            append(new, "in the new one")
            os.close(new)
            append(old, "in the old one")

    fs = InBetweenFs(
        {
            "fsync": lambda: None if renamed else append(old, "before the sync"),
            "replace": before_rename,
            "fstat": after_rename,
        }
    )
    with using(fs):
        await session.context.set_system_prompt("late")
    os.close(old)
    assert sorted(await said(session)) == sorted(["uno", *expected])
    assert {text.rpartition(" ")[0] for text in expected} == {
        "before the sync",
        "before the rename",
        "in the new one",
        "in the old one",
    }
