"""One writer at a time: locks exclude, say who holds them, die with their holder, and notice a deleted session."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_sessions import _fs, _locking
from kimi_sessions._locking import HoldLock, StepLock, bare_lock, read_holder, session_gone
from kimi_sessions.errors import (
    Holder,
    LocksUnavailableError,
    SessionBusyError,
    SessionNotFoundError,
    WriteError,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a session folder."""
    path = tmp_path / "one"
    path.mkdir()
    return path


def step_lock(folder: Path) -> StepLock:
    """Give a lock as a session's opener has it."""
    return StepLock(str(folder / ".lock"), gone=session_gone(folder.name, str(folder.parent)))


def hold_lock(folder: Path) -> HoldLock:
    """Give a hold as a session's opener has it."""
    return HoldLock(str(folder / ".hold"), gone=session_gone(folder.name, str(folder.parent)))


class Failing(_fs.OsFileSystem):
    """A file system whose locks fail with one error."""

    def __init__(self, code: int) -> None:
        def flock(fd: int, operation: int) -> None:
            raise OSError(code, os.strerror(code))

        self.flock = flock  # type: ignore[assignment]


def test_two_openers_exclude_each_other_also_within_one_process(folder: Path) -> None:
    """The second gets it when the first lets go."""
    one, two = step_lock(folder), step_lock(folder)
    assert one.try_acquire()
    assert not two.try_acquire()
    assert not one.try_acquire()
    one.release()
    assert two.try_acquire()
    two.release()


