"""
What a command works on: which work dir, which layout, and how the answer is to be printed.

The options for that stand before the command's name or after it; the one nearer the end counts. ``app`` puts them on
every command, so that a command's own file only asks ``Where.of(ctx)``. Here too: from what a person typed to the
session that is meant.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kimi_sessions import ProjectLayout, ShareLayout

from ._exit import NOT_FOUND, USAGE, Failed

if TYPE_CHECKING:
    from kimi_sessions import Layout, Session

__all__ = ["Everywhere", "SessionId", "Where", "everywhere", "in_line"]

_R = TypeVar("_R")
_META = "kimi_sessions.where"

SessionId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A session's id, a unique beginning of one, or @last.", show_default=False
    ),
]
Everywhere = Annotated[bool, typer.Option("--all-dirs", help="Every known work dir, also one that is gone.")]


def in_line(coroutine: Coroutine[Any, Any, _R]) -> _R:
    """
    Run a coroutine of the library to its end without an event loop, whose import costs more than most commands.

    For coroutines that wait for nothing but their own work; what gathers or follows needs ``asyncio.run``.
    """
    while True:
        try:
            coroutine.send(None)
        except StopIteration as done:
            result: _R = done.value
            return result


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


@dataclass(frozen=True, slots=True)
class Where:
    """
    The place that a command works on.

    ``share`` is None where the options name no store of Kimi CLI's: most commands then work on the project's own
    layout, which is what ``layout`` gives.
    """

    work_dir: Path
    share: ShareLayout | None
    as_json: bool

    @classmethod
    def of(cls, ctx: typer.Context) -> Where:
        """Read the options of this call. Raises Failed if the folder they name is not there."""
        given: dict[str, Any] = ctx.meta.get(_META, {})
        share: ShareLayout | None = None
        share_dir = given.get("share_dir")
        if share_dir is not None:
            if not os.path.isdir(share_dir):  # noqa: PTH112 - of what was typed, before anything is made of it
                raise Failed(f"no such folder: {share_dir}", NOT_FOUND)
            share = ShareLayout(share_dir)
        elif given.get("share"):
            share = ShareLayout()
        return cls(_absolute(given.get("work_dir")), share, bool(given.get("json")))

    @property
    def layout(self) -> Layout:
        """The layout to work on."""
        return ProjectLayout() if self.share is None else self.share

    def open(self, text: str) -> Session:
        """
        Return the session of this work dir that is meant by ``text``.

        Raises InvalidIdError before any file is touched, SessionNotFoundError, AmbiguousIdError.
        """
        from kimi_sessions import Session

        return in_line(Session.open(self.work_dir, text, layout=self.layout))

    def open_anywhere(self, text: str) -> Session:
        """
        Return the session that is meant by ``text``, from another known work dir if this one has none.

        Raises as ``open``.
        """
        from kimi_sessions import NotFoundError, Session
        from kimi_sessions.session import LAST, choose

        try:
            return self.open(text)
        except NotFoundError as error:
            if text == LAST:
                raise
            everyone = in_line(Session.list_all(layout=self.layout, include_empty=True))
            try:
                return choose(text, everyone, "any known work dir")
            except NotFoundError:
                raise error from None


def _absolute(work_dir: str | None) -> Path:
    if work_dir is not None and (not work_dir or "\0" in work_dir):
        raise Failed("--work-dir needs the path of a folder", USAGE)
    try:
        return Path(os.path.abspath(work_dir or "."))  # noqa: PTH100 - links stay as they were typed
    except FileNotFoundError:
        raise Failed("the current folder is gone; name a work dir with --work-dir", NOT_FOUND) from None
