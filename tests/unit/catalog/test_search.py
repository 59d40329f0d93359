"""Search finds what was said, in every script, and says the same with and without a catalog."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.seam import FailingFs, failing_calls

from kimi_sessions import Session, ShareLayout
from kimi_sessions._fs import OsFileSystem, using
from kimi_sessions.catalog import Hit, search, searching, session_stats

from .conftest import Store


async def found(store: Store, query: str, **how: object) -> list[Hit]:
    """Search the project, and require the same answer of a catalog made for the question."""
    result = await search(query, store.work_dir, **how)  # type: ignore[arg-type]
    again = await search(query, store.work_dir, **how)  # type: ignore[arg-type]
    assert again == result
    return result.hits


def short(hits: list[Hit]) -> list[tuple[str, str, int | None]]:
    """Return where each hit is."""
    return [(hit.session.id, hit.role, hit.turn_index) for hit in hits]


@pytest.fixture
def talk(store: Store) -> Store:
    """Give a store with one conversation."""
    function = {"name": "Shell", "arguments": '{"command": "cargo build --release"}'}
    store.put(
        "one",
        store.prompt("Fix the parser, please", 1_700_000_000.0),
        store.answer("The parser is in src/parse_tree.rs; I'll look at it.", 1_700_000_001.0),
        store.line("ContentPart", {"type": "think", "think": "secretthought"}, 1_700_000_002.0),
        store.line("ToolCall", {"id": "1", "function": function}, 1_700_000_003.0),
        store.line(
            "ToolResult", {"tool_call_id": "1", "return_value": {"output": "printedbytool"}}, 1_700_000_004.0
        ),
        store.prompt("检查数据库连接和日志 Größe", 1_700_000_005.0),
        store.line("SteerInput", {"user_input": [{"type": "text", "text": "hurry up"}]}, 1_700_000_006.0),
    )
    return store


@pytest.mark.parametrize(
    "query,hits",
    [
        ("parser", [("one", "assistant", 0), ("one", "user", 0)]),
        ("PARSER please", [("one", "user", 0)]),
        ('"the parser"', [("one", "assistant", 0), ("one", "user", 0)]),
        ('"parser the"', []),
        ("pars*", [("one", "assistant", 0), ("one", "user", 0)]),
        ("pars", []),
        ("parse_tree", [("one", "assistant", 0)]),
        ("parse_tree.rs", [("one", "assistant", 0)]),
        ("cargo", [("one", "tool", 0)]),
        ("Shell", [("one", "tool", 0)]),
        ("hurry", [("one", "user", 1)]),
        ("数据库", [("one", "user", 1)]),
        ("数据库连接", [("one", "user", 1)]),
        ("库", [("one", "user", 1)]),
        ("志", [("one", "user", 1)]),
        ("数据连接", []),
        ("连接 日志", [("one", "user", 1)]),
        ("grosse", []),
        ("große", [("one", "user", 1)]),
        ("große OR", []),
        ("GRÖßE", [("one", "user", 1)]),
        ("secretthought", []),
        ("printedbytool", []),
        ('NOT "unbalanced', []),
        ("parser*)", [("one", "assistant", 0), ("one", "user", 0)]),
    ],
)
async def test_words_phrases_beginnings_and_runs_are_found(
    talk: Store, query: str, hits: list[tuple[str, str, int]]
) -> None:
    """A query means what a person would say it means, and no text of it is taken for syntax."""
    assert short(await found(talk, query)) == hits


async def test_a_role_narrows_a_search(talk: Store) -> None:
    """Only messages of the kind that was asked for."""
    assert short(await found(talk, "parser", role="user")) == [("one", "user", 0)]


@pytest.mark.parametrize("query", ["", "  ", "!?", '""'])
async def test_a_query_without_a_word_is_refused(store: Store, query: str) -> None:
    """There is nothing to look for."""
    with pytest.raises(ValueError, match="no word"):
        await search(query, store.work_dir)


async def test_a_hit_says_where_it_stands_and_shows_the_text_around_it(store: Store) -> None:
    """The offset is the record's, and the snippet is safe to show and not long."""
    store.put("one", store.prompt("x " * 300 + "needle \x1b[31mred\x1b[0m " + "y " * 300))
    (hit,) = await found(store, "needle")
    assert "needle" in hit.snippet
    assert "\x1b" not in hit.snippet
    assert len(hit.snippet) < 200
    data = (store.folder / "one" / hit.file).read_bytes()
    assert data[hit.offset :].startswith(b'{"timestamp"')
    assert hit.time == 1_700_000_000.0


