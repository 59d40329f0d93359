"""Stores with small sessions, written as a client writes them, and the settling of the file system's clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HEADER = b'{"type": "metadata", "protocol_version": "1.10"}\n'


class Store:
    """The sessions of one project, as files."""

    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir
        self.folder = work_dir / ".kimi" / "sessions"

    @staticmethod
    def line(kind: str, payload: dict[str, Any], at: float = 1_700_000_000.0) -> bytes:
        """Return one line of a wire log."""
        record = {"timestamp": at, "message": {"type": kind, "payload": payload}}
        return json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"

    def prompt(self, text: str, at: float = 1_700_000_000.0) -> bytes:
        """Return the line of a prompt."""
        return self.line("TurnBegin", {"user_input": text}, at)

    def answer(self, text: str, at: float = 1_700_000_000.0) -> bytes:
        """Return the line of an answer."""
        return self.line("ContentPart", {"type": "text", "text": text}, at)

    def put(self, name: str, *lines: bytes) -> Path:
        """Write a session with these lines after the header; return its folder."""
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "wire.jsonl").write_bytes(HEADER + b"".join(lines))
        (place / "context.jsonl").touch()
        return place

    def append(self, name: str, *lines: bytes) -> None:
        """Append lines to a session's wire log."""
        with (self.folder / name / "wire.jsonl").open("ab") as file:
            file.write(b"".join(lines))

    def fill(self, count: int) -> None:
        """Write so many sessions of one turn each."""
        for index in range(count):
            self.put(f"s{index:04d}", self.prompt(f"prompt number {index}", 1_700_000_000.0 + index))


@pytest.fixture
def store(work_dir: Path) -> Store:
    """Give a project's sessions folder to write into."""
    return Store(work_dir)


@pytest.fixture
def settle() -> Callable[[], None]:
    """Give a function that waits until what was just written is old enough to be believed."""
    return lambda: time.sleep(0.13)


@pytest.fixture
def catalog_file(home: Path) -> Path:
    """Give the path of the catalog; nothing is there yet."""
    return home / "kimi-sessions" / "cache" / "catalog.sqlite3"
