"""
The plan of a migration: what goes where, what is there already, what can't go and why.

A plan is made by looking only. Carrying it out fills in the same objects, so that plan, progress and report are one
account of one run. Each session ends in one of these:

    planned    will be added                        added      was added, and proven
    present    is there already, byte for byte      completed  was there in part; what was missing was added
    continued  was brought over before, and went    conflict   another session has its place
               on here since                        refused    can't be a session there
    failed     could not be read or written

Nothing that is there is ever overwritten.
"""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kimi_sessions import _fs, layout, metadata
from kimi_sessions._text import clean
from kimi_sessions.layout import LOCAL_KAOS, Layout, ProjectLayout, ShareLayout, work_dir_key, work_dir_path

from . import project, share
from .paths import PathMap
from .sources import Left, SourceFile, SourceSession, SourceWorkDir, open_source
from .target import Mark, Target
from .verify import Comparison, FileFacts, compare, hash_file

__all__ = ["Batch", "Item", "Plan", "Status", "judge", "plan_from_flux", "plan_from_share", "plan_to_share"]


class Status(enum.StrEnum):
    """What becomes of a session; see the head of this file."""

    PLANNED = "planned"
    ADDED = "added"
    COMPLETED = "completed"
    PRESENT = "present"
    CONTINUED = "continued"
    CONFLICT = "conflict"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def carried(self) -> bool:
        """True if all that could go is there (or, in a plan, will be)."""
        return self not in {Status.CONFLICT, Status.REFUSED, Status.FAILED}


