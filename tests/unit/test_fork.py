"""A fork holds exactly the turns up to the one that was named, in both logs, and its source is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.seam import UnsyncedFs

from kimi_sessions import ProjectLayout, Session, ShareLayout, _fs
from kimi_sessions._text import user_text
from kimi_sessions.context.history import is_injected_user_message, read_history
from kimi_sessions.errors import InvalidTurnError, SessionExistsError, SessionNotFoundError
from kimi_sessions.findings import Finding
from kimi_sessions.fork import (
    enumerate_turns,
    fork_into,
    fork_session,
    fork_title,
    truncate_context_at_turn,
    truncate_wire_at_turn,
)

Record = dict[str, Any]

SUMMARY = "<system>Previous context has been compacted. Here is the compaction output:</system> "
REMINDER = "<system-reminder>Plan mode is on.</system-reminder>"
NOTIFICATION = '<notification id="n1" category="task">done</notification>'


# --- a client in small ---------------------------------------------------------------------------------------------


class Client:
    """Writes both logs as Kimi CLI does, and remembers the messages of the context as they were after each turn."""

    def __init__(self, *, markers: bool = False, has_ends: bool = True) -> None:
        self.wire: list[Record] = [{"type": "metadata", "protocol_version": "1.10"}]
        self.rotated: list[list[Record]] = []
        self.context: list[Record] = [{"role": "_system_prompt", "content": "You are helpful."}]
        self.after: list[list[Record] | None] = []
        self.markers = markers
        self.has_ends = has_ends
        self.count = 0
        self.checkpoints = 0

    def emit(self, kind: str, **payload: Any) -> None:
        """Write a wire record."""
        self.count += 1
        self.wire.append({"timestamp": 1e9 + self.count, "message": {"type": kind, "payload": payload}})

    def messages(self) -> list[Record]:
        """Give the messages of the context as it is."""
        return [record for record in self.context if not record["role"].startswith("_")]

    def begin(self, text: object) -> None:
        """Begin a turn."""
        if self.after and self.after[-1] is None:
            self.after[-1] = self.messages()
        self.after.append(None)
        self.emit("TurnBegin", user_input=text)

    def end(self) -> None:
        """End the turn begun last."""
        if self.has_ends:
            self.emit("TurnEnd")
        self.after[-1] = self.messages()

    def checkpoint(self) -> None:
        """Set a checkpoint."""
        self.context.append({"role": "_checkpoint", "id": self.checkpoints})
        if self.markers:
            self.user(f"<system>CHECKPOINT {self.checkpoints}</system>")
        self.checkpoints += 1

    def user(self, content: object) -> None:
        """Put a user message into the context."""
        self.context.append({"role": "user", "content": content})

    def step(self, *, tool: bool = False, injected: str | None = None) -> None:
        """Ask the model once."""
        self.count += 1
        self.emit("StepBegin", n=1)
        self.checkpoint()
        if injected is not None:
            self.user(injected)
        self.context.append({"role": "_usage", "token_count": self.count})
        self.emit("ContentPart", type="text", text=f"reply {self.count}")
        message: Record = {"role": "assistant", "content": f"reply {self.count}"}
        if tool:
            call = {"type": "function", "id": "Shell:0", "function": {"name": "Shell", "arguments": "{}"}}
            message["tool_calls"] = [call]
        self.context.append(message)
        if tool:
            self.context.append({"role": "tool", "tool_call_id": "Shell:0", "content": "<system>ok</system>"})

    def run(self, content: object, happenings: tuple[str, ...] = ()) -> None:
        """What happens between a turn's beginning and its last step."""
        self.checkpoint()
        self.user(content)
        for happening in happenings:
            self.step(tool=True, injected={"reminder": REMINDER, "notification": NOTIFICATION}.get(happening))
            if happening == "steer":
                self.user(f"steer {self.count}")
                self.emit("SteerInput", user_input=f"steer {self.count}")
            elif happening == "compact":
                self.compact()
            elif happening == "dmail":
                self.revert(self.checkpoints - 1)
                self.checkpoint()
                self.user("<system>You just got a D-Mail from your future self.</system>")
            elif happening == "hook":
                self.checkpoint()
                self.user(f"The hook asks for more ({self.count}).")

    def prompt(self, content: object, *happenings: str) -> None:
        """Take a prompt, and answer it."""
        self.begin(content)
        self.run(content, happenings)
        self.step()
        self.end()

    def interrupted(self, content: object) -> None:
        """Take a prompt, and die while answering."""
        self.begin(content)
        self.run(content)
        self.emit("StepBegin", n=1)
        self.checkpoint()
        self.after[-1] = self.messages()

    def command(self, text: str) -> None:
        """Run a slash command."""
        self.begin(text)
        name = text.partition(" ")[0]
        if name == "/compact":
            self.compact()
        elif name == "/clear":
            self.clear()
        elif name == "/skill:x":
            self.run(f"Do as this skill says ({self.count}).")
            self.step()
        elif name == "/import":
            self.user("<system>The user has imported context from file 'x'.</system><imported_context>…")
        elif name == "/add-dir":
            self.user("<system>The user has added a folder.</system>")
        elif name == "/init":
            self.begin("Write AGENTS.md.")
            self.emit("StepBegin", n=1)
            self.end()
            self.user("<system>The user just ran `/init` slash command.</system>")
        elif name == "/flow:x":
            for node in range(2):
                self.begin(f"node {node} of {text}")
                self.run(f"node {node} of {text}")
                self.step()
                self.end()
        self.end()

    def loop(self, text: str) -> None:
        """A prompt that is fed again and again: the turns inside repeat the text of the one around them."""
        self.begin(text)
        for _ in range(2):
            self.begin(text)
            self.run(text)
            self.step()
            self.end()
        self.end()

    def _rotate(self) -> None:
        self.rotated.append(self.context)
        self.context = [{"role": "_system_prompt", "content": "You are helpful."}]
        self.checkpoints = 0

    def clear(self) -> None:
        """Clear the context."""
        self._rotate()

    def compact(self) -> None:
        """Compact the context."""
        self.emit("CompactionBegin")
        kept = self.messages()[-2:]
        self._rotate()
        self.checkpoint()
        self.count += 1
        self.user(f"{SUMMARY}They talked ({self.count}).")
        self.context += kept
        self.context.append({"role": "_usage", "token_count": 1})
        self.emit("CompactionEnd")

    def revert(self, checkpoint: int) -> None:
        """Take the context back to a checkpoint."""
        old = self.context
        cut = next(at for at, record in enumerate(old) if record == {"role": "_checkpoint", "id": checkpoint})
        self._rotate()
        self.context = old[:cut]
        self.checkpoints = checkpoint

    def save(self, folder: Path) -> Path:
        """Write all files of the session."""
        folder.mkdir(parents=True)
        write(folder / "wire.jsonl", *self.wire)
        for number, records in enumerate(self.rotated, start=1):
            write(folder / f"context_{number}.jsonl", *records)
        write(folder / "context.jsonl", *self.context)
        return folder