async def test_the_newest_come_first_up_to_the_limit(store: Store) -> None:
    """A limit says that there is more."""
    for number in range(6):
        store.put(f"s{number}", store.prompt("same word", 1_700_000_000.0 + (number * 7) % 6))
    result = await search("word", store.work_dir, limit=3)
    times = [hit.time for hit in result.hits]
    assert times == sorted(times, key=lambda at: -(at or 0))
    assert len(times) == 3
    assert result.more
    assert not (await search("word", store.work_dir, limit=6)).more


async def test_what_is_appended_is_found_at_once(talk: Store) -> None:
    """Each search reads on; a torn line is passed over, and what follows it is found."""
    assert not await found(talk, "quokka")
    talk.append("one", talk.prompt("a quokka"), b'{"timestamp": 17')
    assert len(await found(talk, "quokka")) == 1
    talk.append("one", b"\n", talk.prompt("another quokka", 1_700_000_050.0)[:-1])
    assert len(await found(talk, "quokka")) == 2


@pytest.mark.parametrize("at", [0.0, -5.0, float("nan"), float("inf"), 0.0004])
async def test_sessions_without_times_are_found_each(store: Store, at: float) -> None:
    """Of a clock that stood still, or was broken: no two messages are taken for one."""
    for name in ("one", "two", "three"):
        store.put(name, store.prompt(f"a quokka in {name}", at), store.prompt(f"and of {name} a quokka", at))
    assert len(await found(store, "quokka")) == 6


async def test_a_record_in_front_of_a_torn_one_is_found_before_the_line_has_its_end(talk: Store) -> None:
    """Once, whatever the line becomes; what was a record only while the line was cut is not found any more."""
    talk.append("one", talk.prompt("a quokka").rstrip() + b'{"torn": ' + talk.prompt("a wombat").rstrip())
    assert (len(await found(talk, "quokka")), len(await found(talk, "wombat"))) == (1, 1)
    talk.append("one", b', "more": {"timestamp": ')
    assert (len(await found(talk, "quokka")), len(await found(talk, "wombat"))) == (1, 1)
    talk.append("one", b"\n", talk.prompt("another quokka", 1_700_000_050.0))
    assert (len(await found(talk, "quokka")), len(await found(talk, "wombat"))) == (2, 1)
    talk.append("one", b'{"torn": ' + talk.prompt("an echidna").rstrip())
    assert len(await found(talk, "echidna")) == 1
    talk.append("one", b"}\n")
    assert not await found(talk, "echidna")


async def test_what_is_no_longer_said_is_no_longer_found(talk: Store) -> None:
    """A log that was replaced is read anew."""
    assert await found(talk, "parser")
    talk.put("one", talk.prompt("something else"))
    assert not await found(talk, "parser")
    assert await found(talk, "something")


async def test_a_title_is_found_until_it_changes(talk: Store) -> None:
    """Titles that people give are searched."""
    session = await Session.open(talk.work_dir, "one")
    await session.rename("Wombat plans")
    assert short(await found(talk, "wombat")) == [("one", "title", None)]
    await session.rename("Other plans")
    assert not await found(talk, "wombat")


async def test_a_forks_copy_of_a_message_is_given_once(talk: Store) -> None:
    """Records that two sessions share are one hit; what the fork says itself is its own."""
    shutil.copytree(talk.folder / "one", talk.folder / "two")
    talk.append("two", talk.answer("the fork speaks", 1_700_000_090.0))
    assert short(await found(talk, "cargo")) == [("one", "tool", 0)]
    assert short(await found(talk, "fork")) == [("two", "assistant", 1)]


