"""
The layout of Kimi CLI up to 0.58: all sessions of a work dir as flat files in one folder.

    <id>.jsonl           the context          becomes  <id>/context.jsonl
    <id>_2.jsonl         its second rotation  becomes  <id>/context_2.jsonl
    <id>_sub_1.jsonl     a subagent's context becomes  <id>/context_sub_1.jsonl

The last two are parts of ``<id>`` only where that session is there. A later client may have made a folder of the same
id: then the folder's file keeps the name, and the flat one is carried under the next free number, so that both are
there and neither is hidden.
"""

from __future__ import annotations

import os

from kimi_sessions import ids, layout
from kimi_sessions._text import UNTITLED, clean
from kimi_sessions.errors import InvalidIdError

from .sources import SourceFile, SourceSession

__all__ = ["add_flat_files"]


def add_flat_files(
    flats: dict[str, os.stat_result], sessions: dict[str, SourceSession], sessions_path: str
) -> None:
    """
    Sort flat files (by name, with their stats) into sessions: into those that have a folder, and into new ones.

    ``sessions`` is keyed by id and changed in place.
    """
    folders = set(sessions)
    for name in sorted(flats, key=lambda name: (layout.flat_owner(name, flats, folders) is not None, name)):
        owner = layout.flat_owner(name, flats, folders)
        side = layout.split_flat_side(name) if owner is not None else None
        session_id = owner if owner is not None else name[: -len(layout.FLAT_SUFFIX)]
        wanted = side[1] if side is not None else layout.CONTEXT
        session = sessions.get(session_id)
        if session is None:
            session = _new_session(session_id, sessions_path, flats[name])
            sessions[session_id] = session
        taken = {file.name for file in session.files}
        target = wanted if wanted not in taken else next(layout.further_context_names(wanted, taken))
        if target != wanted:
            session.notes.append(
                f"the old flat file {clean(name)} is carried as {target}: {wanted} is there too"
            )
        facts = flats[name]
        session.files.append(SourceFile(target, sessions_path, name, facts.st_size, facts.st_mtime_ns))
        session.places = (*session.places, name)


def _new_session(session_id: str, sessions_path: str, facts: os.stat_result) -> SourceSession:
    session = SourceSession(id=session_id, era="flat", sessions_path=sessions_path, places=(), title=UNTITLED)
    session.created_at = facts.st_mtime
    try:
        ids.parse_session_id(session_id)
    except InvalidIdError as error:
        session.refusal = f"its name can't be a session's: {error.reason}"
    return session
