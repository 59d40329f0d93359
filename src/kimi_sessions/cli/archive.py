"""``kimi-sessions archive`` and ``unarchive``: out of the way, and back."""

from __future__ import annotations

import typer

from ._exit import say
from ._options import SessionId, where
from ._render import print_session
from ._where import in_line

__all__ = ["command", "unarchive"]


def command(ctx: typer.Context, *, session_id: SessionId) -> None:
    """
    Hide a session from ordinary lists.

    It can still be shown, continued by its id and forked; 'list --archived' lists it.
    """
    place = where(ctx)
    session = place.open(session_id)
    in_line(session.archive())
    if place.as_json:
        print_session(session)
    else:
        say(f"archived {session.id}: {session.title}")


def unarchive(ctx: typer.Context, *, session_id: SessionId) -> None:
    """Bring an archived session back."""
    place = where(ctx)
    session = place.open(session_id)
    was_archived = session.archived
    in_line(session.unarchive())
    if place.as_json:
        print_session(session)
    elif was_archived:
        say(f"back among the others: {session.id}: {session.title}")
    else:
        say(f"this one was not archived: {session.id}: {session.title}")
