"""
What Kimi CLI's own tests ask of its session store, asked of this one.

Kimi CLI tests its sessions in `tests/core/test_session.py`, `test_session_state.py` and `test_session_fork.py`. Each
behaviour they hold it to that concerns a store is one test below, under a name close to theirs, against this library's
own functions and on Kimi CLI's own layout. A few behaviours are wanted differently here; those tests say what holds
instead.

The exceptions, each as "there / here / why":

- order: `list` sorts by the context file's modification time / by the time of the last wire record / copying,
  restoring or touching files must not reorder a list.
- fallback of continue: without a recorded last session there is none / the newest that is not empty is given, if there
  is one / a crash or a failed run records nothing, and the conversation is there all the same.
- one bad field: a field of a wrong type resets the whole state / that field alone has its default / a newer client's
  to-do status must not cost a title.
- metadata.json: loading merges it into `state.json`, writes that and deletes the old file / loading merges in memory,
  and the next save writes and renames the old file `metadata.json.merged` / reading writes nothing, and nothing is
  deleted that a person may want to see.
- log collection: `test_session_logging` chooses among the client's own program logs for an export / not here / a
  session store has no such logs.
- the tests of the client's command line, web server, approvals and loggers / not here / they are about the program
  around the store.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.seam import UnsyncedFs

from kimi_sessions import Session, ShareLayout, WriteError, _fs
from kimi_sessions._text import user_text
from kimi_sessions.context.history import is_checkpoint_marker
from kimi_sessions.fork import (
    enumerate_turns,
    fork_session,
    truncate_context_at_turn,
    truncate_wire_at_turn,
)
from kimi_sessions.metadata import load_work_dir_meta
from kimi_sessions.state import SessionState, TodoItem, load_session_state, save_session_state
from kimi_sessions.wire import TextPart, TurnBegin, WireFile

HEADER = {"type": "metadata", "protocol_version": "1.10"}
SYSTEM_PROMPT = {"role": "_system_prompt", "content": "be nice"}
CHECKPOINT = {"role": "_checkpoint", "id": 0}
USAGE = {"role": "_usage", "token_count": 10}


@pytest.fixture(autouse=True)
def unsynced() -> Iterator[None]:
    """Wait for no disk: what is durable when is tested elsewhere."""
    with _fs.using(UnsyncedFs()):
        yield


class Failing(UnsyncedFs):
    """The file system, one of whose calls always fails."""

    def __init__(self, call: str, code: int) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise OSError(code, os.strerror(code))

        setattr(self, call, fail)


class Client:
    """A work dir in a share dir, used as the client uses its own."""

    def __init__(self, share: Path, work_dir: Path) -> None:
        self.layout = ShareLayout(share)
        self.work_dir = work_dir

    async def create(self, session_id: str | None = None) -> Session:
        """Make a session."""
        return await Session.create(self.work_dir, session_id, layout=self.layout)

    async def found(self, session_id: str) -> Session:
        """Find a session that is there."""
        session = await Session.find(self.work_dir, session_id, layout=self.layout)
        assert session is not None
        return session

    async def listed(self) -> list[Session]:
        """List the sessions."""
        return [*await Session.list(self.work_dir, layout=self.layout)]

    def last(self) -> str | None:
        """Give the recorded last session's id."""
        return load_work_dir_meta(self.layout, self.work_dir, self.work_dir).last_session_id


@pytest.fixture
def client(tmp_path: Path, work_dir: Path) -> Client:
    """Give an empty share dir and a work dir."""
    return Client(tmp_path / "share", work_dir)


@pytest.fixture
def session_dir(tmp_path: Path) -> Path:
    """Give a bare folder for a session's files."""
    path = tmp_path / "session"
    path.mkdir()
    return path


async def say(session: Session, text: str, timestamp: float = 100.0) -> None:
    """Append a user's turn to the wire log."""
    await session.wire_file.append_message(TurnBegin(user_input=[TextPart(text=text)]), timestamp=timestamp)


def put_lines(path: Path, *values: object) -> Path:
    """Write a log as another program."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")
    return path


def put_context(session: Session, *values: object) -> None:
    """Write a session's context as another program."""
    put_lines(session.context_file, *values)