def dump(*records: Record | bytes) -> bytes:
    """Make the lines of a log; bytes stand as they are."""
    return b"".join(
        each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in records
    )


def write(path: Path, *records: Record | bytes) -> Path:
    """Write a log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dump(*records))
    return path


def wire(kind: str, **payload: Any) -> Record:
    """Make a wire record."""
    return {"timestamp": 1e9, "message": {"type": kind, "payload": payload}}


def begun(text: object) -> Record:
    """Make a TurnBegin."""
    return wire("TurnBegin", user_input=text)


ENDED = wire("TurnEnd")


def user(content: object) -> Record:
    """Make a user message."""
    return {"role": "user", "content": content}


def said(text: str) -> Record:
    """Make an assistant message."""
    return {"role": "assistant", "content": text}


def messages_of(path: Path) -> list[Record]:
    """Give the messages of a context."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return [entry.record for entry in read_history(fd).messages]
    finally:
        os.close(fd)


def users_own(path: Path) -> list[Any]:
    """Give the contents of the messages in a context that are the user's."""
    found = [
        each for each in messages_of(path) if each["role"] == "user" and not is_injected_user_message(each)
    ]
    return [each["content"] for each in found]


def texts_of(path: Path) -> list[str]:
    """Give the prompts in a wire log."""
    return [turn.user_text for turn in enumerate_turns(path)]


def without_open_markers(messages: list[Record]) -> list[Record]:
    """Leave out checkpoint markers at the end: they belong to what comes next."""
    while messages and str(messages[-1]["content"]).startswith("<system>CHECKPOINT"):
        messages = messages[:-1]
    return messages


def digest(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Give every file below a folder with its content's hash, its mode and its mtime."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest(),
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink() and not stat.S_ISFIFO(path.lstat().st_mode)
    }


@pytest.fixture(autouse=True)
def unsynced() -> Iterator[None]:
    """Fork many times a second: waiting for the device says nothing about where a log is cut."""
    with _fs.using(UnsyncedFs()):
        yield


@pytest.fixture
def into(tmp_path: Path) -> Callable[..., tuple[Path, list[Finding]]]:
    """Give a function that forks a session folder into a sessions folder of the test's own."""
    sessions = tmp_path / "forks"
    sessions.mkdir()
    count = 0

    def fork(source: Path, turn_index: int | None = None) -> tuple[Path, list[Finding]]:
        nonlocal count
        count += 1
        before = digest(source)
        found = fork_into(source, sessions, f"f{count}", turn_index=turn_index, title="T", now=2e9)
        assert digest(source) == before, "the source is as it was"
        assert sorted(os.listdir(sessions)) == sorted(f"f{number + 1}" for number in range(count))
        return sessions / f"f{count}", found

    return fork


Into = Callable[..., tuple[Path, list[Finding]]]


def hold_all_turns(client: Client, source: Path, into: Into) -> None:
    """Fork at every turn; both logs hold what they held then, and nothing is reported missing."""
    turns = texts_of(source / "wire.jsonl")
    assert len(turns) == len(client.after)
    for index, after in enumerate(client.after):
        assert after is not None
        fork, problems = into(source, index)
        assert texts_of(fork / "wire.jsonl") == turns[: index + 1]
        kept = messages_of(fork / "context.jsonl")
        assert without_open_markers(kept) == without_open_markers(after), f"after turn {index}"
        assert problems == []


# --- both logs at the same turn ------------------------------------------------------------------------------------


def scenes() -> Iterator[tuple[str, Client]]:
    """What lies between turns in real sessions, one kind at a time."""

    def plain() -> Client:
        client = Client()
        client.prompt("first")
        return client

    client = plain()
    client.prompt("second", "reminder", "notification", "tool")
    client.prompt("third")
    yield "reminders and notifications", client
    client = plain()
    client.prompt("second", "steer", "steer")
    client.prompt("third")
    yield "steers", client
    for command in (
        "/yolo",
        "/compact",
        "/clear",
        "/import x",
        "/add-dir /x",
        "/init",
        "/flow:x",
        "/skill:x",
    ):
        client = plain()
        client.command(command)
        client.prompt("second")
        client.command(command)
        client.command(command)
        client.prompt("third")
        yield command, client
    client = plain()
    client.loop("again and again")
    client.prompt("third")
    yield "a loop", client
    client = plain()
    client.prompt("second", "tool", "compact", "tool", "compact")
    client.prompt("third", "compact")
    yield "compactions within a turn", client
    client = plain()
    client.prompt("second", "tool", "dmail")
    client.prompt("third", "dmail", "compact", "dmail")
    yield "going back within a turn", client
    client = plain()
    client.begin("second")
    client.run("second", ("dmail", "compact"))
    client.end()
    client.prompt("third")
    yield "going back, then a compaction, then nothing", client
    client = plain()
    client.prompt("second", "hook")
    client.prompt("third")
    yield "a hook's follow-up", client
    client = plain()
    client.interrupted("second")
    client.interrupted("third")
    client.prompt("fourth")
    yield "interrupted turns", client
    client = Client(has_ends=False)
    client.prompt("first", "steer")
    client.command("/yolo")
    client.prompt("second", "compact")
    client.prompt("third")
    yield "no TurnEnd, as old clients", client
    client = Client(markers=True)
    client.prompt("first", "tool")
    client.prompt("second", "dmail")
    client.prompt("third")
    yield "checkpoint markers", client
    client = plain()
    client.prompt("second")
    client.prompt("third")
    client.revert(2)
    client.prompt("fourth")
    client.clear()
    client.prompt("fifth")
    yield "a revert and a clear that the wire log knows nothing of", client
    client = plain()
    client.prompt("second", "tool")
    client.compact()
    client.prompt("third")
    client.compact()
    client.compact()
    client.prompt("fourth")
    client.compact()
    yield "compactions after a turn's end", client
    client = Client()
    for _ in range(4):
        client.prompt("continue")
    client.command("/compact")
    client.prompt("continue", "tool")
    client.command("/clear")
    client.prompt("continue")
    client.prompt("continue")
    yield "the same prompt each time", client
    client = Client()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    client.prompt([{"type": "text", "text": "look"}, image])
    client.prompt([image])
    client.prompt([{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}])
    yield "images and parts", client


