"""
Steps that may wait, run from coroutines: in a thread where an event loop runs, in line where none does.

asyncio is not loaded here: the command line runs the library's coroutines without a loop, since loading one costs more
than most commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from ._log import logger

if TYPE_CHECKING:
    import asyncio

__all__ = ["answered", "in_thread"]

_R = TypeVar("_R")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    if "asyncio" not in sys.modules:
        return None
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def in_thread(step: Callable[..., _R], *args: Any, **kwargs: Any) -> _R:
    """Run a step that may wait in a thread; in line where no loop runs, since then nobody else is kept waiting."""
    if _running_loop() is None:
        return step(*args, **kwargs)
    import asyncio

    return await asyncio.to_thread(step, *args, **kwargs)


async def answered(step: Callable[[list[Callable[[], None]]], _R]) -> _R:
    """
    Run a step as ``in_thread`` does. What it puts into the list that it is called with is done when the answer was
    given, in one of the loop's threads, which the loop waits for at its end; where no loop runs, before.

    Where a loop runs, what fails after the answer is logged.
    """
    rest: list[Callable[[], None]] = []
    answer = await in_thread(step, rest)

    def finish() -> None:
        for each in rest:
            each()

    loop = _running_loop()
    if loop is None:
        finish()
    elif rest:
        try:
            doing = loop.run_in_executor(None, copy_context().run, finish)
        except RuntimeError as error:
            # Somebody ended the loop's threads meanwhile. The answer is there all the same.
            logger().debug("after an answer was given: %s", error)
        else:
            doing.add_done_callback(_tell_failure)
    return answer


def _tell_failure(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        logger().warning("after an answer was given: %r", done.exception())
