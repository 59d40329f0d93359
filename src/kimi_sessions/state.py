"""
The state of a session: the typed ``SessionState``, and how its document is read and written.

Documents come in and go out as JSON objects (dicts); ``load_session_state`` and ``save_session_state`` do it for a
session folder that is known by its path alone. A ``Session`` has more to think of (what it changed itself, trust) and
saves its own state. How two programs' changes to one document are merged is told in ``_state_merge``, which needs no
models.

The document (``state.json``) is Kimi CLI's: every field below under its own name, with its own default, and whatever
else stands in it is kept, at every level. Three shapes of it are told apart:

- the *typed view*, ``SessionState``: a field that does not fit has its default, a to-do that does not fit is left out;
- the *dumped* document, what ``dump_state`` makes of the view: all fields are there, in Kimi CLI's order;
- the *disk's* document, as it was read: fields may be missing, of a wrong type, or not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PlainSerializer, ValidationError

from . import _document, _fs, layout
from ._locking import StepLock, session_gone
from ._log import logger
from ._state_merge import merge_legacy_metadata
from .errors import SessionsError, WriteError

if TYPE_CHECKING:
    from .layout import StrPath

__all__ = [
    "ApprovalState",
    "SessionState",
    "TodoItem",
    "dump_state",
    "load_session_state",
    "parse_state",
    "save_session_state",
]

Document: TypeAlias = dict[str, Any]


def _in_order(names: set[str]) -> list[str]:
    return sorted(names)


_Names: TypeAlias = Annotated[set[str], PlainSerializer(_in_order, return_type=list[str])]


class _StateModel(BaseModel):
    """What the parts of a state share: unknown fields stay, and an assigned value is checked."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), validate_assignment=True)


class ApprovalState(_StateModel):
    """What the session's agent may do without asking. ``auto_approve_actions`` holds names of actions."""

    yolo: bool = False
    afk: bool = False
    auto_approve_actions: _Names = Field(default_factory=set)


class TodoItem(_StateModel):
    """One line of the session's to-do list."""

    title: str
    status: Literal["pending", "in_progress", "done"]


class SessionState(_StateModel):
    """
    The mutable facts of a session. Times are in epoch seconds.

    ``title_generated`` says that the title is a person's or a model's and no longer the automatic one;
    ``wire_mtime`` is the time of the source's last record, in a fork.
    """

    version: int = 1
    approval: ApprovalState = Field(default_factory=ApprovalState)
    additional_dirs: list[str] = Field(default_factory=list)
    custom_title: str | None = None
    title_generated: bool = False
    title_generate_attempts: int = 0
    plan_mode: bool = False
    plan_session_id: str | None = None
    plan_slug: str | None = None
    wire_mtime: FiniteFloat | None = None
    archived: bool = False
    archived_at: FiniteFloat | None = None
    auto_archive_exempt: bool = False
    todos: list[TodoItem] = Field(default_factory=list)


# ---- reading and writing -------------------------------------------------------------------------


def parse_state(document: Mapping[str, Any]) -> tuple[SessionState, list[str]]:
    """
    Return the typed view of a document, and the paths of what did not fit, as ``approval.yolo`` or ``todos[2]``.

    A field that does not fit has its default and all others keep their values; of the to-dos only the bad
    ones are left out. Never raises, and does not touch the document.
    """
    document = dict(document)
    try:
        return SessionState.model_validate(document), []
    except ValidationError as error:
        bad = {_path_of(details["loc"]) for details in error.errors(include_url=False, include_input=False)}
    approval = document.get("approval")
    if isinstance(approval, dict):
        document["approval"] = {key: value for key, value in approval.items() if ("approval", key) not in bad}
    todos = document.get("todos")
    if isinstance(todos, list):
        document["todos"] = [item for index, item in enumerate(todos) if ("todos", index) not in bad]
    for path in bad:
        if len(path) == 1:
            del document[str(path[0])]
    return SessionState.model_validate(document), [_spell(path) for path in sorted(bad, key=_in_field_order)]


def dump_state(state: SessionState) -> Document:
    """
    Return the document of a state: every field, sets as sorted lists, unknown fields last.

    Raises ValueError if something was put into a list or set of the state that does not belong there.
    """
    return state.model_dump(warnings="error")


def _path_of(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the field that has to go for this error: one of the state's, one of the approval's, or one to-do."""
    return location[:2] if location[0] in ("approval", "todos") else location[:1]


def _spell(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _in_field_order(path: tuple[int | str, ...]) -> tuple[int, int, str]:
    names = list(SessionState.model_fields)
    last = path[-1]
    return names.index(str(path[0])), last if isinstance(last, int) else 0, str(last)


# ---- in a session folder -------------------------------------------------------------------------


def load_session_state(session_dir: StrPath) -> SessionState:
    """
    Return the state that a session folder holds on disk, whoever wrote it; nothing is written.

    Defaults where there is no state, or none that can be read; a bad field has its own default. What an old
    client's ``metadata.json`` adds is merged in memory. Never raises; what was bad is logged.
    """
    folder = Path(session_dir)
    documents = []
    for name in (layout.STATE, layout.METADATA):
        document = _document.read_document(str(folder / name))
        if document.problem:
            logger().warning("%s: %s", folder / name, document.problem)
        documents.append(document.value)
    state, bad = parse_state(merge_legacy_metadata(documents[0] or {}, documents[1])[0])
    if bad:
        logger().warning(
            "%s: no usable value in %s; defaults stand in", folder / layout.STATE, ", ".join(bad)
        )
    return state


def save_session_state(state: SessionState, session_dir: StrPath) -> None:
    """
    Make a state the one that a session folder holds. Durable when it returns.

    The whole state is written, under the folder's lock where there is one; what the document holds besides, and a value
    that could not be read and was not changed, stays. A damaged document is set aside first, and an old client's
    ``metadata.json`` moved out of the way, since the state now says all of it. In a sealed session, approvals that are
    changed this way read as none until the session is trusted anew.

    Raises WriteError (then the old document is in place, and nothing else is left), SessionBusyError, ValueError.
    """
    mine = dump_state(state)
    folder = Path(session_dir)
    try:
        fd = _fs.open_folder(folder, follow=True)
    except OSError as error:
        raise WriteError.of(error, str(folder)) from error
    lock_path = folder / layout.LOCK
    lock = StepLock(str(lock_path), gone=session_gone(folder.name, str(folder.parent)))
    try:
        with lock if lock_path.exists() else nullcontext():
            legacy = _document.read_document(layout.METADATA, dir_fd=fd)

            def change(document: _document.Document) -> Document:
                disk = document.value or {}
                return _laid_over(disk, dump_state(parse_state(disk)[0]), mine)

            _document.update_document(layout.STATE, change, dir_fd=fd, folder=str(folder))
            if legacy.value is not None:
                _document.move_aside(layout.METADATA, layout.METADATA_MERGED, dir_fd=fd)
    except SessionsError:
        raise
    except OSError as error:
        raise WriteError.of(error, str(folder)) from error
    finally:
        _fs.active().close(fd)
        lock.close()


def _laid_over(disk: Mapping[str, Any], view: Mapping[str, Any], mine: Mapping[str, Any]) -> Document:
    """Return the disk's document with my values; where mine says what the view says, the disk's spelling stays."""
    merged = dict(disk)
    for key, value in mine.items():
        there, seen = disk.get(key), view.get(key)
        if isinstance(there, dict) and isinstance(seen, dict) and isinstance(value, dict):
            merged[key] = _laid_over(there, seen, value)
        elif key not in disk or value != seen:
            merged[key] = value
    return merged