SCENES = dict(scenes())


@pytest.mark.parametrize("scene", SCENES)
def test_a_fork_holds_exactly_the_turns_up_to_its_own_whatever_lies_between(
    tmp_path: Path, into: Into, scene: str
) -> None:
    """At every turn of a session, the fork's context is the one that the model had when that turn ended."""
    client = SCENES[scene]
    hold_all_turns(client, client.save(tmp_path / "source"), into)


HAPPENINGS = st.lists(
    st.sampled_from(["tool", "reminder", "notification", "steer", "compact", "dmail"]), max_size=2
)
STEPS = st.one_of(
    st.tuples(st.just("prompt"), HAPPENINGS),
    st.tuples(st.just("prompt"), HAPPENINGS),
    st.tuples(st.just("interrupted"), st.just([])),
    st.tuples(st.just("loop"), st.just([])),
    st.sampled_from(
        ["/yolo", "/compact", "/clear", "/import x", "/add-dir x", "/init", "/flow:x", "/skill:x"]
    ).map(lambda text: (text, [])),
    st.tuples(st.just("cleared, then a prompt"), HAPPENINGS),
)


@given(st.lists(STEPS, min_size=1, max_size=7), st.booleans(), st.booleans())
def test_at_every_turn_of_any_session_both_logs_are_cut_at_the_same_turn(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, list[str]]],
    markers: bool,
    has_ends: bool,
) -> None:
    """Whatever is put between turns, in any order."""
    client = Client(markers=markers, has_ends=has_ends)
    for number, (step, happenings) in enumerate(steps):
        if step == "interrupted":
            client.interrupted(f"prompt {number}")
        elif step == "loop":
            client.loop(f"prompt {number}")
        elif step.startswith("/"):
            client.command(step)
        else:
            if step.startswith("cleared"):
                client.clear()
            client.prompt(f"prompt {number}", *happenings)
    base = tmp_path_factory.mktemp("any")
    source = client.save(base / "source")
    turns = texts_of(source / "wire.jsonl")
    for index, after in enumerate(client.after):
        assert after is not None
        problems = fork_into(source, base, f"f{index}", turn_index=index, title="T", now=2e9)
        assert texts_of(base / f"f{index}" / "wire.jsonl") == turns[: index + 1]
        kept = messages_of(base / f"f{index}" / "context.jsonl")
        assert without_open_markers(kept) == without_open_markers(after), f"after turn {index}"
        assert problems == []


@pytest.mark.parametrize("version", ["0.84", "1.52.0", "chain"])
def test_real_sessions_are_cut_at_each_of_their_turns(
    corpus: Callable[[str], Path], into: Into, version: str
) -> None:
    """No prompt of a later turn is in the context, and the fork's turns are the source's first ones."""
    forked = 0
    for path in sorted(corpus(version).glob("sessions/*/*/wire.jsonl")):
        turns = texts_of(path)
        if len(turns) < 2:
            continue
        for index in range(len(turns)):
            fork, _ = into(path.parent, index)
            forked += 1
            assert texts_of(fork / "wire.jsonl") == turns[: index + 1]
            assert (path.read_bytes()).startswith((fork / "wire.jsonl").read_bytes().rstrip(b"\n"))
            later_only = {*turns[index + 1 :]} - {*turns[: index + 1]}
            assert not later_only & {
                user_text(said_by_user) for said_by_user in users_own(fork / "context.jsonl")
            }
    assert forked > 10


CALLED = ["Remember the number 41.", "Remember the word apple.", "Remember the colour blue."]


@pytest.mark.parametrize("version", ["0.68", "1.5", "1.52.0"])
def test_real_compactions_and_clears_are_looked_behind(
    corpus: Callable[[str], Path], into: Into, version: str
) -> None:
    """Turns that a compaction or a clear took out of the context come from the rotation that still has them."""
    expected: dict[tuple[str, ...], list[list[str]]] = {
        (*CALLED, "/compact", "What was the number?"): [
            *(CALLED[: count + 1] for count in range(3)),
            [CALLED[2]],
            [CALLED[2], "What was the number?"],
        ],
        (*CALLED, "/clear", "What was the number?"): [
            *(CALLED[: count + 1] for count in range(3)),
            [],
            ["What was the number?"],
        ],
        (*CALLED, "/compact", *CALLED, "/compact"): [
            *(CALLED[: count + 1] for count in range(3)),
            [CALLED[2]],
            *([CALLED[2], *CALLED[: count + 1]] for count in range(3)),
            [CALLED[2]],
        ],
    }
    seen = 0
    for path in corpus(version).glob("sessions/*/*/wire.jsonl"):
        for index, texts in enumerate(expected.get(tuple(texts_of(path)), [])):
            fork, problems = into(path.parent, index)
            assert users_own(fork / "context.jsonl") == texts
            assert problems == []
            seen += 1
    assert seen >= 13


