"""
What start-up may not load: modules that cost more than the commands that would load them.

Seconds depend on the machine, so no test measures them; names do not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Make

# The libraries of the command line, of typed records, of the catalog, and what drags much along.
SLOW = {
    "asyncio",
    "click",
    "filelock",
    "importlib.metadata",
    "pydantic",
    "rich",
    "sqlite3",
    "subprocess",
    "typer",
}
#: `--version` gets by with nothing at all.
VERSION = SLOW | {"dataclasses", "inspect", "json", "logging", "msgspec", "orjson", "pathlib", "typing"}
LIST = SLOW | {
    "aiofiles",
    "difflib",
    "kimi_sessions.state",
    "kimi_sessions.wire.messages",
    "kimi_sessions.context.records",
}

PROBE = """
import sys
from kimi_sessions.cli import main
code = main(sys.argv[1:])
sys.stderr.write("\\n".join(sorted(sys.modules)))
sys.exit(code)
"""


def loaded_by(work_dir: Path, *args: str) -> set[str]:
    """Run the program in a fresh interpreter and give the modules that were loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{PROBE}", *args],
        cwd=work_dir,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines())


def test_version_loads_next_to_nothing(work_dir: Path) -> None:
    """It costs little more than the interpreter."""
    loaded = loaded_by(work_dir, "--version")
    assert loaded & VERSION == set()
    assert {name for name in loaded if name.startswith("kimi_sessions")} == {
        "kimi_sessions",
        "kimi_sessions._lazy",
        "kimi_sessions.cli",
        "kimi_sessions.cli._version",
    }


@pytest.mark.parametrize("args", [["list"], ["list", "--json"], ["ls", "--archived", "--limit", "5"], []])
def test_list_loads_no_parser_no_event_loop_and_no_models(
    work_dir: Path, make: Make, args: list[str]
) -> None:
    """It needs the store, and nothing that takes longer to load than the list to make."""
    make("Hello", "there")
    loaded = loaded_by(work_dir, *args)
    assert loaded & LIST == set()
    assert not any(name.startswith("kimi_sessions.catalog") for name in loaded)


def test_completion_of_ids_loads_no_parser_either(
    work_dir: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person waits for it with a finger on the key."""
    make("Hello")
    monkeypatch.setenv("_KIMI_SESSIONS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "kimi-sessions\nshow\n")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert loaded_by(work_dir) & LIST == set()
