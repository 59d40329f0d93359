from __future__ import annotations

from typing import Any

from .state import merge_legacy_metadata, merge_state

__all__ = ["keep_approvals", "merge_legacy_metadata", "merge_state"]


def keep_approvals(document: dict[str, Any], disk: dict[str, Any]) -> dict[str, Any]:
    """Return ``document`` with what a session may do without asking as it is on disk."""
    kept = dict(document)
    for key in ("approval", "additional_dirs"):
        kept.pop(key, None)
        if key in disk:
            kept[key] = disk[key]
    return kept