def test_a_turn_that_was_torn_out_of_the_wire_log_is_not_taken_with_the_one_before(
    tmp_path: Path, into: Into
) -> None:
    """Its message is in the context, but no turn of the log is its own."""
    client = Client()
    for text in ("first", "second", "third"):
        client.prompt(text)
    source = client.save(tmp_path / "source")
    lines = (source / "wire.jsonl").read_bytes().splitlines(keepends=True)
    torn = next(at for at, line in enumerate(lines) if b'"second"' in line)
    lines[torn] = lines[torn][:70] + b"\n"
    (source / "wire.jsonl").write_bytes(b"".join(lines))
    assert texts_of(source / "wire.jsonl") == ["first", "third"]
    fork, _ = into(source, 0)
    assert users_own(fork / "context.jsonl") == ["first"]
    fork, _ = into(source, 1)
    assert users_own(fork / "context.jsonl") == ["first", "second", "third"]


def test_a_prompt_that_was_torn_out_of_the_context_is_not_taken_with_the_turn_before(
    tmp_path: Path, into: Into
) -> None:
    """What answered it goes with it."""
    client = Client()
    for text in ("first", "second", "third"):
        client.prompt(text)
    source = client.save(tmp_path / "source")
    lines = (source / "context.jsonl").read_bytes().splitlines(keepends=True)
    torn = next(at for at, line in enumerate(lines) if b'"second"' in line)
    reply = json.loads(lines[torn + 3])["content"]
    lines[torn] = lines[torn][:20] + b"\n"
    (source / "context.jsonl").write_bytes(b"".join(lines))
    fork, _ = into(source, 0)
    assert reply not in [message["content"] for message in messages_of(fork / "context.jsonl")]
    fork, _ = into(source, 1)
    assert reply in [message["content"] for message in messages_of(fork / "context.jsonl")]


def test_what_stands_between_turns_is_not_taken_with_the_turn_before(tmp_path: Path, into: Into) -> None:
    """A status outside a turn, or the rest of a turn whose beginning was torn."""
    status = wire("StatusUpdate", plan_mode=True)
    torn = dump(begun("torn"))[:75] + b"\n"
    source = write(
        tmp_path / "s" / "wire.jsonl",
        begun("cut off"),
        begun("a"),
        ENDED,
        status,
        torn,
        status,
        ENDED,
        begun("b"),
    ).parent
    write(source / "context.jsonl", user("cut off"), user("a"), user("b"))
    fork, _ = into(source, 1)
    assert (fork / "wire.jsonl").read_bytes() == dump(begun("cut off"), begun("a"), ENDED)
    fork, _ = into(source, 2)
    assert (fork / "wire.jsonl").read_bytes() == (source / "wire.jsonl").read_bytes()


def test_the_checkpoint_of_the_next_turn_is_not_taken(tmp_path: Path, into: Into) -> None:
    """Its marker neither: both belong to the prompt that follows."""
    client = Client(markers=True)
    for text in ("first", "second"):
        client.prompt(text)
    source = client.save(tmp_path / "source")
    fork, _ = into(source, 0)
    whole = (source / "context.jsonl").read_bytes()
    assert (fork / "context.jsonl").read_bytes() == whole[
        : whole.index(dump({"role": "_checkpoint", "id": 2}))
    ]


def test_a_message_that_could_be_of_either_turn_is_the_later_ones(tmp_path: Path, into: Into) -> None:
    """Two skills ran, and one of their prompts is lost: a fork keeps nothing that may be of a later turn."""
    client = Client()
    client.prompt("first")
    client.command("/skill:x")
    client.command("/skill:x")
    source = client.save(tmp_path / "source")
    lines = (source / "context.jsonl").read_bytes().splitlines(keepends=True)
    lost = next(at for at, line in enumerate(lines) if b"Do as this skill" in line)
    (source / "context.jsonl").write_bytes(b"".join(lines[: lost - 1] + lines[lost + 4 :]))
    assert len(users_own(source / "context.jsonl")) == 2
    fork, _ = into(source, 1)
    assert users_own(fork / "context.jsonl") == ["first"]
    fork, _ = into(source, 2)
    assert len(users_own(fork / "context.jsonl")) == 2


def test_where_the_rotation_is_gone_a_fitting_summary_is_kept_and_that_is_said(
    tmp_path: Path, into: Into
) -> None:
    """The summary stands for the turns before what the compaction kept."""
    client = Client()
    for text in ("first", "second", "third"):
        client.prompt(text)
    client.command("/compact")
    client.prompt("fourth")
    source = client.save(tmp_path / "source")
    (source / "context_1.jsonl").unlink()
    fork, problems = into(source, 1)
    assert [message["content"][:20] for message in messages_of(fork / "context.jsonl")] == [SUMMARY[:20]]
    assert [problem.kind for problem in problems] == ["context-lost"]
    fork, problems = into(source, 4)
    assert users_own(fork / "context.jsonl") == ["third", "fourth"]
    assert problems == []


def test_where_the_context_is_gone_nothing_of_later_turns_is_taken_and_that_is_said(
    tmp_path: Path, into: Into
) -> None:
    """A summary that also covers later turns is left out; the system prompt stays."""
    client = Client()
    for text in ("first", "second", "third"):
        client.prompt(text)
    client.command("/compact")
    client.prompt("fourth")
    source = client.save(tmp_path / "source")
    (source / "context_1.jsonl").unlink()
    fork, problems = into(source, 0)
    assert messages_of(fork / "context.jsonl") == []
    assert b"You are helpful." in (fork / "context.jsonl").read_bytes()
    assert [problem.kind for problem in problems] == ["context-lost"]
    (source / "context.jsonl").unlink()
    fork, problems = into(source, 0)
    assert (fork / "context.jsonl").read_bytes() == b""
    assert [problem.kind for problem in problems] == ["context-lost"]


def test_of_a_turn_with_turns_inside_the_fork_has_what_came_before_the_first_left_out(
    tmp_path: Path, into: Into
) -> None:
    """The last turn inside also brings the end of those around it."""
    client = Client()
    client.command("/flow:x")
    source = client.save(tmp_path / "source")
    kinds = [
        [
            record.get("message", {}).get("type")
            for record in map(json.loads, (fork / "wire.jsonl").read_bytes().splitlines())
        ]
        for fork, _ in (into(source, index) for index in range(3))
    ]
    step = ["StepBegin", "ContentPart"]
    assert kinds[0] == [None, "TurnBegin"]
    assert kinds[1] == [None, "TurnBegin", "TurnBegin", *step, "TurnEnd"]
    assert kinds[2] == [*kinds[1], "TurnBegin", *step, "TurnEnd", "TurnEnd"]