def edit_state(session: Session, **changes: object) -> None:
    """Change a session's state on disk as another process of the client would."""
    save_session_state(load_session_state(session.path).model_copy(update=changes), session.path)


# --- sessions ------------------------------------------------------------------------------------------------------


async def test_create_sets_fallback_title(client: Client) -> None:
    """A new session is "Untitled" and has a context file."""
    session = await client.create()
    assert session.title == "Untitled"
    assert session.context_file.exists()


async def test_find_uses_wire_title(client: Client) -> None:
    """A found session's title is its first prompt."""
    session = await client.create()
    await say(session, "how do whales sleep")
    assert (await client.found(session.id)).title == "how do whales sleep"


async def test_list_sorts_by_updated_and_titles(client: Client) -> None:
    """The most recent activity first, titles from the prompts. (Exception: activity, not the context's mtime.)"""
    older, newer = await client.create(), await client.create()
    await say(older, "the older one", 100.0)
    await say(newer, "the newer one", 200.0)
    os.utime(older.context_file, (10_000.0, 10_000.0))
    os.utime(newer.context_file, (9_000.0, 9_000.0))
    assert [(s.id, s.title) for s in await client.listed()] == [
        (newer.id, "the newer one"),
        (older.id, "the older one"),
    ]


async def test_continue_without_last_returns_none(client: Client) -> None:
    """With no last session and nothing said there is none. (Exception: a conversation that is there is given.)"""
    assert await Session.continue_(client.work_dir, layout=client.layout) is None
    session = await client.create()
    assert await Session.continue_(client.work_dir, layout=client.layout) is None
    put_context(session, {"role": "user", "content": "said without a record of it"})
    assert client.last() is None
    assert await Session.continue_(client.work_dir, layout=client.layout) == session


async def test_list_ignores_empty_sessions(client: Client) -> None:
    """A wire log with a header and nothing else is nothing."""
    empty, full = await client.create(), await client.create()
    put_lines(empty.wire_file.path, HEADER)
    await say(full, "hello")
    assert await client.listed() == [full]
    assert empty.is_empty()


async def test_is_empty_ignores_context_metadata_only(client: Client) -> None:
    """Control records are no conversation."""
    session = await client.create()
    put_context(session, SYSTEM_PROMPT, CHECKPOINT, USAGE)
    assert session.is_empty()
    put_context(session, SYSTEM_PROMPT, {"role": "user", "content": "hi"})
    assert not session.is_empty()


async def test_list_ignores_prompt_only_sessions(client: Client) -> None:
    """A session with a system prompt alone is not listed."""
    put_context(await client.create(), SYSTEM_PROMPT)
    assert await client.listed() == []


async def test_create_named_session(client: Client) -> None:
    """The given id is the folder's name, and finds it."""
    session = await client.create("named-one")
    assert session.id == session.dir.name == "named-one"
    assert await client.found("named-one") == session


async def test_custom_title_overrides_wire_title(client: Client) -> None:
    """A name goes before the first prompt."""
    session = await client.create()
    await say(session, "the prompt")
    edit_state(session, custom_title="the name")
    assert (await client.found(session.id)).title == "the name"


async def test_custom_title_makes_session_non_empty(client: Client) -> None:
    """Somebody meant to keep it."""
    session = await client.create()
    session.state.custom_title = "kept"
    assert not session.is_empty()
    session.save_state()
    assert await client.listed() == [session]


async def test_custom_title_persists_across_find(client: Client) -> None:
    """Saved once, found again and again."""
    session = await client.create()
    session.state.custom_title = "kept"
    session.save_state()
    for _ in range(2):
        found = await client.found(session.id)
        assert found.title == found.state.custom_title == "kept"


async def test_save_state_preserves_external_title(client: Client) -> None:
    """A title that another process wrote meanwhile survives our save."""
    session = await client.create()
    _ = session.state
    edit_state(session, custom_title="from elsewhere", title_generated=True)
    session.state.plan_mode = True
    session.save_state()
    on_disk = load_session_state(session.path)
    assert (on_disk.custom_title, on_disk.title_generated, on_disk.plan_mode) == (
        "from elsewhere",
        True,
        True,
    )


