"""
Every error this library raises on purpose, in one tree.

    SessionsError                        catch this at the top of a program
    ├── NotFoundError
    │   ├── SessionNotFoundError         .session_id .searched .near
    │   ├── WorkDirNotFoundError         .path
    │   ├── SourceNotFoundError          .path .reason
    │   ├── HomeNotFoundError            .variable
    │   └── CheckpointNotFoundError      .checkpoint_id .next_checkpoint_id
    ├── SessionExistsError               .session_id .path
    ├── AmbiguousIdError                 .prefix .candidates
    ├── InvalidIdError (ValueError)      .value .reason
    ├── InvalidTurnError (ValueError)    .turn_index .turn_count
    ├── InvalidRecordError (ValueError)  .reason; wire.UnknownMessageTypeError: .type_name
    ├── SessionBusyError (TimeoutError)  .path .holder
    ├── UntrustedSessionError            .session_id .path
    ├── DamagedError                     .path .line_number .offset .reason
    ├── UnsupportedVersionError          .path .found .supported
    ├── WriteError (OSError)             .path .reason .code, with __cause__
    │   └── LocksUnavailableError        the file system has no working locks
    └── MigrationError                   .step .session_id .reason, with __cause__

Branches follow what a caller does next. Fields come first and the sentence is built from them; every error
survives pickling, so it can cross a process boundary. Arguments are keyword-only.

This room does not know about exit codes: those are the command line's.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any

__all__ = [
    "AmbiguousIdError",
    "CheckpointNotFoundError",
    "DamagedError",
    "Holder",
    "HomeNotFoundError",
    "InvalidIdError",
    "InvalidRecordError",
    "InvalidTurnError",
    "LocksUnavailableError",
    "MigrationError",
    "NotFoundError",
    "SessionBusyError",
    "SessionExistsError",
    "SessionNotFoundError",
    "SessionsError",
    "SourceNotFoundError",
    "UnsupportedVersionError",
    "UntrustedSessionError",
    "WorkDirNotFoundError",
    "WriteError",
]


def _rebuild(cls: type[SessionsError], fields: dict[str, Any], cause: BaseException | None) -> SessionsError:
    error = cls(**fields)
    error.__cause__ = cause
    return error


class SessionsError(Exception):
    """Base of all errors of this library; never raised itself."""

    _fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self._sentence()

    def _sentence(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self._fields}
        return _rebuild, (type(self), fields, self.__cause__)


class NotFoundError(SessionsError):
    """Something that was named is not there."""


class SessionNotFoundError(NotFoundError):
    """
    No session of this id where it was looked for, or it was deleted while this program had it open.

    ``searched`` holds the folders that were looked in, as text, and ``near`` the ids that look most alike.
    """

    _fields = ("session_id", "searched", "near")

    def __init__(
        self, *, session_id: str, searched: tuple[str, ...] = (), near: tuple[str, ...] = ()
    ) -> None:
        self.session_id = session_id
        self.searched = searched
        self.near = near
        super().__init__(session_id)

    def _sentence(self) -> str:
        where = f" in {', '.join(self.searched)}" if self.searched else ""
        hint = f" (near: {', '.join(self.near)})" if self.near else ""
        return f"no session {self.session_id!r}{where}{hint}"


class WorkDirNotFoundError(NotFoundError):
    """The work dir is not a folder that exists."""

    _fields = ("path",)

    def __init__(self, *, path: str) -> None:
        self.path = path
        super().__init__(path)

    def _sentence(self) -> str:
        return f"work dir {self.path!r} does not exist or is not a folder"


class HomeNotFoundError(NotFoundError):
    """No folder for this user's own data can be worked out; ``variable`` names what to set."""

    _fields = ("variable",)

    def __init__(self, *, variable: str) -> None:
        self.variable = variable
        super().__init__(variable)

    def _sentence(self) -> str:
        return f"no home folder can be found for this user; set {self.variable}"


class SourceNotFoundError(NotFoundError):
    """What was to be read from another place (a migration's source, a report) is not there. ``reason`` says more."""

    _fields = ("path", "reason")

    def __init__(self, *, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path)

    def _sentence(self) -> str:
        return f"{self.path}: {self.reason}"


