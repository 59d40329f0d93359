"""`make demo`: what a newcomer sees first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"


def test_the_demo_shows_the_main_job_and_leaves_nothing_behind(tmp_path: Path, home: Path) -> None:
    """Old sessions are migrated, listed by their titles, shown and continued; the temporary folder is empty again."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, DEMO],
        env={**os.environ, "TMPDIR": str(scratch)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("migrate", "list", "show", "continue"):
        assert f"\n$ kimi-sessions {command}" in done.stdout
    for title in (
        "Create hello.txt",
        "Renamed in the web 网页",
        "What is in this picture?",
        "My custom title ✨",
    ):
        assert title in done.stdout
    assert list(scratch.iterdir()) == []
    assert list(home.iterdir()) == []
