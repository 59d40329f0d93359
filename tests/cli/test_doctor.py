"""The doctor command: what it finds, what it mends, what it prints where, and its exit codes."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kimi_sessions import Session, _fs

from .conftest import Done, Run, Shell

TURN = (
    b'{"type": "metadata", "protocol_version": "1.10"}\n'
    b'{"timestamp": 5.0, "message": {"type": "TurnBegin", "payload": {"user_input": "hi"}}}\n'
    b'{"timestamp": 6.0, "message": {"type": "TurnEnd", "payload": {}}}\n'
)
USER = b'{"role":"user","content":"hi"}\n'
CALL = (
    b'{"role":"assistant","content":"","tool_calls":[{"type":"function","id":"a",'
    b'"function":{"name":"Read","arguments":"{}"}}]}\n'
)


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Give everything that a write could change."""
    return {
        str(path): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in [root, *sorted(root.rglob("*"))]
    }


def put(path: Path, data: bytes) -> None:
    """Write a private file."""
    path.write_bytes(data)
    path.chmod(0o600)


@pytest.fixture
def doctor(run: Run) -> Run:
    """Give a function that calls the command."""
    return lambda *args: run("doctor", *args)


@pytest.fixture
def folders(work_dir: Path) -> dict[str, Path]:
    """Give the folders of two sessions, a healthy one and one that is damaged in three ways."""
    found = {}
    for name in ("healthy", "broken"):
        session = asyncio.run(Session.create(work_dir, name))
        put(session.path / "wire.jsonl", TURN)
        put(session.path / "context.jsonl", USER)
        found[name] = session.path
    put(found["broken"] / "wire.jsonl", TURN + b'{"timestamp": 1, "mess\n')
    put(found["broken"] / "context.jsonl", USER + CALL)
    put(found["broken"] / "state.json", b"{")
    return found


