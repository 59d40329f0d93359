"""``kimi-sessions search``: what was said, by anybody, in any session."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kimi_sessions import clean

from ._exit import USAGE, Failed, complain
from ._options import AllDirs, where, words
from ._render import dir_of, fit, iso, line_width, out, print_json, shown_dir, when
from ._where import in_line

if TYPE_CHECKING:
    from kimi_sessions.catalog import Hit

__all__ = ["command"]


class Role(Enum):
    """Whose words to look in."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    TITLE = "title"


def command(
    ctx: typer.Context,
    *,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="What to look for.", show_default=False, callback=words)
    ],
    all_dirs: AllDirs = False,
    role: Annotated[
        Role | None, typer.Option("--role", help="Only messages of this kind.", show_default=False)
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="At most N hits; 0 for all.")
    ] = 20,
) -> None:
    """
    Find messages that hold all words of QUERY, newest first.

    "Two words" in quotes are a phrase, and auth* is the beginning of a word; case and accents do not matter. Searched
    are prompts, answers, tool calls with their arguments, and titles, of archived sessions too; not what tools printed.
    A title is as new as the last change of its session's state.
    """
    from kimi_sessions.catalog import search

    place = where(ctx)
    try:
        result = in_line(
            search(
                query,
                None if all_dirs else place.work_dir,
                layout=place.layout,
                role=None if role is None else role.value,
                limit=limit or None,
            )
        )
    except ValueError as error:
        raise Failed(str(error), USAGE) from None
    if place.as_json:
        print_json({"query": query, "hits": [_facts(hit) for hit in result.hits], "more": result.more})
        return
    if not result.hits:
        missing = "" if all_dirs or not place.missing else f" in {place.work_dir}{place.missing}"
        complain(f"nothing was found{missing}", kind="note")
        return
    now = time.time()
    width = line_width()
    for hit in result.hits:
        out(_head(hit, now, all_dirs=all_dirs))
        out(fit("    " + hit.snippet, width))
    if result.more:
        complain(f"these are the newest {len(result.hits)}; --limit 0 shows all", kind="note")


def _facts(hit: Hit) -> dict[str, Any]:
    session = hit.session
    return {
        "id": session.id,
        "title": session.title,
        "work_dir": dir_of(session),
        "key": session.work_dir_key,
        "path": str(session.path),
        "archived": session.archived,
        "role": hit.role,
        "turn_index": hit.turn_index,
        "time": hit.time,
        "time_iso": iso(hit.time),
        "snippet": hit.snippet,
        "file": hit.file,
        "offset": hit.offset,
    }


def _head(hit: Hit, now: float, *, all_dirs: bool) -> str:
    session = hit.session
    parts = [
        clean(session.id),
        when(hit.time if hit.time is not None else session.updated_at, now),
        hit.role if hit.turn_index is None else f"{hit.role}, turn {hit.turn_index}",
        *([shown_dir(session)] if all_dirs else []),
        f"{'[archived] ' if session.archived else ''}{session.title}",
    ]
    return "  ".join(parts)
