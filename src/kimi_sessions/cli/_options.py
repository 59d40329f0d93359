"""
What a person may type on every command: the options that say where and how, and the argument that names a session.

The options stand before the command's name or after it; the one nearer the end counts. ``app`` puts them on every
command, so that a command's own file only asks ``where(ctx)``.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ._exit import USAGE, Failed
from ._where import Where

__all__ = ["AllDirs", "SessionId", "everywhere", "where", "words"]

_META = "kimi_sessions.where"

SessionId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A session's id, a unique beginning of one, or @last.", show_default=False
    ),
]
AllDirs = Annotated[bool, typer.Option("--all-dirs", help="Every known work dir, also one that is gone.")]


def words(value: Any) -> Any:
    """
    Return text as it was typed: what the locale could not decode is UTF-8.

    For text only. Paths, and ids, which are names of folders, stay as the system spells them. Raises Failed for
    bytes that are no UTF-8: without them it would be another text.
    """
    if isinstance(value, (list, tuple)):
        return [words(each) for each in value]
    if value is None or value.isascii():
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        try:
            return os.fsencode(value).decode("utf-8")
        except UnicodeError:
            raise Failed(f"{value!a} is no text in UTF-8", USAGE) from None
    return value


def _note(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value:
        ctx.meta.setdefault(_META, {})[param.name] = value
    return value


def everywhere(
    work_dir: Annotated[
        str | None,
        typer.Option(
            "--work-dir",
            "-w",
            metavar="DIR",
            help="Work on the sessions of DIR, not of the current folder.",
            callback=_note,
            expose_value=False,
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        bool,
        typer.Option(
            "--share",
            help="Work on Kimi CLI's own store ($KIMI_SHARE_DIR or ~/.kimi).",
            callback=_note,
            expose_value=False,
        ),
    ] = False,
    share_dir: Annotated[
        str | None,
        typer.Option(
            "--share-dir",
            metavar="DIR",
            help="Work on a store of Kimi CLI's that lies in DIR.",
            callback=_note,
            expose_value=False,
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document.", callback=_note, expose_value=False)
    ] = False,
) -> None:
    """Carry the options that every command has; ``app`` takes them from here."""


def where(ctx: typer.Context) -> Where:
    """Return what this call works on. Raises Failed if a folder that was named is not there."""
    given: dict[str, Any] = ctx.meta.get(_META, {})
    return Where.given(
        work_dir=given.get("work_dir"),
        share=given.get("share", False),
        share_dir=given.get("share_dir"),
        as_json=given.get("json", False),
    )
