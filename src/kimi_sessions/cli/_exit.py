"""
What becomes of errors: the one table of exit codes, and the one place that turns an error into a line on stderr.

    0  ok                      4  the session is busy
    1  unexpected              5  damaged, or a check found something
    2  wrong usage             6  written by a newer version
    3  not found or ambiguous  7  could not write
    130  interrupted

A traceback is shown only where ``KIMI_SESSIONS_TRACEBACK`` is set.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from typing import TextIO

__all__ = [
    "BUSY",
    "DAMAGED",
    "INTERRUPTED",
    "NOT_FOUND",
    "NOT_WRITTEN",
    "OK",
    "TOO_NEW",
    "UNEXPECTED",
    "USAGE",
    "Failed",
    "complain",
    "guarded",
    "say",
]

OK = 0
UNEXPECTED = 1
USAGE = 2
NOT_FOUND = 3
BUSY = 4
DAMAGED = 5
TOO_NEW = 6
NOT_WRITTEN = 7
INTERRUPTED = 130

_TRACEBACK = "KIMI_SESSIONS_TRACEBACK"

#: By class name, the nearest class first: the errors' own module is loaded only once there is an error to look up.
_CODES = {
    "AmbiguousIdError": NOT_FOUND,
    "DamagedError": DAMAGED,
    "InvalidIdError": USAGE,
    "InvalidRecordError": DAMAGED,
    "InvalidTurnError": USAGE,
    "NotFoundError": NOT_FOUND,
    "SessionBusyError": BUSY,
    "SessionExistsError": NOT_WRITTEN,
    "UnsupportedVersionError": TOO_NEW,
    "UntrustedSessionError": NOT_FOUND,
    "WriteError": NOT_WRITTEN,
}


#: What stdout says when its disk is full; what the store says comes as a WriteError.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Failed(Exception):  # noqa: N818 - not an error of the code: a command's own way to end with a message
    """A command can't do what was asked: one line for stderr, and an exit code."""

    def __init__(self, message: str, code: int = UNEXPECTED) -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    """Print one line on stderr, safe for any terminal. A closed stderr is nobody's to complain to."""
    from kimi_sessions import clean

    try:
        sys.stderr.write(clean(message) + "\n")
    except (OSError, ValueError):
        pass


def complain(message: str, *, kind: str = "error") -> None:
    """Print one line on stderr that begins with its kind: error, warning, note or hint."""
    say(f"{kind}: {message}")


def guarded(step: Callable[[], int]) -> int:
    """Run ``step`` and return its exit code; any error becomes a line on stderr and the code of its kind."""
    sys.stdout = _usable(sys.stdout)
    sys.stderr = _usable(sys.stderr)
    log = logging.getLogger("kimi_sessions")
    lines = _Lines(logging.WARNING)
    log.addHandler(lines)
    try:
        code = step()
        sys.stdout.flush()
    except SystemExit as error:
        # The parser's own way to end, after what it printed itself.
        return error.code if isinstance(error.code, int) else OK
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. What Python still wants to flush at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except Exception as error:  # noqa: BLE001 - the outermost place: whatever it is, it becomes one line
        if os.environ.get(_TRACEBACK):
            import traceback

            traceback.print_exc()
        return _explain(error)
    finally:
        log.removeHandler(lines)
    return code


class _Lines(logging.Handler):
    """What the library logs becomes a line on stderr like any other."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage(), kind=record.levelname.lower())


def _explain(error: Exception) -> int:
    """Print the line for an error and return its code."""
    if isinstance(error, Failed):
        complain(str(error))
        return error.code
    from kimi_sessions import SessionsError

    if isinstance(error, SessionsError):
        complain(str(error))
        return code_of(error)
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        full = error.errno in _FULL
        complain(("could not write: " if full else "") + f"{where}{error.strerror or error}")
        return NOT_WRITTEN if full else UNEXPECTED
    complain(f"unexpected: {type(error).__name__}: {error} (set {_TRACEBACK}=1 to see where)")
    return UNEXPECTED


def code_of(error: BaseException) -> int:
    """Return the exit code of an error of the library; one that only wraps another has that one's."""
    for cls in type(error).__mro__:
        code = _CODES.get(cls.__name__)
        if code is not None:
            return code
    if error.__cause__ is not None and error.__cause__ is not error:
        return code_of(error.__cause__)
    return NOT_WRITTEN if isinstance(error, OSError) else UNEXPECTED


def _usable(stream: TextIO | None) -> TextIO:
    """
    Return a stream that can be written to: one that replaces what its encoding lacks, or nowhere if it was closed.

    Text from sessions is in every script, and a person's locale may know only one.
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - lives as long as the program
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return stream
