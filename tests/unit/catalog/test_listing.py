"""A list with a catalog is the list without one, whatever happened to the sessions or to the catalog."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_sessions import Session, SessionList, _facts, _fs, _store
from kimi_sessions._facts import Facts
from kimi_sessions.catalog import listing
from kimi_sessions.cli._where import in_line
from kimi_sessions.wire import TurnBegin, scan

from .conftest import Store

Settle = Callable[[], None]


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the catalog be used for small stores too."""
    monkeypatch.setattr(_store, "_MANY", 2)


def shown(sessions: SessionList) -> list[Any]:
    """Return all that a list says."""
    return [
        (
            session.id,
            session.title,
            session.updated_at,
            session.empty,
            session.archived,
            session.tags,
            session._found.state,
            session._found.extra,
            list(session._found.problems),
        )
        for session in sessions
    ]


@contextlib.contextmanager
def without_catalog() -> Iterator[None]:
    """Let every session be read."""
    before = _store._MANY
    _store._MANY = 1 << 30
    try:
        yield
    finally:
        _store._MANY = before


async def listed(work_dir: Path, **how: Any) -> SessionList:
    """List where no loop runs: what is kept for the next time is kept before the answer is given."""
    return await asyncio.to_thread(in_line, Session.list(work_dir, **how))


async def both(store: Store, **how: Any) -> tuple[list[Any], list[Any]]:
    """List with and without the catalog."""
    with_it = shown(await listed(store.work_dir, **how))
    with without_catalog():
        return with_it, shown(await listed(store.work_dir, **how))


async def agree(store: Store) -> list[Any]:
    """Require the same answer from both, for each way to ask, and return it."""
    for how in ({"limit": 2}, {"include_empty": True, "limit": 3}, {"include_empty": True}, {}):
        with_it, without = await both(store, **how)
        assert with_it == without
    return without


async def test_a_second_list_reads_no_session(store: Store, settle: Settle) -> None:
    """What did not change is not opened again; nor is what a client up to 0.58 left, a context alone."""
    store.fill(5)
    alone = store.put("alone")
    (alone / "wire.jsonl").unlink()
    (alone / "context.jsonl").write_bytes(b'{"role":"user","content":"x"}\n')
    settle()
    first = shown(await listed(store.work_dir))

    class Closed(_fs.OsFileSystem):
        """A disk on which logs can't be opened."""

        def open(self, path: Any, *args: Any, **more: Any) -> int:
            """Refuse logs."""
            assert not str(path).endswith(".jsonl")
            return os.open(path, *args, **more)

    with _fs.using(Closed()):
        assert shown(await listed(store.work_dir)) == first
        assert shown(await listed(store.work_dir, limit=2)) == first[:2]


