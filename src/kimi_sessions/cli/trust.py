"""``kimi-sessions trust``: a person says that a session is theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._exit import USAGE, Failed, complain, say
from ._options import where
from ._render import as_text, print_json
from ._where import in_line

if TYPE_CHECKING:
    from kimi_sessions import Session

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
    everyone: Annotated[
        bool, typer.Option("--all", help="All sessions of the work dir that are not sealed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what they would allow, and seal nothing.")
    ] = False,
) -> None:
    """
    Seal a session as yours, with what it may do unasked.

    Sessions that came with a repository or a copied folder carry no seal of yours: they are not continued, and what
    they allow without asking counts for nothing. This shows what they would allow, then seals them. Kimi CLI's own
    store needs no seals.
    """
    from kimi_sessions import Session

    place = where(ctx)
    if everyone == (session_id is not None):
        raise Failed("name one session, or --all", USAGE)
    if session_id is not None:
        found = [place.open(session_id)]
    else:
        listed = in_line(Session.list(place.work_dir, layout=place.layout, include_empty=True))
        found = [session for session in listed if _needs_seal(session)]
    if not place.layout.sealed:
        complain("Kimi CLI's own store needs no seals", kind="note")
        found = []
    for session in found:
        if not place.as_json:
            say(f"{session.id} ({session.title}) may do unasked: {_in_words(session.claimed_approvals)}")
        if not dry_run:
            in_line(session.trust())
    if place.as_json:
        print_json(
            {
                "sealed": not dry_run,
                "sessions": [
                    {"id": session.id, "title": session.title, "allows": session.claimed_approvals}
                    for session in found
                ],
            }
        )
    elif not dry_run:
        say(f"sealed {'1 session' if len(found) == 1 else f'{len(found)} sessions'}")


def _needs_seal(session: Session) -> bool:
    return any(problem.kind in {"untrusted", "approvals"} for problem in session.problems)


def _in_words(allowed: dict[str, Any]) -> str:
    words = []
    if allowed["yolo"]:
        words.append("everything (yolo)")
    if allowed["afk"]:
        words.append("go on while nobody is there (afk)")
    if allowed["auto_approve_actions"]:
        words.append(f"the actions {as_text(allowed['auto_approve_actions'])}")
    if allowed["additional_dirs"]:
        words.append(f"work in {as_text(allowed['additional_dirs'])}")
    return "; ".join(words) or "nothing"
