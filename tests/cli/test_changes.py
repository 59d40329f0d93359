"""The commands that change something: rename, archive, delete, trash, fork, trust; and continue, path beside them."""

from __future__ import annotations

import asyncio
import errno
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.seam import FailingFs

from kimi_sessions import Session, ShareLayout, _fs

from .conftest import COMMAND, Make, Run, Shell


def find(session: Session) -> Session | None:
    """Look for a session anew."""
    return asyncio.run(Session.find(session.work_dir, session.id))


def test_a_new_title_is_there_at_once(run: Run, make: Make) -> None:
    """Rename says what it did on stderr; with --json the facts are on stdout."""
    session = make("Hello")
    done = run("rename", session.id[:8], "A better  title")
    assert (done.code, done.out) == (0, "")
    assert "A better title" in done.err
    assert run("rename", session.id, "Another", "--json").data["title"] == "Another"
    assert "Another" in run("list").out


@pytest.mark.parametrize("title", ["", "   ", "\x07"])
def test_a_title_without_text_is_refused(run: Run, make: Make, title: str) -> None:
    """It is wrong usage, and nothing changes."""
    session = make("Hello")
    done = run("rename", session.id, title)
    assert (done.code, done.out) == (2, "")
    assert "Hello" in run("list").out


def test_an_archived_session_can_be_seen_opened_and_brought_back(run: Run, make: Make) -> None:
    """Hidden from the list, it is still shown, found and continued by its id; unarchive restores it as it was."""
    session = make("Hello")
    before = run("list", "--json").data["sessions"][0]
    assert run("archive", session.id).code == 0
    assert run("list").out == ""
    assert run("show", session.id).code == 0
    assert run("continue", session.id).out.strip() == session.id
    assert run("unarchive", session.id, "--json").data["archived"] is False
    assert run("list", "--json").data["sessions"][0] == before


def test_unarchive_says_so_of_a_session_that_was_not_archived(run: Run, make: Make) -> None:
    """`@last` passes over the archived one, so it may be another than the one that was just archived."""
    session, other = make("Hello"), make("There")
    assert run("archive", other.id).code == 0
    done = run("unarchive", "@last")
    assert (done.code, done.err) == (0, f"this one was not archived: {session.id}: Hello\n")
    assert run("unarchive", other.id).err == f"back among the others: {other.id}: There\n"


def test_the_way_back_from_the_trash_can_be_copied_as_it_stands(
    shell: Shell, make: Make, work_dir: Path, tmp_path: Path
) -> None:
    """The command that delete names has the options that lead to the store it deleted from."""
    here, share = make("Here"), make("Kimi's", layout=ShareLayout())
    assert f"'kimi-sessions trash restore {here.id}'" in shell("delete", "-y", here.id).err
    told = shell("--share", "-w", str(work_dir), "delete", "-y", share.id).err
    assert f"'kimi-sessions --share trash restore {share.id}'" in told
    far, layout = tmp_path / "a project", ShareLayout(tmp_path / "a share")
    far.mkdir()
    other = asyncio.run(Session.create(far, "other", layout=layout))
    told = shell("--share-dir", str(layout.share), "-w", str(far), "delete", "-y", "other").err
    command = told.partition("to the trash; '")[2].partition("' brings it back")[0]
    assert not other.path.exists()
    assert shell(*shlex.split(command)[1:]).code == 0
    assert other.path.exists()


