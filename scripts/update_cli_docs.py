"""
Run every command that docs/cli.md shows, and write down what it prints.

A fenced block marked `console` holds commands (`$ kimi-sessions …`) and their output. They are run in order, from the
top of the page to its end, in a scratch home with the real program, so what one command changes the next one shows.
What differs from run to run (new ids, the time of day, the scratch folder) is replaced by something fixed.

`python scripts/update_cli_docs.py` rewrites the page; tests/test_docs.py only compares.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kimi_sessions import Layout, Session, ShareLayout
from kimi_sessions.cli import main
from kimi_sessions.layout import work_dir_key
from kimi_sessions.wire import (
    StepBegin,
    TextPart,
    ToolCall,
    ToolResult,
    ToolReturnValue,
    TurnBegin,
    TurnEnd,
    WireMessage,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

#: What stands on the page in place of what no two runs have in common.
HOME = "/home/you"
NOW = "2025-03-15 10:00"
REPORT = "report-20250315T100000Z-1f0c8e2a7b54.json"
NEW_IDS = ("e81c07d5-4f0a-4b6e-9d0c-2a51f7c3b9e4", "f4a29b30-0c75-4d1e-8f66-b7d0e1a3c852")

LOGIN = "2f6c1a54-93be-4d07-8a1e-5c7d20b9f3e6"
HELLO = "9b3d7e08-1c4f-4a62-b5d9-e0f8a6714c2b"
NOTES = "c05a8f91-6e2d-4b3c-97f4-1d8e53a0b6f7"
CLONED = "a71e4c3f-58d0-4e9b-82c6-f39b0d5a1e74"
DAMAGED = "d64b0f2e-7a19-4c85-a3e7-08c9b5f1d236"
_MARCH_12 = 1_741_770_000.0  # 09:00 UTC

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[tuple[str, str]]:
    """Give each command on the page with the output that stands below it."""
    found: list[tuple[str, str]] = []
    for block in _BLOCK.finditer(page):
        for piece in re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]:
            command, _, output = piece.partition("\n")
            found.append((command, output.rstrip("\n")))
    return found


def refreshed(page: str) -> str:
    """Give the page with what its commands print now."""
    with scratch_home() as home:
        shell = _Shell(home)

        def rewrite(block: re.Match[str]) -> str:
            commands = [line for line in block[1].splitlines() if line.startswith("$ ")]
            return "```console\n" + "\n".join(f"{line}\n{shell.run(line)}" for line in commands) + "```"

        return _BLOCK.sub(rewrite, page)


class _Shell:
    """Runs commands in the scratch project, one after the other, in this process."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._sessions = home / "project" / ".kimi" / "sessions"
        self._known = self._ids()
        self._stands_for: dict[str, str] = {}

    def _ids(self) -> set[str]:
        return {entry.name for entry in self._sessions.iterdir()} | {NOTES}

    def _real(self, arg: str) -> str:
        for made, shown in self._stands_for.items():
            arg = arg.replace(shown, made).replace(shown[:8], made[:8])
        return arg

    def run(self, line: str) -> str:
        """Run what stands behind the prompt and give what a pipe would get of it, with its fixed stand-ins."""
        dollar, program, *args = shlex.split(line)
        if (dollar, program) != ("$", "kimi-sessions"):
            sys.exit(f"not a command of this project: {line}")
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = main([re.sub(r"^~", str(self._home), self._real(arg)) for arg in args])
        for made in sorted(self._ids() - self._known):
            self._known.add(made)
            self._stands_for[made] = NEW_IDS[len(self._stands_for)]
        text = output.getvalue()
        for made, shown in self._stands_for.items():
            text = text.replace(made, shown).replace(made[:8], shown[:8])
        text = text.replace(work_dir_key(f"{self._home}/project"), work_dir_key(f"{HOME}/project"))
        text = re.sub(r"report-\w+-\w+\.json", REPORT, text.replace(str(self._home), HOME))
        today = datetime.now(UTC)
        for day in (today, today - timedelta(days=1)):
            text = re.sub(rf"{day:%Y-%m-%d} \d\d:\d\d", NOW, text)
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        return text + (f"(exit code {code})\n" if code else "")


