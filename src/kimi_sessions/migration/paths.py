"""
Where a path has moved to: ``OLD=NEW`` pairs, applied at name boundaries.

``/p/foo`` says nothing about ``/p/foo-docker``. Paths of another system are recognised by their look (``C:\\git``,
``\\\\host\\share``): their drive letter's case and their kind of slash do not matter, and what follows the old prefix
is written with ``/``. Text only; no disk is looked at.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["PathMap", "looks_like_windows", "parse_pair"]

_DRIVE = re.compile(r"[A-Za-z]:([\\/]|$)")


class _Pair(NamedTuple):
    old: str
    new: str


def looks_like_windows(path: str) -> bool:
    """Tell whether a path is one of Windows: a drive letter, or a name that begins with two backslashes."""
    return _DRIVE.match(path) is not None or path.startswith("\\\\")


def _folded(path: str) -> str:
    """Return the form in which two spellings of one path are equal, without a slash at its end."""
    if looks_like_windows(path):
        path = path.replace("\\", "/")
        path = path[:1].lower() + path[1:]
    return path.rstrip("/") or "/"


def parse_pair(text: str) -> tuple[str, str]:
    """
    Split ``OLD=NEW``. A path may hold a ``=`` itself: the first split with two sides that can stand alone counts.

    Raises ValueError with a sentence.
    """
    at = text.find("=")
    fallback: tuple[str, str] | None = None
    while at >= 0:
        old, new = text[:at], text[at + 1 :]
        if old and new:
            if fallback is None:
                fallback = (old, new)
            if _is_absolute(new) or new.startswith((".", "~")):
                return old, new
        at = text.find("=", at + 1)
    if fallback is None:
        message = f"{text!r} is not OLD=NEW"
        raise ValueError(message)
    return fallback


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or looks_like_windows(path)


class PathMap:
    """Pairs of old and new; where several fit a path, the longest old one counts."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = sorted((_Pair(*pair) for pair in pairs), key=lambda pair: -len(_folded(pair.old)))

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def exact(self, name: str) -> str | None:
        """Return what ``name`` (a key, or a whole path) itself is mapped to, None if nothing is said about it."""
        for pair in self._pairs:
            if pair.old == name or _folded(pair.old) == _folded(name):
                return pair.new
        return None

    def apply(self, path: str) -> str | None:
        """Return the path's new spelling, None if no pair is about it."""
        folded = _folded(path)
        for pair in self._pairs:
            old = _folded(pair.old)
            if folded == old:
                return pair.new
            head = old if old.endswith("/") else old + "/"
            if folded.startswith(head):
                return posixpath.join(pair.new, folded[len(head) :])
        return None

    def olds(self) -> list[str]:
        """Return the old paths, as they were given."""
        return [pair.old for pair in self._pairs]
