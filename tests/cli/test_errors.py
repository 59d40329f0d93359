"""What goes wrong ends as one line on stderr and an exit code of the table, never as a traceback."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from kimi_sessions import (
    AmbiguousIdError,
    CheckpointNotFoundError,
    DamagedError,
    InvalidIdError,
    InvalidTurnError,
    LocksUnavailableError,
    MigrationError,
    Session,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    ShareLayout,
    UnsupportedVersionError,
    UntrustedSessionError,
    WorkDirNotFoundError,
    WriteError,
)
from kimi_sessions.cli import _exit, main

from .conftest import COMMAND, Make, Run, Shell

TAKE_AN_ID = ("show", "continue", "path", "rename", "archive", "unarchive", "fork", "delete", "trust")
BAD_IDS = (
    "../x",
    "/etc/x",
    "a/b",
    "..",
    ".",
    "",
    "a\\b",
    "C:x",
    "a" * 300,
    "-rf",
    "a\nb",
    "\x1b[31m",
    "a\u202eb",
)

ONE_OF_EACH: list[tuple[Exception, int]] = [
    (SessionNotFoundError(session_id="x"), 3),
    (AmbiguousIdError(prefix="x", candidates=("xa", "xb")), 3),
    (WorkDirNotFoundError(path="/x"), 3),
    (CheckpointNotFoundError(checkpoint_id=1, next_checkpoint_id=1), 3),
    (UntrustedSessionError(session_id="x", path="/x"), 3),
    (InvalidIdError(value="x", reason="no"), 2),
    (InvalidTurnError(turn_index=1, turn_count=0), 2),
    (SessionBusyError(path="/x"), 4),
    (DamagedError(path="/x", reason="no"), 5),
    (UnsupportedVersionError(path="/x", found="9", supported="1"), 6),
    (WriteError(path="/x"), 7),
    (LocksUnavailableError(path="/x"), 7),
    (SessionExistsError(session_id="x", path="/x"), 7),
    (MigrationError(step="copy"), 1),
    (OSError(28, "No space left on device"), 7),
    (PermissionError(13, "Permission denied"), 1),
    (_exit.Failed("no", 3), 3),
    (RuntimeError("a fault of ours"), 1),
]


@pytest.mark.parametrize("error,code", ONE_OF_EACH, ids=lambda value: type(value).__name__)
def test_every_error_has_its_exit_code_and_its_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, whatever it is."""

    def step() -> int:
        raise error

    assert _exit.guarded(step) == code
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert "Traceback" not in found.err


def test_a_migration_error_has_the_code_of_what_stopped_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A migration that could not write is a write that failed."""
    error = MigrationError(step="copy")
    error.__cause__ = WriteError(path="/x")
    assert _exit.code_of(error) == 7


def test_the_traceback_of_a_fault_is_shown_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of an unexpected error names the variable."""

    def step() -> int:
        raise RuntimeError("a fault of ours")

    assert _exit.guarded(step) == 1
    assert "KIMI_SESSIONS_TRACEBACK=1" in capsys.readouterr().err
    monkeypatch.setenv("KIMI_SESSIONS_TRACEBACK", "1")
    assert _exit.guarded(step) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    """As shells have it."""

    def step() -> int:
        raise KeyboardInterrupt

    assert _exit.guarded(step) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("command", TAKE_AN_ID)
def test_a_bad_id_is_refused_before_any_file_is_touched(run: Run, work_dir: Path, command: str) -> None:
    """Exit code 2 for each, behind `--` too; what it could have meant is untouched."""
    victim = work_dir / "x"
    victim.write_bytes(b"precious")
    title = ["T"] if command == "rename" else []
    yes = ["--yes"] if command == "delete" else []
    for bad in BAD_IDS:
        for args in ([command, *yes, bad, *title], [command, *yes, "--", bad, *title]):
            done = run(*args)
            assert (done.code, done.out) == (2, "")
            assert done.err.startswith("error: ")
            assert "\x1b" not in done.err
    assert victim.read_bytes() == b"precious"
    assert sorted(path.name for path in work_dir.iterdir()) == ["x"]