class CheckpointNotFoundError(NotFoundError):
    """A context holds no checkpoint of this id. Known ids are below ``next_checkpoint_id``."""

    _fields = ("checkpoint_id", "next_checkpoint_id")

    def __init__(self, *, checkpoint_id: int, next_checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id
        self.next_checkpoint_id = next_checkpoint_id
        super().__init__(checkpoint_id)

    def _sentence(self) -> str:
        return f"no checkpoint {self.checkpoint_id}; the next new one would be {self.next_checkpoint_id}"


class SessionExistsError(SessionsError):
    """A session, a flat file or a folder of this id is there already. Nothing was changed."""

    _fields = ("session_id", "path")

    def __init__(self, *, session_id: str, path: str) -> None:
        self.session_id = session_id
        self.path = path
        super().__init__(session_id)

    def _sentence(self) -> str:
        return f"session {self.session_id!r} exists already at {self.path}"


class AmbiguousIdError(SessionsError):
    """A prefix stands for more than one session; ``candidates`` lists them."""

    _fields = ("prefix", "candidates")

    def __init__(self, *, prefix: str, candidates: tuple[str, ...]) -> None:
        self.prefix = prefix
        self.candidates = candidates
        super().__init__(prefix)

    def _sentence(self) -> str:
        return f"{self.prefix!r} could be any of: {', '.join(self.candidates)}"


class InvalidIdError(SessionsError, ValueError):
    """Text that can't be an id. Raised before any file is touched."""

    _fields = ("value", "reason")

    def __init__(self, *, value: str, reason: str) -> None:
        self.value = value
        self.reason = reason
        super().__init__(value)

    def _sentence(self) -> str:
        shown = self.value if len(self.value) <= 60 else self.value[:57] + "..."
        return f"{shown!r} is not a valid id: {self.reason}"


class InvalidTurnError(SessionsError, ValueError):
    """The session has no turn of this index. Turns count from 0."""

    _fields = ("turn_index", "turn_count")

    def __init__(self, *, turn_index: int, turn_count: int) -> None:
        self.turn_index = turn_index
        self.turn_count = turn_count
        super().__init__(turn_index)

    def _sentence(self) -> str:
        if self.turn_count == 0:
            return f"turn {self.turn_index} out of range: the session has no turns"
        return f"turn {self.turn_index} out of range: the session has turns 0 to {self.turn_count - 1}"


class InvalidRecordError(SessionsError, ValueError):
    """A value that can't be written to a log, or a line that is no record. Nothing was written."""

    _fields = ("reason",)

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def _sentence(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Holder:
    """
    Who holds a session: process id, host name, program name, and since when (epoch seconds).

    Every field may be None where the holder could not be read.
    """

    pid: int | None = None
    host: str | None = None
    program: str | None = None
    since: float | None = None

    def __str__(self) -> str:
        parts = []
        if self.program:
            parts.append(self.program)
        if self.pid is not None:
            parts.append(f"pid {self.pid}")
        if self.host:
            parts.append(f"on {self.host}")
        if self.since is not None:
            from datetime import UTC, datetime

            try:
                moment = datetime.fromtimestamp(self.since, UTC)
            except (OverflowError, ValueError, OSError):
                pass  # no time that a calendar has; the rest still says who it is
            else:
                parts.append(f"since {moment.strftime('%Y-%m-%d %H:%M:%S')} UTC")
        return " ".join(parts) or "an unknown program"


class SessionBusyError(SessionsError, TimeoutError):
    """Another program holds the lock. ``holder`` says who, as far as it is known."""

    _fields = ("path", "holder")

    def __init__(self, *, path: str, holder: Holder | None = None) -> None:
        self.path = path
        self.holder = holder
        super().__init__(errno.EAGAIN, "busy")

    def _sentence(self) -> str:
        # A lock file says nothing to a person; the folder that it guards does.
        folder, _, name = self.path.rpartition("/")
        what, by = (folder, f": another program has its {name}") if name[:1] == "." else (self.path, "")
        if self.holder is not None:
            by = f": held by {self.holder}"
        return f"{what} is busy{by}"


class UntrustedSessionError(SessionsError):
    """
    The only session there is to continue carries no seal of this user (it may have come with a cloned repository).

    Look at it first, then seal it with ``kimi-sessions trust``, or pass ``allow_untrusted=True``.
    """

    _fields = ("session_id", "path")

    def __init__(self, *, session_id: str, path: str) -> None:
        self.session_id = session_id
        self.path = path
        super().__init__(session_id)

    def _sentence(self) -> str:
        return f"session {self.session_id!r} at {self.path} is not trusted: this user has not sealed it"


class DamagedError(SessionsError):
    """Bytes on disk that can't be what they should be. ``line_number`` counts from 1, ``offset`` is in bytes."""

    _fields = ("path", "line_number", "offset", "reason")

    def __init__(
        self, *, path: str, line_number: int | None = None, offset: int | None = None, reason: str
    ) -> None:
        self.path = path
        self.line_number = line_number
        self.offset = offset
        self.reason = reason
        super().__init__(path)

    def _sentence(self) -> str:
        line = f", line {self.line_number}" if self.line_number is not None else ""
        at = f", byte {self.offset}" if self.offset is not None else ""
        return f"{self.path}{line}{at}: {self.reason}"


class UnsupportedVersionError(SessionsError):
    """A file written by a newer format than this library knows. It was left alone."""

    _fields = ("path", "found", "supported")

    def __init__(self, *, path: str, found: str, supported: str) -> None:
        self.path = path
        self.found = found
        self.supported = supported
        super().__init__(path)

    def _sentence(self) -> str:
        return f"{self.path} has version {self.found}; this library knows up to {self.supported}"


class WriteError(SessionsError, OSError):
    """
    A write did not happen, or did not happen whole; what it would have acknowledged was not acknowledged.

    ``__cause__`` is the operating system's error (disk full, read-only, permission) and ``errno`` repeats its number.
    """

    _fields = ("path", "reason", "code")

    def __init__(self, *, path: str, reason: str = "", code: int | None = None) -> None:
        super().__init__(code if code is not None else errno.EIO, reason or "write failed")
        self.path = path
        self.reason = reason
        self.code = code

    @classmethod
    def of(cls, cause: OSError, path: str) -> WriteError:
        """Build from the error the operating system gave; the caller raises it ``from`` that error."""
        return cls(path=path, reason=cause.strerror or str(cause), code=cause.errno)

    def _sentence(self) -> str:
        return f"could not write {self.path}: {self.reason or 'write failed'}"


class LocksUnavailableError(WriteError):
    """The file system under the store has no working file locks; reading works, writing is refused."""

    def _sentence(self) -> str:
        return f"could not write {self.path}: this file system gives no file locks ({self.reason})"


class MigrationError(SessionsError):
    """A migration stopped at ``step``; the source is untouched and the same command can be run again."""

    _fields = ("step", "session_id", "reason")

    def __init__(self, *, step: str, session_id: str | None = None, reason: str = "") -> None:
        self.step = step
        self.session_id = session_id
        self.reason = reason
        super().__init__(step)

    def _sentence(self) -> str:
        which = f" of session {self.session_id!r}" if self.session_id is not None else ""
        why = f": {self.reason}" if self.reason else ""
        return f"migration stopped at {self.step}{which}{why}"
