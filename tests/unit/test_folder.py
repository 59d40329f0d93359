"""The folder of an open session: its locks, and what is open when."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.seam import UnsyncedFs

from kimi_sessions import Session
from kimi_sessions._fs import using
from kimi_sessions.repair import repair
from kimi_sessions.wire import TurnBegin


def open_files() -> int:
    """Count this program's descriptors."""
    gc.collect()
    return len(os.listdir("/dev/fd"))


CHANGES: dict[str, Callable[[Session], Awaitable[object]]] = {
    "rename": lambda session: session.rename("a title"),
    "archive": lambda session: session.archive(),
    "tag": lambda session: session.tag("a"),
    "pin": lambda session: session.pin(),
    "trust": lambda session: session.trust(),
    "fork": lambda session: session.fork(),
    "repair": repair,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_any_number_of_sessions_can_be_changed_in_one_program(
    tmp_path: Path, home: Path, change: Callable[[Session], Awaitable[object]]
) -> None:
    """A change leaves nothing open, though the session object lives on: lists have more of them than descriptors."""
    with using(UnsyncedFs()):
        sessions = [await Session.create(tmp_path, f"s{number}") for number in range(3)]
        before = open_files()
        for session in sessions:
            await change(session)
        assert open_files() == before


async def test_appends_keep_open_what_they_have_until_the_session_is_closed(tmp_path: Path) -> None:
    """A change between two appends does not close what these need; ``close`` does."""
    with using(UnsyncedFs()):
        before = open_files()
        session = await Session.create(tmp_path)
        await session.wire_file.append_message(TurnBegin(user_input="hello"))
        appending = open_files()
        assert appending > before
        await session.rename("a title")
        await session.wire_file.append_message(TurnBegin(user_input="hello again"))
        assert open_files() == appending
        await session.close()
        assert open_files() == before
    assert [turn.user_text for turn in await session.turns()] == ["hello", "hello again"]
