"""What was acknowledged stays readable: torn tails, full disks, other writers and rewrites cost no record."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions import _fs
from kimi_sessions._append_log import AppendLog, join_lines, open_for_reading
from kimi_sessions._appender import Appender
from kimi_sessions._locking import StepLock, bare_lock, session_gone
from kimi_sessions.errors import SessionBusyError, SessionNotFoundError, WriteError

HEADER = b"# header\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a session folder."""
    path = tmp_path / "one"
    path.mkdir()
    return path


def lock_of(folder: Path) -> StepLock:
    """Give the lock of an opener of its own."""
    return StepLock(str(folder / ".lock"), gone=session_gone(folder.name, str(folder.parent)))


def log_of(folder: Path, header: bytes = b"") -> AppendLog:
    """Give the log of an opener of its own."""
    return AppendLog(str(folder / "log"), lock=lock_of(folder), header=header)


class Recording(_fs.OsFileSystem):
    """The real file system, which remembers its calls and can be made to fail or to write short."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.write_at_most: int | None = None
        self.failing: dict[str, int] = {}
        for name in ("write", "fsync", "fdatasync", "ftruncate", "link", "replace", "mkdir"):
            setattr(self, name, self._recorded(name, getattr(os, name)))

    def _recorded(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            self.calls.append(name)
            if name in self.failing:
                raise OSError(self.failing[name], os.strerror(self.failing[name]))
            if name == "write" and self.write_at_most is not None:
                fd, data = args
                assert isinstance(data, bytes)
                return real(fd, data[: self.write_at_most])
            return real(*args, **kwargs)

        return call


@pytest.fixture
def recording() -> Iterator[Recording]:
    """Make a recording file system the active one."""
    fs = Recording()
    with _fs.using(fs):
        yield fs


# --- appending -----------------------------------------------------------------------------------------------------


def test_a_record_is_in_the_file_when_append_returns(folder: Path) -> None:
    """Line after line, in order, and private."""
    log = log_of(folder)
    log.append(b"one\n")
    assert (folder / "log").read_bytes() == b"one\n"
    log.append(b"two\nthree\n")
    assert (folder / "log").read_bytes() == b"one\ntwo\nthree\n"
    assert (folder / "log").stat().st_mode & 0o777 == 0o600


def test_a_new_file_s_header_is_in_the_same_write_as_its_first_record(
    folder: Path, recording: Recording
) -> None:
    """So no crash leaves a header cut in half before a record; an empty file counts as new."""
    log_of(folder, HEADER).append(b"one\n")
    assert recording.calls.count("write") == 1
    log_of(folder, HEADER).append(b"two\n")
    assert (folder / "log").read_bytes() == HEADER + b"one\ntwo\n"
    (folder / "log").write_bytes(b"")
    log_of(folder, HEADER).append(b"three\n")
    assert (folder / "log").read_bytes() == HEADER + b"three\n"


@given(st.integers(0, 30))
def test_a_torn_tail_does_not_swallow_the_next_record(cut: int) -> None:
    """For every length of tail: what was there stays byte for byte, what is whole is readable, the new record too."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = b"first record\nsecond record\n"[:cut]
        (folder / "log").write_bytes(data)
        log_of(folder).append(b"new\n")
        after = (folder / "log").read_bytes()
        assert after.startswith(data)
        assert after == data + (b"" if not data or data.endswith(b"\n") else b"\n") + b"new\n"


def test_the_newline_for_another_writer_s_tail_is_in_the_same_write(
    folder: Path, recording: Recording
) -> None:
    """Between two writes somebody else's record could land."""
    log = log_of(folder)
    log.append(b"one\n")
    with (folder / "log").open("ab") as other:
        other.write(b"torn by another program")
    recording.calls.clear()
    log.append(b"two\n")
    assert recording.calls == ["write"]
    assert (folder / "log").read_bytes() == b"one\ntorn by another program\ntwo\n"


