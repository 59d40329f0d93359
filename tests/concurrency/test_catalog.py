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


_FORK = """
import os, signal, sys, threading, time
from kimi_sessions.cli._where import in_line
from kimi_sessions import Session
from kimi_sessions.catalog import _database

inside, held_s, patience_s = threading.Event(), float(sys.argv[2]), float(sys.argv[3])
_database._PATIENCE_S = patience_s

def use():
    with _database.opened():
        inside.set()
        time.sleep(held_s)
        inside.clear()

thread = threading.Thread(target=use)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    in_use = inside.is_set()
    in_line(Session.list(sys.argv[1]))
    try:
        with _database.opened():
            print("in use" if in_use else "free", "and had", flush=True)
    except _database.CatalogUnusableError:
        print("in use" if in_use else "free", "and done without", flush=True)
    os._exit(0)
thread.join()
with _database.opened():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    "held_s, patience_s, told",
    [("0.3", "10", "free and had"), ("2", "0.1", "in use and done without")],
    ids=["soon free", "long in use"],
)
def test_a_process_forked_while_a_list_is_being_kept_does_not_hang(
    work_dir: Path, home: Path, held_s: str, patience_s: str, told: str
) -> None:
    """SQLite's own locks are never taken along into a child: the fork waits a while, or the child has no catalog."""
    script = [sys.executable, "-c", _FORK, str(work_dir), held_s, patience_s]
    done = subprocess.run(script, stdout=subprocess.PIPE, env=os.environ.copy(), timeout=60, check=True)
    assert done.stdout.decode().strip() == told
