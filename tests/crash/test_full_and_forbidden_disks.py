"""Disks that take only a part of a write, are full, belong to somebody else, are read-only, or know no locks."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.children import run
from tests.seam import RecordingFs
from tests.stores import said, say, snapshot, strays, told, write

from kimi_sessions import LocksUnavailableError, Session, SessionBusyError, WriteError
from kimi_sessions._fs import using
from kimi_sessions._locking import StepLock
from kimi_sessions.wire import TurnBegin


class ShortWritesFs(RecordingFs):
    """A disk that takes at most so many bytes of one write; `after` runs when it has taken them."""

    def __init__(self, limit: int, after: Any = None) -> None:
        super().__init__()
        self.limit = limit
        self.after = after

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name != "write":
            return real

        def write_some(fd: int, data: bytes) -> int:
            written: int = real(fd, bytes(data)[: self.limit])
            if self.after is not None:
                self.after()
            return written

        self.__dict__[name] = write_some
        return write_some


class NoLocksFs(RecordingFs):
    """A file system whose locks answer with an error."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def before(self, name: str) -> None:
        """Refuse a lock."""
        if name == "flock":
            raise OSError(self.code, os.strerror(self.code))


async def settled(work_dir: Path) -> Session:
    """Make a session of two records and two messages, as another program finds it."""
    session = await Session.create(work_dir, "old")
    await write(session, ["one", "two"])
    await say(session, ["uno", "due"])
    await session.close()
    found = await Session.find(work_dir, "old")
    assert found is not None
    return found


async def test_a_short_write_leaves_nothing_behind(work_dir: Path) -> None:
    """Whatever part of a record fits on the disk is taken away again, and the append says that it failed."""
    session = await settled(work_dir)
    wire, context = session.path / "wire.jsonl", session.path / "context.jsonl"
    before = wire.read_bytes(), context.read_bytes()
    for limit in range(1, 90):
        with using(ShortWritesFs(limit)), pytest.raises(WriteError) as caught:
            await write(session, ["three"])
        assert caught.value.path == str(wire)
        assert f"the disk is full or a limit was reached: only {limit} of " in str(caught.value)
        with using(ShortWritesFs(limit % 30 + 1)), pytest.raises(WriteError):
            await say(session, ["tre"])
        assert (wire.read_bytes(), context.read_bytes()) == before, limit
    await write(session, ["three"])
    assert await told(session) == ["one", "two", "three"]


async def test_a_short_write_beside_another_writer_cuts_nothing_of_theirs(work_dir: Path) -> None:
    """If the log grew meanwhile nothing is cut: the torn part is closed, and the other's record is read."""
    session = await settled(work_dir)
    wire = session.path / "wire.jsonl"
    theirs = wire.read_bytes().splitlines(keepends=True)[1].replace(b'"one"', b'"theirs"')
    for limit in (1, 5, 40, 80):

        def append_theirs() -> None:
            with wire.open("ab") as other:
                other.write(theirs)

        fs = ShortWritesFs(limit, after=append_theirs)
        with using(fs), pytest.raises(WriteError):
            await write(session, ["ours"])
        texts = await told(session)
        assert "ours" not in texts
        await write(session, ["after"])
        assert (await told(session))[-1] == "after"
    assert (await told(session)).count(
        "theirs"
    ) == 8  # each short write was followed by one more, the closing


async def test_documents_are_written_whole_by_a_disk_that_takes_a_few_bytes_at_a_time(work_dir: Path) -> None:
    """A document is no log: what was not taken is written again, until it is whole."""
    session = await settled(work_dir)
    with using(ShortWritesFs(3)):
        await session.rename("A name é")
        await session.tag("tag")
        fork = await session.fork()
    found = await Session.find(work_dir, "old")
    assert found is not None
    assert (found.title, found.tags) == ("A name é", ("tag",))
    assert await told(fork) == ["one", "two"]


