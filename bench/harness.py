"""
Runs cases in processes of their own, in turn, and makes medians, spreads, ratios and slopes of what they say.

Sides are measured A B A B …, so that what else the machine does falls on all of them. Times on a machine that does
other work mean little by themselves: the ratios of one run are what is claimed.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
PROJECT = BENCH.parent


class CaseFailedError(Exception):
    """A case ended with an error; its text is what it printed last."""


@dataclass(slots=True)
class Side:
    """One side of a comparison: an interpreter, a worker program, and the environment it runs in."""

    name: str
    python: str
    worker: Path
    env: dict[str, str]
    core: int | None = None
    timeout_s: float = 1800.0

    def run(self, case: str, **parameters: Any) -> dict[str, Any]:
        """Run one case in a fresh process. Raises CaseFailedError."""
        command = [*pinned(self.core), self.python, str(self.worker), case, json.dumps(parameters)]
        try:
            done = subprocess.run(
                command, env=self.env, capture_output=True, text=True, timeout=self.timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            message = f"{self.name} {case}: longer than {self.timeout_s:.0f} s"
            raise CaseFailedError(message) from None
        if done.returncode != 0:
            last = (done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1]
            message = f"{self.name} {case}: {last}"
            raise CaseFailedError(message)
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return result


@dataclass(slots=True)
class Figure:
    """What several runs of one case gave, in seconds for one unit of work, and the largest memory."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, result: dict[str, Any]) -> None:
        """Take one run's result."""
        self.wall_s.append(result["wall_s"])
        self.cpu_s.append(result["cpu_s"])
        self.peak_mb = max(self.peak_mb, result["peak_mb"])
        self.notes = {k: v for k, v in result.items() if k not in ("wall_s", "cpu_s", "peak_mb")}

    @property
    def median_s(self) -> float:
        """Median seconds of wall time."""
        return statistics.median(self.wall_s)

    @property
    def min_s(self) -> float:
        """Least seconds of wall time: what the work takes where nothing else gets in its way."""
        return min(self.wall_s)

    @property
    def median_cpu_s(self) -> float:
        """Median seconds of CPU time."""
        return statistics.median(self.cpu_s)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "median_s": self.median_s,
            "min_s": self.min_s,
            "max_s": max(self.wall_s),
            "median_cpu_s": self.median_cpu_s,
            "peak_mb": round(self.peak_mb, 1),
            "runs": len(self.wall_s),
            "notes": self.notes,
        }


def alternate(runs: int, *cases: Callable[[], dict[str, Any]]) -> list[Figure]:
    """Run cases in turn, A B A B, so many times each."""
    figures = [Figure() for _ in cases]
    for _ in range(runs):
        for figure, case in zip(figures, cases, strict=True):
            figure.add(case())
    return figures


def pinned(core: int | None) -> list[str]:
    """Return what to put before a command to keep it on one core, nothing where that can't be done."""
    if core is None or shutil.which("taskset") is None:
        return []
    return ["taskset", "-c", str(core)]


def last_core() -> int | None:
    """Return the number of a core to pin to, None where that can't be done."""
    if not hasattr(os, "sched_getaffinity") or shutil.which("taskset") is None:
        return None
    return max(os.sched_getaffinity(0))


def command_cpu(command: Sequence[str], env: dict[str, str], core: int | None) -> dict[str, Any]:
    """Run a command line and return the wall and CPU seconds it took, children included. Raises CaseFailedError."""
    begun = time.perf_counter()
    # posix_spawn and wait4 give this child's own figures; subprocess would add up all children's.
    with open(os.devnull, "wb") as sink:  # noqa: PTH123 - a device
        actions = [(os.POSIX_SPAWN_DUP2, sink.fileno(), 1), (os.POSIX_SPAWN_DUP2, sink.fileno(), 2)]
        full = [*pinned(core), *command]
        pid = os.posix_spawnp(full[0], full, env, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - begun
    if status != 0:
        message = f"{' '.join(command)}: ended with status {status}"
        raise CaseFailedError(message)
    unit = 1e6 if sys.platform == "darwin" else 1e3
    cpu = usage.ru_utime + usage.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "peak_mb": usage.ru_maxrss / unit}


def slope(sizes: Iterable[float], seconds: Iterable[float]) -> float:
    """
    Return how time grows with size: 0 not at all, 1 in proportion, 2 with its square.

    The slope of the line through the logarithms.
    """
    xs = [math.log(size) for size in sizes]
    ys = [math.log(max(second, 1e-9)) for second in seconds]
    return statistics.linear_regression(xs, ys).slope


def machine() -> dict[str, Any]:
    """Return what the figures were made on."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        load = round(os.getloadavg()[0], 1)
    except OSError:
        load = None
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu,
        "cores": cores,
        "load_at_start": load,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of an interpreter and of packages in its environment."""
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "print(json.dumps({'python': platform.python_version()} | {p: m.version(p) for p in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def clean_env(home: Path, **more: str) -> dict[str, str]:
    """Return an environment that leads every program into a home of this run, and nothing of the caller's."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL", "TMPDIR") if key in os.environ}
    return kept | {
        "HOME": str(home),
        "KIMI_SESSIONS_HOME": str(home / "kimi-sessions"),
        "PYTHONHASHSEED": "0",
        "KIMI_DISABLE_TELEMETRY": "1",
        "KIMI_CLI_NO_AUTO_UPDATE": "1",
        **more,
    }


def say(text: str) -> None:
    """Tell the person who waits what is being done."""
    print(text, file=sys.stderr, flush=True)


def seconds_text(value: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            shown = value / size
            return f"{shown:.3g} {unit}" if shown < 100 else f"{shown:.0f} {unit}"
    return f"{value / 1e-9:.0f} ns"


def ratio_text(value: float) -> str:
    """Return a ratio as people write it."""
    return f"{value:.1f}×" if value < 20 else f"{value:,.0f}×"