def test_findings_are_printed_with_file_line_and_reason_and_nothing_is_changed(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """Exit code 5, data on stdout, the hint on stderr, and no byte or time differs afterwards."""
    before = tree(work_dir)
    answer = doctor()
    assert answer.code == 5
    assert "wire.jsonl:4: a torn record" in answer.out
    assert "the call of Read (a) has no result" in answer.out
    assert "2 sessions checked, 3 findings in 1 session" in answer.out
    assert "healthy" not in answer.out
    assert "--repair" in answer.err
    assert tree(work_dir) == before


def test_one_session_can_be_checked_by_id_beginning_or_as_the_last(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """A clean one gives exit code 0."""
    answer = doctor("heal")
    assert (answer.code, answer.out, answer.err) == (0, "1 session checked, nothing found\n", "")
    assert doctor("broken").code == 5


def test_json_has_the_same_keys_whatever_is_found(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """One document; each finding has kind, file, line, offset, length and reason."""
    broken, healthy = doctor("--json"), doctor("healthy", "--json")
    assert (broken.code, healthy.code, broken.err, healthy.err) == (5, 0, "", "")
    assert set(broken.data) == set(healthy.data)
    assert (broken.data["clean"], healthy.data["clean"]) == (False, True)
    sessions = {each["id"]: each for each in broken.data["sessions"]}
    assert sessions["healthy"]["findings"] == []
    [torn] = [each for each in sessions["broken"]["findings"] if each["file"] == "wire.jsonl"]
    assert torn == {
        "kind": "damaged-line",
        "file": "wire.jsonl",
        "reason": "a torn record",
        "line_number": 4,
        "offset": len(TURN),
        "length": 22,
    }
    assert {log["file"]: log["records"] for log in sessions["broken"]["logs"]} == {
        "wire.jsonl": 2,
        "context.jsonl": 2,
    }


def test_sessions_that_are_only_open_to_others_do_not_hide_a_damaged_one(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """As real clients leave them by the dozen: they are one line together, and each is a finding all the same."""
    for name in ("context.jsonl", "wire.jsonl"):
        (folders["healthy"] / name).chmod(0o644)
    answer = doctor()
    assert answer.code == 5
    assert "healthy" not in answer.out
    assert "1 session with files and folders open to other users, and nothing else" in answer.out
    assert "broken:" in answer.out
    assert "2 sessions checked, 5 findings in 2 sessions" in answer.out
    assert "wire.jsonl: open to other users" in doctor("healthy").out


def test_the_hint_leads_back_to_the_store_that_was_checked(
    shell: Shell, work_dir: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    """It can be copied: it has the options that were given, and none where none were."""
    assert "'kimi-sessions doctor --repair'" in shell("doctor").err
    elsewhere = tmp_path / "else where"
    work_dir.rename(elsewhere)
    work_dir.mkdir()
    hint = shell("-w", str(elsewhere), "doctor").err
    assert f"'kimi-sessions -w '{elsewhere}' doctor --repair'" in hint


def test_a_dry_run_tells_what_a_repair_then_does(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """The dry run changes nothing; the repair does the same things, and the next check finds nothing."""
    before = tree(work_dir)
    planned = doctor("--repair", "--dry-run", "--json")
    assert planned.code == 5
    assert tree(work_dir) == before
    done = doctor("--repair", "--json")
    assert (done.code, done.data["clean"]) == (0, True)
    [plan], [deed] = planned.data["repairs"], done.data["repairs"]
    assert [(each["file"], each["what"]) for each in plan["actions"]] == [
        (each["file"], each["what"]) for each in deed["actions"]
    ]
    assert deed["left"] == []
    assert (folders["broken"] / "wire.jsonl.torn").exists()
    after = tree(work_dir)
    assert doctor().code == 0
    again = doctor("--repair")
    assert (again.code, again.out) == (0, "nothing to do\n")
    assert tree(work_dir) == after


def test_a_repair_says_in_words_what_it_did(doctor: Run, work_dir: Path, folders: dict[str, Path]) -> None:
    """File, deed and the name of what is kept, per session."""
    answer = doctor("broken", "--repair")
    assert answer.code == 0
    assert (
        "wire.jsonl: move a damaged piece to the .torn file (kept as wire.jsonl.before-repair-1)"
        in answer.out
    )
    assert "context.jsonl: close a tool call without a result" in answer.out
    assert "3 things done" in answer.out


def test_a_repair_of_files_open_to_others_does_not_hide_what_else_it_did(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """Dozens of lines that say "make it private" are one line of a session, and one for sessions with nothing else."""
    for folder in folders.values():
        for number in range(1, 5):
            put(folder / f"context_{number}.jsonl", USER)
            (folder / f"context_{number}.jsonl").chmod(0o644)
    for args, last in ((("--dry-run",), "11 things to do; nothing was changed"), ((), "11 things done")):
        answer = doctor("--repair", *args)
        lines = answer.out.splitlines()
        assert lines[0] == "broken:"
        assert "  4 files and folders: make them private (--json names them)" in lines
        assert any(line.startswith("  wire.jsonl: move a damaged piece") for line in lines)
        assert "make it private" not in answer.out
        assert "healthy" not in answer.out
        assert lines[-2:] == [
            "1 session: make 4 files and folders private, and nothing else (--json names them)",
            last,
        ]


def test_a_held_session_is_refused_and_the_others_are_repaired(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """Exit code 4 and the holder on stderr; what could be repaired was."""
    put(folders["healthy"] / "state.json", b"{")

    async def held() -> None:
        async with (await Session.open(work_dir, "broken")).hold("agent-smith"):
            await asyncio.to_thread(lambda: answers.append(doctor("--repair")))

    answers: list[Done] = []
    asyncio.run(held())
    [answer] = answers
    assert answer.code == 4
    assert "agent-smith" in answer.err
    assert json.loads((folders["healthy"] / "state.json").read_bytes())["version"] == 1
    assert (folders["broken"] / "state.json").read_bytes() == b"{"


def test_what_only_a_person_can_mend_is_left_and_said(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """A link among the sessions stays; the exit code says that something is left."""
    (folders["broken"].parent / "linked").symlink_to("/")
    answer = doctor("--repair")
    assert answer.code == 5
    assert "left for you:" in answer.out
    assert "linked: a link in a sessions folder; not followed" in answer.out
    assert (folders["broken"].parent / "linked").is_symlink()


def test_a_session_that_is_not_there_is_an_error(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """Exit code 3 with near matches; an id that can't be one is a wrong usage."""
    answer = doctor("brokem")
    assert (answer.code, answer.out) == (3, "")
    assert "broken" in answer.err
    assert doctor("../x").code == 2
    assert doctor("--dry-run").code == 2


def test_a_work_dir_without_a_store_is_clean(doctor: Run, work_dir: Path) -> None:
    """Nothing is made by looking."""
    answer = doctor()
    assert (answer.code, answer.out) == (0, "0 sessions checked, nothing found\n")
    assert os.listdir(work_dir) == []


def test_a_flat_file_of_an_old_client_stays_until_a_repair(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """The check looks at it where it lies; the repair moves it into its folder and mends it."""
    flat = folders["broken"].with_name("old.jsonl")
    put(flat, USER + b"{torn\n")
    answer = doctor("old")
    assert answer.code == 5
    assert "old.jsonl:2: a torn record" in answer.out
    assert flat.exists()
    assert doctor("old", "--repair").code == 0
    assert not flat.exists()
    assert (folders["broken"].with_name("old") / "context.jsonl").read_bytes() == USER


def test_nothing_a_session_holds_reaches_the_terminal_raw(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """Escapes in names of files and tools are taken out of every line."""
    put(
        folders["broken"] / "context.jsonl",
        CALL.replace(b"Read", b"\\u001b[31mRead").replace(b'"a"', b'"\\u009b2J"'),
    )
    put(folders["broken"] / "\x1b]0;x\x07.txt", b"")
    (folders["broken"] / "\x1b]0;x\x07.txt").chmod(0o666)
    answer = doctor()
    assert not any(char in answer.out + answer.err for char in ("\x1b", "\x07", "\x9b"))


class ReadOnlyFs(_fs.OsFileSystem):
    """A disk that is mounted for reading, for whomever: root, whom modes do not stop, is refused as well."""

    def __init__(self) -> None:
        def refuse(*_: object, **__: object) -> Any:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        def open_(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                refuse()
            return os.open(path, flags, *rest, **more)

        self.open = open_
        for name in ("mkdir", "rename", "replace", "link", "unlink", "fchmod"):
            setattr(self, name, refuse)


def test_a_store_that_can_t_be_written_is_checked_all_the_same(
    doctor: Run, work_dir: Path, folders: dict[str, Path]
) -> None:
    """A check of a read-only session works; its repair says that it could not write, with exit code 7."""
    before = tree(folders["broken"])
    with _fs.using(ReadOnlyFs()):
        assert doctor("broken").code == 5
        done = doctor("broken", "--repair")
    assert done.code == 7
    assert "Read-only file system" in done.err
    assert tree(folders["broken"]) == before


def test_all_work_dirs_are_checked_and_repaired_at_once(
    run: Run, doctor: Run, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Each under its own head, one that is gone left out of nothing; the worst decides the exit code."""
    other = tmp_path / "other"
    other.mkdir()
    session = asyncio.run(Session.create(other, "there"))
    put(session.path / "context.jsonl", USER + b"torn")
    done = doctor("--all-dirs")
    assert done.code == 5
    assert [line for line in done.out.splitlines() if line.startswith("== ")] == [
        f"== {folders['broken'].parents[2]}",
        f"== {other}",
    ]
    assert "context.jsonl:2: not JSON" in done.out.partition(f"== {other}")[2]
    assert doctor("there", "--all-dirs").code == 2
    done = doctor("--all-dirs", "--repair", "--json")
    assert done.code == 0
    assert done.data["clean"]
    assert [each["work_dir"] for each in done.data["work_dirs"]] == [
        str(folders["broken"].parents[2]),
        str(other),
    ]
    assert doctor("--all-dirs").code == 0


def test_sessions_whose_work_dir_nobody_knows_are_checked_too(
    doctor: Run, corpus: Callable[[str], Path]
) -> None:
    """By the folder that they lie in."""
    share = corpus("1.52.0")
    (share / "kimi.json").unlink()
    done = doctor("--share-dir", str(share), "--all-dirs", "--json")
    assert done.code == 5
    found = [report["id"] for each in done.data["work_dirs"] for report in each["sessions"]]
    assert sorted(found) == sorted(
        path.name for path in share.glob("sessions/*/*") if (path / "context.jsonl").exists()
    )
    assert doctor("--share-dir", str(share), "--all-dirs", "--repair").code in {0, 5}
