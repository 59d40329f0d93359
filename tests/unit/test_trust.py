"""A session is this user's own, or it is not: planted, copied, changed and moved ones each get what they deserve."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kimi_sessions import _fs
from kimi_sessions.errors import WriteError
from kimi_sessions.layout import ProjectLayout
from kimi_sessions.metadata import ensure_store, follow_move, read_store_id, register_work_dir
from kimi_sessions.trust import Trust, Verdict, approvals_of, mask_approvals, verify, write_seal

PROJECT = ProjectLayout()
GOOD = Verdict(trusted=True, approvals_ok=True, problem="")
YOLO: dict[str, Any] = {"approval": {"yolo": True, "afk": False, "auto_approve_actions": ["run", "edit"]}}
HARMLESS: dict[str, Any] = {"approval": {"yolo": False, "afk": False, "auto_approve_actions": []}}


def folder_of(work_dir: Path, session_id: str) -> Path:
    """Give a session's folder, made if missing."""
    ensure_store(PROJECT, work_dir, work_dir)
    folder = PROJECT.sessions_path(work_dir) / session_id
    folder.mkdir(exist_ok=True)
    return folder


def seal(
    work_dir: Path,
    session_id: str,
    state: Mapping[str, Any] | None,
    *,
    also: Mapping[str, Any] | None = None,
) -> str:
    """Seal a session as the library does and give the problem, "" if none."""
    fd = os.open(folder_of(work_dir, session_id), os.O_RDONLY)
    try:
        return write_seal(work_dir, work_dir, session_id, fd, state, also=also)
    finally:
        os.close(fd)


def judge(work_dir: Path, session_id: str, state: Mapping[str, Any] | None) -> Verdict:
    """Judge a session as a program that sees it for the first time."""
    return verify(work_dir, work_dir, session_id, str(PROJECT.sessions_path(work_dir) / session_id), state)


def seal_path(work_dir: Path, session_id: str) -> Path:
    """Give the path of a session's seal."""
    return PROJECT.sessions_path(work_dir) / session_id / "seal.json"


@pytest.fixture
def key_path(home: Path) -> Path:
    """Give the place of this user's key."""
    return home / "kimi-sessions" / "key"


@pytest.fixture
def other(tmp_path: Path, home: Path) -> Path:
    """Give a second project of the same user with a sealed session `s` that may do anything."""
    folder = tmp_path / "other"
    folder.mkdir()
    assert seal(folder, "s", YOLO) == ""
    return folder


# --- the plain case --------------------------------------------------------------------------------------------


def test_a_sealed_session_is_trusted_with_what_it_may_do(work_dir: Path) -> None:
    """What this user's program sealed comes back whole, from the next program on."""
    assert seal(work_dir, "s", YOLO) == ""
    assert judge(work_dir, "s", YOLO) == GOOD


def test_judging_writes_nothing(work_dir: Path, home: Path) -> None:
    """Neither for a session without a seal, nor for one with a strange one, nor where there is no key."""
    folder = folder_of(work_dir, "s")
    assert not judge(work_dir, "s", YOLO).trusted
    (folder / "seal.json").write_text(json.dumps({"version": 1, "identity": "00" * 32, "approvals": []}))
    assert "no key" in judge(work_dir, "s", YOLO).problem
    assert os.listdir(home) == []


def test_sealing_again_without_a_change_writes_nothing(work_dir: Path) -> None:
    """The seal that is there stays the same file."""
    seal(work_dir, "s", YOLO)
    before = seal_path(work_dir, "s").stat()
    assert seal(work_dir, "s", YOLO) == ""
    assert seal_path(work_dir, "s").stat().st_ino == before.st_ino


def test_a_seal_is_private(work_dir: Path, key_path: Path) -> None:
    """Seal and key are this user's alone, and the key is 32 bytes that differ between users."""
    seal(work_dir, "s", None)
    assert seal_path(work_dir, "s").stat().st_mode & 0o7777 == 0o600
    assert key_path.stat().st_mode & 0o7777 == 0o600
    first = key_path.read_bytes()
    assert len(first) == 32
    shutil.rmtree(key_path.parent)
    seal(work_dir, "s", None)
    assert key_path.read_bytes() != first


# --- planted sessions ------------------------------------------------------------------------------------------


