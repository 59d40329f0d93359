"""The steps below the verbs: sessions appear and disappear whole, long names fit, and races have one winner."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.seam import UnsyncedFs

from kimi_sessions import Session, _fs
from kimi_sessions._folder import SessionFolder
from kimi_sessions._store import WorkDirStore
from kimi_sessions.errors import (
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    WriteError,
)
from kimi_sessions.layout import ProjectLayout, ShareLayout


@pytest.fixture(autouse=True)
def unsynced() -> Iterator[None]:
    """Wait for no disk: what is durable when is tested elsewhere."""
    with _fs.using(UnsyncedFs()):
        yield


@pytest.fixture(params=["project", "share"])
def store(request: pytest.FixtureRequest, work_dir: Path, tmp_path: Path) -> WorkDirStore:
    """Give the store of a work dir in each of the two layouts."""
    return WorkDirStore(
        ProjectLayout() if request.param == "project" else ShareLayout(tmp_path / "share"), work_dir
    )


def sessions_of(store: WorkDirStore) -> Path:
    """Give the sessions folder."""
    return Path(store.paths[0])


def put(
    store: WorkDirStore, session_id: str, context: bytes = b'{"role":"user","content":"x"}\n'
) -> SessionFolder:
    """Write a session as another program."""
    folder = sessions_of(store) / session_id
    folder.mkdir(parents=True)
    (folder / "context.jsonl").write_bytes(context)
    return SessionFolder(session_id, str(folder.parent))


def ids_of(store: WorkDirStore) -> list[str]:
    """List the sessions that a scan finds."""
    return sorted(located.facts.id for located in store.scan().located)


class Meddling(UnsyncedFs):
    """The file system, with something done just before one kind of call."""

    def __init__(self, call: str, meddle: Callable[..., None]) -> None:
        real = getattr(UnsyncedFs, call)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            meddle(*args)
            return real(*args, **kwargs)

        setattr(self, call, wrapped)


def test_a_scan_gives_each_session_once_with_the_folder_it_lies_in(store: WorkDirStore) -> None:
    """In no promised order."""
    for name in ("a", "b"):
        put(store, name)
    listing = store.scan()
    assert sorted(located.facts.id for located in listing.located) == ["a", "b"]
    assert {located.sessions_path for located in listing.located} == {str(sessions_of(store))}
    assert listing.problems == []


def test_a_session_that_disappears_during_a_scan_is_left_out(store: WorkDirStore) -> None:
    """And does not end the scan."""
    for name in ("a", "b", "c"):
        put(store, name)
    gone: list[str] = []

    def remove(path: object, *_: object) -> None:
        if not gone and str(path).startswith("b/"):
            gone.append("b")
            (sessions_of(store) / "b" / "context.jsonl").unlink()
            (sessions_of(store) / "b").rmdir()

    with _fs.using(Meddling("open", remove)):
        assert ids_of(store) == ["a", "c"]
    assert gone == ["b"]


def test_a_flat_file_is_moved_by_rename_where_there_are_no_hard_links(store: WorkDirStore) -> None:
    """And still overwrites nothing."""
    put(store, "taken", b"folder\n")
    for name in ("one", "taken"):
        (sessions_of(store) / f"{name}.jsonl").write_bytes(b"flat\n")

    class NoLinks(UnsyncedFs):
        def __init__(self) -> None:
            def link(*args: object, **kwargs: object) -> None:
                raise OSError(errno.EPERM, "no links here")

            self.link = link

    with _fs.using(NoLinks()):
        listing = store.scan()
    assert sorted(located.facts.id for located in listing.located) == ["one", "taken"]
    assert (sessions_of(store) / "one" / "context.jsonl").read_bytes() == b"flat\n"
    assert (sessions_of(store) / "taken" / "context.jsonl").read_bytes() == b"folder\n"
    assert (sessions_of(store) / "taken.jsonl").exists()


def test_a_flat_file_that_cannot_be_moved_is_read_where_it_is(store: WorkDirStore) -> None:
    """A store that can't be written can still be listed and read."""
    put(store, "healthy")
    (sessions_of(store) / "one.jsonl").write_bytes(b"flat\n")

    class ReadOnly(UnsyncedFs):
        def __init__(self) -> None:
            def refuse(*args: object, **kwargs: object) -> None:
                raise OSError(errno.EROFS, "Read-only file system")

            self.link = self.mkdir = self.rename = self.unlink = refuse

    with _fs.using(ReadOnly()):
        listing = store.scan()
        assert sorted(located.facts.id for located in listing.located) == ["healthy", "one"]
        assert listing.problems == []
        located = store.locate("one")
        assert located is not None
        assert located.facts.flat == "one.jsonl"
        assert not located.facts.empty
        assert [problem.kind for problem in located.facts.problems] == ["flat-not-moved"]
        with pytest.raises(WriteError):
            SessionFolder("one", located.sessions_path, located.facts).step_lock.acquire()
    assert (sessions_of(store) / "one.jsonl").read_bytes() == b"flat\n"


