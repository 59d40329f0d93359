"""
Measures this library by itself: three sizes of each kind of work with their slopes, shares of the machine's limits,
and the bounds it promises. Prints a table and writes it to docs/benchmarks.md and .json.

    python bench/bench.py [--small] [--runs N] [--keep] [--dry]

Sizes may also be given one by one, as comma-separated lists of three: --sessions, --wire-mb, --context-mb, --search-mb.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import data as bench_data
import generate
import harness
import report
from data import Data
from harness import Figure, Side, alternate, say, seconds_text, slope

_FLAT = 0.15
_LINEAR = 1.1


class Suite:
    """One run: what it measures with, and what it has found."""

    def __init__(self, sets: Data, given: argparse.Namespace) -> None:
        self.sets = sets
        self.given = given
        self.core = None if given.no_pin else harness.last_core()
        self.home = sets.root / "home"
        env = harness.clean_env(self.home)
        self.ours = Side("ours", sys.executable, harness.BENCH / "ours.py", env, self.core)
        self.limit = Side("limits", sys.executable, harness.BENCH / "limits.py", env, self.core)
        self.env = env
        self.growth: list[dict[str, Any]] = []
        self.shares: list[dict[str, Any]] = []
        self.bounds: list[dict[str, Any]] = []
        self.skipped: list[str] = []
        self.notes: list[str] = []

    def measure(self, case: str, *, runs: int | None = None, **parameters: Any) -> Figure:
        """Measure one of our cases a few times."""
        say(f"  {case} {' '.join(f'{k}={v}' for k, v in parameters.items() if k != 'root')}")
        return alternate(runs or self.given.runs, lambda: self.ours.run(case, **parameters))[0]

    def limits(self, case: str, **parameters: Any) -> float:
        """Measure what the machine can do and return the best time of three."""
        return alternate(3, lambda: self.limit.run(case, **parameters))[0].min_s

    def grow(self, name: str, sizes: list[float], unit: str, figures: list[Figure], *, flat: bool) -> None:
        """Note how one kind of work grows: by its least CPU times, which other work disturbs least."""
        seconds = [figure.min_s for figure in figures]
        found = slope(sizes, [min(figure.cpu_s) for figure in figures])
        bound = _FLAT if flat else _LINEAR
        self.growth.append(
            {
                "name": name,
                "sizes": [f"{size:,g} {unit}" for size in sizes],
                "seconds": seconds,
                "slope": found,
                "expected": f"{'flat' if flat else 'linear'} (≤ {bound})",
                "reached": found <= bound,
                "peak_mb": figures[-1].peak_mb,
            }
        )

    def share(self, name: str, seconds: float, limit: str, limit_seconds: float) -> None:
        """Note what share of the machine's limit a kind of work reaches."""
        self.shares.append({"name": name, "seconds": seconds, "limit": limit, "limit_seconds": limit_seconds})

    def bound(self, name: str, value: float, wanted: float, unit: str, *, least: bool = False) -> None:
        """Note one of the bounds: ``value`` is to be at most ``wanted`` (or at least)."""
        text = {
            "s": seconds_text,
            "MB": lambda v: f"{v:.0f} MB",
            "×": lambda v: f"{v:.1f}×",
            "MB/s": lambda v: f"{v:.1f} MB/s",
        }[unit]
        self.bounds.append(
            {
                "name": name,
                "value": value,
                "shown": text(value),
                "wanted": f"{'≥' if least else '≤'} {text(wanted)}",
                "reached": value >= wanted if least else value <= wanted,
            }
        )


