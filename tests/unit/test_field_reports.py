"""
Things that users of other session stores reported, each as one input and what would have been right.

Only what no other test holds; most reports are rows of the tests of one room.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.children import run
from tests.stores import said, say, snapshot, told, write

from kimi_sessions import Layout, ProjectLayout, Session, ShareLayout
from kimi_sessions.catalog import search
from kimi_sessions.check import check
from kimi_sessions.migration import apply_plan, plan_from_share
from kimi_sessions.repair import repair
from kimi_sessions.wire import TurnBegin

HEADER = b'{"type": "metadata", "protocol_version": "1.10"}\n'


def begin(text: str, at: float) -> bytes:
    """Give the line of a turn's beginning."""
    message = {"type": "TurnBegin", "payload": {"user_input": text}}
    return json.dumps({"timestamp": at, "message": message}).encode() + b"\n"


async def made(work_dir: Path, session_id: str, *texts: str, layout: Layout | None = None) -> Session:
    """Make a session that says these texts in both logs, and let go of it."""
    session = await Session.create(work_dir, session_id, layout=layout)
    for at, text in enumerate(texts):
        await session.wire_file.append_message(TurnBegin(user_input=text), timestamp=1_700_000_000.0 + at)
    await say(session, texts)
    await session.close(ok=False)
    return session


async def again(session: Session) -> Session:
    """Find a session as another program does."""
    found = await Session.find(session.work_dir, session.id, layout=session.layout)
    assert found is not None
    return found


@pytest.fixture(params=["project", "share"])
def layout(request: pytest.FixtureRequest, home: Path) -> Layout:
    """Give both layouts."""
    return ProjectLayout() if request.param == "project" else ShareLayout(home / ".kimi")


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"", b"{bad", b"[]", b"\0" * 99, b"\xff\xfe"])
async def test_broken_files_beside_the_logs_do_not_keep_a_session_from_working(
    work_dir: Path, layout: Layout, junk: bytes
) -> None:
    """Files of subagents, tasks and notifications, and every document: listed, read, written, forked."""
    session = await made(work_dir, "s", "one", layout=layout)
    for name in (
        *("subagents/a1/meta.json", "subagents/a1/context.jsonl", "subagents/a1/wire.jsonl"),
        *("tasks/t1/spec.json", "tasks/t1/runtime.json", "notifications/n1/event.json"),
        *("state.json", "session.json", "seal.json", "metadata.json"),
    ):
        (session.path / name).parent.mkdir(parents=True, exist_ok=True)
        (session.path / name).write_bytes(junk)
    [listed] = await Session.list(work_dir, layout=layout)
    assert (listed.title, await told(listed), await said(listed)) == ("one", ["one"], ["one"])
    await write(listed, ["two"])
    await listed.rename("named")
    fork = await listed.fork()
    assert await told(fork) == ["one", "two"]
    await repair(await again(session))
    found = await again(session)
    assert (found.title, await told(found)) == ("named", ["one", "two"])
    assert (await check(found)).findings == ()


async def test_reading_forking_and_searching_leave_a_log_without_its_last_newline_as_it_is(
    work_dir: Path, layout: Layout
) -> None:
    """Whoever only reads ends no line for others; the next append does, and both records are whole."""
    session = await made(work_dir, "s", "one", "two", layout=layout)
    for name in ("wire.jsonl", "context.jsonl"):
        path = session.path / name
        path.write_bytes(path.read_bytes()[:-1])
    before = snapshot(session.path)
    session = await again(session)
    await Session.list(work_dir, layout=layout)
    assert [turn.user_text for turn in await session.turns()] == ["one", "two"]
    assert len((await search("two", work_dir, layout=layout)).hits) == 1
    await check(session)
    for fork, kept in ((await session.fork(), ["one", "two"]), (await session.fork(0), ["one"])):
        assert (await told(fork), await said(fork)) == (kept, kept)
    assert snapshot(session.path) == before
    await write(session, ["three"])
    await say(session, ["three"])
    found = await again(session)
    assert (await told(found), await said(found)) == (["one", "two", "three"],) * 2


