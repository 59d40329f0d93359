"""The trap of conftest.py catches a test that forgot its own store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py")


def test_no_default_location_can_be_written() -> None:
    """Making a folder at any default place fails, for root too."""
    places = [
        Path.home() / ".kimi",
        Path(os.environ["KIMI_SHARE_DIR"]),
        Path(os.environ["KIMI_SESSIONS_HOME"]),
        Path(platformdirs.user_state_dir("kimi-sessions")),
        Path(platformdirs.user_cache_dir("kimi-sessions")),
    ]
    for place in places:
        with pytest.raises(NotADirectoryError):
            place.mkdir(parents=True)
        assert not place.exists()


def test_a_child_process_is_in_the_trap_too() -> None:
    """A program that a test starts inherits the locations that cannot be."""
    script = "import pathlib; pathlib.Path('~/.kimi').expanduser().mkdir(parents=True)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NotADirectoryError" in done.stderr


def test_a_home_is_a_place_of_its_own(home: Path, tmp_path: Path) -> None:
    """With `home` asked for, the defaults lie inside the test's own folder and can be written."""
    assert Path.home() == home
    assert home.is_relative_to(tmp_path)
    assert "KIMI_SHARE_DIR" not in os.environ
    for place in (Path(os.environ["KIMI_SESSIONS_HOME"]), Path(platformdirs.user_state_dir("kimi-sessions"))):
        assert place.is_relative_to(home)
        place.mkdir(parents=True)


def test_a_work_dir_comes_with_a_home(work_dir: Path) -> None:
    """A test that asks for a project folder alone has a home as well."""
    assert work_dir.is_dir()
    assert Path.home().is_dir()


def test_a_forgetful_test_fails_loudly(pytester: pytest.Pytester) -> None:
    """A test that writes to its home, or into the current folder, without asking for a place is a failure."""
    pytester.makeconftest(CONFTEST.read_text("utf-8"))
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_writes_to_home():
            (Path.home() / ".kimi").mkdir(parents=True)

        def test_writes_into_the_current_folder():
            Path(".kimi").mkdir()

        def test_after_them_is_unharmed():
            assert not Path(".kimi").exists()
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, passed=2, errors=1)
    result.stdout.fnmatch_lines(["*wrote into the current folder: ?'.kimi'?*", "*NotADirectoryError*"])
