"""Many programs on one session: every line whole, every change of state kept, readers never troubled."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.children import finish, start
from tests.seam import RecordingFs
from tests.stores import said, told, write

from kimi_sessions import Layout, ProjectLayout, Session, SessionExistsError, ShareLayout, WireFile, _fs
from kimi_sessions.wire import TurnBegin

full = pytest.mark.torture

APPEND = """
from kimi_sessions.wire import TurnBegin
async def main(work_dir, name, count, size):
    session = await Session.find(work_dir, "old")
    for n in range(count):
        await session.wire_file.append_message(TurnBegin(user_input=f"{name} {n} " + "x" * size))
        await session.context.append({"role": "user", "content": f"{name} {n} " + "y" * (size // 10)})
        tell(n)
asyncio.run(main(args[0], args[1], int(args[2]), int(args[3])))
"""


def check_lines(path: Path, expected: int, headers: int) -> None:
    """Every line of a log is a whole record, and there are as many as were acknowledged."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    records = [json.loads(line) for line in data.splitlines()]
    assert sum(record.get("type") == "metadata" for record in records) == headers
    assert len(records) == expected + headers


@pytest.mark.parametrize("processes, count", [(4, 40), pytest.param(8, 200, marks=full)])
async def test_many_programs_append_to_one_log(work_dir: Path, processes: int, count: int) -> None:
    """Big records of many programs at once: as many whole lines as were acknowledged, and one header."""
    await (await Session.create(work_dir, "old")).tag("kept")
    children = [start(APPEND, work_dir, name, count, 20_000) for name in range(processes)]
    # A reader meanwhile sees whole records only.
    while any(child.poll() is None for child in children):
        [session] = await Session.list(work_dir)
        assert all(len(text) > 20_000 for text in await told(session))
        assert all(text.endswith("y" * 2000) for text in await said(session))
        # A record that is being written this very moment can look torn; nothing else may.
        assert {problem.kind for problem in session.problems} <= {"torn-tail"}
    assert [len(lines) for lines in finish(children)] == [count] * processes
    session = (await Session.list(work_dir))[0]
    check_lines(session.path / "wire.jsonl", processes * count, headers=1)
    check_lines(session.path / "context.jsonl", processes * count, headers=0)
    for name in range(processes):
        own = [text.split()[1] for text in await told(session) if text.startswith(f"{name} ")]
        assert own == list(map(str, range(count))), "one program's records are in its order"


FLIP = """
async def main(work_dir, field, count):
    session = await Session.find(work_dir, "old")
    with _fs.using(UnsyncedFs()):
        for n in range(1, count + 1):
            if field == "plan":
                session.state.plan_slug = f"plan {n}"
            elif field == "actions":
                session.state.approval.auto_approve_actions = session.state.approval.auto_approve_actions | {f"act {n}"}
            else:
                session.state.additional_dirs = [*session.state.additional_dirs, f"/dir/{n}"]
            session.save_state()
            tell(n)
asyncio.run(main(args[0], args[1], int(args[2])))
"""


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=full)])
async def test_programs_that_change_different_fields_lose_nothing_of_each_other(
    work_dir: Path, count: int
) -> None:
    """Each saves its own field again and again; in the end every change of everyone is there."""
    await (await Session.create(work_dir, "old")).tag("kept")
    finish([start(FLIP, work_dir, field, count) for field in ("plan", "actions", "dirs")])
    found = await Session.find(work_dir, "old")
    assert found is not None
    assert found.trusted
    assert found.state.plan_slug == f"plan {count}"
    assert set(found.state.approval.auto_approve_actions) == {f"act {n}" for n in range(1, count + 1)}
    assert found.state.additional_dirs == [f"/dir/{n}" for n in range(1, count + 1)]


