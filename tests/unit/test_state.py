"""The state document: a bad field costs that field alone, and nothing that stands in it is lost."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kimi_sessions import _fs
from kimi_sessions._locking import StepLock, session_gone
from kimi_sessions.errors import SessionBusyError, WriteError
from kimi_sessions.state import (
    ApprovalState,
    SessionState,
    TodoItem,
    dump_state,
    load_session_state,
    parse_state,
    save_session_state,
)

# What the newest Kimi CLI writes for a state in which nothing was ever set.
FRESH: dict[str, Any] = {
    "version": 1,
    "approval": {"yolo": False, "afk": False, "auto_approve_actions": []},
    "additional_dirs": [],
    "custom_title": None,
    "title_generated": False,
    "title_generate_attempts": 0,
    "plan_mode": False,
    "plan_session_id": None,
    "plan_slug": None,
    "wire_mtime": None,
    "archived": False,
    "archived_at": None,
    "auto_archive_exempt": False,
    "todos": [],
}

FULL: dict[str, Any] = {
    "version": 1,
    "approval": {"yolo": True, "afk": True, "auto_approve_actions": ["edit", "run"]},
    "additional_dirs": ["/b", "/a"],
    "custom_title": "A title",
    "title_generated": True,
    "title_generate_attempts": 2,
    "plan_mode": True,
    "plan_session_id": "0f" * 16,
    "plan_slug": "a-plan",
    "wire_mtime": 1.5,
    "archived": True,
    "archived_at": 2.5,
    "auto_archive_exempt": True,
    "todos": [{"title": "t", "status": "pending"}, {"title": "u", "status": "done"}],
}


def with_changes(document: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Give a copy of a document with other values; `approval__yolo` is the one inside."""
    changed = copy.deepcopy(dict(document))
    for key, value in changes.items():
        target = changed
        *outer, last = key.split("__")
        for step in outer:
            target = target[step]
        target[last] = value
    return changed


# ---- reading and writing -------------------------------------------------------------------------


def test_a_fresh_state_is_the_document_that_kimi_cli_writes() -> None:
    """All fields, in that client's order, with its defaults; an empty document means the same."""
    assert json.dumps(dump_state(SessionState())) == json.dumps(FRESH)
    assert parse_state({}) == (SessionState(), [])
    assert parse_state(FRESH) == (SessionState(), [])


def test_a_full_state_comes_back_as_it_was() -> None:
    """Every field is read into the view, typed, and written again."""
    state, bad = parse_state(FULL)
    assert bad == []
    assert state.approval == ApprovalState(yolo=True, afk=True, auto_approve_actions={"run", "edit"})
    assert state.todos[1] == TodoItem(title="u", status="done")
    assert json.dumps(dump_state(state)) == json.dumps(FULL)


def test_unknown_fields_survive_at_every_level() -> None:
    """What older and newer clients keep in the document is kept there."""
    document = with_changes(
        FULL,
        dynamic_subagents=[{"name": "x"}],
        approval__rules={"deny": ["rm"]},
        todos=[{"title": "t", "status": "done", "id": 7}],
    )
    state, bad = parse_state(document)
    assert bad == []
    assert dump_state(state) == document


def test_values_are_taken_as_leniently_as_the_client_takes_them() -> None:
    """Numbers as text and times without a point are good values."""
    state, bad = parse_state({"title_generate_attempts": "2", "archived_at": 3, "archived": "true"})
    assert bad == []
    assert (state.title_generate_attempts, state.archived_at, state.archived) == (2, 3.0, True)


@pytest.mark.parametrize(
    "change,path",
    [
        ({"version": "one"}, "version"),
        ({"approval": None}, "approval"),
        ({"approval": [True]}, "approval"),
        ({"approval__yolo": "maybe"}, "approval.yolo"),
        ({"approval__auto_approve_actions": ["run", 5]}, "approval.auto_approve_actions"),
        ({"approval__auto_approve_actions": "run"}, "approval.auto_approve_actions"),
        ({"additional_dirs": {"/a": 1}}, "additional_dirs"),
        ({"additional_dirs": ["/a", None]}, "additional_dirs"),
        ({"custom_title": 5}, "custom_title"),
        ({"title_generate_attempts": 1.5}, "title_generate_attempts"),
        ({"plan_slug": ["a"]}, "plan_slug"),
        ({"wire_mtime": float("nan")}, "wire_mtime"),
        ({"archived_at": float("inf")}, "archived_at"),
        ({"archived_at": 10**400}, "archived_at"),
        ({"todos": "none"}, "todos"),
    ],
)
def test_one_bad_field_has_its_default_and_all_others_keep_their_values(
    change: dict[str, Any], path: str
) -> None:
    """The field is named, its default stands in for it, and the document is not touched."""
    document = with_changes(FULL, **change)
    before = copy.deepcopy(document)
    state, bad = parse_state(document)
    assert bad == [path]
    assert repr(document) == repr(before)
    (key,) = change
    outer, _, inner = key.partition("__")
    default = FRESH[outer][inner] if inner else FRESH[outer]
    assert dump_state(state) == with_changes(FULL, **{key: default})


