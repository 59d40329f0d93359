"""Every name of the store is spelled in one place, the way Kimi CLI spells it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions import layout
from kimi_sessions.errors import HomeNotFoundError
from kimi_sessions.layout import (
    ProjectLayout,
    ShareLayout,
    cache_home,
    flat_owner,
    split_flat_side,
    state_home,
    work_dir_key,
    work_dir_path,
)

WORK_DIR = Path("/w/project")
KEY = hashlib.md5(b"/w/project").hexdigest()


def test_a_project_keeps_its_sessions_inside_itself() -> None:
    """Sessions, trash, reports and the last id lie below `.kimi`."""
    project = ProjectLayout()
    assert project.sessions_path(WORK_DIR) == Path("/w/project/.kimi/sessions")
    assert project.sessions_paths(WORK_DIR, Path("/real")) == (Path("/w/project/.kimi/sessions"),)
    assert project.trash_path(WORK_DIR) == Path("/w/project/.kimi/trash")
    assert project.work_dir_file_path(WORK_DIR) == Path("/w/project/.kimi/work_dir.json")
    assert project.migration_path(WORK_DIR) == Path("/w/project/.kimi/migration")
    assert project.sealed


def test_a_share_has_one_folder_per_work_dir_named_as_the_client_names_it() -> None:
    """The key is the md5 of the path's text."""
    share = ShareLayout("/s")
    assert share.sessions_path(WORK_DIR) == Path("/s/sessions", KEY)
    assert share.trash_path(WORK_DIR) == Path("/s/sessions-trash", KEY)
    assert share.kimi_json_path == Path("/s/kimi.json")
    assert share.all_sessions_path == Path("/s/sessions")
    assert not share.sealed


def test_a_work_dir_reached_through_a_link_is_looked_for_under_both_keys() -> None:
    """The spelling given comes first, since new sessions go there."""
    paths = ShareLayout("/s").sessions_paths(WORK_DIR, Path("/real"))
    assert paths == (Path("/s/sessions", KEY), Path("/s/sessions", work_dir_key("/real")))
    assert ShareLayout("/s").sessions_paths(WORK_DIR, WORK_DIR) == paths[:1]


@pytest.mark.parametrize(
    "path,kaos,key",
    [
        ("/home/u/p", "local", hashlib.md5(b"/home/u/p").hexdigest()),
        ("/home/u/p", "ssh", "ssh_" + hashlib.md5(b"/home/u/p").hexdigest()),
        ("/w/项目", "local", hashlib.md5("/w/项目".encode()).hexdigest()),
        ("/w/\udcff", "local", hashlib.md5(b"/w/\xff").hexdigest()),
    ],
)
def test_the_key_of_a_work_dir_is_the_client_s(path: str, kaos: str, key: str) -> None:
    """md5 of the text as given, a prefix for what is not local; a name that is no UTF-8 has one too."""
    assert work_dir_key(path, kaos) == key


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), unique=True))
def test_different_paths_have_different_keys(paths: list[str]) -> None:
    """Spaces, dashes, dots and scripts don't fold into one another."""
    assert len({work_dir_key(path) for path in paths}) == len(paths)


