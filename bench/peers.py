"""
Measures this library beside the real Kimi CLI and openai-agents; writes what it finds to docs/benchmarks.md and .json.

    python bench/peers.py [--small] [--runs N] [--keep] [--dry] [--python PYTHON]

Builds three environments in .bench/, all with one Python (3.12 or later): the two peers from the package index, and
this project, installed from this tree with its bytecode compiled. Both sides are then run in turn, each case in a
process of its own, kept on one core where that can be done: Kimi CLI's thread hops are twice as fast so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data as bench_data
import generate
import harness
import report
from data import Data
from harness import CaseFailedError, Figure, Side, alternate, say

PLACE = harness.PROJECT / ".bench"
PEERS = {"kimi": "kimi-cli", "agents": "openai-agents"}
#: The last version that loads all its commands for ``--help``, which is what a list of ours is held against.
EAGER_KIMI = "1.49.0"
_NEW_ENOUGH = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))"

#: Why a row can stay below what it is to reach, for the page.
REASONS = {
    "fork in the middle of a million records": (
        "the context of a fork is cut by the whole of the wire log, since nothing but the text of its prompts tells "
        "which message belongs to which turn, so twice as much is looked at as the old client reads; and what is "
        "written is synced to the device."
    ),
    "append, awaited one after another": (
        "most of the time is the kernel's: taking and freeing the lock, a look at the lock's and at the log's own "
        "name, and the write itself. The client takes no lock, looks at no name and leaves a torn tail as it is; its "
        "time is that of its thread hops, which differs from machine to machine."
    ),
    "list 10,000, catalog made by it": (
        "what is read is marked for the next list, which takes one more `stat` for each session; writing it down comes "
        "after the answer. Where no catalog can be had that is left out."
    ),
    "list of 10,000 with limit=20, catalog warm": (
        "one `stat` for each of the 10,000 logs is made, since any program may have appended to any of them, and those "
        "alone take half of this. To get further, sessions would have to be believed unchanged without a look."
    ),
}


def find_python() -> str | None:
    """Return a Python of 3.12 or later that runs and can make environments, None if there is none."""
    candidates = ["python3.13", "python3.12", "python3.14", sys.executable, "python3"]
    pyenv = shutil.which("pyenv")
    if pyenv is not None:
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False).stdout.strip()
        if root:
            candidates += sorted(map(str, Path(root, "versions").glob("3.1[2-9]*/bin/python3")), reverse=True)
    candidates += [str(path) for path in Path.home().glob(".local/share/uv/python/*/bin/python3")]
    for candidate in candidates:
        try:
            done = subprocess.run([candidate, "-c", _NEW_ENOUGH], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


def environment(name: str, package: str, python: str, *, renew: bool = False) -> str:
    """Return the interpreter of an environment that holds a package, made now if it is not there."""
    place = PLACE / name
    interpreter = place / "bin" / "python"
    ready = place / "ready"
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    if not ready.exists():
        say(f"making an environment with {package}")
        subprocess.run([python, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([*pip, package], check=True)
        ready.touch()
    elif renew:
        subprocess.run([*pip, "--force-reinstall", "--no-deps", package], check=True)
    return str(interpreter)


class Comparison:
    """One run beside Kimi CLI."""

    def __init__(self, sets: Data, given: argparse.Namespace, ours: str, kimi: str) -> None:
        self.sets = sets
        self.given = given
        self.core = None if given.no_pin else harness.last_core()
        self.home = sets.root / "home"
        self.env = harness.clean_env(self.home)
        # The peer has a home of its own, with its share dir, so that neither finds what the other left.
        self.ours = Side("ours", ours, harness.BENCH / "ours.py", self.env, self.core)
        self.kimi = Side(
            "kimi", kimi, harness.BENCH / "kimi.py", harness.clean_env(sets.root / "kimi-home"), self.core
        )
        self.rows: list[dict[str, Any]] = []
        self.limits: list[dict[str, Any]] = []
        self.skipped: list[str] = []

    def row(
        self,
        name: str,
        ours: Callable[[], dict[str, Any]],
        theirs: Callable[[], dict[str, Any]] | Figure,
        *,
        target: float | None,
        runs: int | None = None,
    ) -> tuple[Figure, Figure] | None:
        """Measure one kind of work on both sides, A B A B; a figure of theirs that is known already is taken."""
        say(f"  {name}")
        runs = runs or self.given.runs
        try:
            if isinstance(theirs, Figure):
                mine, other = alternate(runs, ours)[0], theirs
            else:
                mine, other = alternate(runs, ours, theirs)
        except CaseFailedError as error:
            self.skipped.append(f"{name} ({error})")
            return None
        self.rows.append(
            {
                "name": name,
                "ours": mine.as_dict(),
                "theirs": other.as_dict(),
                "ratio": other.median_s / mine.median_s,
                "cpu_ratio": other.median_cpu_s / mine.median_cpu_s,
                "target": target,
            }
        )
        return mine, other

    def limit(self, name: str, value: float, wanted: float, unit: str, *, least: bool = False) -> None:
        """Note a bound that is no ratio of times."""
        self.limits.append(
            {
                "name": name,
                "value": value,
                "shown": f"{value:.3g} {unit}",
                "wanted": f"{'≥' if least else '≤'} {wanted:g} {unit}",
                "reached": value >= wanted if least else value <= wanted,
            }
        )

    def both(
        self, case: str, **parameters: Any
    ) -> tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]:
        """Return one case of both sides."""
        return (lambda: self.ours.run(case, **parameters)), (lambda: self.kimi.run(case, **parameters))


def many_sessions(run: Comparison) -> None:
    """List and find."""
    count = run.given.sessions
    say(f"a store of {count} sessions")
    root = run.sets.store(count)
    where = str(root)
    run.sets.settle()
    bench_data.catalog_off(run.sets.root / "no-catalog")
    without = Side(
        "ours", run.ours.python, run.ours.worker, harness.clean_env(run.sets.root / "no-catalog"), run.core
    )

    def first() -> dict[str, Any]:
        bench_data.forget_catalog(run.home)
        return run.ours.run("list", root=where, expect=count)

    listed = run.row(
        f"list {count:,}, no catalog to be had",
        lambda: without.run("list", root=where, expect=count),
        lambda: run.kimi.run("list", root=where, expect=count),
        target=15,
    )
    if listed is None:
        return
    mine, theirs = listed
    run.row(f"list {count:,}, catalog made by it", first, theirs, target=15)
    warm = run.row(
        f"list {count:,}, catalog warm",
        lambda: run.ours.run("list", root=where, expect=count),
        theirs,
        target=30,
    )
    run.row(
        f"list of {count:,} with limit=20, catalog warm",
        lambda: run.ours.run("list", root=where, expect=20, limit=20),
        theirs,
        target=100,
    )
    peak = max(mine.peak_mb, warm[0].peak_mb if warm else 0.0)
    run.limit(f"memory of a list of {count:,}", peak, 40, "MB")
    one = next(iter(generate.sessions_path(root, "share").iterdir())).name
    run.row("find, small log", *run.both("find_many", root=where, id=one, count=200), target=3)
    few = str(run.sets.store(100))
    run.row("continue_, small logs", *run.both("continue", root=few, count=200), target=3)


def appends(run: Comparison) -> None:
    """Append."""
    where = str(run.sets.session("append", wire_mb=1))
    count = run.given.appends
    ours = [
        lambda: run.ours.run("append", root=where, count=count * 10),
        lambda: run.ours.run("append_batches", root=where, count=count * 64),
    ]
    measured = run.row(
        "append, awaited one after another",
        ours[0],
        lambda: run.kimi.run("append", root=where, count=count),
        target=20,
    )
    if measured is not None:
        run.row("append, 64 to a call (theirs: one by one)", ours[1], measured[1], target=60)
    synced = alternate(
        2,
        lambda: run.ours.run("append_synced", root=where, tasks=64, count=count * 2),
        lambda: run.ours.run("append_synced", root=where, tasks=1, count=max(count // 4, 20)),
    )
    run.limit(
        '"disk" durability: 64 tasks at once against one alone',
        synced[1].median_s / synced[0].median_s,
        20,
        "×",
        least=True,
    )


def reading(run: Comparison) -> None:
    """Iterate, find a prompt at the end, turns, fork."""
    mb = run.given.wire_mb
    small = str(run.sets.session("wire-small", wire_mb=mb / 10))
    large = str(run.sets.session("wire-large", wire_mb=mb))
    run.row(f"iterate {mb / 10:g} MB, raw records", *run.both("iterate", root=small), target=30)
    run.row(f"iterate {mb / 10:g} MB, typed messages", *run.both("iterate_typed", root=small), target=12)
    peaks = [run.ours.run(case, root=large)["peak_mb"] for case in ("iterate", "iterate_typed")]
    run.limit(f"memory of iterating {mb:g} MB", max(peaks), 30, "MB")
    end = run.sets.session("end", wire_mb=mb, prompt_at_end=True)
    title = "the prompt at the very end"
    run.sets.settle()
    once = min(run.given.runs, 2)

    def cold(case: str, **parameters: Any) -> Callable[[], dict[str, Any]]:
        def first() -> dict[str, Any]:
            bench_data.forget_catalog(run.home)
            return run.ours.run(case, root=str(end), **parameters)

        return first

    found = run.row(
        f"find, first prompt at the end of {mb:g} MB, first time",
        cold("find", title=title),
        lambda: run.kimi.run("find", root=str(end), title=title),
        target=300,
        runs=once,
    )
    if found is not None:
        run.row(
            "find that session again",
            lambda: run.ours.run("find", root=str(end), title=title),
            found[1],
            target=300,
        )
        run.row("list with it, first time", cold("list", expect=1), found[1], target=300)
        run.row(
            "continue_ with it, again",
            lambda: run.ours.run("continue", root=str(end), count=1),
            found[1],
            target=300,
        )
    for name, root in ((f"turns of {mb:g} MB", large), ("turns of a million records", None)):
        where = root or str(run.sets.session("million", records=run.given.records))

        def first(where: str = where) -> dict[str, Any]:
            bench_data.forget_catalog(run.home)
            return run.ours.run("turns", root=where)

        measured = run.row(
            f"{name}, first time", first, lambda where=where: run.kimi.run("turns", root=where), target=10
        )
        if measured is not None:
            run.row(
                f"{name}, again",
                lambda where=where: run.ours.run("turns", root=where),
                measured[1],
                target=None,
            )
    million = str(run.sets.session("million", records=run.given.records))
    turns = run.ours.run("turns", root=million)["count"]
    forked = run.row(
        "fork in the middle of a million records", *run.both("fork", root=million, turns=turns), target=5
    )
    if forked is not None:
        run.limit("memory of that fork", forked[0].peak_mb, 60, "MB")


def contexts(run: Comparison) -> None:
    """Read messages."""
    mb = run.given.context_mb
    where = str(run.sets.session("context", context_mb=mb))
    once = min(run.given.runs, 2)
    measured = run.row(f"all messages of {mb:g} MB", *run.both("messages", root=where), target=15, runs=once)
    if measured is None:
        return
    run.limit(
        "memory of all messages, as a share of theirs",
        measured[0].peak_mb / measured[1].peak_mb * 100,
        33.3,
        "%",
    )
    run.row(
        "all messages, and the text of each looked at",
        lambda: run.ours.run("messages", root=where, look=True),
        measured[1],
        target=None,
        runs=once,
    )
    newest = run.row(
        "the newest 20 messages (theirs: all)",
        lambda: run.ours.run("messages", root=where, limit=20),
        measured[1],
        target=None,
    )
    if newest is not None:
        run.limit("the newest 20 messages", newest[0].median_s * 1000, 5, "ms")


def command_line(run: Comparison) -> None:
    """CPU time of imports and of commands."""
    root = run.sets.store(100)
    ours, kimi = run.ours.python, run.kimi.python
    eager = environment(f"kimi-{EAGER_KIMI}", f"kimi-cli=={EAGER_KIMI}", find_python() or kimi)
    command, other, older = (
        str(Path(python).parent / name)
        for python, name in ((ours, "kimi-sessions"), (kimi, "kimi"), (eager, "kimi"))
    )
    where = [command, "-w", str(root / "project"), "--share-dir", str(root / "share")]
    pairs = {
        "import of the session module": (
            [ours, "-c", "import kimi_sessions.session"],
            [kimi, "-c", "import kimi_cli.session"],
            None,
        ),
        "--version": ([command, "--version"], [other, "--version"], None),
        "--help": ([command, "--help"], [other, "--help"], None),
        f"list of 100 sessions (theirs: --help of {EAGER_KIMI})": (
            [*where, "list"],
            [older, "--help"],
            1 / 0.6,
        ),
        "list of 100 sessions (theirs: --help)": ([*where, "list"], [other, "--help"], None),
    }
    runs = max(run.given.runs * 2, 3)
    for name, (mine, theirs, target) in pairs.items():
        say(f"  {name}")

        def cpu(line: list[str], env: dict[str, str]) -> dict[str, Any]:
            result = harness.command_cpu(line, env, run.core)
            # What is compared here is CPU time: that is what a start costs, whatever else runs.
            return result | {"wall_s": result["cpu_s"], "peak_mb": 0.0}

        a, b = (lambda line=mine: cpu(line, run.ours.env)), (lambda line=theirs: cpu(line, run.kimi.env))
        try:
            a(), b()  # compile what is not compiled yet
        except CaseFailedError as error:
            run.skipped.append(f"{name} ({error})")
            continue
        run.row(f"{name} (CPU)", a, b, target=target, runs=runs)
    bare = alternate(runs, lambda: harness.command_cpu([ours, "-c", "pass"], run.ours.env, run.core))[0]
    by_name = {row["name"]: row for row in run.rows}
    if "--version (CPU)" in by_name:
        version = by_name["--version (CPU)"]["ours"]["median_cpu_s"]
        run.limit("--version against the bare interpreter (CPU)", version / bare.median_cpu_s, 2, "×")
        listed = by_name["list of 100 sessions (theirs: --help) (CPU)"]["ours"]["median_cpu_s"]
        run.limit("list of 100 sessions (CPU)", listed * 1000, 160, "ms")
    typed = f"kimi-sessions --share-dir {root / 'share'} -w {root / 'project'} show "
    complete = run.ours.env | {"_KIMI_SESSIONS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}
    completion = alternate(runs, lambda: harness.command_cpu([command], complete, run.core))[0]
    run.limit("completion of an id (CPU)", completion.median_cpu_s * 1000, 120, "ms")


def orientation(run: Comparison, agents: str) -> list[dict[str, Any]]:
    """Measure openai-agents' message history beside our context log."""
    say("openai-agents, for orientation")
    env = harness.clean_env(run.sets.root / "agents-home", OPENAI_AGENTS_DISABLE_TRACING="1")
    side = Side("agents", agents, harness.BENCH / "sqlite_history.py", env, run.core)
    where = str(run.sets.session("append", wire_mb=1))
    count = run.given.items
    filled = str(run.sets.session("filled"))
    run.ours.run("append_context", root=filled, count=count, batch=1000)
    cases = {
        "add one message": (
            lambda: run.ours.run("append_context", root=where, count=run.given.appends * 4),
            lambda: side.run("add_one", count=run.given.appends),
        ),
        "add 10,000 at once, each": (
            lambda: run.ours.run("append_context", root=where, count=10_000, batch=10_000),
            lambda: side.run("add_batch", count=0),
        ),
        f"the newest 20 of {count:,}": (
            lambda: run.ours.run("messages", root=filled, limit=20),
            lambda: side.run("newest", count=count),
        ),
        f"all {count:,}, each": (
            lambda: _per(run.ours.run("messages", root=filled)),
            lambda: side.run("all", count=count),
        ),
    }
    rows = []
    for name, (mine, theirs) in cases.items():
        try:
            a, b = alternate(min(run.given.runs, 3), mine, theirs)
        except CaseFailedError as error:
            run.skipped.append(f"{name} ({error})")
            continue
        rows.append({"name": name, "ours": a.as_dict(), "theirs": b.as_dict()})
    return rows


