"""
Sessions of coding agents, kept as folders of plain files that never lose a conversation.

    from kimi_sessions import Session

    session = await Session.create("/path/to/project")

Names only; a room is loaded when one of its names is first used.
"""

from __future__ import annotations

from ._lazy import lazy_names

# As a type checker reads it; importing `typing` for it would cost more than all else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from ._text import UNTITLED, clean
    from .context import ContextFile, Message
    from .errors import (
        AmbiguousIdError,
        CheckpointNotFoundError,
        DamagedError,
        Holder,
        HomeNotFoundError,
        InvalidIdError,
        InvalidRecordError,
        InvalidTurnError,
        LocksUnavailableError,
        MigrationError,
        NotFoundError,
        SessionBusyError,
        SessionExistsError,
        SessionNotFoundError,
        SessionsError,
        SourceNotFoundError,
        UnsupportedVersionError,
        UntrustedSessionError,
        WorkDirNotFoundError,
        WriteError,
    )
    from .findings import Finding
    from .layout import Layout, ProjectLayout, ShareLayout
    from .metadata import WorkDirMeta
    from .session import Session, SessionList, TrashEntry
    from .state import SessionState
    from .wire import Turn, WireFile

    __version__: str

__all__ = [
    "UNTITLED",
    "AmbiguousIdError",
    "CheckpointNotFoundError",
    "ContextFile",
    "DamagedError",
    "Finding",
    "Holder",
    "HomeNotFoundError",
    "InvalidIdError",
    "InvalidRecordError",
    "InvalidTurnError",
    "Layout",
    "LocksUnavailableError",
    "Message",
    "MigrationError",
    "NotFoundError",
    "ProjectLayout",
    "Session",
    "SessionBusyError",
    "SessionExistsError",
    "SessionList",
    "SessionNotFoundError",
    "SessionState",
    "SessionsError",
    "ShareLayout",
    "SourceNotFoundError",
    "TrashEntry",
    "Turn",
    "UnsupportedVersionError",
    "UntrustedSessionError",
    "WireFile",
    "WorkDirMeta",
    "WorkDirNotFoundError",
    "WriteError",
    "__version__",
    "clean",
]

_HOMES = {name: ".errors" for name in __all__ if name.endswith("Error")} | {
    "UNTITLED": "._text",
    "ContextFile": ".context.file",
    "Finding": ".findings",
    "Holder": ".errors",
    "Layout": ".layout",
    "Message": ".context.records",
    "ProjectLayout": ".layout",
    "Session": ".session",
    "SessionList": ".session",
    "SessionState": ".state",
    "ShareLayout": ".layout",
    "TrashEntry": ".session",
    "Turn": ".wire.turns",
    "WireFile": ".wire.file",
    "WorkDirMeta": ".metadata",
    "clean": "._text",
}
_getattr, __dir__ = lazy_names(__name__, _HOMES)

# Type checkers would take it to mean that every name is there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("kimi-sessions")
        return _getattr(name)