def test_the_share_is_the_given_one_else_the_environment_s_else_the_home_s(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable counts as unset; a relative one is taken from the current folder."""
    assert ShareLayout().share == home / ".kimi"
    monkeypatch.setenv("KIMI_SHARE_DIR", "")
    assert ShareLayout().share == home / ".kimi"
    monkeypatch.setenv("KIMI_SHARE_DIR", "relative/share")
    assert ShareLayout().share == Path.cwd() / "relative/share"
    assert ShareLayout("/given").share == Path("/given")
    assert ShareLayout(Path("also/relative")).share == Path.cwd() / "also/relative"


def test_layouts_are_values() -> None:
    """Equal ones are equal, and can be kept in sets."""
    assert ProjectLayout() == ProjectLayout()
    assert ShareLayout("/s") == ShareLayout(Path("/s"))
    assert ShareLayout("/s") != ShareLayout("/t")
    assert ProjectLayout() != ShareLayout("/s")
    assert len({ProjectLayout(), ProjectLayout(), ShareLayout("/s"), ShareLayout("/s")}) == 2
    assert repr(ShareLayout("/s")) == "ShareLayout('/s')"


def test_a_home_that_cannot_be_found_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A HOME that is no absolute path is none; a location that was given needs none."""
    monkeypatch.setenv("HOME", "not/absolute")
    monkeypatch.delenv("KIMI_SHARE_DIR")
    monkeypatch.delenv("KIMI_SESSIONS_HOME")
    with pytest.raises(HomeNotFoundError, match="KIMI_SHARE_DIR"):
        _ = ShareLayout().share
    for find in (state_home, cache_home):
        with pytest.raises(HomeNotFoundError, match="KIMI_SESSIONS_HOME"):
            find()
    assert ShareLayout("/s").share == Path("/s")
    monkeypatch.setenv("KIMI_SESSIONS_HOME", "/own")
    assert (state_home(), cache_home()) == (Path("/own"), Path("/own/cache"))


def test_what_is_ours_goes_where_the_platform_keeps_such_things(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a variable of our own: the user's state and cache folders, not the same one."""
    monkeypatch.delenv("KIMI_SESSIONS_HOME")
    assert home in state_home().parents
    assert home in cache_home().parents
    assert state_home() != cache_home()


class KaosLike:
    """What a KaosPath is to us: something that knows its local path."""

    def unsafe_to_local_path(self) -> Path:
        """Give the local path."""
        return Path("/kaos/./project")


@pytest.mark.parametrize(
    "given_as,path",
    [
        ("/a/b", "/a/b"),
        ("/a/./b/../c/", "/a/c"),
        (Path("/a//b"), "/a/b"),
        (KaosLike(), "/kaos/project"),
    ],
)
def test_a_work_dir_is_text_a_path_or_a_kaos_path(given_as: object, path: str) -> None:
    """Dots are resolved by text, links are not looked at."""
    assert work_dir_path(given_as) == Path(path)


def test_a_relative_work_dir_is_taken_from_the_current_folder() -> None:
    """So that it means the same after a change of folder."""
    assert work_dir_path("x/y") == Path.cwd() / "x/y"


@pytest.mark.parametrize("bad", [None, 5, b"/bytes", ["/a"]])
def test_what_is_no_path_is_a_type_error(bad: object) -> None:
    """Bytes included: a path here is text."""
    with pytest.raises(TypeError):
        work_dir_path(bad)


@pytest.mark.parametrize("bad", ["", "/a\0b"])
def test_text_that_can_be_no_path_is_a_value_error(bad: str) -> None:
    """Rather than a surprise from the operating system later."""
    with pytest.raises(ValueError, match="not a path"):
        work_dir_path(bad)


@pytest.mark.parametrize(
    "name,split",
    [
        ("abc_1.jsonl", ("abc", "context_1.jsonl")),
        ("abc_12.jsonl", ("abc", "context_12.jsonl")),
        ("abc_sub_2.jsonl", ("abc", "context_sub_2.jsonl")),
        ("a_b_3.jsonl", ("a_b", "context_3.jsonl")),
        ("a_1_2.jsonl", ("a_1", "context_2.jsonl")),
        ("_sub_1.jsonl", ("_sub", "context_1.jsonl")),
        ("abc.jsonl", None),
        ("_1.jsonl", None),
        ("abc_.jsonl", None),
        ("abc_x.jsonl", None),
        ("abc_²..jsonl", None),
        ("abc_²." + "jsonl", None),
        ("abc_1.json", None),
        ("abc_1", None),
    ],
)
def test_a_flat_rotation_s_name_tells_its_session_and_its_place(
    name: str, split: tuple[str, str] | None
) -> None:
    """`<id>_N.jsonl` and `<id>_sub_N.jsonl`; other names are sessions of their own."""
    assert split_flat_side(name) == split


def test_a_flat_side_file_belongs_to_a_session_only_if_that_one_is_there() -> None:
    """Beside its flat file or its folder; else `named_1.jsonl` is the session `named_1`."""
    assert flat_owner("a_1.jsonl", {"a.jsonl"}, set()) == "a"
    assert flat_owner("a_1.jsonl", set(), {"a"}) == "a"
    assert flat_owner("a_1.jsonl", {"a_1.jsonl"}, {"b"}) is None
    assert flat_owner("a.jsonl", {"a.jsonl"}, {"a"}) is None


@pytest.mark.parametrize("number", [1, 2, 10, 345])
def test_rotation_and_subagent_names_read_back_as_their_numbers(number: int) -> None:
    """What is spelled here is parsed here."""
    assert layout.rotated_number(layout.rotated_name(number)) == number
    assert layout.old_subagent_number(layout.old_subagent_name(number)) == number
    assert layout.rotated_number(layout.old_subagent_name(number)) is None


@pytest.mark.parametrize(
    "name", ["context.jsonl", "context_.jsonl", "context_1.jsonl.torn", "xcontext_1.jsonl"]
)
def test_other_names_are_no_rotation(name: str) -> None:
    """Nothing that only looks alike is read as a former context."""
    assert layout.rotated_number(name) is None


@pytest.mark.parametrize(
    "name,temp",
    [
        (".tmp-123-abcdef.tmp", True),
        ("tmpa1b2c3d4.tmp", True),
        ("context.tmp", True),
        ("notes.tmp", False),
        ("tmp.tmp", False),
        (".tmp-notes", False),
    ],
)
def test_a_half_written_file_is_known_by_its_name(name: str, temp: bool) -> None:
    """Ours and the real client's; a user's own is left alone."""
    assert layout.is_temp_name(name) is temp


def test_a_file_that_was_set_aside_is_known_by_its_name() -> None:
    """So that a check does not report what a repair kept."""
    assert layout.is_set_aside_name("state.json.damaged-1")
    assert layout.is_set_aside_name("wire.jsonl.before-repair-2")
    assert not layout.is_set_aside_name("state.json")
    assert not layout.is_set_aside_name(".damaged-1")


def test_no_other_room_spells_a_file_s_name() -> None:
    """A name in a string elsewhere would go wrong in silence the day it changes."""
    names = [
        "context.jsonl",
        "wire.jsonl",
        "state.json",
        "metadata.json",
        "session.json",
        "seal.json",
        "kimi.json",
    ]
    spelled = re.compile(rf'(?<!`)"({"|".join(map(re.escape, names))})"')
    source = Path(layout.__file__).parent
    found = [
        f"{path.relative_to(source)}:{number}"
        for path in sorted(source.rglob("*.py"))
        if path.name != "layout.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if spelled.search(line) and not line.lstrip().startswith(("#", "``"))
    ]
    assert found == []
    assert os.sep == "/"
