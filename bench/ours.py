"""
What this library does, one case at a time, each in a process of its own. Run by ``bench.py`` and ``peers.py``.

A case warms up first (imports, the event loop's threads) on something small, so that a figure is that of the work.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from measure import Meter, main

from kimi_sessions import Session, ShareLayout

TEXT_BYTES = 250  # of text: with what the client puts around it, a record is some 400 bytes


def _layout(p: dict[str, Any]) -> ShareLayout:
    return ShareLayout(Path(p["root"], "share"))


def _work_dir(p: dict[str, Any]) -> Path:
    return Path(p["root"], "project")


async def _only(p: dict[str, Any]) -> Session:
    session = await Session.find(_work_dir(p), "only", layout=_layout(p))
    assert session is not None
    return session


async def _warm() -> None:
    """Load what a list loads, and start a thread."""
    with tempfile.TemporaryDirectory() as folder:
        await Session.list(folder, layout=ShareLayout(Path(folder, "share")))
    await asyncio.to_thread(os.getpid)


# --- many sessions -----------------------------------------------------------------------------------------------


async def list_sessions(p: dict[str, Any]) -> dict[str, Any]:
    """List a work dir; ``ready`` (path of nothing) loads the catalog's library first."""
    await _warm()
    import kimi_sessions.catalog.listing  # noqa: F401

    with Meter() as meter:
        sessions = await Session.list(_work_dir(p), layout=_layout(p), limit=p.get("limit"))
    assert len(sessions) == p["expect"], (len(sessions), p["expect"])
    return meter.result


