"""A name found by its rarest letter, a title made of a prompt's beginning, a session found at once: as the slow way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kimi_sessions import Session, ShareLayout
from kimi_sessions._store import WorkDirStore
from kimi_sessions._text import TITLE_WIDTH, clean, shorten, title_from
from kimi_sessions.context import alignment
from kimi_sessions.metadata import known_work_dirs
from kimi_sessions.wire.scan import BEGINNINGS, ENDINGS, Names, places_of

from .conftest import CORPUS

ALL_NAMES = (BEGINNINGS, ENDINGS, alignment._BEGINNINGS, *alignment._TOLD_BY)
WORDS = [text for names in ALL_NAMES for text in names.texts]
PIECES = st.sampled_from(
    [*WORDS, *(word[:-1] for word in WORDS), *(word[1:] for word in WORDS), b"B", b"E", b"x", b"\n"]
)


def places_slowly(data: bytes, names: Names, stop: int) -> list[int]:
    """Look at every place."""
    return [
        at
        for at in range(stop)
        if any(data[at : at + len(text)] == text and at + len(text) <= stop for text in names.texts)
    ]


@pytest.mark.parametrize("names", ALL_NAMES)
@given(pieces=st.lists(PIECES, max_size=60), cut=st.integers(0, 40))
@example(pieces=[b"B"] * 200 + WORDS * 2 + [b"EBI"] * 50 + WORDS, cut=0)  # letters that are not rare at all
def test_names_are_found_where_they_stand(names: Names, pieces: list[bytes], cut: int) -> None:
    """Wherever they stand, beside each other and cut off, whether the letter is rare or not."""
    data = b"".join(pieces)
    stop = max(len(data) - cut, 0)
    assert places_of(data, names, stop) == places_slowly(data, names, stop)


@given(
    st.text(max_size=900) | st.lists(st.sampled_from(["word", " ", "\n\t ", "\x1b[31m", "é"])).map("".join)
)
@example(" " * 500 + "late")
@example("x" * 300)
@example("a " * 300)
def test_a_title_of_a_long_prompt_is_that_of_all_of_it(text: str) -> None:
    """Only the beginning is looked at, where that is enough."""
    assert title_from(text) == shorten(clean(text), TITLE_WIDTH)


@pytest.mark.parametrize("share", sorted(path for path in CORPUS.rglob("share") if path.is_dir()), ids=str)
def test_what_is_found_at_once_is_what_is_found(share: Path, tmp_path: Path) -> None:
    """For every session of every version: nothing is said at once, or the same."""
    copy = tmp_path / "share"
    shutil.copytree(share, copy, symlinks=True)
    layout = ShareLayout(copy)
    found = 0
    for entry in known_work_dirs(layout)[0]:
        store = WorkDirStore(layout, entry.path or entry.sessions_path, sessions_path=entry.sessions_path)
        for located in store.scan().located:
            quick = store.locate_at_once(located.facts.id)
            slow = store.locate(located.facts.id)
            assert slow is not None
            if quick is None:
                continue
            found += 1
            assert quick.sessions_path == slow.sessions_path
            for name in ("id", "title", "updated_at", "empty", "flat", "state", "extra", "problems"):
                assert getattr(quick.facts, name) == getattr(slow.facts, name)
    assert found


LINE = b'{"timestamp": 1700000000.5, "message": {"type": "TurnBegin", "payload": {"user_input": "hi"}}}\n'
LONG = 40_000


@pytest.mark.parametrize(
    "wire, context, state",
    [
        (LINE + b'{"timestamp": 1, "message": {"a": "' + b'{"b":' * LONG, b"", b'{"custom_title": "T"}'),
        (LINE + b"\0" * LONG, b"", b"{}"),
        (LINE + b"\n" * LONG, b"", b"{}"),
        (b'{"type": "metadata", "protocol_version": "1.10"}\n' * 1000, b"", b"{}"),
        (b"[]\n" * LONG + LINE.replace(b"Begin", b"End"), b"", b"{}"),
        (b"", b'{"role": "_checkpoint", "id": 1}\n' * 2000, b"{}"),
    ],
    ids=["torn end", "NULs", "blank lines", "headers", "no prompt", "no message"],
)
async def test_a_log_that_takes_long_to_look_through_holds_up_no_event_loop(
    work_dir: Path, wire: bytes, context: bytes, state: bytes
) -> None:
    """Finding a session with a damaged log of some megabytes takes seconds; that is done in a thread."""
    session = await Session.create(work_dir, "a")
    (session.path / "wire.jsonl").write_bytes(wire)
    (session.path / "context.jsonl").write_bytes(context)
    (session.path / "state.json").write_bytes(state)
    store = WorkDirStore(session.layout, work_dir)
    assert store.locate_at_once("a") is None
    found = await Session.find(work_dir, "a")
    located = store.locate("a")
    assert found is not None
    assert located is not None
    assert (found.title, found.empty) == (located.facts.title, located.facts.empty)


async def test_a_log_of_megabytes_that_is_whole_is_found_at_once(work_dir: Path) -> None:
    """Its head has the prompt and its end the time."""
    session = await Session.create(work_dir, "a")
    (session.path / "wire.jsonl").write_bytes(LINE * 50_000)
    assert WorkDirStore(session.layout, work_dir).locate_at_once("a") is not None
