"""A check names what is wrong with a session, where, and why; and it leaves every byte, name and time alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kimi_sessions import Finding, Session, ShareLayout
from kimi_sessions.check import Report, check, check_folder, check_work_dir, find_as_it_lies
from kimi_sessions.errors import AmbiguousIdError, InvalidIdError, SessionNotFoundError
from kimi_sessions.layout import work_dir_key

HEADER = b'{"type": "metadata", "protocol_version": "1.10"}\n'
BEGIN = b'{"timestamp": 5.0, "message": {"type": "TurnBegin", "payload": {"user_input": "hi"}}}\n'
END = b'{"timestamp": 6.0, "message": {"type": "TurnEnd", "payload": {}}}\n'
TURN = HEADER + BEGIN + END
USER = b'{"role":"user","content":"hi"}\n'


def call(*ids: str) -> bytes:
    """Give an assistant message that calls tools."""
    calls = [
        {"type": "function", "id": each, "function": {"name": "Read", "arguments": "{}"}} for each in ids
    ]
    return json.dumps({"role": "assistant", "content": "", "tool_calls": calls}).encode() + b"\n"


def result(call_id: str, text: str = "done") -> bytes:
    """Give the result of a call."""
    return json.dumps({"role": "tool", "content": text, "tool_call_id": call_id}).encode() + b"\n"


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Give everything that a write could change: names, modes, times of modification, contents."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        seen = path.lstat()
        if path.is_symlink():
            content = str(path.readlink())
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (seen.st_mode, seen.st_mtime_ns, content)
    return found


def found(report: Report) -> list[tuple[str, str, int | None, int | None, int | None]]:
    """Give findings without their words."""
    return [(f.kind, f.file, f.line_number, f.offset, f.length) for f in report.findings]


def kinds(findings: tuple[Finding, ...]) -> set[tuple[str, str]]:
    """Give kinds and files of findings or notes."""
    return {(finding.kind, finding.file) for finding in findings}


@pytest.fixture
async def folder(work_dir: Path) -> Path:
    """Give the folder of a healthy session `s` with one turn."""
    session = await Session.create(work_dir, "s")
    put(session.path / "wire.jsonl", TURN)
    put(session.path / "context.jsonl", USER)
    return session.path


def put(path: Path, data: bytes) -> None:
    """Write a private file."""
    for parent in reversed(path.parents[:4]):
        parent.mkdir(exist_ok=True, mode=0o700)
    path.write_bytes(data)
    path.chmod(0o600)


async def checked(work_dir: Path) -> Report:
    """Check session `s` and require that nothing changed by it."""
    before = tree(work_dir)
    report = await check(await find_as_it_lies(work_dir, "s"))
    assert tree(work_dir) == before
    assert report.clean == (not report.findings)
    json.dumps(report.as_dict())
    return report


async def test_a_healthy_session_has_no_findings_and_its_records_are_counted(
    work_dir: Path, folder: Path
) -> None:
    """A whole session gives a clean report without notes, and totals for each log."""
    report = await checked(work_dir)
    assert (report.findings, report.notes) == ((), ())
    totals = {log.file: log for log in report.logs}
    assert (totals["wire.jsonl"].records, totals["wire.jsonl"].headers, totals["wire.jsonl"].turns) == (
        2,
        1,
        1,
    )
    assert (totals["context.jsonl"].messages, totals["context.jsonl"].lines) == (1, 1)


N = len(TURN)


@pytest.mark.parametrize(
    "wire,expected",
    [
        pytest.param(
            TURN + b'{"timestamp": 7.0, "mess' + BEGIN + END,
            [("damaged-line", 4, N, 24)],
            id="a torn record with a whole one stuck to it",
        ),
        pytest.param(
            TURN + BEGIN[:-1] + END,
            [("fused-line", 4, N, len(BEGIN + END) - 2)],
            id="two records on one line",
        ),
        pytest.param(TURN + BEGIN[:40], [("torn-tail", 4, N, 40)], id="a torn tail"),
        pytest.param(
            TURN + BEGIN[:-1], [("unterminated-tail", 4, N, len(BEGIN) - 1)], id="only the newline missing"
        ),
        pytest.param(
            TURN[:-1] + b"\0" * 9000 + b"\n", [("nul-bytes", 3, N - 1, 9000)], id="a record and NULs"
        ),
        pytest.param(TURN + b"\0" * 143000, [("nul-bytes", 4, N, 143000)], id="NULs alone"),
        pytest.param(TURN + b"[]\n" + END, [("damaged-line", 4, N, 2)], id="an array"),
        pytest.param(TURN + b"17\n", [("damaged-line", 4, N, 2)], id="a number"),
        pytest.param(
            TURN + b'{"timestamp": 1, "message": null}\n', [("damaged-line", 4, N, 33)], id="no message"
        ),
        pytest.param(b"\xef\xbb\xbf" + TURN, [("stray-bom", 1, 0, 3)], id="a byte order mark"),
        pytest.param(HEADER + HEADER + BEGIN + HEADER + END, [], id="doubled headers"),
        pytest.param(
            HEADER + BEGIN.replace(b"hi", "a\u2028b}{c".encode()) + END.replace(b"\n", b"\r\n"),
            [],
            id="odd but whole",
        ),
        pytest.param(
            HEADER + BEGIN.replace(b"hi", b"a\xff\xed\xa0\x80\tb") + END + b"\n\n",
            [],
            id="broken text, blank lines",
        ),
        pytest.param(b"", [("empty-file", None, 0, None)], id="an empty log"),
    ],
)
async def test_each_damage_to_a_log_is_found_where_it_is(
    work_dir: Path, folder: Path, wire: bytes, expected: list[tuple[str, int, int, int]]
) -> None:
    """Line, offset and length of every finding are those of the bytes that are wrong, and nothing whole is named."""
    put(folder / "wire.jsonl", wire)
    report = await checked(work_dir)
    assert found(report) == [(kind, "wire.jsonl", *place) for kind, *place in expected]


async def test_every_log_of_a_session_is_looked_at(work_dir: Path, folder: Path) -> None:
    """Rotated contexts, those of old subagents, and both logs of new ones are checked like the session's own."""
    for name in (
        "context_2.jsonl",
        "context_sub_1.jsonl",
        "subagents/a1/context.jsonl",
        "subagents/a1/context_1.jsonl",
    ):
        put(folder / name, USER + b"{torn\n")
    put(folder / "subagents/a1/wire.jsonl", TURN + b"{torn\n")
    report = await checked(work_dir)
    assert {(kind, file) for kind, file, *_ in found(report)} == {
        ("damaged-line", "context_2.jsonl"),
        ("damaged-line", "context_sub_1.jsonl"),
        ("damaged-line", "subagents/a1/context.jsonl"),
        ("damaged-line", "subagents/a1/context_1.jsonl"),
        ("damaged-line", "subagents/a1/wire.jsonl"),
    }


