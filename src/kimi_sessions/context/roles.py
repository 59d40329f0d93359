"""
The roles of a context log's records, apart from the typed records, so that a reader need not load those.

A role with a leading ``_`` is a control record's, and not for the model.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CHECKPOINT_ROLE", "MESSAGE_ROLES", "SYSTEM_PROMPT_ROLE", "USAGE_ROLE"]

MESSAGE_ROLES: Final = ("system", "user", "assistant", "tool")
SYSTEM_PROMPT_ROLE: Final = "_system_prompt"
CHECKPOINT_ROLE: Final = "_checkpoint"
USAGE_ROLE: Final = "_usage"