@dataclass(slots=True)
class Item:
    """
    One session's part in a run.

    ``files`` are those that are proven to be there, ``records`` their records counted by type, ``made`` the files of
    ours that were added, ``completed`` what a session that was there lacked. ``write_failed`` tells a failure of the
    target from one of the source.
    """

    session: SourceSession
    status: Status = Status.PLANNED
    reason: str = ""
    files: list[FileFacts] = field(default_factory=list)
    records: dict[str, dict[str, int]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    write_failed: bool = False
    source_removed: bool = False

    @property
    def damaged(self) -> int:
        """How many damaged places its logs have; they were carried as they are."""
        return sum(counts.get("(damaged)", 0) for counts in self.records.values())


@dataclass(slots=True)
class Batch:
    """The sessions of one folder of the source, and the work dir they go to; None if there is none (``reason``)."""

    source: SourceWorkDir
    layout: Layout
    target: Path | None
    reason: str = ""
    suggestion: str | None = None
    items: list[Item] = field(default_factory=list)
    last_session_id_set: str | None = None
    report_path: str | None = None


@dataclass(slots=True)
class Plan:
    """
    A whole run. ``kind`` is ``to-project``, ``to-share`` or ``from-flux``; ``elsewhere`` counts the source's other work
    dirs, which were not asked for.
    """

    kind: str
    source: str
    batches: list[Batch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    elsewhere: int = 0

    @property
    def items(self) -> Iterator[Item]:
        """Every session of the run."""
        return (item for batch in self.batches for item in batch.items)

    def not_carried(self) -> Iterator[tuple[Batch, Item | None, Left]]:
        """Yield everything that is not, or will not be, carried: with its session, where it is part of one."""
        for batch in self.batches:
            for left in batch.source.left:
                yield batch, None, left
            for item in batch.items:
                if not item.status.carried:
                    yield batch, item, Left("", item.reason)
                for left in item.left:
                    yield batch, item, left


# --- from Kimi CLI's share dir ------------------------------------------------------------------------------------


def plan_from_share(
    source: ShareLayout, work_dir: Path | None, *, paths: PathMap | None = None, make_dirs: bool = False
) -> Plan:
    """
    Plan to bring sessions of a share dir into the projects they belong to.

    Those of ``work_dir`` and those that ``paths`` places by name; with None those of all work dirs. Reads only.
    With ``make_dirs`` a work dir that is not there counts as one that will be made.

    Raises HomeNotFoundError.
    """
    known, problems = share.list_work_dirs(source)
    plan = Plan("to-project", str(source.share), problems=problems)
    paths = paths if paths is not None else PathMap()
    wanted_place = None if work_dir is None else os.path.realpath(work_dir)
    root = os.path.realpath(source.share)
    for each in known:
        named = paths.exact(each.key)
        if named is None and each.path is not None:
            named = paths.exact(each.path)
        moved = named
        if moved is None and each.path is not None and each.kaos == LOCAL_KAOS:
            moved = paths.apply(each.path) or each.path
        if work_dir is not None and named is None:
            keys = {work_dir_key(str(work_dir)), work_dir_key(str(wanted_place))}
            if each.key in keys:
                moved = str(work_dir)
            elif moved is None or not moved.startswith("/") or os.path.realpath(moved) != wanted_place:
                plan.elsewhere += os.path.isdir(each.sessions_path)
                continue
        share.fill_work_dir(each)
        if each.sessions or each.left:
            batch = _batch_of(each, moved, root, make_dirs=make_dirs)
            plan.batches.append(batch)
    _judge_all(plan)
    return plan


def _batch_of(each: SourceWorkDir, moved: str | None, root: str, *, make_dirs: bool) -> Batch:
    batch = Batch(each, ProjectLayout(), None)
    if moved is None:
        if each.kaos != LOCAL_KAOS:
            where = f" ({each.path})" if each.path is not None else ""
            batch.reason = f"its work dir is on another machine, by {each.kaos}{where}"
        elif each.key == layout.IMPORTED:
            batch.reason = "these sessions were imported from files and have no work dir"
        else:
            batch.reason = "no registry names its work dir"
            batch.suggestion = share.suggest_work_dir(each)
        batch.reason += f"; place it with --map {each.key}=DIR"
        return batch
    target = work_dir_path(os.path.expanduser(moved)) if not share.is_foreign(moved) else None
    if target is None:
        batch.reason = f"{clean(moved)} is a path of another system; say where it is here with --map OLD=NEW"
    elif not target.is_dir() and not make_dirs:
        batch.reason = (
            f"its work dir {clean(str(target))} is not there; "
            "say where it is now with --map OLD=NEW, or have it made with --make-dirs"
        )
    else:
        kimi = os.path.realpath(target / layout.KIMI)
        if kimi == root or kimi.startswith(root + os.sep) or root.startswith(kimi + os.sep):
            batch.reason = f"its store would lie inside the source itself ({clean(root)})"
        else:
            batch.target = target
    return batch


# --- to Kimi CLI's share dir --------------------------------------------------------------------------------------


def plan_to_share(target: ShareLayout, work_dir: Path | None, *, paths: PathMap | None = None) -> Plan:
    """
    Plan to bring the sessions of a project (None: of every known one) into a share dir, for Kimi CLI to go on with.

    ``paths`` says under which path a work dir is to be registered there, where that is another. Reads only.

    Raises HomeNotFoundError.
    """
    plan = Plan("to-share", "")
    paths = paths if paths is not None else PathMap()
    if work_dir is None:
        known, problems = metadata.known_work_dirs(ProjectLayout())
        plan.problems.extend(problems)
        projects = [entry.path for entry in known if entry.path is not None]
    else:
        projects = [work_dir]
        plan.source = str(work_dir)
    root = os.path.realpath(target.share)
    for each in projects:
        source = project.read_project(each)
        if not (source.sessions or source.left):
            continue
        moved = work_dir_path(paths.apply(str(each)) or str(each))
        batch = Batch(source, target, moved)
        kimi = os.path.realpath(each / layout.KIMI)
        if kimi == root or kimi.startswith(root + os.sep) or root.startswith(kimi + os.sep):
            batch.target, batch.reason = None, f"its store lies inside the share dir ({clean(root)})"
        plan.batches.append(batch)
    _judge_all(plan)
    return plan


# --- from Flux ----------------------------------------------------------------------------------------------------


def plan_from_flux(path: str, work_dir: Path) -> Plan:
    """
    Plan to make sessions of a work dir out of Flux's data dir or SQLite file. Reads only.

    Raises SourceNotFoundError, DamagedError.
    """
    from .flux import read_flux

    plan = Plan("from-flux", path)
    plan.batches.append(Batch(read_flux(path), ProjectLayout(), work_dir))
    _judge_all(plan)
    return plan


# --- judging ------------------------------------------------------------------------------------------------------


def _judge_all(plan: Plan) -> None:
    taken: set[tuple[str, str]] = set()
    for batch in plan.batches:
        target = None if batch.target is None else Target(batch.layout, batch.target)
        for session in batch.source.sessions:
            item = Item(session, left=list(session.left), notes=list(session.notes))
            batch.items.append(item)
            if target is None:
                item.status, item.reason = Status.REFUSED, batch.reason
                continue
            judge(item, target)
            place = (target.sessions_path, session.id)
            if item.status is Status.PLANNED and place in taken:
                item.status = Status.CONFLICT
                item.reason = "another session of the source has the same id and the same work dir"
            taken.add(place)


def judge(item: Item, target: Target) -> Comparison | None:
    """
    Set an item's status by what is in its place now; return the comparison where something is.

    Reads only. A source that can't be read makes it ``failed``.
    """
    session = item.session
    if session.refusal:
        item.status, item.reason = Status.REFUSED, session.refusal
        return None
    path = target.find(session.id)
    if path is None:
        item.status, item.reason = Status.PLANNED, ""
        flat = target.flat_in_the_way(session.id)
        if flat is not None:
            item.status, item.reason = Status.CONFLICT, f"an old flat file has its place: {clean(flat)}"
        return None
    try:
        fd = _fs.open_folder(path)
        try:
            result = compare(session, fd)
        finally:
            _fs.active().close(fd)
        item.status, item.reason = _verdict(result, target.read_mark(session.id))
    except OSError as error:
        item.status, item.reason = Status.FAILED, f"can't be compared: {error.strerror}"
        return None
    return result


def _verdict(result: Comparison, mark: Mark | None) -> tuple[Status, str]:
    if result.identical:
        return Status.PRESENT, ""
    if mark is None:
        if result.grown and not result.missing and not result.different:
            return Status.CONTINUED, "it has all of the source, and went on here since"
        if result.missing and result.same and not result.grown and not result.different:
            return Status.PLANNED, "files of it are missing here and will be added"
        return Status.CONFLICT, "another session has this id here; it is left as it is"
    here_now = [file for file in _all(result) if not _is_as_carried(file, mark)]
    if not here_now:
        return Status.CONTINUED, "it was brought over before and changed here since"
    if all(file.name not in mark.files for file in here_now):
        if all(file in result.missing for file in here_now):
            return Status.PLANNED, "files of it are missing here and will be added"
        return Status.CONFLICT, "files of the same name were made here since; they are left as they are"
    return Status.CONFLICT, "the source has changed since it was brought over; what is here is left as it is"


def _all(result: Comparison) -> Iterable[SourceFile]:
    return [*result.missing, *result.grown, *result.different]


def _is_as_carried(file: SourceFile, mark: Mark) -> bool:
    """Tell whether the source's file still is the one that was carried when the mark was made."""
    known = mark.files.get(file.name)
    if known is None:
        return False
    if file.make is not None:
        data = file.make()
        return known == (len(data), hashlib.sha256(data).hexdigest())
    fd = open_source(file)
    try:
        return _fs.active().fstat(fd).st_size == known[0] and hash_file(fd) == known
    finally:
        _fs.active().close(fd)
