"""
What a command works on: which work dir, which layout, and how the answer is to be printed.

How that is typed is told in ``_options``. Here too: from the text of an ID to the session that is meant.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kimi_sessions import ProjectLayout, ShareLayout

from ._exit import NOT_FOUND, USAGE, Failed

if TYPE_CHECKING:
    from kimi_sessions import Layout, Session

__all__ = ["Where", "in_line"]

_R = TypeVar("_R")


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
    def given(cls, *, work_dir: str | None, share: bool, share_dir: str | None, as_json: bool) -> Where:
        """Build from what was typed. Raises Failed if a folder that it names is not there."""
        store: ShareLayout | None = None
        if share_dir is not None:
            if not os.path.isdir(share_dir):  # noqa: PTH112 - of what was typed, before anything is made of it
                raise Failed(f"no such folder: {share_dir}", NOT_FOUND)
            store = ShareLayout(share_dir)
        elif share:
            store = ShareLayout()
        return cls(_absolute(work_dir), store, as_json)

    @property
    def layout(self) -> Layout:
        """The layout to work on."""
        return ProjectLayout() if self.share is None else self.share

    @property
    def missing(self) -> str:
        """What to add where nothing is found: that the work dir is not there, if it is not; else nothing."""
        there = os.path.isdir(self.work_dir)  # noqa: PTH112 - Path.is_dir raises for long names
        return "" if there else " (there is no such folder)"

    def spell(self, words: str, *, work_dir: Path | None = None) -> str:
        """
        Return the command that a hint should name, so that it can be copied: with the options that lead here.

        ``work_dir`` is where the hint's own session is, if that may be another work dir than this one.
        """
        from shlex import quote

        typed = ["kimi-sessions"]
        if self.share is not None:
            usual = ShareLayout() == self.share
            typed += ["--share"] if usual else ["--share-dir", quote(str(self.share.share))]
        there = self.work_dir if work_dir is None else work_dir
        if there != _absolute(None):
            typed += ["-w", quote(str(there))]
        return " ".join([*typed, words])

    def open(self, text: str, *, far: bool = False) -> Session:
        """
        Return the session that is meant by ``text``: in this work dir, else the one in another known work dir.

        Elsewhere only a whole id counts, since what follows may be a change; with ``far`` a unique beginning does too.
        Raises InvalidIdError before any file is touched, SessionNotFoundError, AmbiguousIdError.
        """
        from kimi_sessions import Session, SessionNotFoundError
        from kimi_sessions.session import LAST, choose

        try:
            return in_line(Session.open(self.work_dir, text, layout=self.layout))
        except SessionNotFoundError as error:
            if text == LAST:
                raise Failed(
                    f"no session to go on with in {self.work_dir}{self.missing}", NOT_FOUND
                ) from None
            everyone = in_line(Session.list_all(layout=self.layout, include_empty=True))
            try:
                found = choose(text, everyone, "any known work dir")
            except SessionNotFoundError:
                if self.missing and not error.near:
                    raise Failed(f"{error}{self.missing}", NOT_FOUND) from None
                raise error from None
        if far or found.id == text:
            return found
        there = found.work_dir if found.work_dir_known else found.path.parent
        raise Failed(f"no session {text!r} in {self.work_dir}; {found.id} is in {there}", NOT_FOUND)


def _absolute(work_dir: str | None) -> Path:
    if work_dir is not None and (not work_dir or "\0" in work_dir):
        raise Failed("--work-dir needs the path of a folder", USAGE)
    try:
        return Path(os.path.abspath(work_dir or "."))  # noqa: PTH100 - links stay as they were typed
    except FileNotFoundError:
        raise Failed("the current folder is gone; name a work dir with --work-dir", NOT_FOUND) from None
