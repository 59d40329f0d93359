"""``kimi-sessions fork``: a new session from a beginning of another."""

from __future__ import annotations

from typing import Annotated

import typer

from ._exit import say
from ._options import SessionId, where, words
from ._render import out, print_session
from ._where import in_line

__all__ = ["command"]


def command(
    ctx: typer.Context,
    *,
    session_id: SessionId,
    turn: Annotated[
        int | None,
        typer.Option(
            "--turn", metavar="K", help="Take turns 0 to K ('show --turns' numbers them). [default: all]"
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="The new session's title.", callback=words)
    ] = None,
) -> None:
    """
    Make a new session from the first turns of one.

    Prints the new id. The old session stays as it is, and the new one records where it came from.
    """
    place = where(ctx)
    session = place.open(session_id)
    forked = in_line(session.fork(turn, title=title))
    if place.as_json:
        print_session(forked)
        return
    out(forked.id)
    say(f"forked from {session.id}: {forked.title}")
