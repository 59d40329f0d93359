"""The way back: what one run added goes, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kimi_sessions import DamagedError, Session, ShareLayout, SourceNotFoundError, UnsupportedVersionError
from kimi_sessions.migration import Plan, plan_from_share, plan_to_share, roll_back

from .conftest import Migrate, Source, files, quickly


def report_of(plan: Plan) -> Path:
    """Give the path of the report of a plan's one batch that wrote one."""
    (path,) = {batch.report_path for batch in plan.batches if batch.report_path is not None}
    return Path(path)


async def test_a_rollback_takes_away_what_the_run_added(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """What was there before stays, byte for byte, and so does the last session."""
    own = await Session.create(work_dir, "own")
    await own.context.append({"role": "user", "content": "here"})
    before = files(work_dir / ".kimi" / "sessions")
    for name in ("one", "two"):
        source.session(work_dir, name)
    result = roll_back(report_of(migrate(work_dir)))
    assert sorted(name for name, _ in result.removed) == ["one", "two"]
    assert result.refused == []
    assert files(work_dir / ".kimi" / "sessions") == before
    assert os.listdir(work_dir / ".kimi" / "trash") == []


async def test_what_has_changed_since_is_refused(source: Source, migrate: Migrate, work_dir: Path) -> None:
    """A longer log, a new file, a tag: each is something of the user's that came after."""
    for name in ("grown", "added", "tagged", "same", "read"):
        source.session(work_dir, name)
    report = report_of(migrate(work_dir))
    sessions = {session.id: session for session in await Session.list(work_dir)}
    await sessions["grown"].context.append({"role": "user", "content": "more"})
    (sessions["added"].path / "note.txt").write_text("mine")
    await sessions["tagged"].tag("keep")
    await sessions["read"].turns()
    looked = roll_back(report, dry_run=True)
    assert len(os.listdir(work_dir / ".kimi" / "sessions")) == 5
    result = roll_back(report)
    assert looked.as_dict() == result.as_dict()
    assert {name for name, _ in result.removed} == {"same", "read"}
    assert dict(result.refused) == {
        "grown": "context.jsonl has changed since",
        "added": "note.txt was added since",
        "tagged": "it was tagged, pinned or made the parent of something since",
    }
    assert sorted(os.listdir(work_dir / ".kimi" / "sessions")) == ["added", "grown", "tagged"]


def test_the_only_copy_is_not_taken_away(source: Source, migrate: Migrate, work_dir: Path) -> None:
    """After a move, or once the source is gone, there would be nothing left."""
    source.session(work_dir, "moved")
    moved = roll_back(report_of(migrate(work_dir, move=True)))
    source.session(work_dir, "gone")
    report = report_of(migrate(work_dir))
    shutil.rmtree(source.share)
    gone = roll_back(report)
    assert moved.removed == gone.removed == []
    assert sorted(os.listdir(work_dir / ".kimi" / "sessions")) == ["gone", "moved"]


async def test_a_held_session_is_not_taken_away(source: Source, migrate: Migrate, work_dir: Path) -> None:
    """Whoever works on it is named."""
    source.session(work_dir, "one")
    report = report_of(migrate(work_dir))
    session = await Session.find(work_dir, "one")
    assert session is not None
    async with session.hold():
        result = roll_back(report)
    assert result.removed == []
    assert "held by" in result.refused[0][1]


def test_a_rollback_can_be_repeated_and_the_sessions_brought_again(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """What is gone counts as taken away; a later migration starts from nothing."""
    source.register(work_dir, last="one")
    source.session(work_dir, "one")
    report = report_of(migrate(work_dir))
    last = work_dir / ".kimi" / "work_dir.json"
    assert json.loads(last.read_bytes())["last_session_id"] == "one"
    assert [name for name, _ in roll_back(report).removed] == ["one"]
    assert json.loads(last.read_bytes())["last_session_id"] is None
    assert [name for name, _ in roll_back(report).removed] == ["one"]
    assert [item.status.value for item in migrate(work_dir).items] == ["added"]


def test_a_run_over_many_projects_is_taken_back_by_any_of_its_reports(
    source: Source, tmp_path: Path, home: Path
) -> None:
    """Each project has the account of its own sessions, and knows where the others lie."""
    projects = [tmp_path / name for name in ("a", "b", "c")]
    for project in projects:
        project.mkdir()
        source.register(project)
        source.session(project, f"in-{project.name}")
    reports = quickly(plan_from_share(source.layout, None))
    assert len(reports) == 3
    result = roll_back(Path(reports[1]))
    assert sorted(name for name, _ in result.removed) == ["in-a", "in-b", "in-c"]
    assert all(os.listdir(project / ".kimi" / "sessions") == [] for project in projects)


def test_only_the_added_file_of_a_completed_session_is_taken_back(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """The session itself was there before that run."""
    folder = source.session(work_dir, "one")
    migrate(work_dir)
    (folder / "late.txt").write_text("late")
    report = report_of(migrate(work_dir))
    roll_back(report)
    left = os.listdir(work_dir / ".kimi" / "sessions" / "one")
    assert "late.txt" not in left
    assert "context.jsonl" in left
    assert [item.status.value for item in migrate(work_dir).items] == ["completed"]


async def test_what_went_to_a_share_dir_comes_back_out(tmp_path: Path, work_dir: Path) -> None:
    """The same holds in the other direction."""
    session = await Session.create(work_dir, "one")
    await session.context.append({"role": "user", "content": "here"})
    share = ShareLayout(tmp_path / "share")
    (report,) = quickly(plan_to_share(share, work_dir))
    assert Path(report).parent == tmp_path / "share" / "migration"
    assert await Session.find(work_dir, "one", layout=share) is not None
    assert [name for name, _ in roll_back(Path(report)).removed] == ["one"]
    assert await Session.find(work_dir, "one", layout=share) is None
    assert await Session.find(work_dir, "one") is not None


@pytest.mark.parametrize(
    "text,error",
    [
        (None, SourceNotFoundError),
        ("", DamagedError),
        ("[]", DamagedError),
        ('{"version": 1}', DamagedError),
        ('{"work_dirs": []}', DamagedError),
        ('{"version": 99, "work_dirs": [], "run": "x", "reports": []}', UnsupportedVersionError),
    ],
)
def test_a_file_that_is_no_report_is_refused(
    tmp_path: Path, text: str | None, error: type[Exception]
) -> None:
    """A rollback does nothing by halves."""
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error):
        roll_back(path)
