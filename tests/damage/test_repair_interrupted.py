"""A repair that is let down by the disk, or killed, leaves a session that the next repair makes whole."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.seam import UnsyncedFs, failing_calls

from kimi_sessions import Session, SessionsError, _fs
from kimi_sessions.check import check
from kimi_sessions.repair import INTERRUPTED, repair
from kimi_sessions.wire.turns import read_turns

HEADER = b'{"type": "metadata", "protocol_version": "1.10"}\n'
BEGIN = b'{"timestamp": 5.0, "message": {"type": "TurnBegin", "payload": {"user_input": "hi"}}}\n'
END = b'{"timestamp": 6.0, "message": {"type": "TurnEnd", "payload": {}}}\n'
USER = b'{"role":"user","content":"hi"}\n'
CALL = (
    b'{"role":"assistant","content":"","tool_calls":[{"type":"function","id":"a",'
    b'"function":{"name":"Read","arguments":"{}"}}]}\n'
)
ORPHAN = b'{"role":"tool","content":"x","tool_call_id":"zz"}\n'
WIRE = HEADER + b'{"timestamp": 1, "mess' + BEGIN[:-1] + END + b"{torn\n" + BEGIN + b"\0" * 300
CONTEXT = USER + CALL + USER + ORPHAN + b'{"role":'
DAMAGED = {
    "wire.jsonl": WIRE,
    "context.jsonl": CONTEXT,
    "subagents/a1/context.jsonl": CALL,
    "state.json": b'{"version": 1, "custom_title": "Kept", "arch',
    "session.json": b'{"version": 1, "created_at": 5.0, "tags": ["blue"], "pin',
    "metadata.json": b"",
    "uploads/mine.txt": b"mine",
}
HEALTHY = {
    "wire.jsonl": HEADER + BEGIN + END + BEGIN,
    "context.jsonl": USER
    + CALL
    + b'{"role":"tool","content":"%s","tool_call_id":"a"}\n' % INTERRUPTED.encode()
    + USER,
    "state.json": b'{"version": 1, "custom_title": "Kept"}',
    "session.json": b'{"version": 1, "created_at": 5.0, "tags": ["blue"]}',
}
SCENES = {
    "a wire log": ("wire.jsonl",),
    "a context": ("context.jsonl",),
    "documents": ("state.json", "session.json"),
    "things set aside": ("metadata.json", "seal.json", "s.jsonl"),
    "loose modes": ("uploads/mine.txt",),
}
EVERYTHING = (*(name for names in SCENES.values() for name in names), "subagents/a1/context.jsonl")

_R = TypeVar("_R")


def in_line(coroutine: Coroutine[Any, Any, _R]) -> _R:
    """Run a step of the library without an event loop, which would cost more than the step."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as done:
            result: _R = done.value
            return result


@pytest.fixture
def ground() -> Iterator[Path]:
    """Give a folder on a fast disk for many small stores."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(dir=base))
    yield folder
    shutil.rmtree(folder)


def put(path: Path, data: bytes, *, private: bool) -> None:
    """Write a file."""
    for parent in reversed(path.parents[:4]):
        parent.mkdir(exist_ok=True, mode=0o700 if private else 0o755)
    path.write_bytes(data)
    path.chmod(0o600 if private else 0o644)


def damaged(work_dir: Path, names: tuple[str, ...]) -> Path:
    """Make a store with one session in which the named files are damaged; give its folder."""
    shutil.rmtree(work_dir, ignore_errors=True)
    folder = work_dir / ".kimi/sessions/s"
    folder.mkdir(parents=True, mode=0o700)
    for name, data in (HEALTHY | {name: DAMAGED[name] for name in names if name in DAMAGED}).items():
        put(folder / name, data, private=not name.startswith("uploads"))
    if "seal.json" in names:
        (folder / "seal.json").symlink_to("/dev/null")
    if "s.jsonl" in names:
        put(folder.parent / "s.jsonl", USER, private=True)
    return folder


def kept(folder: Path) -> set[bytes]:
    """Give the contents of every file of a session, whatever its name."""
    return {path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def whole_again(work_dir: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Require that a repair now succeeds, that nothing is left to do, and that no byte has gone."""

    async def run() -> None:
        session = await Session.open(work_dir, "s")
        report = await repair(session)
        assert report.after.findings == ()
        assert (await repair(session)).actions == ()
        assert (session.title, session.tags, session.created_at) == ("Kept", ("blue",), 5.0)

    in_line(run())
    turns = [turn.user_text for turn in read_turns(folder / "wire.jsonl")]
    assert turns == ["hi", "hi"]
    assert (folder / "context.jsonl").read_bytes() == HEALTHY["context.jsonl"]
    everything = kept(folder)
    for name in names:
        if name in DAMAGED and not name.startswith("subagents"):
            assert DAMAGED[name] in everything, name
    if "subagents/a1/context.jsonl" in names:
        assert (folder / "subagents/a1/context.jsonl").read_bytes().startswith(CALL)
    if "s.jsonl" in names:
        assert (folder / "context_1.jsonl").read_bytes() == USER
    if "wire.jsonl" in names:
        for torn in (b"\n{torn\n", b'\n{"timestamp": 1, "mess\n'):
            assert (folder / "wire.jsonl.torn").read_bytes().count(torn) == 1
    if "context.jsonl" in names:
        assert (folder / "context.jsonl.torn").read_bytes().count(ORPHAN) == 1
    assert all(path.lstat().st_mode & 0o077 == 0 for path in folder.rglob("*") if not path.is_symlink())