def test_the_trash_refuses_bad_ids_too(run: Run) -> None:
    """Restore and empty take ids as well."""
    for bad in BAD_IDS:
        for command in ("restore", "empty"):
            assert run("trash", command, "--", bad).code == 2


@pytest.mark.parametrize("command", TAKE_AN_ID)
def test_an_unknown_id_is_not_found_and_makes_nothing(run: Run, work_dir: Path, command: str) -> None:
    """Exit code 3, one line, nothing on stdout, no folder."""
    extra = {"rename": ["T"], "delete": ["--yes"]}.get(command, [])
    done = run(command, "nope", *extra)
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert "no session 'nope'" in done.err
    assert list(work_dir.iterdir()) == []


def test_an_unknown_id_comes_with_near_matches(run: Run, make: Make) -> None:
    """One wrong letter is seen through."""
    make("Hello", session_id="fix-the-login")
    done = run("show", "fix-teh-login")
    assert done.code == 3
    assert "near: fix-the-login" in done.err


def test_an_ambiguous_beginning_lists_the_candidates(run: Run, make: Make) -> None:
    """Nothing is guessed."""
    make("One", session_id="abc-1")
    make("Two", session_id="abc-2")
    done = run("show", "abc")
    assert done.code == 3
    assert "abc-1, abc-2" in done.err
    assert run("show", "abc-1").code == 0


def test_one_id_in_two_work_dirs_is_named_with_both(run: Run, tmp_path: Path) -> None:
    """'same, same' would help nobody: each stands with the folder that -w takes."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        asyncio.run(Session.create(tmp_path / name, "same"))
    done = run("show", "same", "-w", str(tmp_path / "three"))
    assert (done.code, done.out) == (3, "")
    assert f"same in {tmp_path / 'one'}, same in {tmp_path / 'two'}" in done.err
    assert run("show", "same", "-w", str(tmp_path / "two")).code == 0


@pytest.mark.parametrize(
    "args",
    [
        "list",
        "continue",
        "show x",
        "show @last",
        "rename x title",
        "search word",
        "stats",
        "doctor",
        "path x",
    ],
)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_work_dir_that_is_not_there_is_said_to_be_the_reason(
    run: Run, tmp_path: Path, args: str, dangling: bool
) -> None:
    """A slip in -w, or a link that leads nowhere, is not a clean bill of health."""
    gone = tmp_path / "gone"
    if dangling:
        gone.symlink_to(tmp_path / "nowhere")
    done = run(*args.split(), "-w", str(gone))
    assert f"{gone} (there is no such folder)" in done.err
    assert "there is no such folder" not in run(*args.split()).err


def test_continue_says_that_a_session_s_work_dir_is_gone(run: Run, tmp_path: Path) -> None:
    """Its conversation is there, and can be had; where it belongs is not."""
    project, share = tmp_path / "worktree", tmp_path / "share"
    project.mkdir()
    session = asyncio.run(Session.create(project, layout=ShareLayout(share)))
    assert "not there" not in run("--share-dir", str(share), "continue", session.id).err
    project.rmdir()
    for args in ((), ("-w", str(project))):
        done = run("--share-dir", str(share), *args, "continue", session.id)
        assert (done.code, done.out) == (0, f"{session.id}\n")
        assert f"{project}, which is not there" in done.err


@pytest.mark.parametrize(
    "args,hint",
    [
        (["lisst"], "did you mean list?"),
        (["list", "--bogus"], "--bogus"),
        (["show"], "ID"),
        (["rename", "x"], "TITLE"),
        (["list", "--limit", "many"], "--limit"),
        (["list", "--limit", "-1"], "--limit"),
        (["list", "--sort", "size"], "--sort"),
        (["trash"], "ommand"),
        (["list", "-w"], "-w"),
    ],
)
def test_wrong_usage_is_one_line_and_2(run: Run, args: list[str], hint: str) -> None:
    """It says what is wrong, with a pointer to the help of the command."""
    done = run(*args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert hint in done.err


def test_text_beyond_the_encoding_of_the_terminal_is_replaced(shell: Shell, make: Make) -> None:
    """In an ASCII locale everything works, with question marks; JSON is exact there too, by escapes."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    session = make("你好 🎉 é")
    for args in (["list"], ["show", session.id], ["rename", session.id, "Neu: Grüße"], ["continue"]):
        done = shell(*args, env=ascii_only)
        assert done.code == 0, done.err
        assert (done.out + done.err).isascii()
    make("你好 🎉 é")
    titles = {found["title"] for found in shell("list", "--json", env=ascii_only).data["sessions"]}
    assert "你好 🎉 é" in titles