FILL = """
async def main(work_dir):
    session = await Session.find(work_dir, "old")
    n = 0
    while True:
        try:
            await session.wire_file.append_message(TurnBegin(user_input=f"{n} " + "x" * 3000))
        except WriteError as error:
            tell("full", n, error.errno, error.path)
            break
        n += 1
    for step in (session.save_state, lambda: session.rename("A title that was not there"), session.fork,
                 lambda: session.context.append({"role": "user", "content": "y" * 5000}),
                 lambda: Session.create(work_dir, "new")):
        try:
            session.state.plan_slug = "z" * 5000
            done = step()
            if done is not None:
                await done
            tell("done")
        except WriteError as error:
            tell("told", error.errno)
from kimi_sessions.wire import TurnBegin
asyncio.run(main(args[0]))
"""


async def check_full(work_dir: Path, lines: list[str]) -> None:
    """What was acknowledged before the disk was full is there, whole; nothing half made lies about."""
    count = int(lines[0].split()[1])
    assert lines[0].startswith("full")
    assert count > 0
    session = await Session.find(work_dir, "old")
    assert session is not None
    texts = [text.split()[0] for text in await told(session)]
    assert texts == ["one", "two", *map(str, range(count))]
    assert (await said(session))[:2] == ["uno", "due"]
    assert strays(work_dir) == []
    assert await Session.find(work_dir, "new") is None or "done" in lines
    damage = [finding async for finding in findings(session)]
    assert damage == []


async def findings(session: Session) -> Any:
    """Give the damage found while reading the wire log."""
    found: list[Any] = []
    async for _ in session.wire_file.iter_records(on_finding=found.append):
        pass
    for finding in found:
        yield finding


async def test_a_file_size_limit_takes_nothing_that_was_acknowledged(work_dir: Path) -> None:
    """A log that may not grow: the append that does not fit says so, every one before it is whole."""
    await (await settled(work_dir)).close()
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    lines = run(limit + FILL, work_dir)
    assert int(lines[0].split()[2]) in (errno.EFBIG, errno.ENOSPC)
    await check_full(work_dir, lines)


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """Mount something over a folder for as long as the block runs; skip the test where that is not allowed."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"can't mount: {done.stderr.decode(errors='replace').strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_a_full_disk_takes_nothing_that_was_acknowledged(tmp_path: Path, home: Path) -> None:
    """The same of a file system with no space left, where also temp files, folders and forks don't fit."""
    work_dir = tmp_path / "small"
    with mounted(work_dir, "-t", "tmpfs", "-o", "size=160k", "none"):
        await (await settled(work_dir)).close()
        lines = run(FILL, work_dir)
        assert int(lines[0].split()[2]) == errno.ENOSPC
        assert "told 28" in lines
        await check_full(work_dir, lines)


READ_ONLY = """
async def main(work_dir):
    session = (await Session.list(work_dir))[0]
    tell(session.title, len(session.problems), len(await told(session)), len(await said(session)),
         len(await session.turns()))
    tell((await Session.find(work_dir, "old")).id, (await Session.continue_(work_dir, allow_untrusted=True)).id)
    steps = dict(
        append=lambda: write(session, ["x"]), say=lambda: say(session, ["x"]), rename=lambda: session.rename("x"),
        tag=lambda: session.tag("x"), clear=session.context.clear, fork=session.fork, trash=session.trash,
        delete=session.delete, create=lambda: Session.create(work_dir, "new"), hold=lambda: hold(session))
    for name, step in steps.items():
        try:
            await step()
            tell(name, "done")
        except WriteError as error:
            tell(name, error.errno, bool(error.path), error)
    try:
        session.state.plan_slug = "x"
        session.save_state()
    except WriteError as error:
        tell("save", error.errno, bool(error.path), error)
async def hold(session):
    async with session.hold():
        pass
if len(args) > 1:
    # Once where everything may be done: afterwards nothing needs to be imported that a nobody can't read.
    loud, tell = tell, lambda *_: None
    try:
        asyncio.run(main(args[1]))
    except SessionNotFoundError:
        tell = loud
    os.setgid(65534); os.setuid(65534)
asyncio.run(main(args[0]))
"""


