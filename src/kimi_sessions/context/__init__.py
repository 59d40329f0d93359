"""
The context log of a session: what the model saw. Names only; nothing is loaded before it is used.

``records`` knows the typed message, ``history`` folds records into what is in force, ``file`` is the log itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_sessions._lazy import lazy_names

if TYPE_CHECKING:
    from .file import ContextFile
    from .records import Message

__all__ = ["ContextFile", "Message"]

# Type checkers would take it to mean that every name is there.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {"ContextFile": ".file", "Message": ".records"})
