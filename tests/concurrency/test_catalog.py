"""Several processes share one catalog: each gets its whole answer, and the catalog stays sound."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

_ASK = """
import asyncio, sys
from kimi_sessions import Session
from kimi_sessions.catalog import search, work_dir_stats

async def main():
    for _ in range(3):
        sessions = await Session.list(sys.argv[1])
        hits = (await search("needle", sys.argv[1], limit=None)).hits
        each = await work_dir_stats(sys.argv[1])
        print(len(sessions), len(hits), sum(stats.turns for _, stats in each))

asyncio.run(main())
"""


@pytest.mark.parametrize("count", [230])
def test_processes_that_build_and_use_a_catalog_at_once_all_get_the_whole_answer(
    work_dir: Path, home: Path, count: int
) -> None:
    """Four start on a store that no catalog knows yet; none is turned away, none sees half of it."""
    folder = work_dir / ".kimi" / "sessions"
    for number in range(count):
        place = folder / f"s{number:04d}"
        place.mkdir(parents=True)
        record = {
            "timestamp": 1_700_000_000.0 + number,
            "message": {"type": "TurnBegin", "payload": {"user_input": f"needle {number}"}},
        }
        (place / "wire.jsonl").write_text(json.dumps(record) + "\n")
        (place / "context.jsonl").touch()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _ASK, str(work_dir)], stdout=subprocess.PIPE, env=os.environ.copy()
        )
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=100)[0].decode().splitlines() for process in running]
    assert answers == [[f"{count} {count} {count}"] * 3] * 4
    connection = sqlite3.connect(home / "kimi-sessions" / "cache" / "catalog.sqlite3")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (count,)
        connection.execute("INSERT INTO found (found) VALUES ('integrity-check')")
    finally:
        connection.close()
