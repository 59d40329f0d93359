"""
Keeps what the two programs measured in docs/benchmarks.json, and writes docs/benchmarks.md from it.

Each program replaces its own part, all of it from one run; a part says when, on what and with what it was made.
"""

from __future__ import annotations

import json
from typing import Any

from harness import PROJECT, ratio_text, seconds_text

JSON_PATH = PROJECT / "docs" / "benchmarks.json"
TEXT_PATH = PROJECT / "docs" / "benchmarks.md"

_INTRO = """\
# Benchmarks

Written by the programs in `bench/`, each part from one run. The ratios are what counts: both sides of one were measured
in turn, A B A B, on the same machine, core and data, so that whatever else the machine did fell on both. The times
beside them are medians of that run and say little about another machine.

    make bench          # this library, at three sizes each, against the limits of the machine
    make bench-peers    # this library beside Kimi CLI and openai-agents (installs both into .bench/)

`--small` makes either a matter of a minute or two and writes nothing here, `--runs N` repeats more often, `--keep`
leaves the data. The logs are made by `bench/generate.py`, the same bytes from the same seed: turns, steps, streamed
text, thoughts, tool calls with results and usage as that client writes them, about 340 bytes a record, some of it in
Chinese and Japanese. Large logs repeat a generated one. Every figure comes from a process of its own, which loads what
it needs and does the same work once on something small before the clock runs; memory is the growth of that process's
peak above what it held then. Files are in the page cache.

How the fast paths are held to the slow ones: `tests/fastpaths/`.
"""


def save(part: str, content: dict[str, Any]) -> None:
    """Replace one part and write both files."""
    known: dict[str, Any] = {}
    if JSON_PATH.exists():
        known = json.loads(JSON_PATH.read_text("utf-8"))
    known[part] = content
    JSON_PATH.parent.mkdir(exist_ok=True)
    JSON_PATH.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")
    TEXT_PATH.write_text(text_of(known), "utf-8")


def text_of(known: dict[str, Any]) -> str:
    """Return the page."""
    pieces = [_INTRO]
    if "peers" in known:
        pieces.append(_peers(known["peers"]))
    if "suite" in known:
        pieces.append(_suite(known["suite"]))
    return "\n".join(pieces)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _made_on(part: dict[str, Any]) -> str:
    machine = part["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in part["versions"].items())
    load = machine.get("load_at_start")
    busy = ""
    if load is not None:
        busy = f" The load average was {load} when it began"
        busy += ": **the machine was busy with other work**." if load > machine["cores"] * 0.5 else "."
    return (
        f"{machine['date']}, {machine['system']}, {machine['cores']} cores ({machine['cpu']}). {versions}.{busy} "
        f"{part['pinning']}\n"
    )


def _memory(figure: dict[str, Any] | None) -> str:
    return "–" if figure is None else f"{figure['peak_mb']:.0f} MB"


def _spread(figure: dict[str, Any]) -> str:
    return f"{seconds_text(figure['min_s'])} to {seconds_text(figure['max_s'])}"


def verdict(row: dict[str, Any]) -> str:
    """Return whether a row reached what it is to reach."""
    if row.get("target") is None:
        return ""
    return "yes" if row["ratio"] >= row["target"] else "**no**"


def _peers(part: dict[str, Any]) -> str:
    rows = []
    for row in part["rows"]:
        ours, theirs = row["ours"], row["theirs"]
        target = "–" if row["target"] is None else f"≥ {row['target']:g}×"
        rows.append(
            [
                row["name"],
                seconds_text(ours["median_s"]),
                seconds_text(theirs["median_s"]),
                f"**{ratio_text(row['ratio'])}**",
                ratio_text(row["cpu_ratio"]),
                target,
                verdict(row),
                _memory(ours if ours["peak_mb"] else None),
                _memory(theirs if theirs["peak_mb"] else None),
            ]
        )
    text = "## Beside Kimi CLI\n\n" + _made_on(part) + "\n"
    text += _table(
        ["work", "ours", "theirs", "ratio", "by CPU", "to reach", "reached", "our memory", "theirs"], rows
    )
    text += "\nSpread of the same rows (least to most):\n\n"
    text += _table(
        ["work", "runs", "ours", "theirs"],
        [
            [
                row["name"],
                f"{row['ours']['runs']} and {row['theirs']['runs']}",
                _spread(row["ours"]),
                _spread(row["theirs"]),
            ]
            for row in part["rows"]
        ],
    )
    if part.get("limits"):
        text += "\n" + _table(
            ["limit", "measured", "to reach", "reached"],
            [
                [row["name"], row["shown"], row["wanted"], "yes" if row["reached"] else "**no**"]
                for row in part["limits"]
            ],
        )
    if part.get("agents"):
        text += (
            "\nFor orientation: openai-agents keeps messages in SQLite (`SQLiteSession`); beside it what comes nearest "
            "here, the context log. It is another kind of store, so nothing is claimed.\n\n"
        )
        text += _table(
            ["work", "ours", "openai-agents", "our memory", "theirs"],
            [
                [
                    row["name"],
                    seconds_text(row["ours"]["median_s"]),
                    seconds_text(row["theirs"]["median_s"]),
                    _memory(row["ours"]),
                    _memory(row["theirs"]),
                ]
                for row in part["agents"]
            ],
        )
    missed = [row["name"] for row in part["rows"] if verdict(row) == "**no**"]
    missed += [row["name"] for row in part.get("limits", []) if not row["reached"]]
    text += "\n### What was not reached\n\n"
    if not missed:
        text += "Everything was.\n"
    for name in missed:
        text += f"- {name}: {part['reasons'].get(name, 'see the ratio by CPU; on a quiet machine run it again.')}\n"
    for name in part.get("skipped", []):
        text += f"- not measured: {name}\n"
    return text


def _suite(part: dict[str, Any]) -> str:
    text = "## By itself, as the work grows\n\n" + _made_on(part) + "\n"
    text += (
        "Times are the least of the runs. The slope is that of CPU time against size in logarithms: 0 is flat, 1 grows "
        "in proportion, 2 with the square.\n\n"
    )
    rows = []
    for row in part["growth"]:
        cells = [
            f"{size}: {seconds_text(seconds)}"
            for size, seconds in zip(row["sizes"], row["seconds"], strict=True)
        ]
        rows.append(
            [
                row["name"],
                *cells,
                f"{row['slope']:.2f}",
                row["expected"],
                "yes" if row["reached"] else "**no**",
                f"{row['peak_mb']:.0f} MB",
            ]
        )
    text += _table(
        ["work", "small", "middle", "large", "slope", "to reach", "reached", "memory at large"], rows
    )
    text += "\nAgainst what the machine can do at all, in the same run:\n\n"
    text += _table(
        ["work", "time", "limit", "time of the limit", "share of it"],
        [
            [
                row["name"],
                seconds_text(row["seconds"]),
                row["limit"],
                seconds_text(row["limit_seconds"]),
                f"{row['limit_seconds'] / row['seconds']:.0%}",
            ]
            for row in part["shares"]
        ],
    )
    text += "\n" + _table(
        ["bound", "measured", "to reach", "reached"],
        [
            [row["name"], row["shown"], row["wanted"], "yes" if row["reached"] else "**no**"]
            for row in part["limits"]
        ],
    )
    missed = [row["name"] for row in [*part["growth"], *part["limits"]] if not row["reached"]]
    if missed:
        text += "\nNot reached in this run: " + "; ".join(missed) + ".\n"
    for note in part["notes"]:
        text += f"\n{note}\n"
    for name in part["skipped"]:
        text += f"\nNot measured: {name}\n"
    return text