def test_nobody_is_asked_where_stdin_was_closed(make: Make, work_dir: Path) -> None:
    """As services start programs: it is said, and nothing is changed."""
    session = make("Hello")
    command = ["sh", "-c", 'exec "$@" <&-', "sh", str(COMMAND), "delete", session.id]
    done = subprocess.run(command, cwd=work_dir, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    assert session.path.exists()


def test_delete_asks_and_without_an_answer_changes_nothing(shell: Shell, make: Make) -> None:
    """Where nobody can be asked it is refused; --yes does it."""
    session = make("Hello")
    done = shell("delete", session.id)
    assert (done.code, done.out) == (2, "")
    assert "--yes" in done.err
    assert find(session) is not None
    assert shell("delete", session.id, "--yes").code == 0
    assert find(session) is None


def test_what_was_deleted_comes_back_byte_for_byte(run: Run, make: Make) -> None:
    """Delete moves to the trash, trash list shows it, trash restore brings it back."""
    session = make("Hello")
    before = {path.name: path.read_bytes() for path in session.path.iterdir() if path.name != ".lock"}
    assert run("delete", "-y", session.id).code == 0
    assert "Hello" in run("trash", "list").out
    (entry,) = run("trash", "list", "--json").data["trash"]
    assert (entry["id"], entry["title"]) == (session.id, "Hello")
    assert run("trash", "restore", session.id[:8]).code == 0
    assert {path.name: path.read_bytes() for path in session.path.iterdir() if path.name != ".lock"} == before
    assert run("trash", "list").err.endswith("is empty\n")


def test_a_restore_onto_a_taken_place_is_refused(run: Run, make: Make) -> None:
    """Neither the session that is there nor the one in the trash is touched."""
    session = make("Old", session_id="same")
    run("delete", "-y", "same")
    make("New", session_id="same")
    done = run("trash", "restore", "same")
    assert done.code == 7
    assert "exists already" in done.err
    assert "New" in run("list").out
    assert len(run("trash", "list", "--json").data["trash"]) == 1
    assert session.id == "same"


@pytest.mark.parametrize("how", [["--yes"], ["--yes", "--permanent"]])
def test_what_is_gone_already_is_not_found_by_a_second_delete(run: Run, make: Make, how: list[str]) -> None:
    """Deleted, or removed by hand behind a list that knew it: no list has it, and no delete fails otherwise."""
    for name in ("one", "two"):
        make(f"Hello {name}", session_id=name)
    assert len(run("search", "hello", "--role", "user", "--json").data["hits"]) == 2
    assert run("delete", "one", *how).code == 0
    shutil.rmtree(make("Hello three", session_id="three").path)
    for name in ("one", "three"):
        assert run("delete", name, *how).code == 3
    assert [each["id"] for each in run("list", "--json").data["sessions"]] == ["two"]
    hits = run("search", "hello", "--json").data["hits"]
    assert {hit["id"] for hit in hits} == {"two"}
    assert run("continue").out == "two\n"


def test_a_permanent_delete_leaves_nothing(run: Run, make: Make) -> None:
    """--permanent goes past the trash."""
    session = make("Hello")
    assert run("delete", session.id, "--permanent", "--yes", "--json").data == {
        "id": session.id,
        "deleted": True,
        "permanent": True,
    }
    assert run("trash", "list", "--json").data == {"trash": []}


def test_a_permanent_delete_that_stopped_halfway_says_what_becomes_of_the_rest(run: Run, make: Make) -> None:
    """The session is in no list and in no trash; what is left of it is told of, and goes with the next one."""
    session, other = make("Hello"), make("Hello again")
    (session.path / "uploads").mkdir()
    with _fs.using(FailingFs(1, names=frozenset({"rmdir"}))):
        done = run("delete", session.id, "--permanent", "--yes")
    assert done.code == 7
    assert "what is left of it" in done.err
    assert [each["id"] for each in run("list", "--json").data["sessions"]] == [other.id]
    assert run("trash", "list", "--json").data == {"trash": []}
    [note] = run("doctor", "--json").data["notes"]
    assert (note["kind"], note["file"].partition("~")[0]) == ("unfinished", "trash/deleting")
    assert run("delete", other.id, "--permanent", "--yes").code == 0
    assert run("doctor", "--json").data["notes"] == []


def test_the_trash_is_emptied_when_a_person_asks(run: Run, make: Make) -> None:
    """All of it, one session of it, or what was deleted long ago."""
    for name in ("one", "two", "three"):
        make(name, session_id=name)
        run("delete", "-y", name)
    assert run("trash", "empty", "--older-than", "1", "--yes", "--json").data == {"removed": 0}
    assert run("trash", "empty", "one", "--yes", "--json").data == {"removed": 1}
    assert "removed 2 sessions" in run("trash", "empty", "--yes").err
    assert run("trash", "empty").code == 0


def test_the_trash_does_not_know_what_was_never_in_it(run: Run, make: Make) -> None:
    """An unknown id in the trash is not found, an ambiguous beginning lists the candidates."""
    for name in ("aa1", "aa2"):
        make(name, session_id=name)
        run("delete", "-y", name)
    assert run("trash", "restore", "nope").code == 3
    done = run("trash", "restore", "aa")
    assert done.code == 3
    assert "aa1, aa2" in done.err


def test_a_session_in_use_is_not_deleted(shell: Shell, make: Make) -> None:
    """The line names who holds it, and the exit code is that of a busy session."""
    session = make("Hello")

    async def held() -> int:
        async with session.hold("my-agent"):
            done = await asyncio.to_thread(shell, "delete", "-y", session.id)
            assert "my-agent" in done.err
            assert done.err.count("\n") == 1
            return done.code

    assert asyncio.run(held()) == 4
    assert find(session) is not None


def test_fork_prints_the_new_id(run: Run, make: Make) -> None:
    """The new session has the turns that were asked for and knows its parent."""
    session = make("One", "Two", "Three")
    done = run("fork", session.id, "--turn", "1")
    assert done.code == 0
    new_id = done.out.strip()
    assert [turn["user_text"] for turn in run("show", new_id, "--turns", "--json").data["turns"]] == [
        "One",
        "Two",
    ]
    assert f"from {session.id}, turns 0 to 1" in run("show", new_id).out
    assert run("fork", session.id, "--json").data["parent"]["session_id"] == session.id


def test_a_turn_that_is_not_there_can_not_be_forked(run: Run, make: Make) -> None:
    """It is wrong usage that says which turns there are, and leaves nothing behind."""
    session = make("One", "Two")
    done = run("fork", session.id, "--turn", "7")
    assert (done.code, done.out) == (2, "")
    assert "turns 0 to 1" in done.err
    assert len(run("list", "--empty", "--json").data["sessions"]) == 1


def test_continue_prints_the_last_id_and_nothing_else(run: Run, make: Make) -> None:
    """What a script needs is on stdout alone; --json has the facts."""
    first, _ = make("One"), make("Two")
    asyncio.run(first.close())
    done = run("continue")
    assert (done.code, done.out, done.err) == (0, f"{first.id}\n", "")
    assert run("continue", "--json").data["id"] == first.id
    assert run("path", "@last").out.strip() == str(first.path)


def test_continue_without_a_session_is_not_found(run: Run) -> None:
    """Exit code 3, one line, no JSON."""
    for args in (["continue"], ["continue", "--json"], ["show", "@last"]):
        done = run(*args)
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)