@pytest.mark.parametrize("raw", ["AA", "AB", "AjunkA", "A{", "[A]"])
async def test_a_registry_with_entries_glued_together_hides_no_session(
    work_dir: Path, tmp_path: Path, home: Path, raw: str
) -> None:
    """Two documents on one line made 'not found' of every session; the folders are there to be looked at."""
    other = tmp_path / "other"
    other.mkdir()
    layout = ShareLayout(home / ".kimi")
    await made(work_dir, "one", "hi", layout=layout)
    await made(other, "two", "hi", layout=layout)
    path = layout.kimi_json_path
    good = path.read_text()
    path.write_text(raw.replace("A", good).replace("B", good[: len(good) // 2]))
    before = path.read_bytes()
    assert await Session.find(work_dir, "one", layout=layout) is not None
    assert {session.id for session in await Session.list_all(layout=layout)} == {"one", "two"}
    going_on = await Session.continue_(other, layout=layout)
    assert going_on is not None
    assert going_on.id == "two"
    assert path.read_bytes() == before


# --- two writers -------------------------------------------------------------------------------------------------


async def test_a_change_at_the_same_moment_by_the_clock_is_not_overwritten(work_dir: Path) -> None:
    """The file's time says nothing: it is put back, and the other program's change is still seen."""
    session = await made(work_dir, "s", "one")
    await session.rename("named")
    mine, theirs = await again(session), await again(session)
    path = session.path / "state.json"
    was = path.stat()
    theirs.state.plan_mode = True
    theirs.save_state()
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    mine.state.archived = True
    mine.save_state()
    saved = json.loads(path.read_bytes())
    assert (saved["plan_mode"], saved["archived"], saved["custom_title"]) == (True, True, "named")


# --- which work dir ----------------------------------------------------------------------------------------------


async def test_deleting_all_of_one_project_leaves_the_one_whose_name_looks_alike(
    tmp_path: Path, layout: Layout
) -> None:
    """Names of equal length in a script that some store made dashes of."""
    one, other = tmp_path / "项目甲", tmp_path / "测试乙"
    for folder in (one, other):
        folder.mkdir()
        await made(folder, "s", folder.name, layout=layout)
    for session in await Session.list(one, layout=layout):
        await session.trash()
    assert await Session.empty_trash(one, layout=layout) == 1
    assert [session.title for session in await Session.list(other, layout=layout)] == [other.name]
    assert await Session.list(one, layout=layout) == []


async def test_one_id_in_two_work_dirs_is_two_sessions_everywhere(tmp_path: Path, layout: Layout) -> None:
    """Neither list, search nor catalog takes one for the other."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        await made(tmp_path / name, "same", f"word in {name}", layout=layout)
    for _ in range(2):
        assert len(await Session.list_all(layout=layout)) == 2
        hits = (await search("word", layout=layout)).hits
        assert sorted(hit.snippet for hit in hits) == ["word in a", "word in b"]


async def test_a_folder_replaced_by_a_link_to_its_new_place_has_its_sessions_by_both_paths(
    tmp_path: Path, home: Path, layout: Layout
) -> None:
    """Made through a link and by the real path, then the real folder moves and leaves a link behind."""
    real, link, new = tmp_path / "real", tmp_path / "link", tmp_path / "elsewhere"
    real.mkdir()
    link.symlink_to(real)
    await made(link, "by-link", "hi", layout=layout)
    await made(real, "by-path", "hi", layout=layout)
    real.rename(new)
    real.symlink_to(new)
    for place in (real, new, link):
        found = await Session.list(place, layout=layout)
        assert {session.id for session in found} == {"by-link", "by-path"}, place
        assert all(session.trusted for session in found)


async def test_sessions_of_one_work_dir_are_used_without_opening_anothers_or_their_own_tasks(
    work_dir: Path, tmp_path: Path, layout: Layout
) -> None:
    """Listing, continuing, making and appending: hundreds of tasks and other projects cost nothing."""
    other = tmp_path / "other"
    other.mkdir()
    mine, theirs = (
        await made(work_dir, "mine", "hi", layout=layout),
        await made(other, "x", "hi", layout=layout),
    )
    for number in range(3):
        for name in ("tasks", "subagents", "notifications"):
            (mine.path / name / str(number)).mkdir(parents=True)
    share = layout.share if isinstance(layout, ShareLayout) else ""
    [opened] = run(
        """
opened = []
def note(event, args):
    if event in ("open", "os.scandir", "os.listdir") and isinstance(args[0], (str, bytes)):
        opened.append(os.fsdecode(args[0]))
layout = ShareLayout(args[1]) if args[1] else None
async def use():
    await (await Session.create(args[0], layout=layout)).close()
    session = await Session.continue_(args[0], layout=layout)
    await Session.list(args[0], layout=layout)
    await write(session, ["more"])
sys.addaudithook(note)
asyncio.run(use())
import json
tell(json.dumps(opened))
""",
        work_dir,
        share,
    )
    names = json.loads(opened)
    assert any("mine" in name or "wire.jsonl" in name for name in names), names
    assert [name for name in names if str(theirs.path.parent) in name] == []
    assert [
        name for name in names if name.rpartition("/")[2] in ("tasks", "subagents", "notifications")
    ] == []


# --- lists and times ---------------------------------------------------------------------------------------------


async def test_empty_sessions_do_not_use_up_a_limit(work_dir: Path, layout: Layout) -> None:
    """What is opened and left again is hidden before the newest are counted off, not after."""
    control = (
        b'{"role":"_system_prompt","content":"You"}\n{"role":"_usage","token_count":5}\n'
        b'{"role":"_checkpoint","id":0}\n'
    )
    for number in range(12):
        session = await Session.create(work_dir, f"empty-{number}", layout=layout)
        (session.path / "wire.jsonl").write_bytes(HEADER)
        (session.path / "context.jsonl").write_bytes(control)
    for number in range(3):
        await made(work_dir, f"full-{number}", "hi", layout=layout)
    for _ in range(2):
        found = await Session.list(work_dir, layout=layout, limit=2)
        assert [session.id for session in found] == ["full-0", "full-1"]
        assert len(await Session.list(work_dir, layout=layout)) == 3


async def test_the_age_of_what_is_in_the_trash_is_not_that_of_its_files(
    work_dir: Path, layout: Layout
) -> None:
    """A backup or a move gave old times to everything; what was deleted a moment ago stays."""
    session = await made(work_dir, "s", "hi", layout=layout)
    await session.trash()
    trash = layout.trash_path(work_dir)
    for path in (trash, *trash.rglob("*")):
        os.utime(path, (1, 1))
    assert await Session.empty_trash(work_dir, layout=layout, older_than_s=86400) == 0
    assert [entry.session_id for entry in await Session.list_trash(work_dir, layout=layout)] == ["s"]


async def test_a_migration_keeps_the_times_that_only_the_files_have(work_dir: Path, home: Path) -> None:
    """A session without a wire log is as old as its context: it must not become one of today."""
    share = ShareLayout(home / ".kimi")
    session = await made(work_dir, "s", "hi", layout=share)
    (session.path / "session.json").unlink()
    (session.path / "wire.jsonl").unlink()
    os.utime(session.path / "context.jsonl", (1_600_000_000, 1_600_000_000))
    apply_plan(plan_from_share(share, work_dir))
    [found] = await Session.list(work_dir)
    assert (found.created_at, found.updated_at) == (1_600_000_000, 1_600_000_000)


async def test_a_log_of_a_gigabyte_is_listed_and_iterated_in_little_memory(work_dir: Path) -> None:
    """Here a tenth of that, in a process of its own: what it takes does not grow with the log."""
    session = await made(work_dir, "s", "hi")
    block = begin("x" * 900, 1_700_000_001.0) * 1000
    with (session.path / "wire.jsonl").open("ab") as log:
        for _ in range(100):
            log.write(block)
    size = (session.path / "wire.jsonl").stat().st_size
    [line] = run(
        """
import resource
async def use():
    session = await Session.continue_(args[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await Session.list(args[0])
    count = 0
    async for record in session.wire_file.iter_records():
        count += 1
    tell(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
asyncio.run(use())
""",
        work_dir,
    )
    count, grown = map(int, line.split())
    assert count == 100_001
    assert grown * (1 if sys.platform == "darwin" else 1024) < size / 4
