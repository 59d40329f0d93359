"""
The command line: ``kimi-sessions``.

Here is the way in and nothing else, so that ``--version`` costs little more than the interpreter. ``_commands`` has
the table of commands, ``app`` makes a program of it, one file per command has what that does. ``_options`` has what
all of them take, ``_where`` what they work on, ``_render`` how things look, ``_exit`` what becomes of errors.
Everything comes in by the library's front door.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

_COMPLETION_VARIABLE = "_KIMI_SESSIONS_COMPLETE"


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (the table is in ``_exit``)."""
    given = list(sys.argv[1:] if args is None else args)
    if given == ["--version"]:
        return _print_version()
    from ._exit import guarded

    return guarded(lambda: _run(given))


def _run(args: list[str]) -> int:
    asked = os.environ.get(_COMPLETION_VARIABLE)
    if asked:
        from ._completion import answer

        offered = answer(asked)
        if offered is not None:
            sys.stdout.write(offered + "\n")
            return 0
    else:
        from ._quick import read_plain_list

        plain = read_plain_list(args)
        if plain is not None:
            from ._listing import print_list

            print_list(*plain)
            return 0
    from .app import run

    return run(args)


def _print_version() -> int:
    from ._version import installed_version

    sys.stdout.write(f"kimi-sessions {installed_version()}\n")
    return 0
