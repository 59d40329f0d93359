"""
Sessions with known content, and what is left of it: what the crash, two-writer and torture tests stand on.

Every record and message carries a text of its own, so that a test can say which of them it acknowledged and which
of them it reads. Reading goes through the front door only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kimi_sessions import Session
from kimi_sessions.layout import CREATING_PREFIX, DELETING_PREFIX, TEMP_SUFFIX
from kimi_sessions.wire import TurnBegin

__all__ = ["said", "say", "snapshot", "strays", "told", "write"]


async def write(session: Session, texts: Iterable[str]) -> None:
    """Append one wire record for each text."""
    for text in texts:
        await session.wire_file.append_message(TurnBegin(user_input=text))


async def say(session: Session, texts: Iterable[str]) -> None:
    """Append one context message for each text."""
    for text in texts:
        await session.context.append({"role": "user", "content": text})


async def told(session: Session) -> list[str]:
    """Give the texts of the wire records that can be read, in order."""
    return [
        str(record.message.payload.get("user_input"))
        async for record in session.wire_file.iter_records()
        if record.message.type == "TurnBegin"
    ]


async def said(session: Session) -> list[str]:
    """Give the texts of the context messages that can be read, in order."""
    return [message.text for message in await session.context.messages()]


def snapshot(root: Path) -> dict[str, bytes]:
    """Give every file below a folder with its bytes; lock files are left out, they say nothing."""
    found: dict[str, bytes] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if name not in (".lock", ".hold") and path.is_file() and not path.is_symlink():
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def strays(*roots: Path, prefixes: tuple[str, ...] = (CREATING_PREFIX, DELETING_PREFIX)) -> list[str]:
    """Give what unfinished work would leave below some folders: temp files, and sessions half made or half gone."""
    found = []
    for root in roots:
        for folder, folders, names in os.walk(root):
            found += [str(Path(folder, name)) for name in names if name.endswith(TEMP_SUFFIX)]
            found += [str(Path(folder, name)) for name in (*folders, *names) if name.startswith(prefixes)]
    return sorted(found)
