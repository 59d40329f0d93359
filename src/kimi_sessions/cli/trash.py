"""``kimi-sessions trash``: what was deleted, and how it comes back or goes for good."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._ask import agree
from ._exit import complain, say
from ._options import where
from ._render import clean_path, iso, line_width, out, print_json, print_session, table, when
from ._where import Where, in_line

if TYPE_CHECKING:
    from kimi_sessions import TrashEntry

__all__ = ["commands"]

_DAY_S = 86_400.0


def _facts(entry: TrashEntry) -> dict[str, Any]:
    return {
        "id": entry.session_id,
        "title": entry.title,
        "entry": entry.entry,
        "deleted_at": entry.deleted_at,
        "deleted_at_iso": iso(entry.deleted_at),
        "reason": entry.reason,
        "flats_only": entry.flats_only,
        "path": f"{entry.trash_path}/{entry.entry}",
    }


def _entries(place: Where) -> list[TrashEntry]:
    from kimi_sessions import Session

    return in_line(Session.list_trash(place.work_dir, layout=place.layout))


def list_(ctx: typer.Context) -> None:
    """List what is in the trash, newest first."""
    from kimi_sessions import clean

    place = where(ctx)
    entries = _entries(place)
    if place.as_json:
        print_json({"trash": [_facts(entry) for entry in entries]})
        return
    if not entries:
        complain(f"the trash of {clean_path(str(place.work_dir))} is empty", kind="note")
        return
    now = time.time()
    rows = [
        (
            clean(entry.session_id),
            when(entry.deleted_at, now),
            ("[old flat files only] " if entry.flats_only else "") + (clean(entry.title) or "-"),
        )
        for entry in entries
    ]
    for line in table(["ID", "DELETED", "TITLE"], rows, width=line_width()):
        out(line)


def restore(
    ctx: typer.Context,
    *,
    session_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A session's id, or a unique beginning of one.", show_default=False
        ),
    ],
) -> None:
    """
    Bring a session back as it was.

    Of several with one id, the one deleted last. If a session of that id exists again, nothing is changed.
    """
    from kimi_sessions import Session

    place = where(ctx)
    wanted = _meant(place, session_id)
    session = in_line(Session.restore(place.work_dir, wanted, layout=place.layout))
    if place.as_json:
        print_session(session)
    else:
        say(f"restored {session.id}: {session.title}")


def empty(
    ctx: typer.Context,
    *,
    session_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only this session.", show_default=False)
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            min=0,
            help="Only what was deleted longer ago.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove what is in the trash for good. It asks first."""
    from kimi_sessions import Session

    place = where(ctx)
    wanted = None if session_id is None else _meant(place, session_id)
    older_than_s = None if older_than is None else older_than * _DAY_S
    now = time.time()
    count = sum(
        (wanted is None or entry.session_id == wanted)
        and (older_than_s is None or now - entry.deleted_at >= older_than_s)
        for entry in _entries(place)
    )
    if count:
        agree(f"Remove {_sessions(count)} from the trash for good?", yes=yes)
    gone = in_line(
        Session.empty_trash(place.work_dir, wanted, layout=place.layout, older_than_s=older_than_s)
    )
    if place.as_json:
        print_json({"removed": gone})
    else:
        say(f"removed {_sessions(gone)} for good")


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


def _meant(place: Where, text: str) -> str:
    """Return the id in the trash that ``text`` stands for. Raises as ``Session.open`` does."""
    from kimi_sessions import AmbiguousIdError, SessionNotFoundError
    from kimi_sessions.ids import parse_session_id

    wanted = parse_session_id(text)
    known = sorted({entry.session_id for entry in _entries(place)})
    if wanted in known:
        return wanted
    found = [name for name in known if name.startswith(wanted)]
    if len(found) > 1:
        raise AmbiguousIdError(prefix=text, candidates=tuple(found))
    if not found:
        trash = str(place.layout.trash_path(place.work_dir))
        raise SessionNotFoundError(session_id=text, searched=(trash,))
    return found[0]


commands = {"list": list_, "restore": restore, "empty": empty}
