"""Places that are hard to work in: no home, no UTF-8, paths near the limit, folders that go away, clocks that jump."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.children import run
from tests.stores import said, say, told, write

from kimi_sessions import (
    HomeNotFoundError,
    Layout,
    ProjectLayout,
    Session,
    SessionNotFoundError,
    SessionsError,
    ShareLayout,
    WorkDirNotFoundError,
    WriteError,
)


async def tour(work_dir: Path, layout: Layout) -> None:
    """Use everything once, and look at what came of it."""
    session = await Session.create(work_dir, "old", layout=layout)
    await write(session, ["one é 漢字"])
    await say(session, ["uno é 漢字"])
    await session.rename("A name é 漢字")
    await session.tag("tag")
    session.state.plan_slug = "plan"
    session.save_state()
    fork = await session.fork(0)
    await fork.trash()
    fork = await Session.restore(work_dir, fork.id, layout=layout)
    await fork.delete()
    async with session.hold():
        await session.context.clear()
    await session.close()
    [found] = await Session.list(work_dir, layout=layout)
    assert (found.id, found.title, found.problems) == ("old", "A name é 漢字", [])
    assert await told(found) == ["one é 漢字"]
    assert found.trusted
    last = await Session.continue_(work_dir, layout=layout)
    assert last is not None
    assert last.id == "old"
    assert [each.id for each in await Session.list_all(layout=layout)] == ["old"]


@pytest.fixture(params=["project", "share"])
def layout(request: pytest.FixtureRequest, home: Path) -> Layout:
    """Give each layout."""
    return ProjectLayout() if request.param == "project" else ShareLayout(home / ".kimi")


LOCALE = """
sys.path.insert(0, args[0])
assert sys.flags.utf8_mode == 0
async def main(work_dir, layout):
    session = await Session.create(work_dir, "old", layout=layout)
    await write(session, ["one \\u00e9 \\u6f22"]); await say(session, ["uno \\u00e9"])
    await session.rename("n\\u00e4me"); await session.tag("t\\u00e4g"); session.save_state()
    fork = await session.fork(0)
    await fork.trash(); await Session.restore(work_dir, fork.id, layout=layout); await fork.delete()
    [found] = await Session.list(work_dir, layout=layout)
    tell(ascii(found.title), ascii(await told(found)), ascii(await said(found)), found.problems)
    found = (await Session.list_all(layout=layout))[0]
    tell(os.fsencode(found.work_dir) == os.fsencode(work_dir), found.trusted)
import kimi_sessions.cli
def shell(work_dir):
    for arguments in (["list"], ["show", "old"], ["doctor"], ["list", "--json"]):
        try:
            code = kimi_sessions.cli.main([*arguments, "--work-dir", work_dir])
        except SystemExit as error:
            code = error.code
        tell("code", code)
name = os.fsdecode(bytes.fromhex(args[1]))
for at, layout in (("a", ProjectLayout()), ("b", ShareLayout())):
    work_dir = os.path.join(args[0], at, name)
    os.makedirs(work_dir)
    asyncio.run(main(work_dir, layout))
    if at == "a":
        shell(work_dir)
"""


@pytest.mark.parametrize("name", [b"plain", "é 漢字".encode(), b"not utf-8 \xff\xe9"])
@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}])
async def test_any_locale_and_any_folder_name_will_do(
    tmp_path: Path, home: Path, name: bytes, locale: dict[str, str]
) -> None:
    """A C locale without UTF-8 mode, and names that are no UTF-8: everything works, and files are UTF-8."""
    code = LOCALE if locale else LOCALE.replace("assert sys.flags", "sys.flags")
    lines = run(code, tmp_path, name.hex(), env={**locale, "PYTHONIOENCODING": "ascii"} if locale else {})
    ours = [line for line in lines if line.startswith(("'", "True", "False"))]
    assert ours == ["'n\\xe4me' ['one \\xe9 \\u6f22'] ['uno \\xe9'] []", "True True"] * 2
    codes = [line for line in lines if line.startswith("code")]
    assert codes == ["code 0"] * 4


async def test_without_a_home_a_project_works_and_the_rest_says_what_to_set(tmp_path: Path) -> None:
    """No HOME, no such user: sessions of a project work (unsealed), and an error names the variable to set."""
    work_dir = tmp_path / "project"
    work_dir.mkdir()
    code = """
for name in list(os.environ):
    if name in ("HOME", "KIMI_SESSIONS_HOME", "KIMI_SHARE_DIR") or name.startswith("XDG_"):
        del os.environ[name]
import concurrent.futures.thread, platformdirs
os.path.expanduser = lambda path: path  # what it does where the system knows no such user
async def main(work_dir):
    session = await Session.create(work_dir, "old")
    await write(session, ["one"]); await session.rename("x")
    tell(session.problems != [], [each.id for each in await Session.list(work_dir)], await told(session))
    for step in (lambda: Session.list_all(), lambda: Session.create(work_dir, layout=ShareLayout())):
        try:
            await step()
            tell("done")
        except HomeNotFoundError as error:
            tell(error.variable, error)
