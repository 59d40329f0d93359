"""Merging state documents: nobody's change is lost, and what nobody could read stays."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions._state_merge import _DEFAULTS, keep_approvals, merge_legacy_metadata, merge_state
from kimi_sessions.state import SessionState, dump_state, parse_state

FRESH = dump_state(SessionState())

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


def test_a_missing_field_means_the_same_to_the_merge_and_to_the_typed_state() -> None:
    """The merge spells the defaults out, because it does without the models; the two must not drift apart."""
    assert {key: FRESH[key] for key in _DEFAULTS} == dict(_DEFAULTS)


# ---- three-way merge: single cases -----------------------------------------------------------------


def test_my_change_and_another_programs_change_are_both_saved() -> None:
    """I switched the plan mode on while the web page renamed the session."""
    disk = with_changes(FRESH, custom_title="By hand", title_generated=True, new_field={"x": 1})
    merged = merge_state(FRESH, with_changes(FRESH, plan_mode=True), disk)
    assert merged == with_changes(disk, plan_mode=True)


def test_approvals_are_merged_by_key_and_actions_by_element() -> None:
    """What either side allowed or forbade holds; the disk's order and its unknown keys stay."""
    base = with_changes(FRESH, approval__auto_approve_actions=["a", "b", "c"])
    mine = with_changes(base, approval__yolo=True, approval__auto_approve_actions=["b", "c", "m"])
    disk = with_changes(base, approval__afk=True, approval__auto_approve_actions=["d", "b", "a"])
    disk["approval"]["rules"] = []
    assert merge_state(base, mine, disk)["approval"] == {
        "yolo": True,
        "afk": True,
        "auto_approve_actions": ["d", "b", "m"],
        "rules": [],
    }


def test_additional_dirs_are_merged_by_element_and_keep_their_order() -> None:
    """A folder that both added is there once; one that I removed is gone."""
    base = with_changes(FRESH, additional_dirs=["/z", "/y"])
    mine = with_changes(base, additional_dirs=["/y", "/m", "/both"])
    disk = with_changes(base, additional_dirs=["/z", "/y", "/both", "/d"])
    assert merge_state(base, mine, disk)["additional_dirs"] == ["/y", "/both", "/d", "/m"]


def test_todos_are_mine_as_a_whole_if_i_changed_them() -> None:
    """Two lists of tasks are not mixed; if I did not touch mine, the disk's stays."""
    base = with_changes(FRESH, todos=[{"title": "a", "status": "pending"}])
    mine = with_changes(base, todos=[{"title": "a", "status": "done"}])
    disk = with_changes(base, todos=[{"title": "b", "status": "pending"}])
    assert merge_state(base, mine, disk)["todos"] == mine["todos"]
    assert merge_state(base, base, disk)["todos"] == disk["todos"]


def test_what_could_not_be_read_stays_on_the_disk_until_i_change_it() -> None:
    """A field and a to-do of a newer client outlive a save by this one."""
    disk = with_changes(
        FULL, plan_slug=["new", "shape"], todos=[{"title": "t", "status": "cancelled"}], approval__yolo="ask"
    )
    state, bad = parse_state(disk)
    assert bad == ["approval.yolo", "plan_slug", "todos[0]"]
    base = dump_state(state)
    state.archived = False
    assert merge_state(base, dump_state(state), disk) == with_changes(disk, archived=False)
    state.plan_slug = "mine"
    state.approval.yolo = True
    assert merge_state(base, dump_state(state), disk) == with_changes(
        disk, archived=False, plan_slug="mine", approval__yolo=True
    )


@pytest.mark.parametrize("damaged", [5, None, "run", ["run", 5], {"run": True}])
def test_a_list_that_cannot_be_read_is_replaced_by_what_i_allowed(damaged: object) -> None:
    """Added to it, my action would not be read back either."""
    disk = with_changes(FRESH, approval__auto_approve_actions=damaged)
    mine = with_changes(FRESH, approval__auto_approve_actions=["edit"])
    assert merge_state(FRESH, mine, disk)["approval"]["auto_approve_actions"] == ["edit"]


def test_fields_that_the_disk_lacks_are_added_only_if_i_changed_them() -> None:
    """A short document of an old client is not filled up."""
    assert merge_state(FRESH, with_changes(FRESH, plan_mode=True), {"version": 1}) == {
        "version": 1,
        "plan_mode": True,
    }
    mine = with_changes(FRESH, approval__yolo=True)
    assert merge_state(FRESH, mine, {}) == {"approval": mine["approval"]}