def test_a_session_without_a_seal_is_untrusted(work_dir: Path) -> None:
    """As it comes with a cloned repository; also beside sealed ones."""
    seal(work_dir, "mine", YOLO)
    folder_of(work_dir, "planted")
    verdict = judge(work_dir, "planted", YOLO)
    assert (verdict.trusted, verdict.approvals_ok) == (False, False)
    assert "no seal" in verdict.problem


def test_a_seal_of_another_user_is_worth_nothing(
    work_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key made it; that this user's registry knows the store does not help."""
    monkeypatch.setenv("KIMI_SESSIONS_HOME", str(home / "stranger"))
    seal(work_dir, "s", YOLO)
    monkeypatch.setenv("KIMI_SESSIONS_HOME", str(home / "me"))
    seal(work_dir, "mine", None)
    assert judge(work_dir, "mine", None) == GOOD
    assert not judge(work_dir, "s", YOLO).trusted


def test_a_session_copied_under_another_id_is_untrusted(work_dir: Path) -> None:
    """The seal is for one id."""
    seal(work_dir, "s", YOLO)
    shutil.copytree(folder_of(work_dir, "s"), PROJECT.sessions_path(work_dir) / "copy")
    assert judge(work_dir, "s", YOLO).trusted
    assert not judge(work_dir, "copy", YOLO).trusted


def test_a_session_copied_from_another_project_is_untrusted(work_dir: Path, other: Path) -> None:
    """The seal is for one store."""
    seal(work_dir, "mine", None)
    shutil.copytree(folder_of(other, "s"), PROJECT.sessions_path(work_dir) / "s")
    assert not judge(work_dir, "s", YOLO).trusted


def test_a_whole_store_copied_from_another_project_is_untrusted(work_dir: Path, other: Path) -> None:
    """Its seals verify, but the store they are for is somewhere else."""
    shutil.copytree(other / ".kimi", work_dir / ".kimi")
    verdict = judge(work_dir, "s", YOLO)
    assert (verdict.trusted, verdict.approvals_ok) == (False, False)
    assert "copy" in verdict.problem
    assert judge(other, "s", YOLO) == GOOD


def test_writing_to_a_copied_store_does_not_make_its_old_sessions_trusted(
    work_dir: Path, other: Path
) -> None:
    """The user makes a session there: that one is trusted, those that came with the copy are not."""
    shutil.copytree(other / ".kimi", work_dir / ".kimi")
    assert seal(work_dir, "mine", YOLO) == ""
    assert judge(work_dir, "mine", YOLO) == GOOD
    assert not judge(work_dir, "s", YOLO).trusted
    assert judge(other, "s", YOLO) == GOOD


def test_a_session_of_a_copied_store_can_be_sealed_on_purpose(work_dir: Path, other: Path) -> None:
    """Who looks at it and seals it gets it trusted, alone; the original stays as it was."""
    shutil.copytree(other / ".kimi", work_dir / ".kimi")
    shutil.copytree(folder_of(work_dir, "s"), PROJECT.sessions_path(work_dir) / "t")
    assert seal(work_dir, "t", YOLO) == ""
    assert judge(work_dir, "t", YOLO) == GOOD
    assert not judge(work_dir, "s", YOLO).trusted
    assert judge(other, "s", YOLO) == GOOD


def test_a_store_id_pulled_over_the_own_one_trusts_nobody(work_dir: Path, other: Path) -> None:
    """A pull that replaces work_dir.json and brings that store's sessions gains nothing."""
    seal(work_dir, "mine", YOLO)
    shutil.copy(PROJECT.work_dir_file_path(other), PROJECT.work_dir_file_path(work_dir))
    shutil.copytree(folder_of(other, "s"), PROJECT.sessions_path(work_dir) / "s")
    assert not judge(work_dir, "s", YOLO).trusted
    assert not judge(work_dir, "mine", YOLO).trusted
    seal(work_dir, "new", None)
    assert not judge(work_dir, "s", YOLO).trusted


def test_a_store_that_is_in_no_registry_is_untrusted(work_dir: Path, home: Path) -> None:
    """A good seal in an unknown place waits for the first write of this user there."""
    seal(work_dir, "s", YOLO)
    shutil.rmtree(home / "kimi-sessions" / "work_dirs")
    assert "registry" in judge(work_dir, "s", YOLO).problem
    register_work_dir(PROJECT, work_dir, work_dir)
    assert judge(work_dir, "s", YOLO) == GOOD


@pytest.mark.parametrize("raw", [None, b"", b"{}", b"{", b"[]", b"\0" * 90, b'{"store_id": ""}'])
def test_a_lost_work_dir_file_takes_no_trust_with_it(work_dir: Path, other: Path, raw: bytes | None) -> None:
    """The registry still knows which store is at this place: what was sealed for that one is this user's."""
    seal(work_dir, "s", YOLO)
    path = PROJECT.work_dir_file_path(work_dir)
    if raw is None:
        path.unlink()
    else:
        path.write_bytes(raw)
    shutil.copytree(folder_of(other, "s"), PROJECT.sessions_path(work_dir) / "theirs")
    assert judge(work_dir, "s", YOLO) == GOOD
    changed = {"approval": {**YOLO["approval"], "auto_approve_actions": ["run", "edit", "push"]}}
    assert not judge(work_dir, "s", changed).approvals_ok
    assert not judge(work_dir, "theirs", YOLO).trusted
    # The next session gives the store a new id; both are known here from then on.
    assert seal(work_dir, "new", None) == ""
    assert read_store_id(work_dir) is not None
    assert judge(work_dir, "new", None) == GOOD
    assert judge(work_dir, "s", YOLO) == GOOD
    assert not judge(work_dir, "theirs", YOLO).trusted


def test_a_store_without_an_id_is_untrusted_where_no_registry_knows_it(work_dir: Path, home: Path) -> None:
    """A work_dir.json that is gone or damaged, in a place that is not known: nothing a seal could be for."""
    seal(work_dir, "s", YOLO)
    shutil.rmtree(home / "kimi-sessions" / "work_dirs")
    for raw in (b"{}", b"{", b'{"store_id": ""}'):
        PROJECT.work_dir_file_path(work_dir).write_bytes(raw)
        assert "names no store" in judge(work_dir, "s", YOLO).problem


def test_a_kimi_that_is_a_link_to_a_trusted_store_is_untrusted(work_dir: Path, other: Path) -> None:
    """Everything in it would verify; the folder it stands in is not that store's."""
    (work_dir / ".kimi").symlink_to(other / ".kimi")
    assert not judge(work_dir, "s", YOLO).trusted


# --- moved projects --------------------------------------------------------------------------------------------


def test_a_moved_project_stays_trusted_and_is_followed(work_dir: Path, other: Path, tmp_path: Path) -> None:
    """Before the registry follows and after; then its old place is no place for it any more."""
    new = tmp_path / "moved"
    other.rename(new)
    assert judge(new, "s", YOLO) == GOOD
    assert follow_move(new, new) == ""
    assert judge(new, "s", YOLO) == GOOD
    shutil.copytree(new, other)
    assert not judge(other, "s", YOLO).trusted


def test_a_moved_project_is_trusted_when_its_old_place_is_used_again(other: Path, tmp_path: Path) -> None:
    """Moved away and cloned anew: the old sessions in the new place and the new ones in the old place."""
    new = tmp_path / "moved"
    other.rename(new)
    other.mkdir()
    assert judge(new, "s", YOLO) == GOOD
    assert seal(other, "fresh", YOLO) == ""
    assert judge(new, "s", YOLO) == GOOD
    assert judge(other, "fresh", YOLO) == GOOD
    # Once the registry follows, the old place has nothing to do with the old sessions any more.
    assert follow_move(new, new) == ""
    shutil.copytree(folder_of(new, "s"), PROJECT.sessions_path(other) / "s")
    assert not judge(other, "s", YOLO).trusted


# --- what a session may do -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"approval": {"yolo": True}},
        {"approval": {"yolo": 1}},
        {"approval": {"yolo": 0}},
        {"approval": {"yolo": "true"}},
        {"approval": {"yolo": None}},
        {"approval": {"afk": True}},
        {"approval": {"auto_approve_actions": ["run"]}},
        {"approval": {"auto_approve_actions": "run"}},
        {"approval": {"auto_approve_actions": {"run": 1}}},
        {"approval": {"auto_approve_actions": [["run"]]}},
        {"approval": [["yolo", True]]},
        {"approval": None},
        {"additional_dirs": ["/"]},
        {"additional_dirs": "/"},
        {"additional_dirs": float("nan")},
    ],
)
def test_a_change_of_what_a_session_may_do_is_seen(work_dir: Path, changed: dict[str, Any]) -> None:
    """The session stays trusted and what was changed does not count, however the change is spelled."""
    seal(work_dir, "s", HARMLESS)
    verdict = judge(work_dir, "s", changed)
    assert (verdict.trusted, verdict.approvals_ok) == (True, False)
    assert verdict.problem