def _per(result: dict[str, Any]) -> dict[str, Any]:
    count = result["count"]
    return result | {"wall_s": result["wall_s"] / count, "cpu_s": result["cpu_s"] / count}


PARTS = {
    "sessions": many_sessions,
    "appends": appends,
    "reading": reading,
    "contexts": contexts,
    "command-line": command_line,
}


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description="Measure this library beside Kimi CLI and openai-agents.")
    parser.add_argument("--small", action="store_true", default=bool(os.environ.get("SMALL")))
    parser.add_argument("--runs", type=int, default=3, help="how often both sides are run, in turn")
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--wire-mb", type=float)
    parser.add_argument("--context-mb", type=float)
    parser.add_argument("--records", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", choices=[*PARTS, "agents"], action="append", help="some parts; writes nothing"
    )
    parser.add_argument("--kimi", help="a version of Kimi CLI other than the newest")
    parser.add_argument("--python", help="a Python of 3.12 or later to build the environments with")
    parser.add_argument("--no-pin", action="store_true", help="do not keep the work on one core")
    parser.add_argument("--keep", action="store_true", help="leave the data")
    parser.add_argument("--dry", action="store_true", help="write nothing to docs")
    given = parser.parse_args()
    small = given.small
    given.sessions = given.sessions or (300 if small else 10_000)
    given.wire_mb = given.wire_mb or (10 if small else 200)
    given.context_mb = given.context_mb or (4 if small else 100)
    given.records = given.records or (30_000 if small else 1_000_000)
    given.appends = 200 if small else 1000
    given.items = 10_000 if small else 100_000
    python = given.python or find_python()
    if python is None:
        print("Kimi CLI needs Python 3.12 or later, and none was found that runs. Name one with --python.")
        sys.exit(1)
    PLACE.mkdir(exist_ok=True)
    ours = environment("ours", str(harness.PROJECT), python, renew=True)
    peers = {name: environment(name, package, python) for name, package in PEERS.items()}
    if given.kimi:
        peers["kimi"] = environment(f"kimi-{given.kimi}", f"kimi-cli=={given.kimi}", python)
    begun = time.perf_counter()
    machine = harness.machine()
    sets = Data(seed=given.seed)
    agents: list[dict[str, Any]] = []
    try:
        run = Comparison(sets, given, ours, peers["kimi"])
        for name, part in PARTS.items():
            if not given.only or name in given.only:
                part(run)
        if not given.only or "agents" in given.only:
            agents = orientation(run, peers["agents"])
    finally:
        if given.keep:
            say(f"the data is in {sets.root}")
        else:
            sets.__exit__(None, None, None)
    versions = harness.versions(ours, ["kimi-sessions"])
    for name, package in PEERS.items():
        versions |= {package: harness.versions(peers[name], [package])[package]}
    pinned = harness.pinned(run.core)
    content = {
        "machine": machine,
        "versions": versions,
        "pinning": (
            "Both sides were kept on one core, where the peer's thread hops are fastest."
            if pinned
            else "Neither side was kept on one core, so the peer's thread hops were slower than they can be."
        ),
        "seconds": round(time.perf_counter() - begun),
        "sizes": {
            "sessions": given.sessions,
            "wire_mb": given.wire_mb,
            "context_mb": given.context_mb,
            "records": given.records,
            "runs": given.runs,
            "seed": given.seed,
        },
        "rows": run.rows,
        "limits": run.limits,
        "agents": agents,
        "reasons": REASONS,
        "skipped": run.skipped,
    }
    if not given.only and not given.dry and not small:
        report.save("peers", content)
    print(report.text_of({"peers": content}).partition("## Beside")[2])
    say(f"{content['seconds']} s")


if __name__ == "__main__":
    main()