@contextmanager
def scratch_home() -> Iterator[Path]:
    """Give a home with the sessions that the page talks about, and make it this process's for a while."""
    environment, folder, stdin = dict(os.environ), Path.cwd(), sys.stdin
    with (
        tempfile.TemporaryDirectory(prefix="kimi-sessions-docs-") as name,
        Path(os.devnull).open() as nothing,
    ):
        home = Path(name).resolve()
        for variable in [name for name in os.environ if name.startswith(("KIMI_", "XDG_"))]:
            del os.environ[variable]
        os.environ |= {
            "HOME": str(home),
            "KIMI_SESSIONS_HOME": str(home / "ours"),
            "COLUMNS": "80",
            "TZ": "UTC",
            "NO_COLOR": "1",
        }
        time.tzset()
        sys.stdin = nothing
        try:
            asyncio.run(_furnish(home))
            os.chdir(home / "project")
            yield home
        finally:
            os.chdir(folder)
            sys.stdin = stdin
            os.environ.clear()
            os.environ.update(environment)
            time.tzset()


async def _furnish(home: Path) -> None:
    for name in ("project", "cloned", "damaged"):
        (home / name).mkdir()
    await _say(home / "project", HELLO, _MARCH_12, "Say hello in French", "Bonjour !")
    login = await Session.create(home / "project", LOGIN)
    messages: list[WireMessage] = [
        TurnBegin(user_input="Why does the login test fail?"),
        StepBegin(n=1),
        TextPart(text="Let me run it."),
        ToolCall(
            id="call-1",
            function=ToolCall.FunctionBody(
                name="Shell", arguments='{"command": "pytest -q tests/test_login.py"}'
            ),
        ),
        ToolResult(
            tool_call_id="call-1",
            return_value=ToolReturnValue(
                is_error=True, output="E   assert 401 == 200\n1 failed in 0.31s\n", message="", display=[]
            ),
        ),
        StepBegin(n=2),
        TextPart(text="The token has expired: the test uses a date in the past."),
        TurnEnd(),
        TurnBegin(user_input="Then use tomorrow's date."),
        StepBegin(n=1),
        TextPart(text="Done. The test passes now."),
        TurnEnd(),
    ]
    for at, message in enumerate(messages):
        await login.wire_file.append_message(message, timestamp=_MARCH_12 + 3600 + 5 * at)
    for role, text in (
        ("user", "Why does the login test fail?"),
        ("assistant", "The token has expired: the test uses a date in the past."),
        ("user", "Then use tomorrow's date."),
        ("assistant", "Done. The test passes now."),
    ):
        await login.context.append({"role": role, "content": text})
    await login.close()
    _date(login, _MARCH_12 + 3600)

    await _say(
        home / "project",
        NOTES,
        _MARCH_12 - 86_400,
        "Sketch the release notes",
        "# 1.4 ...",
        layout=ShareLayout(),
    )

    await _say(home / "cloned", CLONED, _MARCH_12, "Clean the build folder", "It is clean.")
    cloned = await Session.open(home / "cloned", CLONED)
    cloned.state.approval.auto_approve_actions = {"run shell command"}
    cloned.save_state()
    (cloned.path / "seal.json").unlink()

    damaged = await _say(home / "damaged", DAMAGED, _MARCH_12, "Count to three", "One, two, three.")
    with (damaged.path / "wire.jsonl").open("ab") as log:
        log.write(b'{"timestamp": 1741770020.0, "message": {"type": "Turn')


async def _say(
    work_dir: Path, session_id: str, at: float, *said: str, layout: Layout | None = None
) -> Session:
    prompt, answer = said
    session = await Session.create(work_dir, session_id, layout=layout)
    messages: list[WireMessage] = [TurnBegin(user_input=prompt), TextPart(text=answer), TurnEnd()]
    for index, message in enumerate(messages):
        await session.wire_file.append_message(message, timestamp=at + 5 * index)
    await session.context.append(
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    )
    await session.close()
    _date(session, at)
    return session


def _date(session: Session, at: float) -> None:
    """Give a session the time of its making that its page tells."""
    path = session.path / "session.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"created_at": at}))


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text("utf-8")), "utf-8")