def test_a_bad_todo_is_left_out_and_the_good_ones_stay() -> None:
    """A status of a newer client, a missing title and a bare string are named by their places in the list."""
    todos = [
        {"title": "a", "status": "cancelled"},
        {"title": "b", "status": "done"},
        {"status": "done"},
        "c",
    ]
    state, bad = parse_state({"todos": todos})
    assert state.todos == [TodoItem(title="b", status="done")]
    assert bad == ["todos[0]", "todos[2]", "todos[3]"]


def test_bad_fields_are_named_in_the_order_of_the_document() -> None:
    """Several at once, inner ones too, in an order that does not change from run to run."""
    _, bad = parse_state(
        {"todos": [1], "approval": {"afk": [], "yolo": 7.5}, "version": None, "plan_mode": "?"}
    )
    assert bad == ["version", "approval.afk", "approval.yolo", "plan_mode", "todos[0]"]


def test_a_title_with_half_an_emoji_is_a_title() -> None:
    """Lone surrogates are kept; showing them is another matter."""
    state, bad = parse_state({"custom_title": "a\ud83d"})
    assert (state.custom_title, bad) == ("a\ud83d", [])
    assert dump_state(state)["custom_title"] == "a\ud83d"


def test_a_wrong_value_is_refused_when_it_is_assigned_or_at_the_latest_when_it_is_dumped() -> None:
    """A program's mistake does not reach the file, where it would cost the field."""
    state = SessionState()
    with pytest.raises(ValidationError):
        state.custom_title = 5  # type: ignore[assignment]
    with pytest.raises(ValidationError):
        state.approval.yolo = "maybe"  # type: ignore[assignment]
    state.additional_dirs.append(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Expected `str`"):
        dump_state(state)


# --- in a session folder -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a session folder."""
    path = tmp_path / "one"
    path.mkdir()
    return path


def put_state(folder: Path, data: object) -> None:
    """Write a state.json: bytes as they are, else as JSON."""
    (folder / "state.json").write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())


def stored(folder: Path) -> Any:
    """Read state.json as any program would."""
    return json.loads((folder / "state.json").read_bytes())


def test_a_saved_state_loads_as_it_was(folder: Path) -> None:
    """Every field, unknown ones too, the order of names included; private, and alone in the folder."""
    state, _ = parse_state({**FULL, "additional_dirs": ["/z", "/a"]})
    save_session_state(state, folder)
    assert load_session_state(folder) == state
    assert (folder / "state.json").stat().st_mode & 0o777 == 0o600
    assert os.listdir(folder) == ["state.json"]
    state.additional_dirs = ["/a", "/z"]
    save_session_state(state, folder)
    assert load_session_state(str(folder)).additional_dirs == ["/a", "/z"]