async def test_save_state_preserves_external_archive(client: Client) -> None:
    """So do the flags of an archiving."""
    session = await client.create()
    _ = session.state
    edit_state(session, archived=True, archived_at=123.0, auto_archive_exempt=True)
    session.save_state()
    on_disk = load_session_state(session.path)
    assert (on_disk.archived, on_disk.archived_at, on_disk.auto_archive_exempt) == (True, 123.0, True)


async def test_title_never_contains_session_id(client: Client) -> None:
    """From whichever source it comes."""
    session = await client.create("very-special-id")
    titles = [session.title]
    await say(session, "the prompt")
    titles.append((await client.found(session.id)).title)
    edit_state(session, custom_title="the name")
    titles.append((await client.found(session.id)).title)
    assert titles == ["Untitled", "the prompt", "the name"]


async def test_list_titles_are_pure(client: Client) -> None:
    """In lists too."""
    for name in ("id-one", "id-two"):
        await say(await client.create(name), f"prompt of {name[3:]}")
    assert sorted(session.title for session in await client.listed()) == ["prompt of one", "prompt of two"]


async def test_refresh_without_wire_or_custom_title(client: Client) -> None:
    """Is still "Untitled"."""
    session = await client.create()
    await session.refresh()
    assert session.title == "Untitled"


async def test_refresh_custom_title_takes_priority_over_wire(client: Client) -> None:
    """Also when both came after the session was made."""
    session = await client.create()
    await say(session, "the prompt")
    edit_state(session, custom_title="the name")
    await session.refresh()
    assert session.title == "the name"


async def test_save_state_reload_does_not_lose_worker_fields(client: Client) -> None:
    """What this program changed is written beside what another wrote."""
    session = await client.create()
    session.state.plan_mode = True
    session.state.plan_session_id = "abc"
    session.state.additional_dirs = ["/extra"]
    session.state.approval.yolo = True
    edit_state(session, custom_title="from elsewhere")
    session.save_state()
    on_disk = load_session_state(session.path)
    assert (on_disk.plan_mode, on_disk.plan_session_id, on_disk.additional_dirs) == (True, "abc", ["/extra"])
    assert (on_disk.approval.yolo, on_disk.custom_title) == (True, "from elsewhere")


async def test_save_state_preserves_in_memory_todos(client: Client) -> None:
    """A to-do list that was set here is not replaced by the disk's old one."""
    session = await client.create()
    session.state.todos = [TodoItem(title="a", status="pending")]
    edit_state(session, custom_title="from elsewhere")
    session.save_state()
    assert (
        session.state.todos
        == load_session_state(session.path).todos
        == [TodoItem(title="a", status="pending")]
    )


async def test_is_empty_with_only_metadata_records(client: Client) -> None:
    """A wire log of headers alone, also of several."""
    session = await client.create()
    put_lines(session.wire_file.path, HEADER, {"protocol_version": "1.1"})
    assert session.is_empty()
    assert session.wire_file.is_empty()


async def test_new_does_not_delete_titled_session(client: Client) -> None:
    """Ending a run that said nothing keeps a session that was given a name."""
    session = await client.create()
    edit_state(session, custom_title="kept")
    await session.close()
    assert session.path.exists()


@pytest.mark.parametrize("ok", [True, False])
async def test_post_run_empty_session(client: Client, ok: bool) -> None:
    """Success or failure: its folder goes, and it is no longer the last one."""
    session = await client.create()
    session.mark_last()
    await session.close(ok)
    assert not session.path.exists()
    assert client.last() is None


async def test_post_run_nonempty_session_success(client: Client) -> None:
    """It is the last one."""
    session, other = await client.create(), await client.create()
    put_context(session, {"role": "user", "content": "hi"})
    other.mark_last()
    await session.close(ok=True)
    assert client.last() == session.id


async def test_post_run_nonempty_session_failure(client: Client) -> None:
    """The last one is who it was, and the folder stays."""
    session, other = await client.create(), await client.create()
    put_context(session, {"role": "user", "content": "hi"})
    other.mark_last()
    await session.close(ok=False)
    assert client.last() == other.id
    assert session.path.exists()


async def test_post_run_empty_session_does_not_clear_other_last_id(client: Client) -> None:
    """Only its own mark goes."""
    session, other = await client.create(), await client.create()
    other.mark_last()
    await session.close()
    assert client.last() == other.id


