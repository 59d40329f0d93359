"""
What the command line's tests stand on: a way to run it, and sessions to run it on.

`run` calls the program's own entry point in this process, which is fast; `shell` runs the installed command as a
shell would. Both give exit code, stdout and stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from kimi_sessions import Layout, Session
from kimi_sessions.cli import main
from kimi_sessions.wire import TextPart, TurnBegin, TurnEnd

COMMAND = Path(sys.executable).with_name("kimi-sessions")


@dataclass(frozen=True)
class Done:
    """How a run ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)


class Run(Protocol):
    """Run the program with these arguments."""

    def __call__(self, *args: str) -> Done:
        """Run it."""


class Shell(Protocol):
    """Run the installed command with these arguments, as its own process."""

    def __call__(self, *args: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Done:
        """Run it."""


class Make(Protocol):
    """Make a session with these prompts in a work dir; a turn's answer repeats its prompt."""

    def __call__(self, *prompts: str, session_id: str | None = None, layout: Layout | None = None) -> Session:
        """Make it."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], work_dir: Path) -> Run:
    """Give a function that runs the program in this process, in `work_dir` unless told otherwise."""

    def run_(*args: str) -> Done:
        capsys.readouterr()
        told = [] if "-w" in args or "--work-dir" in args else ["-w", str(work_dir)]
        code = main([*told, *args])
        found = capsys.readouterr()
        return Done(code, found.out, found.err)

    return run_


@pytest.fixture
def shell(work_dir: Path) -> Shell:
    """Give a function that runs the installed command with `work_dir` as its current folder."""

    def shell_(*args: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Done:
        done = subprocess.run(
            [COMMAND, *args],
            cwd=work_dir,
            env={**os.environ, **(env or {})},
            input=stdin,
            capture_output=True,
            check=False,
            timeout=60,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return shell_


async def fill(session: Session, prompts: tuple[str, ...]) -> None:
    """Append one turn for each prompt to both logs."""
    for at, prompt in enumerate(prompts):
        wire = session.wire_file
        await wire.append_message(TurnBegin(user_input=prompt), timestamp=1_700_000_000 + 60 * at)
        await wire.append_message(TextPart(text=f"You said: {prompt}"), timestamp=1_700_000_001 + 60 * at)
        await wire.append_message(TurnEnd(), timestamp=1_700_000_002 + 60 * at)
        await session.context.append({"role": "user", "content": prompt})
        await session.context.append({"role": "assistant", "content": f"You said: {prompt}"})


@pytest.fixture
def make(work_dir: Path) -> Make:
    """Give a function that makes a session in `work_dir`."""

    async def make_(prompts: tuple[str, ...], session_id: str | None, layout: Layout | None) -> Session:
        session = await Session.create(work_dir, session_id, layout=layout)
        await fill(session, prompts)
        found = await Session.find(work_dir, session.id, layout=layout)
        assert found is not None
        if prompts:
            await session.close()  # which would discard an empty one
        return found

    def make_now(*prompts: str, session_id: str | None = None, layout: Layout | None = None) -> Session:
        return asyncio.run(make_(prompts, session_id, layout))

    return make_now


@pytest.fixture
def stamp(make: Make) -> Callable[[Session, float], None]:
    """Give a function that makes a session's last record as old as it should be (epoch seconds)."""

    def stamp_(session: Session, at: float) -> None:
        path = session.path / "wire.jsonl"
        lines = path.read_bytes().splitlines()
        record = json.loads(lines[-1])
        record["timestamp"] = at
        lines[-1] = json.dumps(record).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")

    return stamp_
