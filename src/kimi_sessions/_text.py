"""
Text for people: titles cut to length, and text made safe to show.

Pure functions, no files. Files keep their bytes; these rules are for what is shown. The shortening rule is the
old client's own, so that titles come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["TITLE_WIDTH", "UNTITLED", "clean", "shorten", "title_from", "user_text"]

UNTITLED = "Untitled"
#: Code points, not display cells.
TITLE_WIDTH = 50
_ELLIPSIS = "…"
_ENOUGH = 2 * TITLE_WIDTH

#: C0 and C1 controls, bidi overrides, embeddings and isolates, lone surrogates: each can move a cursor, reverse a
#: line or break an encoder. The marks U+200E, U+200F and U+061C do none of that and belong to right-to-left text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_WHITE_CONTROLS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1f\x85]+")


def clean(text: str) -> str:
    """Return ``text`` without control and bidi characters and lone surrogates; white space becomes a space."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub("", _WHITE_CONTROLS.sub(" ", text))


def shorten(text: str, width: int = TITLE_WIDTH) -> str:
    """
    Collapse white space and cut ``text`` to at most ``width`` code points, an ellipsis included.

    The cut is at the last space at index 1 to ``width - 1``, else hard at ``width - 1``.
    """
    return _cut(" ".join(text.split()), width)


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    cut = width - len(_ELLIPSIS)
    if cut <= 0:
        return text[:width]
    space = text.rfind(" ", 1, cut + 1)
    if space != -1:
        cut = space
    return text[:cut].rstrip() + _ELLIPSIS


def user_text(user_input: object) -> str:
    """
    Return the text of a user input as it stands in a record: a string, or parts of which the text ones count.

    Bare strings among the parts count too; parts are joined with one space. Anything else gives "".
    """
    if isinstance(user_input, str):
        return user_input
    # A list is what a record holds; asking of that whether it can be gone through costs more than going through it.
    if type(user_input) is not list and (
        not isinstance(user_input, Iterable) or isinstance(user_input, dict)
    ):
        return ""
    texts = []
    for part in user_input:
        if type(part) is dict:
            kind, text = part.get("type"), part.get("text")
        elif isinstance(part, str):
            kind, text = "text", part
        else:
            kind, text = getattr(part, "type", None), getattr(part, "text", None)
        if kind == "text" and isinstance(text, str):
            texts.append(text)
    if len(texts) == 1:
        return texts[0]
    return " ".join(texts)


def title_from(text: str) -> str:
    """Return the title made of a prompt, "" if nothing of it can be shown."""
    # What comes later than this tells nothing, unless there is little but white space before it.
    title = " ".join(clean(text[:_ENOUGH]).split())
    if len(title) <= TITLE_WIDTH and len(text) > _ENOUGH:
        title = " ".join(clean(text).split())
    return _cut(title, TITLE_WIDTH)
