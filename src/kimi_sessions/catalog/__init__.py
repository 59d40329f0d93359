"""
The catalog's door: full-text search and statistics over sessions, answered from derived data.

What is kept lies in one SQLite file in the user's cache folder. It can be deleted at any moment: every answer stays
the same and only takes longer. Names only; a room is loaded when one of its names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_sessions._lazy import lazy_names

if TYPE_CHECKING:
    from .searching import Hit, SearchResult, search
    from .stats import SessionStats, session_stats, total, work_dir_stats

__all__ = ["Hit", "SearchResult", "SessionStats", "search", "session_stats", "total", "work_dir_stats"]

_HOMES = {
    "Hit": ".searching",
    "SearchResult": ".searching",
    "SessionStats": ".stats",
    "search": ".searching",
    "session_stats": ".stats",
    "total": ".stats",
    "work_dir_stats": ".stats",
}
# Type checkers would take it to mean that every name is there.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