def test_a_state_too_deep_to_be_judged_is_a_change(work_dir: Path) -> None:
    """A planted tower of brackets raises nothing."""
    seal(work_dir, "s", HARMLESS)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    verdict = judge(work_dir, "s", {"additional_dirs": deep})
    assert (verdict.trusted, verdict.approvals_ok) == (True, False)
    while deep:
        deep = deep.pop()


def test_what_one_session_may_do_cannot_be_pinned_on_another(work_dir: Path) -> None:
    """Approvals of one seal in the seal of another session of the same store are not its own."""
    seal(work_dir, "bold", YOLO)
    seal(work_dir, "shy", HARMLESS)
    bold = json.loads(seal_path(work_dir, "bold").read_bytes())
    shy = json.loads(seal_path(work_dir, "shy").read_bytes())
    seal_path(work_dir, "shy").write_text(json.dumps({**shy, "approvals": bold["approvals"]}))
    verdict = judge(work_dir, "shy", YOLO)
    assert (verdict.trusted, verdict.approvals_ok) == (True, False)


def test_a_mac_of_one_kind_is_none_of_the_other(work_dir: Path) -> None:
    """Identity and approvals can't be exchanged."""
    seal(work_dir, "s", YOLO)
    found = json.loads(seal_path(work_dir, "s").read_bytes())
    swapped = {**found, "identity": found["approvals"][0], "approvals": [found["identity"]]}
    seal_path(work_dir, "s").write_text(json.dumps(swapped))
    assert not judge(work_dir, "s", YOLO).trusted