@pytest.mark.parametrize(
    "data,kind,file",
    [
        (b"", "bad-state", "state.json"),
        (b"{bad json", "bad-state", "state.json"),
        (b"[]", "bad-state", "state.json"),
        pytest.param(b'{"version": ' + b"9" * 5_000 + b"}", "bad-state", "state.json", id="endless number"),
        (b'{"version": 1, "custom_title": "T', "bad-state", "state.json"),
        (b'{"version": 1}\n"old": 5}', "bad-state", "state.json"),
        (b'{"archived": "perhaps"}', "bad-field", "state.json"),
        (b'{"todos": [{"title": "x", "status": "blocked"}]}', "bad-field", "state.json"),
        (b"", "bad-document", "metadata.json"),
        (b"[1]", "bad-document", "metadata.json"),
        (b"{", "bad-document", "session.json"),
        (b'{"tags": "one"}', "bad-field", "session.json"),
        (b"nothing", "bad-document", "seal.json"),
        (b"{", "bad-document", "subagents/a1/meta.json"),
        (b"", "bad-document", "subagents/a1/state.json"),
        (b"[]", "bad-document", "tasks/b1/spec.json"),
        (b"", "bad-document", "tasks/b1/runtime.json"),
        (b"x", "bad-document", "notifications/n1/event.json"),
        (b"\0\0", "bad-document", "notifications/n1/delivery.json"),
        (b"{}", "bad-document", "uploads/.sent"),
    ],
)
async def test_a_damaged_document_is_named(
    work_dir: Path, folder: Path, data: bytes, kind: str, file: str
) -> None:
    """A document that is empty, cut, no object, has one bad field or junk behind it is one finding."""
    put(folder / file, data)
    report = await checked(work_dir)
    assert kinds(report.findings) == {(kind, file)}


