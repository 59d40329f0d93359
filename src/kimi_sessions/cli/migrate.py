"""
``kimi-sessions migrate``: sessions from Kimi CLI's share dir (or from elsewhere) into projects, and back.

The plan is printed with ``--dry-run``; without it, what was done. Progress is shown on a terminal only, on stderr.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kimi_sessions import ShareLayout, clean

from ._exit import DAMAGED, NOT_WRITTEN, USAGE, Failed, complain
from ._options import where
from ._render import clean_path, fit, line_width, out, print_json

if TYPE_CHECKING:
    from kimi_sessions.migration import Batch, Item, PathMap, Plan, Progress

__all__ = ["absolute", "command", "path_map"]

#: How many sessions of one work dir are named one by one on a screen; ``--json`` and the report name all.
_NAMED = 40


def command(
    ctx: typer.Context,
    *,
    all_dirs: Annotated[
        bool, typer.Option("--all-dirs", help="Every work dir the source knows, each into its own project.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would be done and what can't go, and change nothing."),
    ] = False,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="Work dirs at or below OLD are at NEW now; or KEY=DIR for a folder no registry names. Repeatable.",
            show_default=False,
        ),
    ] = None,
    make_dirs: Annotated[
        bool, typer.Option("--make-dirs", help="Make work dirs that are not there.")
    ] = False,
    move: Annotated[
        bool, typer.Option("--move", help="Remove each session from the source once it is proven to be here.")
    ] = False,
    to_share: Annotated[
        bool, typer.Option("--to-share", help="The other way: from the project into Kimi CLI's share dir.")
    ] = False,
    from_flux: Annotated[
        Path | None,
        typer.Option(
            "--from-flux",
            metavar="PATH",
            help="From Flux's data dir, or a SQLite file of it, instead; into the work dir.",
            show_default=False,
        ),
    ] = None,
    rollback: Annotated[
        Path | None,
        typer.Option(
            "--rollback",
            metavar="REPORT",
            help="Take away what the run of this report added, except what has changed since.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """
    Bring sessions of Kimi CLI into the project's layout.

    The source is Kimi CLI's share dir ($KIMI_SHARE_DIR or ~/.kimi, or --share-dir DIR) and is only read. Every file is
    copied byte for byte, compared by hash and counted record by record before a session appears; what can't be
    carried is named. Running it again adds what is new and changes nothing else.
    """
    from kimi_sessions.migration import apply_plan, plan_from_flux, plan_from_share, plan_to_share, report_of

    place = where(ctx)
    if rollback is not None:
        return _roll_back(rollback, as_json=place.as_json, dry_run=dry_run)
    if from_flux is not None and (to_share or all_dirs or move):
        raise Failed("--from-flux goes with none of --to-share, --all-dirs and --move", USAGE)
    share = place.share if place.share is not None else ShareLayout()
    work_dir = None if all_dirs else place.work_dir
    paths = path_map(maps)
    if from_flux is not None:
        plan = plan_from_flux(str(from_flux), place.work_dir)
    elif to_share:
        plan = plan_to_share(share, work_dir, paths=paths)
    else:
        if not share.share.is_dir():
            raise Failed(f"there is no share dir of Kimi CLI at {share.share} (--share-dir names another)", 3)
        plan = plan_from_share(share, work_dir, paths=paths, make_dirs=make_dirs)
    reports: list[str] = []
    if not dry_run:
        with _progress(plan) as progress:
            reports = apply_plan(
                plan, move=move, make_dirs=make_dirs, progress=progress, waiting=_say_waiting
            )
    if place.as_json:
        print_json({"dry_run": dry_run, **report_of(plan, reports=reports)})
    else:
        _print(plan, reports, dry_run=dry_run)
    return _complain(plan)


def path_map(texts: Sequence[str] | None, *, also: tuple[str, str] | None = None) -> PathMap:
    """
    Return what ``--map`` options say, and one more pair. Paths are made absolute, unless they are Windows'.

    An old one that is relative counts as it was typed, too: it may be the key of a folder. Raises Failed for a text
    that is no OLD=NEW.
    """
    from kimi_sessions.migration import PathMap, parse_pair

    pairs = [] if also is None else [also]
    for text in texts or ():
        try:
            pairs.append(parse_pair(text))
        except ValueError as error:
            raise Failed(f"--map: {error}", USAGE) from None
    told = [(old, absolute(new)) for old, new in pairs]
    return PathMap(dict.fromkeys([*told, *((absolute(old), new) for old, new in told)]))


def absolute(path: str) -> str:
    """Return a path as it counts from the current folder; one of Windows as it is."""
    from kimi_sessions.migration import looks_like_windows

    if looks_like_windows(path):
        return path
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - links stay as they were typed


def _roll_back(report: Path, *, as_json: bool, dry_run: bool) -> int:
    from kimi_sessions.migration import roll_back

    result = roll_back(report, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **result.as_dict()})
    else:
        for session_id, path in result.removed:
            out(f"{'would take away' if dry_run else 'taken away'}  {clean(session_id)}  {clean_path(path)}")
        out(f"{len(result.removed)} taken away, {len(result.refused)} left as they are")
    for session_id, reason in result.refused:
        complain(f"session {session_id} was left: {reason}", kind="warning")
    return DAMAGED if result.refused else 0


def _say_waiting(holder: str) -> None:
    complain(f"waiting for another migration of this store ({holder})", kind="note")


@contextmanager
def _progress(plan: Plan) -> Iterator[Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    total = sum(item.session.size_bytes for item in plan.items if item.status.carried)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("migrating", total=total)
        yield lambda _session, size: bar.update(task, advance=size)


# --- for people ---------------------------------------------------------------------------------------------------


def _print(plan: Plan, reports: list[str], *, dry_run: bool) -> None:
    width = line_width()
    for batch in plan.batches:
        goal = clean_path(str(batch.target)) if batch.target is not None else "nowhere"
        name = batch.source.path if batch.source.path is not None else batch.source.key
        same = batch.target is not None and str(batch.target) == name
        head = clean_path(name) if same else f"{clean_path(name)} -> {goal}"
        out(f"{head}: {_counts(batch, dry_run=dry_run)}")
        for item in _worth_naming(batch):
            out(fit(_line(item), width))
        hidden = len(batch.items) - _NAMED
        if hidden > 0 and batch.target is not None:
            out(f"  … and {hidden} more; --json names them all")
    if not plan.batches:
        out("nothing to migrate")
    else:
        out(_sum(plan, dry_run=dry_run))
    if plan.elsewhere:
        out(f"the source has {plan.elsewhere} more work dirs; --all-dirs takes them all")
    for path in reports:
        out(f"report: {clean_path(path)}")


def _worth_naming(batch: Batch) -> list[Item]:
    if batch.target is None:
        return []
    return batch.items[:_NAMED]


_WORDS = {
    "added": "added",
    "completed": "completed",
    "present": "already there",
    "continued": "went on here since",
    "conflict": "in conflict",
    "refused": "can't go",
    "failed": "failed",
}


def _counts(batch: Batch, *, dry_run: bool) -> str:
    count = Counter(item.status.value for item in batch.items)
    words = {"planned": "to add" if dry_run else "not done", **_WORDS}
    return ", ".join(f"{count[key]} {word}" for key, word in words.items() if key in count) or "no sessions"


def _line(item: Item) -> str:
    session = item.session
    sign = {"planned": "+", "added": "+", "completed": "+", "present": "=", "continued": "="}
    mark = sign.get(item.status.value, "!")
    reason = f"  ({item.reason})" if item.reason else ""
    return f"  {mark} {clean(session.id)}  {clean(session.title) or '-'}{reason}"


def _sum(plan: Plan, *, dry_run: bool) -> str:
    files = sum(len(item.files) for item in plan.items if not dry_run)
    size = sum(facts.size_bytes for item in plan.items for facts in item.files)
    records = sum(sum(counts.values()) for item in plan.items for counts in item.records.values())
    damaged = sum(item.damaged for item in plan.items)
    count = sum(1 for _ in plan.items)
    sessions = f"{count} session{'s' if count != 1 else ''}"
    if dry_run:
        going = [item.session.size_bytes for item in plan.items if item.status.carried]
        if len(going) != count:
            sessions = f"{len(going)} of {sessions}"
        return f"{sessions}, {sum(going)} bytes; nothing was changed"
    text = f"{sessions}: {files} files, {size} bytes compared by hash, {records} records counted"
    if damaged:
        text += f" ({damaged} damaged places among them, carried as they are)"
    return text


def _complain(plan: Plan) -> int:
    """Name on stderr what is not carried, and return the exit code."""
    for text in plan.problems:
        complain(text, kind="warning")
    code = 0
    for batch in plan.batches:
        if batch.target is None:
            code = DAMAGED
            count = len(batch.items)
            complain(
                f"{count} session{'s' if count != 1 else ''} of {batch.source.path or batch.source.key}"
                f" can't go: {batch.reason}",
                kind="warning",
            )
            if batch.suggestion is not None:
                complain(
                    f"records of it name {batch.suggestion}: --map {batch.source.key}={batch.suggestion}",
                    kind="hint",
                )
    for text in _not_carried(plan):
        code = code or DAMAGED
        complain(text, kind="warning")
    for item in plan.items:
        for note in item.notes:
            complain(f"session {item.session.id}: {note}", kind="note")
    return NOT_WRITTEN if any(item.write_failed for item in plan.items) else code


def _not_carried(plan: Plan) -> Iterator[str]:
    """Yield a line for all that could not go from work dirs that have a place to go to."""
    for batch in plan.batches:
        name = batch.source.path or batch.source.key
        for left in batch.source.left:
            yield f"{left.file} in {batch.source.sessions_path} was not carried: {left.reason}"
        reasons = Counter(item.reason for item in batch.items if not item.status.carried)
        for item in batch.items:
            if batch.target is not None and not item.status.carried and reasons[item.reason] == 1:
                yield f"session {item.session.id} was not carried: {item.reason}"
            for left in item.left:
                yield f"{left.file} of session {item.session.id} was not carried: {left.reason}"
        for reason, count in reasons.items():
            if batch.target is not None and count > 1:
                yield f"{count} sessions of {name} were not carried: {reason}"
