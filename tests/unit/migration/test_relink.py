"""Stores follow projects that were moved or renamed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.seam import UnsyncedFs, failing_calls

from kimi_sessions import ProjectLayout, Session
from kimi_sessions._fs import using
from kimi_sessions.layout import work_dir_key
from kimi_sessions.migration import PathMap, Relink, apply_relink, parse_pair, plan_relink

from .conftest import Source, files, tree


def relink(source: Source, *pairs: tuple[str, str]) -> Relink:
    """Relink a share dir."""
    paths = PathMap(pairs)
    plan = plan_relink(source.layout, paths)
    with using(UnsyncedFs()):
        apply_relink(source.layout, paths, plan)
    return plan


def registry(source: Source) -> list[dict[str, Any]]:
    """Give the entries of kimi.json."""
    entries: list[dict[str, Any]] = json.loads((source.share / "kimi.json").read_bytes())["work_dirs"]
    return entries


def test_a_renamed_project_keeps_its_sessions_and_its_sibling_is_untouched(
    source: Source, home: Path
) -> None:
    """Folders below move too, text of conversations does not, and a second run finds nothing to do."""
    for path in ("/p/foo", "/p/foo/sub", "/p/foo-docker"):
        source.register(path, last="x")
        folder = source.session(path, path[1:].replace("/", "-"), f"I work in {path} and /p/foo")
        (folder / "state.json").write_text(
            json.dumps({"additional_dirs": ["/p/foo/lib", "/p/foo-docker"], "own": 1})
        )
    before = files(source.share / "sessions")
    paths = PathMap([("/p/foo", "/p/bar")])
    looked = tree(source.share)
    plan_relink(source.layout, paths)
    assert tree(source.share) == looked

    plan = relink(source, ("/p/foo", "/p/bar"))

    assert [(step.old, step.new, step.sessions) for step in plan.steps] == [
        ("/p/foo", "/p/bar", 1),
        ("/p/foo/sub", "/p/bar/sub", 1),
    ]
    assert [entry["path"] for entry in registry(source)] == ["/p/bar", "/p/bar/sub", "/p/foo-docker"]
    after = files(source.share / "sessions")
    for old, new in (("/p/foo", "/p/bar"), ("/p/foo/sub", "/p/bar/sub"), ("/p/foo-docker", "/p/foo-docker")):
        name = old[1:].replace("/", "-")
        for file in ("context.jsonl", "wire.jsonl"):
            assert after[f"{work_dir_key(new)}/{name}/{file}"] == before[f"{work_dir_key(old)}/{name}/{file}"]
        state = json.loads((source.folder(new) / name / "state.json").read_bytes())
        assert state == {"additional_dirs": ["/p/bar/lib", "/p/foo-docker"], "own": 1}
    again = relink(source, ("/p/foo", "/p/bar"))
    assert (again.steps, again.dirs, again.refused) == ([], [], [])


async def test_a_store_from_windows_is_found_under_its_new_paths(
    source: Source, tmp_path: Path, home: Path
) -> None:
    """Slashes become this system's, and the sessions are listed for the new work dir."""
    source.register("C:\\git\\p", "C:\\gitty")
    source.session("C:\\git\\p", "one")
    relink(source, parse_pair(f"C:\\git={tmp_path}/git"))
    assert [entry["path"] for entry in registry(source)] == [f"{tmp_path}/git/p", "C:\\gitty"]
    listed = await Session.list(tmp_path / "git" / "p", layout=source.layout)
    assert [session.id for session in listed] == ["one"]


def test_what_was_begun_at_the_new_place_is_kept(source: Source, home: Path) -> None:
    """Two folders become one; what has the same name stays where it was, and is named."""
    source.register("/p/old", last="a")
    source.register("/p/new")
    for name in ("a", "b"):
        source.session("/p/old", name)
    (source.folder("/p/old") / "flat.jsonl").write_text("{}\n")
    source.session("/p/new", "b", "begun at the new place")
    before = files(source.folder("/p/new"))
    plan = relink(source, ("/p/old", "/p/new"))
    assert [step.left for step in plan.steps] == [["b: something of this name is at the new place already"]]
    assert sorted(os.listdir(source.folder("/p/new"))) == ["a", "b", "flat.jsonl"]
    assert files(source.folder("/p/new")).items() >= before.items()
    assert os.listdir(source.folder("/p/old")) == ["b"]
    assert [entry["path"] for entry in registry(source)] == ["/p/old", "/p/new"]
    shutil.rmtree(source.folder("/p/old") / "b")
    relink(source, ("/p/old", "/p/new"))
    assert registry(source) == [{"path": "/p/new", "kaos": "local", "last_session_id": "a"}]