def test_a_fork_of_a_fork_is_cut_as_its_source_was(tmp_path: Path, into: Into) -> None:
    """Forks are ordinary sessions."""
    client = Client()
    for text in ("first", "second", "third"):
        client.prompt(text, "steer")
    source = client.save(tmp_path / "source")
    once, _ = into(source, 1)
    twice, _ = into(once, 0)
    direct, _ = into(source, 0)
    for name in ("wire.jsonl", "context.jsonl"):
        assert (twice / name).read_bytes() == (direct / name).read_bytes()


def test_thousands_of_turns_with_one_text_are_matched_in_order(tmp_path: Path, into: Into) -> None:
    """Saying "continue" all day makes no fork take long, and none go astray."""
    count = 1200
    write(tmp_path / "s" / "wire.jsonl", *[each for _ in range(count) for each in (begun("continue"), ENDED)])
    replies = [each for number in range(count) for each in (user("continue"), said(str(number)))]
    write(tmp_path / "s" / "context.jsonl", *replies)
    fork, problems = into(tmp_path / "s", 600)
    assert problems == []
    assert messages_of(fork / "context.jsonl") == replies[: 2 * 601]


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_kept_byte_for_byte(tmp_path: Path, into: Into) -> None:
    """Unknown records, odd spacing, damaged and blank lines go along."""
    odd = (
        b'{ "timestamp":1e9 ,"message":{"type":"FromTheFuture","payload":{"big":123456789012345678901234}}}\r\n'
        b"\n{broken\n\xff\xfe\n"
    )
    kept = dump({"type": "metadata", "protocol_version": "1.10"}, odd, begun("a"), odd, ENDED)
    source = write(tmp_path / "s" / "wire.jsonl", kept, begun("b"), ENDED).parent
    context = dump(
        user("a"), {"role": "_future", "x": 1}, b"{broken\n", b'{"role" :"assistant","content":"x"}\n'
    )
    write(source / "context.jsonl", context, user("b"))
    fork, _ = into(source, 0)
    assert (fork / "wire.jsonl").read_bytes() == kept
    assert (fork / "context.jsonl").read_bytes() == context


def test_everything_is_both_logs_byte_for_byte(tmp_path: Path, into: Into) -> None:
    """Without a turn index nothing is cut."""
    client = Client()
    client.prompt("a")
    client.interrupted("b")
    source = client.save(tmp_path / "source")
    fork, problems = into(source)
    for name in ("wire.jsonl", "context.jsonl"):
        assert (fork / name).read_bytes() == (source / name).read_bytes()
    assert problems == []


@pytest.mark.parametrize("turn_index", [None, 0])
def test_a_whole_record_without_its_newline_gets_one(
    tmp_path: Path, into: Into, turn_index: int | None
) -> None:
    """The fork can be written on."""
    source = write(tmp_path / "s" / "wire.jsonl", begun("a"), dump(ENDED).rstrip()).parent
    write(source / "context.jsonl", dump(user("a")).rstrip())
    fork, problems = into(source, turn_index)
    assert (fork / "wire.jsonl").read_bytes() == dump(begun("a"), ENDED)
    assert (fork / "context.jsonl").read_bytes() == dump(user("a"))
    assert problems == []


@pytest.mark.parametrize("turn_index", [None, 0])
def test_a_torn_end_is_set_aside_and_reported(tmp_path: Path, into: Into, turn_index: int | None) -> None:
    """The next record is not glued to it, and no byte is lost."""
    source = write(tmp_path / "s" / "wire.jsonl", begun("a"), b'{"timestamp": 1, "mess').parent
    write(source / "context.jsonl", user("a"), b'{"role": "assis')
    fork, problems = into(source, turn_index)
    assert (fork / "wire.jsonl").read_bytes() == dump(begun("a"))
    assert (fork / "wire.jsonl.torn").read_bytes() == b'{"timestamp": 1, "mess'
    assert (fork / "context.jsonl.torn").read_bytes() == b'{"role": "assis'
    assert [(problem.kind, problem.file) for problem in problems] == [
        ("torn-tail", "wire.jsonl"),
        ("torn-tail", "context.jsonl"),
    ]


def test_a_cut_within_a_line_leaves_whole_lines(tmp_path: Path, into: Into) -> None:
    """Records that are glued together are told apart."""
    glued = dump(ENDED).rstrip() + dump(begun("b"), ENDED)
    source = write(tmp_path / "s" / "wire.jsonl", begun("a"), glued).parent
    write(source / "context.jsonl", dump(user("a")), dump(said("1")).rstrip() + dump(user("b")))
    fork, _ = into(source, 0)
    assert (fork / "wire.jsonl").read_bytes() == dump(begun("a"), ENDED)
    assert (fork / "context.jsonl").read_bytes() == dump(user("a"), said("1"))


def test_what_is_appended_while_the_fork_is_made_is_not_taken(tmp_path: Path, into: Into) -> None:
    """The logs are taken as they were when it began; no lock of the source is needed."""
    client = Client()
    client.prompt("a")
    client.prompt("b")
    source = client.save(tmp_path / "source")
    sizes = {name: (source / name).stat().st_size for name in ("wire.jsonl", "context.jsonl")}

    class Growing(UnsyncedFs):
        @staticmethod
        def pread(fd: int, length: int, offset: int) -> bytes:
            for name in sizes:
                with (source / name).open("ab") as log:
                    log.write(b'{"half a line')
            return os.pread(fd, length, offset)

    with _fs.using(Growing()):
        fork_into(source, tmp_path, "all", turn_index=None, title="T", now=1.0)
        for name, size in sizes.items():
            os.truncate(source / name, size)
        fork_into(source, tmp_path, "last", turn_index=1, title="T", now=1.0)
    for name, size in sizes.items():
        whole = (source / name).read_bytes()[:size]
        assert (tmp_path / "all" / name).read_bytes() == whole
        assert (tmp_path / "last" / name).read_bytes() == whole


# --- the new folder --------------------------------------------------------------------------------------------------


