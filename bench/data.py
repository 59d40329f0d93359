"""
The data sets of a benchmark run: made when first asked for, in one folder that is removed afterwards.

Everything lies in Kimi CLI's own layout, which both sides read. A large log is a generated one of ``BASE_MB`` million
bytes repeated, since making prose takes longer than anything that is measured.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import generate

BASE_MB = 16.0


class Data:
    """The data sets of one run. Use it as a context manager."""

    def __init__(self, root: Path | None = None, seed: int = 1) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="kimi-sessions-bench-", dir=root))
        self.seed = seed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def store(self, sessions: int) -> Path:
        """Return the root of a store of so many sessions of two turns each: ``project`` and ``share`` in it."""
        root = self.root / f"store-{sessions}"
        if not root.exists():
            generate.generate_store(root, sessions, seed=self.seed)
        return root

    def _base(self, kind: str) -> Path:
        path = self.root / f"base-{kind}"
        if not path.exists():
            if kind == "wire":
                generate.generate_wire(path, BASE_MB, seed=self.seed)
            elif kind == "no-prompt":
                generate.generate_wire(path, BASE_MB, seed=self.seed, prompt_at_end=True)
            else:
                generate.generate_context(path, BASE_MB, seed=self.seed)
        return path

    def _log(
        self, path: Path, kind: str, *, size_mb: float | None = None, records: int | None = None
    ) -> None:
        """Write a log of about this size, or of exactly so many records, by repeating the generated one."""
        base = self._base(kind).read_bytes()
        tail = b""
        if kind == "no-prompt":
            cut = base.rindex(b"\n", 0, len(base) - 1) + 1
            base, tail = base[:cut], base[cut:]
        head = b""
        if kind != "context":
            cut = base.index(b"\n") + 1
            head, base = base[:cut], base[cut:]
        lines_left = records
        bytes_left = 0 if size_mb is None else int(size_mb * 1e6)
        with path.open("wb") as file:
            file.write(head)
            while True:
                piece = base
                if lines_left is not None:
                    count = base.count(b"\n")
                    if count > lines_left:
                        piece = b"".join(base.splitlines(keepends=True)[:lines_left])
                    lines_left -= min(count, lines_left)
                elif bytes_left < len(base):
                    piece = base[: base.rfind(b"\n", 0, bytes_left) + 1]
                file.write(piece)
                bytes_left -= len(piece)
                if (lines_left is None and bytes_left < 1000) or lines_left == 0:
                    break
            file.write(tail)

    def session(
        self,
        name: str,
        *,
        wire_mb: float | None = None,
        records: int | None = None,
        prompt_at_end: bool = False,
        context_mb: float | None = None,
    ) -> Path:
        """
        Return the root of a store that holds one session, called ``only``.

        Its wire log has about ``wire_mb`` million bytes or exactly so many ``records`` (neither: three turns), its
        context ``context_mb`` million bytes (None: a few records).
        """
        root = self.root / name
        if root.exists():
            return root
        folder = generate.sessions_path(root, "share") / "only"
        folder.mkdir(parents=True)
        (root / "project").mkdir()
        registry = {"work_dirs": [{"path": str(root / "project"), "kaos": "local", "last_session_id": None}]}
        (root / "share" / "kimi.json").write_text(json.dumps(registry), "utf-8")
        kind = "no-prompt" if prompt_at_end else "wire"
        if wire_mb is None and records is None:
            records = 60
        self._log(folder / "wire.jsonl", kind, size_mb=wire_mb, records=records)
        self._log(folder / "context.jsonl", "context", size_mb=context_mb or 0.01)
        return root

    def settle(self) -> None:
        """Wait until what was just written is old enough for its time stamps to tell a later change."""
        time.sleep(2.1)


def wire_path(root: Path, session_id: str = "only") -> Path:
    """Return a session's wire log in a store made here."""
    return generate.sessions_path(root, "share") / session_id / "wire.jsonl"


def catalog_off(home: Path) -> None:
    """Put a folder where the catalog would be, so that none can be had under this home."""
    (home / "kimi-sessions" / "cache" / "catalog.sqlite3" / "in-the-way").mkdir(parents=True, exist_ok=True)


def forget_catalog(home: Path) -> None:
    """Remove the catalog of a home."""
    shutil.rmtree(home / "kimi-sessions" / "cache", ignore_errors=True)