def test_a_path_that_the_registry_lost_is_relinked_by_its_key(source: Source, home: Path) -> None:
    """The folder is still there under the old path's hash."""
    source.session("/p/old", "one")
    relink(source, ("/p/old", "/p/new"))
    assert os.listdir(source.folder("/p/new")) == ["one"]


def test_whatever_call_fails_the_next_run_finishes_the_relink(tmp_path: Path, home: Path) -> None:
    """A stop at any step leaves every session in one of the two places, and the same command completes it."""
    for nth, fs in enumerate(failing_calls()):
        share = tmp_path / f"share-{nth}"
        share.mkdir()
        source = Source(share)
        source.register("/p/old", "/p/old/sub", "/p/new")
        for path in ("/p/old", "/p/old/sub"):
            state = source.session(path, "one") / "state.json"
            state.write_text(json.dumps({"additional_dirs": ["/p/old/lib"]}))
        source.session("/p/new", "two")
        paths = PathMap([("/p/old", "/p/new")])
        with using(fs):
            try:
                apply_relink(source.layout, paths, plan_relink(source.layout, paths))
            except OSError:
                pass  # told to the caller; what counts is what the disk holds now
        contexts = list((share / "sessions").rglob("context.jsonl"))
        assert len(contexts) == 3, fs.failed
        relink(source, ("/p/old", "/p/new"))
        assert sorted(os.listdir(source.folder("/p/new"))) == ["one", "two"], fs.failed
        assert [entry["path"] for entry in registry(source)] == ["/p/new/sub", "/p/new"], fs.failed
        for path in ("/p/new", "/p/new/sub"):
            state = source.folder(path) / "one" / "state.json"
            assert json.loads(state.read_bytes()) == {"additional_dirs": ["/p/new/lib"]}, fs.failed


async def test_a_projects_own_store_follows_its_folder(tmp_path: Path, home: Path) -> None:
    """The registry learns the new place; approvals stay sealed though a path in them changes."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    session = await Session.create(old, "one")
    session.state.additional_dirs = [str(old / "lib"), "/elsewhere"]
    session.state.approval.yolo = True
    session.save_state()
    old.rename(new)
    paths = PathMap([(str(old), str(new))])
    plan = plan_relink(ProjectLayout(), paths)
    apply_relink(ProjectLayout(), paths, plan)
    assert plan.refused == []
    moved = await Session.find(new, "one")
    assert moved is not None
    assert moved.trusted
    assert moved.state.approval.yolo
    assert moved.state.additional_dirs == [str(new / "lib"), "/elsewhere"]
    assert [s.work_dir for s in await Session.list_all(include_empty=True)] == [new]


async def test_a_planted_approval_is_not_sealed_by_a_relink(tmp_path: Path, home: Path) -> None:
    """A state whose approvals this user did not seal is left as it is, and named."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    session = await Session.create(old, "one")
    (session.path / "state.json").write_text(
        json.dumps({"additional_dirs": [str(old)], "approval": {"yolo": True}})
    )
    old.rename(new)
    paths = PathMap([(str(old), str(new))])
    plan = plan_relink(ProjectLayout(), paths)
    apply_relink(ProjectLayout(), paths, plan)
    assert "left as they are" in plan.refused[0][1]
    moved = await Session.find(new, "one")
    assert moved is not None
    assert not moved.state.approval.yolo


@pytest.mark.parametrize(
    "text,pair",
    [
        ("/a=/b", ("/a", "/b")),
        ("/a=b/p=/new", ("/a=b/p", "/new")),
        ("C:\\git=/home/u/git", ("C:\\git", "/home/u/git")),
        ("0123abcd=.", ("0123abcd", ".")),
        ("key=dir", ("key", "dir")),
    ],
)
def test_a_pair_is_split_where_both_sides_can_stand(text: str, pair: tuple[str, str]) -> None:
    """A path may hold the sign that splits."""
    assert parse_pair(text) == pair


@pytest.mark.parametrize("text", ["", "/a", "=/b", "/a="])
def test_half_a_pair_is_no_pair(text: str) -> None:
    """There is nothing to guess."""
    with pytest.raises(ValueError, match="is not OLD=NEW"):
        parse_pair(text)


@pytest.mark.parametrize(
    "path,expected",
    [
        ("/p/foo", "/n"),
        ("/p/foo/", "/n"),
        ("/p/foo/a", "/n/a"),
        ("/p/foo/deep/er", "/deep/er"),
        ("/p/foo-docker", None),
        ("/p", None),
        ("d:/Work/x", "/w/x"),
        ("D:\\Work\\x", "/w/x"),
        ("D:\\Works", None),
    ],
)
def test_a_prefix_ends_at_a_name(path: str, expected: str | None) -> None:
    """The longest pair that fits counts."""
    paths = PathMap([("/p/foo", "/n"), ("/p/foo/deep", "/deep"), ("D:\\Work\\", "/w")])
    assert paths.apply(path) == expected
