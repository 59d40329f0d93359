"""
One program of the torture: works on shared sessions over a disk that fails, and says what was acknowledged.

    python -m tests.torture.worker WORK_DIR LAYOUT SEED OPERATIONS RATE DIE_AT SYNC

Each line on stdout is one event, written after the library's call returned:

    <what> <session> <record> <failures injected so far>

`what` is wire, context, tag, made, deleted (acknowledged), refused (the library said no), or op (anything else that
worked). Whatever is not an error of the library's own ends the program with a traceback, which fails the torture.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kimi_sessions import (
    CheckpointNotFoundError,
    Layout,
    ProjectLayout,
    Session,
    SessionsError,
    ShareLayout,
    WireFile,
    _fs,
)
from kimi_sessions.wire import TurnBegin

BREAKABLE = frozenset(
    [
        "open",
        "read",
        "pread",
        "write",
        "stat",
        "fstat",
        "ftruncate",
        "fsync",
        "fdatasync",
        "rename",
        "replace",
        "link",
        "unlink",
        "mkdir",
        "scandir",
    ]
)
CODES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EMFILE, errno.EROFS)


class TortureFs:
    """The real disk, except that now and then a call fails, a write is short, or the program dies within a call."""

    def __init__(self, rng: random.Random, rate: float, die_at: int, *, sync: bool) -> None:
        self.rng = rng
        self.rate = rate
        self.die_at = die_at
        self.sync = sync
        self.calls = 0
        self.injected = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(_fs.OsFileSystem, name)
        if name in ("fsync", "fdatasync") and not self.sync:
            real = os.fstat

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.die_at:
                if name == "write" and len(args[1]) > 1:
                    real(args[0], args[1][: self.rng.randrange(1, len(args[1]))])
                os.kill(os.getpid(), signal.SIGKILL)
            if self.rate and name in BREAKABLE and self.rng.random() < self.rate:
                self.injected += 1
                if name == "write" and self.rng.random() < 0.7 and len(args[1]) > 1:
                    return real(args[0], args[1][: self.rng.randrange(1, len(args[1]))])
                code = self.rng.choice(CODES)
                raise OSError(code, os.strerror(code), "injected")
            return real(*args, **kwargs)

        self.__dict__[name] = call
        return call


class Worker:
    """What one program does: a random step after the other."""

    def __init__(self, work_dir: str, layout: Layout, name: str, rng: random.Random, fs: TortureFs) -> None:
        self.work_dir = work_dir
        self.layout = layout
        self.name = name
        self.rng = rng
        self.fs = fs
        self.count = 0
        self.sessions: dict[str, Session] = {}

    def tell(self, what: str, session: str = "-", record: str = "-") -> None:
        """Say what was acknowledged."""
        os.write(1, f"{what} {session} {record} {self.fs.injected}\n".encode())

    def text(self) -> str:
        """Give a record a text that no other has, of a random length."""
        self.count += 1
        size = self.rng.choice((0, 10, 300, 5000, 70_000 if self.rng.random() < 0.1 else 100))
        return f"{self.name}.{self.count} " + "x" * size

    async def session(self) -> Session:
        """Give one of the shared sessions, often an object that is in use for long."""
        session_id = f"s{self.rng.randrange(4)}"
        if session_id not in self.sessions or self.rng.random() < 0.1:
            self.sessions.pop(session_id, None)
            self.sessions[session_id] = await Session.open(self.work_dir, session_id, layout=self.layout)
        return self.sessions[session_id]

    async def step(self) -> None:
        """Do one thing."""
        names = list(STEPS)
        [name] = self.rng.choices(names, weights=[STEPS[name] for name in names])
        await getattr(self, name)()

    async def wire(self) -> None:
        """Append a wire record."""
        session, text = await self.session(), self.text()
        await session.wire_file.append_message(TurnBegin(user_input=text))
        self.tell("wire", session.id, text.split()[0])

    async def wire_many(self) -> None:
        """Append several in one write."""
        session, texts = await self.session(), [self.text() for _ in range(3)]
        await session.wire_file.append_many([TurnBegin(user_input=text) for text in texts])
        for text in texts:
            self.tell("wire", session.id, text.split()[0])

    async def wire_at_once(self) -> None:
        """Append from many tasks at the same time."""
        session, texts = await self.session(), [self.text() for _ in range(8)]
        results = await asyncio.gather(
            *(session.wire_file.append_message(TurnBegin(user_input=text)) for text in texts),
            return_exceptions=True,
        )
        for text, result in zip(texts, results, strict=True):
            if result is None:
                self.tell("wire", session.id, text.split()[0])
            elif not isinstance(result, SessionsError):
                raise result

    async def wire_by_path(self) -> None:
        """Append through a log that is known by its path alone."""
        session, text = await self.session(), self.text()
        log = WireFile(session.path / "wire.jsonl")
        try:
            await log.append_message(TurnBegin(user_input=text))
        finally:
            log.close()
        self.tell("wire", session.id, text.split()[0])

    async def context(self) -> None:
        """Append a message."""
        session, text = await self.session(), self.text()
        await session.context.append({"role": "user", "content": text})
        self.tell("context", session.id, text.split()[0])

    async def rewrite(self) -> None:
        """Clear, revert, or put a system prompt in front."""
        session = await self.session()
        which = self.rng.randrange(3)
        if which == 0:
            await session.context.clear()
        elif which == 1:
            mark = await session.context.checkpoint()
            try:
                await session.context.revert_to(mark)
            except CheckpointNotFoundError:  # another program was faster
                return
        else:
            await session.context.set_system_prompt(self.text())
        self.tell("op")

    async def state(self) -> None:
        """Save the state, name it, archive it."""
        session = await self.session()
        session.state.plan_slug = self.text()[:40]
        session.save_state()
        await session.rename(self.text()[:30])
        await (session.archive() if self.rng.random() < 0.5 else session.unarchive())
        self.tell("op")

    async def tag(self) -> None:
        """Add a tag that no other has."""
        session, text = await self.session(), self.text().split()[0]
        await session.tag(text)
        self.tell("tag", session.id, text)

    async def own(self) -> None:
        """Make a session, fill it, fork it, and let one of them go."""
        made = await Session.create(self.work_dir, f"own-{self.text().split()[0]}", layout=self.layout)
        self.tell("made", made.id)
        text = self.text()
        await made.wire_file.append_message(TurnBegin(user_input=text))
        self.tell("wire", made.id, text.split()[0])
        fork = await made.fork(0)
        await fork.delete()
        if self.rng.random() < 0.5:
            await made.trash()
            made = await Session.restore(self.work_dir, made.id, layout=self.layout)
        if self.rng.random() < 0.7:
            self.tell("deleted", made.id)  # before it is tried: from here on nothing is promised of it
            await made.delete()

    async def hold(self) -> None:
        """Own a session for a moment."""
        session = await self.session()
        async with session.hold(self.name):
            text = self.text()
            await session.context.append({"role": "user", "content": text})
            self.tell("context", session.id, text.split()[0])
            await asyncio.sleep(0.002)

    async def trash_and_restore(self) -> None:
        """Put a shared session into the trash and take it out again, under everybody's hands."""
        session = await self.session()
        await session.trash()
        await asyncio.sleep(0.002)
        await Session.restore(self.work_dir, session.id, layout=self.layout)
        self.tell("op")

    async def look(self) -> None:
        """List, continue, and read."""
        for each in await Session.list(self.work_dir, layout=self.layout, include_empty=True):
            await each.turns()
        await Session.continue_(self.work_dir, layout=self.layout, allow_untrusted=True)
        self.tell("op")


STEPS = {
    "wire": 40,
    "wire_many": 5,
    "wire_at_once": 5,
    "wire_by_path": 4,
    "context": 30,
    "rewrite": 3,
    "state": 4,
    "tag": 5,
    "own": 3,
    "hold": 2,
    "trash_and_restore": 1,
    "look": 1,
}


async def work(arguments: list[str]) -> None:
    """Run the steps."""
    work_dir, layout_name, seed, operations, rate, die_at, sync = arguments
    layout: Layout = ProjectLayout() if layout_name == "project" else ShareLayout(Path(layout_name))
    rng = random.Random(seed)
    fs = TortureFs(random.Random(seed + "/disk"), float(rate), int(die_at), sync=sync == "1")
    worker = Worker(work_dir, layout, seed, rng, fs)
    with _fs.using(fs):
        for _ in range(int(operations)):
            try:
                await worker.step()
            except SessionsError as error:
                worker.tell("refused", type(error).__name__)
            except OSError as error:
                # Reading a log that is there and can't be read is an OSError, by the library's own word.
                if error.filename != "injected" and "injected" not in str(error.__cause__):
                    raise
                worker.tell("refused", "read")
    worker.tell("end")


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1:]))
