"""
The file system, made to fail on purpose: what the failing-call and the every-step tests are run through.

`FailingFs(n)` does what the real one does, except that its Nth call raises. Run a step again and again with
N = 1, 2, 3 … until it gets through without the failure, and every place where the disk can let it down has
been visited once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

from kimi_sessions._fs import OsFileSystem

__all__ = ["FailingFs", "RecordingFs", "UnsyncedFs", "failing_calls"]

# Closing a descriptor and giving back a lock are not worth a failure: the kernel does both in any case, and what
# a program does after `close` has failed is the same as if it had not.
UNBREAKABLE = frozenset({"close", "flock"})

NAMES = frozenset(name for name in vars(OsFileSystem) if not name.startswith("_"))
assert NAMES > UNBREAKABLE, "the seam has lost its calls: nothing would ever fail"


class UnsyncedFs(OsFileSystem):
    """The real file system that never waits for the disk: for tests of what is written, not of when."""

    @staticmethod
    def fsync(fd: int) -> None:  # type: ignore[override]
        """Notice a closed descriptor, and nothing else."""
        os.fstat(fd)

    @staticmethod
    def fdatasync(fd: int) -> None:  # type: ignore[override]
        """Notice a closed descriptor, and nothing else."""
        os.fstat(fd)


class RecordingFs:
    """The real file system, without waiting for the disk, and the names of the calls made of it, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(UnsyncedFs, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.before(name)
            return real(*args, **kwargs)

        # Set once, so that later calls come without this detour.
        self.__dict__[name] = call
        return call

    def before(self, name: str) -> None:
        """Look at a call that is about to be made; raise to keep it from happening."""


class FailingFs(RecordingFs):
    """
    The real file system whose `nth` breakable call (from 1) raises OSError, once.

    `failed` says which call that was, "" as long as it has not come to it. `names` limits which calls count.
    """

    def __init__(
        self, nth: int, *, code: int = errno.EIO, names: frozenset[str] = NAMES - UNBREAKABLE
    ) -> None:
        super().__init__()
        self.nth = nth
        self.code = code
        self.names = names
        self.seen = 0
        self.failed = ""

    def before(self, name: str) -> None:
        """Fail if it is this call's turn."""
        if name not in self.names:
            return
        self.seen += 1
        if self.seen == self.nth:
            self.failed = name
            raise OSError(self.code, os.strerror(self.code), f"call {self.nth}, {name}")


def failing_calls(*, most: int = 5000, **kwargs: Any) -> Iterator[FailingFs]:
    """
    Give file systems that fail at call 1, 2, 3 …; ends after the first that was not brought to fail.

    The last one given is the one that lets everything through: what it ran has succeeded.
    """
    for nth in range(1, most + 1):
        fs = FailingFs(nth, **kwargs)
        yield fs
        if not fs.failed:
            assert nth > 1, "the step made no call that could fail"
            return
    message = f"still failing after {most} calls"
    raise AssertionError(message)
