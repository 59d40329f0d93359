"""The state of a session: the typed `SessionState`, and how its document is read, written and merged.

Values only: documents come in and go out as JSON objects (dicts), and no file is opened here.

The document (`state.json`) is Kimi CLI's: every field below under its own name, with its own default, and
whatever else stands in it is kept, at every level. Three shapes of it are told apart:

- the *typed view*, `SessionState`: a field that does not fit has its default, and a to-do that does not fit
  is left out;
- the *dumped* document, what `dump_state` makes of the view: all fields are there, in Kimi CLI's order;
- the *disk's* document, as it was read: fields may be missing, of a wrong type, or not ours.

`merge_state` takes two dumped documents (as loaded, as it is now) and the disk's, and gives the next one for
the disk. A value that could not be read has not been changed by whoever read it, so it stays as it is on the
disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PlainSerializer, ValidationError

__all__ = [
    "ApprovalState",
    "SessionState",
    "TodoItem",
    "dump_state",
    "merge_legacy_metadata",
    "merge_state",
    "parse_state",
]

Document: TypeAlias = dict[str, Any]


def _in_order(names: set[str]) -> list[str]:
    return sorted(names)


_Names: TypeAlias = Annotated[set[str], PlainSerializer(_in_order, return_type=list[str])]


class _StateModel(BaseModel):
    """What the parts of a state share: unknown fields stay, and an assigned value is checked."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), validate_assignment=True)


class ApprovalState(_StateModel):
    """What the session's agent may do without asking. `auto_approve_actions` holds names of actions."""

    yolo: bool = False
    afk: bool = False
    auto_approve_actions: _Names = Field(default_factory=set)


class TodoItem(_StateModel):
    """One line of the session's to-do list."""

    title: str
    status: Literal["pending", "in_progress", "done"]


class SessionState(_StateModel):
    """The mutable facts of a session. Times are in epoch seconds.

    `title_generated` says that the title is a person's or a model's and no longer the automatic one;
    `wire_mtime` is the time of the source's last record, in a fork.
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
    """The typed view of a document, and the paths of what did not fit, as `approval.yolo` or `todos[2]`.

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
    """The document of a state: every field, sets as sorted lists, unknown fields last.

    Raises ValueError if something was put into a list or set of the state that does not belong there.
    """
    return state.model_dump(warnings="error")


def _path_of(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The field that has to go for this error: one of the state's, one of the approval's, or one to-do."""
    return location[:2] if location[0] in ("approval", "todos") else location[:1]


def _spell(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _in_field_order(path: tuple[int | str, ...]) -> tuple[int, int, str]:
    names = list(SessionState.model_fields)
    last = path[-1]
    return names.index(str(path[0])), last if isinstance(last, int) else 0, str(last)


# ---- merging -------------------------------------------------------------------------------------

_MISSING: Final = object()

_NAME_LISTS: Final = (("approval", "auto_approve_actions"), ("additional_dirs",))

# Fields that belong together: those that lead, and those that follow where both sides changed a leader.
_GROUPS: Final = (
    (("custom_title", "title_generated"), ("title_generate_attempts",)),
    (("archived", "archived_at"), ("auto_archive_exempt",)),
)

_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(SessionState().model_dump())


def merge_state(base: Mapping[str, Any], mine: Mapping[str, Any], disk: Mapping[str, Any]) -> Document:
    """The document for the disk: what I changed since I loaded is mine, and all else is the disk's.

    `base` is `dump_state` of the state as it was loaded, `mine` of the state as it is now, `disk` the
    document that is there at this moment (`base`, where there is none that can be read).

    - Objects are merged key by key, at every depth. A key that I removed goes, one that I do not know
      stays.
    - Lists of names (`auto_approve_actions`, `additional_dirs`) are merged element by element, in the
      disk's order. The to-do list is mine as a whole if I changed it.
    - A title with its attempts, and an archiving with its exemption, come from one side where both
      changed them: mine, unless that would put an automatic title in the place of one that somebody chose
      meanwhile.

    Merging the same change once more changes nothing more. No argument is changed; the result shares values
    with them.
    """
    merged = _merge_objects(base, mine, disk, ())
    for leaders, followers in _GROUPS:
        if not (
            _differ(base, mine, leaders) and _differ(base, disk, leaders) and _differ(mine, disk, leaders)
        ):
            continue
        winner = disk if leaders[0] == "custom_title" and _is_chosen(disk) and not _is_chosen(mine) else mine
        for key in (*leaders, *followers):
            merged.pop(key, None)
            if key in winner:
                merged[key] = winner[key]
    return merged


def _merge_objects(
    base: Mapping[str, Any], mine: Mapping[str, Any], disk: Mapping[str, Any], path: tuple[str, ...]
) -> Document:
    merged = {
        key: _merge_values(
            base.get(key, _MISSING), mine.get(key, _MISSING), disk.get(key, _MISSING), (*path, key)
        )
        for key in dict.fromkeys((*disk, *mine))
    }
    return {key: value for key, value in merged.items() if value is not _MISSING}


def _merge_values(base: Any, mine: Any, disk: Any, path: tuple[str, ...]) -> Any:
    if mine == base:
        return disk
    if disk == base:
        return mine
    if isinstance(mine, dict) and isinstance(disk, dict):
        return _merge_objects(base if isinstance(base, dict) else {}, mine, disk, path)
    if path in _NAME_LISTS and _are_names(mine) and _are_names(disk):
        known = base if _are_names(base) else []
        kept = [name for name in disk if name in mine or name not in known]
        return kept + [name for name in mine if name not in known and name not in disk]
    return mine


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str]) -> bool:
    return any(one.get(key, _DEFAULTS[key]) != other.get(key, _DEFAULTS[key]) for key in keys)


def _is_chosen(document: Mapping[str, Any]) -> bool:
    """Whether the title is one that somebody chose, and not an automatic one or none."""
    return document.get("title_generated") is True and bool(document.get("custom_title"))


# ---- the older document --------------------------------------------------------------------------


_LEGACY_FIELDS: Final = (
    "title_generated",
    "title_generate_attempts",
    "archived",
    "archived_at",
    "auto_archive_exempt",
    "wire_mtime",
)


def merge_legacy_metadata(
    state_document: Mapping[str, Any], metadata_document: object
) -> tuple[Document, bool]:
    """The state's document with what an old `metadata.json` adds to it, and whether that was anything.

    A value is taken where the state's field is missing or has its default. The title "Untitled" says nothing,
    nor does a value of the wrong type, nor a document that is no object. Never raises; no argument is
    changed.
    """
    merged = dict(state_document)
    if not isinstance(metadata_document, dict):
        return merged, False
    found = {key: metadata_document.get(key) for key in _LEGACY_FIELDS}
    found["custom_title"] = metadata_document.get("title")
    for key, value in found.items():
        default = _DEFAULTS[key]
        if merged.get(key, default) == default and _says_something(key, value):
            merged[key] = value
    return merged, merged != state_document


def _says_something(key: str, value: object) -> bool:
    """Whether a value of the old document is of the right type and not the default."""
    match key:
        case "custom_title":
            return isinstance(value, str) and value.strip() not in ("", "Untitled")
        case "title_generate_attempts":
            return isinstance(value, int) and not isinstance(value, bool) and value > 0
        case "archived_at" | "wire_mtime":
            return (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and abs(value) <= sys.float_info.max
            )
        case _:
            return value is True
