"""``kimi-sessions path``: where things lie, for other programs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ._options import where
from ._render import on_terminal, out, print_json

__all__ = ["command"]


def command(
    ctx: typer.Context,
    *,
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A session's id, a unique beginning of one, or @last.", show_default=False
        ),
    ] = None,
) -> None:
    """
    Print the folder of a session, or of all sessions.

    Without an ID it is the folder that holds the sessions of the work dir, whether it is there yet or not. In a pipe
    the path comes byte for byte.
    """
    from kimi_sessions import clean

    place = where(ctx)
    path = (
        place.layout.sessions_path(place.work_dir)
        if session_id is None
        else place.open(session_id, far=True).path
    )
    if place.as_json:
        print_json({"path": str(path)})
    elif on_terminal() or not hasattr(sys.stdout, "buffer"):
        out(clean(str(path)))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(path) + b"\n")
