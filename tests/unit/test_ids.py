"""Ids become folder names: what is really a path is refused, what old clients named is found."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions.errors import InvalidIdError
from kimi_sessions.ids import new_session_id, parse_agent_id, parse_new_session_id, parse_session_id
from kimi_sessions.session import Session

NEVER = [
    "",
    ".",
    "..",
    ".hidden",
    "-rf",
    "--yolo",
    "../x",
    "a/b",
    "a/",
    "/etc/passwd",
    "a\\b",
    "C:x",
    "x\0y",
    "x\ny",
    "x\ty",
    "x\x7fy",
    "x\x85y",
    "x\u202ey",
    "x\u2028y",
    "x\ud800y",
    "x" * 256,
    "字" * 86,
]
FOUND_NOT_MADE = [
    "my session",
    "项目 甲",
    "tab\u3000wide",
    "👩\u200d💻",
    "a+b",
    "50%",
    "a%2Fb",
    "x" * 255,
    "字" * 85,
]
FOUND_NOT_MADE += ["x.", "x.jsonl", "x.JSONL", "x.lock", "x.tmp", "x" * 129, "@last", "~root", "deleting~1"]
FINE = ["a", "_", "0", "named-1", "A.b_c-d", "x" * 128, "a..b", "x.json", "jsonl"]


@pytest.mark.parametrize("value", NEVER)
def test_what_could_lead_elsewhere_is_no_id_at_all(value: str) -> None:
    """Paths, options, controls and over-long names are refused by both rules, with the value and a reason."""
    for parse in (parse_session_id, parse_new_session_id):
        with pytest.raises(InvalidIdError) as caught:
            parse(value)
        assert caught.value.value == value
        assert caught.value.reason


@pytest.mark.parametrize("value", FOUND_NOT_MADE)
def test_an_old_name_can_be_found_but_not_made_anew(value: str) -> None:
    """Spaces, other scripts and odd endings are names of sessions that are there; new ones are plain."""
    assert parse_session_id(value) == value
    with pytest.raises(InvalidIdError):
        parse_new_session_id(value)


@pytest.mark.parametrize("value", FINE)
def test_a_plain_name_is_fine_for_both(value: str) -> None:
    """Letters, digits, underscore, dot and dash, up to 128."""
    assert parse_session_id(value) == parse_new_session_id(value) == value


@pytest.mark.parametrize("value", [None, 5, b"abc", ["a"], Path("abc")])
def test_what_is_no_text_is_no_id(value: object) -> None:
    """Bytes, numbers and paths are refused, not converted."""
    with pytest.raises(InvalidIdError, match="not text"):
        parse_session_id(value)


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_an_accepted_id_is_one_name_in_its_folder(value: str) -> None:
    """Whatever passes is a single path component that a file system can hold, and needs no normalising."""
    try:
        parse_session_id(value)
    except InvalidIdError:
        return
    joined = os.path.join("/store", value)
    assert os.path.normpath(joined) == joined
    assert os.path.dirname(joined) == "/store"
    assert 0 < len(os.fsencode(value)) <= 255


def test_a_fresh_id_is_a_random_uuid_and_passes_both_rules() -> None:
    """Thousands in a row are all different."""
    made = {new_session_id() for _ in range(5000)}
    assert len(made) == 5000
    one = made.pop()
    assert uuid.UUID(one).version == 4
    assert parse_new_session_id(one) == one


@pytest.mark.parametrize("value", ["a1b2c3d4f", "worker_1", "A-b"])
def test_an_agent_id_is_plainer_still(value: str) -> None:
    """Letters, digits, underscore and dash."""
    assert parse_agent_id(value) == value


@pytest.mark.parametrize("value", ["", "a.b", "..", "a/b", "-a", "a b", "x" * 65, None])
def test_a_bad_agent_id_is_refused(value: object) -> None:
    """The same gate for the folders of subagents."""
    with pytest.raises(InvalidIdError):
        parse_agent_id(value)


@pytest.mark.parametrize("value", ["../victim", "..", "", "/victim", "a/../victim", "-rf"])
async def test_a_bad_id_is_refused_before_any_file_is_touched(tmp_path: Path, value: str) -> None:
    """Every verb that takes an id refuses at the gate: the folder beside the store is as it was, none was made."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "context.jsonl").write_bytes(b"precious\n")
    work_dir = tmp_path / "project"
    work_dir.mkdir()
    for verb in (Session.create, Session.find, Session.open, Session.restore, Session.empty_trash):
        with pytest.raises(InvalidIdError):
            await verb(work_dir, value)
    assert os.listdir(work_dir) == []
    assert (victim / "context.jsonl").read_bytes() == b"precious\n"