def many_sessions(suite: Suite) -> None:
    """List, find and continue in work dirs of three sizes."""
    say("many sessions")
    sizes = suite.given.sessions
    roots = [suite.sets.store(int(size)) for size in sizes]
    suite.sets.settle()
    cold, warm, newest, found, last = [], [], [], [], []
    for size, root in zip(sizes, roots, strict=True):
        count, where = int(size), str(root)

        def first(count: int = count, where: str = where) -> dict[str, Any]:
            bench_data.forget_catalog(suite.home)
            return suite.ours.run("list", root=where, expect=count)

        say(f"  list of {count}")
        cold.append(alternate(suite.given.runs, first)[0])
        warm.append(suite.measure("list", root=where, expect=count))
        newest.append(suite.measure("list", root=where, expect=20, limit=20))
        one = next(iter(generate.sessions_path(root, "share").iterdir())).name
        found.append(suite.measure("find_many", root=where, id=one, count=200))
        last.append(suite.measure("continue", root=where, count=200))
    changed = suite.measure("list_after_one_change", root=str(roots[-1]), expect=int(sizes[-1]))
    suite.grow("list, catalog made by it", sizes, "sessions", cold, flat=False)
    suite.grow("list, catalog warm", sizes, "sessions", warm, flat=False)
    suite.grow("list of the newest 20, catalog warm", sizes, "sessions", newest, flat=False)
    suite.grow("find by id", sizes, "sessions", found, flat=True)
    suite.grow("continue_", sizes, "sessions", last, flat=True)
    suite.bound("memory of a list", max(f.peak_mb for f in (cold[-1], warm[-1])), 40, "MB")
    suite.bound(
        "list after one session changed, beyond a warm one",
        max(changed.min_s - warm[-1].min_s, 0.0),
        0.05,
        "s",
    )
    folder = str(generate.sessions_path(roots[-1], "share"))
    suite.share(
        "list, catalog warm",
        warm[-1].min_s,
        "scandir, three stats a session",
        suite.limits("folders", path=folder),
    )
    suite.share(
        "list, catalog made by it",
        cold[-1].min_s,
        "read state.json and heads, parse",
        suite.limits("heads", path=folder),
    )


