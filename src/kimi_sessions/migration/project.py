"""
A project's own store as a source: the sessions below ``<work_dir>/.kimi``.

Only sessions that this user sealed go on to Kimi CLI's share dir, where everything counts as the user's own: one that
came with a cloned repository could otherwise allow itself every tool call there.
"""

from __future__ import annotations

from pathlib import Path

from kimi_sessions import _fs, metadata
from kimi_sessions._document import read_document
from kimi_sessions._store import WorkDirStore
from kimi_sessions.layout import STATE, ProjectLayout, work_dir_key

from .share import fill_work_dir
from .sources import SourceWorkDir

__all__ = ["read_project"]


def read_project(work_dir: Path) -> SourceWorkDir:
    """Take stock of a project's sessions. Reads only; what can't be read is named in ``left``."""
    layout = ProjectLayout()
    store = WorkDirStore(layout, work_dir)
    source = SourceWorkDir(work_dir_key(str(work_dir)), str(work_dir), str(layout.sessions_path(work_dir)))
    source.last_session_id = metadata.load_work_dir_meta(layout, work_dir, store.resolved).last_session_id
    fill_work_dir(source)
    for session in source.sessions:
        if session.refusal or session.era == "flat":
            if not session.refusal:
                session.refusal = (
                    "a flat file in a project is not sealed as yours; list the project's sessions first"
                )
            continue
        fd = _fs.open_folder(layout.sessions_path(work_dir) / session.id)
        try:
            verdict = store.verdict_at(fd, session.id, read_document(STATE, dir_fd=fd).value or {})
        finally:
            _fs.active().close(fd)
        if not (verdict.trusted and verdict.approvals_ok):
            session.refusal = (
                f"it is not sealed as yours ({verdict.problem}); 'kimi-sessions trust' tells more"
            )
    return source
