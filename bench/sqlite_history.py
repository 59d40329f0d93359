"""The message history of openai-agents, for orientation. Run by ``peers.py`` in that package's environment."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from measure import Meter, main

TEXT_BYTES = 250


def _item(number: int) -> Any:
    return {"role": "user", "content": f"{number:06d} " + "word " * (TEXT_BYTES // 5)}


async def _run(p: dict[str, Any], kind: str) -> dict[str, Any]:
    from agents import SQLiteSession

    await asyncio.to_thread(os.getpid)
    with tempfile.TemporaryDirectory() as folder:
        session = SQLiteSession("only", Path(folder, "agents.db"))
        await session.add_items([_item(0)])
        count = p["count"]
        if kind == "add_one":
            with Meter(count) as meter:
                for number in range(count):
                    await session.add_items([_item(number)])
            return meter.result
        if kind == "add_batch":
            items = [_item(number) for number in range(10_000)]
            with Meter(len(items)) as meter:
                await session.add_items(items)
            return meter.result
        for first in range(0, count, 10_000):
            await session.add_items([_item(first + number) for number in range(10_000)])
        if kind == "newest":
            with Meter() as meter:
                await session.get_items(20)
            return meter.result
        with Meter(count) as meter:
            await session.get_items()
        return meter.result


if __name__ == "__main__":
    main({kind: (lambda p, kind=kind: _run(p, kind)) for kind in ("add_one", "add_batch", "newest", "all")})
