"""
The account of a run as a document: kept beside the store it changed, printed by ``--json``, read back for a rollback.

    {"version": 1, "run", "kind", "source", "started_at", "finished_at", "reports": [paths of this run's reports],
     "work_dirs": [{"key", "work_dir", "kaos", "target", "sessions_path", "reason", "suggestion",
                    "last_session_id_set", "sessions": [...], "left": [...], "notes": [...]}],
     "not_carried": [{"key", "session", "file", "reason"}], "totals": {...}, "problems": [...], "elsewhere"}

and in ``sessions``

    {"id", "title", "era", "status", "reason", "created_at", "from": [places], "path", "files": [[name, size, sha256]],
     "records": {log: {type: count}}, "damaged", "made", "completed", "left", "notes", "source_removed"}

Values only; no file is touched here.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kimi_sessions._text import clean

if TYPE_CHECKING:
    from .plan import Batch, Item, Plan
    from .sources import Left

__all__ = ["REPORT_VERSION", "report_name", "report_of"]

REPORT_VERSION = 1


def report_name(started_at: float, run: str) -> str:
    """Return the file name of a run's report: it sorts by time and ends with the run's id."""
    return f"report-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(started_at))}-{run}.json"


def report_of(
    plan: Plan,
    batches: Iterable[Batch] | None = None,
    *,
    run: str | None = None,
    started_at: float | None = None,
    reports: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the account of a plan, carried out or not; of some of its batches only, if given."""
    chosen = list(plan.batches if batches is None else batches)
    keys = {id(batch) for batch in chosen}
    return {
        "version": REPORT_VERSION,
        "run": run,
        "kind": plan.kind,
        "source": plan.source,
        "started_at": started_at,
        "finished_at": time.time() if run is not None else None,
        "reports": list(reports),
        "totals": _totals(chosen),
        "not_carried": [
            {
                "key": batch.source.key,
                "work_dir": batch.source.path,
                "session": item.session.id if item is not None else None,
                "file": left.file or None,
                "reason": left.reason,
            }
            for batch, item, left in plan.not_carried()
            if id(batch) in keys
        ],
        "problems": list(plan.problems),
        "elsewhere": plan.elsewhere,
        "work_dirs": [_work_dir(batch) for batch in chosen],
    }


def _totals(batches: Iterable[Batch]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for batch in batches:
        totals["work_dirs"] += 1
        totals["not_carried"] += len(batch.source.left)
        for item in batch.items:
            totals["sessions"] += 1
            totals[item.status.value] += 1
            totals["not_carried"] += len(item.left) + (not item.status.carried)
            totals["files"] += len(item.files) if item.files else len(item.session.files)
            totals["bytes"] += (
                sum(f.size_bytes for f in item.files) if item.files else item.session.size_bytes
            )
            totals["records"] += sum(sum(counts.values()) for counts in item.records.values())
            totals["damaged"] += item.damaged
    names = (
        "sessions",
        "planned",
        "added",
        "completed",
        "present",
        "continued",
        "conflict",
        "refused",
        "failed",
    )
    return {
        name: totals[name]
        for name in (*names, "files", "bytes", "records", "damaged", "work_dirs", "not_carried")
    }


def _left(left: Iterable[Left]) -> list[dict[str, str]]:
    return [{"file": each.file, "reason": each.reason} for each in left]


def _work_dir(batch: Batch) -> dict[str, Any]:
    source = batch.source
    target = batch.target
    return {
        "key": source.key,
        "work_dir": source.path,
        "kaos": source.kaos,
        "from": source.sessions_path,
        "target": str(target) if target is not None else None,
        "sessions_path": str(batch.layout.sessions_path(target)) if target is not None else None,
        "layout": "project" if batch.layout.sealed else "share",
        "reason": batch.reason,
        "suggestion": batch.suggestion,
        "last_session_id_set": batch.last_session_id_set,
        "report": batch.report_path,
        "left": _left(source.left),
        "notes": list(source.notes),
        "sessions": [_session(batch, item) for item in batch.items],
    }


def _session(batch: Batch, item: Item) -> dict[str, Any]:
    session = item.session
    target = batch.target
    return {
        "id": session.id,
        "title": clean(session.title),
        "era": session.era,
        "status": item.status.value,
        "reason": item.reason,
        "created_at": session.created_at,
        "empty": session.empty,
        "from": [os.path.join(session.sessions_path, place) for place in session.places],
        "path": str(batch.layout.sessions_path(target) / session.id) if target is not None else None,
        "files": [[f.name, f.size_bytes, f.sha256] for f in item.files]
        or [[f.name, f.size_bytes, None] for f in session.files],
        "records": item.records,
        "damaged": item.damaged,
        "made": item.made,
        "completed": item.completed,
        "left": _left(item.left),
        "notes": item.notes,
        "source_removed": item.source_removed,
    }
