"""
What was found wrong with a session: one value type, shared by reading, check and repair.

A finding never stops a read. It names the file, and where it can the line and the byte, so that a person can look.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One thing that is wrong, or that a repair would act on.

    Attributes:
        kind: a stable short name, such as ``torn-line`` or ``bad-state``.
        file: path relative to the session folder (or the flat file's name), as text safe to show.
        reason: one sentence for a person.
        line_number: counted from 1, or None.
        offset: first byte concerned, or None.
        length: how many bytes, or None.
    """

    kind: str
    file: str
    reason: str
    line_number: int | None = None
    offset: int | None = None
    length: int | None = None

    def __str__(self) -> str:
        line = f":{self.line_number}" if self.line_number is not None else ""
        at = f" (byte {self.offset})" if self.offset is not None else ""
        place = f"{self.file}{line}: " if self.file or line else ""
        return f"{place}{self.reason}{at}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dict, for JSON."""
        return asdict(self)
