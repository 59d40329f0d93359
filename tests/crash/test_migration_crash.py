"""A migration that is stopped, at whatever step, is finished by the next one, and its source is never changed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.seam import NAMES, UNBREAKABLE, UnsyncedFs, failing_calls

from kimi_sessions import Session, SessionsError, ShareLayout
from kimi_sessions._fs import using
from kimi_sessions.layout import work_dir_key
from kimi_sessions.migration import Status, apply_plan, plan_from_share, plan_to_share, roll_back
from kimi_sessions.migration.sources import SourceSession

SESSIONS = ("flat", "folder")


def write_source(share: Path, work_dir: Path) -> None:
    """Write a small share dir with a session of each era."""
    folder = share / "sessions" / work_dir_key(str(work_dir))
    folder.mkdir(parents=True)
    (share / "kimi.json").write_text(
        json.dumps({"work_dirs": [{"path": str(work_dir), "kaos": "local", "last_session_id": "folder"}]})
    )
    message = '{"role":"user","content":"hello"}\n'
    (folder / "flat.jsonl").write_text(message)
    (folder / "flat_1.jsonl").write_text(message)
    (folder / "folder" / "uploads").mkdir(parents=True)
    (folder / "folder" / "context.jsonl").write_text(message)
    (folder / "folder" / "state.json").write_text('{"custom_title": "T", "approval": {"yolo": true}}')
    (folder / "folder" / "uploads" / "a.txt").write_text("x" * 3000)


def digest(root: Path) -> str:
    """Hash every name, kind, time and byte below a folder."""
    total = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            facts = path.lstat()
            total.update(f"{path.relative_to(root)} {facts.st_mode} {facts.st_mtime_ns}\n".encode())
            if path.is_file():
                total.update(path.read_bytes())
    return total.hexdigest()


def contents(root: Path) -> dict[str, bytes]:
    """Map the files below a sessions folder to their bytes, without what is ours."""
    ours = ("session.json", "seal.json", ".lock", ".hold")
    found = (path for path in root.rglob("*") if path.is_file() and path.name not in ours)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


EXPECTED = {
    "flat/context.jsonl": b'{"role":"user","content":"hello"}\n',
    "flat/context_1.jsonl": b'{"role":"user","content":"hello"}\n',
    "folder/context.jsonl": b'{"role":"user","content":"hello"}\n',
    "folder/state.json": b'{"custom_title": "T", "approval": {"yolo": true}}',
    "folder/uploads/a.txt": b"x" * 3000,
}


async def finish(share: Path, work_dir: Path, why: str) -> None:
    """Run a migration to its end and require that all is there, sealed and whole."""
    before = digest(share)
    plan = plan_from_share(ShareLayout(share), work_dir)
    with using(UnsyncedFs()):
        apply_plan(plan)
    assert {item.session.id for item in plan.items} == set(SESSIONS), why
    assert {item.status for item in plan.items} <= {Status.ADDED, Status.PRESENT, Status.COMPLETED}, why
    assert list(plan.not_carried()) == [], why
    assert contents(work_dir / ".kimi" / "sessions") == EXPECTED, why
    assert not [name for name in os.listdir(work_dir / ".kimi") if name.startswith(".creating")], why
    sessions = {session.id: session for session in await Session.list(work_dir)}
    assert set(sessions) == set(SESSIONS), why
    assert all(session.trusted for session in sessions.values()), why
    assert sessions["folder"].state.approval.yolo, why
    last = await Session.continue_(work_dir)
    assert last is not None, why
    assert last.id == "folder", why
    assert digest(share) == before, why


WRITING = frozenset({"write", "mkdir", "replace", "rename", "link", "utime"})


@pytest.mark.parametrize("code,names", [(errno.EIO, NAMES - UNBREAKABLE), (errno.ENOSPC, WRITING)])
async def test_whatever_call_fails_the_next_run_completes_and_the_source_is_untouched(
    code: int, names: frozenset[str], tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Nth call fails, for every N: what appeared is whole, and the same command brings the rest."""
    for nth, fs in enumerate(failing_calls(code=code, names=names)):
        # A registry of one's own each time: its key has to be made too, and it does not grow.
        monkeypatch.setenv("KIMI_SESSIONS_HOME", str(home / f"state-{nth}"))
        share, work_dir = tmp_path / f"share-{nth}", tmp_path / f"project-{nth}"
        work_dir.mkdir()
        write_source(share, work_dir)
        before = digest(share)
        with using(fs):
            try:
                apply_plan(plan_from_share(ShareLayout(share), work_dir))
            except (OSError, SessionsError):
                pass  # the run says so; what counts is what it left
        why = f"call {fs.nth}: {fs.failed}"
        assert digest(share) == before, why
        sessions = work_dir / ".kimi" / "sessions"
        for name in os.listdir(sessions) if sessions.is_dir() else ():
            # A file of the source that could not be read may be missing, for the next run to add. Nothing is torn.
            there = contents(sessions / name)
            assert all(EXPECTED[f"{name}/{file}"] == data for file, data in there.items()), why
        await finish(share, work_dir, why)


