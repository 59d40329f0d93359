"""Which sessions a question is about: those of one work dir, or of every known one, and how they lie on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kimi_sessions import _fs, layout, metadata
from kimi_sessions._facts import facts_of
from kimi_sessions._store import Located, WorkDirStore, is_session_name
from kimi_sessions.layout import LOCAL_KAOS, Layout, ProjectLayout, work_dir_path
from kimi_sessions.session import Session, session_of

__all__ = ["Scope", "scopes"]


class Scope(NamedTuple):
    """A sessions folder of a work dir."""

    store: WorkDirStore
    path: str
    known: bool
    kaos: str

    @contextmanager
    def opened(self) -> Iterator[int | None]:
        """Give a descriptor of the folder, None where there is none. Raises OSError if it can't be read."""
        fd = self.store.open_sessions(self.path)
        try:
            yield fd
        finally:
            if fd is not None:
                _fs.active().close(fd)

    def names(self, fd: int) -> list[str]:
        """Return the names of the folders that may be sessions; flat files are moved into theirs first."""
        names, flat = _look(fd)
        if flat:
            self.store.scan()
            names, _ = _look(fd)
        return names

    def session(self, fd: int, name: str) -> Session | None:
        """Return a session, None if it is gone."""
        facts = facts_of(fd, name)
        if facts is None:
            return None
        return session_of(self.store, Located(facts, self.path), known=self.known, kaos=self.kaos)


def _look(fd: int) -> tuple[list[str], bool]:
    names = []
    flat = False
    with _fs.active().scandir(fd) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                if is_session_name(name):
                    names.append(name)
            elif name.endswith(layout.FLAT_SUFFIX) and entry.is_file(follow_symlinks=False):
                flat = True
    return names, flat


def scopes(work_dir: object | None, layout_: Layout | None) -> list[Scope]:
    """Return the sessions folders of a work dir, or (None) of every known one."""
    chosen = layout_ or ProjectLayout()
    if work_dir is not None:
        store = WorkDirStore(chosen, work_dir_path(work_dir))
        return [Scope(store, path, known=store.is_named, kaos=LOCAL_KAOS) for path in store.paths]
    found = []
    seen: set[str] = set()
    for entry in metadata.known_work_dirs(chosen)[0]:
        path = os.fspath(entry.sessions_path)
        if path not in seen:
            seen.add(path)
            store = WorkDirStore(chosen, entry.path or entry.sessions_path, sessions_path=entry.sessions_path)
            found.append(Scope(store, path, entry.path is not None, entry.kaos))
    return found
