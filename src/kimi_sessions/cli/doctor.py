"""
``kimi-sessions doctor``: what is wrong with sessions, and with ``--repair`` what was done about it.

Without ``--repair`` nothing at all is written, not even where a listing would move an old client's file into place. The
exit code is 5 where there is something to do, 0 where there is not; after a repair, 5 where something is left that only
a person can do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kimi_sessions import clean

from ._exit import DAMAGED, OK, USAGE, Failed, code_of, complain, say
from ._options import AllDirs, where
from ._render import clean_path, out, print_json
from ._where import Where, in_line

if TYPE_CHECKING:
    from kimi_sessions import Finding
    from kimi_sessions.check import Report, StoreReport
    from kimi_sessions.repair import Action, RepairReport

__all__ = ["command"]

#: Loose modes come in dozens where another client wrote; more than so many are told in one line.
_MODES_IN_FULL = 3


def command(
    ctx: typer.Context,
    *,
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A session's id, a unique beginning of one, or @last; without one, all of the work dir.",
            show_default=False,
        ),
    ] = None,
    all_dirs: AllDirs = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Act on what is found; nothing is thrown away.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: only tell what would be done.")
    ] = False,
) -> None:
    """
    Check sessions for damage, and repair them.

    Without --repair nothing is changed. A repair keeps what it takes out: torn pieces in a .torn file, the whole log
    from before as .before-repair-N, a damaged document as .damaged-N. Stop the agent first: a held session is refused.
    """
    if dry_run and not repair:
        raise Failed("--dry-run goes with --repair; without that, nothing is changed anyway", USAGE)
    if all_dirs and session_id is not None:
        raise Failed("either an ID or --all-dirs", USAGE)
    place = where(ctx)
    if not all_dirs:
        document, code = _examine(place, session_id, repair=repair, dry_run=dry_run)
        if place.as_json:
            print_json(document)
        elif not document["sessions"] and place.missing:
            complain(f"no sessions for {place.work_dir}{place.missing}", kind="note")
        raise typer.Exit(code)
    documents, codes = [], [OK]
    for number, each in enumerate(_everywhere(place)):
        if not place.as_json:
            if number:
                out()
            out(f"== {clean_path(str(each.work_dir))}")
        document, code = _examine(each, None, repair=repair, dry_run=dry_run)
        documents.append(document)
        codes.append(code)
    if place.as_json:
        print_json({"work_dirs": documents, "clean": all(document["clean"] for document in documents)})
    # What could not be done says more than that something was found.
    raise typer.Exit(next((code for code in codes if code not in {OK, DAMAGED}), max(codes)))


def _everywhere(place: Where) -> list[Where]:
    """Return the place of every known work dir; one that no registry names is known by the folder of its sessions."""
    from kimi_sessions.metadata import known_work_dirs

    known, problems = known_work_dirs(place.layout)
    for problem in problems:
        complain(problem, kind="warning")
    return [replace(place, work_dir=entry.path or entry.sessions_path) for entry in known]


def _examine(
    place: Where, session_id: str | None, *, repair: bool, dry_run: bool
) -> tuple[dict[str, Any], int]:
    """Check one place, repair it if that is asked for, and print what people read; return the document and the code."""
    report = _check(place, session_id)
    if repair:
        return _repair(place, report, session_id, dry_run=dry_run)
    if not place.as_json:
        _print(place, report, whole=session_id is not None)
    return _as_json(report), OK if report.clean else DAMAGED


def _check(place: Where, session_id: str | None) -> StoreReport:
    """Check one session, or the store with all of them."""
    from kimi_sessions.check import StoreReport, check, check_work_dir, find_as_it_lies

    if session_id is None:
        return in_line(check_work_dir(place.work_dir, layout=place.layout))
    session = in_line(find_as_it_lies(place.work_dir, session_id, layout=place.layout))
    return StoreReport(str(place.work_dir), sessions=(in_line(check(session)),))


def _repair(
    place: Where, before: StoreReport, session_id: str | None, *, dry_run: bool
) -> tuple[dict[str, Any], int]:
    """Repair what has findings, as ``_examine``; one session that can't be repaired does not stop the others."""
    from kimi_sessions import SessionsError
    from kimi_sessions.repair import repair_store

    actions: list[Action] = []
    repairs: list[RepairReport] = []
    code = OK
    if session_id is None:
        actions = in_line(repair_store(place.work_dir, layout=place.layout, dry_run=dry_run))
    for report in before.sessions:
        if report.clean:
            continue
        try:
            repairs.append(_repair_one(place, report, dry_run=dry_run))
        except SessionsError as error:
            complain(f"session {report.session_id}: {error}")
            code = code or code_of(error)
    after = before if dry_run else _check_again(place, before, session_id)
    if not place.as_json:
        _print_repairs(after, actions, repairs, dry_run=dry_run)
    document = _as_json(after, dry_run=dry_run, actions=actions, repairs=repairs)
    return document, code or (OK if after.clean else DAMAGED)


