"""What a migration from a share dir does with everything that is not an ordinary session in an ordinary place."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.seam import UnsyncedFs

from kimi_sessions import Session
from kimi_sessions._fs import using
from kimi_sessions.migration import PathMap, Plan, Status, apply_plan, plan_from_share

from .conftest import Migrate, Source, files, quickly, tree


def statuses(plan: Plan) -> dict[str, Status]:
    """Map session ids to what became of them."""
    return {item.session.id: item.status for item in plan.items}


def reasons(plan: Plan) -> list[str]:
    """Give what is not carried: session, file, reason."""
    return [
        f"{item.session.id if item else ''}|{left.file}|{left.reason}" for _, item, left in plan.not_carried()
    ]


def sessions_in(work_dir: Path) -> Path:
    """Give a project's sessions folder."""
    return work_dir / ".kimi" / "sessions"


# --- what goes where ----------------------------------------------------------------------------------------------


def test_only_the_sessions_of_the_work_dir_are_taken(
    source: Source, migrate: Migrate, tmp_path: Path, work_dir: Path
) -> None:
    """Other work dirs of the source are counted, and left where they are."""
    other = tmp_path / "other"
    other.mkdir()
    source.register(work_dir, other)
    source.session(work_dir, "mine")
    source.session(other, "theirs")
    plan = migrate(work_dir)
    assert statuses(plan) == {"mine": Status.ADDED}
    assert plan.elsewhere == 1
    assert not (other / ".kimi").exists()


