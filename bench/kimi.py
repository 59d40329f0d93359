"""
The same work done by Kimi CLI's own modules, one case at a time. Run by ``peers.py`` in Kimi CLI's environment.

Only what that client's own programs call is called, and it is warmed up in the same way as our side.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

from measure import Meter, main

TEXT_BYTES = 250


def _paths(p: dict[str, Any]) -> tuple[Any, Path]:
    """Return the work dir as the client wants it, and the folder of the one session."""
    os.environ["KIMI_SHARE_DIR"] = str(Path(p["root"], "share"))
    from kaos.path import KaosPath
    from kimi_cli.metadata import load_metadata

    work_dir = KaosPath(str(Path(p["root"], "project")))
    meta = load_metadata().get_work_dir_meta(work_dir)
    assert meta is not None
    return work_dir, meta.sessions_dir / "only"


async def _warm() -> None:
    await asyncio.to_thread(os.getpid)


async def list_sessions(p: dict[str, Any]) -> dict[str, Any]:
    """List a work dir."""
    work_dir, _ = _paths(p)
    from kimi_cli.session import Session

    await _warm()
    with Meter() as meter:
        sessions = await Session.list(work_dir)
    assert len(sessions) == p["expect"], (len(sessions), p["expect"])
    return meter.result


async def find(p: dict[str, Any]) -> dict[str, Any]:
    """Find one session by its id."""
    work_dir, _ = _paths(p)
    from kimi_cli.session import Session

    await _warm()
    with Meter() as meter:
        session = await Session.find(work_dir, p.get("id", "only"))
    assert session is not None
    assert p.get("title") is None or session.title == p["title"], session.title
    return meter.result


async def find_many(p: dict[str, Any]) -> dict[str, Any]:
    """Find one session by its id, over and over."""
    work_dir, _ = _paths(p)
    from kimi_cli.session import Session

    name = p.get("id", "only")
    await Session.find(work_dir, name)
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            await Session.find(work_dir, name)
    return meter.result


async def continue_(p: dict[str, Any]) -> dict[str, Any]:
    """Find the session to go on with: the recorded last one."""
    work_dir, _ = _paths(p)
    from kimi_cli.metadata import load_metadata, save_metadata
    from kimi_cli.session import Session

    session = (await Session.list(work_dir))[0]
    metadata = load_metadata()
    meta = metadata.get_work_dir_meta(work_dir)
    assert meta is not None
    meta.last_session_id = session.id
    save_metadata(metadata)
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            assert await Session.continue_(work_dir) is not None
    return meter.result


def _wire(p: dict[str, Any]) -> Any:
    from kimi_cli.wire.file import WireFile

    return WireFile(_paths(p)[1] / "wire.jsonl")


async def append(p: dict[str, Any]) -> dict[str, Any]:
    """Append typed messages, one awaited after another."""
    from kosong.message import TextPart

    wire = _wire(p)
    texts = [TextPart(text=f"{number:06d} " + "word " * (TEXT_BYTES // 5)) for number in range(100)]
    await wire.append_message(texts[0])
    with Meter(p["count"]) as meter:
        for text in itertools.islice(itertools.cycle(texts), p["count"]):
            await wire.append_message(text)
    return meter.result


def _per(meter: Meter, count: int) -> dict[str, Any]:
    result = meter.result
    return result | {"wall_s": result["wall_s"] / count, "cpu_s": result["cpu_s"] / count, "count": count}


async def iterate(p: dict[str, Any]) -> dict[str, Any]:
    """Go through all records as they are; the time is that of one record."""
    wire = _wire(p)
    await _warm()
    count = 0
    with Meter() as meter:
        async for _ in wire.iter_records():
            count += 1
    return _per(meter, count)


async def iterate_typed(p: dict[str, Any]) -> dict[str, Any]:
    """Go through all records and give each its type; the time is that of one record."""
    wire = _wire(p)
    await _warm()
    count = 0
    with Meter() as meter:
        async for record in wire.iter_records():
            record.to_wire_message()
            count += 1
    return _per(meter, count)


def turns(p: dict[str, Any]) -> dict[str, Any]:
    """Find all turns."""
    _, folder = _paths(p)
    from kimi_cli.session_fork import enumerate_turns

    with Meter() as meter:
        found = enumerate_turns(folder / "wire.jsonl")
    return meter.result | {"count": len(found)}


async def messages(p: dict[str, Any]) -> dict[str, Any]:
    """Read all messages of the context; to have the newest ones this client reads all of them too."""
    _, folder = _paths(p)
    from kimi_cli.soul.context import Context

    await _warm()
    context = Context(folder / "context.jsonl")
    with Meter() as meter:
        await context.restore()
        found = context.history[-p["limit"] :] if p.get("limit") else context.history
    return meter.result | {"count": len(found)}


async def fork(p: dict[str, Any]) -> dict[str, Any]:
    """Fork at the middle turn."""
    work_dir, folder = _paths(p)
    from kimi_cli.session_fork import fork_session

    await _warm()
    middle = p["turns"] // 2
    with Meter() as meter:
        new_id = await fork_session(folder, work_dir, middle)
    shutil.rmtree(folder.parent / new_id)
    return meter.result | {"count": middle + 1}


if __name__ == "__main__":
    main(
        {
            "append": append,
            "continue": continue_,
            "find": find,
            "find_many": find_many,
            "fork": fork,
            "iterate": iterate,
            "iterate_typed": iterate_typed,
            "list": list_sessions,
            "messages": messages,
            "turns": turns,
        }
    )
