"""A work dir may be given as a KaosPath: as anything that knows its local path, and as the real one where it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kimi_sessions import Layout, ProjectLayout, Session, ShareLayout
from kimi_sessions.wire import TurnBegin

NO_KAOS = "the optional package pykaos (extra `kaos`) is not installed; it needs Python 3.12 or later"


class KaosLike:
    """What this library asks of a KaosPath, and no more."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def unsafe_to_local_path(self) -> Path:
        """Give the local path."""
        return self._path


@pytest.fixture(params=["project", "share"])
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> Layout:
    """Give each layout."""
    return ProjectLayout() if request.param == "project" else ShareLayout(tmp_path / "share")


async def use(on_kaos: Any, work_dir: Path, layout: Layout) -> None:
    """Make, list, find and continue sessions of a work dir given as a KaosPath, and of the same one given plainly."""
    session = await Session.create(on_kaos, layout=layout)
    assert session.work_dir == work_dir
    assert session.work_dir_meta.path == str(work_dir)
    await session.wire_file.append_message(TurnBegin(user_input="hello from afar"))
    for place in (on_kaos, work_dir, str(work_dir)):
        assert [listed.title for listed in await Session.list(place, layout=layout)] == ["hello from afar"]
        assert await Session.find(place, session.id, layout=layout) == session
        assert await Session.continue_(place, layout=layout) == session
    await session.trash()
    assert await Session.restore(on_kaos, session.id, layout=layout) == session


async def test_anything_that_knows_its_local_path_is_a_work_dir(work_dir: Path, layout: Layout) -> None:
    """No package is needed for that."""
    await use(KaosLike(work_dir), work_dir, layout)


@pytest.mark.skipif(importlib.util.find_spec("kaos") is None, reason=NO_KAOS)
async def test_a_real_kaos_path_is_a_work_dir(work_dir: Path, layout: Layout) -> None:
    """`KaosPath.unsafe_from_local_path` is how programs written for Kimi CLI's own sessions give theirs."""
    from kaos.path import KaosPath

    await use(KaosPath.unsafe_from_local_path(work_dir), work_dir, layout)


@pytest.mark.skipif(importlib.util.find_spec("kaos") is None, reason=NO_KAOS)
async def test_programs_written_for_kimi_cli_s_sessions_run_with_our_import(work_dir: Path) -> None:
    """Create one, list them, go on with the last one: by position, as the old client's functions are called."""
    from kaos.path import KaosPath

    session = await Session.create(KaosPath.unsafe_from_local_path(Path(work_dir)), "from-kimi")
    await session.context.append({"role": "user", "content": "hi"})
    sessions = await Session.list(KaosPath.unsafe_from_local_path(Path(work_dir)))
    assert [each.id for each in sessions] == ["from-kimi"]
    last = await Session.continue_(KaosPath.unsafe_from_local_path(Path(work_dir)))
    assert last is not None
    assert last.id == "from-kimi"