async def test_a_session_of_an_old_client_is_found_by_its_context(store: Store) -> None:
    """Without a wire log the messages of the context are searched, a flat file's too; what a client put in is not."""
    store.folder.mkdir(parents=True)
    (store.folder / "old.jsonl").write_text(
        '{"role":"user","content":"an ancient question"}\n'
        '{"role":"user","content":"<system>CHECKPOINT 1</system>"}\n'
        '{"role":"assistant","content":[{"type":"text","text":"an ancient answer"}]}\n'
    )
    assert short(await found(store, "ancient")) == [("old", "assistant", 0), ("old", "user", 0)]
    assert not await found(store, "checkpoint")


@pytest.mark.parametrize("call", ["open", "pread", "fstat", "scandir", "stat"])
async def test_what_could_not_be_read_is_found_by_the_next_search(
    store: Store, catalog_file: Path, call: str
) -> None:
    """A failing read costs hits of one search: what was read stays, once, and the rest is not taken for known."""
    filler = [store.line("TurnEnd", {"pad": "x" * 1000}) for _ in range(300)]
    store.put("long", store.prompt("a needle here"), *filler, store.prompt("a needle there"), *filler)
    store.put("short", store.prompt("a needle"))
    for fs in failing_calls(names=frozenset({call})):
        with using(fs):
            await search("needle", store.work_dir)
        hits = await found(store, "needle")
        assert len(hits) == 3, fs.nth
        connection = sqlite3.connect(catalog_file)
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (3,)
        connection.close()
        catalog_file.unlink()


async def test_a_folder_that_cannot_be_read_for_now_keeps_what_is_known_of_it(
    talk: Store, catalog_file: Path
) -> None:
    """It is not taken for one whose sessions were deleted."""
    assert await found(talk, "parser")
    with using(FailingFs(1, code=errno.EACCES, names=frozenset({"scandir"}))):
        await search("parser", talk.work_dir)
    connection = sqlite3.connect(catalog_file)
    assert connection.execute("SELECT count(*) FROM message").fetchone() > (0,)
    connection.close()


async def test_nothing_of_a_deleted_session_stays_in_the_catalog(talk: Store, catalog_file: Path) -> None:
    """Its rows go, and so do its words, from the file and from what lies beside it."""
    talk.put("two", talk.prompt("zyzzyvas everywhere", 1_700_000_000.0))
    assert await found(talk, "zyzzyvas")
    session = await Session.open(talk.work_dir, "two")
    await session.delete()
    for path in catalog_file.parent.iterdir():
        assert b"zyzzyva" not in path.read_bytes()
        assert b"everywhere" not in path.read_bytes()
    assert await found(talk, "parser")


async def test_a_session_that_was_removed_by_others_is_forgotten(talk: Store, catalog_file: Path) -> None:
    """The next search takes out what is gone."""
    talk.put("two", talk.prompt("zyzzyvas everywhere", 1_700_000_000.0))
    assert await found(talk, "zyzzyvas")
    shutil.rmtree(talk.folder / "two")
    assert not await found(talk, "zyzzyvas")
    assert b"zyzzyva" not in catalog_file.read_bytes()
    with sqlite3.connect(catalog_file) as connection:
        assert connection.execute("SELECT count(*) FROM log WHERE name = 'two'").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("how", ["garbage", "in the way"])
async def test_a_catalog_that_cant_be_had_changes_no_answer(
    talk: Store, catalog_file: Path, how: str
) -> None:
    """The same hits, in the same order."""
    for name in ("b", "a", "c"):
        talk.put(name, talk.prompt(f"the parser of {name}", 1_700_000_000.0))
    before = await found(talk, "parser")
    if how == "garbage":
        catalog_file.write_bytes(b"garbage " * 4000)
    else:
        shutil.rmtree(catalog_file.parent)
        catalog_file.parent.write_text("in the way")
    assert await found(talk, "parser") == before