def test_a_reader_that_has_seen_enough_is_no_error(make: Make, work_dir: Path) -> None:
    """`kimi-sessions show ID | head -1` ends quietly."""
    session = make(*(f"prompt {number} " + "x" * 500 for number in range(60)))
    for args in (["show", session.id], ["show", session.id, "--json"], ["list", "--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            done = subprocess.run(
                [COMMAND, *args], cwd=work_dir, stdout=pipe, stderr=subprocess.PIPE, check=False
            )
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_under_stdout_is_said(make: Make, work_dir: Path) -> None:
    """Exit code 7 and one line."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    session = make("Hello")
    for args in (["list"], ["show", session.id], ["list", "--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [COMMAND, *args], cwd=work_dir, stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert done.returncode == 7
        assert done.stderr == b"error: could not write: No space left on device\n"


def test_closed_streams_are_no_fault(make: Make, work_dir: Path) -> None:
    """A daemon that closed its streams gets its exit code all the same."""
    make("Hello")
    for close in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            f"'{COMMAND}' list {close}", shell=True, cwd=work_dir, capture_output=True, check=False
        )
        assert done.returncode == 0
        assert b"Traceback" not in done.stderr


def test_what_the_library_logs_is_one_line_on_stderr(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """It is cleaned as all else, and nothing of it gets into the data."""
    import logging

    def step() -> int:
        logging.getLogger("kimi_sessions").warning("odd \x1b[31mthing")
        return 0

    _exit.guarded(step)
    assert capsys.readouterr().err == "warning: odd [31mthing\n"
    assert logging.getLogger("kimi_sessions").handlers == []


def test_a_store_that_can_not_be_written_is_read(run: Run, make: Make) -> None:
    """Reading works; a change ends with one line and 7."""
    session = make("Hello")
    lock = session.path / "state.json"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    try:
        done = run("rename", session.id, "New")
        assert done.code in {5, 7}
        assert done.err.count("\n") == 1
        assert "Hello" in run("list").out
    finally:
        lock.rmdir()


def test_a_folder_that_vanished_under_the_shell_is_said(tmp_path: Path, home: Path) -> None:
    """There is no work dir to speak of; the line tells the way out."""
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        f"cd '{gone}' && rmdir '{gone}' && '{COMMAND}' list", shell=True, capture_output=True, check=False
    )
    assert done.returncode == 3
    assert b"--work-dir" in done.stderr


def test_help_and_version_are_data(run: Run) -> None:
    """They are on stdout and end with 0; every command has help of its own, which begins as the table says."""
    from kimi_sessions import __version__
    from kimi_sessions.cli._commands import COMMANDS

    assert main(["--version"]) == 0
    assert run("--version").out == f"kimi-sessions {__version__}\n"
    overview = " ".join(run("--help").out.split())
    for name, row in COMMANDS.items():
        done = run(name, "--help")
        assert done.code == 0
        assert row.help in " ".join(done.out.split())
        assert "--share-dir" in done.out
        assert row.help in overview


def test_the_version_in_the_folder_name_is_that_of_the_package() -> None:
    """`--version` reads it without the library for it."""
    from importlib.metadata import version

    from kimi_sessions.cli._version import installed_version

    assert installed_version() == version("kimi-sessions")


@pytest.mark.parametrize("command", ["list", "doctor", "continue", "search", "stats"])
def test_a_work_dir_whose_name_no_file_system_takes_is_one_that_is_not_there(run: Run, command: str) -> None:
    """Too long a name is no unexpected error."""
    done = run(command, *(["word"] if command == "search" else []), "-w", "x" * 300)
    assert done.code in {0, 3, 5}, done
