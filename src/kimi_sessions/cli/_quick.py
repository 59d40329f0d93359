"""
The way past the command parser for what is run most: ``list`` and ``ls`` in their plain forms.

The parser takes longer to load than a list takes to make. So the few options below are read here, and whatever else
stands on the line (help, other options, mistakes, abbreviations) is left to the parser. What both can read they read
alike; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._listing import Wish
    from ._where import Where

__all__ = ["read_plain_list"]

_FLAGS = {"--json": "json", "--share": "share"}
_VALUES = {"--work-dir": "work_dir", "-w": "work_dir", "--share-dir": "share_dir"}
_LIST_FLAGS = {"--all-dirs": "all_dirs", "--archived": "archived", "--empty": "empty"}
_NAMES = ("list", "ls")


def read_plain_list(args: Sequence[str]) -> tuple[Where, Wish] | None:
    """Return what to list and how if ``args`` is a plain list, None if the parser has to look at it."""
    given: dict[str, Any] = {}
    wishes: dict[str, Any] = {}
    named = False
    rest = iter(args)
    for arg in rest:
        if arg in _FLAGS:
            given[_FLAGS[arg]] = True
        elif arg in _VALUES:
            value = next(rest, None)
            if not value or value.startswith("-"):
                return None
            given[_VALUES[arg]] = value
        elif not named and arg in _NAMES:
            named = True
        elif named and arg in _LIST_FLAGS:
            wishes[_LIST_FLAGS[arg]] = True
        elif named and arg == "--limit":
            value = next(rest, "")
            if not (value.isascii() and value.isdigit() and len(value) < 10):
                return None
            wishes["limit"] = int(value)
        else:
            return None
    from ._listing import Wish
    from ._where import Where

    where = Where.given(
        work_dir=given.get("work_dir"),
        share=given.get("share", False),
        share_dir=given.get("share_dir"),
        as_json=given.get("json", False),
    )
    return where, Wish(**wishes)
