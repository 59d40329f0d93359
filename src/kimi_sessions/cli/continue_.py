"""``kimi-sessions continue``: which session to go on with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ._exit import code_of, complain, say
from ._options import where
from ._render import clean_path, out, print_session, warn_of_problems

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_sessions import UntrustedSessionError

    from ._where import Where

__all__ = ["command"]


def command(
    ctx: typer.Context,
    *,
    session_id: Annotated[
        str, typer.Argument(metavar="ID", help="This one, in whatever work dir it is.", show_default=False)
    ] = "@last",
) -> None:
    """
    Print the id of the session to go on with.

    That is the last one used in the work dir, else the newest; archived and untrusted ones are passed over. With an ID
    it is that session, from whatever known work dir; --json tells which.
    """
    from kimi_sessions import Session, UntrustedSessionError
    from kimi_sessions.session import LAST

    from ._exit import NOT_FOUND, Failed
    from ._where import in_line

    place = where(ctx)
    if session_id == LAST:
        try:
            found = in_line(Session.continue_(place.work_dir, layout=place.layout))
        except UntrustedSessionError as error:
            raise _untrusted(place, error, place.work_dir) from error
        if found is None:
            raise Failed(
                f"no session to continue in {clean_path(str(place.work_dir))}{place.missing}", NOT_FOUND
            )
        session = found
    else:
        session = place.open(session_id, far=True)
        if not session.trusted:
            refusal = UntrustedSessionError(session_id=session.id, path=str(session.path))
            raise _untrusted(place, refusal, session.work_dir)
    warn_of_problems(session)
    if place.as_json:
        print_session(session)
        return
    out(session.id)
    there = os.path.isdir(session.work_dir)  # noqa: PTH112 - Path.is_dir raises for long names
    if session.work_dir_known and (session.work_dir != place.work_dir or not there):
        say(f"its work dir is {session.work_dir}" + ("" if there else ", which is not there"))


def _untrusted(place: Where, error: UntrustedSessionError, work_dir: Path) -> typer.Exit:
    """Say that a session is not trusted, and what to type where it lies; return how the program ends."""
    from shlex import quote

    show, trust = (
        place.spell(f"{verb} {quote(error.session_id)}", work_dir=work_dir) for verb in ("show", "trust")
    )
    complain(str(error))
    complain(f"look at it with '{show}', then '{trust}'", kind="hint")
    return typer.Exit(code_of(error))
