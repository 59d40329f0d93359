"""``kimi-sessions list``: how it is typed. ``_listing`` has what it does; ``_quick`` reads the plain forms of it."""

from __future__ import annotations

from typing import Annotated

import typer

from ._listing import Sort, Wish, print_list
from ._options import AllDirs, where, words

__all__ = ["command"]


def command(
    ctx: typer.Context,
    *,
    all_dirs: AllDirs = False,
    archived: Annotated[bool, typer.Option("--archived", help="Archived sessions too.")] = False,
    empty: Annotated[bool, typer.Option("--empty", help="Empty sessions too.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            metavar="N",
            help="At most N sessions; 0 for all. [default: 50 on a terminal, else all]",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[Sort, typer.Option("--sort", help="Order.")] = Sort.UPDATED,
    title: Annotated[
        str | None,
        typer.Option(
            "--title",
            metavar="TEXT",
            help="Only titles with TEXT in them.",
            show_default=False,
            callback=words,
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", metavar="TAG", help="Only sessions with this tag.", show_default=False, callback=words
        ),
    ] = None,
) -> None:
    """List sessions, newest first."""
    wish = Wish(
        all_dirs=all_dirs,
        archived=archived,
        empty=empty,
        limit=limit,
        sort=sort,
        title=title,
        tags=tuple(tags or ()),
    )
    print_list(where(ctx), wish)
