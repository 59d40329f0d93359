"""The library's logger. ``logging`` is loaded when something is said, since a quick command says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["logger"]


def logger() -> Logger:
    """Return the logger under which this library says everything."""
    import logging

    return logging.getLogger("kimi_sessions")
