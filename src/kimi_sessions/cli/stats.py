"""``kimi-sessions stats``: what was done in a session, or in all of them, and what it took."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kimi_sessions import clean

from ._exit import USAGE, Failed, complain
from ._options import AllDirs, where
from ._render import dir_of, iso, line_width, out, print_json, table, when
from ._where import in_line

if TYPE_CHECKING:
    from kimi_sessions import Session
    from kimi_sessions.catalog import SessionStats

__all__ = ["command"]

_MOST_USED = 10


def command(
    ctx: typer.Context,
    *,
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="One session; without it, all of the work dir.", show_default=False
        ),
    ] = None,
    all_dirs: AllDirs = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="Only the newest N sessions; 0 for all.")
    ] = 0,
) -> None:
    """
    Count turns, tool calls, tokens and time.

    What subagents did is counted too. Time is the time between records, without silences of more than five minutes; a
    reply's tokens count once.
    """
    from kimi_sessions.catalog import SessionStats, session_stats, total, work_dir_stats

    place = where(ctx)
    if session_id is not None:
        if all_dirs or limit:
            raise Failed(f"either an ID or {'--all-dirs' if all_dirs else '--limit'}", USAGE)
        session = place.open(session_id, far=True)
        try:
            stats = in_line(session_stats(session))
        except OSError as error:
            complain(f"session {session.id}: its log can't be read: {error.strerror}", kind="warning")
            stats = SessionStats()
        if place.as_json:
            print_json(_named(session, stats))
            return
        out(clean(session.title))
        _print(stats)
        return
    found = in_line(
        work_dir_stats(None if all_dirs else place.work_dir, layout=place.layout, limit=limit or None)
    )
    everything = total(stats for _, stats in found)
    if place.as_json:
        print_json({"sessions": [_named(*each) for each in found], "total": _facts(everything)})
        return
    out(f"{len(found)} session{'' if len(found) == 1 else 's'}")
    _print(everything)
    if not found and not all_dirs and place.missing:
        complain(f"no sessions for {place.work_dir}{place.missing}", kind="note")


def _facts(stats: SessionStats) -> dict[str, Any]:
    facts = asdict(stats)
    facts["first_at_iso"] = iso(stats.first_at)
    facts["last_at_iso"] = iso(stats.last_at)
    return facts


def _named(session: Session, stats: SessionStats) -> dict[str, Any]:
    return {"id": session.id, "title": session.title, "work_dir": dir_of(session), **_facts(stats)}


def _print(stats: SessionStats) -> None:
    now = time.time()
    out(f"turns        {stats.turns:,}")
    out(f"steps        {stats.steps:,}")
    out(f"tool calls   {sum(stats.tool_calls.values()):,}")
    out(f"errors       {stats.errors:,}")
    out(f"compactions  {stats.compactions:,}")
    out(f"tokens in    {stats.input_tokens:,} ({stats.cached_tokens:,} from the cache)")
    out(f"tokens out   {stats.output_tokens:,}")
    # Clients up to 0.58 wrote down no times.
    if stats.first_at is not None and stats.last_at is not None:
        out(f"active       {_duration(stats.active_s)}")
        out(f"first        {when(stats.first_at, now)}")
        out(f"last         {when(stats.last_at, now)}")
    out(f"size         {_size(stats.size_bytes)}")
    if not stats.tool_calls:
        return
    out()
    used = sorted(stats.tool_calls.items(), key=lambda item: (-item[1], item[0]))
    rows = [
        [f"{count:,}", f"{stats.tool_errors.get(name, 0):,}", clean(name)]
        for name, count in used[:_MOST_USED]
    ]
    for line in table(["CALLS", "ERRORS", "TOOL"], rows, width=line_width()):
        out(line)
    if len(used) > _MOST_USED:
        out(f"and {len(used) - _MOST_USED} tools more")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