def test_a_work_dir_that_the_registry_lost_is_found_by_its_key(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """The folder's name is the hash of the path, so the work dir one stands in can be recognised."""
    source.session(work_dir, "mine")
    assert statuses(migrate(work_dir)) == {"mine": Status.ADDED}


def test_a_work_dir_reached_by_a_link_gets_the_sessions_of_both_spellings(
    source: Source, migrate: Migrate, tmp_path: Path, work_dir: Path
) -> None:
    """The client kept two folders for two spellings of one place; here they are one."""
    link = tmp_path / "link"
    link.symlink_to(work_dir)
    source.register(work_dir, link)
    source.session(work_dir, "one")
    source.session(link, "two")
    assert statuses(migrate(work_dir)) == {"one": Status.ADDED, "two": Status.ADDED}
    assert sorted(os.listdir(sessions_in(work_dir))) == ["one", "two"]


def test_a_moved_path_is_mapped_at_name_boundaries(
    source: Source, migrate: Migrate, tmp_path: Path, home: Path
) -> None:
    """OLD=NEW takes what is at OLD or below it; a sibling whose name only begins alike is not meant."""
    for name in ("foo", "foo/sub", "foo-docker"):
        source.register(f"/p/{name}")
        source.session(f"/p/{name}", name.replace("/", "-"))
        (tmp_path / "new" / name).mkdir(parents=True)
    plan = migrate(None, ("/p/foo", str(tmp_path / "new" / "foo")))
    assert statuses(plan) == {"foo": Status.ADDED, "foo-sub": Status.ADDED, "foo-docker": Status.REFUSED}
    assert os.listdir(sessions_in(tmp_path / "new" / "foo" / "sub")) == ["foo-sub"]
    assert "/p/foo-docker is not there" in reasons(plan)[0]
    assert "--make-dirs" in reasons(plan)[0]


def test_a_store_from_windows_is_placed_by_its_paths(
    source: Source, migrate: Migrate, tmp_path: Path, home: Path
) -> None:
    """Drive letter and slashes don't matter; without a map the path is named as another system's."""
    source.register("C:\\git\\p")
    source.session("C:\\git\\p", "one")
    plan = migrate(None)
    assert statuses(plan) == {"one": Status.REFUSED}
    assert "another system" in reasons(plan)[0]
    (tmp_path / "git" / "p").mkdir(parents=True)
    assert statuses(migrate(None, ("c:/git", str(tmp_path / "git")))) == {"one": Status.ADDED}


def test_a_folder_that_no_registry_names_is_listed_and_its_work_dir_found_in_its_records(
    source: Source, tmp_path: Path, work_dir: Path
) -> None:
    """A path counts only if its hash is the folder's name; it is suggested, not taken."""
    lost = tmp_path / "lost ünïcode"
    lost.mkdir()
    folder = source.session(lost, "one")
    with (folder / "context.jsonl").open("a") as log:
        log.write(
            json.dumps({"role": "user", "content": f"look at {lost}/src/main.py please"}, ensure_ascii=False)
            + "\n"
        )
    plan = plan_from_share(source.layout, None)
    (batch,) = plan.batches
    assert batch.target is None
    assert batch.suggestion == str(lost)
    assert f"--map {batch.source.key}=DIR" in batch.reason
    placed = plan_from_share(source.layout, work_dir, paths=PathMap([(batch.source.key, str(lost))]))
    quickly(placed)
    assert statuses(placed) == {"one": Status.ADDED}
    assert os.listdir(sessions_in(lost)) == ["one"]


def test_sessions_of_another_machine_and_imported_ones_go_where_they_are_put(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """Neither has a work dir here, so both are listed with their key until somebody places them."""
    source.register("/remote/p", kaos="ssh")
    folder = source.session("/remote/p", "far", kaos="ssh")
    imported = source.share / "imported_sessions" / "0123456789abcdef"
    imported.mkdir(parents=True)
    (imported / "context.jsonl").write_text('{"role":"user","content":"in a file"}\n')
    (imported / "manifest.json").write_text("{}")
    plan = migrate(None)
    assert set(statuses(plan).values()) == {Status.REFUSED}
    assert ["by ssh (/remote/p)" in reason for reason in reasons(plan)] == [True, False]
    plan = migrate(work_dir, (folder.parent.name, str(work_dir)), ("imported_sessions", str(work_dir)))
    assert statuses(plan) == {"far": Status.ADDED, "0123456789abcdef": Status.ADDED}
    assert (sessions_in(work_dir) / "0123456789abcdef" / "manifest.json").read_text() == "{}"


def test_a_project_whose_store_is_the_source_itself_is_refused(
    home: Path, migrate: Migrate, source: Source
) -> None:
    """For the home folder `.kimi` is the share dir: copying into it would change the source."""
    (home / ".kimi").symlink_to(source.share)
    source.register(home)
    source.session(home, "one")
    plan = migrate(home)
    assert statuses(plan) == {"one": Status.REFUSED}
    assert "inside the source" in reasons(plan)[0]


# --- what a session is made of ------------------------------------------------------------------------------------


def test_every_file_of_a_session_is_carried_under_its_own_name(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """Known or not, empty folders and times included; only locks and a foreign seal stay behind."""
    folder = source.session(work_dir, "one")
    for name in (
        "context_1.jsonl",
        "context_sub_2.jsonl",
        "metadata.json",
        "state.json",
        "uploads/a.png",
        "uploads/.sent",
        "subagents/a1/meta.json",
        "tasks/bash-1/output.log",
        "notifications/n1/event.json",
        "tmpabcdefgh.tmp",
        "deep/er/est/x",
        ".hidden",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(30))
        os.utime(path, ns=(10**18, 10**18 + 7))
    (folder / "empty").mkdir()
    for name in (".lock", ".hold", "seal.json"):
        (folder / name).write_text("{}")
    plan = migrate(work_dir)
    assert reasons(plan) == []
    now = tree(sessions_in(work_dir) / "one")
    was = tree(folder)
    for name in (".lock", ".hold", "seal.json"):
        del was[name]
    assert {name: what for name, what in now.items() if name not in ("session.json", "seal.json")} == was


def test_a_link_a_pipe_and_a_stray_file_are_named_and_left(
    source: Source, migrate: Migrate, tmp_path: Path, work_dir: Path
) -> None:
    """Nothing is followed out of the source; the session is carried without them, and says so."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = source.session(work_dir, "one")
    (folder / "uploads").mkdir()
    (folder / "uploads" / "link.txt").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    (folder.parent / "linked").symlink_to(tmp_path)
    (folder.parent / "notes.txt").write_text("x")
    (folder.parent / ".DS_Store").write_text("x")
    plan = migrate(work_dir)
    assert statuses(plan) == {"one": Status.ADDED}
    assert sorted(reasons(plan)) == [
        "one|pipe|a pipe; neither followed nor copied",
        "one|uploads/link.txt|a link; neither followed nor copied",
        "|linked|a link; neither followed nor copied",
        "|notes.txt|a file that belongs to no session",
    ]
    assert not (sessions_in(work_dir) / "one" / "uploads" / "link.txt").is_symlink()
    assert "secret" not in "".join(p.read_text() for p in sessions_in(work_dir).rglob("*") if p.is_file())


def test_a_flat_file_beside_a_folder_of_its_name_is_carried_too(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """The folder's file keeps the name, the flat one gets the next number; both conversations are there."""
    folder = source.session(work_dir, "one", "in the folder")
    (folder / "context_1.jsonl").write_text("rotated\n")
    (folder.parent / "one.jsonl").write_text("flat\n")
    (folder.parent / "one_1.jsonl").write_text("flat rotation\n")
    (folder.parent / "two_1.jsonl").write_text('{"role":"user","content":"a session with a number"}\n')
    plan = migrate(work_dir)
    assert statuses(plan) == {"one": Status.ADDED, "two_1": Status.ADDED}
    there = {path.name: path.read_text() for path in (sessions_in(work_dir) / "one").glob("context_*")}
    assert sorted(there.values()) == ["flat\n", "flat rotation\n", "rotated\n"]
    assert statuses(migrate(work_dir)) == {"one": Status.PRESENT, "two_1": Status.PRESENT}


def test_a_plan_that_a_state_points_to_comes_along(
    source: Source, migrate: Migrate, home: Path, work_dir: Path
) -> None:
    """Plans lie below the home folder whatever the share dir is; a slug that leads elsewhere is no slug."""
    (home / ".kimi" / "plans").mkdir(parents=True)
    (home / ".kimi" / "plans" / "big-blue.md").write_text("# Plan\n")
    (home / "outside.md").write_text("no plan")
    for session_id, slug in (("one", "big-blue"), ("two", "../../outside"), ("three", "gone")):
        state = {"plan_slug": slug, "plan_mode": True}
        (source.session(work_dir, session_id) / "state.json").write_text(json.dumps(state))
    plan = migrate(work_dir)
    assert set(statuses(plan).values()) == {Status.ADDED}
    assert (sessions_in(work_dir) / "one" / "plans" / "big-blue.md").read_text() == "# Plan\n"
    assert not list((sessions_in(work_dir) / "two").rglob("*outside*"))
    assert [item.notes for item in plan.items if item.session.id == "three"] != [[]]


async def test_damage_is_carried_byte_for_byte_and_counted(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """Torn lines, broken UTF-8 and a state that does not parse are no reason to leave a session behind."""
    folder = source.session(work_dir, "one")
    with (folder / "wire.jsonl").open("ab") as log:
        log.write(b'{"timestamp": 1, "mess\n\xff\xfe\n')
    (folder / "state.json").write_bytes(b'{"custom_title": "x')
    before = files(folder)
    plan = migrate(work_dir)
    (item,) = plan.items
    assert item.status is Status.ADDED
    assert item.damaged == 2
    assert item.records["wire.jsonl"] == {"(header)": 1, "TurnBegin": 1, "(damaged)": 2}
    now = files(sessions_in(work_dir) / "one")
    assert {name: now[name] for name in before} == before


def test_a_name_that_can_be_no_sessions_is_refused_by_name(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """Old clients took any text; what could be mistaken for an option or a hidden folder is left, and named."""
    source.session(work_dir, "-rf")
    source.session(work_dir, "名前 with space")
    plan = migrate(work_dir)
    assert statuses(plan) == {"-rf": Status.REFUSED, "名前 with space": Status.ADDED}


def test_a_folder_without_a_log_is_carried_as_it_is(source: Source, migrate: Migrate, work_dir: Path) -> None:
    """It is no session, but what somebody uploaded into it is theirs."""
    folder = source.folder(work_dir) / "only-uploads"
    (folder / "uploads").mkdir(parents=True)
    (folder / "uploads" / "a.txt").write_text("mine")
    assert statuses(migrate(work_dir)) == {"only-uploads": Status.ADDED}
    assert files(sessions_in(work_dir) / "only-uploads") == files(folder)


# --- what is there already ----------------------------------------------------------------------------------------


async def test_a_session_that_went_on_here_is_left_as_it_is(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """Migrating again neither overwrites nor complains: all of the source is in it."""
    (source.session(work_dir, "one") / "metadata.json").write_text('{"title": "Old title"}')
    migrate(work_dir)
    session = await Session.find(work_dir, "one")
    assert session is not None
    assert session.title == "Old title"
    await session.rename("New title")
    await session.context.append({"role": "user", "content": "more"})
    before = files(sessions_in(work_dir))
    plan = migrate(work_dir)
    assert statuses(plan) == {"one": Status.CONTINUED}
    assert reasons(plan) == []
    assert files(sessions_in(work_dir)) == before


def test_a_source_that_went_on_is_a_conflict(source: Source, migrate: Migrate, work_dir: Path) -> None:
    """Nothing that is here is overwritten; that the source has more is said."""
    folder = source.session(work_dir, "one")
    migrate(work_dir)
    before = files(sessions_in(work_dir))
    with (folder / "context.jsonl").open("a") as log:
        log.write('{"role":"user","content":"later"}\n')
    plan = migrate(work_dir)
    assert statuses(plan) == {"one": Status.CONFLICT}
    assert "the source has changed since" in reasons(plan)[0]
    assert files(sessions_in(work_dir)) == before


async def test_another_session_of_the_same_id_is_a_conflict(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """A session that was made here keeps its place."""
    session = await Session.create(work_dir, "one")
    await session.context.append({"role": "user", "content": "made here"})
    source.session(work_dir, "one")
    source.session(work_dir, "two")
    before = files(sessions_in(work_dir) / "one")
    plan = migrate(work_dir)
    assert statuses(plan) == {"one": Status.CONFLICT, "two": Status.ADDED}
    assert files(sessions_in(work_dir) / "one") == before


def test_a_session_that_was_removed_here_is_brought_again(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """What is there is decided session by session, not store by store."""
    source.session(work_dir, "one")
    source.session(work_dir, "two")
    migrate(work_dir)
    shutil.rmtree(sessions_in(work_dir) / "one")
    assert statuses(migrate(work_dir)) == {"one": Status.ADDED, "two": Status.PRESENT}


class Forbidding(UnsyncedFs):
    """A file system on which one name may not be opened for reading."""

    name = "a.txt"

    @classmethod
    def open(cls, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """Refuse the one name."""
        if os.fspath(path) == cls.name and not flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return os.open(path, flags, *args, **kwargs)


def test_a_file_that_may_not_be_read_is_named_and_brought_later(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """The session comes without it; once it can be read, another run adds what was missing."""
    folder = source.session(work_dir, "one")
    (folder / "uploads").mkdir()
    (folder / "uploads" / "a.txt").write_text("mine")
    plan = plan_from_share(source.layout, work_dir)
    with using(Forbidding()):
        apply_plan(plan)
    assert reasons(plan) == ["one|uploads/a.txt|can't be read: Permission denied"]
    assert statuses(plan) == {"one": Status.ADDED}
    assert statuses(migrate(work_dir)) == {"one": Status.COMPLETED}
    assert (sessions_in(work_dir) / "one" / "uploads" / "a.txt").read_text() == "mine"
    assert statuses(migrate(work_dir)) == {"one": Status.PRESENT}


def test_a_file_that_turned_up_later_in_the_source_is_added(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """A session that is otherwise as it was gets what it lacks."""
    folder = source.session(work_dir, "one")
    migrate(work_dir)
    (folder / "uploads").mkdir()
    (folder / "uploads" / "a.txt").write_text("mine")
    assert statuses(migrate(work_dir)) == {"one": Status.COMPLETED}
    assert (sessions_in(work_dir) / "one" / "uploads" / "a.txt").read_text() == "mine"
    assert statuses(migrate(work_dir)) == {"one": Status.PRESENT}


async def test_the_last_session_is_taken_over_unless_there_is_one(
    source: Source, migrate: Migrate, tmp_path: Path, work_dir: Path
) -> None:
    """What `continue` picks comes along; a store that has a last session of its own keeps it."""
    source.register(work_dir, last="one")
    source.session(work_dir, "one")
    source.session(work_dir, "two")
    migrate(work_dir)
    last = await Session.continue_(work_dir)
    assert last is not None
    assert last.id == "one"
    other = tmp_path / "other"
    other.mkdir()
    source.register(other, last="there")
    source.session(other, "there")
    own = await Session.create(other, "own")
    await own.context.append({"role": "user", "content": "here"})
    migrate(other)
    last = await Session.continue_(other)
    assert last is not None
    assert last.id == "own"


# --- moving -------------------------------------------------------------------------------------------------------


def test_a_move_removes_from_the_source_what_is_proven_to_be_here(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """Folders and flat files go; a session of which something could not be carried stays whole."""
    source.register(work_dir, last="one")
    folder = source.session(work_dir, "one")
    (folder.parent / "flat.jsonl").write_text('{"role":"user","content":"x"}\n')
    (folder.parent / "flat_1.jsonl").write_text('{"role":"user","content":"x"}\n')
    source.session(work_dir, "linked").joinpath("link").symlink_to("/")
    plan = migrate(work_dir, move=True)
    assert {item.session.id: item.source_removed for item in plan.items} == {
        "one": True,
        "flat": True,
        "linked": False,
    }
    assert os.listdir(folder.parent) == ["linked"]
    assert (folder.parent / "linked" / "context.jsonl").exists()
    assert sorted(os.listdir(sessions_in(work_dir))) == ["flat", "linked", "one"]


async def test_a_move_leaves_a_session_that_is_in_use(
    source: Source, migrate: Migrate, work_dir: Path
) -> None:
    """A program that holds it still writes to it; it is copied, and stays where it is."""
    source.register(work_dir)
    source.session(work_dir, "one")
    session = await Session.find(work_dir, "one", layout=source.layout)
    assert session is not None
    async with session.hold():
        plan = migrate(work_dir, move=True)
    assert statuses(plan) == {"one": Status.ADDED}
    assert [item.source_removed for item in plan.items] == [False]
    assert (source.folder(work_dir) / "one" / "context.jsonl").exists()