async def test_the_byte_where_a_document_goes_wrong_is_named(work_dir: Path, folder: Path) -> None:
    """For a document with junk behind it, offset and length are those of the junk."""
    put(folder / "state.json", b'{"version": 1}}, "x"')
    [finding] = (await checked(work_dir)).findings
    assert (finding.offset, finding.length) == (14, 6)


@pytest.mark.parametrize(
    "name",
    [
        "wire.jsonl",
        "context.jsonl",
        "context_1.jsonl",
        "state.json",
        "session.json",
        ".lock",
        ".hold",
        "wire.jsonl.torn",
    ],
)
@pytest.mark.parametrize("what", ["link", "dangling", "pipe", "folder"])
async def test_what_stands_in_a_files_place_is_named_and_not_read(
    work_dir: Path, folder: Path, tmp_path: Path, name: str, what: str
) -> None:
    """A link, a pipe or a folder where a file should be is a finding; a check neither follows it nor hangs on it."""
    (folder / name).unlink(missing_ok=True)
    if what == "link":
        put(tmp_path / "elsewhere", b"{torn\n")
        (folder / name).symlink_to(tmp_path / "elsewhere")
    elif what == "dangling":
        (folder / name).symlink_to(tmp_path / "nowhere")
    elif what == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
    assert ("irregular", name) in kinds((await checked(work_dir)).findings)
    assert not any("torn" in finding.kind for finding in (await checked(work_dir)).findings)


async def test_a_link_in_a_folders_place_is_named_and_not_entered(
    work_dir: Path, folder: Path, tmp_path: Path
) -> None:
    """What lies behind a linked folder is not looked at, and a loop of links ends nobody's patience."""
    put(tmp_path / "outside/a1/wire.jsonl", b"{torn\n")
    (folder / "subagents").symlink_to(tmp_path / "outside")
    (folder / "uploads").mkdir(mode=0o700)
    (folder / "uploads" / "loop").symlink_to(folder)
    report = await checked(work_dir)
    assert kinds(report.findings) == {("irregular", "subagents")}
    assert ("irregular", "uploads/loop") in kinds(report.notes)


async def test_files_open_to_others_are_named(work_dir: Path, folder: Path) -> None:
    """Every file that is not private and every folder that is not, unknown ones too, is a finding with its mode."""
    (folder / "wire.jsonl").chmod(0o644)
    put(folder / "uploads/mine.txt", b"")
    (folder / "uploads/mine.txt").chmod(0o666)
    (folder / "uploads").chmod(0o755)
    os.chmod(folder, 0o777)
    report = await checked(work_dir)
    assert kinds(report.findings) == {
        ("loose-mode", "."),
        ("loose-mode", "wire.jsonl"),
        ("loose-mode", "uploads"),
        ("loose-mode", "uploads/mine.txt"),
    }
    assert "0644" in str(next(f for f in report.findings if f.file == "wire.jsonl"))