def _repair_one(place: Where, report: Report, *, dry_run: bool) -> RepairReport:
    from kimi_sessions import Session
    from kimi_sessions.check import find_as_it_lies
    from kimi_sessions.repair import repair

    if dry_run:
        session = in_line(find_as_it_lies(place.work_dir, report.session_id, layout=place.layout))
    else:
        session = in_line(Session.open(place.work_dir, report.session_id, layout=place.layout))
    return in_line(repair(session, dry_run=dry_run))


def _check_again(place: Where, before: StoreReport, session_id: str | None) -> StoreReport:
    # By its whole id: what was meant by @last may be another session now.
    return _check(place, None if session_id is None else before.sessions[0].session_id)


def _as_json(
    report: StoreReport,
    *,
    dry_run: bool = False,
    actions: Iterable[Action] = (),
    repairs: Iterable[RepairReport] = (),
) -> dict[str, Any]:
    return {
        "work_dir": report.work_dir,
        "clean": report.clean,
        "findings": [finding.as_dict() for finding in report.findings],
        "notes": [note.as_dict() for note in report.notes],
        "sessions": [each.as_dict() for each in report.sessions],
        "dry_run": dry_run,
        "actions": [action.as_dict() for action in actions],
        "repairs": [each.as_dict() for each in repairs],
    }


# --- for people --------------------------------------------------------------------------------------------------


def _print(place: Where, report: StoreReport, *, whole: bool) -> None:
    """Print findings and notes; of sessions in a row, the clean ones and those merely open to others by number."""
    _print_findings("the store", report.findings, report.notes)
    loose = 0
    for each in report.sessions:
        notes = each.notes if whole else [note for note in each.notes if note.kind != "worktree"]
        if not whole and not notes and each.findings and all(_is_loose(found) for found in each.findings):
            loose += 1
        elif whole or each.findings:
            _print_findings(each.session_id, each.findings, notes)
    if loose:
        number = _count(loose, "session")
        out(f"{number} with files and folders open to other users, and nothing else (--json names them)")
    out(_summary(report))
    if not report.clean:
        how = place.spell("doctor --repair")
        say(f"'{how}' acts on them; with --dry-run it tells what it would do")


def _print_findings(name: str, findings: Iterable[Finding], notes: Iterable[Finding]) -> None:
    lines = [*_in_lines(list(findings)), *(f"  note: {note}" for note in notes)]
    if lines:
        out(f"{clean_path(name)}:")
        for line in lines:
            out(clean(line))


def _in_lines(findings: list[Finding]) -> list[str]:
    loose = [finding for finding in findings if _is_loose(finding)]
    if len(loose) <= _MODES_IN_FULL:
        return [f"  {finding}" for finding in findings]
    rest = [f"  {finding}" for finding in findings if not _is_loose(finding)]
    return [*rest, f"  {len(loose)} files and folders are open to other users (--json names them)"]


def _is_loose(finding: Finding) -> bool:
    return finding.kind == "loose-mode"


def _summary(report: StoreReport) -> str:
    damaged = [each for each in report.sessions if each.findings]
    number = len(report.findings) + sum(len(each.findings) for each in damaged)
    checked = _count(len(report.sessions), "session") + " checked"
    if not number:
        return f"{checked}, nothing found"
    return f"{checked}, {_count(number, 'finding')} in {_count(len(damaged), 'session')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _deeds(actions: list[Action]) -> list[str]:
    """Say what was done, as findings are said: many loose modes in one line."""
    loose = [action for action in actions if _tightens(action)]
    if len(loose) <= _MODES_IN_FULL:
        return [f"  {action}" for action in actions]
    rest = [f"  {action}" for action in actions if not _tightens(action)]
    return [*rest, f"  {len(loose)} files and folders: make them private (--json names them)"]


def _tightens(action: Action) -> bool:
    return bool(action.findings) and all(_is_loose(finding) for finding in action.findings)


def _print_repairs(
    after: StoreReport, actions: list[Action], repairs: list[RepairReport], *, dry_run: bool
) -> None:
    loose, files = 0, 0
    for name, done in (("the store", actions), *((each.session_id, each.actions) for each in repairs)):
        if len(repairs) > 1 and done and all(_tightens(action) for action in done):
            loose, files = loose + 1, files + len(done)
        elif done:
            out(f"{clean_path(name)}:")
            for line in _deeds(list(done)):
                out(clean(line))
    if loose:
        what = "a file or folder" if files == 1 else f"{files} files and folders"
        out(f"{_count(loose, 'session')}: make {what} private, and nothing else (--json names them)")
    number = len(actions) + sum(len(each.actions) for each in repairs)
    if dry_run:
        out(f"{_count(number, 'thing')} to do; nothing was changed" if number else "nothing to do")
        return
    out(f"{_count(number, 'thing')} done" if number else "nothing to do" if after.clean else "nothing done")
    if not after.clean:
        out("left for you:")
        _print_findings("the store", after.findings, ())
        for each in after.sessions:
            _print_findings(each.session_id, each.findings, ())
