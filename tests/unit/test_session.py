"""A session is made, found, listed, changed, thrown away and brought back; on both layouts, whoever else is there."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.seam import UnsyncedFs

from kimi_sessions import (
    AmbiguousIdError,
    Layout,
    ProjectLayout,
    Session,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    SessionState,
    ShareLayout,
    UntrustedSessionError,
    WorkDirNotFoundError,
    WriteError,
    _fs,
)
from kimi_sessions.fork import fork_session
from kimi_sessions.layout import work_dir_key
from kimi_sessions.metadata import load_work_dir_meta
from kimi_sessions.session import SessionList, choose
from kimi_sessions.wire import TurnBegin, TurnEnd

HEADER = {"type": "metadata", "protocol_version": "1.10"}
LONG_AGO = 1_000_000.0


def prompt(text: object, timestamp: object = 100.0) -> dict[str, Any]:
    """Give a wire record that begins a turn."""
    return {"timestamp": timestamp, "message": {"type": "TurnBegin", "payload": {"user_input": text}}}


def lines(*values: object) -> bytes:
    """Give a log's bytes; bytes among the values are lines as they are."""
    return b"".join(
        (value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()) + b"\n"
        for value in values
    )


class Place:
    """A work dir in one layout, and what a client that knows nothing of us would put there."""

    def __init__(self, layout: Layout, work_dir: Path) -> None:
        self.layout = layout
        self.work_dir = work_dir

    @property
    def sessions(self) -> Path:
        """The sessions folder."""
        return self.layout.sessions_path(self.work_dir)

    def put(
        self,
        session_id: str,
        *records: object,
        context: bytes | None = b"",
        state: object = None,
        files: dict[str, bytes] | None = None,
    ) -> Path:
        """Write a session's files as another program."""
        folder = self.sessions / session_id
        folder.mkdir(parents=True, exist_ok=True)
        if records:
            (folder / "wire.jsonl").write_bytes(lines(HEADER, *records))
        if context is not None:
            (folder / "context.jsonl").write_bytes(context)
            os.utime(folder / "context.jsonl", (LONG_AGO, LONG_AGO))
        if state is not None:
            data = state if isinstance(state, bytes) else json.dumps(state).encode()
            (folder / "state.json").write_bytes(data)
        for name, data in (files or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def put_flat(self, name: str, data: bytes = b'{"role":"user","content":"hi"}\n') -> Path:
        """Write a flat file as an old client."""
        self.sessions.mkdir(parents=True, exist_ok=True)
        path = self.sessions / name
        path.write_bytes(data)
        return path

    async def create(
        self, session_id: str | None = None, text: str | None = None, at: float = 100.0
    ) -> Session:
        """Make a session of our own, with one prompt if a text is given."""
        session = await Session.create(self.work_dir, session_id, layout=self.layout)
        if text is not None:
            await session.wire_file.append_message(TurnBegin(user_input=text), timestamp=at)
        return session

    async def find(self, session_id: str) -> Session:
        """Find a session that is there."""
        found = await self.maybe(session_id)
        assert found is not None
        return found

    async def maybe(self, session_id: str) -> Session | None:
        """Find a session that may be there."""
        return await Session.find(self.work_dir, session_id, layout=self.layout)

    async def listed(self, **options: Any) -> SessionList:
        """List the sessions."""
        return await Session.list(self.work_dir, layout=self.layout, **options)

    async def ids(self, **options: Any) -> list[str]:
        """List the sessions' ids."""
        return [session.id for session in await self.listed(**options)]

    async def continue_(self, *, allow_untrusted: bool = False) -> str | None:
        """Give the id of the session to go on with."""
        found = await Session.continue_(self.work_dir, layout=self.layout, allow_untrusted=allow_untrusted)
        return None if found is None else found.id

    def last(self) -> str | None:
        """Give the id that is recorded as the last one's."""
        return load_work_dir_meta(self.layout, self.work_dir, self.work_dir).last_session_id


@pytest.fixture(autouse=True)
def unsynced() -> Iterator[None]:
    """Wait for no disk: what is durable when is tested elsewhere."""
    with _fs.using(UnsyncedFs()):
        yield


@pytest.fixture(params=["project", "share"])
def place(request: pytest.FixtureRequest, work_dir: Path, tmp_path: Path) -> Place:
    """Give a work dir in each of the two layouts."""
    return Place(ProjectLayout() if request.param == "project" else ShareLayout(tmp_path / "share"), work_dir)


@pytest.fixture
def project(work_dir: Path) -> Place:
    """Give a work dir in the layout that has seals."""
    return Place(ProjectLayout(), work_dir)


@pytest.fixture
def share(work_dir: Path, tmp_path: Path) -> Place:
    """Give a work dir in Kimi CLI's own layout."""
    return Place(ShareLayout(tmp_path / "share"), work_dir)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | str, int]]:
    """Give names, modes, contents and times of all that lies in a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else "",
            path.lstat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
    }


def stand_in(path: Path, kind: str) -> None:
    """Put something that is no session, or nothing, at a path."""
    if kind == "empty-folder":
        path.mkdir()
    elif kind == "file":
        path.touch()
    elif kind == "broken-link":
        path.symlink_to("nowhere")


# --- create --------------------------------------------------------------------------------------------------------


async def test_a_new_session_is_on_disk_empty_private_and_untitled(place: Place) -> None:
    """With a context, its own document and nothing of anybody else's."""
    before = time.time()
    session = await place.create()
    folder = place.sessions / session.id
    assert session.path == session.dir == folder
    assert (folder / "context.jsonl").read_bytes() == b""
    assert not (folder / "wire.jsonl").exists()
    assert not (folder / "state.json").exists()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert (session.title, session.empty, session.is_empty()) == ("Untitled", True, True)
    assert (session.trusted, session.problems, session.parent) == (True, [], None)
    assert before <= session.created_at <= time.time()
    assert session.state == SessionState()
    assert session.work_dir == place.work_dir
    assert session.context_file == folder / "context.jsonl"
    assert session.wire_file.path == folder / "wire.jsonl"
    assert session.layout == place.layout


async def test_files_are_private_under_any_umask(place: Place) -> None:
    """Also under one that takes everything or nothing away."""
    for umask in (0o000, 0o077, 0o777):
        previous = os.umask(umask)
        try:
            session = await place.create(text="hi")
            await session.context.append({"role": "user", "content": "hi"})
            session.save_state()
            await session.rename("named")
        finally:
            os.umask(previous)
        assert session.path.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in session.path.iterdir()} == {0o600}


async def test_a_named_session_has_its_name_as_id_and_can_be_found(place: Place) -> None:
    """The folder is called so too."""
    await place.create("named-1")
    assert (await place.find("named-1")).id == "named-1"
    assert (place.sessions / "named-1").is_dir()


@pytest.mark.parametrize("what", ["ours", "theirs", "flat", "empty-folder", "file", "broken-link"])
async def test_creating_a_session_that_exists_changes_nothing(place: Place, what: str) -> None:
    """Nothing is ever truncated, not even after the registry was lost."""
    if what == "ours":
        await place.create("one", text="precious")
    elif what == "theirs":
        place.put("one", prompt("precious"), context=b'{"role":"user","content":"precious"}\n')
    elif what == "flat":
        place.put_flat("one.jsonl")
    else:
        place.sessions.mkdir(parents=True)
        path = place.sessions / "one"
        stand_in(path, what)
    if isinstance(place.layout, ShareLayout):
        place.layout.kimi_json_path.unlink(missing_ok=True)
    before = snapshot(place.sessions)
    with pytest.raises(SessionExistsError) as caught:
        await place.create("one")
    assert caught.value.session_id == "one"
    assert snapshot(place.sessions) == before