@pytest.mark.parametrize(
    "name", ["tmpabcd_123.tmp", ".tmp-17-0123456789ab.tmp", "context.tmp", "tasks/b1/tmpabcdefgh.tmp"]
)
async def test_a_half_written_file_is_found_once_its_writer_must_be_gone(
    work_dir: Path, folder: Path, name: str
) -> None:
    """A temp file of a moment ago may be in use, so it is a note; an old one is a finding."""
    put(folder / name, b"{")
    report = await checked(work_dir)
    assert (report.findings, kinds(report.notes)) == ((), {("temp", name)})
    os.utime(folder / name, (time.time() - 3600,) * 2)
    assert kinds((await checked(work_dir)).findings) == {("leftover-temp", name)}


async def test_a_log_without_its_header_and_a_turn_without_end_are_notes(
    work_dir: Path, folder: Path
) -> None:
    """Both are worth knowing and are no damage."""
    put(folder / "wire.jsonl", BEGIN + END + BEGIN)
    report = await checked(work_dir)
    assert report.findings == ()
    assert kinds(report.notes) == {("no-header", "wire.jsonl"), ("open-turn", "wire.jsonl")}


@pytest.mark.parametrize(
    "log,whole", [("wire.jsonl", TURN), ("context.jsonl", USER)], ids=["wire", "context"]
)
@pytest.mark.parametrize("bad", [b"\0" * 64, b"\xe4\xff"], ids=["nul", "utf-8"])
async def test_text_that_a_disk_lost_within_a_record_is_noted(
    work_dir: Path, folder: Path, log: str, whole: bytes, bad: bytes
) -> None:
    """The record is read, as Kimi CLI reads it, and nothing can be mended; but a check does not keep it to itself."""
    put(folder / log, whole.replace(b'"hi"', b'"h' + bad + b'i"'))
    report = await checked(work_dir)
    assert report.findings == ()
    (note,) = report.notes
    assert (note.file, note.line_number) == (log, whole.count(b"\n", 0, whole.index(b'"hi"')) + 1)
    assert (note.kind, note.reason) == (
        ("nul-bytes", "64 NUL bytes inside a record, which is read with them")
        if bad[0] == 0
        else ("bad-utf8", "bytes that are no UTF-8 inside a record, shown as U+FFFD")
    )
    assert note.offset is not None
    assert (folder / log).read_bytes()[note.offset :].startswith(bad)


async def test_turns_of_clients_that_wrote_no_ends_are_not_noted(work_dir: Path, folder: Path) -> None:
    """Before protocol 1.2 no turn had an end, so its lack says nothing."""
    put(folder / "wire.jsonl", HEADER.replace(b"1.10", b"1.1") + BEGIN + BEGIN)
    assert (await checked(work_dir)).notes == ()


async def test_a_context_that_a_full_disk_left_without_bytes_is_noted(work_dir: Path, folder: Path) -> None:
    """Nothing is there to mend, but 'nothing found' would be wrong; cleared, never asked and subagents are fine."""
    step = b'{"timestamp": 5.5, "message": {"type": "StepBegin", "payload": {"n": 1}}}\n'
    put(folder / "wire.jsonl", HEADER + BEGIN + END)
    put(folder / "context.jsonl", b"")
    assert (await checked(work_dir)).notes == ()
    for name in ("subagents", "subagents/a1"):
        (folder / name).mkdir(mode=0o700)
    put(folder / "subagents" / "a1" / "wire.jsonl", HEADER + BEGIN + step + END)
    assert "empty-context" not in {note.kind for note in (await checked(work_dir)).notes}
    put(folder / "wire.jsonl", HEADER + BEGIN + step + END)
    report = await checked(work_dir)
    assert report.findings == ()
    assert ("empty-context", "context.jsonl") in kinds(report.notes)
    put(folder / "context_1.jsonl", USER)
    assert "empty-context" not in {note.kind for note in (await checked(work_dir)).notes}