def test_other_changes_of_the_state_need_no_seal(work_dir: Path) -> None:
    """Title, todos, order and repetition of the approved actions, unknown keys: not what is sealed."""
    seal(work_dir, "s", YOLO)
    same = {
        "custom_title": "x",
        "approval": {"future": 1, "auto_approve_actions": ["edit", "run", "edit"], "yolo": True},
        "additional_dirs": [],
    }
    assert judge(work_dir, "s", same) == GOOD


def test_defaults_need_no_seal(work_dir: Path) -> None:
    """A state that was lost, or reset, allows nothing; there is nothing to distrust in it."""
    seal(work_dir, "s", YOLO)
    states: list[dict[str, Any] | None] = [None, {}, HARMLESS, {"approval": {}}]
    for state in states:
        assert judge(work_dir, "s", state) == GOOD


def test_a_crash_while_approvals_change_locks_nobody_out(work_dir: Path) -> None:
    """Between seal, save and seal the old and the new state both hold; afterwards the new one alone."""
    old: dict[str, Any] = {"approval": {"afk": True}}
    seal(work_dir, "s", old)
    seal(work_dir, "s", YOLO, also=old)
    assert judge(work_dir, "s", old) == judge(work_dir, "s", YOLO) == GOOD
    assert not judge(work_dir, "s", {"approval": {"afk": True, "yolo": True}}).approvals_ok
    seal(work_dir, "s", YOLO)
    assert judge(work_dir, "s", YOLO) == GOOD
    assert not judge(work_dir, "s", old).approvals_ok


def test_approvals_are_taken_as_they_lie() -> None:
    """Missing values are defaults, strange ones stay strange."""
    assert approvals_of(None) == approvals_of({}) == approvals_of(HARMLESS) == [False, False, [], []]
    assert approvals_of(YOLO) == [True, False, ["edit", "run"], []]
    assert approvals_of({"approval": {"yolo": 1}, "additional_dirs": ["/b", "/a"]}) == [
        1,
        False,
        [],
        ["/b", "/a"],
    ]


