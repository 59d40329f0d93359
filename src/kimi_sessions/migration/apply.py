"""
Carry out a plan: copy each session, prove the copy, and only then let it appear.

A session is put together in a hidden folder beside its place. When every byte has been read back and compared, its
mark is written and the folder renamed: a run that is stopped at any point leaves whole sessions and, at worst, one
hidden folder, which the next run clears away. Every step is judged anew by what is there at that moment, so a run can
be repeated, and two at once do each session once.

The source is only read. ``move`` removes a session from it afterwards, and only what was compared once more.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from kimi_sessions import _fs, layout, metadata
from kimi_sessions._document import dump_document, read_document
from kimi_sessions._locking import HoldLock, session_gone
from kimi_sessions._text import clean
from kimi_sessions.errors import SessionBusyError, SessionsError, WriteError
from kimi_sessions.layout import ProjectLayout, ShareLayout

from .plan import Batch, Item, Plan, Status, judge
from .report import report_name, report_of
from .sources import NO_LOG, Left, SourceFile, SourceSession, open_source
from .target import Mark, Target, write_report
from .verify import Comparison, FileFacts, compare, count_records, hash_file, open_target

__all__ = ["Progress", "apply_plan"]

#: Called with the session that is at work and how many bytes of it are done since the last call.
Progress = Callable[[SourceSession, int], None]
_R = TypeVar("_R")
_CopyStep = Callable[[Item, SourceFile, str, int], FileFacts]
_TRIES = 3
_CHUNK_BYTES = 1 << 20


class _SourceError(Exception):
    """A file of the source could not be read; the cause says why."""


@dataclass(slots=True)
class _Run:
    id: str
    started_at: float
    progress: Progress
    waiting: Callable[[str], None] | None


def apply_plan(
    plan: Plan,
    *,
    move: bool = False,
    make_dirs: bool = False,
    progress: Progress | None = None,
    waiting: Callable[[str], None] | None = None,
) -> list[str]:
    """
    Carry out a plan in place and return the paths of the reports that were written: one for each store that changed.

    What fails is told in the plan's items and does not stop the others. With ``move`` a session leaves the source once
    it is proven to be here. ``waiting`` is told who is at work if another run has the store.

    Raises SessionBusyError if another run doesn't end; HomeNotFoundError.
    """
    run = _Run(secrets.token_hex(6), time.time(), progress or _no_progress, waiting)
    reports: dict[str, list[Batch]] = {}
    try:
        for batch in plan.batches:
            if batch.target is not None:
                _apply_batch(
                    plan,
                    batch,
                    Target(batch.layout, batch.target),
                    reports,
                    run,
                    move=move,
                    make_dirs=make_dirs,
                )
    except BaseException:
        # Also of a run that somebody stops there is to be an account.
        _write_reports(plan, reports, run)
        raise
    return _write_reports(plan, reports, run)


def _apply_batch(
    plan: Plan,
    batch: Batch,
    target: Target,
    reports: dict[str, list[Batch]],
    run: _Run,
    *,
    move: bool,
    make_dirs: bool,
) -> None:
    try:
        if make_dirs and isinstance(batch.layout, ProjectLayout):
            target.work_dir.mkdir(parents=True, exist_ok=True)
        with target.owned(run.waiting) as sessions_fd:
            reports.setdefault(target.folder, []).append(batch)
            _carry_batch(batch, target, sessions_fd, run)
            if move:
                _move_batch(batch, target)
            # Before anyone else may look: a run that finds no report takes this one for stopped, and its work over.
            _write_reports(plan, reports, run)
    except SessionBusyError:
        raise
    except (OSError, SessionsError) as error:
        for item in batch.items:
            if item.status is Status.PLANNED:
                item.status, item.reason = Status.FAILED, str(error)
                item.write_failed = isinstance(error, OSError)


def _no_progress(_session: SourceSession, _size: int) -> None:
    return None


def _write_reports(plan: Plan, reports: dict[str, list[Batch]], run: _Run) -> list[str]:
    changed = {
        folder: batches
        for folder, batches in reports.items()
        if any(
            item.status in {Status.ADDED, Status.COMPLETED, Status.FAILED, Status.CONFLICT}
            or item.source_removed
            for batch in batches
            for item in batch.items
        )
    }
    name = report_name(run.started_at, run.id)
    paths = [os.path.join(folder, name) for folder in changed]
    for folder, batches in changed.items():
        for batch in batches:
            batch.report_path = os.path.join(folder, name)
        document = report_of(plan, batches, run=run.id, started_at=run.started_at, reports=paths)
        try:
            write_report(folder, name, document)
        except OSError as error:
            plan.problems.append(f"the report could not be written: {WriteError.of(error, folder)}")
            paths.remove(os.path.join(folder, name))
    return paths


# --- one store ----------------------------------------------------------------------------------------------------


def _carry_batch(batch: Batch, target: Target, sessions_fd: int, run: _Run) -> None:
    if isinstance(batch.layout, ShareLayout):
        metadata.register_work_dir(batch.layout, target.work_dir, target.store.resolved)
    for item in batch.items:
        if item.status is Status.REFUSED:
            continue
        try:
            _carry(item, batch, target, sessions_fd, run)
        except (OSError, _SourceError) as error:
            cause = error.__cause__ if isinstance(error, _SourceError) else error
            item.status = Status.FAILED
            item.reason = str(error) if isinstance(error, (_SourceError, WriteError)) else _told(cause)
            item.write_failed = not isinstance(error, _SourceError)
    # The names; what they name was made durable before it got them.
    _fs.sync_folder_fd(sessions_fd)
    _carry_last_id(batch, target)


def _told(error: BaseException | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"could not write: {error.strerror}"
    return str(error)


def _carry_last_id(batch: Batch, target: Target) -> None:
    """Take over which session was the last one, unless the store has a last one of its own."""
    last = batch.source.last_session_id
    if last is None or target.find(last) is None:
        return
    store = target.store
    try:
        if metadata.load_work_dir_meta(batch.layout, store.work_dir, store.resolved).last_session_id is None:
            metadata.set_last_session_id(batch.layout, store.work_dir, store.resolved, last)
            batch.last_session_id_set = last
    except SessionsError as error:
        batch.source.notes.append(f"the last session could not be recorded: {error}")


def _carry(item: Item, batch: Batch, target: Target, sessions_fd: int, run: _Run) -> None:
    session = item.session
    result = judge(item, target)
    if item.status is Status.PLANNED and result is None:
        _add(item, batch, target, sessions_fd, run)
    elif item.status is Status.PLANNED and result is not None:
        _complete(item, result, target, run)
    elif item.status is Status.PRESENT and result is not None:
        item.files = result.same
        _look_after_present(item, target, run)
    if item.status is not Status.ADDED:
        run.progress(session, session.size_bytes)


def _look_after_present(item: Item, target: Target, run: _Run) -> None:
    """Count what is there already, and make up for what a run that was stopped did not come to."""
    session = item.session
    path = target.find(session.id)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "the session was removed meanwhile", session.id)
    mark = target.read_mark(session.id)
    fd = _fs.open_folder(path)
    try:
        _prove(item, fd)
        if mark is not None and _lacks_its_seal(item, target, fd):
            item.notes.extend(_seal(item, target, fd))
            mark.made = [*mark.made, layout.SEAL]
    finally:
        _fs.active().close(fd)
    if mark is not None and mark.run != run.id and not target.has_report_of(mark.run):
        # The run that added it was stopped before its report: it is told, and can be taken back, in this one.
        item.status, item.reason = Status.ADDED, "by an earlier run that did not come to its end"
        item.made = mark.made
        target.write_mark(session.id, Mark(run.id, mark.source, mark.files, mark.made))
        run.progress(session, session.size_bytes)


def _lacks_its_seal(item: Item, target: Target, fd: int) -> bool:
    if not target.layout.sealed or item.session.era == NO_LOG or read_document(layout.SEAL, dir_fd=fd).exists:
        return False
    # A state that is not the source's own could allow anything; it is not for a migration to vouch for.
    carried = any(facts.name == layout.STATE for facts in item.files)
    return carried or not read_document(layout.STATE, dir_fd=fd).exists


def _seal(item: Item, target: Target, fd: int) -> list[str]:
    """Seal a session with what its state allows; return what was in the way. Raises OSError, WriteError."""
    document = read_document(layout.STATE, dir_fd=fd)
    if document.exists and document.mark is None:
        # Not damaged, which would be carried as it is, but unreadable for now: sealed without it, it would change.
        raise OSError(errno.EIO, f"{layout.STATE} {document.problem}", layout.STATE)
    problems = target.store.seal(item.session.id, fd, document.value or {})
    return [problem.reason for problem in problems]


def _add(item: Item, batch: Batch, target: Target, sessions_fd: int, run: _Run) -> None:
    session = item.session
    fs = _fs.active()
    # Beside the sessions folder, not in it: Kimi CLI would take a half-made folder there for a session.
    outer = _fs.open_folder(os.path.dirname(target.sessions_path), follow=True)
    staging = target.staging_name(session.id)
    try:
        try:
            _fs.remove_tree(staging, dir_fd=outer)
            _fs.ensure_folder(staging, dir_fd=outer)
            fd = _fs.open_folder(staging, dir_fd=outer)
            try:
                _fill(item, fd, run)
                item.made = _add_ours(item, batch, target, fd)
                _prove(item, fd)
                _settle_folders(session, fd)
            finally:
                fs.close(fd)
            if target.find(session.id) is not None:
                raise FileExistsError(errno.EEXIST, "a session of this id was made meanwhile", session.id)
            target.write_mark(session.id, _mark_of(item, run))
            fs.rename(staging, session.id, src_dir_fd=outer, dst_dir_fd=sessions_fd)
        except BaseException:
            # What is left of it is cleared away by the next run at the latest; the first error matters more.
            with suppress(OSError):
                _fs.remove_tree(staging, dir_fd=outer)
            raise
        item.status = Status.ADDED
    finally:
        fs.close(outer)


def _mark_of(item: Item, run: _Run) -> Mark:
    session = item.session
    source = os.path.join(session.sessions_path, session.places[0] if session.places else session.id)
    files = {facts.name: (facts.size_bytes, facts.sha256) for facts in item.files}
    return Mark(run.id, source, files, item.made)


def _fill(item: Item, fd: int, run: _Run) -> None:
    """Copy all files of a session into its open folder. Those that may not be read are named and left out."""
    session = item.session
    item.files, item.records = [], {}
    item.left = list(session.left)
    for folder in session.folders:
        _in_folder(folder.name, fd, lambda _: None)
    for file in session.files:
        _copy(item, file, fd, run, _copy_file)


def _copy(item: Item, file: SourceFile, fd: int, run: _Run, step: _CopyStep) -> None:
    head, _, name = file.name.rpartition("/")
    try:
        facts = _in_folder(head, fd, lambda own_fd: step(item, file, name, own_fd))
    except _SourceError as error:
        cause = error.__cause__
        if isinstance(cause, (PermissionError, _fs.IrregularFileError)):
            item.left.append(Left(clean(file.name), f"can't be read: {cause.strerror}"))
            return
        raise
    item.files.append(facts)
    run.progress(item.session, facts.size_bytes)


def _in_folder(name: str, fd: int, step: Callable[[int], _R]) -> _R:
    """Run ``step`` in the folder of this name below an open one, made if missing."""
    fs = _fs.active()
    opened: list[int] = []
    try:
        for part in name.split("/") if name else ():
            _fs.ensure_folder(part, dir_fd=fd)
            fd = _fs.open_folder(part, dir_fd=fd)
            opened.append(fd)
        return step(fd)
    finally:
        for each in reversed(opened):
            fs.close(each)


def _copy_file(item: Item, file: SourceFile, name: str, folder_fd: int) -> FileFacts:
    """
    Copy one file under a new, private name, with its time, and count its records.

    Raises _SourceError if the source can't be read or keeps changing, OSError if the target can't be written.
    """
    if file.make is not None:
        data = file.make()
        _write_new(name, folder_fd, [data], file.mtime_ns)
        return FileFacts(file.name, len(data), hashlib.sha256(data).hexdigest(), file.mtime_ns)
    fs = _fs.active()
    for _ in range(_TRIES):
        source_fd = _reading(file, open_source, file)
        try:
            before = _reading(file, fs.fstat, source_fd)
            digest = hashlib.sha256()
            size = 0

            def chunks(
                fd: int = source_fd, end: int = before.st_size, digest: Any = digest
            ) -> Iterator[bytes]:
                nonlocal size
                while size < end:
                    chunk = _reading(file, fs.pread, fd, min(_CHUNK_BYTES, end - size), size)
                    if not chunk:
                        return
                    size += len(chunk)
                    digest.update(chunk)
                    yield chunk

            _write_new(name, folder_fd, chunks(), before.st_mtime_ns)
            counts = _reading(file, count_records, file.name, source_fd)
            after = _reading(file, fs.fstat, source_fd)
        finally:
            fs.close(source_fd)
        if size == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
            if counts is not None:
                item.records[file.name] = dict(counts)
            return FileFacts(file.name, size, digest.hexdigest(), before.st_mtime_ns)
        fs.unlink(name, dir_fd=folder_fd)
    message = (
        f"{clean(file.name)} keeps changing: a program is writing to it; run this again when it has ended"
    )
    raise _SourceError(message)


def _reading(file: SourceFile, step: Callable[..., _R], *args: Any) -> _R:
    """Take a step that reads the source; its failure is the source's, not the target's."""
    try:
        return step(*args)
    except OSError as error:
        message = f"{clean(file.name)} can't be read: {error.strerror}"
        raise _SourceError(message) from error


def _write_new(name: str, folder_fd: int, chunks: Iterable[bytes], mtime_ns: int | None = None) -> None:
    """Write a private file, with a given time. Durable when it returns. Raises OSError."""
    fs = _fs.active()
    fd = _fs.create_file(name, dir_fd=folder_fd)
    try:
        for chunk in chunks:
            _fs.write_all(fd, chunk)
        if mtime_ns is not None:
            fs.utime(fd, ns=(mtime_ns, mtime_ns))
        fs.fsync(fd)
    finally:
        fs.close(fd)


def _add_ours(item: Item, batch: Batch, target: Target, fd: int) -> list[str]:
    """Add the files of ours that a session needs in its new place, and return their names."""
    session = item.session
    if session.era == NO_LOG:
        return []
    there = {facts.name for facts in item.files}
    if not batch.layout.sealed:
        if layout.CONTEXT in there:
            return []
        # Kimi CLI finds no session that lacks one.
        _write_new(layout.CONTEXT, fd, (), session.mtime_ns or 0)
        item.notes.append(f"an empty {layout.CONTEXT} was added, without which Kimi CLI would not find it")
        return [layout.CONTEXT]
    made = []
    if layout.SESSION not in there:
        origin = {
            "kind": session.era if session.era.startswith("flux") else "kimi-cli",
            "era": session.era,
            "path": os.path.join(session.sessions_path, session.places[0] if session.places else session.id),
            "work_dir": batch.source.path,
            "key": batch.source.key,
        }
        document = {"version": 1, "created_at": session.created_at, "origin": origin}
        _write_new(layout.SESSION, fd, [dump_document(document)])
        made.append(layout.SESSION)
    item.notes.extend(_seal(item, target, fd))
    if read_document(layout.SEAL, dir_fd=fd).exists:
        made.append(layout.SEAL)
    return made


def _prove(item: Item, fd: int) -> None:
    """Read every file back and compare it with what was read. Raises OSError where anything differs."""
    for facts in item.files:
        target_fd = open_target(facts.name, fd)
        try:
            same = hash_file(target_fd) == (facts.size_bytes, facts.sha256)
            counts = count_records(facts.name, target_fd)
        finally:
            _fs.active().close(target_fd)
        expected = item.records.setdefault(facts.name, dict(counts)) if counts is not None else None
        if not same or (counts is not None and dict(counts) != expected):
            raise OSError(errno.EIO, "what was written is not what was read", facts.name)


def _settle_folders(session: SourceSession, fd: int) -> None:
    """Give the folders their times, now that nothing is added to them any more, and make all of it durable."""
    fs = _fs.active()
    for folder in sorted(session.folders, key=lambda folder: -folder.name.count("/")):
        times = (folder.mtime_ns, folder.mtime_ns)

        def settle(own_fd: int, times: tuple[int, int] = times) -> None:
            fs.utime(own_fd, ns=times)
            _fs.sync_folder_fd(own_fd)

        _in_folder(folder.name, fd, settle)
    if session.mtime_ns is not None:
        fs.utime(fd, ns=(session.mtime_ns, session.mtime_ns))
    _fs.sync_folder_fd(fd)


def _complete(item: Item, result: Comparison, target: Target, run: _Run) -> None:
    """Add to a session that is there what it lacks; each file appears whole, and nothing is replaced."""
    session = item.session
    path = target.find(session.id)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "the session was removed meanwhile", session.id)
    mark = target.read_mark(session.id) or Mark(run.id, session.sessions_path)
    item.files, item.left = list(result.same), list(session.left)
    before = len(item.files)
    fd = _fs.open_folder(path)
    try:
        for file in result.missing:
            _copy(item, file, fd, run, _slip_in)
        _prove(item, fd)
    finally:
        _fs.active().close(fd)
    added = item.files[before:]
    item.completed = [facts.name for facts in added]
    mark.files.update({facts.name: (facts.size_bytes, facts.sha256) for facts in item.files})
    target.write_mark(session.id, mark)
    item.status = Status.COMPLETED if added else Status.PRESENT
    item.reason = "files that were missing were added" if added else ""


def _slip_in(item: Item, file: SourceFile, name: str, folder_fd: int) -> FileFacts:
    fs = _fs.active()
    temp = _fs.temp_name()
    try:
        facts = _copy_file(item, file, temp, folder_fd)
        try:
            fs.link(temp, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _fs.NO_HARD_LINKS:
                raise
            fs.rename(temp, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    finally:
        _fs.unlink_if_there(temp, folder_fd)
    return facts


# --- moving -------------------------------------------------------------------------------------------------------


def _move_batch(batch: Batch, target: Target) -> None:
    """Remove from the source what is proven to be here. What is in use, or has changed since, stays."""
    for item in batch.items:
        if item.status not in {Status.ADDED, Status.COMPLETED, Status.PRESENT} or item.left:
            continue
        try:
            if not _still_identical(item, target):
                item.notes.append("its source has changed since it was copied, and was not removed")
                continue
            _remove_source(item.session)
            item.source_removed = True
        except SessionBusyError as error:
            item.notes.append(f"its source is in use and was not removed: {error}")
        except OSError as error:
            item.notes.append(f"its source could not be removed: {error.strerror or error}")


def _still_identical(item: Item, target: Target) -> bool:
    path = target.find(item.session.id)
    if path is None:
        return False
    fd = _fs.open_folder(path)
    try:
        return compare(item.session, fd).identical
    finally:
        _fs.active().close(fd)


def _remove_source(session: SourceSession) -> None:
    """Remove a session from the source; stopped in between, the next run finds a part of it, and removes that too."""
    fs = _fs.active()
    folder = os.path.join(session.sessions_path, session.id)
    root = _fs.open_folder(session.sessions_path)
    try:
        # Sides first: without the main file, each would pass for a session of its own.
        flats = [place for place in session.places if place != session.id]
        for place in sorted(flats, key=lambda place: place == session.id + layout.FLAT_SUFFIX):
            fs.unlink(place, dir_fd=root)
        if session.id in session.places:
            hold = HoldLock(
                os.path.join(folder, layout.HOLD), gone=session_gone(session.id, session.sessions_path)
            )
            hold.take("kimi-sessions migrate")
            try:
                _fs.remove_tree(session.id, dir_fd=root)
            finally:
                hold.close()
        _fs.sync_folder_fd(root)
    finally:
        fs.close(root)
