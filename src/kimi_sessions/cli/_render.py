"""
How things look: JSON for programs, a table and short times for people.

The table is drawn by a few lines of our own, since loading a library for it would cost more than listing the sessions.
What is printed for people went through ``clean``: no text of a session reaches the terminal's control characters.
Widths are in cells: a CJK character or an emoji takes two. Where terminals disagree about a width (joined emoji), the
larger one is taken, and the column with free text comes last, so that no line gets too long and no column is pushed.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kimi_sessions import clean

from ._exit import complain

if TYPE_CHECKING:
    from kimi_sessions import Session

__all__ = [
    "as_text",
    "cell_width",
    "clean_path",
    "dir_of",
    "fit",
    "iso",
    "json_text",
    "line_width",
    "on_terminal",
    "out",
    "print_json",
    "print_session",
    "session_facts",
    "shown_dir",
    "shown_title",
    "table",
    "warn_of_problems",
    "when",
]

_DAY_S = 86_400
_FALLBACK_WIDTH = 80
_MIN_WIDTH = 20
#: Valid inside a JSON string, and yet not fit for a terminal: C1 controls and what changes the direction of text.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_DEEPEST_JSON = 200


# --- for programs ------------------------------------------------------------------------------------------------


def json_text(value: Any, *, depth: int = 0) -> str:
    """
    Return a value as indented JSON, ``depth`` levels in, that stdout can take.

    Lone surrogates come out as U+FFFD, NaN and infinities as null, and so does what is nested too deeply to be
    written. What a terminal should not see is escaped, as is all that is not ASCII where stdout is not UTF-8.
    """
    try:
        encoded = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    except (ValueError, RecursionError):
        encoded = json.dumps(_writable(value), ensure_ascii=False, indent=2)
    text = _SURROGATE.sub("\ufffd", encoded)
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
    unsafe = _UNSAFE_IN_JSON if encoding == "utf8" else _NOT_ASCII
    return unsafe.sub(lambda match: json.dumps(match[0])[1:-1], text).replace("\n", "\n" + "  " * depth)


def _writable(value: Any, depth: int = _DEEPEST_JSON) -> Any:
    """Return a value as JSON can have it: files may hold more."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _writable(each, depth - 1) for key, each in value.items()} if depth > 0 else None
    if isinstance(value, (list, tuple)):
        return [_writable(each, depth - 1) for each in value] if depth > 0 else None
    return value


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json_text(value) + "\n")


def iso(seconds: float | None) -> str | None:
    """Return a time as UTC ISO 8601, None for None and for what no calendar holds."""
    if seconds is None:
        return None
    try:
        at = time.gmtime(seconds)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', at)}.{int(seconds % 1 * 1000):03d}Z"


def first_words(session: Session) -> str | None:
    """Return what stands in for the title of a session that has none, None if it has one or nothing was said."""
    from kimi_sessions import UNTITLED

    if session.title != UNTITLED or session.empty:
        return None
    return session.first_words() or None


def shown_title(session: Session) -> str:
    """Return a session's title, with what was said first where it has none."""
    words = first_words(session)
    return session.title if words is None else f"{session.title}: {words}"


def dir_of(session: Session) -> str | None:
    """Return what ``--json`` shows of a session's work dir, None where no registry names it."""
    return str(session.work_dir) if session.work_dir_known else None


def shown_dir(session: Session, unknown: str = "? {}") -> str:
    """Return a session's work dir for people; where no registry names it, its key put into ``unknown``."""
    known = dir_of(session)
    return clean(unknown.format(session.work_dir_key)) if known is None else clean_path(known)


def session_facts(session: Session) -> dict[str, Any]:
    """Return what ``--json`` shows of a session."""
    return {
        "id": session.id,
        "title": session.title,
        "first_words": first_words(session),
        "created_at": session.created_at,
        "created_at_iso": iso(session.created_at),
        "updated_at": session.updated_at,
        "updated_at_iso": iso(session.updated_at),
        "work_dir": dir_of(session),
        "key": session.work_dir_key,
        "path": str(session.path),
        "archived": session.archived,
        "empty": session.empty,
        "trusted": session.trusted,
        "pinned": session.pinned,
        "tags": list(session.tags),
        "parent": session.parent,
        "problems": [problem.as_dict() for problem in session.problems],
    }