async def test_a_missing_context_is_found(work_dir: Path, folder: Path) -> None:
    """A session that has only its wire log left is a session, with a finding."""
    (folder / "context.jsonl").unlink()
    assert kinds((await checked(work_dir)).findings) == {("no-context", "context.jsonl")}


@pytest.mark.parametrize(
    "context,expected",
    [
        (call("a", "b") + result("b") + result("a"), []),
        (call("a", "b") + result("a"), [("unmatched-call", 1)]),
        (call("a") + b'{"role":"_usage","token_count":3}\n' + result("a"), []),
        (call("a") + USER + call("a") + result("a"), [("unmatched-call", 1)]),
        (call("a") + result("a") + call("a"), [("unmatched-call", 3)]),
        (call("a", "a") + result("a"), [("unmatched-call", 1)]),
        (USER + result("x"), [("orphan-result", 2)]),
        (call("a") + result("a") + result("a"), [("orphan-result", 3)]),
        (call("a")[:-30] + b"\n" + result("a"), [("damaged-line", 1), ("orphan-result", 2)]),
    ],
)
async def test_calls_and_results_are_paired_by_where_they_stand(
    work_dir: Path, folder: Path, context: bytes, expected: list[tuple[str, int]]
) -> None:
    """A call without a result and a result without a call are found, also where an id is used again."""
    put(folder / "context.jsonl", context)
    assert [(f.kind, f.line_number) for f in (await checked(work_dir)).findings] == expected


async def test_calls_in_a_context_that_was_put_away_are_left_alone(work_dir: Path, folder: Path) -> None:
    """Nobody sends a rotated context to a model, so a call without a result there is no finding."""
    put(folder / "context_1.jsonl", call("a"))
    assert (await checked(work_dir)).findings == ()


async def test_records_that_say_nothing_are_found_and_unknown_ones_are_noted(
    work_dir: Path, folder: Path
) -> None:
    """A message or control record that can't be one is damage; a role nobody knows is carried along."""
    put(
        folder / "context.jsonl",
        USER
        + b'{"role":"user","content":7}\n{"role":"_usage"}\n{"role":"_later","x":1}\n{"role":"critic","content":""}\n',
    )
    report = await checked(work_dir)
    assert [(f.kind, f.line_number) for f in report.findings] == [("bad-record", 2), ("bad-record", 3)]
    assert [(f.kind, f.line_number) for f in report.notes] == [("unknown-record", 5)]


async def test_what_a_repair_has_set_aside_is_not_found_again(work_dir: Path, folder: Path) -> None:
    """Torn pieces, damaged documents and earlier logs in the folder are nobody's finding."""
    for name in (
        "wire.jsonl.torn",
        "state.json.damaged-1",
        "wire.jsonl.before-repair-2",
        "metadata.json.merged",
    ):
        put(folder / name, b"{torn\n")
    (folder / "uploads.damaged-1").symlink_to("/dev/null")
    assert (await checked(work_dir)).findings == ()


async def test_unknown_files_are_left_in_peace(work_dir: Path, folder: Path) -> None:
    """A file that no client is known to write is no finding, whatever it holds and whatever its name is made of."""
    put(folder / "notes.json", b"{")
    put(folder / "uploads/wire.jsonl", b"{")
    put(Path(os.fsdecode(os.fsencode(folder) + b"/\xff\x1b[2J.txt")), b"")
    assert (await checked(work_dir)).findings == ()


async def test_text_for_a_terminal_is_made_harmless(work_dir: Path, folder: Path) -> None:
    """No control character of a file's name or of a tool's name reaches a report."""
    evil = folder / "\x1b[2Jx"
    put(evil, b"")
    evil.chmod(0o644)
    put(folder / "context.jsonl", call("\x1b[31mid"))
    report = await checked(work_dir)
    assert len(report.findings) == 2
    assert "\x1b" not in "".join(map(str, report.findings))


