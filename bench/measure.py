"""
Measures one piece of work inside the process that does it: wall time, CPU time, and how far memory grew.

Standard library only, so that every side of a comparison, whatever its environment, is measured by the same lines.
A worker is a program of cases; ``main`` runs one of them and prints what it measured as one line of JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

_STATUS = Path("/proc/self/status")
Case = Callable[[dict[str, Any]], Any]


def _status_mb(name: str) -> float | None:
    try:
        for line in _STATUS.read_text("ascii").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1000
    except OSError:
        return None
    return None


def _peak_mb() -> float:
    """Return the most memory this process has held. VmHWM, since ru_maxrss may tell of the parent."""
    peak = _status_mb("VmHWM")
    if peak is not None:
        return peak
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class Meter:
    """
    ``with Meter() as meter`` measures the block; ``meter.result`` then holds seconds, CPU seconds and megabytes.

    ``peak_mb`` is the growth of memory above what the process held when the block began (imports and warm-up).
    ``count`` is how many of what was done, where the time of one is asked for.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.result: dict[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            # Linux: forget the peak of the imports.
            Path("/proc/self/clear_refs").write_text("5", "ascii")
        except OSError:
            pass
        self._base = _status_mb("VmRSS") or _peak_mb()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        self.result = {
            "wall_s": wall / self.count,
            "cpu_s": cpu / self.count,
            "peak_mb": max(_peak_mb() - self._base, 0.0),
            "count": self.count,
        }


def main(cases: dict[str, Case]) -> None:
    """Run the case named by the first argument with the parameters (JSON) of the second; print its result."""
    name, given = sys.argv[1], json.loads(sys.argv[2])
    result = cases[name](given)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    print(json.dumps(result))
