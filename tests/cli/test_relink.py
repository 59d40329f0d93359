"""`kimi-sessions relink` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Make, Run


def test_a_dry_run_comes_first_and_changes_nothing(run: Run, corpus: Callable[[str], Path]) -> None:
    """It names each work dir, its new place and how many sessions go along."""
    share = corpus("1.52.0")
    before = (share / "kimi.json").read_bytes()
    done = run("--share-dir", str(share), "relink", "/home/dev/1.52.0/proj-a", "/srv/a", "--dry-run")
    assert done.code == 0
    assert "+ /home/dev/1.52.0/proj-a -> /srv/a: 42 sessions" in done.out
    assert "nothing was changed" in done.out
    assert (share / "kimi.json").read_bytes() == before
    data = run(
        "--share-dir", str(share), "relink", "/home/dev/1.52.0/proj-a", "/srv/a", "--dry-run", "--json"
    ).data
    assert data["work_dirs"] == [
        {"old": "/home/dev/1.52.0/proj-a", "new": "/srv/a", "sessions": 42, "done": False, "left": []}
    ]


def test_all_sessions_are_listed_at_the_new_place(run: Run, corpus: Callable[[str], Path]) -> None:
    """Same sessions, same order; again there is nothing to do."""
    share = corpus("1.52.0")
    old = "/home/dev/1.52.0/proj b ünïcode 项目"
    before = [s["id"] for s in run("--share-dir", str(share), "-w", old, "list", "--json").data["sessions"]]
    assert run("--share-dir", str(share), "relink", "--map", "/home/dev/1.52.0=/srv/all").code == 0
    after = run("--share-dir", str(share), "-w", "/srv/all/proj b ünïcode 项目", "list", "--json").data[
        "sessions"
    ]
    assert [s["id"] for s in after] == before != []
    assert run("--share-dir", str(share), "-w", old, "list", "--json").data["sessions"] == []
    again = run("--share-dir", str(share), "relink", "--map", "/home/dev/1.52.0=/srv/all")
    assert (again.code, again.out) == (0, "nothing to relink\n")
    assert again.err == "note: no known work dir is at or below /home/dev/1.52.0\n"


def test_a_moved_project_is_followed_and_a_copied_one_is_not(run: Run, make: Make, work_dir: Path) -> None:
    """The store went with its folder; where the old one is still there, nothing has moved."""
    make("hello")
    new = work_dir.with_name("elsewhere")
    refused = run("relink", str(work_dir), str(new))
    assert refused.code == 5
    assert "there is no store in" in refused.err
    work_dir.rename(new)
    assert run("relink", str(work_dir), str(new)).code == 0
    listed = run("list", "--all-dirs", "--json").data["sessions"]
    assert [(s["work_dir"], s["trusted"]) for s in listed] == [(str(new), True)]


def test_a_project_that_left_a_link_behind_is_not_said_to_be_where_it_was(
    run: Run, make: Make, work_dir: Path
) -> None:
    """Both paths lead to the sessions while the link is there; once it is gone, the new one is what is left."""
    make("hello")
    new = work_dir.with_name("elsewhere")
    work_dir.rename(new)
    work_dir.symlink_to(new)
    done = run("relink", str(work_dir), str(new))
    assert "not moved" not in done.err
    assert f"the same folder as {new}" in done.err
    for place in (work_dir, new):
        assert "hello" in run("list", "-w", str(place)).out
    work_dir.unlink()
    assert run("relink", str(work_dir), str(new)).code == 0
    listed = run("list", "--all-dirs", "--json").data["sessions"]
    assert [(s["work_dir"], s["trusted"]) for s in listed] == [(str(new), True)]


@pytest.mark.parametrize("form", ["names", "dots", "map"])
def test_a_move_said_in_names_of_the_current_folder_is_not_taken_for_nothing(
    run: Run, make: Make, work_dir: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """After `mv old new`, `relink old new` finds the project that was registered by its whole path."""
    make("hello")
    new = work_dir.with_name("elsewhere")
    work_dir.rename(new)
    monkeypatch.chdir(new.parent)
    old = work_dir.name
    args = {
        "names": (old, "elsewhere"),
        "dots": (f"./{old}/", "./elsewhere"),
        "map": ("--map", f"{old}=elsewhere"),
    }
    done = run("relink", *args[form])
    assert (done.code, done.out) == (0, f"+ {work_dir} -> {new}: 1 session\n")
    listed = run("list", "--all-dirs", "--json").data["sessions"]
    assert [s["work_dir"] for s in listed] == [str(new)]


def test_a_damaged_registry_is_left_alone(run: Run, corpus: Callable[[str], Path]) -> None:
    """It is named, with exit 7 where it would have to be written."""
    share = corpus("1.52.0")
    (share / "kimi.json").write_text("{")
    done = run("--share-dir", str(share), "relink", "/home/dev/1.52.0/proj-a", "/srv/a")
    assert done.code == 7
    assert (share / "kimi.json").read_text() == "{"


def test_what_moved_has_to_be_said(run: Run, tmp_path: Path) -> None:
    """Neither nothing nor half a pair."""
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "kimi.json").write_text(json.dumps({"work_dirs": []}))
    for args in ((), ("/only/old",), ("--map", "/only/old")):
        assert run("--share-dir", str(tmp_path / "share"), "relink", *args).code == 2