def test_a_fork_has_a_fresh_state_and_knows_its_parent(tmp_path: Path, into: Into) -> None:
    """Approvals, plan and to-dos stay behind; title and times are its own."""
    client = Client()
    client.prompt("a")
    source = client.save(tmp_path / "source")
    approvals = {"yolo": True, "afk": True, "auto_approve_actions": ["run shell command"]}
    (source / "state.json").write_text(
        json.dumps(
            {"custom_title": "X", "approval": approvals, "plan_mode": True, "todos": [], "archived": True}
        )
    )
    for name in (
        "subagents/a1/meta.json",
        "tasks/t/spec.json",
        "notifications/n/event.json",
        "seal.json",
        ".lock",
    ):
        write(source / name, {})
    write(source / "context_1.jsonl", user("old"))
    for turn_index in (0, None):
        fork, _ = into(source, turn_index)
        assert sorted(os.listdir(fork)) == ["context.jsonl", "session.json", "state.json", "wire.jsonl"]
        state = json.loads((fork / "state.json").read_bytes())
        assert (state["custom_title"], state["title_generated"], state["wire_mtime"]) == ("T", True, 2e9)
        assert state["approval"] == {"yolo": False, "afk": False, "auto_approve_actions": []}
        assert (state["plan_mode"], state["archived"]) == (False, False)
        about = json.loads((fork / "session.json").read_bytes())
        assert about["created_at"] == 2e9
        assert about["parent"] == {"session_id": "source", "turn_index": turn_index}


def test_files_of_other_programs_go_along_with_a_fork_of_everything(tmp_path: Path, into: Into) -> None:
    """Folders too; links, pipes and leftovers of our own do not."""
    client = Client()
    client.prompt("a")
    source = client.save(tmp_path / "source")
    write(source / "notes" / "deep" / "x.txt", b"notes")
    write(source / "wire.jsonl.torn", b"x")
    write(source / "state.json.damaged-1", b"x")
    write(source / "wire.jsonl.before-repair-1", b"x")
    write(source / "tmpabcdefgh.tmp", b"x")
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    fork, problems = into(source)
    found = {str(path.relative_to(fork)) for path in fork.rglob("*") if path.is_file()}
    assert found == {"context.jsonl", "wire.jsonl", "state.json", "session.json", "notes/deep/x.txt"}
    assert sorted(problem.file for problem in problems) == ["link", "pipe"]
    fork, problems = into(source, 0)
    assert not (fork / "notes").exists()
    assert problems == []


def test_uploads_that_the_kept_turns_name_are_copied(tmp_path: Path, into: Into) -> None:
    """Of any kind, with spaces and any script in their names; none that only a later turn names."""
    names = ["a b_1a2b3c.mp4", "图片_000000.png", "plain.txt", 'quo"te.pdf', "in context.md"]
    prompt = " ".join(f'<image path="/home/x/uploads/{name}">' for name in names[:4])
    source = write(
        tmp_path / "s" / "wire.jsonl",
        json.dumps(begun(prompt), ensure_ascii=False).encode() + b"\n",
        ENDED,
        begun("and uploads/later.png"),
        ENDED,
    ).parent
    write(
        source / "context.jsonl",
        user(prompt),
        said("see uploads/in context.md"),
        user("and uploads/later.png"),
    )
    for name in (*names, "later.png", "unused.png"):
        write(source / "uploads" / name, name.encode())
    write(source / "uploads" / ".sent", b'["later.png"]')
    fork, problems = into(source, 0)
    assert problems == []
    assert sorted(os.listdir(fork / "uploads")) == sorted([".sent", *names])
    assert sorted(json.loads((fork / "uploads" / ".sent").read_bytes())) == sorted(names)
    assert (fork / "uploads" / "图片_000000.png").read_bytes() == "图片_000000.png".encode()
    fork, _ = into(source)
    assert sorted(os.listdir(fork / "uploads")) == sorted([".sent", *names, "later.png", "unused.png"])


def test_no_upload_leads_out_of_its_folder(tmp_path: Path, into: Into) -> None:
    """Neither a name in a log nor a link in the folder."""
    write(tmp_path / "secret.mp4", b"secret")
    prompt = "uploads/../secret.mp4 uploads/../../secret.mp4 uploads/link.mp4 uploads//etc/passwd uploads/sub"
    source = write(tmp_path / "s" / "wire.jsonl", begun(prompt), ENDED).parent
    write(source / "context.jsonl", user(prompt))
    (source / "uploads").mkdir()
    (source / "uploads" / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    fork, problems = into(source, 0)
    assert b"secret" not in b"".join(path.read_bytes() for path in fork.glob("uploads/*"))
    assert [(problem.kind, problem.file) for problem in problems] == [("irregular", "uploads/link.mp4")]
    os.rename(source / "uploads", tmp_path / "elsewhere")
    (source / "uploads").symlink_to(tmp_path / "elsewhere")
    fork, problems = into(source)
    assert not (fork / "uploads").exists()
    assert [problem.file for problem in problems] == ["uploads"]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_fork_is_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    """Files 0600, folders 0700."""
    client = Client()
    client.prompt("uploads/a.png")
    source = client.save(tmp_path / "source")
    write(source / "uploads" / "a.png", b"x")
    write(source / "notes" / "x", b"x")
    old = os.umask(umask)
    try:
        fork_into(source, tmp_path, "f", turn_index=None, title="T", now=1.0)
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "f").rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "f").rglob("*") if path.is_dir()}
    assert (modes, folders) == ({0o600}, {0o700})
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o700


@pytest.mark.parametrize("turn_index", [-1, 2, 99])
def test_an_impossible_turn_is_an_error_and_leaves_nothing(tmp_path: Path, turn_index: int) -> None:
    """It is never taken for the last one."""
    client = Client()
    client.prompt("a")
    client.prompt("b")
    source = client.save(tmp_path / "source")
    with pytest.raises(InvalidTurnError) as caught:
        fork_into(source, tmp_path, "f", turn_index=turn_index, title="T", now=1.0)
    assert (caught.value.turn_index, caught.value.turn_count) == (turn_index, 2)
    assert os.listdir(tmp_path) == ["source"]


