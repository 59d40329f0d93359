"""A repair makes a damaged session whole, keeps every byte it takes away, and finds nothing left to do afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kimi_sessions import Session, SessionBusyError, ShareLayout
from kimi_sessions.check import check, check_work_dir
from kimi_sessions.context.records import parse_message_record
from kimi_sessions.errors import SessionNotFoundError
from kimi_sessions.repair import INTERRUPTED, RepairReport, repair, repair_store
from kimi_sessions.wire import TurnBegin

HEADER = b'{"type": "metadata", "protocol_version": "1.10"}\n'
BEGIN = b'{"timestamp": 5.0, "message": {"type": "TurnBegin", "payload": {"user_input": "hi"}}}\n'
END = b'{"timestamp": 6.0, "message": {"type": "TurnEnd", "payload": {}}}\n'
TURN = HEADER + BEGIN + END
USER = b'{"role":"user","content":"hi"}\n'
USAGE = b'{"role":"_usage","token_count":3}\n'
CHECKPOINT = b'{"role":"_checkpoint","id":0}\n'


def call(*ids: str) -> bytes:
    """Give an assistant message that calls tools."""
    calls = [
        {"type": "function", "id": each, "function": {"name": "Read", "arguments": "{}"}} for each in ids
    ]
    return json.dumps({"role": "assistant", "content": "", "tool_calls": calls}).encode() + b"\n"


def result(call_id: str, text: str = "done") -> bytes:
    """Give the result of a call."""
    return (
        json.dumps({"role": "tool", "content": text, "tool_call_id": call_id}, separators=(",", ":")).encode()
        + b"\n"
    )


def closed(call_id: str) -> bytes:
    """Give the result that a repair adds."""
    return result(call_id, INTERRUPTED)


def tree(root: Path) -> dict[str, tuple[int, str]]:
    """Give names, modes and contents of everything below a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        seen = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (seen.st_mode, hashlib.sha256(content).hexdigest())
    return found


def below(folder: Path) -> list[Path]:
    """Give a folder and everything in it."""
    return [folder, *folder.rglob("*")]


def put(path: Path, data: bytes) -> None:
    """Write a private file."""
    for parent in reversed(path.parents[:4]):
        parent.mkdir(exist_ok=True, mode=0o700)
    path.write_bytes(data)
    path.chmod(0o600)


@pytest.fixture
async def folder(work_dir: Path) -> Path:
    """Give the folder of a healthy session `s` with one turn."""
    session = await Session.create(work_dir, "s")
    put(session.path / "wire.jsonl", TURN)
    put(session.path / "context.jsonl", USER)
    return session.path


async def repaired(work_dir: Path) -> RepairReport:
    """Repair session `s` and require that nothing is left to find, or to do for a second repair."""
    session = await Session.open(work_dir, "s")
    planned = await repair(session, dry_run=True)
    report = await repair(session)
    assert [(action.file, action.what) for action in planned.actions] == [
        (action.file, action.what) for action in report.actions
    ]
    assert report.after.findings == ()
    assert (await check(await Session.open(work_dir, "s"))).findings == ()
    before = tree(work_dir)
    again = await repair(await Session.open(work_dir, "s"))
    assert again.actions == ()
    assert tree(work_dir) == before
    json.dumps([report.as_dict(), planned.as_dict()])
    return report