def test_an_append_goes_into_the_file_that_has_the_name_now(folder: Path) -> None:
    """Another program replaced or removed the log meanwhile."""
    log = log_of(folder, HEADER)
    log.append(b"one\n")
    (folder / "new").write_bytes(b"rewritten\n")
    (folder / "new").rename(folder / "log")
    log.append(b"two\n")
    assert (folder / "log").read_bytes() == b"rewritten\ntwo\n"
    (folder / "log").unlink()
    log.append(b"three\n")
    assert (folder / "log").read_bytes() == HEADER + b"three\n"


def test_an_append_never_makes_a_folder(folder: Path) -> None:
    """A deleted session is not found; nothing of it comes back."""
    log = log_of(folder)
    log.append(b"one\n")
    (folder / "log").unlink()
    (folder / ".lock").unlink()
    folder.rmdir()
    with pytest.raises(SessionNotFoundError):
        log.append(b"two\n")
    assert not folder.exists()


@pytest.mark.parametrize("place", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
def test_a_log_that_is_no_regular_file_is_not_written(folder: Path, place: Callable[[Path], None]) -> None:
    """A pipe would block for ever, a link could lead anywhere."""
    place(folder / "log")
    with pytest.raises(WriteError, match="regular"):
        log_of(folder).append(b"one\n")
    assert not (folder / "elsewhere").exists()


def test_append_does_not_wait_where_it_was_asked_not_to(folder: Path) -> None:
    """False, and nothing happened."""
    log = log_of(folder)
    with lock_of(folder):
        assert not log.try_append(b"one\n")
        assert not (folder / "log").exists()
    assert log.try_append(b"one\n")


def test_many_processes_append_whole_lines(folder: Path) -> None:
    """Large ones too, with one header, and in each writer's own order."""
    script = (
        "import sys\n"
        "from kimi_sessions._append_log import AppendLog\n"
        "from kimi_sessions._locking import StepLock\n"
        "folder, name = sys.argv[1:]\n"
        "log = AppendLog(folder + '/log', lock=StepLock(folder + '/.lock', gone=RuntimeError), header=b'# header\\n')\n"
        "sys.stdin.readline()\n"
        "for n in range(40):\n"
        "    log.append(f'{name} {n} '.encode() + b'x' * 20_000 + b'\\n')\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(folder), str(number)], stdin=subprocess.PIPE)
        for number in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
    assert [child.wait() for child in children] == [0] * 4
    first, *lines = (folder / "log").read_bytes().splitlines()
    assert first + b"\n" == HEADER
    for number in range(4):
        own = [line.split()[1] for line in lines if line.startswith(b"%d " % number)]
        assert own == [b"%d" % n for n in range(40)]
    assert len(lines) == 160
    assert all(len(line) > 20_000 for line in lines)


# --- failures ------------------------------------------------------------------------------------------------------


def test_a_short_write_is_undone_and_nothing_was_acknowledged(folder: Path, recording: Recording) -> None:
    """Disk full in the middle of a record: the file is as before, the error says so, the next append works."""
    log = log_of(folder, HEADER)
    log.append(b"one\n")
    before = (folder / "log").read_bytes()
    recording.write_at_most = 3
    with pytest.raises(WriteError) as caught:
        log.append(b"a longer record\n")
    assert caught.value.errno == errno.ENOSPC
    assert (folder / "log").read_bytes() == before
    recording.write_at_most = None
    log.append(b"two\n")
    assert (folder / "log").read_bytes() == before + b"two\n"


def test_a_short_write_of_a_new_file_leaves_it_empty_and_the_header_comes_with_the_retry(
    folder: Path, recording: Recording
) -> None:
    """Half a header is not left behind."""
    log = log_of(folder, HEADER)
    recording.write_at_most = 3
    with pytest.raises(WriteError):
        log.append(b"one\n")
    assert (folder / "log").read_bytes() == b""
    recording.write_at_most = None
    log.append(b"one\n")
    assert (folder / "log").read_bytes() == HEADER + b"one\n"


def test_a_short_write_that_cannot_be_undone_is_told_and_does_not_cost_the_next_record(
    folder: Path, recording: Recording
) -> None:
    """The piece stays and gets its newline from the next append."""
    log = log_of(folder)
    log.append(b"one\n")
    recording.write_at_most = 3
    recording.failing["ftruncate"] = errno.EIO
    with pytest.raises(WriteError, match="could not be undone"):
        log.append(b"two two\n")
    recording.write_at_most = None
    log.append(b"three\n")
    assert (folder / "log").read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_write_that_fails_says_which_file_and_why(folder: Path, recording: Recording, code: int) -> None:
    """With the system's error as its cause; the log works again afterwards, and the lock is free."""
    log = log_of(folder)
    recording.failing["write"] = code
    with pytest.raises(WriteError) as caught:
        log.append(b"one\n")
    assert (caught.value.path, caught.value.errno) == (str(folder / "log"), code)
    assert isinstance(caught.value.__cause__, OSError)
    recording.failing.clear()
    with lock_of(folder):
        pass
    log.append(b"two\n")
    assert (folder / "log").read_bytes() == b"two\n"


# --- durability ----------------------------------------------------------------------------------------------------


def test_a_synced_log_has_synced_its_data_and_a_new_file_s_name(folder: Path, recording: Recording) -> None:
    """Once each; a second append needs the data alone; without an append there is nothing to do."""
    log = log_of(folder)
    log.append(b"one\n")
    recording.calls.clear()
    log.sync()
    assert recording.calls == ["fdatasync", "fsync"]
    log.sync()
    assert recording.calls == ["fdatasync", "fsync"]
    log.append(b"two\n")
    log.sync()
    assert recording.calls == ["fdatasync", "fsync", "write", "fdatasync"]


def test_the_name_of_a_new_log_that_is_its_own_lock_is_synced_too(folder: Path, recording: Recording) -> None:
    """There the lock makes the file, before the log sees it."""
    path = str(folder / "log")
    log = AppendLog(path, lock=bare_lock(path))
    log.append(b"one\n")
    recording.calls.clear()
    log.sync()
    assert recording.calls == ["fdatasync", "fsync"]


def test_a_sync_that_failed_is_due_again(folder: Path, recording: Recording) -> None:
    """What no sync has covered is not forgotten."""
    log = log_of(folder)
    log.append(b"one\n")
    recording.failing["fdatasync"] = errno.EIO
    with pytest.raises(WriteError):
        log.sync()
    recording.failing.clear()
    recording.calls.clear()
    log.sync()
    assert recording.calls == ["fdatasync", "fsync"]


async def test_appends_that_run_together_share_a_sync(folder: Path, recording: Recording) -> None:
    """Each is on the device when it returns, and there are fewer syncs than appends."""
    import asyncio

    appender = Appender(log_of(folder), durability="disk")

    async def append(n: int) -> None:
        pending = appender.append(b"%d\n" % n)
        assert pending is not None
        await pending

    await asyncio.gather(*(append(n) for n in range(50)))
    assert sorted(map(int, (folder / "log").read_bytes().split())) == list(range(50))
    assert 1 <= recording.calls.count("fdatasync") < 10


@pytest.mark.parametrize("call", ["fdatasync", "dup"])
async def test_an_append_whose_sync_failed_is_not_acknowledged(
    folder: Path, recording: Recording, call: str
) -> None:
    """Every one that waited for it gets the error; later ones work."""
    import asyncio

    appender = Appender(log_of(folder), durability="disk")
    setattr(recording, call, recording._recorded(call, getattr(os, call)))
    recording.failing[call] = errno.EIO
    waiting = [appender.append(b"one\n"), appender.append(b"two\n")]
    results = await asyncio.gather(*(each for each in waiting if each is not None), return_exceptions=True)
    assert [type(result) for result in results] == [WriteError, WriteError]
    recording.failing.clear()
    pending = appender.append(b"three\n")
    assert pending is not None
    await pending


async def test_the_first_append_is_told_once_and_only_after_it_succeeded(
    folder: Path, recording: Recording
) -> None:
    """A failed one does not count. It is told in a thread: what is done about it may wait, and the loop may not."""
    told: list[bytes] = []
    threads: set[int] = set()

    def on_first() -> None:
        told.append((folder / "log").read_bytes())
        threads.add(threading.get_ident())

    appender = Appender(log_of(folder), on_first=on_first)
    recording.failing["write"] = errno.ENOSPC
    with pytest.raises(WriteError):
        appender.append(b"lost\n")
    assert told == []
    recording.failing.clear()
    for record in (b"one\n", b"two\n"):
        pending = appender.append(record)
        if pending is not None:
            await pending
    assert told == [b"one\n"]
    assert threading.get_ident() not in threads


async def test_an_append_under_another_s_lock_waits_without_blocking_the_loop(folder: Path) -> None:
    """Other coroutines run meanwhile, and it is written as soon as the lock is free."""
    import asyncio

    appender = Appender(log_of(folder))
    other = lock_of(folder)
    other.acquire()
    pending = appender.append(b"one\n")
    assert pending is not None
    task = asyncio.create_task(pending)
    await asyncio.sleep(0.01)
    assert not task.done()
    other.release()
    await task
    assert (folder / "log").read_bytes() == b"one\n"


def test_an_unknown_durability_is_refused(folder: Path) -> None:
    """A typing mistake does not silently mean the weaker one."""
    with pytest.raises(ValueError, match="durability"):
        Appender(log_of(folder), durability="disc")  # type: ignore[arg-type]


# --- rewriting -----------------------------------------------------------------------------------------------------


def copy_whole(old: int, end: int, new: int) -> None:
    """Rewrite a log as what it was, in capitals."""
    os.write(new, os.pread(old, end, 0).upper())


def test_a_rewrite_replaces_the_log_and_keeps_the_old_one_where_asked(folder: Path) -> None:
    """Under the first free name."""
    log = log_of(folder)
    log.append(b"one\n")
    (folder / "log_1").write_bytes(b"taken")
    with log.lock:
        assert log.rewrite(copy_whole, keep_as=["log_1", "log_2"]) == "log_2"
    assert (folder / "log").read_bytes() == b"ONE\n"
    assert (folder / "log_1").read_bytes() == b"taken"
    assert (folder / "log_2").read_bytes() == b"one\n"
    assert (folder / "log").stat().st_mode & 0o777 == 0o600
    log.append(b"two\n")
    assert (folder / "log").read_bytes() == b"ONE\ntwo\n"
    assert (folder / "log_2").read_bytes() == b"one\n"


def test_what_another_program_appends_during_a_rewrite_is_brought_along(folder: Path) -> None:
    """Before the rename, and by one that had the old file open just after it."""
    log = log_of(folder)
    log.append(b"one\n")
    other = os.open(folder / "log", os.O_WRONLY | os.O_APPEND)

    class Late(_fs.OsFileSystem):
        def __init__(self) -> None:
            def replace(*args: object, **kwargs: object) -> None:
                os.replace(*args, **kwargs)  # type: ignore[arg-type]
                os.write(other, b"three\n")

            self.replace = replace

    def build(old: int, end: int, new: int) -> None:
        copy_whole(old, end, new)
        os.write(other, b"two\n")

    with _fs.using(Late()), log.lock:
        log.rewrite(build)
    os.close(other)
    assert (folder / "log").read_bytes() == b"ONE\ntwo\nthree\n"


@pytest.mark.parametrize("call", ["write", "fsync", "link", "replace"])
def test_a_rewrite_that_fails_leaves_the_old_log_and_nothing_else(
    folder: Path, recording: Recording, call: str
) -> None:
    """Whichever call fails: old log in place, no half-made file, and the retry works."""
    log = log_of(folder)
    log.append(b"one\n")
    recording.failing[call] = errno.EIO

    def build(old: int, end: int, new: int) -> None:
        _fs.write_all(new, os.pread(old, end, 0).upper())

    with log.lock, pytest.raises(WriteError):
        log.rewrite(build, keep_as=["log_1"])
    assert (folder / "log").read_bytes() == b"one\n"
    assert set(os.listdir(folder)) <= {".lock", "log", "log_1"}
    recording.failing.clear()
    with log.lock:
        log.rewrite(build, keep_as=["log_1", "log_2"])
    assert (folder / "log").read_bytes() == b"ONE\n"


def test_an_error_of_the_caller_s_own_stops_a_rewrite_with_nothing_changed(folder: Path) -> None:
    """It comes out as it is."""
    log = log_of(folder)
    log.append(b"one\n")

    def build(old: int, end: int, new: int) -> None:
        raise KeyError("no")

    with log.lock, pytest.raises(KeyError):
        log.rewrite(build, keep_as=["log_1"])
    assert sorted(os.listdir(folder)) == [".lock", "log"]


@pytest.mark.parametrize("code", sorted(_fs.NO_HARD_LINKS))
def test_the_old_log_is_kept_by_copy_where_there_are_no_hard_links(
    folder: Path, recording: Recording, code: int
) -> None:
    """Some file systems have none."""
    log = log_of(folder)
    log.append(b"one\n")
    recording.failing["link"] = code
    (folder / "log_1").write_bytes(b"taken")
    with log.lock:
        assert log.rewrite(copy_whole, keep_as=["log_1", "log_2"]) == "log_2"
    assert (folder / "log_1").read_bytes() == b"taken"
    assert (folder / "log_2").read_bytes() == b"one\n"


def test_a_log_that_is_not_there_is_rewritten_from_nothing(folder: Path) -> None:
    """There is nothing to keep."""
    log = log_of(folder)
    with log.lock:
        assert log.rewrite(lambda *_: None, keep_as=["log_1"]) is None
    assert (folder / "log").read_bytes() == b""
    assert not (folder / "log_1").exists()


# --- reading -------------------------------------------------------------------------------------------------------


def test_a_missing_log_reads_as_none_and_what_is_no_file_is_an_error(folder: Path) -> None:
    """Nobody takes a link, a pipe or a folder for an empty log."""
    with open_for_reading(folder / "log") as fd:
        assert fd is None
    with open_for_reading(folder / "missing" / "log") as fd:
        assert fd is None
    os.mkfifo(folder / "pipe")
    os.symlink(folder / "pipe", folder / "link")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match="regular"), open_for_reading(folder / name):
            pass


def test_lines_are_joined_with_a_newline_after_each() -> None:
    """The bytes of one append."""
    assert join_lines([b"a", b"b"]) == b"a\nb\n"
    assert join_lines([]) == b""


def test_a_lock_that_nobody_frees_fails_the_append_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than write into the middle of another's step."""
    log = log_of(folder)
    monkeypatch.setattr(StepLock.acquire, "__defaults__", (0.05,))
    with lock_of(folder), pytest.raises(SessionBusyError):
        log.append(b"one\n")
    assert not (folder / "log").exists()


def test_a_log_can_be_closed_within_a_step_and_waits_for_one_otherwise(folder: Path) -> None:
    """Whoever holds the lock closes at once; another thread's close comes after the append that is on."""
    log = log_of(folder)
    log.append(b"one\n")
    closed: list[str] = []

    def close() -> None:
        log.close()
        closed.append("closed")

    with log.lock:
        thread = threading.Thread(target=close)
        thread.start()
        log.append_locked(b"two\n")
        closed.append("appended")
        log.close_locked()
    thread.join()
    assert closed == ["appended", "closed"]
    log.append(b"three\n")
    assert (folder / "log").read_bytes() == b"one\ntwo\nthree\n"


def test_a_sync_waits_for_a_step_that_may_open_the_log_anew(folder: Path) -> None:
    """Else it could sync another file, and call a record durable that is not."""
    log = log_of(folder)
    appender = Appender(log, durability="disk")
    done: list[str] = []

    def sync() -> None:
        appender._commit(b"")
        done.append("synced")

    with log.lock:
        log.append_locked(b"one\n")
        thread = threading.Thread(target=sync)
        thread.start()
        thread.join(0.2)
        done.append("stepped")
    thread.join()
    assert done == ["stepped", "synced"]