@pytest.mark.parametrize("state", [YOLO, {"approval": 3}, {"approval": None}, {"additional_dirs": ["/"]}])
def test_a_masked_state_allows_nothing_and_keeps_the_rest(state: dict[str, Any]) -> None:
    """Unknown keys stay, in the approvals too, and the original is not touched."""
    state = {**state, "future": 1, "custom_title": "x"}
    before = json.dumps(state)
    masked = mask_approvals(state)
    assert approvals_of(masked) == [False, False, [], []]
    assert (masked["future"], masked["custom_title"]) == (1, "x")
    assert json.dumps(state) == before
    assert mask_approvals({"approval": {"yolo": True, "future": 1}})["approval"]["future"] == 1
    assert mask_approvals(None) == {}


# --- damaged seals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"version": 2}',
        b'{"version": 1}',
        b'{"version": 1, "identity": 7, "approvals": 7}',
        '{"version": 1, "identity": "\u00e9", "approvals": ["\u00e9"]}'.encode(),
        b'{"version": 1, "identity": ["00"], "approvals": {}}',
    ],
)
def test_a_damaged_seal_is_an_untrusted_session(work_dir: Path, raw: bytes) -> None:
    """Whatever stands in it, nothing is raised."""
    seal(work_dir, "s", YOLO)
    seal_path(work_dir, "s").write_bytes(raw)
    verdict = judge(work_dir, "s", YOLO)
    assert not verdict.trusted
    assert verdict.problem


@pytest.mark.parametrize("approvals", [None, 7, {}, [None, 7, "\u00e9", []], ["00" * 32]])
def test_damaged_approvals_cost_the_approvals_alone(work_dir: Path, approvals: object) -> None:
    """Who the session belongs to is still known."""
    seal(work_dir, "s", YOLO)
    found = json.loads(seal_path(work_dir, "s").read_bytes())
    seal_path(work_dir, "s").write_text(json.dumps({**found, "approvals": approvals}))
    verdict = judge(work_dir, "s", YOLO)
    assert (verdict.trusted, verdict.approvals_ok) == (True, False)
    assert judge(work_dir, "s", HARMLESS) == GOOD


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_seal_that_is_no_file_is_an_untrusted_session(work_dir: Path, kind: str) -> None:
    """A link is not followed (here it leads to a good seal), a pipe does not hang."""
    seal(work_dir, "s", YOLO)
    path = seal_path(work_dir, "s")
    path.rename(path.with_name("good"))
    if kind == "link":
        path.symlink_to("good")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert "seal" in judge(work_dir, "s", YOLO).problem


def test_a_session_folder_that_is_a_link_is_untrusted(work_dir: Path) -> None:
    """Also one that leads to the trusted session itself."""
    seal(work_dir, "s", YOLO)
    folder = PROJECT.sessions_path(work_dir) / "s"
    folder.rename(work_dir / "elsewhere")
    folder.symlink_to(work_dir / "elsewhere")
    assert not judge(work_dir, "s", YOLO).trusted
    assert not judge(work_dir, "gone", YOLO).trusted


# --- the key ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bad_key(request: pytest.FixtureRequest, work_dir: Path, key_path: Path) -> Path:
    """Make a sealed session, then spoil the key."""
    seal(work_dir, "s", YOLO)
    if request.param == "short":
        key_path.write_bytes(key_path.read_bytes()[:31])
    elif request.param == "long":
        key_path.write_bytes(key_path.read_bytes() + b"x")
    elif request.param == "empty":
        key_path.write_bytes(b"")
    elif request.param == "zeros":
        key_path.write_bytes(bytes(32))
    elif request.param == "loose":
        key_path.chmod(0o644)
    else:
        key_path.rename(key_path.with_name("kept"))
        if request.param == "link":
            key_path.symlink_to("kept")
        else:
            os.mkfifo(key_path, 0o600)
    return key_path


@pytest.mark.parametrize(
    "bad_key", ["short", "long", "empty", "zeros", "loose", "link", "pipe"], indirect=True
)
def test_a_spoiled_key_is_named_and_never_replaced(work_dir: Path, bad_key: Path) -> None:
    """Nothing is trusted, nothing is sealed, the problem names the key, and the file is as it was."""
    before = bad_key.lstat()
    verdict = judge(work_dir, "s", YOLO)
    assert not verdict.trusted
    assert str(bad_key) in verdict.problem
    assert str(bad_key) in seal(work_dir, "t", YOLO)
    assert not seal_path(work_dir, "t").exists()
    after = bad_key.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_mtime_ns,
    )