async def list_after_one_change(p: dict[str, Any]) -> dict[str, Any]:
    """List a work dir in which one session changed since the catalog was made."""
    await _warm()
    sessions = await Session.list(_work_dir(p), layout=_layout(p))
    from kimi_sessions.wire import TextPart

    await sessions[len(sessions) // 2].wire_file.append_message(TextPart(text="one more"))
    with Meter() as meter:
        sessions = await Session.list(_work_dir(p), layout=_layout(p))
    assert len(sessions) == p["expect"]
    return meter.result


async def find(p: dict[str, Any]) -> dict[str, Any]:
    """Find one session by its id."""
    await _warm()
    with Meter() as meter:
        session = await Session.find(_work_dir(p), p.get("id", "only"), layout=_layout(p))
    assert session is not None
    assert p.get("title") is None or session.title == p["title"], session.title
    return meter.result


async def find_many(p: dict[str, Any]) -> dict[str, Any]:
    """Find one session by its id, over and over."""
    await _warm()
    layout, work_dir, name = _layout(p), _work_dir(p), p.get("id", "only")
    await Session.find(work_dir, name, layout=layout)
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            await Session.find(work_dir, name, layout=layout)
    return meter.result


async def continue_(p: dict[str, Any]) -> dict[str, Any]:
    """Find the session to go on with: the recorded last one."""
    await _warm()
    layout, work_dir = _layout(p), _work_dir(p)
    first = await Session.continue_(work_dir, layout=layout)
    assert first is not None
    first.mark_last()
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            assert await Session.continue_(work_dir, layout=layout) is not None
    return meter.result


# --- appending ---------------------------------------------------------------------------------------------------


def _texts() -> Any:
    from kimi_sessions.wire import TextPart

    return [TextPart(text=f"{number:06d} " + "word " * (TEXT_BYTES // 5)) for number in range(100)]


async def append(p: dict[str, Any]) -> dict[str, Any]:
    """Append typed messages, one awaited after another."""
    wire = (await _only(p)).wire_file
    texts = itertools.cycle(_texts())
    await wire.append_message(next(texts))
    count = p["count"]
    with Meter(count) as meter:
        for text in itertools.islice(texts, count):
            await wire.append_message(text)
    return meter.result


async def append_batches(p: dict[str, Any]) -> dict[str, Any]:
    """Append typed messages, 64 to a call; the time is that of one message."""
    wire = (await _only(p)).wire_file
    batch = (_texts() * 2)[:64]
    await wire.append_many(batch)
    calls = p["count"] // 64
    with Meter(calls * 64) as meter:
        for _ in range(calls):
            await wire.append_many(batch)
    return meter.result


async def append_synced(p: dict[str, Any]) -> dict[str, Any]:
    """Append in "disk" durability from so many tasks at once; the time is that of one message."""
    session = await _only(p)
    session.durability = "disk"
    wire = session.wire_file
    text = _texts()[0]
    await wire.append_message(text)
    tasks, each = p["tasks"], max(p["count"] // p["tasks"], 1)

    async def work() -> None:
        for _ in range(each):
            await wire.append_message(text)

    with Meter(tasks * each) as meter:
        await asyncio.gather(*(work() for _ in range(tasks)))
    return meter.result


async def append_context(p: dict[str, Any]) -> dict[str, Any]:
    """Append messages to the context, one awaited after another, or ``batch`` to a call."""
    from kimi_sessions.context import Message

    context = (await _only(p)).context
    message = Message(role="user", content="word " * (TEXT_BYTES // 5))
    await context.append(message)
    batch, count = p.get("batch", 1), p["count"]
    if batch == 1:
        with Meter(count) as meter:
            for _ in range(count):
                await context.append(message)
    else:
        with Meter(count // batch * batch) as meter:
            for _ in range(count // batch):
                await context.append([message] * batch)
    return meter.result


# --- reading -----------------------------------------------------------------------------------------------------


async def iterate(p: dict[str, Any]) -> dict[str, Any]:
    """Go through all records as they are; the time is that of one record."""
    wire = (await _only(p)).wire_file
    count = 0
    with Meter() as meter:
        async for _ in wire.iter_records():
            count += 1
    return _per(meter, count)


async def iterate_typed(p: dict[str, Any]) -> dict[str, Any]:
    """Go through all records and give each its type; the time is that of one record."""
    from kimi_sessions.wire import TurnEnd, WireMessageRecord

    WireMessageRecord.from_wire_message(TurnEnd()).to_wire_message()
    wire = (await _only(p)).wire_file
    count = 0
    with Meter() as meter:
        async for record in wire.iter_records():
            record.to_wire_message()
            count += 1
    return _per(meter, count)


def _per(meter: Meter, count: int) -> dict[str, Any]:
    result = meter.result
    return result | {"wall_s": result["wall_s"] / count, "cpu_s": result["cpu_s"] / count, "count": count}


async def turns(p: dict[str, Any]) -> dict[str, Any]:
    """Find all turns."""
    await _warm()
    session = await _only(p)
    import kimi_sessions.catalog.turns  # noqa: F401

    with Meter() as meter:
        found = await session.turns()
    return meter.result | {"count": len(found)}


async def turns_after_append(p: dict[str, Any]) -> dict[str, Any]:
    """Find all turns when one record was appended since the last look."""
    from kimi_sessions.wire import TextPart

    await _warm()
    session = await _only(p)
    await session.turns()
    await session.wire_file.append_message(TextPart(text="one more"))
    with Meter() as meter:
        found = await session.turns()
    return meter.result | {"count": len(found)}


async def messages(p: dict[str, Any]) -> dict[str, Any]:
    """Read messages of the context: all, or the newest ``limit``; ``look`` looks at each one's text too."""
    from kimi_sessions.context import ContextFile, Message

    Message(role="user", content="warm")
    context = (await _only(p)).context
    with tempfile.TemporaryDirectory() as folder:
        warm = ContextFile(Path(folder, "c.jsonl"))
        await warm.append([Message(role="user", content="warm")] * 3)
        await warm.messages(2)
        await warm.messages()
    with Meter() as meter:
        found = await context.messages(p.get("limit"))
        if p.get("look"):
            for message in found:
                assert message.text is not None
    return meter.result | {"count": len(found)}


async def fork(p: dict[str, Any]) -> dict[str, Any]:
    """Fork at the middle turn."""
    from kimi_sessions.wire import TurnBegin

    with tempfile.TemporaryDirectory() as folder:
        small = await Session.create(folder)
        await small.wire_file.append_message(TurnBegin(user_input="warm"))
        await small.fork(0)
    session = await _only(p)
    middle = p["turns"] // 2
    with Meter() as meter:
        new = await session.fork(middle)
    shutil.rmtree(new.path)
    return meter.result | {"count": middle + 1}


# --- search and statistics ---------------------------------------------------------------------------------------


async def search(p: dict[str, Any]) -> dict[str, Any]:
    """Search a work dir (the first search builds the index); ``append`` adds a record just before."""
    from kimi_sessions.catalog import search as look

    await _warm()
    layout, work_dir = _layout(p), _work_dir(p)
    if p.get("append"):
        from kimi_sessions.wire import TextPart

        newest = (await Session.list(work_dir, layout=layout, limit=1))[0]
        await newest.wire_file.append_message(TextPart(text="one more"))
    with Meter() as meter:
        result = await look(p["query"], work_dir, layout=layout, limit=p.get("limit", 50))
    return meter.result | {"count": len(result.hits)}


async def stats(p: dict[str, Any]) -> dict[str, Any]:
    """Statistics of a session; ``append`` adds a record between a first look and the one that is measured."""
    from kimi_sessions.catalog import session_stats

    await _warm()
    session = await _only(p)
    if p.get("append"):
        from kimi_sessions.wire import TextPart

        await session_stats(session)
        await session.wire_file.append_message(TextPart(text="one more"))
    with Meter() as meter:
        await session_stats(session)
    return meter.result


if __name__ == "__main__":
    main(
        {
            "append": append,
            "append_batches": append_batches,
            "append_context": append_context,
            "append_synced": append_synced,
            "continue": continue_,
            "find": find,
            "find_many": find_many,
            "fork": fork,
            "iterate": iterate,
            "iterate_typed": iterate_typed,
            "list": list_sessions,
            "list_after_one_change": list_after_one_change,
            "messages": messages,
            "search": search,
            "stats": stats,
            "turns": turns,
            "turns_after_append": turns_after_append,
        }
    )