def test_continue_from_elsewhere_tells_the_work_dir(run: Run, make: Make, tmp_path: Path) -> None:
    """An id is enough; where it belongs is said, and is in the JSON."""
    session = make("Hello")
    done = run("continue", session.id, "-w", str(tmp_path))
    assert (done.code, done.out) == (0, f"{session.id}\n")
    assert str(session.work_dir) in done.err
    assert run("continue", session.id, "-w", str(tmp_path), "--json").data["work_dir"] == str(
        session.work_dir
    )


def test_a_session_that_came_from_elsewhere_must_be_trusted_first(
    run: Run, make: Make, work_dir: Path, tmp_path: Path
) -> None:
    """A copied store is listed as untrusted and not continued; trust shows what it allows, then seals."""
    session = make("Hello")
    asyncio.run(session.close())
    copy = tmp_path / "copy"
    shutil.copytree(work_dir, copy)
    state = copy / ".kimi" / "sessions" / session.id / "state.json"
    state.write_text('{"version": 1, "approval": {"yolo": true, "auto_approve_actions": ["run command"]}}')
    there = ["-w", str(copy)]
    assert "[untrusted] Hello" in run("list", *there).out
    done = run("continue", *there)
    assert (done.code, done.out) == (3, "")
    told = re.findall("'kimi-sessions (.*?)'", done.err.splitlines()[-1])
    assert [shlex.split(hint)[-2:] for hint in told] == [["show", session.id], ["trust", session.id]]
    assert run("continue", session.id, *there).err == done.err
    assert run("continue", session.id, *there).code == 3
    # As it stands, it leads to this session, and not to the one that it was copied from.
    assert str(copy) in run(*shlex.split(told[0])).out
    looked = run("trust", "--all", "--dry-run", *there)
    assert "everything (yolo)" in looked.err
    assert "run command" in looked.err
    assert run("continue", *there).code == 3
    sealed = run("trust", session.id, "--json", *there).data
    assert sealed["sessions"][0]["allows"]["yolo"] is True
    assert run("continue", *there).out.strip() == session.id
    assert run("trust", *there).code == 2


def test_kimi_clis_store_needs_no_seals(run: Run, make: Make) -> None:
    """Trust says so and does nothing."""
    session = make("Hello", layout=ShareLayout())
    done = run("--share", "trust", session.id)
    assert done.code == 0
    assert "needs no seals" in done.err


def test_path_without_an_id_is_the_folder_of_all_sessions(run: Run, work_dir: Path) -> None:
    """Also where nothing has been kept yet."""
    assert run("path").out.strip() == str(work_dir / ".kimi" / "sessions")
    assert run("path", "--json").data == {"path": str(work_dir / ".kimi" / "sessions")}
    assert list(work_dir.iterdir()) == []


def test_path_in_a_pipe_is_byte_for_byte(shell: Shell, tmp_path: Path) -> None:
    """A name that is no text in any encoding can still be passed on."""
    import os
    import subprocess
    import sys

    odd = os.fsencode(tmp_path) + b"/w\xff"
    os.mkdir(odd)
    command = Path(sys.executable).with_name("kimi-sessions")
    done = subprocess.run([command, "path", "-w", odd], capture_output=True, check=True)
    assert done.stdout == odd + b"/.kimi/sessions\n"


def test_the_options_that_say_where_stand_before_and_after(
    run: Run, make: Make, tmp_path: Path, work_dir: Path
) -> None:
    """The one nearer the end counts."""
    make("Hello")
    other = str(tmp_path)
    assert "Hello" in run("-w", other, "list", "-w", str(work_dir)).out
    assert "Hello" in run("-w", str(work_dir), "list", "--sort", "title").out
    assert run("-w", str(work_dir), "list", "-w", other, "--sort", "title").out == ""
    assert run("--json", "-w", other, "trash", "list").data == {"trash": []}
    assert run("trash", "list", "-w", other, "--json").data == {"trash": []}


def test_on_a_full_disk_a_delete_says_what_makes_room(run: Run, make: Make) -> None:
    """The trash needs room for a note; a delete for good needs none."""
    session = make("Hello")

    class Full(_fs.OsFileSystem):
        """A disk with no room for another byte."""

        def __init__(self) -> None:
            def write(*_: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            self.write = write

    with _fs.using(Full()):
        done = run("delete", session.id, "--yes")
        assert done.code == 7
        assert "note: --permanent takes no room, and gives some" in done.err
        assert run("delete", session.id, "--yes", "--permanent").code == 0
    assert not session.path.exists()
