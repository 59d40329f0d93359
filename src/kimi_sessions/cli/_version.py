"""The version of this package, found without the library for it, which is slow to load."""

from __future__ import annotations

import os
import sys

__all__ = ["installed_version"]


def installed_version() -> str:
    """
    Return the installed version of this package.

    It is in the name of the folder that the installer wrote, which a glance finds; the library for it is slow to load.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - pathlib is slower to load than all of this
        except OSError:
            continue
        for name in names:
            if name.startswith("kimi_sessions-") and name.endswith(".dist-info"):
                return name.removeprefix("kimi_sessions-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version("kimi-sessions")