def test_a_session_without_a_wire_log_has_no_turn_to_fork_at_but_can_be_forked(
    tmp_path: Path, into: Into
) -> None:
    """The oldest sessions have none."""
    source = write(tmp_path / "s" / "context.jsonl", user("a")).parent
    with pytest.raises(InvalidTurnError):
        into(source, 0)
    fork = fork_into(source, tmp_path, "f", turn_index=None, title="T", now=1.0)
    assert fork == []
    assert sorted(os.listdir(tmp_path / "f")) == ["context.jsonl", "session.json", "state.json"]
    assert json.loads((tmp_path / "f" / "state.json").read_bytes())["wire_mtime"] is None


def test_a_fork_that_fails_leaves_nothing_and_one_that_is_made_appears_whole(tmp_path: Path) -> None:
    """Until it gets its name nothing of it can be found."""
    client = Client()
    client.prompt("a")
    source = client.save(tmp_path / "source")
    sessions = tmp_path / "sessions"
    sessions.mkdir()

    def look(fd: int) -> None:
        [unfinished] = os.listdir(sessions)
        assert unfinished.startswith(".creating-")
        assert sorted(os.listdir(fd)) == ["context.jsonl", "session.json", "state.json", "wire.jsonl"]
        raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space"):
        fork_into(source, sessions, "f", turn_index=0, title="T", now=1.0, before_publish=look)
    assert os.listdir(sessions) == []


@pytest.mark.parametrize("taken", ["f", "f.jsonl"])
def test_a_fork_never_replaces_what_is_there(tmp_path: Path, taken: str) -> None:
    """Neither a folder nor a flat file of its id."""
    client = Client()
    client.prompt("a")
    source = client.save(tmp_path / "source")
    (tmp_path / taken).mkdir()
    with pytest.raises(SessionExistsError):
        fork_into(source, tmp_path, "f", turn_index=0, title="T", now=1.0)
    assert sorted(os.listdir(tmp_path)) == sorted([taken, "source"])


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """And says where it was looked for."""
    with pytest.raises(SessionNotFoundError) as caught:
        fork_into(tmp_path / "none", tmp_path, "f", turn_index=0, title="T", now=1.0)
    assert caught.value.session_id == "none"


# --- in a store ------------------------------------------------------------------------------------------------------


def fill(session: Session, *texts: str) -> None:
    """Give a session some turns."""
    folder = Path(session.context_file).parent
    client = Client()
    for text in texts:
        client.prompt(text)
    write(folder / "wire.jsonl", *client.wire)
    write(folder / "context.jsonl", *client.context)


@pytest.mark.parametrize("shared", [False, True])
async def test_fork_session_makes_a_session_that_is_found(
    work_dir: Path, tmp_path: Path, shared: bool
) -> None:
    """In the store the source is in; the id may be awaited, as the old client's had to be."""
    layout = ShareLayout(tmp_path / "share") if shared else ProjectLayout()
    source = await Session.create(work_dir, layout=layout)
    fill(source, "one", "two", "three")
    new_id = fork_session(source.dir, work_dir, 1, title_prefix="Undo", source_title="My talk")
    assert isinstance(new_id, str)
    assert await new_id == new_id  # type: ignore[misc]
    found = await Session.find(work_dir, new_id, layout=layout)
    assert found is not None
    assert found.title == "Undo: My talk"
    assert found.trusted
    assert found.parent == {"session_id": source.id, "turn_index": 1}
    assert [turn.user_text for turn in await found.turns()] == ["one", "two"]
    assert [m.text for m in await found.context.messages() if m.role == "user"] == ["one", "two"]


async def test_fork_session_takes_the_sources_own_title(work_dir: Path) -> None:
    """The one it was given, else its first prompt, else that it has none."""
    source = await Session.create(work_dir)
    for expected in ("Fork: Untitled", "Fork: one", "Fork: A talk"):
        found = await Session.find(work_dir, fork_session(source.dir, work_dir))
        assert found is not None
        assert found.title == expected
        if expected == "Fork: Untitled":
            fill(source, "one")
        await source.rename("A talk") if expected == "Fork: one" else None


async def test_an_impossible_fork_leaves_the_store_as_it_was(work_dir: Path) -> None:
    """Through the front door too."""
    source = await Session.create(work_dir)
    fill(source, "one")
    before = sorted(os.listdir(source.dir.parent))
    with pytest.raises(InvalidTurnError):
        await source.fork(1)
    with pytest.raises(ValueError, match="out of range"):
        fork_session(source.dir, work_dir, 7)
    assert sorted(os.listdir(source.dir.parent)) == before


async def test_many_forks_within_a_second_are_as_many_sessions(work_dir: Path) -> None:
    """Their ids are random, not the time."""
    source = await Session.create(work_dir)
    fill(source, "one")
    assert len({fork_session(source.dir, work_dir, 0) for _ in range(30)}) == 30


@pytest.mark.parametrize(
    "title, prefix, expected",
    [
        ("X", "Fork", "Fork: X"),
        ("Fork: X", "Fork", "Fork: X"),
        ("Fork: Undo: Fork: X", "Undo", "Undo: X"),
        ("Note: X", "Fork", "Fork: Note: X"),
        ("Branch: X", "Branch", "Branch: X"),
        ("Fork:", "Fork", "Fork: Fork:"),
    ],
)
def test_prefixes_of_forks_do_not_pile_up(title: str, prefix: str, expected: str) -> None:
    """A fork of a fork is a fork."""
    assert fork_title(title, prefix) == expected


# --- on paths --------------------------------------------------------------------------------------------------------


def paired(folder: Path, *texts: str) -> tuple[Path, Path]:
    """Write plain logs: a header, and two records for each turn in either."""
    header = {"type": "metadata", "protocol_version": "1.10"}
    turns = [each for text in texts for each in (begun([{"type": "text", "text": text}]), ENDED)]
    spoken = [each for text in texts for each in (user(text), said("response"))]
    return write(folder / "wire.jsonl", header, *turns), write(folder / "context.jsonl", *spoken)