async def test_reload_cleanup_deletes_empty_source_and_preserves_a_nonempty_one(client: Client) -> None:
    """Leaving a session for another one: as at the end of a run."""
    empty, full, target = await client.create(), await client.create(), await client.create()
    put_context(full, {"role": "user", "content": "hi"})
    await empty.close()
    await full.close(ok=False)
    assert (empty.path.exists(), full.path.exists(), target.path.exists()) == (False, True, True)


# --- state ---------------------------------------------------------------------------------------------------------


def test_default_state() -> None:
    """Nothing is allowed, nothing is set."""
    state = SessionState()
    assert (state.version, state.custom_title, state.title_generated, state.archived) == (
        1,
        None,
        False,
        False,
    )
    assert (state.approval.yolo, state.approval.afk, state.approval.auto_approve_actions) == (
        False,
        False,
        set(),
    )
    assert (state.additional_dirs, state.todos, state.plan_mode, state.wire_mtime) == ([], [], False, None)


def test_save_and_load_roundtrip(session_dir: Path) -> None:
    """The set of actions and the absent user too."""
    state = SessionState(additional_dirs=["/a"], plan_mode=True, todos=[TodoItem(title="x", status="done")])
    state.approval.yolo = state.approval.afk = True
    state.approval.auto_approve_actions = {"run", "edit"}
    save_session_state(state, session_dir)
    assert load_session_state(session_dir) == state


def test_load_missing_file(session_dir: Path) -> None:
    """Defaults."""
    assert load_session_state(session_dir) == SessionState()


def test_load_missing_dir(session_dir: Path) -> None:
    """Defaults, and no folder."""
    assert load_session_state(session_dir / "missing") == SessionState()
    assert not (session_dir / "missing").exists()


def test_save_creates_valid_json(session_dir: Path) -> None:
    """That any program can read, under the client's own names."""
    save_session_state(SessionState(custom_title="t"), session_dir)
    document = json.loads((session_dir / "state.json").read_text("utf-8"))
    assert (document["version"], document["custom_title"]) == (1, "t")
    assert document["approval"] == {"yolo": False, "afk": False, "auto_approve_actions": []}


def test_overwrite_existing_state(session_dir: Path) -> None:
    """The later one counts."""
    for title in ("first", "second"):
        save_session_state(SessionState(custom_title=title), session_dir)
    assert load_session_state(session_dir).custom_title == "second"


def test_custom_title_roundtrip(session_dir: Path) -> None:
    """In any script, with its mark."""
    save_session_state(SessionState(custom_title="标题 🎉", title_generated=True), session_dir)
    state = load_session_state(session_dir)
    assert (state.custom_title, state.title_generated) == ("标题 🎉", True)


OLD_METADATA: dict[str, Any] = {
    "session_id": "x",
    "title": "Old title",
    "title_generated": True,
    "title_generate_attempts": 2,
    "wire_mtime": 7.5,
    "archived": True,
    "archived_at": 8.5,
    "auto_archive_exempt": True,
}


def put_metadata(session_dir: Path, value: object) -> Path:
    """Write a metadata.json as the old web client."""
    path = session_dir / "metadata.json"
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def test_migrate_legacy_metadata(session_dir: Path) -> None:
    """All its fields are in the state. (Exception: the file goes with the next save, to `metadata.json.merged`.)"""
    path = put_metadata(session_dir, OLD_METADATA)
    state = load_session_state(session_dir)
    assert state.custom_title == "Old title"
    for name in set(OLD_METADATA) - {"session_id", "title"}:
        assert getattr(state, name) == OLD_METADATA[name]
    assert os.listdir(session_dir) == ["metadata.json"]
    save_session_state(state, session_dir)
    assert not path.exists()
    assert sorted(os.listdir(session_dir)) == ["metadata.json.merged", "state.json"]
    assert load_session_state(session_dir) == state


def test_migrate_legacy_metadata_does_not_overwrite_state(session_dir: Path) -> None:
    """A title that the state has wins."""
    save_session_state(SessionState(custom_title="new title"), session_dir)
    put_metadata(session_dir, OLD_METADATA)
    state = load_session_state(session_dir)
    assert (state.custom_title, state.archived) == ("new title", True)