def pieces(torn: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Read a `.torn` file: origins and pieces."""
    lines = torn.read_bytes().split(b"\n")
    assert lines.pop() == b""
    return [(json.loads(origin), piece) for origin, piece in zip(lines[::2], lines[1::2], strict=True)]


# --- logs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old,new,moved",
    [
        pytest.param(
            TURN + BEGIN[:30] + END, TURN + END, [BEGIN[:30]], id="a torn record before a whole one"
        ),
        pytest.param(TURN + BEGIN[:-1] + END, TURN + BEGIN + END, [], id="two on one line"),
        pytest.param(
            TURN + BEGIN[:-1] + b"junk}{" + END, TURN + BEGIN + END, [b"junk}{"], id="junk between two"
        ),
        pytest.param(TURN + BEGIN[:40], TURN, [BEGIN[:40]], id="a torn tail"),
        pytest.param(TURN + BEGIN[:-1], TURN + BEGIN, [], id="only the newline missing"),
        pytest.param(TURN + b"\0" * 1206, TURN, [], id="NULs at the end"),
        pytest.param(HEADER + BEGIN[:-1] + b"\0" * 9000 + b"\n" + END, TURN, [], id="NULs behind a record"),
        pytest.param(HEADER + b"\0" * 99 + BEGIN + END, TURN, [], id="NULs before a record"),
        pytest.param(b"\xef\xbb\xbf" + TURN, TURN, [], id="a byte order mark"),
        pytest.param(HEADER + b"[]\nnull\n7\n" + BEGIN + END, TURN, [b"[]", b"null", b"7"], id="no objects"),
        pytest.param(HEADER + b"\xff\xfe\n" + BEGIN + END, TURN, [b"\xff\xfe"], id="no text"),
        pytest.param(
            HEADER + b'{"a":"x\ny\nz"}\n' + BEGIN + END,
            TURN,
            [b'{"a":"x', b"y", b'z"}'],
            id="raw newlines",
        ),
        pytest.param(
            BEGIN + b"{\n" + HEADER + HEADER + END,
            BEGIN + HEADER + HEADER + END,
            [b"{"],
            id="headers",
        ),
        pytest.param(TURN + b" \r\n\n{\n\n" + END, TURN + b" \r\n\n\n" + END, [b"{"], id="blank lines stay"),
    ],
)
async def test_a_log_keeps_its_whole_records_and_what_is_none_moves_aside(
    work_dir: Path, folder: Path, old: bytes, new: bytes, moved: list[bytes]
) -> None:
    """Whole records stay byte for byte in their order, torn pieces go to the torn file, the old log is kept whole."""
    put(folder / "wire.jsonl", old)
    report = await repaired(work_dir)
    assert (folder / "wire.jsonl").read_bytes() == new
    assert (folder / "wire.jsonl.before-repair-1").read_bytes() == old
    assert [action.kept_as for action in report.actions] == ["wire.jsonl.before-repair-1"]
    if moved:
        found = pieces(folder / "wire.jsonl.torn")
        assert [piece for _, piece in found] == moved
        for origin, piece in found:
            assert old[origin["offset"] : origin["offset"] + origin["length"]] == piece
            assert old[: origin["offset"]].count(b"\n") + 1 == origin["line"]
    else:
        assert not (folder / "wire.jsonl.torn").exists()


async def test_a_repair_says_how_many_bytes_it_leaves_out(work_dir: Path, folder: Path) -> None:
    """What a disk filled with NULs instead of what was written: somebody wants to know how much that was."""
    put(folder / "wire.jsonl", HEADER + BEGIN[:-1] + b"\0" * 9000 + b"\n" + END)
    put(folder / "context.jsonl", b"\0" * 1000 + b"\n" + b"\0" * 206)
    report = await repaired(work_dir)
    assert {action.file: action.what for action in report.actions} == {
        "context.jsonl": "leave out 2 runs of NUL bytes, 1206 bytes in all",
        "wire.jsonl": "leave out a run of NUL bytes, 9000 bytes in all",
    }


async def test_every_log_of_a_session_is_repaired(work_dir: Path, folder: Path) -> None:
    """Rotated contexts and the logs of subagents, old and new, get the same care, each with its own torn file."""
    names = (
        "context_2.jsonl",
        "context_sub_1.jsonl",
        "subagents/a1/context.jsonl",
        "subagents/a1/context_1.jsonl",
    )
    for name in names:
        put(folder / name, USER + b"{torn\n" + USER)
    await repaired(work_dir)
    for name in names:
        assert (folder / name).read_bytes() == USER + USER
        assert [piece for _, piece in pieces(folder / f"{name}.torn")] == [b"{torn"]


async def test_a_second_damage_is_added_to_the_torn_file(work_dir: Path, folder: Path) -> None:
    """What was moved aside before stays there, and an earlier backup is not written over."""
    put(folder / "wire.jsonl", TURN + b"{first\n")
    await repaired(work_dir)
    put(folder / "wire.jsonl", TURN + b"{second\n")
    await repaired(work_dir)
    assert [piece for _, piece in pieces(folder / "wire.jsonl.torn")] == [b"{first", b"{second"]
    assert b"{first" in (folder / "wire.jsonl.before-repair-1").read_bytes()
    assert b"{second" in (folder / "wire.jsonl.before-repair-2").read_bytes()


async def test_a_log_without_its_header_keeps_its_records(work_dir: Path, folder: Path) -> None:
    """A missing header is no damage, so nothing is put in its place."""
    put(folder / "wire.jsonl", BEGIN + END)
    assert (await repaired(work_dir)).actions == ()


async def test_a_repaired_session_reads_and_appends_at_once(work_dir: Path, folder: Path) -> None:
    """The object that was repaired, and one that had the log open before, go on with the new log."""
    put(folder / "wire.jsonl", TURN + b"{torn\n")
    session = await Session.open(work_dir, "s")
    other = await Session.open(work_dir, "s")
    await other.wire_file.append_message(TurnBegin(user_input="before"))
    await repair(session)
    await session.wire_file.append_message(TurnBegin(user_input="one"))
    await other.wire_file.append_message(TurnBegin(user_input="two"))
    assert [turn.user_text for turn in await session.turns()] == ["hi", "before", "one", "two"]
    assert (await check(session)).findings == ()
    assert session.problems == []


# --- the model's side ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old,new",
    [
        pytest.param(
            call("a", "b", "c") + result("c") + result("a"),
            call("a", "b", "c") + result("c") + result("a") + closed("b"),
            id="at the end, results in another order",
        ),
        pytest.param(call("a"), call("a") + closed("a"), id="no result at all"),
        pytest.param(
            call("a", "b"), call("a", "b") + closed("a") + closed("b"), id="in the order of the calls"
        ),
        pytest.param(call("a") + USER, call("a") + closed("a") + USER, id="a user message follows"),
        pytest.param(
            call("a", "b") + USAGE + result("a") + CHECKPOINT + USER,
            call("a", "b") + USAGE + result("a") + closed("b") + CHECKPOINT + USER,
            id="among control records",
        ),
        pytest.param(
            call("a") + USAGE + CHECKPOINT + USER,
            call("a") + USAGE + closed("a") + CHECKPOINT + USER,
            id="a usage and no result",
        ),
        pytest.param(
            call("a") + USER + call("a") + result("a"),
            call("a") + closed("a") + USER + call("a") + result("a"),
            id="the id is used again",
        ),
        pytest.param(
            call("a", "a") + result("a"),
            call("a", "a") + result("a") + closed("a"),
            id="one id twice",
        ),
        pytest.param(call("a")[:-1], call("a") + closed("a"), id="the message lacks its newline"),
        pytest.param(call("a") + result("a")[:20], call("a") + closed("a"), id="the result is torn"),
        pytest.param(
            call("a") + result("a")[:20] + USER,
            call("a") + closed("a") + USER,
            id="a record stuck to it",
        ),
        pytest.param(
            call("a", "b")[:-1] + result("a"),
            call("a", "b") + result("a") + closed("b"),
            id="fused call and result",
        ),
        pytest.param(USER + result("x") + USER, USER + USER, id="a result without a call"),
        pytest.param(
            call("a") + result("a") + result("a", "again"), call("a") + result("a"), id="a second result"
        ),
        pytest.param(call("a")[:-9] + b"\n" + result("a") + USER, USER, id="the call itself is torn"),
        pytest.param(
            call("a") + USER + call("b") + result("b") + result("a", "late"),
            call("a") + closed("a") + USER + call("b") + result("b"),
            id="a result that came too late",
        ),
    ],
)
async def test_every_call_ends_up_with_one_result_in_its_place(
    work_dir: Path, folder: Path, old: bytes, new: bytes
) -> None:
    """Calls without results get one behind the other results of their message; results without calls move aside."""
    put(folder / "context.jsonl", USER + old)
    await repaired(work_dir)
    assert (folder / "context.jsonl").read_bytes() == USER + new
    kept = (folder / "context.jsonl.before-repair-1").read_bytes()
    assert kept == USER + old


async def test_an_added_result_is_a_message_like_any_other(work_dir: Path, folder: Path) -> None:
    """It has a role, one text and the call's id, and nothing that a reader of the format would not know."""
    put(folder / "context.jsonl", call("a"))
    await repaired(work_dir)
    line = (folder / "context.jsonl").read_bytes().splitlines()[1]
    assert set(json.loads(line)) == {"role", "content", "tool_call_id"}
    message = parse_message_record(line)
    assert (message.role, message.tool_call_id, message.text) == ("tool", "a", INTERRUPTED)


async def test_calls_of_a_subagent_are_closed_too(work_dir: Path, folder: Path) -> None:
    """A subagent goes on from its own context, so that needs its results as well; a rotated one needs none."""
    put(folder / "subagents/a1/context.jsonl", call("a"))
    put(folder / "subagents/a1/context_1.jsonl", call("a"))
    await repaired(work_dir)
    assert (folder / "subagents/a1/context.jsonl").read_bytes() == call("a") + closed("a")
    assert (folder / "subagents/a1/context_1.jsonl").read_bytes() == call("a")


async def test_messages_that_can_t_be_ones_move_aside_and_unknown_ones_stay(
    work_dir: Path, folder: Path
) -> None:
    """What no reader takes for a message goes to the torn file; a role of a later version stays where it is."""
    unknown = b'{"role":"_later","x":1}\n{"role":"critic","content":""}\n'
    put(folder / "context.jsonl", USER + b'{"role":"user","content":7}\n' + unknown + b'{"role":"_usage"}\n')
    await repaired(work_dir)
    assert (folder / "context.jsonl").read_bytes() == USER + unknown
    moved = [piece for _, piece in pieces(folder / "context.jsonl.torn")]
    assert moved == [b'{"role":"user","content":7}', b'{"role":"_usage"}']


async def test_a_missing_context_is_made(work_dir: Path, folder: Path) -> None:
    """The session gets an empty, private context, and Kimi CLI sees it again."""
    (folder / "context.jsonl").unlink()
    await repaired(work_dir)
    assert (folder / "context.jsonl").read_bytes() == b""
    assert (folder / "context.jsonl").stat().st_mode & 0o777 == 0o600


# --- documents -------------------------------------------------------------------------------------------------

GOOD_STATE = json.dumps(
    {"version": 1, "archived": True, "custom_title": "Kept", "todos": [], "mine": 3}, indent=2
)


@pytest.mark.parametrize(
    "data,expected",
    [
        (b"", {}),
        (b"{bad json", {}),
        (b"[]", {}),
        (b"\0" * 50, {}),
        (GOOD_STATE.encode()[:70], {"archived": True, "custom_title": "Kept"}),
        (GOOD_STATE.encode()[:-2], {"archived": True, "custom_title": "Kept"}),
        (GOOD_STATE.encode() + b'"old": 1}', {"archived": True, "custom_title": "Kept", "mine": 3}),
        (b'{"version": 1, "title_generate_attempts": 12', {"title_generate_attempts": 0}),
        (b'{"custom_title": "Kept", "archived": "perhaps", "mine": 3}', {"custom_title": "Kept", "mine": 3}),
        (b'{"custom_title": 5, "archived": true}', {"archived": True, "custom_title": None}),
        (
            b'{"todos": [{"title": "x", "status": "blocked"}, {"title": "y", "status": "done"}]}',
            {"todos": [{"title": "y", "status": "done"}]},
        ),
    ],
)
async def test_a_damaged_state_is_set_aside_and_rebuilt_from_what_can_be_read(
    work_dir: Path, folder: Path, data: bytes, expected: dict[str, Any]
) -> None:
    """Whole fields survive, all else is at its default, and the damaged file is kept byte for byte."""
    put(folder / "state.json", data)
    os.utime(folder / "state.json", (1_600_000_000, 1_600_000_000))
    report = await repaired(work_dir)
    assert [action.kept_as for action in report.actions] == ["state.json.damaged-1"]
    assert (folder / "state.json.damaged-1").read_bytes() == data
    written = json.loads((folder / "state.json").read_bytes())
    assert {key: written.get(key) for key in expected} == expected
    assert (written["version"], written["approval"]["yolo"]) == (1, False)
    assert (folder / "state.json").stat().st_mtime == 1_600_000_000


async def test_a_rebuilt_state_allows_nothing_that_was_not_sealed(work_dir: Path, folder: Path) -> None:
    """Half of the approvals is not what the user sealed: they are left out, and the session stays the user's own."""
    session = await Session.open(work_dir, "s")
    session.state.approval.yolo = True
    session.state.additional_dirs = ["/tmp"]
    session.state.custom_title = "T"
    session.save_state()
    whole = (folder / "state.json").read_bytes()
    put(folder / "state.json", whole[: whole.index(b'"additional_dirs"')])
    await repaired(work_dir)
    session = await Session.open(work_dir, "s")
    assert (session.trusted, session.state.approval.yolo, session.problems) == (True, False, [])
    put(folder / "state.json", whole[: whole.index(b'"custom_title"')])
    await repaired(work_dir)
    session = await Session.open(work_dir, "s")
    assert (session.trusted, session.state.approval.yolo) == (True, True)


async def test_a_planted_state_gains_nothing_by_a_repair(work_dir: Path, folder: Path) -> None:
    """A session that this user never sealed is as untrusted after a repair as before."""
    (folder / "seal.json").unlink()
    put(folder / "state.json", b'{"approval": {"yolo": true}, "additional_dirs": ["/"]} junk')
    await repaired(work_dir)
    session = await Session.open(work_dir, "s")
    assert (session.trusted, session.state.approval.yolo, session.state.additional_dirs) == (False, False, [])


@pytest.mark.parametrize(
    "name",
    [
        *("metadata.json", "seal.json", "uploads/.sent", "subagents/a1/meta.json", "subagents/a1/state.json"),
        *("tasks/b1/spec.json", "tasks/b1/runtime.json", "notifications/n1/event.json"),
    ],
)
@pytest.mark.parametrize("data", [b"", b'{"half": '])
async def test_other_damaged_documents_are_set_aside(
    work_dir: Path, folder: Path, name: str, data: bytes
) -> None:
    """They are renamed, not removed, and nothing is made up in their place."""
    put(folder / name, data)
    report = await repaired(work_dir)
    assert not (folder / name).exists()
    assert (folder / f"{name}.damaged-1").read_bytes() == data
    assert [action.kept_as for action in report.actions] == [f"{Path(name).name}.damaged-1"]


async def test_a_damaged_session_document_keeps_what_can_be_read(work_dir: Path, folder: Path) -> None:
    """The time of creation and the tags survive a cut, and whoever has the session open keeps it open."""
    session = await Session.open(work_dir, "s")
    other = await Session.open(work_dir, "s")
    created = session.created_at
    await session.tag("blue")
    await session.pin()
    put(folder / "session.json", (folder / "session.json").read_bytes()[:-18])
    await repaired(work_dir)
    session = await Session.open(work_dir, "s")
    assert (session.created_at, session.tags) == (created, ("blue",))
    await other.tag("green")
    put(folder / "session.json", b"")
    await repair(other)
    assert (await Session.open(work_dir, "s")).created_at == created
    put(folder / "session.json", b"nothing")
    await repaired(work_dir)
    assert not (folder / "session.json").exists()


async def test_an_empty_wire_log_is_set_aside(work_dir: Path, folder: Path) -> None:
    """Nothing is removed, not even nothing; the rest of the session is shown."""
    put(folder / "wire.jsonl", b"")
    await repaired(work_dir)
    assert (folder / "wire.jsonl.damaged-1").read_bytes() == b""
    session = await Session.open(work_dir, "s")
    assert [message.text for message in await session.context.messages()] == ["hi"]


async def test_a_half_written_file_of_a_dead_writer_is_set_aside(work_dir: Path, folder: Path) -> None:
    """An old temp file moves out of the way with its bytes; a fresh one may be in use and stays."""
    put(folder / "tmpabcdefgh.tmp", b"old")
    os.utime(folder / "tmpabcdefgh.tmp", (1, 1))
    put(folder / ".tmp-1-abc.tmp", b"new")
    await repaired(work_dir)
    assert (folder / "tmpabcdefgh.tmp.damaged-1").read_bytes() == b"old"
    assert (folder / ".tmp-1-abc.tmp").read_bytes() == b"new"


# --- all at once -----------------------------------------------------------------------------------------------


async def test_several_things_damaged_at_once_are_mended_by_one_run(work_dir: Path, folder: Path) -> None:
    """NULs behind the log, a cut state, the locks of a dead process: one repair opens it, a second does nothing."""
    put(folder / "wire.jsonl", TURN + b"\0" * 1206)
    put(folder / "state.json", GOOD_STATE.encode()[:70])
    put(folder / ".hold", b'{"pid": 4194303, "host": "gone", "program": "agent", "since": 1.0}\n')
    put(folder / ".lock", b"")
    report = await repaired(work_dir)
    assert [action.file for action in report.actions] == ["state.json", "wire.jsonl"]
    session = await Session.open(work_dir, "s")
    assert (session.title, session.archived, len(await session.turns()), session.problems) == (
        "Kept",
        True,
        1,
        [],
    )
    async with session.hold():
        await session.wire_file.append_message(TurnBegin(user_input="on"))


async def test_files_are_private_after_a_repair_under_any_umask(work_dir: Path, folder: Path) -> None:
    """Loose modes are tightened, also of what is set aside and of unknown files; what is stricter stays so."""
    put(folder / "wire.jsonl", TURN + b"{torn\n")
    put(folder / "state.json", b"{")
    put(folder / "uploads/deep/er/mine.txt", b"")
    for path in below(folder):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (folder / "uploads/deep/er/mine.txt").chmod(0o444)
    old = os.umask(0)
    try:
        await repaired(work_dir)
    finally:
        os.umask(old)
    modes = {path.stat().st_mode & 0o7777 for path in below(folder) if path.is_dir()}
    assert modes == {0o700}
    modes = {path.stat().st_mode & 0o7777 for path in below(folder) if path.is_file()}
    assert modes == {0o600, 0o400}


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
@pytest.mark.parametrize(
    "name",
    [
        *("wire.jsonl", "context.jsonl", "state.json", "session.json", "seal.json", ".lock", ".hold"),
        *("wire.jsonl.torn", "subagents", "uploads", "metadata.json"),
    ],
)
async def test_what_stands_in_a_files_place_is_moved_out_of_the_way(
    work_dir: Path, folder: Path, tmp_path: Path, name: str, what: str
) -> None:
    """A link, pipe or folder is renamed, never followed and never removed, and the session works again."""
    if name in {"subagents", "uploads"} and what == "folder":
        put(folder / name / "x/wire.jsonl", TURN)
        assert (await repaired(work_dir)).actions == ()
        return
    victim = tmp_path / "victim"
    put(victim / "file", b"{torn\n")
    before = tree(victim)
    (folder / name).unlink(missing_ok=True)
    put(folder / "wire.jsonl", TURN + b"{torn\n") if name != "wire.jsonl" else None
    if what == "link":
        (folder / name).symlink_to(victim if name in {"subagents", "uploads"} else victim / "file")
    elif what == "pipe":
        os.mkfifo(folder / name)
    else:
        put(folder / name / "inside", b"kept")
    report = await repair(await Session.open(work_dir, "s"))
    assert report.after.findings == ()
    assert f"{name}.damaged-1" in os.listdir(folder)
    assert tree(victim) == before
    session = await Session.open(work_dir, "s")
    await session.wire_file.append_message(TurnBegin(user_input="on"))
    assert (await session.turns())[-1].user_text == "on"
    assert (await repair(session)).actions == ()


async def test_times_stay_so_that_no_list_is_reordered(work_dir: Path, folder: Path) -> None:
    """Repaired logs keep their time of modification, and the session its place."""
    newer = await Session.create(work_dir, "newer")
    put(newer.path / "context.jsonl", USER)
    put(folder / "context.jsonl", USER + b"{torn\n")
    (folder / "wire.jsonl").unlink()
    os.utime(folder / "context.jsonl", (1_600_000_000, 1_600_000_000))
    before = [(session.id, session.updated_at) for session in await Session.list(work_dir)]
    await repaired(work_dir)
    assert (folder / "context.jsonl").stat().st_mtime == 1_600_000_000
    assert [(session.id, session.updated_at) for session in await Session.list(work_dir)] == before


async def test_a_dry_run_writes_nothing(work_dir: Path, folder: Path) -> None:
    """It says what would be done, takes no lock, and leaves every byte."""
    put(folder / "wire.jsonl", TURN + b"{torn\n")
    put(folder / "state.json", b"")
    (folder / "wire.jsonl").chmod(0o644)
    session = await Session.open(work_dir, "s")
    async with (await Session.open(work_dir, "s")).hold():
        before = tree(work_dir)
        report = await repair(session, dry_run=True)
        assert tree(work_dir) == before
    assert [action.file for action in report.actions] == ["wire.jsonl", "state.json", "wire.jsonl"]
    assert not report.changed


# --- others ----------------------------------------------------------------------------------------------------


async def test_a_held_session_is_refused_at_once_naming_the_holder(work_dir: Path, folder: Path) -> None:
    """Nothing is done to a session that an agent is running in, unless it asks itself."""
    put(folder / "wire.jsonl", TURN + b"{torn\n")
    owner = await Session.open(work_dir, "s")
    async with owner.hold("agent-smith"):
        with pytest.raises(SessionBusyError) as busy:
            await repair(await Session.open(work_dir, "s"))
        assert busy.value.holder is not None
        assert busy.value.holder.program == "agent-smith"
        assert (folder / "wire.jsonl").read_bytes() == TURN + b"{torn\n"
        assert (await repair(owner)).after.findings == ()


async def test_a_deleted_session_is_not_brought_back(work_dir: Path, folder: Path) -> None:
    """A repair of what is gone says so and makes no folder."""
    session = await Session.open(work_dir, "s")
    shutil.rmtree(folder)
    with pytest.raises(SessionNotFoundError):
        await repair(session)
    assert os.listdir(folder.parent) == []


async def test_appends_while_repairs_go_on_are_all_kept(work_dir: Path, folder: Path) -> None:
    """Records that another session object appends during many repairs are all there, each once."""
    writer = await Session.open(work_dir, "s")
    session = await Session.open(work_dir, "s")

    async def write() -> None:
        for number in range(150):
            await writer.wire_file.append_message(TurnBegin(user_input=f"n{number}"))
            await asyncio.sleep(0)

    async def mend() -> None:
        for _ in range(12):
            with (folder / "wire.jsonl").open("ab") as log:
                log.write(b'\n{"timestamp": 1, "mes\n')
            await repair(session)

    await asyncio.gather(write(), mend())
    assert [turn.user_text for turn in await session.turns()] == [
        "hi",
        *(f"n{number}" for number in range(150)),
    ]


async def test_a_line_that_is_being_written_is_not_taken_for_a_torn_one(work_dir: Path, folder: Path) -> None:
    """A program that knows no locks may finish its line; then only the real damage is moved."""
    put(folder / "wire.jsonl", TURN + b"{torn\n")
    written = threading.Event()

    def slowly() -> None:
        with (folder / "wire.jsonl").open("ab", buffering=0) as log:
            for at in range(0, len(BEGIN), 4):
                log.write(BEGIN[at : at + 4])
                written.set()
                time.sleep(0.002)

    thread = threading.Thread(target=slowly)
    thread.start()
    written.wait()
    await repair(await Session.open(work_dir, "s"))
    thread.join()
    assert (folder / "wire.jsonl").read_bytes() == TURN + BEGIN


# --- flat files and stores -------------------------------------------------------------------------------------


async def test_a_flat_file_that_clashes_is_brought_in_as_the_next_rotation(
    work_dir: Path, folder: Path
) -> None:
    """What an old client wrote beside the folder becomes a rotated context; nothing is written over."""
    put(folder / "context_3.jsonl", USER)
    put(folder.with_name("s.jsonl"), USER + USER)
    put(folder / "context_sub_1.jsonl", USER)
    put(folder.with_name("s_sub_1.jsonl"), USER + USER + USER)
    report = await repaired(work_dir)
    assert {action.file: action.kept_as for action in report.actions} == {
        "s.jsonl": "context_4.jsonl",
        "s_sub_1.jsonl": "context_sub_2.jsonl",
    }
    assert (folder / "context_4.jsonl").read_bytes() == USER + USER
    assert (folder / "context_sub_2.jsonl").read_bytes() == USER * 3
    assert (folder / "context.jsonl").read_bytes() == USER
    assert [path.name for path in folder.parent.iterdir()] == ["s"]


async def test_a_flat_session_is_moved_and_repaired(work_dir: Path, folder: Path) -> None:
    """An old client's only file goes into its folder, as it does when found, and its damage aside."""
    put(folder.with_name("old.jsonl"), USER + b"{torn\n")
    session = await Session.open(work_dir, "old")
    await repair(session)
    assert (folder.with_name("old") / "context.jsonl").read_bytes() == USER


async def test_a_store_open_to_others_is_closed(work_dir: Path, folder: Path) -> None:
    """The store's own folders become private; a link among the sessions is left for a person."""
    for path in (work_dir / ".kimi", folder.parent):
        path.chmod(0o755)
    (folder.parent / "linked").symlink_to("/")
    assert len(await repair_store(work_dir, dry_run=True)) == 2
    assert (folder.parent.stat().st_mode & 0o777) == 0o755
    assert len(await repair_store(work_dir)) == 2
    assert await repair_store(work_dir) == []
    report = await check_work_dir(work_dir)
    assert [finding.kind for finding in report.findings] == ["irregular"]


@pytest.mark.parametrize("version", ["0.58", "1.52.0"])
async def test_stores_of_released_clients_are_clean_after_one_repair(
    version: str, corpus: Callable[[str], Path]
) -> None:
    """Every finding in what real clients left behind can be mended, and whole messages stay what they were."""
    share = corpus(version)
    layout = ShareLayout(share)
    for entry in json.loads((share / "kimi.json").read_bytes())["work_dirs"]:
        for session in await Session.list(entry["path"], layout=layout, include_empty=True):
            before = [record.to_line() async for record in session.wire_file.iter_records()]
            messages = [message.model_dump() for message in await session.context.messages()]
            report = await repair(session)
            assert report.after.findings == ()
            assert (await repair(session)).actions == ()
            assert [record.to_line() async for record in session.wire_file.iter_records()] == before
            now = [message.model_dump() for message in await session.context.messages()]
            orphans = {f.offset for f in report.before.findings if f.kind == "orphan-result"}
            assert orphans or [m for m in now if m["content"] != INTERRUPTED] == messages