async def test_a_migration_killed_at_random_is_finished_by_the_next(tmp_path: Path, home: Path) -> None:
    """SIGKILL asks nobody: whole sessions are left, and the next run adds the others."""
    generator = random.Random(7)
    for round_number in range(6):
        share, work_dir = tmp_path / f"share-{round_number}", tmp_path / f"project-{round_number}"
        work_dir.mkdir()
        write_source(share, work_dir)
        before = digest(share)
        run_and_kill(share, work_dir, after_s=generator.uniform(0, 0.03))
        assert digest(share) == before
        await finish(share, work_dir, f"round {round_number}")


CHILD = """
import os
import sys
from pathlib import Path
from kimi_sessions import ShareLayout
from kimi_sessions.migration import apply_plan, plan_from_share
share, work_dir = map(Path, sys.argv[1:3])
def die(session, size):
    if session.id in sys.argv[3:]:
        os._exit(1)
print("begin", flush=True)
apply_plan(plan_from_share(ShareLayout(share), work_dir), progress=die)
"""


def run_and_kill(share: Path, work_dir: Path, *, after_s: float) -> None:
    """Start a migration in a process of its own and kill it a moment after it began."""
    child = start(share, work_dir)
    assert child.stdout is not None
    assert child.stdout.readline() == "begin\n"
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


def start(share: Path, work_dir: Path, *, die_at: str = "") -> subprocess.Popen[str]:
    """Start a migration in a process of its own, which dies in the middle of a session if one is named."""
    command = [sys.executable, "-c", CHILD, str(share), str(work_dir), die_at]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_two_migrations_at_once_bring_each_session_once(tmp_path: Path, home: Path) -> None:
    """The second waits for the first, and finds its work done; both end well."""
    share, work_dir = tmp_path / "share", tmp_path / "project"
    work_dir.mkdir()
    write_source(share, work_dir)
    before = digest(share)
    children = [start(share, work_dir) for _ in range(3)]
    for child in children:
        child.communicate()
    assert [child.returncode for child in children] == [0, 0, 0]
    assert digest(share) == before
    reports = list((work_dir / ".kimi" / "migration").glob("report-*.json"))
    added = [
        session["id"]
        for report in reports
        for each in json.loads(report.read_bytes())["work_dirs"]
        for session in each["sessions"]
        if session["status"] == "added"
    ]
    assert sorted(added) == sorted(SESSIONS)
    await finish(share, work_dir, "two at once")


async def test_a_run_that_was_killed_is_taken_back_by_the_report_of_the_next(
    tmp_path: Path, home: Path
) -> None:
    """Sessions that a killed run added, without having come to its report, are the next one's to account for."""
    share, work_dir = tmp_path / "share", tmp_path / "project"
    work_dir.mkdir()
    write_source(share, work_dir)
    child = start(share, work_dir, die_at="flat")
    child.communicate()
    assert os.listdir(work_dir / ".kimi" / "sessions") == ["folder"]
    (report,) = apply_plan(plan_from_share(ShareLayout(share), work_dir))
    assert sorted(name for name, _ in roll_back(Path(report)).removed) == sorted(SESSIONS)
    assert os.listdir(work_dir / ".kimi" / "sessions") == []


async def test_a_run_that_is_interrupted_leaves_an_account(tmp_path: Path, home: Path) -> None:
    """Control-C is no crash: what was added until then is in a report, and nothing half made is left."""
    share, work_dir = tmp_path / "share", tmp_path / "project"
    work_dir.mkdir()
    write_source(share, work_dir)

    def stop(session: SourceSession, size: int) -> None:
        if session.id == "flat":
            raise KeyboardInterrupt

    with using(UnsyncedFs()), pytest.raises(KeyboardInterrupt):
        apply_plan(plan_from_share(ShareLayout(share), work_dir), progress=stop)
    assert not [name for name in os.listdir(work_dir / ".kimi") if name.startswith(".creating")]
    (report,) = (work_dir / ".kimi" / "migration").glob("report-*.json")
    assert [name for name, _ in roll_back(report).removed] == ["folder"]


async def test_whatever_call_fails_on_the_way_to_a_share_dir_the_project_is_untouched(
    tmp_path: Path, home: Path
) -> None:
    """The other direction keeps the same promise."""
    share, work_dir = tmp_path / "share", tmp_path / "project"
    work_dir.mkdir()
    write_source(share, work_dir)
    apply_plan(plan_from_share(ShareLayout(share), work_dir))
    before = digest(work_dir)
    for nth, fs in enumerate(failing_calls(names=WRITING | {"open"})):
        back = ShareLayout(tmp_path / f"back-{nth}")
        with using(fs):
            try:
                apply_plan(plan_to_share(back, work_dir))
            except (OSError, SessionsError):
                pass  # told to the caller
        why = f"call {fs.nth}: {fs.failed}"
        plan = plan_to_share(back, work_dir)
        with using(UnsyncedFs()):
            apply_plan(plan)
        assert list(plan.not_carried()) == [], why
        there = contents(back.sessions_path(work_dir))
        assert there == EXPECTED, why
        assert [session.id for session in await Session.list(work_dir, layout=back, limit=1)], why
        assert digest(work_dir) == before, why
