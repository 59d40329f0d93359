"""A name found by its rarest letter, a title made of a prompt's beginning, a session found at once: as the slow way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kimi_sessions import ShareLayout
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
