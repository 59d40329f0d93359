"""
The asynchronous skin of an append log: in line where nobody waits, one thread hop where somebody would.

Acknowledgement is the end of ``append``, and nothing here remembers a record beyond it. In ``"disk"`` durability,
appends that run at the same time share one write and one sync: while one batch is being synced the next one gathers,
in the order they were made. A batch that can't be written or synced fails for all that are in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ._append_log import AppendLog, Durability
from .errors import SessionsError, WriteError

__all__ = ["Appender", "checked_durability"]


def checked_durability(durability: Durability) -> Durability:
    """Return a durability. Raises ValueError for any other value."""
    if durability not in ("os", "disk"):
        message = f"durability is 'os' or 'disk', not {durability!r}"
        raise ValueError(message)
    return durability


class Appender:
    """
    Appends to one log from coroutines of one event loop (any number of them).

    ``on_first`` is called once, in a thread, after the first append in this process that succeeded.
    """

    __slots__ = ("_committing", "_gathered", "_on_first", "_plain", "_waiting", "durability", "log")

    def __init__(
        self, log: AppendLog, *, durability: Durability = "os", on_first: Callable[[], None] | None = None
    ) -> None:
        self.log = log
        self._on_first = on_first
        self.set_durability(durability)
        #: What the next batch writes, and who waits for it.
        self._gathered: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._committing: asyncio.Task[None] | None = None

    def set_durability(self, durability: Durability) -> None:
        """Change what an append from now on waits for. Raises ValueError."""
        self.durability = checked_durability(durability)
        #: True where an append that was written has nothing left to do.
        self._plain = durability == "os" and self._on_first is None

    def append(self, data: bytes) -> Coroutine[Any, Any, None] | None:
        """
        Append whole lines. None means it is done; else it is done, and durable as ``durability`` says, when what
        this returns has been awaited.

        Raises WriteError, SessionBusyError, SessionNotFoundError; then nothing was acknowledged.
        """
        if self.durability == "disk":
            return self._acknowledge(data)
        if not self.log.try_append(data):
            return self._append_in_thread(data)
        return None if self._plain else self._acknowledge()

    async def _append_in_thread(self, data: bytes) -> None:
        await asyncio.to_thread(self.log.append, data)
        await self._acknowledge()

    async def _acknowledge(self, data: bytes = b"") -> None:
        """Do what is left to do for an append: in ``"disk"`` durability all of it."""
        # What was not written yet has to be, even if the durability was changed since.
        if data or self.durability == "disk":
            await self._committed(data)
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            self._plain = self.durability == "os"
            # It may wait for other programs' locks, and for the disk.
            await asyncio.to_thread(on_first)

    async def run_locked(self, step: Callable[[], bytes | None]) -> None:
        """
        Under the lock, in a thread: append what ``step`` returns (None: it did its own work).

        For steps that read before they write, such as a checkpoint. Durable as ``append``.
        """
        await asyncio.to_thread(self._run_locked, step)
        await self._acknowledge()

    def _run_locked(self, step: Callable[[], bytes | None]) -> None:
        with self.log.lock:
            try:
                data = step()
            except SessionsError:
                raise
            except OSError as error:
                # The step could not read what it builds on.
                raise WriteError.of(error, self.log.path) from error
            if data is not None:
                self.log.append_locked(data)

    async def _committed(self, data: bytes) -> None:
        """Write ``data`` (nothing: it is written) with what others have, and wait until it is on the device."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if data:
            self._gathered.append(data)
        if self._committing is None:
            self._committing = loop.create_task(self._commit_all())
        await waiter

    async def _commit_all(self) -> None:
        waiting: list[asyncio.Future[None]] = []
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                gathered, self._gathered = self._gathered, []
                try:
                    await asyncio.to_thread(self._commit, b"".join(gathered))
                except (OSError, SessionsError) as error:
                    for waiter in waiting:
                        if not waiter.done():
                            waiter.set_exception(error)
                else:
                    for waiter in waiting:
                        if not waiter.done():
                            waiter.set_result(None)
        finally:
            self._committing = None
            self._gathered = []
            for waiter in (*waiting, *self._waiting):  # only if this task itself was cancelled
                waiter.cancel()
            self._waiting = []

    def _commit(self, data: bytes) -> None:
        if data:
            with self.log.lock:
                self.log.append_locked(data)
                finish = self.log.begin_sync()
        else:
            # A step in another thread may be opening the log anew, and its descriptor be another file's by then.
            with self.log.lock.idle():
                finish = self.log.begin_sync()
        finish()