# What the real client does, without a lock of any kind: open, write a record, close. In pieces, where the record is
# larger than its buffer.
FOREIGN = """
import json
def main(path, count, size):
    for n in range(count):
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps({"timestamp": time.time(), "message": {"type": "TurnBegin",
                      "payload": {"user_input": f"foreign {n} " + "z" * size}}}) + "\\n")
        tell(n)
main(args[0], int(args[1]), int(args[2]))
"""
OURS = """
from kimi_sessions.wire import TurnBegin
async def main(work_dir, count, size):
    session = await Session.find(work_dir, "old")
    for n in range(count):
        await session.wire_file.append_message(TurnBegin(user_input=f"ours {n} " + "x" * size))
        tell(n)
asyncio.run(main(args[0], int(args[1]), int(args[2])))
"""


@pytest.mark.parametrize("size", [20_000, 200_000])
@pytest.mark.parametrize("count", [40, pytest.param(400, marks=full)])
async def test_a_writer_without_our_lock_loses_nothing_and_takes_nothing(
    work_dir: Path, size: int, count: int
) -> None:
    """Beside a program that opens, writes and closes as the real client does, both keep all their records."""
    session = await Session.create(work_dir, "old")
    await write(session, ["first"])
    children = [
        start(FOREIGN, session.path / "wire.jsonl", count, size),
        start(OURS, work_dir, count, size),
    ]
    finish(children)
    texts = await told(session)
    for name in ("foreign", "ours"):
        found = [text for text in texts if text.startswith(f"{name} ")]
        assert [text.split()[1] for text in found] == list(map(str, range(count))), name
        assert {len(text.split()[2]) for text in found} == {size}