def test_without_a_place_for_a_key_a_session_is_unsealed(work_dir: Path, home: Path) -> None:
    """A home that can't be written: a problem, no error, no seal."""
    (home / "kimi-sessions").write_text("")
    assert "no key" in seal(work_dir, "s", YOLO)
    assert not seal_path(work_dir, "s").exists()
    assert not judge(work_dir, "s", YOLO).trusted


def test_without_a_home_the_variable_to_set_is_named(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither judging nor sealing raises."""
    seal(work_dir, "s", YOLO)
    monkeypatch.delenv("KIMI_SESSIONS_HOME")
    monkeypatch.setenv("HOME", "not/absolute")
    assert "KIMI_SESSIONS_HOME" in judge(work_dir, "s", YOLO).problem
    assert "KIMI_SESSIONS_HOME" in seal(work_dir, "t", YOLO)


def test_a_session_folder_that_cannot_be_written_is_an_error(work_dir: Path) -> None:
    """The disk is full: the approvals must not be saved without their seal, so the caller hears of it."""
    seal(work_dir, "s", None)

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(_fs.OsFileSystem, name)

        def write(self, *_: object) -> int:
            raise OSError(errno.ENOSPC, "full")

    with _fs.using(Full()), pytest.raises(WriteError) as caught:
        seal(work_dir, "s", YOLO)
    assert caught.value.errno == errno.ENOSPC
    assert judge(work_dir, "s", None) == GOOD
    assert sorted(os.listdir(seal_path(work_dir, "s").parent)) == ["seal.json"]


def test_programs_that_make_the_key_at_once_use_one_key(tmp_path: Path, home: Path, key_path: Path) -> None:
    """Each seals a session of its own project at the same moment; all of them are trusted afterwards."""
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from kimi_sessions import trust\n"
        "work_dir = Path(sys.argv[1])\n"
        "fd = os.open(work_dir / '.kimi' / 'sessions' / 's', os.O_RDONLY)\n"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
        "print(trust.write_seal(work_dir, work_dir, 's', fd, {'approval': {'yolo': True}}))\n"
    )
    work_dirs = [tmp_path / f"w{number}" for number in range(4)]
    children = []
    for work_dir in work_dirs:
        work_dir.mkdir()
        folder_of(work_dir, "s")
        command = [sys.executable, "-c", script, str(work_dir)]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert not key_path.exists()
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, _ = child.communicate(timeout=60)
        assert (child.returncode, out) == (0, "\n")
    for work_dir in work_dirs:
        assert judge(work_dir, "s", {"approval": {"yolo": True}}) == GOOD
    assert sorted(os.listdir(key_path.parent)) == ["key", "work_dirs"]


# --- one judge for a whole list --------------------------------------------------------------------------------


def test_a_judge_of_many_sessions_reads_the_key_once(work_dir: Path) -> None:
    """A list of thousands opens nothing per session but the seal, which the caller has read."""
    seal(work_dir, "s", YOLO)
    found = json.loads(seal_path(work_dir, "s").read_bytes())
    opened: list[str] = []

    class Counts:
        def __getattr__(self, name: str) -> Any:
            return getattr(_fs.OsFileSystem, name)

        def open(self, path: Any, *rest: Any, **named: Any) -> int:
            opened.append(os.fspath(path))
            return os.open(path, *rest, **named)

    judge_of_all = Trust(work_dir, work_dir)
    with _fs.using(Counts()):
        assert judge_of_all.verify("unsealed", None, None).trusted is False
        assert opened == []
        assert judge_of_all.verify("s", found, YOLO) == GOOD
        assert not judge_of_all.verify("t", found, YOLO).trusted
        once = len(opened)
        for _ in range(50):
            assert judge_of_all.verify("s", found, YOLO) == GOOD
            assert not judge_of_all.verify("t", found, YOLO).trusted
        assert len(opened) == once
    assert "key" in opened


def test_the_seal_names_its_version_and_no_secret(work_dir: Path, key_path: Path) -> None:
    """On disk are a version and MACs of 64 hex digits; the key is not among them."""
    seal(work_dir, "s", YOLO)
    raw = seal_path(work_dir, "s").read_text()
    found = json.loads(raw)
    assert list(found) == ["version", "identity", "approvals"]
    assert [len(mac) for mac in (found["identity"], *found["approvals"])] == [64, 64]
    assert key_path.read_bytes().hex() not in raw
    assert str(read_store_id(work_dir)) not in raw
