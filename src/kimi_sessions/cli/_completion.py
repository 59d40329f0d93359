"""
What the shell offers after TAB: names of commands, and ids with their titles.

The scripts that ``--install-completion`` installs are typer's, and so is their protocol; typer itself answers for
options. Commands and ids are answered here, without loading it. Some shells evaluate what they get, and an id or a
title may have come with somebody's repository: only plain ids are offered, and of titles only letters, digits and
harmless signs are left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["answer"]

_PLAIN_ID = re.compile(r"\w[\w.-]*")
_HARMLESS = frozenset(" .,-_/+@")
_FLAGS = {"--json": "as_json", "--share": "share"}
_VALUES = {"--work-dir": "work_dir", "-w": "work_dir", "--share-dir": "share_dir"}
_TITLE = 60

Offer = tuple[str, str]


def answer(instruction: str) -> str | None:
    """
    Return what to print for a shell's request (``complete_zsh``), None if the parser should answer.

    Never fails because of what a store holds or that there is none.
    """
    action, _, shell = instruction.partition("_")
    if action != "complete" or shell not in {"bash", "zsh", "fish"}:
        return None
    words, begun = _words(shell)
    if begun.startswith("-"):
        return None
    offers = _offers(words, begun)
    if offers is None:
        return None
    return _PRINTERS[shell](offers)


def _words(shell: str) -> tuple[list[str], str]:
    """Return the words before the one that is being typed, and what there is of that one."""
    import shlex

    if shell == "bash":
        words = os.environ.get("COMP_WORDS", "").split("\n")
        try:
            at = int(os.environ.get("COMP_CWORD", ""))
        except ValueError:
            at = len(words)
        return words[1:at], words[at] if at < len(words) else ""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(line)[1:]
    except ValueError:
        words = line.split()[1:]
    if words and not line[-1].isspace():
        return words[:-1], words[-1]
    return words, ""


def _offers(words: Sequence[str], begun: str) -> list[Offer] | None:
    from ._commands import COMMANDS, find

    given: dict[str, Any] = {"work_dir": None, "share": False, "share_dir": None, "as_json": False}
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in _VALUES:
            if not equals:
                value = next(rest, "")
            if value == "=":
                value = next(rest, "")
            if not value:
                return None
            given[_VALUES[name]] = value
        elif word in _FLAGS:
            given[_FLAGS[word]] = True
        elif not word.startswith("-"):
            plain.append(word)
    if not plain:
        if words and words[-1] in _VALUES:
            return None
        return [(name, row.help) for name, row in COMMANDS.items() if name.startswith(begun)]
    row = find(plain[0])
    if row is None or not row.takes_id or len(plain) > 1:
        return None
    return _ids(given, begun)


def _ids(given: dict[str, Any], begun: str) -> list[Offer]:
    from kimi_sessions import Session, SessionsError

    from ._exit import Failed
    from ._where import Where, in_line

    try:
        where = Where.given(**given)
        sessions = in_line(Session.list(where.work_dir, layout=where.layout))
    except (SessionsError, OSError, Failed):
        return []
    found = [(session.id, session.title) for session in sessions if session.id.startswith(begun)]
    if "@last".startswith(begun) and (begun or found):
        found.append(("@last", "the last one"))
    return [(name, _harmless(title)) for name, title in found if name == "@last" or _PLAIN_ID.fullmatch(name)]


def _harmless(title: str) -> str:
    return " ".join(
        "".join(char if char.isalnum() or char in _HARMLESS else " " for char in title[:_TITLE]).split()
    )


def _for_bash(offers: Iterable[Offer]) -> str:
    return "\n".join(value for value, _ in offers)


def _for_zsh(offers: Iterable[Offer]) -> str:
    found = [f'"{value}":"{_harmless(text)}"' for value, text in offers]
    return "_arguments '*: :((" + "\n".join(found) + "))'" if found else "_files"


def _for_fish(offers: Iterable[Offer]) -> str:
    found = [f"{value}\t{text}" for value, text in offers]
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        raise SystemExit(0 if found else 1)
    return "\n".join(found)


_PRINTERS = {"bash": _for_bash, "zsh": _for_zsh, "fish": _for_fish}
