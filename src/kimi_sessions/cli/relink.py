"""``kimi-sessions relink``: let the stores follow projects that were moved or renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kimi_sessions import ShareLayout

from ._exit import DAMAGED, USAGE, Failed, complain
from ._options import where
from ._render import clean_path, out, print_json
from .migrate import absolute, path_map

if TYPE_CHECKING:
    from kimi_sessions.migration import Relink

__all__ = ["command"]


def command(
    ctx: typer.Context,
    *,
    old: Annotated[
        str | None, typer.Argument(metavar="OLD", show_default=False, help="Where it was.")
    ] = None,
    new: Annotated[
        str | None, typer.Argument(metavar="NEW", show_default=False, help="Where it is now.")
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="The same as OLD NEW, for several at once, or for paths of another system (C:\\git=/home/u/git).",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be changed, and change nothing.")
    ] = False,
) -> int:
    """
    Let a store follow a project that was moved or renamed.

    All that is at OLD or below it, at whole names, counts as being at NEW: folders of sessions, registry entries, and
    the additional dirs of sessions. No text of a conversation is changed. With --share or --share-dir it is Kimi CLI's
    store that follows; a project's own store moves with its folder, and only the registry has to be told.
    """
    from kimi_sessions.migration import apply_relink, plan_relink

    place = where(ctx)
    if (old is None) != (new is None):
        raise Failed("OLD and NEW go together", USAGE)
    texts = list(maps or ())
    pair = None if old is None or new is None else (old, new)
    if pair is None and not texts:
        raise Failed("say what moved: OLD NEW, or --map OLD=NEW", USAGE)
    paths = path_map(texts, also=pair)
    plan = plan_relink(place.layout, paths)
    if not dry_run:
        apply_relink(place.layout, paths, plan)
    if place.as_json:
        print_json({"dry_run": dry_run, **plan.as_dict()})
    else:
        _print(plan, dry_run=dry_run)
        if not plan.steps and not plan.dirs and not plan.refused:
            olds = " or ".join(dict.fromkeys(clean_path(absolute(each)) for each in paths.olds()))
            complain(f"no known work dir is at or below {olds}", kind="note")
        if isinstance(place.layout, ShareLayout):
            _note_missing(plan)
    for text in plan.problems:
        complain(text, kind="warning")
    for what, reason in plan.refused:
        complain(f"{what}: {reason}", kind="warning")
    for step in plan.steps:
        for left in step.left:
            complain(f"{step.old}: left there: {left}", kind="warning")
    return DAMAGED if plan.refused or any(step.left for step in plan.steps) else 0


def _print(plan: Relink, *, dry_run: bool) -> None:
    for step in plan.steps:
        sign = "+" if step.done or dry_run else "!"
        count = f"{step.sessions} session{'s' if step.sessions != 1 else ''}"
        out(f"{sign} {clean_path(step.old)} -> {clean_path(step.new)}: {count}")
    for path, old, new in plan.dirs:
        out(f"+ additional dir of {clean_path(path)}: {clean_path(old)} -> {clean_path(new)}")
    if not plan.steps and not plan.dirs:
        out("nothing to relink")
    elif dry_run:
        out("nothing was changed")


def _note_missing(plan: Relink) -> None:
    from pathlib import Path

    for step in plan.steps:
        if not Path(step.new).is_dir():
            complain(f"{step.new} is not there (yet)", kind="note")