def test_an_unknown_field_that_i_removed_is_removed() -> None:
    """Deleting is a change too, and an unknown field of the disk that I never saw is not deleted by it."""
    base = with_changes(FRESH, mine=1)
    assert merge_state(base, FRESH, with_changes(base, theirs=2)) == with_changes(FRESH, theirs=2)


def test_an_automatic_title_does_not_replace_one_that_was_chosen_meanwhile() -> None:
    """The late answer of a title model loses against the user, attempts included."""
    mine = with_changes(FRESH, custom_title="Automatic", title_generate_attempts=1)
    disk = with_changes(FRESH, custom_title="By hand", title_generated=True)
    assert merge_state(FRESH, mine, disk) == disk


def test_a_chosen_title_replaces_an_automatic_one_and_an_older_chosen_one() -> None:
    """Where both chose, the later save has the word; the group comes from one side."""
    mine = with_changes(FRESH, custom_title="Mine", title_generated=True)
    automatic = with_changes(FRESH, custom_title="Automatic", title_generate_attempts=3)
    chosen = with_changes(FRESH, custom_title="Theirs", title_generated=True, title_generate_attempts=3)
    assert merge_state(FRESH, mine, automatic) == mine
    assert merge_state(FRESH, mine, chosen) == mine


def test_i_may_give_up_a_chosen_title_that_i_had_loaded() -> None:
    """Only what somebody else saved meanwhile is protected."""
    base = with_changes(FRESH, custom_title="By hand", title_generated=True)
    assert merge_state(base, FRESH, base) == FRESH


def test_counting_an_attempt_does_not_undo_a_rename() -> None:
    """Who changed only the count has not changed the title."""
    mine = with_changes(FRESH, title_generate_attempts=1)
    disk = with_changes(FRESH, custom_title="Automatic")
    assert merge_state(FRESH, mine, disk) == with_changes(disk, title_generate_attempts=1)


def test_an_archiving_comes_from_one_side() -> None:
    """Where both changed it, flag, time and exemption are mine together, and never a mixture."""
    base = with_changes(FRESH, archived=True, archived_at=1.0)
    mine = with_changes(base, archived=False, archived_at=None, auto_archive_exempt=True)
    disk = with_changes(base, archived_at=9.0)
    assert merge_state(base, mine, disk) == mine
    assert merge_state(base, disk, mine) == disk
    assert merge_state(base, base, disk) == disk


# ---- three-way merge: laws -------------------------------------------------------------------------

names = st.lists(st.sampled_from("abcde"), unique=True, max_size=4)
times = st.none() | st.floats(min_value=0, max_value=4e9)
titles = st.none() | st.sampled_from(["", "x", "y"])
todo = st.fixed_dictionaries(
    {"title": st.sampled_from("ab"), "status": st.sampled_from(["pending", "in_progress", "done"])}
)
# Fields that may be changed apart from each other; a group is changed as one.
CHANGES: list[st.SearchStrategy[dict[str, Any]]] = [
    st.fixed_dictionaries({"approval__yolo": st.booleans()}),
    st.fixed_dictionaries({"approval__afk": st.booleans()}),
    st.fixed_dictionaries({"approval__auto_approve_actions": names.map(sorted)}),
    st.fixed_dictionaries({"additional_dirs": names}),
    st.fixed_dictionaries({"plan_mode": st.booleans()}),
    st.fixed_dictionaries({"todos": st.lists(todo, max_size=2)}),
    st.fixed_dictionaries(
        {
            "custom_title": titles,
            "title_generated": st.booleans(),
            "title_generate_attempts": st.integers(0, 2),
        }
    ),
    st.fixed_dictionaries(
        {"archived": st.booleans(), "archived_at": times, "auto_archive_exempt": st.booleans()}
    ),
    st.fixed_dictionaries({"unknown": st.integers(0, 2) | st.dictionaries(st.sampled_from("kl"), names)}),
]


@st.composite
def documents(draw: st.DrawFn, of: Mapping[str, Any] = FRESH) -> dict[str, Any]:
    """Give a document in which some fields differ from another one."""
    changes: dict[str, Any] = {}
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=4)):
        changes |= draw(change)
    return with_changes(of, **changes)


@given(base=documents(), disk=documents())
def test_without_a_change_of_mine_the_disk_stays(base: dict[str, Any], disk: dict[str, Any]) -> None:
    """A save that has nothing to say writes what is there."""
    assert json.dumps(merge_state(base, base, disk)) == json.dumps(disk)


@given(base=documents(), mine=documents())
def test_without_a_change_of_others_mine_is_saved(base: dict[str, Any], mine: dict[str, Any]) -> None:
    """Alone with the file, a save writes what I have."""
    assert merge_state(base, mine, base) == mine


