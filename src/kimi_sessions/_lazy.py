"""Front doors that load a room when its name is first used, so that a small program does not pay for all of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """
    Return a module's ``__getattr__`` and ``__dir__`` for names that live elsewhere.

    ``homes`` maps each name to the module, relative to ``package``, that has it.
    """

    def getattr_(name: str) -> object:
        home = homes.get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(importlib.import_module(home, package), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        own = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*own, *homes})

    return getattr_, dir_