async def test_every_known_work_dir_is_searched(talk: Store, tmp_path: Path, home: Path) -> None:
    """Without a work dir all known ones are, and one work dir's search gives nothing of another's."""
    other = tmp_path / "other"
    other.mkdir()
    session = await Session.create(other)
    wire = session.path / "wire.jsonl"
    wire.write_bytes(talk.prompt("a parser elsewhere", 1_700_000_000.5))
    await (await Session.create(talk.work_dir)).delete()
    everywhere = (await search("parser")).hits
    assert {hit.session.id for hit in everywhere} == {"one", session.id}
    assert {hit.session.id for hit in (await search("parser", other)).hits} == {session.id}


async def test_a_share_of_kimi_clis_is_searched(corpus: object, home: Path) -> None:
    """What a released client wrote is found by its words."""
    share = ShareLayout(corpus("1.52.0"))  # type: ignore[operator]
    hits = (await search('"red square"', layout=share)).hits
    assert [hit.role for hit in hits] == ["assistant"]


async def test_archived_sessions_are_searched_unless_told_otherwise(talk: Store) -> None:
    """Search is for finding what was put away."""
    await (await Session.open(talk.work_dir, "one")).archive()
    assert await found(talk, "cargo")
    assert not await found(talk, "cargo", include_archived=False)


async def test_a_link_among_the_sessions_is_not_followed(talk: Store, tmp_path: Path) -> None:
    """A log that is a link is not read."""
    (tmp_path / "elsewhere").write_bytes(talk.prompt("quokka"))
    talk.put("two", talk.prompt("x"))
    os.unlink(talk.folder / "two" / "wire.jsonl")
    os.symlink(tmp_path / "elsewhere", talk.folder / "two" / "wire.jsonl")
    assert not await found(talk, "quokka")


async def test_inode_numbers_that_need_all_64_bits_are_no_hindrance(talk: Store, catalog_file: Path) -> None:
    """Some network and FUSE file systems give such ones: the search is answered, and what is kept of it believed."""

    def far(found: os.stat_result) -> os.stat_result:
        times = {
            name: getattr(found, name) for name in ("st_mtime", "st_ctime", "st_mtime_ns", "st_ctime_ns")
        }
        return os.stat_result((found.st_mode, found.st_ino | 1 << 63, *found[2:10]), times)

    class FarAway(OsFileSystem):
        @staticmethod
        def stat(*args: Any, **kwargs: Any) -> os.stat_result:
            return far(os.stat(*args, **kwargs))

        @staticmethod
        def fstat(fd: int) -> os.stat_result:
            return far(os.fstat(fd))

    with using(FarAway()):
        assert short(await found(talk, "cargo")) == [("one", "tool", 0)]
        talk.append("one", talk.prompt("quokka", 1_700_000_009.0))
        assert short(await found(talk, "quokka")) == [("one", "user", 2)]
        session = await Session.open(talk.work_dir, "one")
        assert (await session_stats(session)).turns == 3
    with sqlite3.connect(catalog_file) as connection:
        assert {row[0] for row in connection.execute("SELECT count(*) FROM log")} == {2}
        assert all(ino < 0 for (ino,) in connection.execute("SELECT ino FROM log"))
    connection.close()


async def test_a_log_of_one_short_record_without_a_header_is_searched(store: Store) -> None:
    """Clients up to 0.84 wrote no header; what is in the wire log is found there, not in the context."""
    place = store.put("old")
    (place / "wire.jsonl").write_bytes(store.prompt("quokka"))
    (place / "context.jsonl").write_text('{"role": "_system_prompt", "content": "wombat"}\n')
    assert short(await found(store, "quokka")) == [("old", "user", 0)]


def test_the_door_gives_the_function() -> None:
    """``search`` is the function, also after its room was loaded."""
    assert search is searching.search
    assert callable(search)