async def test_an_old_flat_file_beside_the_folder_is_a_clash_and_stays(work_dir: Path, folder: Path) -> None:
    """Both are kept where they are; if the flat one was written to since, the finding says so."""
    flat = folder.with_name("s.jsonl")
    put(flat, USER)
    os.utime(flat, (1, 1))
    [clash] = (await checked(work_dir)).findings
    assert (clash.kind, clash.file) == ("flat-clash", "s.jsonl")
    assert "written to since" not in clash.reason
    os.utime(flat, (time.time() + 60,) * 2)
    [clash] = (await checked(work_dir)).findings
    assert "written to since" in clash.reason


async def test_a_flat_session_is_looked_at_where_it_lies(work_dir: Path, folder: Path) -> None:
    """A check does not move an old client's file, and notes that it will be moved."""
    put(folder.with_name("old.jsonl"), USER)
    put(folder.with_name("old_1.jsonl"), USER)
    before = tree(work_dir)
    report = await check(await find_as_it_lies(work_dir, "old"))
    assert (report.findings, kinds(report.notes)) == ((), {("flat", "old.jsonl"), ("flat", "old_1.jsonl")})
    everything = await check_work_dir(work_dir)
    assert [each.session_id for each in everything.sessions] == ["old", "s"]
    assert tree(work_dir) == before


async def test_a_stranger_s_session_is_noted(work_dir: Path, folder: Path) -> None:
    """A session without a seal is no damage."""
    (folder / "seal.json").unlink()
    report = await checked(work_dir)
    assert (report.findings, kinds(report.notes)) == ((), {("untrusted", "seal.json")})


async def test_a_linked_worktree_is_noted(work_dir: Path, folder: Path) -> None:
    """Git removes ignored files with a worktree, and a check says so before it happens."""
    (work_dir / ".git").write_text("gitdir: elsewhere\n")
    assert ("worktree", ".") in kinds((await checked(work_dir)).notes)
    assert ("worktree", ".") in kinds((await check_work_dir(work_dir)).notes)


async def test_a_held_session_can_be_checked_and_its_holder_is_noted(work_dir: Path, folder: Path) -> None:
    """A call without a result may be running just now; the note says who to ask."""
    session = await Session.open(work_dir, "s")
    async with session.hold("agent-smith"):
        [note] = (await check(session)).notes
        assert (note.kind, "agent-smith" in note.reason) == ("held", True)


async def test_a_session_that_is_gone_can_t_be_checked(work_dir: Path, folder: Path) -> None:
    """The error names the session."""
    session = await Session.open(work_dir, "s")
    shutil.rmtree(folder)
    with pytest.raises(SessionNotFoundError):
        await check(session)
    with pytest.raises(SessionNotFoundError):
        check_folder(folder)


async def test_a_session_is_meant_by_its_id_a_beginning_of_it_or_by_being_the_last(work_dir: Path) -> None:
    """Finding without moving follows the rules of opening."""
    for name in ("abc1", "abc2", "old"):
        session = await Session.create(work_dir, name)
        await session.wire_file.append_message(begin())
    session.mark_last()
    assert (await find_as_it_lies(work_dir, "o")).id == "old"
    assert (await find_as_it_lies(work_dir, "@last")).id == "old"
    with pytest.raises(AmbiguousIdError):
        await find_as_it_lies(work_dir, "abc")
    with pytest.raises(SessionNotFoundError) as missing:
        await find_as_it_lies(work_dir, "abc3")
    assert missing.value.near
    with pytest.raises(InvalidIdError):
        await find_as_it_lies(work_dir, "../x")


def begin() -> Any:
    """Give a typed TurnBegin."""
    from kimi_sessions.wire import TurnBegin

    return TurnBegin(user_input="hi")


