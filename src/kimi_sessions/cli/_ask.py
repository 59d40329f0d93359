"""Questions before something is taken away."""

from __future__ import annotations

import sys

from kimi_sessions import clean

from ._exit import USAGE, Failed

__all__ = ["agree"]


def agree(question: str, *, yes: bool) -> None:
    """
    Return if the person agrees, or said so beforehand (``yes``).

    Raises Failed if not, and also where nobody can be asked because stdin is no terminal.
    """
    if yes:
        return
    # It is None where it was closed.
    if sys.stdin is None or not sys.stdin.isatty():
        raise Failed("nobody can be asked here (stdin is no terminal); --yes does it without asking", USAGE)
    sys.stderr.write(f"{clean(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Failed("nothing was changed")
