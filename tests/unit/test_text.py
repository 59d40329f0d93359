"""Titles come out as the old client cuts them, and nothing that is shown can move a cursor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions._text import clean, shorten, title_from, user_text

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    "text,width,shown",
    [
        ("short", 50, "short"),
        ("  a \n\t b  ", 50, "a b"),
        ("x" * 50, 50, "x" * 50),
        ("x" * 51, 50, "x" * 49 + "…"),
        ("hello " + "b" * 60, 50, "hello…"),
        ("字" * 60, 50, "字" * 49 + "…"),
        ("a" * 49 + " bcd", 50, "a" * 49 + "…"),
        ("a" * 48 + " bcd", 50, "a" * 48 + "…"),
        ("one two three four", 10, "one two…"),
        ("abcdef", 1, "a"),
        ("abcdef", 0, ""),
        ("abcdef", 2, "a…"),
        ("", 50, ""),
        (" \n ", 50, ""),
        ("a\u3000b\u2028c", 50, "a b c"),
    ],
)
def test_a_title_is_cut_at_the_last_space_that_fits(text: str, width: int, shown: str) -> None:
    """The cut is at the last space, else hard; lengths are code points; white space of any kind is one space."""
    assert shorten(text, width) == shown


@given(ANY_TEXT, st.integers(0, 60))
def test_a_cut_title_keeps_to_its_width_and_cutting_again_changes_nothing(text: str, width: int) -> None:
    """For every text and width."""
    cut = shorten(text, width)
    assert len(cut) <= width
    assert shorten(cut, width) == cut


@pytest.mark.parametrize(
    "text,shown",
    [
        ("plain", "plain"),
        ("项目 👩\u200d💻 é", "项目 👩\u200d💻 é"),
        ("a\nb\r\nc\td", "a b c d"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("bell\a nul\0 del\x7f c1\x9b", "bell nul del c1"),
        ("abc\u202egpj.exe", "abcgpj.exe"),
        ("\u2066iso\u2069late", "isolate"),
        ("half\ud83d", "half"),
        ("\u200fעברית\u200f", "\u200fעברית\u200f"),
        ("", ""),
    ],
)
def test_what_moves_a_cursor_or_reverses_a_line_is_not_shown(text: str, shown: str) -> None:
    """Controls, bidi overrides and lone surrogates go, line breaks become spaces, every script stays."""
    assert clean(text) == shown


@given(ANY_TEXT)
def test_cleaned_text_can_be_printed_and_cleaning_twice_is_cleaning_once(text: str) -> None:
    """It encodes as UTF-8 and stays on one line."""
    shown = clean(text)
    shown.encode("utf-8")
    assert clean(shown) == shown
    assert not set(shown) & {"\n", "\r", "\x1b", "\0", "\x85"}


@pytest.mark.parametrize(
    "user_input,text",
    [
        ("hello", "hello"),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a b"),
        ([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "see"}], "see"),
        (["bare", {"type": "text", "text": "part"}], "bare part"),
        ([{"type": "text"}, {"type": "text", "text": 5}, {"text": "untyped"}, None, 7], ""),
        ([SimpleNamespace(type="text", text="typed"), SimpleNamespace(type="think", text="no")], "typed"),
        (None, ""),
        (5, ""),
        ({"type": "text", "text": "no list"}, ""),
        (b"bytes", ""),
    ],
)
def test_a_prompt_s_text_is_its_text_parts_with_one_space_between(user_input: object, text: str) -> None:
    """Strings, parts and bare strings among them count; images, thoughts and nonsense have no text."""
    assert user_text(user_input) == text


def test_a_title_made_of_a_prompt_is_clean_and_short() -> None:
    """Controls go before the cut, so they take no room; a prompt of controls alone gives none."""
    assert title_from("\x1b" * 60 + "hello\nworld") == "hello world"
    assert title_from("\x00\x1b\u202e \n") == ""