def test_turns_of_a_path_have_index_and_text(tmp_path: Path) -> None:
    """A log that is not there has none."""
    wire_path, _ = paired(tmp_path / "s", "first", "second")
    assert [(turn.index, turn.user_text) for turn in enumerate_turns(wire_path)] == [
        (0, "first"),
        (1, "second"),
    ]
    assert enumerate_turns(str(tmp_path / "none.jsonl")) == []


def test_lines_of_a_wire_log_up_to_a_turn(tmp_path: Path) -> None:
    """The header and the turns, as text without newlines."""
    wire_path, _ = paired(tmp_path / "s", "first", "second", "third")
    assert len(truncate_wire_at_turn(wire_path, 0)) == 3
    assert len(truncate_wire_at_turn(wire_path, 2)) == 7
    lines = truncate_wire_at_turn(wire_path, 1)
    assert json.loads(lines[0])["type"] == "metadata"
    assert lines == wire_path.read_text().splitlines()[:5]


def test_a_turn_out_of_range_is_a_value_error(tmp_path: Path) -> None:
    """Also in a log of nothing but its header, and in one that is not there."""
    wire_path, _ = paired(tmp_path / "s", "first")
    with pytest.raises(ValueError, match="out of range"):
        truncate_wire_at_turn(wire_path, 5)
    write(wire_path, {"type": "metadata", "protocol_version": "1.10"})
    with pytest.raises(InvalidTurnError):
        truncate_wire_at_turn(wire_path, 0)
    with pytest.raises(ValueError, match=r"wire\.jsonl not found; without one a session is forked whole"):
        truncate_wire_at_turn(tmp_path / "wire.jsonl", 0)


def test_lines_of_a_context_up_to_a_turn(tmp_path: Path) -> None:
    """As many as there are, if there are fewer turns."""
    _, context_path = paired(tmp_path / "s", "first", "second")
    assert len(truncate_context_at_turn(context_path, 0)) == 2
    assert len(truncate_context_at_turn(context_path, 1)) == 4
    assert len(truncate_context_at_turn(context_path, 5)) == 4
    assert truncate_context_at_turn(tmp_path / "none.jsonl", 0) == []


def test_without_a_wire_log_the_users_messages_are_the_turns(tmp_path: Path) -> None:
    """Checkpoint markers, reminders, notifications and summaries count for none."""
    records = [
        user(SUMMARY),
        user("first"),
        user(REMINDER),
        said("1"),
        user("<system>CHECKPOINT 0</system>"),
        user("second"),
        user(NOTIFICATION),
        said("2"),
    ]
    path = write(tmp_path / "s" / "context.jsonl", *records)
    assert len(truncate_context_at_turn(path, 0)) == 5
    assert len(truncate_context_at_turn(path, 1)) == 8


@pytest.mark.parametrize(
    "turns, context, index, kept",
    [
        (["first", "second"], ["first", "focus on the tests", "*", "second", "*"], 0, 3),
        (["continue", "continue"], ["continue", "*one", "continue", "*two"], 0, 2),
        (["one", "two", "/compact", "three"], [SUMMARY, "two", "*", "three", "*"], 2, 3),
        (["0", "/usage", "/sessions", "1", "2"], ["0", "*", "1", "*", "2", "*"], 3, 4),
        (["0", "/usage", "/sessions", "1", "2"], ["0", "*", "1", "*", "2", "*"], 1, 2),
        (["0", "/skill:x", "1"], ["0", "*", "The skill's prompt", "*", "1", "*"], 0, 2),
        (["0", "/skill:x", "1"], ["0", "*", "The skill's prompt", "*", "1", "*"], 1, 4),
        (["other", "words"], ["what the context says", "*", "is not the same", "*"], 0, 2),
    ],
)
def test_bare_logs_without_steps_and_checkpoints_are_matched_by_what_was_said(
    tmp_path: Path, turns: list[str], context: list[str], index: int, kept: int
) -> None:
    """Logs that other programs wrote hold only prompts and answers."""
    folder = tmp_path / "s"
    write(folder / "wire.jsonl", *[each for text in turns for each in (begun(text), ENDED)])
    records = [said(text) if text.startswith("*") else user(text) for text in context]
    path = write(folder / "context.jsonl", *records)
    assert [json.loads(line) for line in truncate_context_at_turn(path, index)] == records[:kept]


def test_a_steer_that_the_wire_log_knows_is_of_the_turn_it_was_said_in(tmp_path: Path) -> None:
    """It is not taken for the prompt of the skill that ran next."""
    skill = [begun("/skill:x"), ENDED]
    write(
        tmp_path / "s" / "wire.jsonl",
        begun("0"),
        wire("SteerInput", user_input="left"),
        ENDED,
        *skill,
        begun("1"),
    )
    context = [user("0"), user("left"), said("a"), user("The skill's prompt"), said("b"), user("1")]
    path = write(tmp_path / "s" / "context.jsonl", *context)
    assert [json.loads(line) for line in truncate_context_at_turn(path, 0)] == context[:3]
    assert [json.loads(line) for line in truncate_context_at_turn(path, 1)] == context[:5]


def test_damage_of_any_kind_never_brings_a_later_turn(tmp_path: Path) -> None:
    """Both logs ruined at random: a fork is refused or holds no later prompt in its wire log, and never fails."""
    client = Client()
    for number in range(5):
        client.prompt(f"prompt {number}", "steer")
        client.command("/compact" if number == 2 else "/yolo")
    source = client.save(tmp_path / "source")
    whole = {path.name: path.read_bytes() for path in source.iterdir()}
    pick = random.Random(7)
    for attempt in range(60):
        for name, data in whole.items():
            at = pick.randrange(len(data))
            ruined = (
                data[:at] + pick.choice([b"", b"\0" * 9, b"\xff{", data[at : at + 99] * 2]) + data[at + 30 :]
            )
            (source / name).write_bytes(ruined)
        turns = texts_of(source / "wire.jsonl")
        index = pick.randrange(len(turns))
        fork_into(source, tmp_path, f"f{attempt}", turn_index=index, title="T", now=1.0)
        assert texts_of(tmp_path / f"f{attempt}" / "wire.jsonl") == turns[: index + 1]
        assert (tmp_path / f"f{attempt}" / "context.jsonl").read_bytes()[-1:] in (b"", b"\n")
