"""The front door shows what `__all__` says, in order, and costs little to open."""

from __future__ import annotations
import __future__

import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import kimi_sessions

PROJECT = Path(__file__).parent.parent

# What a program that only keeps sessions should not have to wait for.
SLOW_TO_IMPORT = ("pydantic", "rich", "sqlite3", "typer")

DOORS = ("kimi_sessions", "kimi_sessions.context", "kimi_sessions.wire")


@pytest.mark.parametrize("name", DOORS)
def test_a_door_lists_its_names_in_order(name: str) -> None:
    """`__all__` is sorted (constants, then classes, then functions: the formatter's order), no name twice."""
    door = importlib.import_module(name)

    def place(public: str) -> tuple[bool, bool, str]:
        return not public.isupper(), not public[0].isupper(), public

    assert list(door.__all__) == sorted(set(door.__all__), key=place)


@pytest.mark.parametrize("name", DOORS)
def test_a_door_shows_its_public_names_and_no_others(name: str) -> None:
    """Every listed name can be had, and nothing else is lying about (the rooms behind the door aside)."""
    door = importlib.import_module(name)
    shown = {public for public in dir(door) if not public.startswith("_")}
    rooms = {public for public in shown if isinstance(getattr(door, public), ModuleType)}
    future = {public for public in shown if isinstance(getattr(door, public), __future__._Feature)}
    listed = {public for public in door.__all__ if not public.startswith("_")}
    assert all(getattr(door, public) is not None for public in listed)
    assert shown - rooms - future == listed - rooms


@pytest.mark.parametrize("name", DOORS)
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    """A misspelled name fails as with any module, naming module and attribute."""
    door = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"{name}.*no_such_name"):
        _ = door.no_such_name


def test_the_version_is_the_one_that_was_built() -> None:
    """`__version__` is what pyproject.toml says, without being written down a second time."""
    built = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert kimi_sessions.__version__ == built == importlib.metadata.version("kimi-sessions")


@pytest.mark.parametrize(
    "statement,unwanted",
    [
        ("import kimi_sessions", ("asyncio", *SLOW_TO_IMPORT)),
        ("from kimi_sessions import Session, ShareLayout", SLOW_TO_IMPORT),
        ("import kimi_sessions.session", SLOW_TO_IMPORT),
    ],
)
def test_importing_the_library_is_cheap(statement: str, unwanted: tuple[str, ...]) -> None:
    """Neither the front door nor the session room pulls in what only some callers need."""
    script = f"{statement}\nimport sys\nprint(*(m for m in {unwanted!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_package_is_typed() -> None:
    """Type checkers of others read our annotations: the marker lies beside the front door."""
    assert Path(kimi_sessions.__file__).with_name("py.typed").is_file()


def test_a_system_without_such_locks_is_told_so() -> None:
    """On Windows there is no `fcntl`: using the library says what it needs, not which module it missed."""
    code = "import sys; sys.modules['fcntl'] = None; import kimi_sessions; kimi_sessions.Session"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ImportError: kimi_sessions needs the file locks of Linux or macOS" in done.stderr