def logs(suite: Suite) -> None:
    """Append to, iterate over, and find things in logs of three sizes."""
    say("logs")
    sizes = suite.given.wire_mb
    roots = [suite.sets.session(f"wire-{size:g}", wire_mb=size) for size in sizes]
    ends = [suite.sets.session(f"end-{size:g}", wire_mb=size, prompt_at_end=True) for size in sizes]
    suite.sets.settle()
    rows: dict[str, list[Figure]] = {}
    per_record: dict[str, list[int]] = {"raw": [], "typed": []}
    for size, root, end in zip(sizes, roots, ends, strict=True):
        say(f"  {size:g} MB")
        where = str(root)
        count = suite.given.appends

        def note(name: str, figure: Figure) -> None:
            rows.setdefault(name, []).append(figure)

        note("find", suite.measure("find_many", root=where, count=100))
        raw, typed = (
            suite.measure("iterate", root=where, runs=1),
            suite.measure("iterate_typed", root=where, runs=1),
        )
        per_record["raw"].append(raw.notes["count"])
        per_record["typed"].append(typed.notes["count"])
        note("raw", raw)
        note("typed", typed)
        # The first look makes the catalog's rows; the home is new for each, so that each is the first.
        bench_data.forget_catalog(suite.home)
        note("turns", suite.measure("turns", root=where, runs=1))
        note("turns again", suite.measure("turns", root=where))
        note("turns after append", suite.measure("turns_after_append", root=where))
        turns = int(rows["turns"][-1].notes["count"])
        note("fork", suite.measure("fork", root=where, turns=turns, runs=1))
        note("stats after append", suite.measure("stats", root=where, append=True))
        note("append", suite.measure("append", root=where, count=count))
        note("end", suite.measure("find", root=str(end), title="the prompt at the very end", runs=2))
    for key in ("raw", "typed"):
        for figure, count in zip(rows[key], per_record[key], strict=True):
            figure.wall_s = [seconds * count for seconds in figure.wall_s]
            figure.cpu_s = [seconds * count for seconds in figure.cpu_s]
    grow = suite.grow
    grow("append, one by one", sizes, "MB log", rows["append"], flat=True)
    grow("find", sizes, "MB log", rows["find"], flat=True)
    grow("find, first prompt at the end of the log", sizes, "MB log", rows["end"], flat=False)
    grow("all records, raw", sizes, "MB log", rows["raw"], flat=False)
    grow("all records, typed", sizes, "MB log", rows["typed"], flat=False)
    grow("turns, first time", sizes, "MB log", rows["turns"], flat=False)
    grow("turns again", sizes, "MB log", rows["turns again"], flat=False)
    grow("fork in the middle", sizes, "MB log", rows["fork"], flat=False)
    grow("statistics after one append", sizes, "MB log", rows["stats after append"], flat=True)
    suite.bound(
        "memory of iterating the largest log", max(rows[k][-1].peak_mb for k in ("raw", "typed")), 30, "MB"
    )
    suite.bound("statistics after one append", rows["stats after append"][-1].min_s, 0.02, "s")
    where = str(roots[0])
    count = suite.given.appends
    one, batch = rows["append"][0].min_s, suite.measure("append_batches", root=where, count=count * 4).min_s
    alone = suite.measure("append_synced", root=where, tasks=1, count=count // 40, runs=2).min_s
    shared = suite.measure("append_synced", root=where, tasks=64, count=count, runs=2).min_s
    path = str(bench_data.wire_path(roots[-1]))
    suite.share(
        "append, awaited one by one",
        one,
        "flock, write, unlock",
        suite.limits("write_locked", count=count * 2),
    )
    suite.share("append, awaited one by one", one, "write", suite.limits("write", count=count * 2))
    suite.share("append, 64 to a call", batch, "write", suite.limits("write", count=count * 2))
    synced = suite.limits("write_synced", count=max(count // 40, 50))
    suite.share('append, "disk", one task', alone, "write and fdatasync", synced)
    suite.share('append, "disk", 64 tasks', shared, "write and fdatasync", synced)
    suite.bound(
        'append in "disk" durability, 64 tasks at once against one alone', alone / shared, 20, "×", least=True
    )
    raw, typed = rows["raw"][-1], rows["typed"][-1]
    records = per_record["raw"][-1]
    suite.share(
        "record, raw",
        raw.min_s / records,
        "parse, payload left as bytes",
        suite.limits("parse_outline", path=path),
    )
    suite.share("record, typed", typed.min_s / records, "parse all", suite.limits("parse_all", path=path))
    mb = sizes[-1]
    suite.share(
        "turns, a million bytes",
        rows["turns"][-1].min_s / mb,
        "read and search once",
        suite.limits("read", path=path),
    )
    suite.share(
        "turns, a million bytes",
        rows["turns"][-1].min_s / mb,
        "search mapped memory once",
        suite.limits("scan", path=path),
    )
    suite.share(
        "prompt at the end, a million bytes",
        rows["end"][-1].min_s / mb,
        "read and search once",
        suite.limits("read", path=path),
    )
    suite.share(
        "fork in the middle, a million bytes",
        rows["fork"][-1].min_s / mb * 2,
        "copy and sync",
        suite.limits("copy", path=path),
    )


def contexts(suite: Suite) -> None:
    """Read messages of contexts of three sizes."""
    say("contexts")
    sizes = suite.given.context_mb
    every, newest = [], []
    for size in sizes:
        root = str(suite.sets.session(f"context-{size:g}", context_mb=size))
        every.append(suite.measure("messages", root=root, runs=2))
        newest.append(suite.measure("messages", root=root, limit=20))
    looked = suite.measure("messages", root=root, look=True, runs=1)
    suite.grow("all messages of a context", sizes, "MB", every, flat=False)
    suite.grow("newest 20 messages", sizes, "MB", newest, flat=True)
    suite.bound("newest 20 messages of the largest context", newest[-1].min_s, 0.005, "s")
    suite.bound(
        "memory of all messages, for each byte of the context", every[-1].peak_mb / sizes[-1], 1.6, "×"
    )
    suite.notes.append(
        f"All messages of {sizes[-1]:g} MB with every one's text looked at: "
        f"{seconds_text(looked.min_s)}, {looked.peak_mb:.0f} MB. Messages are decoded when they are looked at."
    )


def searching(suite: Suite) -> None:
    """Build the search index over three sizes of logs, and ask it."""
    say("search")
    sizes = suite.given.search_mb
    built, rare, common, cjk, again = [], [], [], [], []
    for size in sizes:
        root = suite.sets.root / f"search-{size:g}"
        generate.generate_store(root, max(int(size), 1), wire_kb=1000, seed=suite.given.seed)
        where = str(root)
        words = generate.Prose(suite.given.seed).words
        bench_data.forget_catalog(suite.home)
        built.append(suite.measure("search", root=where, query=words[5000], runs=1))
        rare.append(suite.measure("search", root=where, query=words[5000]))
        common.append(suite.measure("search", root=where, query=words[0]))
        cjk.append(suite.measure("search", root=where, query="数据"))
        again.append(suite.measure("search", root=where, query=words[5000], append=True))
    grow = suite.grow
    grow("search, index made by it", sizes, "MB of logs", built, flat=False)
    grow("search for a rare word", sizes, "MB of logs", rare, flat=False)
    grow("search for the commonest word", sizes, "MB of logs", common, flat=False)
    grow("search for a word in Chinese", sizes, "MB of logs", cjk, flat=False)
    grow("search after one append", sizes, "MB of logs", again, flat=False)
    suite.bound("building the index", sizes[-1] / built[-1].min_s, 12, "MB/s", least=True)
    suite.bound("search for a rare word", rare[-1].min_s, 0.02, "s")
    suite.bound("search for any word", max(common[-1].min_s, cjk[-1].min_s), 0.25, "s")
    suite.bound(
        "search after one append, beyond one without", max(again[-1].min_s - rare[-1].min_s, 0.0), 0.05, "s"
    )


def command_line(suite: Suite) -> None:
    """Measure the CPU time of commands beside that of the bare interpreter."""
    say("command line")
    root = suite.sets.store(100)
    command = str(Path(sys.executable).parent / "kimi-sessions")
    if not Path(command).exists():
        suite.skipped.append("the command line: kimi-sessions is not installed beside this interpreter")
        return
    where = [command, "-w", str(root / "project"), "--share-dir", str(root / "share")]
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "version": [command, "--version"],
        "help": [command, "--help"],
        "list": [*where, "list"],
    }
    env = suite.env
    figures = dict(
        zip(
            commands,
            alternate(
                suite.given.runs * 3,
                *(lambda line=line: harness.command_cpu(line, env, suite.core) for line in commands.values()),
            ),
            strict=True,
        )
    )
    typed = f"kimi-sessions --share-dir {root / 'share'} -w {root / 'project'} show "
    complete = env | {"_KIMI_SESSIONS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}
    completion = alternate(
        suite.given.runs * 3, lambda: harness.command_cpu([command], complete, suite.core)
    )[0]
    cpu = {name: min(figure.cpu_s) for name, figure in figures.items()}
    suite.bound("CPU of --version against the bare interpreter", cpu["version"] / cpu["bare"], 2, "×")
    suite.bound("CPU of list, 100 sessions", cpu["list"], 0.16, "s")
    suite.bound("CPU of completion, 100 sessions", min(completion.cpu_s), 0.12, "s")
    suite.share("CPU of --help", cpu["help"], "bare interpreter", cpu["bare"])


PARTS = {
    "sessions": many_sessions,
    "logs": logs,
    "contexts": contexts,
    "search": searching,
    "command-line": command_line,
}


def _three(text: str) -> list[float]:
    sizes = [float(piece) for piece in text.split(",")]
    if len(sizes) != 3 or sizes != sorted(sizes):
        message = "three sizes, smallest first"
        raise argparse.ArgumentTypeError(message)
    return sizes


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(description="Measure this library by itself.")
    parser.add_argument("--small", action="store_true", default=bool(os.environ.get("SMALL")))
    parser.add_argument("--runs", type=int, default=3, help="how often each case is run")
    parser.add_argument("--sessions", type=_three)
    parser.add_argument("--wire-mb", type=_three)
    parser.add_argument("--context-mb", type=_three)
    parser.add_argument("--search-mb", type=_three)
    parser.add_argument("--appends", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="some parts; then nothing is written to docs"
    )
    parser.add_argument("--no-pin", action="store_true", help="do not keep the work on one core")
    parser.add_argument("--keep", action="store_true", help="leave the data")
    parser.add_argument("--dry", action="store_true", help="write nothing to docs")
    given = parser.parse_args()
    small = given.small
    given.sessions = given.sessions or ([30, 100, 300] if small else [1000, 3000, 10_000])
    given.wire_mb = given.wire_mb or ([0.5, 2, 8] if small else [2, 20, 200])
    given.context_mb = given.context_mb or ([0.2, 1, 4] if small else [1, 10, 100])
    given.search_mb = given.search_mb or ([1, 2, 4] if small else [10, 100, 1000])
    given.appends = given.appends or (1000 if small else 10_000)
    begun = time.perf_counter()
    machine = harness.machine()
    sets = Data(seed=given.seed)
    try:
        suite = Suite(sets, given)
        for name, part in PARTS.items():
            if not given.only or name in given.only:
                part(suite)
    finally:
        if given.keep:
            say(f"the data is in {sets.root}")
        else:
            sets.__exit__(None, None, None)
    pinned = harness.pinned(suite.core)
    content = {
        "machine": machine,
        "versions": harness.versions(sys.executable, ["kimi-sessions", "orjson", "msgspec", "pydantic"]),
        "pinning": "All of it was kept on one core." if pinned else "Nothing was kept on one core.",
        "seconds": round(time.perf_counter() - begun),
        "sizes": {
            "sessions": given.sessions,
            "wire_mb": given.wire_mb,
            "context_mb": given.context_mb,
            "search_mb": given.search_mb,
            "appends": given.appends,
            "runs": given.runs,
            "seed": given.seed,
        },
        "growth": suite.growth,
        "shares": suite.shares,
        "limits": suite.bounds,
        "skipped": suite.skipped,
        "notes": suite.notes,
    }
    if not given.only and not given.dry and not small:
        report.save("suite", content)
    print(report.text_of({"suite": content}).partition("## By itself")[2])
    say(f"{content['seconds']} s")


if __name__ == "__main__":
    main()