@pytest.mark.parametrize("damaged", [b"{bad json", b"[]", b'"x"', b"\xff"])
def test_migrate_corrupted_metadata_leaves_file_intact(session_dir: Path, damaged: bytes) -> None:
    """Loading and saving pass it over; a person may still make something of it."""
    path = put_metadata(session_dir, damaged)
    save_session_state(load_session_state(session_dir), session_dir)
    assert path.read_bytes() == damaged


def test_migrate_empty_metadata_deletes_file(session_dir: Path) -> None:
    """ "Untitled" is no title. (Exception: renamed by the next save, not deleted.)"""
    path = put_metadata(session_dir, {"session_id": "x", "title": "Untitled"})
    state = load_session_state(session_dir)
    assert state == SessionState()
    save_session_state(state, session_dir)
    assert not path.exists()


def test_migrate_writes_state_before_deleting_metadata(session_dir: Path) -> None:
    """A save that fails leaves the old file where it was."""
    path = put_metadata(session_dir, OLD_METADATA)
    state = load_session_state(session_dir)

    with _fs.using(Failing("write", errno.ENOSPC)), pytest.raises(WriteError):
        save_session_state(state, session_dir)
    assert os.listdir(session_dir) == [path.name]
    assert load_session_state(session_dir).custom_title == "Old title"


def test_migrate_is_idempotent(session_dir: Path) -> None:
    """Loaded twice, saved, loaded again: always the same."""
    put_metadata(session_dir, OLD_METADATA)
    first = load_session_state(session_dir)
    assert load_session_state(session_dir) == first
    save_session_state(first, session_dir)
    assert load_session_state(session_dir) == first


def put_state(session_dir: Path, data: bytes) -> Path:
    """Write a state.json as somebody else."""
    path = session_dir / "state.json"
    path.write_bytes(data)
    return path


def test_new_fields_have_defaults(session_dir: Path) -> None:
    """A file of the first version with a state loads."""
    put_state(session_dir, b'{"version": 1, "approval": {"yolo": true, "auto_approve_actions": ["run"]}}')
    state = load_session_state(session_dir)
    assert (state.approval.yolo, state.approval.afk, state.approval.auto_approve_actions) == (
        True,
        False,
        {"run"},
    )
    assert (state.custom_title, state.todos, state.plan_mode) == (None, [], False)


def test_legacy_removed_subagent_field_is_ignored(session_dir: Path) -> None:
    """It disturbs nothing, and is still there after a save."""
    put_state(session_dir, b'{"version": 1, "dynamic_subagents": [{"name": "x"}], "plan_mode": true}')
    state = load_session_state(session_dir)
    assert state.plan_mode
    save_session_state(state, session_dir)
    assert json.loads((session_dir / "state.json").read_bytes())["dynamic_subagents"] == [{"name": "x"}]


@pytest.mark.parametrize(
    "data",
    [b'{"version": 1, "approv', b"not json", b"", bytes(range(256)), b"[1, 2]"],
    ids=["truncated_json", "invalid_json", "empty_file", "binary_garbage", "no_object"],
)
def test_load_damaged_state(session_dir: Path, data: bytes) -> None:
    """Defaults, and the file is left as it is."""
    path = put_state(session_dir, data)
    assert load_session_state(session_dir) == SessionState()
    assert path.read_bytes() == data


def test_load_invalid_schema(session_dir: Path) -> None:
    """A field of a wrong type has its default. (Exception: that field alone.)"""
    put_state(session_dir, b'{"version": 1, "approval": "nonsense", "custom_title": "kept"}')
    assert load_session_state(session_dir) == SessionState(custom_title="kept")


def test_save_atomic_no_leftover_tmp(session_dir: Path) -> None:
    """Nothing but the state lies there afterwards."""
    save_session_state(SessionState(), session_dir)
    assert os.listdir(session_dir) == ["state.json"]


def test_save_preserves_old_on_error(session_dir: Path) -> None:
    """A write that fails keeps the old file, and leaves no half one."""
    save_session_state(SessionState(custom_title="old"), session_dir)

    with _fs.using(Failing("replace", errno.EACCES)), pytest.raises(WriteError):
        save_session_state(SessionState(custom_title="new"), session_dir)
    assert load_session_state(session_dir).custom_title == "old"
    assert os.listdir(session_dir) == ["state.json"]


