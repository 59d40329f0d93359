"""A store under everything at once, against a dict: what was acknowledged is read, and all ways of reading agree."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from tests.seam import UnsyncedFs
from tests.stores import said, say, strays, told, write

from kimi_sessions import Layout, ProjectLayout, Session, ShareLayout, WriteError, _fs

_T = TypeVar("_T")

TEXT = st.text(max_size=40) | st.sampled_from(
    ["}{", '"}\n{"', "\u2028", "\r\n", "\x00", "é 漢字 🎈", "x" * 9000]
)
GARBAGE = st.sampled_from(
    [
        b"\0" * 1206 + b"\n",
        b"\0" * 300,
        b"\xef\xbb\xbf\n",
        b"\r\n",
        b"\n\n  \n",
        b"\xff\xfe\xc3(\n",
        b"[1, 2, 3]\n",
        b"42\n",
        b'"text"\n',
        b'{"no": "kind"}\n',
        b'{"type": "metadata", "protocol_version": "1.3"}\n',
        b'{"timestamp": 1, "message": {"type": "TurnBeg\n',
        b'{"role": "user", "content": "cut\n',
        b"}\n",
        b"{" * 3000 + b"\n",
    ]
)


@dataclass
class Model:
    """What a session must hold. `unsure` records may be there or not: a rule of the test tore them itself."""

    wire: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)
    title: str | None = None
    archived: bool = False
    tags: set[str] = field(default_factory=set)
    dirs: list[str] = field(default_factory=list)
    damaged: bool = False


class StoreMachine(RuleBasedStateMachine):
    """Sessions of one work dir, in either layout, and the dict that says what they must hold."""

    sessions = Bundle("sessions")
    trashed = Bundle("trashed")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-"))
        self.work_dir = self.root / "project"
        self.work_dir.mkdir()
        self.saved = {name: os.environ.get(name) for name in ("KIMI_SESSIONS_HOME", "KIMI_SHARE_DIR")}
        os.environ["KIMI_SESSIONS_HOME"] = str(self.root / "home")
        self.loop = asyncio.new_event_loop()
        self.layout: Layout = ProjectLayout()
        self.models: dict[str, Model] = {}
        self.trash: dict[str, Model] = {}
        self.open: dict[str, list[Session]] = {}
        self.count = 0

    def run(self, step: Coroutine[Any, Any, _T]) -> _T:
        """Run one step without waiting for the disk."""
        with _fs.using(UnsyncedFs()):
            return self.loop.run_until_complete(step)

    def teardown(self) -> None:
        """Let go of everything."""
        for objects in self.open.values():
            for each in objects:
                each._let_go()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        for name, value in self.saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self.root)

    def object_of(self, session_id: str, which: int) -> Session:
        """Give one of the two objects that this program has of a session; opened where it was let go."""
        objects = self.open.setdefault(session_id, [])
        while len(objects) < 2:
            found = self.run(Session.find(self.work_dir, session_id, layout=self.layout))
            assert found is not None, f"{session_id} is gone"
            objects.append(found)
        return objects[which]

    def path(self, session_id: str, name: str) -> Path:
        """Give a file of a session."""
        return self.object_of(session_id, 0).path / name

    # --- rules ----------------------------------------------------------------------------------------------

    @initialize(share=st.booleans())
    def choose_layout(self, share: bool) -> None:
        """Begin in one of the layouts."""
        self.layout = ShareLayout(self.root / "share") if share else ProjectLayout()

    @rule(target=sessions)
    def create(self) -> str:
        """Make a session."""
        self.count += 1
        session_id = f"session-{self.count}"
        self.run(Session.create(self.work_dir, session_id, layout=self.layout))
        self.models[session_id] = Model()
        return session_id

    @rule(session_id=sessions, which=st.integers(0, 1), text=TEXT)
    def append_record(self, session_id: str, which: int, text: str) -> None:
        """Append a wire record."""
        self.run(write(self.object_of(session_id, which), [text]))
        self.models[session_id].wire.append(text)

    @rule(session_id=sessions, which=st.integers(0, 1), text=TEXT)
    def append_message(self, session_id: str, which: int, text: str) -> None:
        """Append a context message."""
        self.run(say(self.object_of(session_id, which), [text]))
        self.models[session_id].context.append(text)

    @rule(session_id=sessions)
    def reopen(self, session_id: str) -> None:
        """Close the objects as a program that ends well does."""
        for each in self.open.pop(session_id, []):
            each._let_go()

    @rule()
    def kill(self) -> None:
        """Drop every object, as a program that dies does."""
        self.open.clear()

    @rule(session_id=sessions, wire=st.booleans(), cut=st.integers(1, 120))
    def tear_the_tail(self, session_id: str, wire: bool, cut: int) -> None:
        """Cut bytes off the end of a log, as a crash of the machine may."""
        path = self.path(session_id, "wire.jsonl" if wire else "context.jsonl")
        if not path.exists():
            return
        data = path.read_bytes()
        kept = data[: max(len(data) - cut, 0)]
        path.write_bytes(kept)
        model = self.models[session_id]
        model.damaged = True
        lost = data[len(kept) :].count(b"\n")
        # A record whose last line break alone was cut is still whole.
        records = model.wire if wire else model.context
        present = self.run(
            told(self.object_of(session_id, 0)) if wire else said(self.object_of(session_id, 0))
        )
        assert len(records) - len(present) <= lost
        assert present == records[: len(present)]
        del records[len(present) :]

    @rule(session_id=sessions, wire=st.booleans(), garbage=GARBAGE)
    def insert_garbage(self, session_id: str, wire: bool, garbage: bytes) -> None:
        """Put bytes between two records, or at the end, as broken disks and other programs do."""
        path = self.path(session_id, "wire.jsonl" if wire else "context.jsonl")
        if not path.exists():
            return
        self.models[session_id].damaged = True
        data = path.read_bytes()
        middle = data.find(b"\n", len(data) // 2) + 1
        if garbage.endswith(b"\n") and middle:
            path.write_bytes(data[:middle] + garbage + data[middle:])
        else:
            path.write_bytes(data + garbage)

    @rule(session_id=sessions, wire=st.booleans())
    def fuse_lines(self, session_id: str, wire: bool) -> None:
        """Take a line break between two whole records away."""
        path = self.path(session_id, "wire.jsonl" if wire else "context.jsonl")
        if path.exists():
            data = path.read_bytes()
            at = data.find(b"}\n{", len(data) // 2)
            if at > 0:
                self.models[session_id].damaged = True
                path.write_bytes(data[: at + 1] + data[at + 2 :])

    @rule(session_id=sessions, wire=st.booleans())
    def write_with_crlf(self, session_id: str, wire: bool) -> None:
        """Change the line ends to those of another system."""
        path = self.path(session_id, "wire.jsonl" if wire else "context.jsonl")
        if path.exists():
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))

    @rule(session_id=sessions, which=st.integers(0, 1), title=st.text(min_size=1, max_size=30))
    def rename(self, session_id: str, which: int, title: str) -> None:
        """Name a session."""
        session = self.object_of(session_id, which)
        try:
            self.run(session.rename(title))
        except ValueError:
            return
        self.models[session_id].title = session.title

    @rule(session_id=sessions, which=st.integers(0, 1), archived=st.booleans())
    def archive(self, session_id: str, which: int, archived: bool) -> None:
        """Archive a session, or bring it back."""
        session = self.object_of(session_id, which)
        self.run(session.archive() if archived else session.unarchive())
        self.models[session_id].archived = archived

    @rule(session_id=sessions, which=st.integers(0, 1), tag=st.sampled_from("abc"))
    def tag(self, session_id: str, which: int, tag: str) -> None:
        """Tag a session."""
        self.run(self.object_of(session_id, which).tag(tag))
        self.models[session_id].tags.add(tag)

    @rule(session_id=sessions, which=st.integers(0, 1))
    def save_state(self, session_id: str, which: int) -> None:
        """Change a field in one of two objects that both hold a state, and save it."""
        session = self.object_of(session_id, which)
        self.count += 1
        entry = f"/dir/{self.count}"
        session.state.additional_dirs = [*session.state.additional_dirs, entry]
        session.save_state()
        self.models[session_id].dirs.append(entry)

    @rule(session_id=sessions, cut=st.integers(0, 200))
    def damage_state(self, session_id: str, cut: int) -> None:
        """Cut the state's document: what was in it is gone, and nothing else."""
        path = self.path(session_id, "state.json")
        if path.exists():
            data = path.read_bytes()
            if cut < len(data):
                path.write_bytes(data[:cut])
                model = self.models[session_id]
                model.title, model.archived, model.dirs, model.damaged = None, False, [], True
                self.open.pop(session_id, None)

    @rule(target=sessions, session_id=sessions)
    def fork(self, session_id: str) -> str:
        """Fork a session: the fork has all its records, the source stays byte for byte."""
        session = self.object_of(session_id, 0)
        before = {path.name: path.read_bytes() for path in session.path.glob("*.json*")}
        fork = self.run(session.fork())
        assert {path.name: path.read_bytes() for path in session.path.glob("*.json*")} == before
        model = self.models[session_id]
        self.models[fork.id] = Model(
            wire=list(model.wire), context=list(model.context), title=fork.title, damaged=model.damaged
        )
        return fork.id

    @rule(target=trashed, session_id=consumes(sessions))
    def put_into_the_trash(self, session_id: str) -> str:
        """Put a session into the trash."""
        self.run(self.object_of(session_id, 0).trash())
        self.open.pop(session_id)
        self.trash[session_id] = self.models.pop(session_id)
        return session_id

    @rule(target=sessions, session_id=consumes(trashed))
    def restore(self, session_id: str) -> str:
        """Take a session out of the trash."""
        self.run(Session.restore(self.work_dir, session_id, layout=self.layout))
        self.models[session_id] = self.trash.pop(session_id)
        return session_id

    @rule(session_id=consumes(sessions))
    def delete(self, session_id: str) -> None:
        """Delete a session for good."""
        self.run(self.object_of(session_id, 0).delete())
        self.open.pop(session_id)
        del self.models[session_id]

    @rule(target=sessions, texts=st.lists(st.text(max_size=20), min_size=1, max_size=4))
    def flat_file_appears(self, texts: list[str]) -> Any:
        """An old client leaves a session as a flat file."""
        if not self.models:
            return multiple()
        self.count += 1
        session_id = f"flat-{self.count}"
        sessions_path = self.object_of(next(iter(self.models)), 0).path.parent
        lines = [json.dumps({"role": "user", "content": text}) + "\n" for text in texts]
        (sessions_path / f"{session_id}.jsonl").write_text("".join(lines))
        self.models[session_id] = Model(context=texts)
        return session_id

    @rule(session_id=sessions)
    def a_disk_that_fails(self, session_id: str) -> None:
        """An append that the disk refuses leaves no trace in what is read."""

        class Full(UnsyncedFs):
            @staticmethod
            def write(fd: int, data: bytes) -> int:  # type: ignore[override]
                return os.write(fd, data[: len(data) // 2])

        session = self.object_of(session_id, 0)
        with _fs.using(Full()):
            try:
                self.loop.run_until_complete(write(session, ["never"]))
            except WriteError:
                return
        raise AssertionError

    # --- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def everything_acknowledged_is_read(self) -> None:
        """List, find, records, messages, turns and facts say what the dict says."""
        listed = {
            each.id: each
            for each in self.run(Session.list(self.work_dir, layout=self.layout, include_empty=True))
        }
        assert set(listed) == set(self.models)
        for session_id, model in self.models.items():
            session = listed[session_id]
            assert self.run(told(session)) == model.wire
            assert self.run(said(session)) == model.context
            assert [turn.user_text for turn in self.run(session.turns())] == model.wire
            assert set(session.tags) == model.tags
            assert session.archived == model.archived
            if model.title is not None:
                assert session.title == model.title
            state = session.state
            if session.trusted:
                assert state.additional_dirs == model.dirs
            holds = model.wire or model.context or model.title or model.tags
            assert session.empty <= (not holds)
            if not model.damaged:
                assert session.empty == (not holds)
                assert session.problems == [] or not session.trusted
        trashed = self.run(Session.list_trash(self.work_dir, layout=self.layout))
        assert {entry.session_id for entry in trashed} == set(self.trash)
        assert strays(self.root) == []


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestStore = StoreMachine.TestCase


class LongStoreMachine(StoreMachine):
    """The same, for longer."""


LongStoreMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestStoreForLong = pytest.mark.torture(LongStoreMachine.TestCase)