def test_a_creation_that_fails_leaves_nothing_behind(store: WorkDirStore) -> None:
    """Its name is free again."""
    store.create("first")

    class Full(UnsyncedFs):
        def __init__(self) -> None:
            def write(*args: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            self.write = write

    with _fs.using(Full()), pytest.raises(WriteError) as caught:
        store.create("second")
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(sessions_of(store)) == ["first"]
    store.create("second")


def test_of_many_threads_that_create_one_id_one_succeeds(store: WorkDirStore) -> None:
    """And what it made is whole."""
    outcomes: list[str] = []

    def create() -> None:
        try:
            store.create("one")
        except SessionExistsError:
            outcomes.append("exists")
        else:
            outcomes.append("made")

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["exists"] * 5 + ["made"]
    assert {"context.jsonl", "session.json"} <= set(os.listdir(sessions_of(store) / "one"))


@pytest.mark.parametrize("name", ["x" * 255, "字" * 85])
def test_the_longest_names_can_be_listed_trashed_restored_and_deleted(store: WorkDirStore, name: str) -> None:
    """Although the trash adds to a name."""
    folder = put(store, name)
    assert ids_of(store) == [name]
    entry = store.trash.put(folder, title="t", reason="")
    assert store.trash.entries() == [entry]
    assert entry.session_id == name
    store.trash.restore(entry)
    assert ids_of(store) == [name]
    assert store.trash.delete(SessionFolder(name, str(sessions_of(store))))
    assert ids_of(store) == []


def test_restoring_never_overwrites(store: WorkDirStore) -> None:
    """Neither a session nor a flat file; the trash stays as it is."""
    entry = store.trash.put(put(store, "one"), title="", reason="")
    for taken in ("one", "one.jsonl"):
        (sessions_of(store) / taken).touch()
        with pytest.raises(SessionExistsError):
            store.trash.restore(entry)
        (sessions_of(store) / taken).unlink()
    assert store.trash.entries() == [entry]
    store.trash.restore(entry)
    with pytest.raises(SessionExistsError):
        store.trash.restore(entry)
    store.trash.delete(SessionFolder("one", str(sessions_of(store))))
    with pytest.raises(SessionNotFoundError):
        store.trash.restore(entry)


def test_restoring_leaves_an_old_client_s_later_flat_file_alone(store: WorkDirStore) -> None:
    """Neither it nor the one in the trash is lost, also when the session goes into the trash once more."""
    folder = put(store, "one")
    (Path(folder.path) / "context_1.jsonl").write_bytes(b"rotated\n")
    flat = sessions_of(store) / "one_1.jsonl"
    flat.write_bytes(b"first\n")
    entry = store.trash.put(folder, title="", reason="")
    assert not flat.exists()
    flat.write_bytes(b"second\n")
    store.trash.restore(entry)
    assert flat.read_bytes() == b"second\n"
    store.trash.put(SessionFolder("one", str(sessions_of(store))), title="", reason="")
    kept = Path(entry.trash_path).rglob("one_1.jsonl")
    assert sorted(path.read_bytes() for path in kept) == [b"first\n", b"second\n"]


def test_flat_files_whose_session_a_killed_program_did_not_get_into_the_trash_are_listed(
    store: WorkDirStore,
) -> None:
    """They come back under their names, overwrite nothing, and go when the trash is emptied."""
    folder = put(store, "one")
    (Path(folder.path) / "context_1.jsonl").write_bytes(b"rotated\n")
    flat = sessions_of(store) / "one_1.jsonl"
    flat.write_bytes(b"old\n")

    class Killed(BaseException):
        pass

    class KilledBeforeItsSession(UnsyncedFs):
        def __init__(self) -> None:
            def rename(*args: Any, **kwargs: Any) -> None:
                if args[0] == "one":
                    raise Killed
                os.rename(*args, **kwargs)

            self.rename = rename

    with _fs.using(KilledBeforeItsSession()), pytest.raises(Killed):
        store.trash.put(folder, title="A talk", reason="")
    assert ids_of(store) == ["one"]
    assert not flat.exists()
    (entry,) = store.trash.entries()
    assert (entry.session_id, entry.title, entry.flats_only) == ("one", "A talk", True)

    flat.write_bytes(b"newer\n")
    with pytest.raises(SessionExistsError):
        store.trash.restore(entry)
    assert flat.read_bytes() == b"newer\n"
    flat.unlink()
    assert store.trash.entries() == [entry]
    store.trash.restore(entry)
    assert flat.read_bytes() == b"old\n"
    assert ids_of(store) == ["one"]
    assert os.listdir(entry.trash_path) == []

    with _fs.using(KilledBeforeItsSession()), pytest.raises(Killed):
        store.trash.put(folder, title="A talk", reason="")
    assert store.trash.empty() == 1
    assert os.listdir(entry.trash_path) == []
    assert ids_of(store) == ["one"]


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize("with_flat", [False, True])
def test_a_session_that_a_full_disk_kept_out_of_the_trash_leaves_no_notes_there(
    store: WorkDirStore, call: str, with_flat: bool
) -> None:
    """However often it is tried: a note without its session would be listed nowhere and never be removed."""
    folder = put(store, "one")
    if with_flat:
        (Path(folder.path) / "context_1.jsonl").write_bytes(b"rotated\n")
        (sessions_of(store) / "one_1.jsonl").write_bytes(b"old\n")

    class Full(UnsyncedFs):
        def __getattribute__(self, name: str) -> Any:
            def fail(*_: Any, **__: Any) -> Any:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return fail if name == call else super().__getattribute__(name)

    for _ in range(2):
        with _fs.using(Full()), pytest.raises(WriteError, match="No space left"):
            store.trash.put(folder, title="A talk", reason="")
    assert os.listdir(store.trash.path_of(folder.sessions_path)) == []
    entry = store.trash.put(folder, title="A talk", reason="")
    assert entry.entry == "one~1"
    store.trash.restore(entry)
    assert ids_of(store) == ["one"]


@pytest.mark.parametrize("claimed", ["../../outside", "/tmp/outside", "", "..", "a/b", "\x1b[31m", 5, None])
def test_a_note_that_names_no_session_is_not_believed(store: WorkDirStore, claimed: object) -> None:
    """The trash may have come with a repository; the folder's own name brings the session back."""
    entry = store.trash.put(put(store, "one"), title="", reason="")
    (Path(entry.trash_path) / f"{entry.entry}.json").write_text(json.dumps({"session_id": claimed}))
    (found,) = store.trash.entries()
    assert found.session_id == "one"
    store.trash.restore(found)
    assert ids_of(store) == ["one"]


def test_a_session_that_is_named_like_a_delete_survives_in_the_trash(store: WorkDirStore) -> None:
    """The next delete takes nothing for its own that it did not begin."""
    entry = store.trash.put(put(store, "deleting~one"), title="", reason="")
    store.trash.delete(put(store, "two"))
    assert [found.session_id for found in store.trash.entries()] == [entry.session_id] == ["deleting~one"]


def test_a_trash_that_is_a_link_is_refused(store: WorkDirStore, tmp_path: Path) -> None:
    """What is thrown away does not leave the store."""
    folder = put(store, "one")
    outside = tmp_path / "outside"
    outside.mkdir()
    trash = Path(store.trash.path_of(str(sessions_of(store))))
    trash.parent.mkdir(exist_ok=True)
    trash.symlink_to(outside)
    for step in (lambda: store.trash.put(folder, title="", reason=""), lambda: store.trash.delete(folder)):
        with pytest.raises(WriteError):
            step()
    assert os.listdir(outside) == []
    assert ids_of(store) == ["one"]


def test_a_failed_delete_is_raised_and_finished_by_the_next(store: WorkDirStore) -> None:
    """The session is gone from every list meanwhile."""
    folder = put(store, "one")

    class Stuck(UnsyncedFs):
        def __init__(self) -> None:
            def unlink(*args: object, **kwargs: object) -> None:
                raise OSError(errno.EIO, "Input/output error")

            self.unlink = unlink

    with _fs.using(Stuck()), pytest.raises(WriteError) as caught:
        store.trash.delete(folder)
    assert caught.value.errno == errno.EIO
    assert ids_of(store) == []
    assert store.trash.entries() == []
    trash = Path(store.trash.path_of(str(sessions_of(store))))
    assert len(os.listdir(trash)) == 1
    store.trash.delete(put(store, "two"))
    assert os.listdir(trash) == []


def test_an_empty_session_is_discarded_and_one_with_content_is_not(store: WorkDirStore) -> None:
    """Looked at under the locks; one that is held is left alone."""
    assert not store.trash.discard_if_empty(put(store, "full"))
    empty = put(store, "empty", b"")
    other = SessionFolder("empty", str(sessions_of(store)))
    with other.owned():
        assert not store.trash.discard_if_empty(empty)
        with pytest.raises(SessionBusyError):
            store.trash.delete(empty)
    assert store.trash.discard_if_empty(empty)
    assert ids_of(store) == ["full"]
    with pytest.raises(SessionNotFoundError):
        store.trash.discard_if_empty(empty)


def test_an_empty_session_with_a_flat_file_beside_it_is_not_discarded(store: WorkDirStore) -> None:
    """The conversation is in that one."""
    empty = put(store, "one", b"")
    (sessions_of(store) / "one.jsonl").write_bytes(b'{"role":"user","content":"x"}\n')
    assert not store.trash.discard_if_empty(empty)
    assert ids_of(store) == ["one"]


def test_locks_are_free_after_every_step_that_failed(store: WorkDirStore) -> None:
    """The next one gets through."""
    folder = put(store, "one")

    class Stuck(UnsyncedFs):
        def __init__(self) -> None:
            def rename(*args: object, **kwargs: object) -> None:
                raise OSError(errno.EXDEV, "Invalid cross-device link")

            self.rename = rename

    for step in (lambda: store.trash.put(folder, title="", reason=""), lambda: store.trash.delete(folder)):
        with _fs.using(Stuck()), pytest.raises(WriteError):
            step()
        other = SessionFolder("one", str(sessions_of(store)))
        with other.owned(), other.step_lock:
            pass
        other.close()
    assert ids_of(store) == ["one"]
    assert store.trash.entries() == []
    assert store.trash.delete(folder)


async def test_sessions_made_through_a_link_are_found_by_the_real_path_and_the_other_way_round(
    tmp_path: Path, home: Path
) -> None:
    """Two spellings of one folder find the same sessions, also in Kimi CLI's own store."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    share = ShareLayout(tmp_path / "share")
    by_link = await Session.create(link, layout=share)
    by_path = await Session.create(real, layout=share)
    for spelling in (link, real):
        found = await Session.list(spelling, layout=share, include_empty=True)
        assert {session.id for session in found} == {by_link.id, by_path.id}
        assert await Session.find(spelling, by_link.id, layout=share) is not None


@pytest.mark.parametrize("moved", range(1, 7))
def test_a_move_of_flat_files_that_was_killed_is_finished_when_the_session_is_found(
    store: WorkDirStore, moved: int
) -> None:
    """Wherever it stopped: what is still flat is seen without looking through the whole folder."""
    (sessions_of(store)).mkdir(parents=True, exist_ok=True)
    names = ["one.jsonl", "one_1.jsonl", "one_2.jsonl", "one_10.jsonl", "one_sub_1.jsonl", "one_sub_2.jsonl"]
    for name in names:
        (sessions_of(store) / name).write_bytes(b'{"role":"user","content":"x"}\n')

    class Killed(BaseException):
        pass

    class KilledAfter(UnsyncedFs):
        def __init__(self) -> None:
            self.left = moved

            def unlink(*args: Any, **kwargs: Any) -> None:
                os.unlink(*args, **kwargs)
                self.left -= 1
                if not self.left:
                    raise Killed

            self.unlink = unlink

    with _fs.using(KilledAfter()), pytest.raises(Killed):
        store.locate("one")
    found = store.locate_at_once("one") or store.locate("one")
    assert found is not None
    assert sorted(path.name for path in sessions_of(store).iterdir()) == ["one"]
    assert len(list((sessions_of(store) / "one").glob("context*.jsonl"))) == 6