@given(base=documents(), mine=documents())
def test_the_same_change_by_both_is_that_change(base: dict[str, Any], mine: dict[str, Any]) -> None:
    """Two programs that agree get what they agree on."""
    assert merge_state(base, mine, mine) == mine


@given(base=documents(), mine=documents(), disk=documents())
def test_merging_twice_is_merging_once(
    base: dict[str, Any], mine: dict[str, Any], disk: dict[str, Any]
) -> None:
    """A save that is tried again after the file was looked at changes nothing more."""
    once = merge_state(base, mine, disk)
    assert merge_state(base, mine, once) == once


@given(data=st.data(), base=documents())
def test_changes_of_different_fields_are_both_saved_in_either_order(
    data: st.DataObject, base: dict[str, Any]
) -> None:
    """Nobody's change is lost, whoever saves last."""
    order = data.draw(st.permutations(CHANGES))
    cut = data.draw(st.integers(0, len(order)))
    mine_only: dict[str, Any] = {}
    disk_only: dict[str, Any] = {}
    for change in order[:cut]:
        mine_only |= data.draw(change)
    for change in order[cut:]:
        disk_only |= data.draw(change)
    mine, disk = with_changes(base, **mine_only), with_changes(base, **disk_only)
    expected = with_changes(base, **mine_only, **disk_only)
    assert merge_state(base, mine, disk) == expected
    assert merge_state(base, disk, mine) == expected


@given(base=documents(), mine=documents(), disk=documents())
def test_a_merge_changes_none_of_its_arguments(
    base: dict[str, Any], mine: dict[str, Any], disk: dict[str, Any]
) -> None:
    """The three documents are as before, and the result is one that can be read."""
    before = copy.deepcopy((base, mine, disk))
    merged = merge_state(base, mine, disk)
    assert (base, mine, disk) == before
    assert parse_state(merged)[1] == []


# ---- metadata.json -----------------------------------------------------------------------------------

METADATA: dict[str, Any] = {
    "session_id": "s",
    "title": "Old title",
    "title_generated": True,
    "title_generate_attempts": 2,
    "wire_mtime": 1.5,
    "archived": True,
    "archived_at": 2.5,
    "auto_archive_exempt": True,
}


@pytest.mark.parametrize("document", [{}, FRESH, {"version": 1, "unknown": 1}])
def test_an_old_metadata_document_fills_a_state_that_says_nothing(document: dict[str, Any]) -> None:
    """All its fields are taken, its title as the custom title; the given state is not touched."""
    before = copy.deepcopy(document)
    merged, changed = merge_legacy_metadata(document, METADATA)
    assert changed
    assert document == before
    taken = {key: value for key, value in METADATA.items() if key not in {"session_id", "title"}}
    assert merged == document | taken | {"custom_title": "Old title"}
    assert merge_legacy_metadata(merged, METADATA) == (merged, False)


def test_an_old_metadata_document_does_not_overwrite_the_state() -> None:
    """Where the state says something, it has the word, field by field."""
    document = with_changes(FRESH, custom_title="New title", archived_at=9.0)
    merged, changed = merge_legacy_metadata(document, METADATA)
    assert changed
    assert (merged["custom_title"], merged["archived_at"], merged["archived"]) == ("New title", 9.0, True)
    assert merge_legacy_metadata(FULL, METADATA) == (FULL, False)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        "Old title",
        {},
        {"title": "Untitled"},
        {"title": ""},
        {"title": 5, "title_generated": "yes", "title_generate_attempts": True, "archived": 1},
        {"title_generate_attempts": -1, "archived_at": float("nan"), "wire_mtime": "1.5"},
        {"archived_at": 10**400, "wire_mtime": float("inf"), "auto_archive_exempt": None},
    ],
)
def test_an_old_metadata_document_without_a_usable_value_changes_nothing(metadata: object) -> None:
    """Defaults, wrong types and foreign documents are passed over without an error."""
    assert merge_legacy_metadata(FRESH, metadata) == (FRESH, False)
    assert merge_legacy_metadata({}, metadata) == ({}, False)


# ---- approvals as on disk ----------------------------------------------------------------------------


def test_what_a_session_may_do_is_kept_as_on_disk() -> None:
    """Whatever a document says of approvals and folders, the disk's values are put in their place."""
    document = with_changes(FULL, plan_slug="mine")
    disk = with_changes(FRESH, additional_dirs=["/d"])
    kept = keep_approvals(document, disk)
    assert kept == document | {"approval": FRESH["approval"], "additional_dirs": ["/d"]}
    assert keep_approvals(document, {}).keys() == document.keys() - {"approval", "additional_dirs"}
    assert document == with_changes(FULL, plan_slug="mine")
