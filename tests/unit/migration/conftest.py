"""What the tests of a migration look at: trees as values, and a share dir with its projects beside it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.seam import UnsyncedFs

from kimi_sessions import ShareLayout
from kimi_sessions._fs import using
from kimi_sessions.layout import work_dir_key
from kimi_sessions.migration import PathMap, Plan, apply_plan, plan_from_share

Tree = dict[str, tuple[str, int]]
CORPUS = Path(__file__).parents[3] / "fixtures" / "corpus"
#: What a migration adds to a session of its own, and what locks leave there.
OURS = ("session.json", "seal.json", ".lock", ".hold")


def tree(root: Path) -> Tree:
    """Map every path below a folder to what is there (a hash, a link's goal, a kind) and its time in nanoseconds."""
    found: Tree = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode):
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            elif path.is_symlink():
                what = f"link to {path.readlink()}"
            else:
                what = stat.filemode(facts.st_mode)[0]
            found[str(path.relative_to(root))] = (what, facts.st_mtime_ns)
    return found


def files(root: Path) -> dict[str, str]:
    """Map every regular file below a folder to its hash."""
    return {name: what for name, (what, _) in tree(root).items() if len(what) == 64}


def quickly(plan: Plan, *, move: bool = False) -> list[str]:
    """Carry out a plan without waiting for the disk."""
    with using(UnsyncedFs()):
        return apply_plan(plan, move=move)


@dataclass(frozen=True)
class Source:
    """A share dir that is written by hand."""

    share: Path

    @property
    def layout(self) -> ShareLayout:
        """The share dir's layout."""
        return ShareLayout(self.share)

    def register(self, *work_dirs: Path | str, kaos: str = "local", last: str | None = None) -> None:
        """Add work dirs to kimi.json."""
        path = self.share / "kimi.json"
        value = json.loads(path.read_bytes()) if path.exists() else {"work_dirs": []}
        for work_dir in work_dirs:
            value["work_dirs"].append({"path": str(work_dir), "kaos": kaos, "last_session_id": last})
        path.write_text(json.dumps(value))

    def folder(self, work_dir: Path | str, kaos: str = "local") -> Path:
        """Give the folder of a work dir's sessions, made."""
        path = self.share / "sessions" / work_dir_key(str(work_dir), kaos)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def session(
        self, work_dir: Path | str, session_id: str, text: str = "hello", kaos: str = "local"
    ) -> Path:
        """Write a session of one turn and give its folder."""
        path = self.folder(work_dir, kaos) / session_id
        path.mkdir()
        (path / "context.jsonl").write_text(json.dumps({"role": "user", "content": text}) + "\n")
        record = {
            "timestamp": 1_700_000_000.0,
            "message": {"type": "TurnBegin", "payload": {"user_input": text}},
        }
        header = {"type": "metadata", "protocol_version": "1.10"}
        (path / "wire.jsonl").write_text(json.dumps(header) + "\n" + json.dumps(record) + "\n")
        return path


@pytest.fixture
def source(tmp_path: Path, home: Path) -> Source:
    """Give an empty share dir."""
    share = tmp_path / "share"
    share.mkdir()
    return Source(share)


Migrate = Callable[..., Plan]


@pytest.fixture
def migrate(source: Source) -> Migrate:
    """Give a function that migrates from the share dir: into one work dir, or (None) into all."""

    def run(work_dir: Path | None = None, *pairs: tuple[str, str], move: bool = False) -> Plan:
        plan = plan_from_share(source.layout, work_dir, paths=PathMap(pairs))
        quickly(plan, move=move)
        return plan

    return run