@pytest.mark.parametrize("data", [b"{bad json", b"", b"[]", b"\0\0", b"\xff\xfe", b'{"approval":'])
def test_a_damaged_state_loads_as_defaults_and_is_kept_when_a_new_one_is_saved(
    folder: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; its bytes stay for a person to look at."""
    put_state(folder, data)
    assert load_session_state(folder) == SessionState()
    assert len(caplog.records) == 1
    assert (folder / "state.json").read_bytes() == data
    save_session_state(SessionState(custom_title="new"), folder)
    assert stored(folder)["custom_title"] == "new"
    assert [p.read_bytes() for p in folder.glob("state.json.damaged-*")] == ([data] if data else [])


def test_a_missing_state_and_a_missing_folder_load_as_defaults(folder: Path) -> None:
    """And nothing is made by looking."""
    assert load_session_state(folder) == load_session_state(folder / "missing") == SessionState()
    assert os.listdir(folder) == []


def test_a_folder_in_the_state_s_place_loads_as_defaults_and_is_not_written_over(folder: Path) -> None:
    """Nor is a link followed."""
    (folder / "state.json").mkdir()
    assert load_session_state(folder) == SessionState()
    with pytest.raises(WriteError):
        save_session_state(SessionState(), folder)


def test_what_the_document_holds_besides_stays(folder: Path) -> None:
    """Unknown keys at every level, and values of a newer client that were not changed."""
    put_state(
        folder,
        {
            "new_key": {"a": 1},
            "approval": {"yolo": "perhaps", "afk": True, "more": [1]},
            "todos": [{"title": "a", "status": "blocked"}, {"title": "b", "status": "done"}],
            "custom_title": "old",
        },
    )
    state = load_session_state(folder)
    state.custom_title = "new"
    save_session_state(state, folder)
    after = stored(folder)
    assert after["new_key"] == {"a": 1}
    assert after["approval"] == {"yolo": "perhaps", "afk": True, "more": [1], "auto_approve_actions": []}
    assert after["todos"] == [{"title": "a", "status": "blocked"}, {"title": "b", "status": "done"}]
    assert after["custom_title"] == "new"
    save_session_state(SessionState(custom_title="fresh"), folder)
    after = stored(folder)
    assert (after["new_key"], after["approval"]["more"], after["todos"]) == ({"a": 1}, [1], [])
    assert (after["custom_title"], after["approval"]["afk"]) == ("fresh", False)


def test_old_metadata_is_merged_by_loading_and_moved_away_by_saving(folder: Path) -> None:
    """Loading writes nothing; after a save the state says it all and the old file is kept under another name."""
    old = json.dumps({"title": "from the web", "archived": True, "archived_at": 5.0}).encode()
    for number in ("", "-2"):
        (folder / "metadata.json").write_bytes(old)
        state = load_session_state(folder)
        assert (state.custom_title, state.archived, state.archived_at) == ("from the web", True, 5.0)
        assert (folder / "metadata.json").read_bytes() == old
        save_session_state(state, folder)
        assert not (folder / "metadata.json").exists()
        assert (folder / f"metadata.json.merged{number}").read_bytes() == old
        assert load_session_state(folder) == state
    state.custom_title = None
    save_session_state(state, folder)
    assert load_session_state(folder).custom_title is None


def test_a_save_takes_the_folder_s_lock_where_there_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's short step is not run over; a folder without a lock gets none."""
    save_session_state(SessionState(), folder)
    assert not (folder / ".lock").exists()
    lock = StepLock(str(folder / ".lock"), gone=session_gone("one", str(folder.parent)))
    monkeypatch.setattr(StepLock.acquire, "__defaults__", (0.05,))
    with lock, pytest.raises(SessionBusyError):
        save_session_state(SessionState(custom_title="x"), folder)
    assert stored(folder)["custom_title"] is None
    save_session_state(SessionState(custom_title="x"), folder)
    assert stored(folder)["custom_title"] == "x"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_save_that_fails_keeps_the_old_state_and_leaves_no_temp_file(folder: Path, call: str) -> None:
    """And says why."""
    save_session_state(SessionState(custom_title="old"), folder)
    before = (folder / "state.json").read_bytes()

    class Failing(_fs.OsFileSystem):
        def __init__(self) -> None:
            def fail(*args: object, **kwargs: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            setattr(self, call, fail)

    with _fs.using(Failing()), pytest.raises(WriteError) as caught:
        save_session_state(SessionState(custom_title="new"), folder)
    assert caught.value.errno == errno.ENOSPC
    assert (folder / "state.json").read_bytes() == before
    assert os.listdir(folder) == ["state.json"]


def test_saving_into_a_folder_that_is_not_there_makes_none(folder: Path) -> None:
    """A deleted session does not come back."""
    with pytest.raises(WriteError):
        save_session_state(SessionState(), folder / "missing")
    assert os.listdir(folder) == []


def test_a_state_that_cannot_be_dumped_changes_nothing(folder: Path) -> None:
    """The program's mistake is found before the disk is touched."""
    state = SessionState()
    state.additional_dirs.append(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Expected `str`"):
        save_session_state(state, folder)
    assert os.listdir(folder) == []