asyncio.run(main(args[0]))
"""
    lines = run(code, work_dir)
    assert lines[0] == "True ['old'] ['one']"
    assert lines[1].startswith("KIMI_SESSIONS_HOME or HOME")
    assert lines[2].startswith("KIMI_SHARE_DIR or HOME")


@pytest.mark.parametrize("length", [1000, 3000, 3900, 3990, 4000, 4050, 4080])
async def test_a_work_dir_with_a_path_near_the_limit_works_or_says_so(
    tmp_path: Path, home: Path, length: int, layout: Layout
) -> None:
    """Everything works, or the first step says that the name is too long; nothing is half made."""
    root = tmp_path
    fd = os.open(root, os.O_RDONLY)
    text = str(root)
    try:
        while len(text) < length:
            part = "d" * min(200, max(length - len(text) - 1, 1))
            os.mkdir(part, dir_fd=fd)
            below = os.open(part, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd, text = below, f"{text}/{part}"
        work_dir = Path(text)
        try:
            await tour(work_dir, layout)
        except SessionsError as error:
            assert length > 3900, f"this should work: {error}"  # noqa: PT017
            told_why = getattr(error, "errno", None), "too long" in str(error)
            assert told_why == (errno.ENAMETOOLONG, True)
            # What was made before the name got too long is whole, and a list of it is no error.
            await Session.list(work_dir, layout=layout, include_empty=True)
    finally:
        os.close(fd)


async def test_a_folder_that_vanishes_is_told_and_comes_back_by_itself_never(
    work_dir: Path, layout: Layout
) -> None:
    """The session, the store or the whole work dir is removed by hand while a program has it open."""
    session = await Session.create(work_dir, "old", layout=layout)
    await write(session, ["one"])
    for gone in (session.path, session.path.parent, work_dir):
        shutil.rmtree(gone, ignore_errors=True)
        for step in (
            lambda: write(session, ["two"]),
            lambda: say(session, ["due"]),
            lambda: session.rename("x"),
            lambda: session.tag("x"),
            session.refresh,
            session.fork,
            session.trash,
            session.delete,
            session.context.checkpoint,
            session.context.clear,
        ):
            with pytest.raises((SessionNotFoundError, WorkDirNotFoundError)):
                await step()
        with pytest.raises(SessionNotFoundError):
            session.save_state()
        assert not session.path.exists()
        assert await told(session) == []
        assert await Session.list(work_dir, layout=layout) == []
        await session.close()
    if isinstance(layout, ProjectLayout):
        with pytest.raises(WorkDirNotFoundError):
            await Session.create(work_dir, layout=layout)
    assert not work_dir.exists()


async def test_a_log_that_vanishes_or_is_replaced_is_begun_anew(work_dir: Path) -> None:
    """The log alone was removed, or replaced by an editor: the next record is in the log that is there."""
    session = await Session.create(work_dir, "old")
    await write(session, ["one"])
    path = session.path / "wire.jsonl"
    path.unlink()
    await write(session, ["two"])
    assert await told(session) == ["two"]
    data = path.read_bytes()
    other = path.with_suffix(".new")
    other.write_bytes(data.replace(b'"two"', b'"changed"'))
    other.replace(path)
    await write(session, ["three"])
    assert await told(session) == ["changed", "three"]
    path.write_bytes(path.read_bytes()[:-9])  # cut by hand, within the last record
    await write(session, ["four"])
    assert await told(session) == ["changed", "four"]


async def test_clocks_that_jump_do_not_lose_or_hide_a_session(
    work_dir: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a clock that goes back, or is years ahead: all are there, and order goes by believable times."""
    now = time.time()
    for name, at in (("past", 10.0), ("now", now), ("future", now + 10 * 365 * 86400), ("odd", -5.0)):
        session = await Session.create(work_dir, name, layout=layout)
        line = {"timestamp": at, "message": {"type": "TurnBegin", "payload": {"user_input": name}}}
        (session.path / "wire.jsonl").write_text(json.dumps(line) + "\n")
        os.utime(session.context_file, (now - 5000, now - 5000))
    sessions = await Session.list(work_dir, layout=layout)
    assert sessions[0].id == "now"
    assert {each.id for each in sessions} == {"past", "now", "future", "odd"}
    assert all(0 <= each.updated_at <= now + 86400 for each in sessions)
    # A clock set back while a session runs: records stay in the order they were written in.
    clock = [now]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    session = await Session.create(work_dir, "running", layout=layout)
    for step in (0.0, -10_000.0, -20_000.0):
        clock[0] = now + step
        await write(session, [f"at {step}"])
        await session.tag(f"tag{step}")
        session.save_state()
    assert await told(session) == ["at 0.0", "at -10000.0", "at -20000.0"]
    trashed = [session]
    for each in trashed:
        await each.trash()
    assert (await Session.restore(work_dir, "running", layout=layout)).id == "running"
    clock[0] = 0.0
    assert {each.id for each in await Session.list(work_dir, layout=layout)} >= {"past", "now", "running"}


async def test_a_store_whose_home_can_not_be_written_works_unsealed(
    tmp_path: Path, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key can be kept: sessions are made, with a problem that says so, and take records."""
    wall = tmp_path / "wall"
    wall.write_text("no folder")
    monkeypatch.setenv("KIMI_SESSIONS_HOME", str(wall / "home"))
    session = await Session.create(work_dir, "old")
    assert session.problems != []
    assert not session.trusted
    await write(session, ["one"])
    await session.rename("A name")
    [found] = await Session.list(work_dir)
    assert (found.title, await told(found), await said(found)) == ("A name", ["one"], [])
    with pytest.raises(WriteError):
        await found.trust()


async def test_a_home_that_was_lost_makes_sessions_untrusted_and_nothing_else(
    work_dir: Path, home: Path
) -> None:
    """Registry and key are gone: records are read, and a person can trust the sessions again."""
    session = await Session.create(work_dir, "old")
    await write(session, ["one"])
    await session.close()
    shutil.rmtree(home / "kimi-sessions")
    [found] = await Session.list(work_dir)
    assert not found.trusted
    assert await told(found) == ["one"]
    await found.trust()
    again = await Session.find(work_dir, "old")
    assert again is not None
    assert again.trusted


def test_home_error_is_a_sessions_error() -> None:
    """A program that catches the library's errors catches this one."""
    assert issubclass(HomeNotFoundError, SessionsError)