def test_a_lock_file_is_private_and_stays_when_the_lock_is_free(folder: Path) -> None:
    """Removing it would let two holders in."""
    umask = os.umask(0o777)
    try:
        with step_lock(folder):
            pass
    finally:
        os.umask(umask)
    assert (folder / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_short_step_waits_for_another_one(folder: Path) -> None:
    """And runs as soon as that is over."""
    one, two = step_lock(folder), step_lock(folder)
    one.acquire()
    order: list[str] = []

    def second() -> None:
        with two:
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    order.append("first")
    one.release()
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_that_nobody_frees_is_an_error_in_the_end(folder: Path) -> None:
    """The wait is bounded; the lock works afterwards."""
    one, two = step_lock(folder), step_lock(folder)
    with one, pytest.raises(SessionBusyError) as caught:
        two.acquire(timeout_s=0.05)
    assert caught.value.path == str(folder / ".lock")
    with two:
        pass


def test_many_threads_on_one_lock_are_let_in_one_by_one(folder: Path) -> None:
    """Kernel locks know descriptors, not threads; this lock knows both."""
    lock = step_lock(folder)
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_the_lock_of_a_killed_process_is_free_at_once(folder: Path) -> None:
    """No stale lock stays behind, though its file does."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from kimi_sessions._locking import HoldLock, StepLock\n"
        "step = StepLock(sys.argv[1] + '/.lock', gone=RuntimeError)\n"
        "hold = HoldLock(sys.argv[1] + '/.hold', gone=RuntimeError)\n"
        "step.acquire(); hold.take('agent')\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        mine, hold = step_lock(folder), hold_lock(folder)
        assert not mine.try_acquire()
        with pytest.raises(SessionBusyError) as caught:
            hold.take()
        assert caught.value.holder is not None
        assert (caught.value.holder.pid, caught.value.holder.program) == (child.pid, "agent")
        child.kill()
        child.wait()
    assert mine.try_acquire()
    mine.release()
    hold.take()
    hold.give_back()


def test_a_forked_child_does_not_keep_its_parent_s_lock_alive(folder: Path) -> None:
    """It closes what it inherited, so the lock is free when the parent lets go, though the child lives on."""
    lock, hold = step_lock(folder), hold_lock(folder)
    lock.acquire()
    hold.take()
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os.write(to_parent[1], b"1" if not hold.held and not step_lock(folder).try_acquire() else b"0")
        os.read(to_child[0], 1)
        os._exit(0)
    try:
        assert os.read(to_parent[0], 1) == b"1"
        lock.release()
        hold.give_back()
        assert step_lock(folder).try_acquire()
        hold_lock(folder).take()
    finally:
        os.write(to_child[1], b"x")
        os.waitpid(child, 0)
        for end in (*to_child, *to_parent):
            os.close(end)


# --- the session behind the lock -----------------------------------------------------------------------------------


@pytest.mark.parametrize("opened_before", [False, True])
def test_the_lock_of_a_deleted_session_says_so(folder: Path, opened_before: bool) -> None:
    """It makes no folder, and gives no lock on a file that no longer has a name."""
    lock = step_lock(folder)
    if opened_before:
        with lock:
            pass
    shutil.rmtree(folder)
    with pytest.raises(SessionNotFoundError) as caught:
        lock.try_acquire()
    assert caught.value.session_id == "one"
    assert not folder.exists()


def test_a_new_session_of_the_same_name_is_not_taken_for_the_old_one(folder: Path) -> None:
    """What was opened before the delete stays deleted."""
    lock = step_lock(folder)
    with lock:
        pass
    folder.rename(folder.with_name("away"))
    folder.mkdir()
    with pytest.raises(SessionNotFoundError):
        lock.try_acquire()
    assert os.listdir(folder) == []


def test_a_lock_file_that_was_only_removed_is_made_again(folder: Path) -> None:
    """Somebody tidied up; the session is still there."""
    lock = step_lock(folder)
    with lock:
        pass
    (folder / ".lock").unlink()
    with lock:
        assert (folder / ".lock").exists()
        assert not step_lock(folder).try_acquire()


@pytest.mark.parametrize(
    "place",
    [
        lambda path: path.symlink_to(path.with_name("elsewhere")),
        os.mkfifo,
        lambda path: path.mkdir(),
    ],
    ids=["link", "pipe", "folder"],
)
def test_what_stands_in_the_lock_s_place_is_refused(folder: Path, place: Callable[[Path], None]) -> None:
    """Neither followed nor waited for: a clear error, and nothing was made elsewhere."""
    place(folder / ".lock")
    with pytest.raises(WriteError):
        step_lock(folder).try_acquire()
    assert not (folder / "elsewhere").exists()


def test_a_session_folder_that_is_a_link_is_refused(folder: Path) -> None:
    """Locking through it would write outside the store."""
    link = folder.with_name("link")
    link.symlink_to(folder)
    with pytest.raises(WriteError):
        step_lock(link).try_acquire()
    assert os.listdir(folder) == []


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_at_once(folder: Path, code: int) -> None:
    """No waiting, and an error of its own kind that tells what is missing."""
    with _fs.using(Failing(code)), pytest.raises(LocksUnavailableError) as caught:
        step_lock(folder).acquire()
    assert caught.value.errno == code


def test_another_failure_to_lock_is_a_write_error(folder: Path) -> None:
    """With its cause."""
    with _fs.using(Failing(errno.EIO)), pytest.raises(WriteError) as caught:
        hold_lock(folder).take()
    assert caught.value.errno == errno.EIO
    assert isinstance(caught.value.__cause__, OSError)


def test_a_lock_can_be_used_again_after_a_failure(folder: Path) -> None:
    """A failed try leaves nothing locked behind."""
    lock = step_lock(folder)
    with _fs.using(Failing(errno.EIO)), pytest.raises(WriteError):
        lock.acquire()
    with lock:
        pass


# --- holds ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_can_t_keep_anybody_from_holding(folder: Path) -> None:
    """The lock holds, though nobody can be named: who wants to make room by a delete needs it."""

    class Full(_fs.OsFileSystem):
        def __init__(self) -> None:
            def write(fd: int, data: bytes) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            self.write = write  # type: ignore[assignment]

    one, two = hold_lock(folder), hold_lock(folder)
    with _fs.using(Full()):
        one.take()
        with pytest.raises(SessionBusyError) as caught:
            two.take()
    assert caught.value.holder is None
    one.give_back()
    two.take()
    two.give_back()


def test_a_second_hold_is_refused_at_once_and_names_the_first(folder: Path) -> None:
    """Process, host, program and since when; also within one process, also by the same object."""
    one, two = hold_lock(folder), hold_lock(folder)
    before = time.time()
    one.take("agent")
    for other in (two, one):
        with pytest.raises(SessionBusyError) as caught:
            other.take()
        holder = caught.value.holder
        assert holder is not None
        assert (holder.pid, holder.program) == (os.getpid(), "agent")
        assert holder.host
        assert holder.since is not None
        assert before - 1 <= holder.since <= time.time() + 1
    one.give_back()
    assert not one.held
    two.take()
    assert two.held
    two.give_back()


def test_short_steps_of_others_pass_while_a_session_is_held(folder: Path) -> None:
    """A hold is not in the way of an append."""
    hold = hold_lock(folder)
    hold.take()
    with step_lock(folder):
        pass
    hold.give_back()


def test_a_hold_that_is_over_names_nobody(folder: Path) -> None:
    """Giving back twice is fine."""
    hold = hold_lock(folder)
    hold.take("agent")
    assert read_holder(str(folder / ".hold")) is not None
    hold.give_back()
    hold.give_back()
    assert read_holder(str(folder / ".hold")) is None


def test_a_shorter_holder_s_text_does_not_end_in_a_longer_one_s(folder: Path) -> None:
    """The text is the holder's alone."""
    for program in ("a program with a long name", "x"):
        hold = hold_lock(folder)
        hold.take(program)
        text = (folder / ".hold").read_text("utf-8")
        hold.give_back()
        assert json.loads(text)["program"] == program


def test_holding_a_deleted_session_is_not_found_and_giving_it_back_is_no_error(folder: Path) -> None:
    """A delete by force may come in between."""
    held = hold_lock(folder)
    held.take()
    shutil.rmtree(folder)
    held.give_back()
    with pytest.raises(SessionNotFoundError):
        held.take()
    assert not folder.exists()


@pytest.mark.parametrize(
    "raw,holder",
    [
        (b"", None),
        (b"\0\0\0", None),
        (b"[1]", None),
        (b"{bad", None),
        (b"\xff\xfe", None),
        (b"x" * 5000, None),
        (b"[" * 4000, None),
        (b"{}", Holder()),
        (b'{"pid": "7", "host": 5, "program": null, "since": "now"}', Holder()),
        (b'{"pid": true, "since": true}', Holder()),
        (b'{"pid": 7, "since": 1' + b"0" * 400 + b"}", Holder(pid=7)),
        (b'{"pid": 7, "since": 17}', Holder(pid=7, since=17.0)),
        (b'{"program": "a\\u001b[2Jb\\nc", "host": "h"}', Holder(program="a[2Jb c", host="h")),
    ],
)
def test_a_hold_file_that_says_nonsense_names_nobody_or_what_can_be_read(
    folder: Path, raw: bytes, holder: Holder | None
) -> None:
    """The refusal stands whatever is written there, and nothing of it can move a cursor."""
    (folder / ".hold").write_bytes(raw)
    assert read_holder(str(folder / ".hold")) == holder


def test_no_hold_file_no_holder(folder: Path) -> None:
    """Nor one that is a pipe or a link."""
    assert read_holder(str(folder / ".hold")) is None
    os.mkfifo(folder / "pipe")
    assert read_holder(str(folder / "pipe")) is None


# --- logs without a session ----------------------------------------------------------------------------------------


def test_a_log_opened_by_its_path_alone_locks_itself_or_the_lock_beside_it(folder: Path) -> None:
    """So that it and a session's own opener exclude each other."""
    log = folder / "wire.jsonl"
    alone = bare_lock(str(log))
    assert alone.path == str(log)
    with step_lock(folder):
        beside = bare_lock(str(log))
        assert beside.path == str(folder / ".lock")
        assert not beside.try_acquire()


def test_the_time_a_step_waits_is_bounded() -> None:
    """Seconds, not minutes: what waits longer is a fault."""
    assert 0 < _locking.LOCK_TIMEOUT_S <= 60
