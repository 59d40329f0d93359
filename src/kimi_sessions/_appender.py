"""
The asynchronous skin of an append log: in line where nobody waits, one thread hop where somebody would.

Acknowledgement is the return of ``append``, and nothing here remembers a record that is not on disk. In ``"disk"``
durability, appends that run at the same time share one sync: each waits for a sync that began after its own write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ._append_log import AppendLog, Durability
from .errors import SessionsError, WriteError

__all__ = ["Appender"]


class Appender:
    """
    Appends to one log from coroutines of one event loop (any number of them).

    ``on_first`` is called once, in a thread, after the first append in this process that succeeded.
    """

    __slots__ = ("_on_first", "_plain", "_syncing", "_waiting", "durability", "log")

    def __init__(
        self, log: AppendLog, *, durability: Durability = "os", on_first: Callable[[], None] | None = None
    ) -> None:
        if durability not in ("os", "disk"):
            message = f"durability is 'os' or 'disk', not {durability!r}"
            raise ValueError(message)
        self.log = log
        self.durability = durability
        self._on_first = on_first
        #: True where an append that was written has nothing left to do.
        self._plain = durability == "os" and on_first is None
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def append(self, data: bytes) -> Coroutine[Any, Any, None] | None:
        """
        Append whole lines. None means it is done; else it is done, and durable as ``durability`` says, when what
        this returns has been awaited.

        Raises WriteError, SessionBusyError, SessionNotFoundError; then nothing was acknowledged.
        """
        written = self.log.try_append(data)
        if written and self._plain:
            return None
        return self._finish(data, written=written)

    async def _finish(self, data: bytes, *, written: bool) -> None:
        if not written:
            await asyncio.to_thread(self.log.append, data)
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        if self.durability == "disk":
            await self._synced()
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

    async def _synced(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if self._syncing is None:
            self._syncing = loop.create_task(self._sync_all())
        await waiter

    async def _sync_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await asyncio.to_thread(self.log.begin_sync())
                except OSError as error:
                    for waiter in batch:
                        if not waiter.done():
                            waiter.set_exception(error)
                else:
                    for waiter in batch:
                        if not waiter.done():
                            waiter.set_result(None)
        finally:
            self._syncing = None
            for waiter in self._waiting:  # only if this task itself was cancelled
                waiter.cancel()