async def test_an_answer_does_not_wait_for_the_catalog(
    store: Store, settle: Settle, catalog_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept afterwards, in the loop's own threads, which a program waits for at its end."""
    store.fill(5)
    settle()
    may_keep = threading.Event()
    real = listing._Scan.keep

    def wait_and_keep(scan: Any, path: str) -> None:
        assert may_keep.wait(30)
        real(scan, path)

    monkeypatch.setattr(listing._Scan, "keep", wait_and_keep)
    first, again = [shown(await Session.list(store.work_dir)) for _ in range(2)]
    assert first == again
    assert not os.path.exists(catalog_file)
    may_keep.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    with sqlite3.connect(catalog_file) as connection:
        assert connection.execute("SELECT count(*) FROM listed").fetchone() == (5,)
    connection.close()


async def test_the_catalog_is_private(store: Store, catalog_file: Path) -> None:
    """Nobody else can read what is in it."""
    store.fill(5)
    await listed(store.work_dir)
    assert stat.S_IMODE(os.stat(catalog_file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(catalog_file.parent).st_mode) == 0o700


async def test_few_sessions_need_no_catalog(
    store: Store, catalog_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small store is listed without SQLite."""
    monkeypatch.setattr(_store, "_MANY", 200)
    store.fill(5)
    assert len(await listed(store.work_dir)) == 5
    assert not os.path.exists(catalog_file)


async def test_a_record_appended_by_anybody_moves_its_session_to_the_top(
    store: Store, settle: Settle
) -> None:
    """The catalog notices a log that grew."""
    store.fill(6)
    settle()
    await agree(store)
    store.append("s0001", store.prompt("again", 1_700_000_500.0))
    assert (await agree(store))[0][0] == "s0001"


async def test_an_edit_in_place_of_the_same_size_is_noticed(store: Store, settle: Settle) -> None:
    """A title written over the old one shows at once, also when the file's times were set back."""
    store.fill(5)
    state = store.folder / "s0002" / "state.json"
    state.write_text('{"custom_title": "Old name"}')
    settle()
    await agree(store)
    times = state.stat()
    with state.open("r+b") as file:
        file.write(b'{"custom_title": "New name"}')
    os.utime(state, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert {row[1] for row in await agree(store)} >= {"New name"}


async def test_two_edits_within_a_moment_are_both_noticed(store: Store, settle: Settle) -> None:
    """What was changed just now is read again, since a second change may leave the same marks."""
    store.fill(5)
    settle()
    await agree(store)
    state = store.folder / "s0002" / "state.json"
    for number in range(20):
        state.write_text(json.dumps({"custom_title": f"Name {number:02d}"}))
        assert f"Name {number:02d}" in {row[1] for row in shown(await listed(store.work_dir))}


async def test_an_empty_session_that_is_tagged_shows_up(store: Store, settle: Settle) -> None:
    """Sessions without content are looked at each time: anything may fill them."""
    store.fill(4)
    store.put("quiet")
    settle()
    assert "quiet" not in {row[0] for row in await agree(store)}
    (store.folder / "quiet" / "session.json").write_text('{"tags": ["keep"]}')
    assert "quiet" in {row[0] for row in await agree(store)}


async def test_an_upload_that_goes_makes_its_session_empty_again(store: Store, settle: Settle) -> None:
    """What fills a session from a folder below it is not remembered."""
    store.fill(4)
    uploads = store.put("quiet") / "uploads"
    uploads.mkdir()
    (uploads / "a.png").write_bytes(b"x")
    settle()
    assert "quiet" in {row[0] for row in await agree(store)}
    (uploads / "a.png").unlink()
    assert "quiet" not in {row[0] for row in await agree(store)}


async def test_a_context_that_is_emptied_in_place_makes_its_session_empty(
    store: Store, settle: Settle
) -> None:
    """A session without a wire log is known by its context."""
    store.fill(4)
    place = store.folder / "old"
    place.mkdir()
    (place / "context.jsonl").write_text('{"role":"user","content":"hi"}\n')
    settle()
    assert "old" in {row[0] for row in await agree(store)}
    (place / "context.jsonl").write_text("")
    assert "old" not in {row[0] for row in await agree(store)}


async def test_a_record_from_the_future_counts_once_its_time_has_come(
    store: Store, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time that depends on the clock is not remembered."""
    store.fill(4)
    now = time.time()
    store.append("s0000", store.prompt("from tomorrow", now + 3 * 86_400))
    settle()
    assert (await agree(store))[0][0] == "s0003"
    monkeypatch.setattr(time, "time", lambda: now + 3 * 86_400)
    assert (await agree(store))[0][0] == "s0000"


async def test_metadata_of_an_old_client_beside_a_session_is_noticed(store: Store, settle: Settle) -> None:
    """A metadata.json that appears gives its title."""
    store.fill(4)
    settle()
    await agree(store)
    (store.folder / "s0001" / "metadata.json").write_text('{"title": "From before", "archived": true}')
    assert "From before" in {row[1] for row in await agree(store)}


def ruin(path: Path, how: str) -> Callable[[], None]:
    """Do something to the catalog, and return what undoes it."""
    if how == "missing":
        path.unlink()
    elif how == "garbage":
        path.write_bytes(random.Random(1).randbytes(20_000))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    elif how == "a hole in the middle":
        data = path.read_bytes()
        path.write_bytes(data[:9000] + bytes(21_000) + data[30_000:])
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "somebody else's":
        path.unlink()
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE listed (a)")
            other.execute("PRAGMA user_version = 1")
    elif how == "newer":
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA user_version = 99")
    elif how == "nonsense in the rows":
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE listed SET problems = '{', title = 5, state = 'x'")
    elif how.startswith("UPDATE"):
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute(how)
    elif how == "a schema that is no text":
        text = bytearray(path.read_bytes())
        at = text.index(b"CREATE TABLE listed")
        text[at + 20] = 0xFF
        path.write_bytes(text)
    elif how == "locked":
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        return other.close
    return lambda: None


@pytest.mark.parametrize(
    "how",
    [
        "missing",
        "garbage",
        "empty",
        "half",
        "a hole in the middle",
        "a folder",
        "somebody else's",
        "newer",
        "nonsense in the rows",
        "UPDATE listed SET marks = substr(marks, 2)",
        "UPDATE listed SET marks = 5",
        "UPDATE listed SET title = 5",
        "UPDATE listed SET title = title || '!'",
        "UPDATE listed SET title = CAST(x'ff' AS TEXT)",
        "UPDATE listed SET title = CAST(title AS BLOB)",
        "UPDATE listed SET updated_at = updated_at + 1",
        "UPDATE listed SET state = 'text'",
        "UPDATE listed SET state = x'7b7d'",
        "UPDATE listed SET extra = 7",
        "UPDATE listed SET log = '/'",
        "a schema that is no text",
        "locked",
    ],
)
async def test_a_ruined_catalog_changes_no_answer(
    store: Store, settle: Settle, catalog_file: Path, how: str
) -> None:
    """Each way to lose the catalog gives the same list, then and afterwards."""
    store.fill(30)
    settle()
    await agree(store)
    undo = ruin(catalog_file, how)
    try:
        await agree(store)
        store.append("s0002", store.prompt("more", 1_700_000_900.0))
        assert (await agree(store))[0][0] == "s0002"
    finally:
        undo()
    if how.startswith("UPDATE"):
        settle()
        await agree(store)
        with contextlib.closing(sqlite3.connect(catalog_file)) as anew:
            assert anew.execute("SELECT count(*) FROM listed WHERE typeof(title) = 'text'").fetchone() == (
                30,
            )


async def test_a_folder_with_a_bad_name_is_told_once_beside_a_ruined_catalog(
    store: Store, settle: Settle, catalog_file: Path
) -> None:
    """Also where the catalog turns out to be no use after the names were looked at."""
    store.fill(5)
    (store.folder / "no:id").mkdir()
    settle()
    first = await listed(store.work_dir, limit=2)
    with contextlib.closing(sqlite3.connect(catalog_file)) as other, other:
        other.execute("UPDATE listed SET title = title || '!'")
    again = await listed(store.work_dir, limit=2)
    assert [problem.kind for problem in first.problems] == ["bad-name"]
    assert again.problems == first.problems


async def test_bytes_of_the_catalog_that_went_bad_change_no_answer(
    store: Store, settle: Settle, catalog_file: Path
) -> None:
    """Whatever bit of it flips: no error, and nothing else than the sessions say."""
    store.fill(8)
    settle()
    truth = await agree(store)
    with contextlib.closing(sqlite3.connect(catalog_file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    good = catalog_file.read_bytes()
    filled = [at for at, byte in enumerate(good) if byte]
    rand = random.Random(7)
    for _ in range(200):
        bad = bytearray(good)
        at = rand.choice(filled)
        bad[at] ^= 1 << rand.randrange(8)
        for left in catalog_file.parent.iterdir():
            left.unlink()
        catalog_file.write_bytes(bad)
        assert shown(await listed(store.work_dir)) == truth, at


async def test_a_catalog_that_gives_a_session_twice_doesnt_fail_a_short_list(
    store: Store, settle: Settle, catalog_file: Path
) -> None:
    """Pages of it that were mixed up give the same row again; a list has each session once."""
    store.fill(8)
    settle()
    await agree(store)
    with contextlib.closing(sqlite3.connect(catalog_file)) as connection, connection:
        connection.execute("ALTER TABLE listed RENAME TO once")
        connection.execute("CREATE TABLE listed AS SELECT * FROM once UNION ALL SELECT * FROM once")
    for how in ({"limit": 3}, {}):
        with_it, without = await both(store, **how)
        assert with_it == without


async def test_the_first_record_of_a_renamed_session_is_seen_by_a_short_list(
    store: Store, settle: Settle
) -> None:
    """A session with a title and no log yet moves to the top with its first record, and so it does in a short list."""
    for number in range(5):
        session = await Session.create(store.work_dir, f"s{number}")
        await session.rename(f"Number {number}")
        await asyncio.sleep(0.01)
    settle()
    assert [row[0] for row in await agree(store)] == ["s4", "s3", "s2", "s1", "s0"]
    session = await Session.open(store.work_dir, "s0")
    await session.wire_file.append_message(TurnBegin(user_input="Hello"))
    with_it, without = await both(store, limit=2)
    assert with_it == without
    assert with_it[0][0] == "s0"


@pytest.mark.parametrize("log", ["", "a log whose times say nothing\n"])
async def test_a_message_in_the_context_alone_is_seen_by_a_short_list(
    store: Store, settle: Settle, log: str
) -> None:
    """Where the log tells no time the context does, and what moves a session moves it in a short list, too."""
    for number in range(5):
        place = store.put(f"s{number}", log.encode())
        (place / "state.json").write_text(json.dumps({"custom_title": f"Number {number}"}))
        os.utime(place / "context.jsonl", (1_700_000_000 + number,) * 2)
    settle()
    await agree(store)
    with (store.folder / "s0" / "context.jsonl").open("a") as file:
        file.write('{"role": "user", "content": "Hello"}\n')
    with_it, without = await both(store, limit=2)
    assert with_it == without
    assert with_it[0][0] == "s0"


async def test_a_rename_between_an_answer_and_its_keeping_is_seen_under_a_clock_that_went_back(
    store: Store, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of a session is what was read of it, whatever time the file system says a change after that has."""
    store.fill(5)
    monkeypatch.setattr(time, "time_ns", lambda: 10**10 + int(time.time() * 1e9))
    fd = _fs.open_folder(store.folder)
    try:
        names = sorted(path.name for path in store.folder.iterdir())
        _, keep = listing.list_facts(fd, str(store.folder), names, bool, now=time.time())
        (store.folder / "s0001" / "state.json").write_text('{"custom_title": "Renamed"}')
        keep()
    finally:
        os.close(fd)
    assert "Renamed" in {row[1] for row in await agree(store)}


async def test_a_session_deleted_between_an_answer_and_its_keeping_stays_forgotten(
    store: Store, settle: Settle, catalog_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted leaves no trace in the catalog, also where a list has read it just before."""
    monkeypatch.setattr(_facts, "_LONG_BYTES", 10)
    store.fill(5)
    padding = store.answer("x" * (_facts._WHOLE_BYTES + 1))
    store.put("s0001", store.prompt("a secret", 1_700_000_500.0), padding)
    settle()
    fd = _fs.open_folder(store.folder)
    try:
        names = sorted(path.name for path in store.folder.iterdir())
        _, keep = listing.list_facts(fd, str(store.folder), names, bool, now=time.time())
        session = await Session.open(store.work_dir, "s0001")
        await session.delete()
        keep()
    finally:
        os.close(fd)
    assert b"prompt number 2" in catalog_file.read_bytes()
    assert b"a secret" not in catalog_file.read_bytes()


async def test_a_cache_folder_that_cant_be_made_changes_no_answer(store: Store, home: Path) -> None:
    """Where nothing can be kept every session is read."""
    store.fill(5)
    (home / "kimi-sessions").mkdir(exist_ok=True)
    (home / "kimi-sessions" / "cache").write_text("a file is in the way")
    assert len(await agree(store)) == 5


def mutate(store: Store, rand: random.Random, number: int) -> None:
    """Do one thing that some writer might do to some session."""
    names = sorted(path.name for path in store.folder.iterdir())
    name = rand.choice(names)
    place = store.folder / name
    at = 1_700_000_000.0 + rand.randrange(100_000)
    file = place / rand.choice(["state.json", "session.json", "metadata.json", "context.jsonl", "wire.jsonl"])
    deed = rand.randrange(12)
    if deed == 0:
        store.append(name, store.prompt(f"prompt {number}", at)) if place.exists() else None
    elif deed == 1:
        (place / "state.json").write_text(
            json.dumps(
                {"custom_title": f"T{number}", "wire_mtime": rand.choice([None, at]), "archived": True}
            )
        )
    elif deed == 2:
        own = {
            "created_at": at,
            "parent": rand.choice([None, {"session_id": "x"}]),
            "tags": rand.choice([[], ["t"]]),
        }
        temp = place / ".tmp"
        temp.write_text(json.dumps(own))
        temp.replace(place / "session.json")
    elif deed == 3 and file.exists() and file.is_file():
        data = file.read_bytes()
        file.write_bytes(data[: rand.randint(0, len(data))])
    elif deed == 4:
        file.unlink(missing_ok=True)
    elif deed == 5:
        (place / "metadata.json").write_text(json.dumps({"title": f"M{number}", "wire_mtime": at}))
    elif deed == 6:
        store.put(f"n{number}", *([store.prompt(f"new {number}", at)] * rand.randrange(2)))
    elif deed == 7 and len(names) > 4:
        shutil.rmtree(place)
    elif deed == 8:
        (place / "context_1.jsonl").write_text(rand.choice(["", '{"role":"user","content":"x"}\n']))
    elif deed == 9:
        (place / "context.jsonl").write_text(rand.choice(["", '{"role":"user","content":"x"}\n', "{"]))
    elif deed == 10:
        os.utime(place / "context.jsonl", (at, at)) if (place / "context.jsonl").exists() else None
    elif deed == 11:
        other = store.folder / rand.choice(names)
        if other != place and (other / "wire.jsonl").exists():
            (place / "wire.jsonl").unlink(missing_ok=True)
            shutil.copy2(other / "wire.jsonl", place / "wire.jsonl")


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
async def test_whatever_writers_do_the_list_is_the_same_with_and_without_a_catalog(
    store: Store, settle: Settle, seed: int
) -> None:
    """After every change, by every kind of writer, both lists agree; also where the catalog had time to settle."""
    rand = random.Random(seed)
    shutil.rmtree(store.folder, ignore_errors=True)
    store.fill(6)
    for number in range(16):
        mutate(store, rand, number)
        if rand.random() < 0.25:
            settle()
        for how in ({}, {"include_empty": True}):
            with_it, without = await both(store, **how)
            assert with_it == without


async def test_the_librarys_own_writes_show_at_once(store: Store, settle: Settle) -> None:
    """Rename, tag, archive, append, delete: the next list has it."""
    store.fill(4)
    settle()
    await agree(store)
    session = await Session.open(store.work_dir, "s0001")
    await session.rename("A name")
    assert "A name" in {row[1] for row in await agree(store)}
    settle()
    await session.archive()
    assert any(row[4] for row in await agree(store))
    await session.tag("x")
    assert ("x",) in {row[5] for row in await agree(store)}
    await session.delete()
    assert "s0001" not in {row[0] for row in await agree(store)}


def test_facts_hold_their_documents_as_bytes_until_asked() -> None:
    """A long list does not decode what nobody looks at."""
    facts = Facts("x")
    facts.hold(b'{"archived": true}', b"")
    assert facts.documents == (b'{"archived": true}', b"")
    assert facts.state == {"archived": True}
    assert facts.extra == {}


async def test_the_first_prompt_of_a_long_log_is_looked_for_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt far into a log is known afterwards, also when the log grew; not when it is another log."""
    for name, size in (("_LONG_BYTES", 1), ("_WHOLE_BYTES", 16), ("HEAD_BYTES", 64)):
        monkeypatch.setattr(_facts, name, size)
    looked: list[str] = []

    def first_prompt(*about: Any) -> str:
        looked.append("x")
        return scan.first_prompt(*about)

    monkeypatch.setattr(listing, "first_prompt", first_prompt)

    async def title() -> str:
        return (await Session.open(store.work_dir, "one")).title

    store.put("one", store.answer("no prompt yet"))
    assert await title() == "Untitled"
    store.append("one", store.prompt("late"))
    assert await title() == "late"
    count = len(looked)
    assert count
    store.append("one", store.prompt("later"))
    assert await title() == "late"
    assert len(looked) == count
    store.put("one", store.prompt("another log"), store.prompt("and more of it, so that it is no shorter"))
    assert await title() == "another log"
    store.put("one", store.prompt("x"))
    assert await title() == "x"
