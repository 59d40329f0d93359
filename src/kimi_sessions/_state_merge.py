"""
Merging state documents: another program's changes, an older document's values, and what is kept as on disk.

Pure functions on JSON objects, without models, so that a listing does not pay for them. What the fields are is told in
``state``.

A value that could not be read has not been changed by whoever read it, so it stays as it is on the disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

__all__ = ["keep_approvals", "merge_legacy_metadata", "merge_state"]

Document: TypeAlias = dict[str, Any]

_MISSING: Final = object()

_NAME_LISTS: Final = (("approval", "auto_approve_actions"), ("additional_dirs",))

# Fields that belong together: those that lead, and those that follow where both sides changed a leader.
_GROUPS: Final = (
    (("custom_title", "title_generated"), ("title_generate_attempts",)),
    (("archived", "archived_at"), ("auto_archive_exempt",)),
)

# What a missing field means, for the fields that are compared across documents.
_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "custom_title": None,
        "title_generated": False,
        "title_generate_attempts": 0,
        "wire_mtime": None,
        "archived": False,
        "archived_at": None,
        "auto_archive_exempt": False,
    }
)


def merge_state(base: Mapping[str, Any], mine: Mapping[str, Any], disk: Mapping[str, Any]) -> Document:
    """
    Return the document for the disk: what I changed since I loaded is mine, and all else is the disk's.

    ``base`` is ``dump_state`` of the state as it was loaded, ``mine`` of the state as it is now, ``disk`` the
    document that is there at this moment (``base``, where there is none that can be read).

    - Objects are merged key by key, at every depth. A key that I removed goes, one that I do not know
      stays.
    - Lists of names (``auto_approve_actions``, ``additional_dirs``) are merged element by element, in the
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
    """Tell whether the title is one that somebody chose, and not an automatic one or none."""
    return document.get("title_generated") is True and bool(document.get("custom_title"))


def keep_approvals(document: dict[str, Any], disk: dict[str, Any]) -> dict[str, Any]:
    """Return ``document`` with what a session may do without asking as it is on disk."""
    kept = dict(document)
    for key in ("approval", "additional_dirs"):
        kept.pop(key, None)
        if key in disk:
            kept[key] = disk[key]
    return kept


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
    """
    Return the state's document with what an old ``metadata.json`` adds to it, and whether that was anything.

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
    """Tell whether a value of the old document is of the right type and not the default."""
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