def check_refused(lines: list[str], code: int) -> None:
    """Reading works; each of the eleven writing steps says what the system said, with a path."""
    assert lines[0].split() == ["one", lines[0].split()[1], "2", "2", "2"]
    assert lines[1] == "old old"
    told_of = {line.split()[0]: line.split()[1:3] for line in lines[2:]}
    steps = ("append", "say", "rename", "tag", "clear", "fork", "trash", "delete", "create", "hold", "save")
    assert told_of == {step: [str(code), "True"] for step in steps}, lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_a_read_only_disk_can_be_read_and_says_what_it_is(tmp_path: Path, home: Path) -> None:
    """Sessions on a read-only file system are listed, found and read; every write is refused by name."""
    work_dir = tmp_path / "project"
    work_dir.mkdir()
    await (await settled(work_dir)).close()
    before = snapshot(work_dir)
    with mounted(work_dir, "--bind", "-o", "ro", str(work_dir)):
        check_refused(run(READ_ONLY, work_dir), errno.EROFS)
    assert snapshot(work_dir) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_a_store_of_somebody_else_can_be_read_where_allowed_and_is_never_written(
    tmp_path: Path, home: Path
) -> None:
    """A store opened to reading, but not writing, for others: they read it, and every write is refused by name."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(tempfile.gettempdir()) and folder.stat().st_mode & 0o077 == 0:
            folder.chmod(0o711)
    work_dir = tmp_path / "project"
    work_dir.mkdir()
    await (await settled(work_dir)).close()
    for path in (work_dir, *work_dir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = snapshot(work_dir)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    await (await settled(elsewhere)).close()
    check_refused(run(READ_ONLY, work_dir, elsewhere), errno.EACCES)
    assert snapshot(work_dir) == before


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
async def test_a_disk_without_locks_is_read_and_refuses_writes_by_name(work_dir: Path, code: int) -> None:
    """No locks: everything can be read; a write fails at once with an error of its own, and changes nothing."""
    session = await settled(work_dir)
    before = snapshot(work_dir)
    with using(NoLocksFs(code)):
        [listed] = await Session.list(work_dir)
        assert (await told(listed), await said(listed)) == (["one", "two"], ["uno", "due"])
        for step in (
            lambda: write(session, ["x"]),
            lambda: say(session, ["x"]),
            session.context.checkpoint,
            session.context.clear,
            lambda: session.rename("x"),
            lambda: session.tag("x"),
            session.trash,
            session.delete,
        ):
            with pytest.raises(LocksUnavailableError, match="no file locks"):
                await step()
        with pytest.raises(LocksUnavailableError):
            session.save_state()
        with pytest.raises(LocksUnavailableError):
            async with session.hold():
                pass
    assert snapshot(work_dir) == before


async def test_a_lock_that_never_becomes_free_is_waited_for_in_bounded_time(work_dir: Path) -> None:
    """Somebody keeps the lock of short steps for ever: the wait ends with an error that says who is in the way."""
    session = await settled(work_dir)
    with session._folder.step_lock:
        other = StepLock(str(session.path / ".lock"), gone=AssertionError)
        with pytest.raises(SessionBusyError) as caught:
            other.acquire(timeout_s=0.05)
        assert caught.value.path == str(session.path / ".lock")
        # Nothing that only reads waits for it.
        [listed] = await Session.list(work_dir)
        assert await told(listed) == ["one", "two"]
        other.close()
    await session.wire_file.append_message(TurnBegin(user_input="three"))
    assert await told(session) == ["one", "two", "three"]


NO_INDEX = """
import resource, signal
from kimi_sessions.catalog import search
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
async def main(work_dir):
    try:
        tell("found", len((await search("word7", work_dir)).hits))
    except WriteError as error:
        tell("told", error.reason.partition(":")[0])
asyncio.run(main(args[0]))
"""


async def test_where_no_index_can_be_written_a_search_says_so(work_dir: Path) -> None:
    """Neither in the catalog nor in a temporary file."""
    session = await settled(work_dir)
    await session.wire_file.append_message(TurnBegin(user_input="word7"))
    assert run(NO_INDEX, work_dir) == ["told the index for one search"]