def print_session(session: Session) -> None:
    """Print the facts of one session as the JSON document of a command."""
    print_json(session_facts(session))


# --- for people --------------------------------------------------------------------------------------------------


def out(text: str = "") -> None:
    """Print one line on stdout."""
    sys.stdout.write(text + "\n")


def as_text(value: object) -> str:
    """Return a value of a file in words, whatever it is."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        return "something without end"


def warn_of_problems(session: Session) -> None:
    """Say on stderr what is wrong with a session that is being used."""
    for problem in session.problems:
        complain(f"session {session.id}: {problem}", kind="warning")


def on_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return sys.stdout.isatty()


def line_width() -> int:
    """Return how many cells a line may have: ``$COLUMNS``, else the terminal's width, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return max(int(given), _MIN_WIDTH)
    try:
        found = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        found = 0
    return max(found, _MIN_WIDTH) if found > 0 else _FALLBACK_WIDTH


def _char_width(char: str) -> int:
    code = ord(char)
    if code < 0x300:
        return 1
    if 0x1160 <= code <= 0x11FF:
        return 0
    category = unicodedata.category(char)
    if category in {"Mn", "Me", "Cf"}:
        return 0
    if unicodedata.east_asian_width(char) in "WF" or 0x1F1E6 <= code <= 0x1F1FF:
        return 2
    # Emoji that are newer than this Python's tables.
    return 2 if category == "Cn" and 0x1F300 <= code <= 0x1FAFF else 1


def cell_width(text: str) -> int:
    """Return how many cells a line of text takes, at most."""
    if text.isascii():
        return len(text)
    # U+FE0F asks for the emoji form of the character before it, which may be wider.
    return sum(map(_char_width, text)) + text.count("\ufe0f")


def fit(text: str, width: int, *, keep_end: bool = False) -> str:
    """Cut a line of text to ``width`` cells, ending (``keep_end``: beginning) in an ellipsis where something went."""
    if cell_width(text) <= width:
        return text
    room = width - 1
    kept: list[str] = []
    for char in reversed(text) if keep_end else text:
        room -= _char_width(char) + (char == "\ufe0f")
        if room < 0:
            break
        kept.append(char)
    if keep_end:
        return "…" + "".join(reversed(kept))
    return "".join(kept).rstrip() + "…"


def clean_path(path: str) -> str:
    """Return a path for people: without control characters, the home folder as ``~``."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - text in, text out
    if home and (path == home or path.startswith(home + "/")):
        path = "~" + path[len(home) :]
    return clean(path)


def when(seconds: float, now: float) -> str:
    """
    Return a time for people, in their zone, in at most 16 cells.

    On a terminal it is short ("5 min ago", "3 h ago", "2 d ago", then the date); elsewhere always date and minute.
    """
    if seconds <= 0:
        return "-"
    try:
        at = time.localtime(seconds)
    except (OverflowError, ValueError, OSError):
        return "-"  # no time that a calendar has
    if on_terminal():
        age = now - seconds
        if 0 <= age < 60:
            return "just now"
        if 0 <= age < 3600:
            return f"{int(age // 60)} min ago"
        if 0 <= age < _DAY_S:
            return f"{int(age // 3600)} h ago"
        if 0 <= age < 7 * _DAY_S:
            return f"{int(age // _DAY_S)} d ago"
        return time.strftime("%Y-%m-%d", at)
    return time.strftime("%Y-%m-%d %H:%M", at)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, width: int) -> list[str]:
    """
    Return the lines of a table no wider than ``width`` cells.

    The last column takes what room is left and is cut to it; the others are as wide as their widest cell.
    """
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(cell_width(line[at]) for line in lines) for at in range(len(heads) - 1)]
    room = max(width - sum(widths) - 2 * len(widths), 8)
    drawn = []
    for line in lines:
        cells = [cell + " " * (size - cell_width(cell)) for cell, size in zip(line[:-1], widths, strict=True)]
        drawn.append("  ".join([*cells, fit(line[-1], room)]).rstrip())
    if _colour():
        drawn[0] = f"\x1b[1m{drawn[0]}\x1b[0m"
    return drawn


def _colour() -> bool:
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