@pytest.mark.parametrize("names", SCENES.values(), ids=SCENES.keys())
def test_whichever_call_fails_the_next_repair_makes_it_whole(
    ground: Path, home: Path, names: tuple[str, ...]
) -> None:
    """Call 1, 2, 3 … of a repair fails: the error is one of the library's, no log was torn, and a retry succeeds."""
    work_dir = ground / "project"
    failures = 0
    for fs in failing_calls():
        folder = damaged(work_dir, names)
        try:
            session = in_line(Session.open(work_dir, "s"))
            with _fs.using(fs):
                in_line(repair(session))
        except SessionsError:
            failures += 1
        # At every instant the old or the new log is in place, and no half-written file stays behind.
        assert HEADER in (folder / "wire.jsonl").read_bytes()
        assert USER in (folder / "context.jsonl").read_bytes()
        assert fs.failed == "unlink" or not [path.name for path in folder.rglob("*.tmp")]
        with _fs.using(UnsyncedFs()):
            whole_again(work_dir, folder, names)
    assert failures > 5


def test_a_check_that_is_let_down_says_so_or_says_nothing_wrong(ground: Path, home: Path) -> None:
    """A failing read becomes a finding or an error of the library, never a clean report of what was not read."""
    work_dir = ground / "project"
    damaged(work_dir, EVERYTHING)
    session = in_line(Session.open(work_dir, "s"))
    for fs in failing_calls():
        try:
            with _fs.using(fs):
                assert not in_line(check(session)).clean
        except SessionsError:
            continue


def test_a_check_of_a_healthy_session_that_is_let_down_is_not_clean(ground: Path, home: Path) -> None:
    """Where a read fails, the report is not that of a session in which nothing is wrong."""
    work_dir = ground / "project"
    damaged(work_dir, ())
    session = in_line(Session.open(work_dir, "s"))
    for fs in failing_calls(names=frozenset({"open", "read", "pread", "scandir", "fstat"})):
        try:
            with _fs.using(fs):
                report = in_line(check(session))
        except SessionsError:
            continue
        assert report.clean == (not fs.failed) or report.notes


CHILD = """
import asyncio, sys
from kimi_sessions import Session
from kimi_sessions.repair import repair

async def main():
    session = await Session.open(sys.argv[1], "s")
    print("ready", flush=True)
    sys.stdin.readline()
    await repair(session)

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_repair_is_finished_by_the_next(ground: Path, home: Path, seed: int) -> None:
    """A repair that is killed at some moment holds no lock afterwards, has lost nothing, and is simply run again."""
    work_dir = ground / "project"
    folder = damaged(work_dir, EVERYTHING)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(work_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == b"ready\n"
        child.stdin.write(b"go\n")
        child.stdin.flush()
        time.sleep(random.Random(seed).uniform(0, 0.06))
        child.send_signal(signal.SIGKILL)
    for path in folder.rglob("*.tmp"):
        os.utime(path, (1, 1))
    whole_again(work_dir, folder, EVERYTHING)


class Intruder(UnsyncedFs):
    """A file system in whose calls another program, which knows no locks, gets to append a record to a log."""

    def __init__(self, log: Path, record: bytes, nth: int) -> None:
        self._log = log
        self._record = record
        self._left = nth

    def __getattribute__(self, name: str) -> Any:
        if name in {"write", "fsync", "link", "replace", "utime"}:
            self._left -= 1
            if self._left == 0:
                with self._log.open("ab") as log:
                    log.write(self._record)
        return super().__getattribute__(name)


def test_what_a_stranger_appends_during_a_repair_is_brought_along(ground: Path, home: Path) -> None:
    """At whichever write of a rewrite another program appends, its record is in the repaired log, once, and whole."""
    work_dir = ground / "project"
    record = BEGIN.replace(b"hi", b"stranger")
    for nth in range(1, 40):
        folder = damaged(work_dir, ("wire.jsonl",))
        (folder / "wire.jsonl").write_bytes(HEADER + b"{torn\n" + BEGIN)
        session = in_line(Session.open(work_dir, "s"))
        with _fs.using(Intruder(folder / "wire.jsonl", record, nth)):
            in_line(repair(session))
            turns = [turn.user_text for turn in read_turns(folder / "wire.jsonl")]
        if turns == ["hi"]:
            assert nth > 5, "the repair wrote nothing"
            return
        assert turns == ["hi", "stranger"]
        assert (folder / "wire.jsonl").read_bytes() == HEADER + BEGIN + record