# --- fork: whose text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "user_input,text",
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a b"),
        ([], ""),
        ([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}], "b"),
        (["a", "b"], "a b"),
    ],
    ids=["string_input", "content_parts", "empty_list", "mixed_parts", "string_parts_in_list"],
)
def test_extract_user_text(user_input: object, text: str) -> None:
    """Text parts and bare strings, with one space between them."""
    assert user_text(user_input) == text


@pytest.mark.parametrize(
    "message,marker",
    [
        ({"role": "user", "content": "<system>CHECKPOINT 3</system>"}, True),
        ({"role": "user", "content": [{"type": "text", "text": "<system>CHECKPOINT 0</system>"}]}, True),
        ({"role": "user", "content": "what is a CHECKPOINT 3"}, False),
        ({"role": "assistant", "content": "<system>CHECKPOINT 3</system>"}, False),
    ],
    ids=["string", "single_part", "normal_text", "assistant"],
)
def test_is_checkpoint_user_message(message: dict[str, Any], marker: bool) -> None:
    """The marker that the model is shown, and nothing that only speaks of one."""
    assert is_checkpoint_marker(message) is marker


# --- fork: turns ---------------------------------------------------------------------------------------------------


def turn(text: str, at: float) -> list[dict[str, Any]]:
    """Give the wire records of a whole turn."""
    return [
        {
            "timestamp": at,
            "message": {"type": "TurnBegin", "payload": {"user_input": [{"type": "text", "text": text}]}},
        },
        {"timestamp": at + 1, "message": {"type": "TurnEnd", "payload": {}}},
    ]


TURNS = [HEADER, *turn("first", 10), *turn("second", 20), *turn("third", 30)]
CONTEXT = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "re first"},
    {"role": "user", "content": "second"},
    {"role": "assistant", "content": "re second"},
    {"role": "user", "content": "third"},
    {"role": "assistant", "content": "re third"},
]


def values(lines: list[str]) -> list[Any]:
    """Decode the lines that a truncation gave."""
    return [json.loads(line) for line in lines]


def test_enumerate_turns_of_nothing(session_dir: Path) -> None:
    """A log without turns, and one that is not there."""
    assert enumerate_turns(put_lines(session_dir / "wire.jsonl", HEADER)) == []
    assert enumerate_turns(session_dir / "missing.jsonl") == []


@pytest.mark.parametrize("count", [1, 3])
def test_enumerate_turns_single_and_multiple(session_dir: Path, count: int) -> None:
    """Each with its index and text."""
    path = put_lines(session_dir / "wire.jsonl", *TURNS[: 1 + 2 * count])
    expected = [(0, "first"), (1, "second"), (2, "third")][:count]
    assert [(found.index, found.user_text) for found in enumerate_turns(path)] == expected


def test_truncate_wire_first_turn(session_dir: Path) -> None:
    """The header and the turn's two lines."""
    path = put_lines(session_dir / "wire.jsonl", *TURNS)
    assert values(truncate_wire_at_turn(path, 0)) == TURNS[:3]


def test_truncate_wire_last_turn(session_dir: Path) -> None:
    """Everything."""
    path = put_lines(session_dir / "wire.jsonl", *TURNS)
    assert values(truncate_wire_at_turn(path, 2)) == TURNS


@pytest.mark.parametrize("index", [3, -1])
def test_truncate_wire_out_of_range(session_dir: Path, index: int) -> None:
    """No such turn is a ValueError."""
    path = put_lines(session_dir / "wire.jsonl", *TURNS)
    with pytest.raises(ValueError, match="out of range"):
        truncate_wire_at_turn(path, index)


def test_truncate_wire_nonexistent(session_dir: Path) -> None:
    """So is a log that is not there."""
    with pytest.raises(ValueError, match="not found"):
        truncate_wire_at_turn(session_dir / "wire.jsonl", 0)


def test_truncate_wire_preserves_header(session_dir: Path) -> None:
    """Whatever version it names."""
    header = {"type": "metadata", "protocol_version": "1.3"}
    path = put_lines(session_dir / "wire.jsonl", header, *TURNS[1:])
    assert values(truncate_wire_at_turn(path, 1))[0] == header


def test_truncate_wire_header_only(session_dir: Path) -> None:
    """There is no turn in it."""
    with pytest.raises(ValueError, match="no turn"):
        truncate_wire_at_turn(put_lines(session_dir / "wire.jsonl", HEADER), 0)