async def test_what_is_wrong_with_a_store_is_found(work_dir: Path, folder: Path, tmp_path: Path) -> None:
    """Links, names that are no ids, loose folders and a damaged registry are the store's findings."""
    sessions = folder.parent
    (sessions / "linked").symlink_to(tmp_path)
    (sessions / "bad\tname").mkdir()
    (sessions / "no-logs").mkdir()
    (sessions / ".creating-x").mkdir()
    (work_dir / ".kimi").chmod(0o755)
    (work_dir / ".kimi" / "work_dir.json").write_text("{")
    before = tree(work_dir)
    report = await check_work_dir(work_dir)
    assert not report.clean
    assert kinds(report.findings) == {
        ("irregular", "linked"),
        ("bad-name", "bad name"),
        ("loose-mode", ".kimi"),
        ("registry", ""),
    }
    assert kinds(report.notes) == {("no-session", "no-logs"), ("unfinished", ".creating-x")}
    assert [each.session_id for each in report.sessions] == ["s"]
    assert tree(work_dir) == before


async def test_a_store_that_is_not_there_is_clean(work_dir: Path) -> None:
    """No store, no finding, and none is made by looking."""
    report = await check_work_dir(work_dir)
    assert (report.clean, report.sessions) == (True, ())
    assert os.listdir(work_dir) == []


async def test_a_store_that_leads_out_of_its_project_is_not_entered(work_dir: Path, tmp_path: Path) -> None:
    """A `.kimi` that is a link to elsewhere is a finding."""
    put(tmp_path / "planted/sessions/s/context.jsonl", USER)
    (work_dir / ".kimi").symlink_to(tmp_path / "planted")
    report = await check_work_dir(work_dir)
    assert {finding.kind for finding in report.findings} == {"unreadable", "registry"}
    assert report.sessions == ()


@pytest.mark.parametrize("version", ["0.35", "0.58", "0.68", "1.24.0", "1.52.0"])
async def test_old_stores_are_checked_without_a_trace_and_counted_as_readers_count(
    version: str, corpus: Callable[[str], Path]
) -> None:
    """Every session that released clients wrote: no exception, nothing moved, and the totals of the readers."""
    share = corpus(version)
    layout = ShareLayout(share)
    before = tree(share)
    entries = json.loads((share / "kimi.json").read_bytes())["work_dirs"]
    checked_sessions = []
    for entry in entries:
        report = await check_work_dir(entry["path"], layout=layout)
        for each in report.sessions:
            checked_sessions.append((entry["path"], each))
            assert {finding.kind for finding in each.findings} <= {
                *("loose-mode", "unmatched-call", "orphan-result", "damaged-line", "torn-tail", "fused-line"),
                *("flat-clash", "bad-record", "no-context", "leftover-temp", "empty-file", "bad-document"),
            }
    assert tree(share) == before
    assert checked_sessions
    for work_dir, each in checked_sessions:
        session = await Session.find(work_dir, each.session_id, layout=layout)
        assert session is not None
        now = {log.file: log for log in (await check(session)).logs}
        records = [record async for record in session.wire_file.iter_records()]
        assert len(records) == (now["wire.jsonl"].records if "wire.jsonl" in now else 0)
        assert len(await session.turns()) == (now["wire.jsonl"].turns if "wire.jsonl" in now else 0)
        assert len(await session.context.messages()) == (
            now["context.jsonl"].messages if "context.jsonl" in now else 0
        )


async def test_reports_of_a_share_dir_know_no_seals(tmp_path: Path, home: Path) -> None:
    """In Kimi CLI's own store every session is the user's, so trust is not a matter there."""
    layout = ShareLayout(tmp_path / "share")
    work = tmp_path / "w"
    work.mkdir()
    session = await Session.create(work, layout=layout)
    assert (await check(session)).notes == ()
    assert (tmp_path / "share/sessions" / work_dir_key(str(work)) / session.id).is_dir()
