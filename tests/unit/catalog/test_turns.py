"""The turns of a long log from the catalog are those of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_sessions import Session
from kimi_sessions.catalog import turns as catalog_turns
from kimi_sessions.wire.turns import read_turns

from .conftest import Store


@pytest.fixture(autouse=True)
def short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the catalog be used for short logs too."""
    monkeypatch.setattr(catalog_turns, "_LONG_BYTES", 1)


async def agree(store: Store) -> int:
    """Require the same turns with and without the catalog, twice, and return how many."""
    session = await Session.open(store.work_dir, "one")
    plain = read_turns(store.folder / "one" / "wire.jsonl")
    assert await session.turns() == plain
    assert await session.turns() == plain
    return len(plain)


async def test_turns_grow_with_their_log(store: Store) -> None:
    """Each append shows, a turn that ends late is ended, and text that SQLite has no type for is kept."""
    store.put("one", store.prompt("a"), store.line("TurnEnd", {}))
    assert await agree(store) == 1
    store.append("one", store.prompt("b \ud800 c"))
    assert await agree(store) == 2
    store.append("one", store.line("TurnEnd", {}, 1_700_000_009.0))
    assert await agree(store) == 2
    store.append("one", store.prompt("torn")[:30])
    assert await agree(store) == 2
    store.append("one", b"\n", store.prompt("c"), store.prompt("no newline")[:-1])
    assert await agree(store) == 4


async def test_a_log_that_was_replaced_or_cut_is_read_anew(store: Store) -> None:
    """What is known of another log is not believed."""
    store.put("one", store.prompt("a"), store.prompt("b"))
    assert await agree(store) == 2
    store.put("one", store.prompt("c"))
    assert await agree(store) == 1
    other = store.folder / "one" / "other"
    other.write_bytes(store.prompt("d") * 9)
    other.replace(store.folder / "one" / "wire.jsonl")
    assert await agree(store) == 9


async def test_a_broken_catalog_changes_no_turn(store: Store, catalog_file: Path) -> None:
    """Garbage in the catalog is thrown away."""
    store.put("one", store.prompt("a"))
    assert await agree(store) == 1
    with open(catalog_file, "r+b") as file:  # noqa: ASYNC230
        file.write(b"garbage" * 100)
    assert await agree(store) == 1


async def test_turns_beyond_one_row_are_kept_and_brought_up_to_date(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of an earlier row that ends late, turns that fill a row to its end, and ones that begin the next."""
    monkeypatch.setattr(catalog_turns, "_ROW_TURNS", 3)
    store.put("one", store.prompt("outer"))
    assert await agree(store) == 1
    for count in range(2, 9):
        store.append("one", store.prompt(f"turn {count}"), store.line("TurnEnd", {}))
        assert await agree(store) == count
    store.append("one", store.line("TurnEnd", {}, 1_700_000_099.0))
    assert await agree(store) == 8
