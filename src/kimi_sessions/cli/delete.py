"""``kimi-sessions delete``: into the trash, or for good."""

from __future__ import annotations

import errno
import os
from shlex import quote
from typing import Annotated

import typer

from ._ask import agree
from ._exit import complain, say
from ._options import SessionId, where
from ._render import clean_path, print_json
from ._where import in_line

__all__ = ["command"]


def command(
    ctx: typer.Context,
    *,
    session_id: SessionId,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Remove it for good, past the trash.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """
    Move a session to the trash.

    It asks first. 'trash restore ID' brings the session back as it was; nothing leaves the trash by itself. A session
    that another program holds is refused.
    """
    from kimi_sessions import WriteError

    place = where(ctx)
    session = place.open(session_id)
    what = f"{session.id} ({session.title})"
    if session.work_dir != place.work_dir:
        what += f" of {clean_path(str(session.work_dir))}"
    agree(f"Remove {what} for good?" if permanent else f"Move {what} to the trash?", yes=yes)
    try:
        in_line(session.delete() if permanent else session.trash("kimi-sessions delete"))
    except WriteError as error:
        if not permanent and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            complain("--permanent takes no room, and gives some", kind="note")
        if permanent and not os.path.lexists(session.path):
            left = "what is left of it goes with the next delete for good, or when the trash is emptied"
            complain(f"{session.id} can't be brought back; {left}", kind="note")
        raise
    if place.as_json:
        print_json({"id": session.id, "deleted": True, "permanent": permanent})
    elif permanent:
        say(f"removed {what}")
    else:
        back = place.spell(f"trash restore {quote(session.id)}", work_dir=session.work_dir)
        say(f"moved {what} to the trash; '{back}' brings it back")
