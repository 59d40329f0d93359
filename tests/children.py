"""
Programs that tests start: killed, many at a time, without rights, or without the library's locks.

A child is Python text that runs with what every such program needs imported; `args` are its `sys.argv[1:]`. Warnings
are errors there too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["finish", "run", "start"]

PROJECT = Path(__file__).parent.parent
PRELUDE = """
import asyncio, os, signal, sys, time
from pathlib import Path
from kimi_sessions import *
from kimi_sessions import _fs
from tests.seam import UnsyncedFs
from tests.stores import said, say, told, write
args = sys.argv[1:]
def tell(*values):
    os.write(1, (" ".join(map(str, values)) + "\\n").encode("utf-8", "replace"))
"""


def start(code: str, *args: object, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a child; its stdout and stderr are pipes."""
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PRELUDE + code, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})},
    )


def finish(children: Iterable[subprocess.Popen[bytes]], timeout_s: float = 100.0) -> list[list[str]]:
    """Wait for children that must end well, and give each one's lines."""
    lines = []
    for child in children:
        try:
            out, errors = child.communicate(timeout=timeout_s)
        finally:
            child.kill()
        assert child.returncode == 0, errors.decode("utf-8", "replace")
        lines.append(out.decode("utf-8", "replace").splitlines())
    return lines


def run(code: str, *args: object, env: dict[str, str] | None = None, timeout_s: float = 60.0) -> list[str]:
    """Run one child that must end well, and give its lines."""
    return finish([start(code, *args, env=env)], timeout_s)[0]
