"""
What a migration carries: files with the names they will have, sessions made of them, and the work dirs they are of.

Values only, and the one way to open a file of a source: component by component, no link followed, nothing written.
How each old layout is read is told in that layout's own file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kimi_sessions import _fs
from kimi_sessions.layout import LOCAL_KAOS

__all__ = ["NO_LOG", "Left", "SourceFile", "SourceFolder", "SourceSession", "SourceWorkDir", "open_source"]


#: The era of a folder that holds no log: no session to anyone, and carried all the same.
NO_LOG = "no log"


class Left(NamedTuple):
    """Something that can't be carried: its path below the sessions folder or the session, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """
    One file that will be part of a session.

    ``name`` is its path below the session's folder to be, ``place`` the one it has now, below ``root`` (both with
    ``/``). Where ``make`` is given there is no such file: the bytes are made from another format when asked for.
    """

    name: str
    root: str
    place: str
    size_bytes: int
    mtime_ns: int
    make: Callable[[], bytes] | None = None


class SourceFolder(NamedTuple):
    """A folder inside a session; empty ones are carried too."""

    name: str
    mtime_ns: int


@dataclass(slots=True)
class SourceSession:
    """
    One session of a source, as it was when the source was scanned.

    ``era`` names its layout. ``places`` are the names it takes up in ``sessions_path``. ``created_at`` is in epoch
    seconds. ``refusal`` says why it can't be carried at all, "" if it can.
    """

    id: str
    era: str
    sessions_path: str
    places: tuple[str, ...]
    title: str = ""
    created_at: float = 0.0
    empty: bool = False
    mtime_ns: int | None = None
    files: list[SourceFile] = field(default_factory=list)
    folders: list[SourceFolder] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusal: str = ""

    @property
    def size_bytes(self) -> int:
        """How many bytes its files had."""
        return sum(file.size_bytes for file in self.files)


@dataclass(slots=True)
class SourceWorkDir:
    """
    One folder of sessions in a source.

    ``path`` is the work dir as the source's registry has it, None where none does. ``key`` is what a person calls
    the folder by. ``left`` holds what lies there and belongs to no session.
    """

    key: str
    path: str | None
    sessions_path: str
    kaos: str = LOCAL_KAOS
    last_session_id: str | None = None
    sessions: list[SourceSession] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def open_source(file: SourceFile) -> int:
    """Open a file of a source for reading. Raises IrregularFileError (a link, a pipe, a device) or OSError."""
    fs = _fs.active()
    *folders, name = file.place.split("/")
    fd = _fs.open_folder(file.root)
    try:
        for folder in folders:
            below = _fs.open_folder(folder, dir_fd=fd)
            fs.close(fd)
            fd = below
        return _fs.open_regular(name, dir_fd=fd)
    finally:
        fs.close(fd)