async def test_of_many_that_create_one_id_at_once_one_succeeds(place: Place) -> None:
    """The others are told that it exists."""
    results = await asyncio.gather(*(place.create("one") for _ in range(8)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Session"] + ["SessionExistsError"] * 7


async def test_many_sessions_made_at_once_are_all_different(place: Place) -> None:
    """And all are there."""
    made = await asyncio.gather(*(place.create() for _ in range(30)))
    assert len({session.id for session in made}) == 30
    assert len(await place.ids(include_empty=True)) == 30


@pytest.mark.parametrize("kind", ["missing", "file", "broken-link"])
async def test_a_work_dir_that_is_no_folder_is_a_clear_error(place: Place, tmp_path: Path, kind: str) -> None:
    """`create` says so and makes nothing; the other verbs find nothing there."""
    path = tmp_path / "elsewhere"
    stand_in(path, kind)
    with pytest.raises(WorkDirNotFoundError) as caught:
        await Session.create(path, layout=place.layout)
    assert caught.value.path == str(path)
    assert await Session.list(path, layout=place.layout) == []
    assert await Session.find(path, "one", layout=place.layout) is None
    assert await Session.continue_(path, layout=place.layout) is None
    assert path.exists() is (kind == "file")


async def test_a_work_dir_that_is_gone_still_has_its_sessions_in_a_share(share: Place) -> None:
    """They are listed, found, and can be continued; only `create` is refused."""
    await share.create("one", text="hi")
    share.work_dir.rmdir()
    assert await share.ids() == ["one"]
    assert await share.continue_() == "one"
    await (await share.find("one")).rename("still here")
    with pytest.raises(WorkDirNotFoundError):
        await share.create("two")


async def test_a_session_whose_work_dir_is_gone_can_be_forked_in_a_share(
    share: Place, tmp_path: Path
) -> None:
    """The fork lies beside it, and is found as it is; one for another folder that is not there is refused."""
    source = await share.create("one", text="hi")
    share.work_dir.rmdir()
    fork = await (await share.find("one")).fork()
    assert fork.path.parent == source.path.parent
    assert sorted(await share.ids()) == sorted(["one", fork.id])
    with pytest.raises(WorkDirNotFoundError):
        fork_session(source.path, tmp_path / "never")


async def test_a_linked_worktree_is_warned_of(project: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Its removal deletes ignored files without asking."""
    (project.work_dir / ".git").write_text("gitdir: elsewhere\n")
    await project.create()
    assert "git worktree remove" in caplog.text


# --- identity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "work_dir",
        "work_dir_meta",
        "context_file",
        "wire_file",
        "context",
        "path",
        "dir",
        "trusted",
        "nonsense",
    ],
)
async def test_what_is_fixed_for_life_cannot_be_assigned(place: Place, name: str) -> None:
    """Nor can a field be invented by a typing mistake."""
    session = await place.create()
    with pytest.raises(AttributeError):
        setattr(session, name, "x")


async def test_title_time_and_state_can_be_assigned(place: Place) -> None:
    """They are a program's to change."""
    session = await place.create()
    session.title, session.updated_at = "shown", 5.0
    session.state = SessionState(custom_title="mine")
    session.save_state()
    assert (await place.find(session.id)).title == "mine"


async def test_sessions_are_equal_if_they_are_the_same_folder(place: Place) -> None:
    """Whatever was loaded of them; and they can be kept in sets."""
    one, two = await place.create("one"), await place.create("two")
    again = await place.find("one")
    assert one == again
    assert one != two
    assert len({one, again, two}) == 2
    assert "one" in repr(one)


async def test_a_work_dir_reached_through_a_link_has_the_same_sessions(place: Place, tmp_path: Path) -> None:
    """Made through the link and found by the real path, and the reverse; the spelling asked for is the one shown."""
    link = tmp_path / "link"
    link.symlink_to(place.work_dir)
    through = await Session.create(link, "through", layout=place.layout)
    await through.wire_file.append_message(TurnBegin(user_input="a"), timestamp=200.0)
    await place.create("direct", text="b", at=100.0)
    by_link = await Session.list(link, layout=place.layout)
    assert [session.id for session in by_link] == ["through", "direct"]
    assert {session.work_dir for session in by_link} == {link}
    found = await Session.find(link, "direct", layout=place.layout)
    assert found is not None
    if isinstance(place.layout, ProjectLayout):
        assert await place.ids() == ["through", "direct"]
        assert all(session.trusted for session in await place.listed())


@pytest.mark.parametrize("spelling", ["{}/", "{}/.", "{}/x/.."])
async def test_dots_in_a_work_dir_s_spelling_do_not_matter(place: Place, spelling: str) -> None:
    """They are resolved by text."""
    await place.create("one", text="hi")
    assert [s.id for s in await Session.list(spelling.format(place.work_dir), layout=place.layout)] == ["one"]


async def test_names_that_look_alike_are_different_work_dirs(place: Place, tmp_path: Path) -> None:
    """No spelling folds two projects into one."""
    names = ["a_b", "a-b", "a.b", "a b", "项目甲", "测试乙"]
    for name in names:
        (tmp_path / name).mkdir()
        await (await Session.create(tmp_path / name, layout=place.layout)).rename(name)
    for name in names:
        assert [s.title for s in await Session.list(tmp_path / name, layout=place.layout)] == [name]


async def test_work_dir_facts_are_there(place: Place) -> None:
    """Key, registry entry and whether the work dir is known."""
    session = await place.create(text="hi")
    assert session.work_dir_key == work_dir_key(str(place.work_dir))
    assert session.work_dir_known
    assert session.work_dir_meta.path == str(place.work_dir)
    assert session.work_dir_meta.last_session_id == session.id
    assert session.work_dir_meta.sessions_dir == place.sessions


# --- find ----------------------------------------------------------------------------------------------------------


async def test_what_is_not_there_is_none_and_looking_makes_nothing(place: Place, tmp_path: Path) -> None:
    """No folder appears in a project that has no sessions."""
    before = snapshot(tmp_path)
    assert await place.maybe("one") is None
    assert await place.listed() == []
    assert await place.listed(include_empty=True) == []
    assert await place.continue_() is None
    assert await Session.list_trash(place.work_dir, layout=place.layout) == []
    assert await Session.list_all(layout=place.layout) == []
    assert snapshot(tmp_path) == before


async def test_old_named_sessions_are_found(place: Place) -> None:
    """Spaces and other scripts."""
    for name in ("my session", "项目 一", "a+b"):
        place.put(name, prompt("hi"))
        assert (await place.find(name)).id == name
    assert len(await place.ids()) == 3


async def test_a_folder_without_any_log_is_no_session(place: Place) -> None:
    """Nor is a file, nor a folder that another program keeps there."""
    place.put("one", context=None, files={"notes.txt": b"x"})
    (place.sessions / "two").touch()
    for name in ("one", "two"):
        assert await place.maybe(name) is None
    assert await place.ids(include_empty=True) == []


async def test_a_folder_with_a_wire_log_or_a_rotation_alone_is_a_session_with_a_problem(place: Place) -> None:
    """Old clients left those behind and then hid them."""
    place.put("wire", prompt("hi"), context=None)
    place.put("rotated", context=None, files={"context_1.jsonl": b'{"role":"user","content":"x"}\n'})
    assert sorted(await place.ids()) == ["rotated", "wire"]
    for session in await place.listed():
        assert "no-context" in [problem.kind for problem in session.problems]
        assert await session.context.messages() == []


async def test_a_link_in_the_store_is_neither_followed_nor_a_session(place: Place, tmp_path: Path) -> None:
    """It is reported; what it leads to is not read, not written and not deleted."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "context.jsonl").write_bytes(b'{"role":"user","content":"private"}\n')
    place.put("real", prompt("hi"))
    (place.sessions / "link").symlink_to(outside)
    assert await place.maybe("link") is None
    listed = await place.listed(include_empty=True)
    assert [session.id for session in listed] == ["real"]
    assert [problem.kind for problem in listed.problems] == ["link"]
    assert os.listdir(outside) == ["context.jsonl"]


async def test_a_sessions_folder_that_is_a_link_is_a_problem_of_the_list(
    project: Place, tmp_path: Path
) -> None:
    """A cloned project can't make us read elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "one").mkdir(parents=True)
    (elsewhere / "one" / "context.jsonl").write_bytes(b'{"role":"user","content":"x"}\n')
    (project.work_dir / ".kimi").mkdir()
    project.sessions.symlink_to(elsewhere)
    listed = await project.listed()
    assert listed == []
    assert [problem.kind for problem in listed.problems] == ["unreadable"]
    assert await project.maybe("one") is None


# --- open ----------------------------------------------------------------------------------------------------------


async def test_a_person_may_name_a_session_by_a_unique_beginning(place: Place) -> None:
    """A whole id comes first; more than one is ambiguous; none is not found, with what looks alike; `@last` works."""
    for name in ("alpha-1", "alpha-2", "alpha-2-b", "beta"):
        place.put(name, prompt("hi"))

    async def opened(text: str) -> str:
        return (await Session.open(place.work_dir, text, layout=place.layout)).id

    assert await opened("beta") == "beta"
    assert await opened("b") == "beta"
    assert await opened("alpha-2") == "alpha-2"
    with pytest.raises(AmbiguousIdError) as ambiguous:
        await opened("alpha")
    assert ambiguous.value.candidates == ("alpha-1", "alpha-2", "alpha-2-b")
    with pytest.raises(SessionNotFoundError) as missing:
        await opened("alpha-9")
    assert "alpha-1" in missing.value.near
    (await place.find("beta")).mark_last()
    assert await opened("@last") == "beta"


async def test_at_last_without_any_session_is_not_found(place: Place) -> None:
    """An error that names what was asked for."""
    with pytest.raises(SessionNotFoundError, match="@last"):
        await Session.open(place.work_dir, "@last", layout=place.layout)


def test_choosing_by_an_empty_text_is_refused() -> None:
    """It would fit every session."""
    with pytest.raises(ValueError, match="empty"):
        choose("", [], "here")


# --- list ----------------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_newest_first_and_ties_by_id(place: Place) -> None:
    """The time is the last record's; ids in any order."""
    for name, at in (("z", 300.0), ("b", 200.0), ("a", 200.0), ("c", 200.0), ("y", 400.0), ("x", 100.0)):
        place.put(name, prompt("hi", at))
    assert await place.ids() == ["y", "z", "a", "b", "c", "x"]
    assert [s.updated_at for s in await place.listed()] == [400.0, 300.0, 200.0, 200.0, 200.0, 100.0]


@pytest.mark.parametrize("limit,count", [(None, 4), (0, 0), (2, 2), (4, 4), (99, 4), (-1, 0)])
async def test_a_limit_takes_the_newest(place: Place, limit: int | None, count: int) -> None:
    """After empty ones were left out."""
    for number in range(4):
        place.put(f"s{number}", prompt("hi", 100.0 + number))
        place.put(f"empty{number}")
    assert await place.ids(limit=limit) == ["s3", "s2", "s1", "s0"][:count]


async def test_empty_sessions_are_listed_only_on_demand(place: Place) -> None:
    """Only a system prompt is empty too."""
    place.put("empty")
    place.put("prompted", context=lines({"role": "_system_prompt", "content": "be nice"}))
    place.put("full", prompt("hi"))
    assert await place.ids() == ["full"]
    assert sorted(await place.ids(include_empty=True)) == ["empty", "full", "prompted"]


async def test_archived_sessions_are_listed_and_say_so(place: Place) -> None:
    """Hiding them is the command line's business."""
    await (await place.create("old", text="a")).archive()
    await place.create("new", text="b")
    assert {session.id: session.archived for session in await place.listed()} == {"old": True, "new": False}


async def test_one_damaged_session_hides_no_other(place: Place) -> None:
    """Each kind of damage: listed with its problems, and never an exception."""
    damaged: dict[str, dict[str, Any]] = {
        "state-bad": {"state": b"{bad"},
        "state-array": {"state": b"[]"},
        "state-binary": {"state": b"\xff\xfe\x00"},
        "state-deep": {"state": b'{"a":' * 20_000},
        "context-array": {"context": b"[]\n"},
        "metadata-array": {"files": {"metadata.json": b"[1]"}},
        "session-bad": {"files": {"session.json": b"nope"}},
    }
    for name, parts in damaged.items():
        place.put(name, prompt("hi"), **parts)
    place.put("wire-binary", files={"wire.jsonl": b"\xff" * 9000 + b"\n" + lines(prompt("after"))})
    place.put("wire-zeros", files={"wire.jsonl": lines(HEADER, prompt("before")) + b"\0" * 143_000})
    place.put("healthy", prompt("hi", 200.0))
    (place.put("wire-folder", context=b"") / "wire.jsonl").mkdir()
    (place.put("state-folder", prompt("hi")) / "state.json").mkdir()
    os.mkfifo(place.put("wire-pipe") / "wire.jsonl")
    (place.put("context-link", prompt("hi"), context=None) / "context.jsonl").symlink_to("/dev/zero")
    listed = await place.listed()
    wanted = {
        *damaged,
        "wire-binary",
        "wire-zeros",
        "wire-folder",
        "state-folder",
        "wire-pipe",
        "context-link",
        "healthy",
    }
    assert {session.id for session in listed} == wanted
    problems = {session.id: [problem.kind for problem in session.problems] for session in listed}
    without = {name for name, kinds in problems.items() if not set(kinds) - {"untrusted"}}
    assert without <= {"healthy", "context-array", "wire-binary"}
    titles = {session.id: session.title for session in listed}
    assert titles["state-bad"] == "hi"
    assert titles["wire-binary"] == "after"
    assert titles["wire-zeros"] == "before"
    for session in listed:
        assert (await place.find(session.id)).title == session.title


@pytest.mark.parametrize("name", ["-rf", ".hidden", ".creating-0123", "deleting~0123", "a\nb", "a\\b", "c:x"])
async def test_folders_that_can_be_no_session_are_not_listed(place: Place, name: str) -> None:
    """Half-made, half-deleted and impossible names."""
    place.put(name, prompt("hi"))
    place.put("real", prompt("hi"))
    assert await place.ids(include_empty=True) == ["real"]


async def test_nothing_inside_a_session_is_taken_for_one(place: Place) -> None:
    """Subagents and tasks have logs too."""
    place.put("one", prompt("hi"), files={"subagents/context.jsonl": b"", "uploads/x.jsonl": b""})
    (place.sessions / "one" / "subagents" / "a1b2c3d4e").mkdir()
    (place.sessions / "one" / "subagents" / "a1b2c3d4e" / "wire.jsonl").write_bytes(
        lines(prompt("inner", 999.0))
    )
    assert await place.ids() == ["one"]
    assert (await place.find("one")).updated_at == 100.0


async def test_listing_and_finding_change_nothing(place: Place, tmp_path: Path) -> None:
    """Not a byte and not a time; only derived data outside the store may appear."""
    place.put("a", prompt("hi"), state={"custom_title": "x"}, files={"metadata.json": b'{"title": "y"}'})
    place.put("b", prompt("hi"), b"{torn", state=b"{bad")
    root = place.work_dir / ".kimi" if isinstance(place.layout, ProjectLayout) else tmp_path / "share"
    before = snapshot(root)
    for session in await place.listed(include_empty=True):
        _ = (
            session.state,
            session.created_at,
            session.problems,
            session.trusted,
            session.is_empty(),
            session.dir,
        )
        await session.turns()
        await session.context.messages()
        await session.refresh()
    await place.find("a")
    await place.continue_(allow_untrusted=True)
    assert snapshot(root) == before


async def test_list_all_gathers_every_known_work_dir(place: Place, tmp_path: Path) -> None:
    """Newest first over all of them; empty ones on demand; a limit counts over all."""
    other = tmp_path / "other"
    other.mkdir()
    await place.create("here", text="a", at=100.0)
    second = Place(place.layout, other)
    await second.create("there", text="b", at=200.0)
    await second.create("empty")
    everything = await Session.list_all(layout=place.layout)
    assert [(s.id, s.work_dir) for s in everything] == [("there", other), ("here", place.work_dir)]
    assert everything.problems == []
    assert [s.id for s in await Session.list_all(layout=place.layout, limit=1)] == ["there"]
    assert "empty" in [s.id for s in await Session.list_all(layout=place.layout, include_empty=True)]


async def test_list_all_shows_sessions_of_work_dirs_that_no_registry_names(share: Place) -> None:
    """They are marked as such, and can be read, forked, renamed and deleted."""
    share.put("one", prompt("hi"))
    (session,) = await Session.list_all(layout=share.layout)
    assert not session.work_dir_known
    assert session.work_dir_key == work_dir_key(str(share.work_dir))
    fork = await session.fork()
    assert fork.path.parent == session.path.parent
    assert [path.name for path in share.sessions.parent.iterdir()] == [session.work_dir_key]
    await fork.delete()
    await session.rename("found")
    assert (await share.find("one")).title == "found"
    await session.delete()
    assert await share.maybe("one") is None


async def test_what_stands_for_an_unknown_work_dir_leads_to_its_sessions(share: Place) -> None:
    """A program that goes by ``session.work_dir``, as a hint of the shell does, finds and restores what it trashed."""
    share.put("one", prompt("hi"))
    share.put("two", prompt("ho"))
    one = (await Session.list_all(layout=share.layout))[0]
    stand_in = Place(share.layout, one.work_dir)
    await one.trash("by mistake")
    assert [entry.session_id for entry in await Session.list_trash(one.work_dir, layout=share.layout)] == [
        "one"
    ]
    again = await Session.restore(one.work_dir, "one", layout=share.layout)
    assert again.path == one.path
    for found in [again, await stand_in.find("one"), *(await stand_in.listed())]:
        assert not found.work_dir_known
        assert found.work_dir_key == work_dir_key(str(share.work_dir))
    await again.wire_file.append_message(TurnBegin(user_input="more"))
    assert await stand_in.continue_() == "one"
    assert not (share.sessions.parent.parent / "kimi.json").exists()
    with pytest.raises(WorkDirNotFoundError):
        await stand_in.create("three")


@pytest.mark.parametrize("kaos", [None, "ssh"])
async def test_using_a_session_of_a_work_dir_elsewhere_or_unknown_adds_none_to_the_registry(
    share: Place, kaos: str | None
) -> None:
    """Neither the folder that stands for an unknown one, nor a local one of the same path as one on another machine."""
    entries = []
    if kaos is not None:
        entries = [{"path": str(share.work_dir), "kaos": kaos, "last_session_id": None}]
    registry = share.sessions.parent.parent / "kimi.json"
    registry.parent.mkdir(parents=True)
    registry.write_text(json.dumps({"work_dirs": entries}))
    folder = share.sessions.parent / work_dir_key(str(share.work_dir), kaos or "local") / "one"
    folder.mkdir(parents=True)
    (folder / "context.jsonl").touch()
    (folder / "wire.jsonl").write_bytes(lines(HEADER, prompt("hi")))
    (session,) = await Session.list_all(layout=share.layout)
    assert session.work_dir_known == (kaos is not None)
    await session.wire_file.append_message(TurnBegin(user_input="more"))
    async with session.hold():
        await session.trust()
    fork = await session.fork()
    await session.close()
    assert fork.path.parent == session.path.parent
    assert json.loads(registry.read_text()) == {"work_dirs": entries}


async def test_a_deleted_project_does_not_break_list_all(project: Place, tmp_path: Path) -> None:
    """What is gone is gone; the others are shown."""
    other = tmp_path / "other"
    other.mkdir()
    await project.create("kept", text="a")
    await (await Session.create(other, "gone")).rename("gone")
    shutil.rmtree(other)
    assert [session.id for session in await Session.list_all()] == ["kept"]


# --- continue ------------------------------------------------------------------------------------------------------


async def test_continue_gives_the_recorded_last_session(place: Place) -> None:
    """Also where another one is newer."""
    await place.create("old", text="a", at=100.0)
    await place.create("new", text="b", at=200.0)
    (await place.find("old")).mark_last()
    assert await place.continue_() == "old"


async def test_continue_falls_back_to_the_newest_that_is_not_empty(place: Place) -> None:
    """Where nothing is recorded, or what is recorded is gone."""
    for name, at in (("a", 100.0), ("b", 200.0)):
        await (await place.create(name, text="x", at=at)).archive()
        await (await place.find(name)).unarchive()
    await place.create("empty")
    last = await place.create("last", text="x", at=50.0)
    assert await place.continue_() == "last"
    shutil.rmtree(last.path)
    assert place.last() == "last"
    assert await place.continue_() == "b"


async def test_continue_gives_the_last_session_though_it_is_empty(place: Place) -> None:
    """Whoever recorded it meant it."""
    await place.create("full", text="x")
    (await place.create("empty")).mark_last()
    assert await place.continue_() == "empty"


async def test_continue_passes_over_archived_sessions(place: Place) -> None:
    """Also the recorded one; with nothing else there is nothing."""
    one = await place.create("one", text="x", at=200.0)
    await place.create("two", text="x", at=100.0)
    one.mark_last()
    await one.archive()
    assert await place.continue_() == "two"
    await (await place.find("two")).archive()
    assert await place.continue_() is None
    await one.unarchive()
    assert await place.continue_() == "one"


async def test_continuing_makes_no_session(place: Place) -> None:
    """The number of folders is what it was."""
    await place.create("one", text="x")
    before = os.listdir(place.sessions)
    assert await place.continue_() == "one"
    assert os.listdir(place.sessions) == before


# --- the last session ----------------------------------------------------------------------------------------------


async def test_the_first_append_makes_a_session_the_last_one_and_later_ones_do_not(place: Place) -> None:
    """Neither does creating, finding, renaming or listing."""
    one, two = await place.create("one"), await place.create("two")
    await one.rename("x")
    assert place.last() is None
    await one.context.append({"role": "user", "content": "a"})
    assert place.last() == "one"
    await two.wire_file.append_message(TurnBegin(user_input="b"))
    assert place.last() == "two"
    await one.context.append({"role": "user", "content": "c"})
    await one.wire_file.append_message(TurnEnd())
    assert place.last() == "two"
    again = await place.find("one")
    await again.wire_file.append_message(TurnEnd())
    assert place.last() == "one"


async def test_holding_a_session_makes_it_the_last_one(place: Place) -> None:
    """A crash before the first word still finds it."""
    one = await place.create("one")
    async with one.hold():
        assert place.last() == "one"


async def test_an_append_counts_though_it_could_not_be_recorded_as_the_last(
    share: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is written, the registry's damage is a warning."""
    one = await share.create("one")
    assert isinstance(share.layout, ShareLayout)
    share.layout.kimi_json_path.write_bytes(b"{bad")
    await one.wire_file.append_message(TurnBegin(user_input="hi"))
    assert len(await one.turns()) == 1
    assert "could not be recorded" in caplog.text
    assert share.layout.kimi_json_path.read_bytes() == b"{bad"


# --- close ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ok", [True, False])
async def test_closing_an_empty_session_discards_it(place: Place, ok: bool) -> None:
    """Folder gone, and no longer the last one; another one's mark stays."""
    await place.create("full", text="x")
    empty = await place.create("empty")
    await empty.close(ok)
    assert not empty.path.exists()
    assert place.last() == "full"
    empty = await place.create("empty")
    empty.mark_last()
    await empty.close(ok)
    assert not empty.path.exists()
    assert place.last() is None


async def test_closing_a_session_makes_it_the_last_one_only_if_the_run_went_well(place: Place) -> None:
    """A failed run leaves it as it is, with all it has."""
    one = await place.create("one", text="x")
    await place.create("two", text="y")
    await one.close(ok=False)
    assert place.last() == "two"
    assert one.path.exists()
    await one.close()
    assert place.last() == "one"


@pytest.mark.parametrize("what", ["title", "tag", "pin", "upload", "rotation", "damage", "record-by-another"])
async def test_a_session_with_anything_on_disk_is_not_discarded(place: Place, what: str) -> None:
    """Whoever put it there, and though this object knows nothing of it."""
    session = await place.create("one")
    other = await place.find("one")
    if what == "title":
        await other.rename("named elsewhere")
    elif what == "tag":
        await other.tag("keep")
    elif what == "pin":
        await other.pin()
    elif what == "record-by-another":
        await other.wire_file.append_message(TurnBegin(user_input="hi"))
    else:
        name, data = {
            "upload": ("uploads/a.png", b"x"),
            "rotation": ("context_1.jsonl", b'{"role":"user","content":"x"}\n'),
            "damage": ("state.json", b"{bad"),
        }[what]
        place.put("one", files={name: data})
    await session.close()
    assert session.path.exists()
    assert place.last() == "one"


async def test_an_empty_session_that_another_holds_is_not_discarded(place: Place) -> None:
    """It has only just begun there."""
    session, other = await place.create("one"), await place.find("one")
    async with other.hold():
        await session.close()
        assert session.path.exists()


async def test_closing_twice_or_after_a_delete_is_fine(place: Place) -> None:
    """There is nothing left to do."""
    session = await place.create("one")
    await session.close()
    await session.close()
    session = await place.create("one", text="x")
    await (await place.find("one")).delete()
    await session.close()
    assert not session.path.exists()
    assert place.last() is None


async def test_a_closed_session_can_be_used_again(place: Place) -> None:
    """Closing gives back descriptors, not the session."""
    session = await place.create("one", text="x")
    await session.close()
    await session.wire_file.append_message(TurnEnd())
    session.save_state()
    assert len(await session.turns()) == 1


# --- title and time ------------------------------------------------------------------------------------------------


async def test_the_title_follows_the_first_prompt_and_a_name_goes_before_it(place: Place) -> None:
    """After a refresh, or for whoever finds it anew; never the id."""
    session = await place.create("one")
    await session.refresh()
    assert session.title == "Untitled"
    await session.wire_file.append_message(TurnBegin(user_input="first words"))
    await session.refresh()
    assert session.title == "first words"
    await session.wire_file.append_message(TurnBegin(user_input="more words"))
    await (await place.find("one")).rename("a name")
    assert session.title == "first words"
    await session.refresh()
    assert session.title == session.state.custom_title == "a name"
    for found in (await place.find("one"), *await place.listed()):
        assert found.title == "a name"
        assert "one" not in found.title


async def test_a_name_survives_whatever_comes_after(place: Place) -> None:
    """More turns, a save by another that loaded before, archiving, trash and fork."""
    session = await place.create("one", text="prompt")
    stale = await place.find("one")
    stale.state.plan_mode = True
    await session.rename("mine")
    stale.save_state()
    assert stale.title == "mine"
    await session.wire_file.append_message(TurnBegin(user_input="more"))
    await stale.archive()
    await stale.trash()
    back = await Session.restore(place.work_dir, "one", layout=place.layout)
    assert back.title == "mine"
    assert back.state.plan_mode
    assert "mine" in (await back.fork()).title
    assert (await place.find("one")).title == "mine"


async def test_an_automatic_title_does_not_replace_a_chosen_one(place: Place) -> None:
    """Though it was asked for before the other was chosen; a chosen one replaces an automatic one."""
    await place.create("one", text="prompt")
    slow, person = await place.find("one"), await place.find("one")
    slow.state.custom_title = "made by a model"
    await person.rename("chosen")
    slow.save_state()
    assert slow.state.custom_title == slow.title == "chosen"
    assert (await place.find("one")).title == "chosen"


@pytest.mark.parametrize(
    "given_title,kept",
    [
        ("  a \n b\t", "a b"),
        ("项目 👩\u200d💻", "项目 👩\u200d💻"),
        ("a\x1b[31m\x00b", "a[31mb"),
        ("x" * 300, "x" * 200),
        ("\u202egnp.exe", "gnp.exe"),
    ],
)
async def test_a_title_is_kept_clean_and_not_longer_than_the_client_keeps_one(
    place: Place, given_title: str, kept: str
) -> None:
    """White space collapsed, at most 200 characters, and marked as chosen."""
    session = await place.create("one")
    await session.rename(given_title)
    found = await place.find("one")
    assert (session.title, found.title, found.state.custom_title, found.state.title_generated) == (
        kept,
        kept,
        kept,
        True,
    )
    assert not found.empty


@pytest.mark.parametrize("nothing", ["", "  ", "\x00\x1b", "\u202e"])
async def test_a_title_without_text_is_refused(place: Place, nothing: str) -> None:
    """And the old one stays."""
    session = await place.create("one")
    await session.rename("kept")
    with pytest.raises(ValueError, match="title"):
        await session.rename(nothing)
    assert (await place.find("one")).title == "kept"


async def test_titles_of_lists_are_safe_to_print_and_files_keep_their_bytes(place: Place) -> None:
    """Controls from elsewhere are not shown, and not cleaned on disk."""
    place.put("one", prompt("hi"), state={"custom_title": "a\x1b[2Jb\nc"})
    before = (place.sessions / "one" / "state.json").read_bytes()
    assert (await place.listed())[0].title == "a[2Jb c"
    assert (place.sessions / "one" / "state.json").read_bytes() == before


async def test_changes_that_are_no_conversation_do_not_reorder_a_list(place: Place) -> None:
    """Renaming, tagging, pinning, archiving, saving, touching and copying leave the time alone."""
    old = await place.create("old", text="a", at=100.0)
    await place.create("new", text="b", at=200.0)
    await old.rename("x")
    await old.tag("y")
    await old.pin()
    await old.archive()
    await old.unarchive()
    old.save_state()
    for path in old.path.iterdir():
        os.utime(path)
    shutil.copytree(old.path, place.sessions / "copy")
    assert [(s.id, s.updated_at) for s in await place.listed()] == [
        ("new", 200.0),
        ("copy", 100.0),
        ("old", 100.0),
    ]


async def test_an_append_makes_a_session_the_newest(place: Place) -> None:
    """In the list at once, and in the object after a refresh."""
    old = await place.create("old", text="a", at=100.0)
    await place.create("new", text="b", at=200.0)
    assert await place.ids() == ["new", "old"]
    await old.wire_file.append_message(TurnEnd(), timestamp=300.0)
    assert await place.ids() == ["old", "new"]
    await old.refresh()
    assert old.updated_at == 300.0


async def test_odd_times_neither_break_a_list_nor_stay_on_top(place: Place) -> None:
    """NaN, negative, endless and far-future times are as good as none."""
    for number, odd in enumerate([math.nan, -5, math.inf, time.time() + 10 * 86_400, "soon", None, 10**400]):
        place.put(f"odd{number}", prompt("hi", 10.0), prompt("odd", odd))
    place.put("good", prompt("hi", 50.0))
    ids = await place.ids()
    assert ids[0] == "good"
    assert ids[1:] == sorted(ids[1:])
    assert all(s.updated_at == 10.0 for s in (await place.listed())[1:])


# --- state ---------------------------------------------------------------------------------------------------------


async def test_a_saved_state_is_found_again(place: Place) -> None:
    """Every kind of field; afterwards nothing but the state and locks was added."""
    session = await place.create("one", text="x")
    session.state.custom_title = "t"
    session.state.plan_mode = True
    session.state.approval.yolo = True
    session.state.approval.auto_approve_actions.add("run")
    session.state.additional_dirs = ["/z", "/a"]
    session.save_state()
    found = await place.find("one")
    assert found.state == session.state
    assert session.title == found.title == "t"
    assert set(os.listdir(found.path)) <= {
        "context.jsonl",
        "wire.jsonl",
        "state.json",
        "session.json",
        "seal.json",
        ".lock",
        ".hold",
    }


async def test_two_programs_changes_to_one_state_are_both_kept(place: Place) -> None:
    """Different fields, elements of one set, and keys that neither knows."""
    place_state = {"version": 1, "unknown": {"kept": True}, "approval": {"auto_approve_actions": ["old"]}}
    session = await place.create("one", text="x")
    place.put("one", context=None, state=place_state)
    await session.refresh()
    await session.trust()
    one, two = await place.find("one"), await place.find("one")
    one.state.plan_mode = True
    one.state.approval.auto_approve_actions.add("one")
    two.state.custom_title = "title"
    two.state.approval.auto_approve_actions.add("two")
    two.state.approval.auto_approve_actions.discard("old")
    one.save_state()
    two.save_state()
    assert two.state.plan_mode
    document = json.loads((place.sessions / "one" / "state.json").read_bytes())
    assert document["unknown"] == {"kept": True}
    assert sorted(document["approval"]["auto_approve_actions"]) == ["one", "two"]
    assert (document["custom_title"], document["plan_mode"]) == ("title", True)
    one.save_state()
    assert one.state == two.state


async def test_a_damaged_state_is_set_aside_and_what_was_loaded_stands_in(place: Place) -> None:
    """Nothing that this program knew is lost, and the damaged bytes are kept."""
    await (await place.create("one", text="x")).rename("title")
    session = await place.find("one")
    assert session.state.custom_title == "title"
    place.put("one", context=None, state=b"{damaged by somebody")
    session.state.plan_mode = True
    session.save_state()
    found = await place.find("one")
    assert (found.title, found.state.plan_mode) == ("title", True)
    assert (found.path / "state.json.damaged-1").read_bytes() == b"{damaged by somebody"


async def test_one_bad_field_costs_that_field_alone_and_is_a_problem(place: Place) -> None:
    """And a save does not throw its value away."""
    place.put("one", prompt("x"), state={"custom_title": "t", "plan_mode": "?", "archived": True})
    session = await place.find("one")
    assert (session.state.custom_title, session.state.plan_mode, session.state.archived) == ("t", False, True)
    assert "bad-field" in [problem.kind for problem in session.problems]
    session.state.plan_slug = "s"
    session.save_state()
    document = json.loads((session.path / "state.json").read_bytes())
    assert (document["plan_mode"], document["plan_slug"]) == ("?", "s")


async def test_old_metadata_is_read_at_once_and_moved_aside_by_the_next_save(place: Place) -> None:
    """Reading leaves it; the save keeps its bytes under another name."""
    old = b'{"title": "web", "archived": true, "wire_mtime": 500.0}'
    place.put("one", prompt("x"), files={"metadata.json": old})
    session = await place.find("one")
    assert (session.title, session.archived, session.updated_at) == ("web", True, 500.0)
    assert session.state.custom_title == "web"
    assert (session.path / "metadata.json").exists()
    session.save_state()
    assert not (session.path / "metadata.json").exists()
    assert (session.path / "metadata.json.merged").read_bytes() == old
    again = await place.find("one")
    assert (again.title, again.archived, again.updated_at) == ("web", True, 500.0)


async def test_a_rename_saves_the_title_and_leaves_other_changes_unsaved(place: Place) -> None:
    """They stay in the object and are saved when the program says so."""
    session = await place.create("one", text="x")
    session.state.plan_mode = True
    session.state.todos = []
    await session.rename("t")
    assert session.state.plan_mode
    assert not (await place.find("one")).state.plan_mode
    session.save_state()
    found = await place.find("one")
    assert (found.state.plan_mode, found.title) == (True, "t")


async def test_archiving_is_recorded_as_the_client_records_it(place: Place) -> None:
    """With its time; bringing back keeps the automatic archiving away."""
    session = await place.create("one", text="x")
    before = time.time()
    await session.archive()
    state = (await place.find("one")).state
    assert session.archived
    assert state.archived
    assert state.archived_at is not None
    assert before <= state.archived_at <= time.time()
    assert not state.auto_archive_exempt
    await session.unarchive()
    state = (await place.find("one")).state
    assert not session.archived
    assert (state.archived, state.archived_at, state.auto_archive_exempt) == (False, None, True)


async def test_an_archived_session_can_be_found_read_and_forked(place: Place) -> None:
    """Archiving hides, and does nothing else."""
    session = await place.create("one", text="x", at=100.0)
    await session.archive()
    found = await place.find("one")
    assert (found.title, found.updated_at) == ("x", 100.0)
    assert [turn.user_text for turn in await found.turns()] == ["x"]
    assert (await found.fork()).parent == {"session_id": "one", "turn_index": None}


async def test_refresh_keeps_what_was_not_saved_and_takes_what_others_saved(place: Place) -> None:
    """Field by field."""
    session = await place.create("one", text="x")
    session.state.plan_mode = True
    await (await place.find("one")).rename("theirs")
    await session.refresh()
    assert (session.title, session.state.custom_title, session.state.plan_mode) == ("theirs", "theirs", True)
    session.save_state()
    assert (await place.find("one")).state.plan_mode


async def test_an_unsaved_title_counts_for_is_empty(place: Place) -> None:
    """The program meant to keep it."""
    session = await place.create("one")
    session.state.custom_title = "soon"
    assert not session.is_empty()
    assert (await place.find("one")).is_empty()


# --- tags and pin --------------------------------------------------------------------------------------------------


async def test_tags_and_the_pin_are_kept_beside_the_client_s_files(place: Place) -> None:
    """Sorted, each once, cleaned; two programs' tags add up; the client's state is not touched."""
    session = await place.create("one", text="x")
    await session.tag("b", "a")
    other = await place.find("one")
    await session.tag("c")
    await other.tag("a", "d\n e")
    await other.pin()
    found = await place.find("one")
    assert (found.tags, found.pinned) == (("a", "b", "c", "d e"), True)
    await found.untag("a", "never there")
    await found.pin(False)
    found = await place.find("one")
    assert (found.tags, found.pinned) == (("b", "c", "d e"), False)
    assert not (found.path / "state.json").exists()
    assert found.created_at == session.created_at
    with pytest.raises(ValueError, match="tag"):
        await found.tag("ok", " ")
    with pytest.raises(TypeError, match="a tag is text, not int"):
        await found.tag("ok", 5)  # type: ignore[arg-type]
    assert (await place.find("one")).tags == ("b", "c", "d e")


# --- hold ----------------------------------------------------------------------------------------------------------


async def test_a_held_session_has_one_owner_and_is_open_to_short_steps(place: Place) -> None:
    """A second owner, a delete, a trash and a revert are refused at once and told who holds it."""
    one, two = await place.create("one", text="x"), await place.find("one")
    async with one.hold("agent") as held:
        assert held is one
        for refused in (two.delete, two.trash, two.context.clear):
            with pytest.raises(SessionBusyError) as caught:
                await refused()
            assert caught.value.holder is not None
            assert (caught.value.holder.pid, caught.value.holder.program) == (os.getpid(), "agent")
        with pytest.raises(SessionBusyError):
            async with two.hold():
                pass
        with pytest.raises(SessionBusyError):
            async with one.hold():
                pass
        await two.wire_file.append_message(TurnEnd())
        await two.rename("x")
        await two.archive()
        await one.context.clear()
        assert (await place.find("one")).title == "x"
        assert len(await place.listed()) == 1
    async with two.hold():
        pass
    await two.delete()


async def test_a_hold_ends_with_its_block_also_by_an_error(place: Place) -> None:
    """And the owner itself may delete."""
    one = await place.create("one", text="x")
    with pytest.raises(KeyError):
        async with one.hold():
            raise KeyError
    async with (await place.find("one")).hold() as other:
        await other.delete()
    assert not one.path.exists()


async def test_a_delete_by_force_ends_a_held_session_for_good(place: Place) -> None:
    """The owner's next append says that it is gone, and does not bring it back."""
    one, two = await place.create("one", text="x"), await place.find("one")
    async with one.hold():
        await two.delete(force=True)
        steps: list[Callable[[], Awaitable[None]]] = [
            lambda: one.wire_file.append_message(TurnEnd()),
            lambda: one.context.append({"role": "user", "content": "lost?"}),
            lambda: one.rename("x"),
            lambda: one.tag("x"),
        ]
        for step in steps:
            with pytest.raises(SessionNotFoundError):
                await step()
        with pytest.raises(SessionNotFoundError):
            one.save_state()
    assert not one.path.exists()
    assert await place.ids(include_empty=True) == []


# --- folders -------------------------------------------------------------------------------------------------------


async def test_dir_and_subagents_dir_are_there_when_asked_for_and_do_not_revive_a_session(
    place: Place,
) -> None:
    """Of a deleted session they are not found; only looking makes none."""
    session = await place.create("one", text="x")
    assert "subagents" not in os.listdir(session.path)
    assert session.subagents_dir == session.dir / "subagents"
    assert session.subagents_dir.stat().st_mode & 0o777 == 0o700
    await session.delete()
    for name in ("dir", "subagents_dir"):
        with pytest.raises(SessionNotFoundError):
            getattr(session, name)
    assert not session.path.exists()
    assert session.is_empty()
    with pytest.raises(SessionNotFoundError):
        await session.refresh()


# --- delete, trash, restore ----------------------------------------------------------------------------------------


async def test_a_deleted_session_leaves_nothing_with_its_id(place: Place, tmp_path: Path) -> None:
    """Neither its folder, its flat files, nor the mark of the last one; the others stay."""
    place.put_flat("one.jsonl")
    session = await place.find("one")
    place.put("one", prompt("hi"), files={"subagents/x": b"", "context_1.jsonl": b"", "strange": b""})
    place.put_flat("one.jsonl", b"grown again\n")
    place.put_flat("one_1.jsonl", b"old rotation\n")
    await place.create("other", text="x")
    session.mark_last()
    await session.delete()
    left = [path.name for root in (place.work_dir, tmp_path / "share") for path in root.rglob("*")]
    assert not [name for name in left if "one" in name]
    assert place.last() is None
    assert await place.ids() == ["other"]
    assert await place.maybe("one") is None
    with pytest.raises(SessionNotFoundError):
        await session.delete()


async def test_deleting_does_not_follow_links(place: Place, tmp_path: Path) -> None:
    """What a link in a session leads to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    folder = place.put("one", prompt("hi"))
    (folder / "link").symlink_to(outside)
    await (await place.find("one")).delete()
    assert not folder.exists()
    assert (outside / "precious").read_bytes() == b"x"


async def test_an_unfinished_delete_is_finished_by_the_next_one_and_never_offered_back(place: Place) -> None:
    """A crash after the rename: the session is gone from lists and trash, its bytes go later."""
    session = await place.create("one", text="x")
    other = await place.create("two", text="y")
    trash = Path(session._store.trash.path_of(str(place.sessions)))
    await other.trash()
    os.rename(session.path, trash / "deleting~0123456789abcdef")
    assert await place.ids() == []
    assert [e.session_id for e in await Session.list_trash(place.work_dir, layout=place.layout)] == ["two"]
    await (await place.create("three", text="z")).delete()
    assert sorted(os.listdir(trash)) == ["two~1", "two~1.json"]


async def test_what_was_trashed_comes_back_byte_for_byte(place: Place) -> None:
    """Names, modes, links and times, strange files too; locks aside."""
    folder = place.put(
        "one",
        prompt("hi"),
        b"{torn",
        state=b"{bad",
        files={"subagents/a": b"1", "uploads/b c": b"2", "context_1.jsonl": b"3", ".dot": b"4"},
    )
    (folder / "link").symlink_to("nowhere")
    (folder / ".lock").touch()
    (folder / ".hold").touch()
    before = snapshot(folder)
    session = await place.find("one")
    session.mark_last()
    await session.trash("cleaning up")
    assert await place.ids(include_empty=True) == []
    assert place.last() is None
    (entry,) = await Session.list_trash(place.work_dir, layout=place.layout)
    assert (entry.session_id, entry.reason, entry.title) == ("one", "cleaning up", "hi")
    assert abs(entry.deleted_at - time.time()) < 60
    back = await Session.restore(place.work_dir, "one", layout=place.layout)
    assert back == session
    now = snapshot(folder)
    for lock in (".lock", ".hold"):
        before.pop(lock)
        now.pop(lock)
    assert now == before
    assert await Session.list_trash(place.work_dir, layout=place.layout) == []


async def test_the_session_that_was_trashed_last_comes_back_first(place: Place) -> None:
    """Each keeps its own place in the trash; what is in the way is not overwritten."""
    for text in ("first", "second"):
        await (await place.create("one", text=text)).trash()
    titles = [entry.title for entry in await Session.list_trash(place.work_dir, layout=place.layout)]
    assert titles == ["second", "first"]
    assert (await Session.restore(place.work_dir, "one", layout=place.layout)).title == "second"
    with pytest.raises(SessionExistsError):
        await Session.restore(place.work_dir, "one", layout=place.layout)
    assert (await place.find("one")).title == "second"
    await (await place.find("one")).delete()
    assert (await Session.restore(place.work_dir, "one", layout=place.layout)).title == "first"
    with pytest.raises(SessionNotFoundError):
        await Session.restore(place.work_dir, "two", layout=place.layout)


async def test_trash_is_emptied_only_of_what_was_meant(place: Place) -> None:
    """All, one id, or what lies there longer than so many seconds."""
    for name in ("a", "b", "c"):
        await (await place.create(name, text=name)).trash()

    async def emptied(session_id: str | None = None, older_than_s: float | None = None) -> int:
        return await Session.empty_trash(
            place.work_dir, session_id, layout=place.layout, older_than_s=older_than_s
        )

    assert await emptied(older_than_s=3600) == 0
    assert await emptied("a") == 1
    assert await emptied("a") == 0
    assert await emptied(older_than_s=0) == 2
    trash = Path((await place.create("d"))._store.trash.path_of(str(place.sessions)))
    assert os.listdir(trash) == []


@pytest.mark.parametrize(
    "sidecar", [None, b"", b"{bad", b"[]", b'{"deleted_at": 1' + b"0" * 400 + b"}", b"[" * 9999]
)
async def test_a_damaged_trash_note_costs_no_session(place: Place, sidecar: bytes | None) -> None:
    """The folder itself says enough to bring it back."""
    session = await place.create("one", text="x")
    await session.trash()
    note = Path(session._store.trash.path_of(str(place.sessions))) / "one~1.json"
    note.unlink()
    if sidecar is not None:
        note.write_bytes(sidecar)
    (entry,) = await Session.list_trash(place.work_dir, layout=place.layout)
    assert (entry.session_id, entry.deleted_at) == ("one", 0.0)
    assert (await Session.restore(place.work_dir, "one", layout=place.layout)).title == "x"


async def test_flat_files_go_to_the_trash_with_their_session_and_come_back_with_it(place: Place) -> None:
    """Else an old file would make the session again while it lies in the trash."""
    place.put("one", prompt("hi"))
    flat = place.put_flat("one.jsonl", b"old\n")
    session = await place.find("one")
    await session.trash()
    assert await place.maybe("one") is None
    assert await place.ids() == []
    await Session.restore(place.work_dir, "one", layout=place.layout)
    assert flat.read_bytes() == b"old\n"
    assert await place.ids() == ["one"]


# --- flat files of old clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["find", "list", "continue"])
async def test_a_flat_file_is_moved_into_its_folder_once(
    place: Place, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By finding, listing or continuing; with its bytes and its time; and it is logged, not printed."""
    caplog.set_level("INFO", "kimi_sessions")
    flat = place.put_flat("one.jsonl")
    os.utime(flat, (5000.0, 5000.0))
    inode = flat.stat().st_ino
    if verb == "find":
        assert (await place.find("one")).updated_at == 5000.0
    elif verb == "list":
        assert await place.ids() == ["one"]
    else:
        assert await place.continue_(allow_untrusted=True) == "one"
    moved = place.sessions / "one" / "context.jsonl"
    assert (moved.stat().st_ino, moved.stat().st_mtime) == (inode, 5000.0)
    assert not flat.exists()
    assert len([r for r in caplog.records if "moved" in r.message]) == 1
    assert await place.ids() == ["one"]
    assert [m.role for m in await (await place.find("one")).context.messages()] == ["user"]


async def test_flat_rotations_and_subagents_go_with_their_session_and_become_none(place: Place) -> None:
    """A cleared session's conversation is found under its own id."""
    place.put_flat("one.jsonl", b"")
    place.put_flat("one_1.jsonl")
    place.put_flat("one_2.jsonl", b"second\n")
    place.put_flat("one_sub_1.jsonl", b"sub\n")
    place.put_flat("other_1.jsonl")
    assert sorted(await place.ids()) == ["one", "other_1"]
    assert sorted(os.listdir(place.sessions / "one")) == [
        "context.jsonl",
        "context_1.jsonl",
        "context_2.jsonl",
        "context_sub_1.jsonl",
    ]
    assert (place.sessions / "one" / "context_2.jsonl").read_bytes() == b"second\n"


async def test_finding_one_session_moves_no_other_one_s_files(place: Place) -> None:
    """Only what was asked for is touched."""
    place.put_flat("one.jsonl")
    place.put_flat("one_1.jsonl")
    place.put_flat("two.jsonl")
    await place.find("one")
    assert sorted(os.listdir(place.sessions)) == ["one", "two.jsonl"]
    assert sorted(os.listdir(place.sessions / "one")) == ["context.jsonl", "context_1.jsonl"]


async def test_a_late_rotation_is_still_found_beside_its_folder(place: Place) -> None:
    """Also where its number is not 1."""
    place.put("one", prompt("hi"))
    place.put_flat("one_3.jsonl", b"third\n")
    place.put_flat("one_sub_7.jsonl", b"sub\n")
    await place.find("one")
    await place.listed()
    assert (place.sessions / "one" / "context_3.jsonl").read_bytes() == b"third\n"
    assert (place.sessions / "one" / "context_sub_7.jsonl").read_bytes() == b"sub\n"
    assert await place.ids() == ["one"]


async def test_a_flat_file_beside_a_whole_session_is_kept_and_reported_each_time(place: Place) -> None:
    """The folder wins; nothing is overwritten, and nothing is hidden."""
    place.put("one", prompt("hi"), context=b"folder\n", files={"context_1.jsonl": b"rotated\n"})
    flat = place.put_flat("one.jsonl", b"flat\n")
    side = place.put_flat("one_1.jsonl", b"flat rotation\n")
    for _ in range(2):
        found, (listed,) = await place.find("one"), await place.listed()
        for session in (found, listed):
            clashes = [problem.file for problem in session.problems if problem.kind == "flat-clash"]
            assert clashes == ["one.jsonl", "one_1.jsonl"]
    assert (flat.read_bytes(), side.read_bytes()) == (b"flat\n", b"flat rotation\n")
    assert (place.sessions / "one" / "context.jsonl").read_bytes() == b"folder\n"
    assert (place.sessions / "one" / "context_1.jsonl").read_bytes() == b"rotated\n"


async def test_a_move_that_was_cut_short_is_finished(place: Place) -> None:
    """Both names being one file is no clash; an empty folder is no session yet."""
    flat = place.put_flat("one.jsonl")
    (place.sessions / "one").mkdir()
    os.link(flat, place.sessions / "one" / "context.jsonl")
    place.put_flat("two.jsonl")
    (place.sessions / "two").mkdir()
    listed = await place.listed()
    assert sorted(session.id for session in listed) == ["one", "two"]
    assert not [p for session in listed for p in session.problems if p.kind.startswith("flat")]
    assert sorted(os.listdir(place.sessions)) == ["one", "two"]


@pytest.mark.parametrize("side", ["flat", "folder"])
async def test_a_flat_move_refuses_links(place: Place, tmp_path: Path, side: str) -> None:
    """On either side: nothing is moved out of the store or into it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    if side == "flat":
        (outside / "x").write_bytes(b"private\n")
        place.sessions.mkdir(parents=True)
        (place.sessions / "one.jsonl").symlink_to(outside / "x")
    else:
        place.put_flat("one.jsonl")
        (place.sessions / "one").symlink_to(outside)
    if side == "flat":
        assert await place.maybe("one") is None
    else:
        with pytest.raises(WriteError, match="can't be moved"):
            await place.maybe("one")
    listed = await place.listed(include_empty=True)
    assert listed == []
    assert {problem.kind for problem in listed.problems} >= {"link"}
    assert os.listdir(outside) == (["x"] if side == "flat" else [])
    assert (place.sessions / "one.jsonl").exists()


@pytest.mark.parametrize("name", [".jsonl", "-x.jsonl", "a\nb.jsonl", ".hidden.jsonl"])
async def test_flat_files_that_can_name_no_session_are_left_alone(place: Place, name: str) -> None:
    """They are not moved and not listed."""
    flat = place.put_flat(name)
    assert await place.ids(include_empty=True) == []
    assert flat.exists()


def test_two_processes_that_find_the_same_flat_files_at_the_same_moment_both_see_the_sessions(
    place: Place, tmp_path: Path
) -> None:
    """Twenty times: each is moved once, no byte is lost, and neither process raises or misses one."""
    script = (
        "import asyncio, sys\n"
        "from kimi_sessions import ProjectLayout, Session, ShareLayout\n"
        "layout = ShareLayout(sys.argv[1]) if sys.argv[1] else ProjectLayout()\n"
        "for line in sys.stdin:\n"
        "    work_dir = line.strip()\n"
        "    found = asyncio.run(Session.find(work_dir, 'one', layout=layout))\n"
        "    listed = asyncio.run(Session.list(work_dir, layout=layout))\n"
        "    kinds = sorted({p.kind for s in listed for p in s.problems} - {'untrusted'})\n"
        "    print(found and found.id, sorted(s.id for s in listed), kinds, flush=True)\n"
    )
    given = str(tmp_path / "share") if isinstance(place.layout, ShareLayout) else ""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(2)
    ]
    try:
        for round_number in range(20):
            work_dir = tmp_path / f"round-{round_number}"
            work_dir.mkdir()
            here = Place(place.layout, work_dir)
            data = b'{"role":"user","content":"%d"}\n' % round_number
            here.put_flat("one.jsonl", data)
            here.put_flat("one_1.jsonl", b"rotated\n")
            here.put_flat("two.jsonl", data)
            for child in children:
                assert child.stdin is not None
                child.stdin.write(f"{work_dir}\n")
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == "one ['one', 'two'] []\n"
            assert sorted(os.listdir(here.sessions)) == ["one", "two"]
            assert (here.sessions / "one" / "context.jsonl").read_bytes() == data
            assert (here.sessions / "one" / "context_1.jsonl").read_bytes() == b"rotated\n"
    finally:
        for child in children:
            child.communicate()


async def test_a_deleted_session_is_not_brought_back_by_its_flat_file(place: Place) -> None:
    """It goes with the session, also where it clashed."""
    place.put("one", prompt("hi"))
    place.put_flat("one.jsonl")
    place.put_flat("one_sub_1.jsonl")
    await (await place.find("one")).delete()
    assert await place.maybe("one") is None
    assert await place.ids(include_empty=True) == []
    assert os.listdir(place.sessions) == []


# --- trust ---------------------------------------------------------------------------------------------------------

YOLO = {
    "custom_title": "helpful",
    "approval": {"yolo": True, "afk": True, "auto_approve_actions": ["run command"]},
    "additional_dirs": ["/"],
}


async def test_a_session_that_came_with_a_project_is_listed_with_no_approvals(project: Place) -> None:
    """Its title and its words are shown; what it would let an agent do is not in force."""
    project.put("planted", prompt("hi"), state=YOLO)
    for session in (await project.find("planted"), (await project.listed())[0]):
        assert not session.trusted
        assert session.title == "helpful"
        assert session.state.approval == SessionState().approval
        assert session.state.additional_dirs == []
        assert "untrusted" in [problem.kind for problem in session.problems]


async def test_continue_passes_an_untrusted_session_over(project: Place) -> None:
    """If it is all there is, that is an error that names it; asked for expressly, it is given."""
    project.put("planted", prompt("hi", 900.0), state=YOLO)
    with pytest.raises(UntrustedSessionError) as caught:
        await project.continue_()
    assert (caught.value.session_id, caught.value.path) == ("planted", str(project.sessions / "planted"))
    assert await project.continue_(allow_untrusted=True) == "planted"
    await project.create("mine", text="x", at=100.0)
    assert await project.continue_() == "mine"
    (await project.find("planted")).mark_last()
    assert await project.continue_() == "mine"


async def test_saving_an_untrusted_session_neither_grants_nor_loses_its_approvals(project: Place) -> None:
    """They stay on disk as they were, whatever was set in memory; other changes are saved."""
    project.put("planted", prompt("hi"), state=YOLO)
    session = await project.find("planted")
    session.state.custom_title = "mine now"
    session.state.approval.auto_approve_actions.add("more")
    session.save_state()
    await session.rename("named")
    document = json.loads((session.path / "state.json").read_bytes())
    assert (document["approval"], document["additional_dirs"]) == (YOLO["approval"], YOLO["additional_dirs"])
    assert document["custom_title"] == "named"
    found = await project.find("planted")
    assert not found.trusted
    assert found.state.approval == SessionState().approval


async def test_a_session_is_trusted_once_its_user_says_so(project: Place) -> None:
    """With the approvals that are there; a copy of the project elsewhere is not."""
    project.put("planted", prompt("hi"), state=YOLO)
    session = await project.find("planted")
    await session.trust()
    assert session.trusted
    assert session.state.approval.yolo
    assert await project.continue_() == "planted"
    copy = project.work_dir.with_name("copy")
    shutil.copytree(project.work_dir, copy)
    (copied,) = await Session.list(copy)
    assert not copied.trusted
    assert not copied.state.approval.yolo


async def test_approvals_that_somebody_changed_on_disk_are_not_in_force(project: Place) -> None:
    """The session stays trusted; a save by its owner that goes through us stays in force."""
    session = await project.create("one", text="x")
    session.state.approval.auto_approve_actions.add("read")
    session.save_state()
    assert (await project.find("one")).state.approval.auto_approve_actions == {"read"}
    document = json.loads((session.path / "state.json").read_bytes())
    document["approval"]["yolo"] = True
    project.put("one", context=None, state=document)
    found = await project.find("one")
    assert found.trusted
    assert found.state.approval == SessionState().approval
    assert "approvals" in [problem.kind for problem in found.problems]


async def test_a_share_is_the_user_s_own_and_has_no_seals(share: Place) -> None:
    """What lies there is trusted."""
    folder = share.put("one", prompt("hi"), state=YOLO)
    session = await share.find("one")
    assert session.trusted
    assert session.state.approval.yolo
    session.save_state()
    assert not (folder / "seal.json").exists()


# --- logs and turns of a session -----------------------------------------------------------------------------------


async def test_turns_and_a_fork_come_from_the_session_s_log(place: Place) -> None:
    """A fork has the turns up to the one named, a parent, and leaves its source as it was."""
    session = await place.create("one", text="first", at=100.0)
    await session.wire_file.append_many(
        [TurnEnd(), TurnBegin(user_input="second"), TurnEnd()], timestamp=200.0
    )
    assert [(turn.index, turn.user_text) for turn in await session.turns()] == [(0, "first"), (1, "second")]
    before = (session.path / "wire.jsonl").read_bytes()
    fork = await session.fork(0)
    assert [turn.user_text for turn in await fork.turns()] == ["first"]
    assert fork.parent == {"session_id": "one", "turn_index": 0}
    assert fork.trusted
    assert fork.title.endswith("first")
    assert (session.path / "wire.jsonl").read_bytes() == before
    assert fork.id in await place.ids()


async def test_a_disk_durable_session_writes_what_an_ordinary_one_does(place: Place) -> None:
    """Only when it returns differs."""
    session = await place.create("one")
    session.durability = "disk"
    await session.wire_file.append_message(TurnBegin(user_input="x"), timestamp=1.0)
    await session.context.append({"role": "user", "content": "x"})
    assert (await place.find("one")).title == "x"


async def test_a_durability_that_there_is_not_is_refused_when_it_is_set(place: Place) -> None:
    """And not when the first record of a turn has to be written."""
    session = await place.create("one")
    with pytest.raises(ValueError, match="durability is 'os' or 'disk', not 'Disk'"):
        session.durability = "Disk"  # type: ignore[assignment]
    assert session.durability == "os"


def test_the_verbs_work_without_a_running_loop(place: Place) -> None:
    """A small program may drive them by hand, once each."""
    step: Callable[[Any], Any] = asyncio.run
    session = step(Session.create(place.work_dir, "one", layout=place.layout))
    step(session.rename("x"))
    assert [s.title for s in step(Session.list(place.work_dir, layout=place.layout))] == ["x"]
