"""``kimi-sessions rename``: a title of a person's choosing."""

from __future__ import annotations

from typing import Annotated

import typer

from ._exit import USAGE, Failed, say
from ._options import SessionId, where, words
from ._render import print_session
from ._where import in_line

__all__ = ["command"]


def command(
    ctx: typer.Context,
    *,
    session_id: SessionId,
    title: Annotated[
        str, typer.Argument(metavar="TITLE", help="The new title.", show_default=False, callback=words)
    ],
) -> None:
    """Give a session a title of your own."""
    place = where(ctx)
    if not title.strip():
        raise Failed("a title needs some text", USAGE)
    session = place.open(session_id)
    try:
        in_line(session.rename(title))
    except ValueError as error:
        raise Failed(str(error), USAGE) from None
    if place.as_json:
        print_session(session)
    else:
        say(f"{session.id} is now called: {session.title}")