@pytest.mark.parametrize("index,count", [(0, 2), (2, 6)], ids=["first", "last"])
def test_truncate_context(session_dir: Path, index: int, count: int) -> None:
    """Up to where the next turn begins."""
    path = put_lines(session_dir / "context.jsonl", *CONTEXT)
    assert values(truncate_context_at_turn(path, index)) == CONTEXT[:count]


def test_truncate_context_nonexistent(session_dir: Path) -> None:
    """No lines."""
    assert truncate_context_at_turn(session_dir / "context.jsonl", 0) == []


def test_truncate_context_skips_checkpoint_messages(session_dir: Path) -> None:
    """A marker is kept and counts for no turn."""
    marker = {"role": "user", "content": "<system>CHECKPOINT 0</system>"}
    context = [marker, *CONTEXT[:2], marker, *CONTEXT[2:4], marker, *CONTEXT[4:]]
    path = put_lines(session_dir / "context.jsonl", *context)
    kept = values(truncate_context_at_turn(path, 1))
    assert [line for line in kept if line != marker] == CONTEXT[:4]
    assert kept[:2] == context[:2]


def test_truncate_context_best_effort_when_fewer_turns(session_dir: Path) -> None:
    """All there is."""
    path = put_lines(session_dir / "context.jsonl", *CONTEXT[:2])
    assert values(truncate_context_at_turn(path, 5)) == CONTEXT[:2]


# --- fork: sessions ------------------------------------------------------------------------------------------------


async def talk(client: Client) -> Session:
    """Give a session of three turns in both logs."""
    session = await client.create()
    put_lines(session.wire_file.path, *TURNS)
    put_context(session, *CONTEXT)
    return await client.found(session.id)


async def forked(client: Client, source: Session, **options: Any) -> Session:
    """Fork by the function that takes paths, and find what it made."""
    return await client.found(fork_session(source.path, client.work_dir, **options))


def contents(session: Session) -> list[Any]:
    """Give what a session's context says."""
    return [json.loads(line) for line in session.context_file.read_text("utf-8").splitlines()]


async def test_fork_at_turn(client: Client) -> None:
    """Both logs end with that turn."""
    fork = await forked(client, await talk(client), turn_index=1)
    assert [found.user_text for found in enumerate_turns(fork.wire_file.path)] == ["first", "second"]
    assert contents(fork) == CONTEXT[:4]


async def test_fork_all_turns(client: Client) -> None:
    """None takes everything."""
    fork = await forked(client, await talk(client))
    assert [found.user_text for found in enumerate_turns(fork.wire_file.path)] == ["first", "second", "third"]
    assert contents(fork) == CONTEXT


async def test_fork_sets_title(client: Client) -> None:
    """Prefix and the title that was given."""
    fork = await forked(client, await talk(client), turn_index=0, title_prefix="Undo", source_title="My talk")
    assert fork.title == "Undo: My talk"
    assert fork.state.title_generated


async def test_fork_reads_title_from_state(client: Client) -> None:
    """Where none was given."""
    source = await talk(client)
    edit_state(source, custom_title="My talk")
    assert (await forked(client, source, turn_index=0)).title == "Fork: My talk"


async def test_fork_copies_referenced_videos(client: Client) -> None:
    """A file that a kept turn speaks of goes along."""
    source = await talk(client)
    (source.path / "uploads").mkdir()
    (source.path / "uploads" / "clip_abc123.mp4").write_bytes(b"video")
    text = f'<video path="{source.path}/uploads/clip_abc123.mp4">'
    put_lines(source.wire_file.path, HEADER, *turn(text, 10))
    put_context(source, {"role": "user", "content": text})
    fork = await forked(client, source, turn_index=0)
    assert (fork.path / "uploads" / "clip_abc123.mp4").read_bytes() == b"video"
    assert json.loads((fork.path / "uploads" / ".sent").read_bytes()) == ["clip_abc123.mp4"]


async def test_wire_file_reads_what_the_client_wrote(session_dir: Path) -> None:
    """The log's own class agrees with the functions above."""
    wire = WireFile(put_lines(session_dir / "wire.jsonl", *TURNS))
    assert [record.type async for record in wire.iter_records()] == ["TurnBegin", "TurnEnd"] * 3
