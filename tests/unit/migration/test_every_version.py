"""Every released client's share dir goes into projects and out again, and nothing of it is lost or changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_sessions import ProjectLayout, Session, ShareLayout
from kimi_sessions.layout import work_dir_key
from kimi_sessions.migration import PathMap, Plan, Status, plan_from_share, plan_to_share

from .conftest import CORPUS, OURS, files, quickly, tree

VERSIONS = sorted(path.name for path in CORPUS.iterdir())


def projects_of(share: Path, version: str, root: Path) -> tuple[PathMap, dict[str, Path]]:
    """Make the work dirs of a share dir below ``root``; give the map that leads there, and old to new."""
    made = {}
    for entry in json.loads((share / "kimi.json").read_bytes())["work_dirs"]:
        path = root / Path(entry["path"]).name
        path.mkdir(parents=True, exist_ok=True)
        made[entry["path"]] = path
    return PathMap([(f"/home/dev/{version}", str(root))]), made


def carried(plan: Plan) -> dict[str, Status]:
    """Map session ids to what became of them."""
    return {item.session.id: item.status for item in plan.items}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_versions_sessions_come_along_whole_and_the_list_stays_the_same(
    version: str, corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """Ids, titles, order and bytes are those of the source, which is untouched; a second run changes nothing."""
    share = corpus(version)
    before = tree(share)
    paths, work_dirs = projects_of(share, version, tmp_path / "projects")

    plan = plan_from_share(ShareLayout(share), None, paths=paths)
    quickly(plan)

    assert list(plan.not_carried()) == []
    assert set(carried(plan).values()) == {Status.ADDED}
    assert tree(share) == before

    # Flat files, which find and list would move: compared with a second copy, where they do.
    listed = corpus(version)
    for old, new in work_dirs.items():
        theirs = await Session.list(old, layout=ShareLayout(listed), include_empty=True)
        ours = await Session.list(new, include_empty=True)
        assert [(s.id, s.title, s.updated_at, s.empty, s.archived) for s in ours] == [
            (s.id, s.title, s.updated_at, s.empty, s.archived) for s in theirs
        ]
        assert all(session.trusted for session in ours)
        last, their_last = (
            await Session.continue_(new),
            await Session.continue_(old, layout=ShareLayout(listed)),
        )
        assert (last and last.id) == (their_last and their_last.id)
        was = files(listed / "sessions" / work_dir_key(old))
        now = files(new / ".kimi" / "sessions")
        assert {name: digest for name, digest in now.items() if Path(name).name not in OURS} == was

    once = {name: what for name, what in tree(tmp_path / "projects").items() if not name.endswith(".hold")}
    again = plan_from_share(ShareLayout(share), None, paths=paths)
    assert set(carried(again).values()) == {Status.PRESENT}
    assert quickly(again) == []
    assert set(carried(again).values()) == {Status.PRESENT}
    assert {n: w for n, w in tree(tmp_path / "projects").items() if not n.endswith(".hold")} == {
        **once,
        **{n: w for n, w in tree(tmp_path / "projects").items() if n in once and n.endswith("migration")},
    }


@pytest.mark.parametrize("version", ["0.58", "0.60", "1.12.0", "1.52.0"])
async def test_what_goes_back_to_a_share_dir_is_byte_for_byte_what_came(
    version: str, corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """Out of a share dir and into an empty one: the same files, with our own notes beside them and no seal."""
    share = corpus(version)
    paths, work_dirs = projects_of(share, version, tmp_path / "projects")
    quickly(plan_from_share(ShareLayout(share), None, paths=paths))
    back = ShareLayout(tmp_path / "back")

    plan = plan_to_share(back, None, paths=PathMap([(str(tmp_path / "projects"), f"/home/dev/{version}")]))
    quickly(plan)

    assert list(plan.not_carried()) == []
    moved = corpus(version)
    for old in work_dirs:
        theirs = await Session.list(old, layout=ShareLayout(moved), include_empty=True)  # moves flat files
        ours = await Session.list(old, layout=back, include_empty=True)
        assert [(s.id, s.title, s.updated_at) for s in ours] == [
            (s.id, s.title, s.updated_at) for s in theirs
        ]
    was, now = files(moved / "sessions"), files(back.share / "sessions")
    added = {name for name in now if name not in was}
    assert {name: now[name] for name in now if name not in added} == was
    assert {Path(name).name for name in added} <= {"session.json", "context.jsonl"}
    assert all(
        (back.share / "sessions" / name).stat().st_size == 0 for name in added if name.endswith(".jsonl")
    )
    again = plan_to_share(back, None, paths=PathMap([(str(tmp_path / "projects"), f"/home/dev/{version}")]))
    assert set(carried(again).values()) == {Status.PRESENT}


async def test_the_projects_sessions_know_where_they_came_from(
    corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """session.json of a migrated session has its beginning and its origin, and files are private."""
    share = corpus("0.58")
    paths, work_dirs = projects_of(share, "0.58", tmp_path / "projects")
    quickly(plan_from_share(ShareLayout(share), None, paths=paths))
    for old, new in work_dirs.items():
        for session in await Session.list(new, include_empty=True):
            note = json.loads((session.path / "session.json").read_bytes())
            assert note["origin"]["work_dir"] == old
            assert note["origin"]["era"] == "flat"
            assert note["created_at"] == session.created_at
            assert (session.path.stat().st_mode & 0o777, session.context_file.stat().st_mode & 0o777) == (
                0o700,
                0o600,
            )
    assert (work_dirs["/home/dev/0.58/proj-a"] / ".kimi" / ".gitignore").read_text() == "*\n"
    assert ProjectLayout().migration_path(work_dirs["/home/dev/0.58/proj-a"]).is_dir()