@pytest.mark.skipif(
    not os.environ.get("KIMI_CLI_PYTHON"), reason="KIMI_CLI_PYTHON names no Python with kimi-cli"
)
async def test_the_real_client_and_we_append_side_by_side(work_dir: Path, home: Path) -> None:
    """The real client's own log writer and ours, on one log at once: nothing of either is lost."""
    layout = ShareLayout(home / ".kimi")
    session = await Session.create(work_dir, "old", layout=layout)
    await write(session, ["first"])
    script = """
import asyncio, sys
from pathlib import Path
from kimi_cli.wire.file import WireFile
from kimi_cli.wire.types import TurnBegin
async def main(path):
    log = WireFile(path=Path(path))
    for n in range(50):
        await log.append_message(TurnBegin(user_input=f"real {n} " + "z" * 20_000))
asyncio.run(main(sys.argv[1]))
"""
    real = subprocess.Popen(  # noqa: ASYNC220 - talked to line by line, nothing else runs here
        [os.environ["KIMI_CLI_PYTHON"], "-c", script, str(session.path / "wire.jsonl")],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    for n in range(50):
        await write(session, [f"ours {n} " + "x" * 20_000])
        await asyncio.sleep(0.01)
    _, errors = await asyncio.to_thread(real.communicate)
    assert real.returncode == 0, errors.decode(errors="replace")
    texts = await told(session)
    for name in ("real", "ours"):
        assert [t.split()[1] for t in texts if t.startswith(f"{name} ")] == list(map(str, range(50)))


@pytest.mark.skipif(
    not os.environ.get("KIMI_CLI_PYTHON"), reason="KIMI_CLI_PYTHON names no Python with kimi-cli"
)
async def test_the_real_client_and_we_change_state_in_turn(work_dir: Path, home: Path) -> None:
    """The real client replaces state.json by its own rules between our saves: each keeps the other's field."""
    layout = ShareLayout(home / ".kimi")
    session = await Session.create(work_dir, "old", layout=layout)
    script = """
import sys
from pathlib import Path
from kimi_cli.session_state import load_session_state, save_session_state
folder = Path(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    state = load_session_state(folder)
    state.plan_slug = line.strip()
    save_session_state(state, folder)
    print("saved", flush=True)
"""
    real = subprocess.Popen(  # noqa: ASYNC220 - talked to line by line, nothing else runs here
        [os.environ["KIMI_CLI_PYTHON"], "-c", script, str(session.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert real.stdin is not None
    assert real.stdout is not None
    assert real.stdout.readline() == "ready\n"
    for n in range(50):
        real.stdin.write(f"plan-{n}\n")
        real.stdin.flush()
        assert real.stdout.readline() == "saved\n"
        session.state.additional_dirs = [*session.state.additional_dirs, f"/{n}"]
        session.save_state()
        assert session.state.plan_slug == f"plan-{n}"
    real.stdin.close()
    real.wait()
    real.stdout.close()
    found = await Session.find(work_dir, "old", layout=layout)
    assert found is not None
    assert (found.state.plan_slug, len(found.state.additional_dirs)) == ("plan-49", 50)


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_one_session_opened_twice_in_one_program(work_dir: Path, durability: str) -> None:
    """Two objects, each with 64 tasks at once: every record once, whole, one header."""
    await Session.create(work_dir, "old")
    first = await Session.find(work_dir, "old")
    second = await Session.find(work_dir, "old")
    assert first is not None
    assert second is not None
    for each in (first, second):
        each.durability = "disk" if durability == "disk" else "os"
    await asyncio.gather(
        *(write(each, [f"{name} {n}"]) for n in range(64) for name, each in (("a", first), ("b", second)))
    )
    texts = await told(first)
    assert sorted(texts) == sorted(f"{name} {n}" for n in range(64) for name in "ab")
    check_lines(first.path / "wire.jsonl", 128, headers=1)


async def test_one_session_in_two_threads_with_a_loop_each(work_dir: Path) -> None:
    """Two threads, two event loops, and one object of each; and one object that both use."""
    await Session.create(work_dir, "old")
    shared = await Session.find(work_dir, "old")
    assert shared is not None
    failures: list[BaseException] = []

    def work(name: str) -> None:
        async def main() -> None:
            own = await Session.find(work_dir, "old")
            assert own is not None
            for n in range(50):
                await write(own, [f"{name} own {n}"])
                await write(shared, [f"{name} shared {n}"])
                if n % 10 == 0:
                    own.state.additional_dirs = [*own.state.additional_dirs, f"/{name}/{n}"]
                    own.save_state()

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - told by the other thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert failures == []
    assert len(await told(shared)) == len(set(await told(shared))) == 200
    await shared.refresh()
    assert len(shared.state.additional_dirs) == 10


async def test_logs_can_be_closed_while_others_append_through_the_same_object(work_dir: Path) -> None:
    """One thread closes an object's descriptors again and again while another appends: nothing goes astray."""
    session = await Session.create(work_dir, "old")
    stop = threading.Event()

    def close_again_and_again() -> None:
        while not stop.is_set():
            session._let_go()
            # A descriptor that is free for the taking: what was closed too early would be written into this.
            fd = os.open(work_dir / "bystander", os.O_RDWR | os.O_CREAT)
            os.close(fd)

    thread = threading.Thread(target=close_again_and_again)
    thread.start()
    try:
        for n in range(400):
            await write(session, [f"{n}"])
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
    assert await told(session) == [f"{n}" for n in range(400)]
    assert (work_dir / "bystander").read_bytes() == b""


async def test_closing_waits_for_the_append_that_another_thread_is_in(work_dir: Path) -> None:
    """Closed at the very moment of the write: the record is where it belongs, and in no other file."""
    session = await Session.create(work_dir, "old")
    await write(session, ["one"])
    closers: list[threading.Thread] = []

    class ClosedMeanwhileFs(RecordingFs):
        def before(self, name: str) -> None:
            if name == "write" and not closers:
                for close in (session.wire_file.close, session._let_go):
                    closers.append(threading.Thread(target=close))
                    closers[-1].start()
                    closers[-1].join(0.1)

    with _fs.using(ClosedMeanwhileFs()):
        await write(session, ["two"])
    for closer in closers:
        await asyncio.to_thread(closer.join)
    await write(session, ["three"])
    assert await told(session) == ["one", "two", "three"]


async def test_a_forked_child_does_not_keep_its_parents_lock(work_dir: Path) -> None:
    """A process forked while the parent holds a session: the hold ends with the parent's, not with the child's."""
    lines = finish(
        [
            start(
                """
async def main(work_dir):
    session = await Session.create(work_dir, "old")
    await write(session, ["one"])
    async with session.hold():
        step = session._folder.step_lock
        step.acquire()
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        step.release()
    other = await Session.find(work_dir, "old")
    async with other.hold():
        await write(other, ["two"])
    tell(*await told(other))
    await other.delete()
    tell("deleted")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
asyncio.run(main(args[0]))
""",
                work_dir,
            )
        ]
    )
    assert lines == [["one two", "deleted"]]


async def test_a_hold_ends_though_a_child_still_has_its_descriptor(work_dir: Path) -> None:
    """As in the moment between a fork and the child's closing of what it inherited."""
    session = await Session.create(work_dir, "old")
    other = await Session.find(work_dir, "old")
    assert other is not None
    async with session.hold():
        keep = [session._folder.hold_lock._fd]
        child = await asyncio.create_subprocess_exec("sleep", "60", pass_fds=keep)
    try:
        async with other.hold():
            pass
    finally:
        child.kill()
        await child.wait()


async def test_a_forked_child_can_write_too(work_dir: Path) -> None:
    """Parent and forked child go on with the same object: every record of both is there."""
    [lines] = finish(
        [
            start(
                """
async def main(session, name):
    for n in range(100):
        await write(session, [f"{name} {n}"])
work_dir = args[0]
session = asyncio.run(Session.create(work_dir, "old"))
asyncio.run(write(session, ["before"]))
pid = os.fork()
asyncio.run(main(session, "parent" if pid else "child"))
if pid == 0:
    os._exit(0)
_, status = os.waitpid(pid, 0)
tell(status, *sorted(text.split()[0] for text in asyncio.run(told(session))))
""",
                work_dir,
            )
        ]
    )
    assert lines == [" ".join(["0", "before", *["child"] * 100, *["parent"] * 100])]


ROOT = """
async def main(work_dir, layout_name):
    layout = ProjectLayout() if layout_name == "project" else ShareLayout()
    session = await Session.create(work_dir, layout=layout)
    await write(session, [session.id])
    found = await Session.find(work_dir, session.id, layout=layout)
    tell(session.id, found.trusted, (await Session.continue_(work_dir, layout=layout)) is not None)
asyncio.run(main(args[0], args[1]))
"""


@pytest.mark.parametrize("layout_name", ["project", "share"])
async def test_many_programs_make_the_store_at_the_same_moment(
    work_dir: Path, home: Path, layout_name: str
) -> None:
    """On an empty home all of them succeed, all their sessions are trusted, and there is one store."""
    layout: Layout = ProjectLayout() if layout_name == "project" else ShareLayout(home / ".kimi")
    lines = finish([start(ROOT, work_dir, layout_name) for _ in range(6)])
    assert all(line.split()[1:] == ["True", "True"] for [line] in lines)
    everyone = await Session.list(work_dir, layout=layout)
    assert {each.id for each in everyone} == {line.split()[0] for [line] in lines}
    assert [each.trusted for each in everyone] == [True] * 6
    if layout_name == "share":
        entries = json.loads((home / ".kimi" / "kimi.json").read_bytes())["work_dirs"]
        assert [entry["path"] for entry in entries] == [str(work_dir)]


CREATE = """
async def main(work_dir, count):
    with _fs.using(UnsyncedFs()):
        for _ in range(count):
            tell((await Session.create(work_dir)).id)
asyncio.run(main(args[0], int(args[1])))
"""


@pytest.mark.parametrize("processes, count", [(4, 25), pytest.param(8, 125, marks=full)])
async def test_many_creates_are_as_many_sessions(work_dir: Path, processes: int, count: int) -> None:
    """Sessions made by several programs at once are all there, and no two are one."""
    lines = finish([start(CREATE, work_dir, count) for _ in range(processes)])
    made = {line for each in lines for line in each}
    assert len(made) == processes * count
    assert {each.id for each in await Session.list(work_dir, include_empty=True)} == made


async def test_of_many_programs_that_want_one_id_one_gets_it(work_dir: Path) -> None:
    """Creating the same id at the same moment succeeds once; the others are told that it exists."""
    code = """
async def main(work_dir):
    for n in range(20):
        try:
            session = await Session.create(work_dir, f"wanted-{n}")
            await write(session, ["mine"])
            tell("got", n)
        except SessionExistsError:
            tell("exists", n)
asyncio.run(main(args[0]))
"""
    lines = [line for each in finish([start(code, work_dir) for _ in range(4)]) for line in each]
    assert sorted(line for line in lines if line.startswith("got")) == sorted(f"got {n}" for n in range(20))
    assert len(lines) == 80
    for each in await Session.list(work_dir):
        assert await told(each) == ["mine"]


class OnceFs(RecordingFs):
    """The real disk on which something else happens once: just before call `at`, in or after the `nth` mkdir."""

    def __init__(self, at: str, nth: int, happens: Callable[[], object]) -> None:
        super().__init__()
        self.at = at
        self.nth = nth
        self.happens: Callable[[], object] | None = happens

    def before(self, name: str) -> None:
        """Let it happen, in a thread of its own, which has the real disk."""
        if name == self.at and self.calls.count("mkdir") == self.nth and self.happens is not None:
            happens, self.happens = self.happens, None
            thread = threading.Thread(target=happens)
            thread.start()
            thread.join()


async def test_a_create_that_comes_second_changes_nothing_of_the_first(work_dir: Path) -> None:
    """Another program makes the same id after we saw that it was free: ours is told, theirs has what they wrote."""
    await Session.create(work_dir, "other")

    def theirs() -> None:
        async def main() -> None:
            await write(await Session.create(work_dir, "wanted"), ["theirs"])

        asyncio.run(main())

    # The store's folders are asked for with mkdir too, and are there: the last one is the session's.
    counting = RecordingFs()
    with _fs.using(counting):
        await Session.create(work_dir, "counted")
    mkdirs = counting.calls.count("mkdir")
    with _fs.using(OnceFs("mkdir", mkdirs, theirs)), pytest.raises(SessionExistsError):
        await Session.create(work_dir, "wanted")
    found = await Session.find(work_dir, "wanted")
    assert found is not None
    assert await told(found) == ["theirs"]


async def test_a_restore_into_the_place_of_a_create_that_just_began_keeps_the_session(work_dir: Path) -> None:
    """A session comes back from the trash between a create's first two steps: the create gives way, it stays whole."""
    session = await Session.create(work_dir, "wanted")
    await write(session, ["precious"])
    await session.trash()
    counting = RecordingFs()
    with _fs.using(counting):
        await Session.create(work_dir, "counted")
    mkdirs = counting.calls.count("mkdir")

    def restore() -> None:
        # The second step of a restore whose first one, looking whether the place is free, came before the create.
        kimi = work_dir / ".kimi"
        (kimi / "trash" / "wanted~1").rename(kimi / "sessions" / "wanted")

    with _fs.using(OnceFs("open", mkdirs, restore)):
        results = await asyncio.gather(Session.create(work_dir, "wanted"), return_exceptions=True)
    found = await Session.find(work_dir, "wanted")
    assert found is not None, results
    assert await told(found) == ["precious"]
    assert isinstance(results[0], SessionExistsError)


async def test_a_log_known_by_its_path_alone_shares_the_sessions_lock(work_dir: Path) -> None:
    """WireFile(path) in one program and the session's own log in another: one lock, every record whole."""
    session = await Session.create(work_dir, "old")
    await write(session, ["first"])
    bare = WireFile(session.path / "wire.jsonl")
    await asyncio.gather(
        *(bare.append_message(TurnBegin(user_input=f"bare {n}")) for n in range(50)),
        *(write(session, [f"own {n}"]) for n in range(50)),
    )
    assert len(set(await told(session))) == 101
    check_lines(session.path / "wire.jsonl", 101, headers=1)
    bare.close()
