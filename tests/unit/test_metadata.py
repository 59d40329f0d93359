"""Work dirs are remembered: in Kimi CLI's registry or in ours, through damage, links, copies and races."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kimi_sessions import _fs
from kimi_sessions.errors import (
    InvalidIdError,
    LocksUnavailableError,
    SessionBusyError,
    WorkDirNotFoundError,
    WriteError,
)
from kimi_sessions.layout import ProjectLayout, ShareLayout, work_dir_key
from kimi_sessions.metadata import (
    KnownWorkDir,
    Standing,
    WorkDirMeta,
    create_whole,
    ensure_store,
    follow_move,
    known_work_dirs,
    load_work_dir_meta,
    read_store_id,
    register_work_dir,
    set_last_session_id,
    standing,
)

PROJECT = ProjectLayout()
OTHER_ID = "0123456789abcdef" * 2


@pytest.fixture
def share(tmp_path: Path, home: Path) -> ShareLayout:
    """Give a share dir that exists and is empty."""
    (tmp_path / "share").mkdir()
    return ShareLayout(tmp_path / "share")


def registry_of(share: ShareLayout) -> Any:
    """Read kimi.json as any program would."""
    return json.loads(share.kimi_json_path.read_bytes())


def put_registry(share: ShareLayout, value: object) -> bytes:
    """Write a kimi.json and return its bytes."""
    raw = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    share.kimi_json_path.write_bytes(raw)
    return raw


def work_dir_file(work_dir: Path) -> Any:
    """Read work_dir.json as any program would."""
    return json.loads(PROJECT.work_dir_file_path(work_dir).read_bytes())


def make_project(work_dir: Path) -> str:
    """Make a registered store in a folder and return its id."""
    work_dir.mkdir(exist_ok=True)
    ensure_store(PROJECT, work_dir, work_dir)
    assert register_work_dir(PROJECT, work_dir, work_dir) == ""
    store_id = read_store_id(work_dir)
    assert store_id is not None
    return store_id


def known_paths(layout: ProjectLayout | ShareLayout) -> list[Path | None]:
    """Give the paths of all known work dirs, where nothing is wrong."""
    known, problems = known_work_dirs(layout)
    assert problems == []
    return [each.path for each in known]


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Give what changes when anything under a folder is written: names, inodes, sizes, times."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        facts = path.lstat()
        found[str(path)] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return found


def at_once(script: str, arguments: list[str]) -> list[str]:
    """Run a script in one process per argument, all let go at one moment, and give what each printed."""
    head = "import sys\nfrom pathlib import Path\nfrom kimi_sessions import metadata\n"
    head += "from kimi_sessions.layout import ProjectLayout, ShareLayout\narg = sys.argv[1]\n"
    code = f"{head}print('ready', flush=True)\nsys.stdin.readline()\n{script}"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, each], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for each in arguments
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    printed = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        printed.append(out)
    return printed


class Fails:
    """A file system on which one kind of call fails."""

    def __init__(self, call: str, code: int) -> None:
        self._call = call
        self._code = code
        self._real = _fs.active()

    def __getattr__(self, name: str) -> Any:
        if name != self._call:
            return getattr(self._real, name)

        def fail(*_: object, **__: object) -> None:
            raise OSError(self._code, os.strerror(self._code))

        return fail


# --- WorkDirMeta --------------------------------------------------------------------------------------------


def test_a_work_dir_meta_is_made_by_name_or_by_place() -> None:
    """Old code that builds one keeps working, and two of the same content are equal."""
    meta = WorkDirMeta(path="/x", kaos="local", last_session_id=None)
    assert meta == WorkDirMeta("/x") == WorkDirMeta("/x", "local", None)
    assert repr(meta) == "WorkDirMeta(path='/x', kaos='local', last_session_id=None)"
    assert pickle.loads(pickle.dumps(meta)) == meta
    with pytest.raises(AttributeError):
        meta.path = "/y"  # type: ignore[misc]


def test_a_bare_work_dir_meta_leads_into_the_environments_share(home: Path) -> None:
    """Without a layout the sessions are looked for where Kimi CLI has them; looking makes no folder."""
    sessions = home / ".kimi" / "sessions"
    assert WorkDirMeta("/x").sessions_dir == sessions / work_dir_key("/x")
    assert WorkDirMeta("/x", "ssh").sessions_dir == sessions / f"ssh_{work_dir_key('/x')}"
    assert not (home / ".kimi").exists()


def test_a_loaded_work_dir_meta_leads_where_its_layout_does(work_dir: Path, share: ShareLayout) -> None:
    """What the library hands out knows which store it came from."""
    for layout in (PROJECT, share):
        assert load_work_dir_meta(layout, work_dir, work_dir).sessions_dir == layout.sessions_path(work_dir)


# --- the last session, in Kimi CLI's registry ---------------------------------------------------------------


def test_the_last_session_is_found_by_the_first_entry_of_the_path(work_dir: Path, share: ShareLayout) -> None:
    """As the client does: first entry with this text, local; an entry without a kaos is local."""
    text = str(work_dir)
    put_registry(
        share,
        {
            "work_dirs": [
                {"path": text, "kaos": "ssh", "last_session_id": "elsewhere"},
                {"path": text, "last_session_id": "first"},
                {"path": text, "kaos": "local", "last_session_id": "second"},
            ]
        },
    )
    meta = load_work_dir_meta(share, work_dir, work_dir)
    assert (meta.last_session_id, meta.problem) == ("first", "")


def test_another_spelling_of_a_work_dir_has_the_same_last_session(work_dir: Path, share: ShareLayout) -> None:
    """A work dir named through a link is looked up by that text, then by the folder it leads to."""
    link = work_dir.with_name("link")
    link.symlink_to(work_dir)
    put_registry(share, {"work_dirs": [{"path": str(work_dir), "last_session_id": "here"}]})
    assert load_work_dir_meta(share, link, work_dir).last_session_id == "here"
    set_last_session_id(share, link, work_dir, "later")
    assert registry_of(share) == {"work_dirs": [{"path": str(work_dir), "last_session_id": "later"}]}


def test_recording_the_last_session_keeps_order_and_what_is_not_ours(
    work_dir: Path, share: ShareLayout
) -> None:
    """One value changes; unknown keys, other and damaged entries, non-ASCII text come out as they were."""
    before = {
        "future": {"b": 1, "a": 2**70},
        "work_dirs": [
            {"path": "/项目", "kaos": "local", "last_session_id": "x", "color": "blue"},
            "not an entry",
            {"color": 1, "path": str(work_dir), "kaos": "local", "last_session_id": None},
        ],
        "zzz": 1,
    }
    put_registry(share, before)
    set_last_session_id(share, work_dir, work_dir, "s1")
    before["work_dirs"][2]["last_session_id"] = "s1"  # type: ignore[index]
    assert registry_of(share) == before
    assert list(registry_of(share)) == ["future", "work_dirs", "zzz"]
    assert list(registry_of(share)["work_dirs"][2]) == ["color", "path", "kaos", "last_session_id"]
    assert "/项目" in share.kimi_json_path.read_text("utf-8")
    assert stat.S_IMODE(share.kimi_json_path.stat().st_mode) == 0o600


def test_a_registry_is_not_rewritten_when_nothing_changes(work_dir: Path, share: ShareLayout) -> None:
    """Recording what is recorded, forgetting what is not there and registering twice touch nothing."""
    put_registry(share, {"work_dirs": [{"path": str(work_dir), "kaos": "local", "last_session_id": "s1"}]})
    before = snapshot(share.share)
    set_last_session_id(share, work_dir, work_dir, "s1")
    set_last_session_id(share, work_dir, work_dir, None, only_if="s2")
    set_last_session_id(share, work_dir.parent, work_dir.parent, None)
    register_work_dir(share, work_dir, work_dir)
    assert snapshot(share.share) == before


def test_an_unregistered_work_dir_is_added_when_a_session_is_its_last(
    work_dir: Path, share: ShareLayout
) -> None:
    """The entry has the three keys of the client's own."""
    set_last_session_id(share, work_dir, work_dir, "s1")
    assert registry_of(share) == {
        "work_dirs": [{"path": str(work_dir), "kaos": "local", "last_session_id": "s1"}]
    }
    set_last_session_id(share, work_dir, work_dir, None)
    assert registry_of(share)["work_dirs"][0]["last_session_id"] is None


@pytest.mark.parametrize("store", ["share", "project"])
def test_forgetting_a_session_does_not_take_anothers_place(
    work_dir: Path, share: ShareLayout, store: str
) -> None:
    """Who deletes a session forgets it only while it is still the last one."""
    layout = share if store == "share" else PROJECT
    ensure_store(layout, work_dir, work_dir)
    set_last_session_id(layout, work_dir, work_dir, "s2")
    set_last_session_id(layout, work_dir, work_dir, None, only_if="s1")
    assert load_work_dir_meta(layout, work_dir, work_dir).last_session_id == "s2"
    set_last_session_id(layout, work_dir, work_dir, None, only_if="s2")
    assert load_work_dir_meta(layout, work_dir, work_dir).last_session_id is None


@pytest.mark.parametrize("store", ["share", "project"])
@pytest.mark.parametrize("bad", ["../x", "/etc", "", ".", 7, ["s1"], "a\nb", {}])
def test_a_last_session_that_can_be_no_id_is_none_and_a_problem(
    work_dir: Path, share: ShareLayout, store: str, bad: object
) -> None:
    """An id read from a file that someone else may have written never becomes a path unseen."""
    if store == "share":
        layout: ProjectLayout | ShareLayout = share
        put_registry(share, {"work_dirs": [{"path": str(work_dir), "last_session_id": bad}]})
    else:
        layout = PROJECT
        ensure_store(PROJECT, work_dir, work_dir)
        value = {"version": 1, "store_id": OTHER_ID, "last_session_id": bad}
        PROJECT.work_dir_file_path(work_dir).write_text(json.dumps(value))
    meta = load_work_dir_meta(layout, work_dir, work_dir)
    assert meta.last_session_id is None
    assert "last_session_id" in meta.problem


def test_an_id_that_leads_elsewhere_is_not_recorded(work_dir: Path, share: ShareLayout) -> None:
    """The gate is the same on the way in, and nothing is written."""
    with pytest.raises(InvalidIdError):
        set_last_session_id(share, work_dir, work_dir, "../x")
    assert os.listdir(share.share) == []


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[]", b"null", b'{"work_dirs": {}}', b'{"work_dirs": []} trailing', b"\xff\xfe{}", b"nothing"],
)
def test_a_damaged_registry_is_said_and_never_replaced(
    work_dir: Path, share: ShareLayout, raw: bytes
) -> None:
    """Reading gives no last session and a problem; writing names the file; its bytes stay."""
    put_registry(share, raw)
    meta = load_work_dir_meta(share, work_dir, work_dir)
    assert meta.last_session_id is None
    assert "kimi.json" in meta.problem
    assert len(known_work_dirs(share)[1]) == 1
    with pytest.raises(WriteError, match=r"kimi\.json.*damaged"):
        register_work_dir(share, work_dir, work_dir)
    with pytest.raises(WriteError, match=r"kimi\.json.*damaged"):
        set_last_session_id(share, work_dir, work_dir, "s1")
    assert share.kimi_json_path.read_bytes() == raw
    assert not list(share.share.glob("*.damaged-*"))


@pytest.mark.parametrize("raw", [None, b"", b" \n", b"{}", b'{"work_dirs": null}'])
def test_an_empty_registry_is_an_empty_registry(
    work_dir: Path, share: ShareLayout, raw: bytes | None
) -> None:
    """A missing file, and one a crash left empty, hold nothing to protect: no problem, and writing works."""
    if raw is not None:
        put_registry(share, raw)
    assert load_work_dir_meta(share, work_dir, work_dir).problem == ""
    assert known_paths(share) == []
    register_work_dir(share, work_dir, work_dir)
    assert registry_of(share)["work_dirs"] == [
        {"path": str(work_dir), "kaos": "local", "last_session_id": None}
    ]


def test_a_registry_kept_elsewhere_stays_there(work_dir: Path, share: ShareLayout, tmp_path: Path) -> None:
    """A kimi.json that is a link (a dotfile manager's) is read and replaced where it lies; the link stays."""
    kept = tmp_path / "dotfiles" / "kimi-registry.json"
    kept.parent.mkdir()
    kept.write_text('{"work_dirs": []}')
    share.kimi_json_path.symlink_to(kept)
    set_last_session_id(share, work_dir, work_dir, "s1")
    assert share.kimi_json_path.is_symlink()
    assert json.loads(kept.read_bytes())["work_dirs"][0]["last_session_id"] == "s1"
    assert load_work_dir_meta(share, work_dir, work_dir).last_session_id == "s1"


def test_a_share_that_is_a_link_works(work_dir: Path, tmp_path: Path, home: Path) -> None:
    """The user may keep the share elsewhere, its sessions folder too."""
    real, big = tmp_path / "real", tmp_path / "big"
    real.mkdir()
    big.mkdir()
    (tmp_path / "link").symlink_to(real)
    (real / "sessions").symlink_to(big)
    share = ShareLayout(tmp_path / "link")
    assert ensure_store(share, work_dir, work_dir) == share.sessions_path(work_dir)
    set_last_session_id(share, work_dir, work_dir, "s1")
    assert os.listdir(big) == [work_dir_key(str(work_dir))]
    assert load_work_dir_meta(share, work_dir, work_dir).last_session_id == "s1"


def test_a_work_dir_that_is_no_utf8_is_remembered(share: ShareLayout, tmp_path: Path) -> None:
    """A folder name with a broken byte goes into the registry and is found again."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    set_last_session_id(share, odd, odd, "s1")
    assert load_work_dir_meta(share, odd, odd).last_session_id == "s1"
    assert known_paths(share) == [odd]
    os.mkdir(odd)
    store_id = make_project(odd)
    assert known_paths(PROJECT) == [odd]
    assert standing(odd, odd, store_id) is Standing.HERE


def test_eight_programs_register_work_dirs_at_once(share: ShareLayout, tmp_path: Path) -> None:
    """No entry is lost when everyone rewrites the one file at the same moment, ten times each."""
    put_registry(share, {"work_dirs": [], "kept": True})
    paths = [str(tmp_path / f"w{number}") for number in range(8)]
    script = (
        "for number in range(10):\n"
        "    path = Path(arg, str(number))\n"
        f"    metadata.register_work_dir(ShareLayout({str(share.share)!r}), path, path)"
    )
    at_once(script, paths)
    found = registry_of(share)
    expected = sorted(f"{path}/{number}" for path in paths for number in range(10))
    assert sorted(entry["path"] for entry in found["work_dirs"]) == expected
    assert found["kept"] is True


def test_a_change_by_a_program_without_our_lock_is_not_lost(work_dir: Path, share: ShareLayout) -> None:
    """The real client may replace the file between our read and our rename: what it wrote stays."""
    put_registry(share, {"work_dirs": []})
    theirs = {"path": "/theirs", "kaos": "local", "last_session_id": "t"}

    class Meddles(Fails):
        armed = True

        def __getattr__(self, name: str) -> Any:
            if name == "fsync" and self.armed:
                # Our temp file is written; the rename comes next.
                self.armed = False
                other = share.share / "tmpclient.tmp"
                other.write_text(json.dumps({"work_dirs": [theirs]}))
                other.replace(share.kimi_json_path)
            return getattr(self._real, name)

    with _fs.using(Meddles("", 0)):
        set_last_session_id(share, work_dir, work_dir, "s1")
    ours = {"path": str(work_dir), "kaos": "local", "last_session_id": "s1"}
    assert registry_of(share) == {"work_dirs": [theirs, ours]}


# --- locks --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["share", "project"])
def mark(request: pytest.FixtureRequest, work_dir: Path, share: ShareLayout) -> Callable[[str], None]:
    """Give a function that records a last session, in each layout."""
    layout = share if request.param == "share" else PROJECT
    ensure_store(layout, work_dir, work_dir)
    return lambda session_id: set_last_session_id(layout, work_dir, work_dir, session_id)


@pytest.fixture
def lock_path(mark: Callable[[str], None], work_dir: Path, share: ShareLayout) -> Path:
    """Give the lock file that `mark` used, once it was used."""
    mark("s0")
    found = [share.share / "kimi.json.lock", work_dir / ".kimi" / ".lock"]
    found = [path for path in found if path.exists()]
    # The project's lock is also there for the store id; the share's only for its registry.
    return found[0]


def test_a_file_system_without_locks_is_said_at_once(mark: Callable[[str], None]) -> None:
    """No hang and no unlocked write: an error that names the cause."""
    with _fs.using(Fails("flock", errno.ENOLCK)), pytest.raises(LocksUnavailableError):
        mark("s1")


def test_a_killed_lock_holder_blocks_nobody(mark: Callable[[str], None], lock_path: Path) -> None:
    """The kernel frees what a dead program held."""
    script = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1], 'a')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, lock_path], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
        mark("s1")


def test_a_living_lock_holder_is_waited_for_and_then_named_busy(
    mark: Callable[[str], None], lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends; here after a moment instead of ten seconds."""
    monkeypatch.setattr("kimi_sessions._locking.StepLock.acquire.__defaults__", (0.05,))
    fd = os.open(lock_path, os.O_RDWR)
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(SessionBusyError):
            mark("s1")
    finally:
        os.close(fd)
    mark("s1")


# --- making a store -----------------------------------------------------------------------------------------


@pytest.fixture
def any_umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run under another umask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("any_umask", [0o000, 0o277], indirect=True)
@pytest.mark.parametrize("store", ["share", "project"])
def test_what_is_made_is_private_under_any_umask(
    tmp_path: Path, home: Path, any_umask: int, store: str
) -> None:
    """Folders 0700, files 0600: the store, the folders above a new share, the registry and its lock."""
    work_dir = tmp_path / "w"
    work_dir.mkdir()
    work_dir.chmod(0o755)
    layout = PROJECT if store == "project" else ShareLayout(tmp_path / "new" / "deep" / "share")
    ensure_store(layout, work_dir, work_dir)
    register_work_dir(layout, work_dir, work_dir)
    set_last_session_id(layout, work_dir, work_dir, "s1")
    made = [*work_dir.rglob("*"), *(tmp_path / "new").rglob("*"), *(home / "kimi-sessions").rglob("*")]
    made += [path for path in (home / "kimi-sessions", tmp_path / "new") if path.exists()]
    assert len(made) >= 6
    for path in made:
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_new_project_store_is_whole_and_ignored_by_git(work_dir: Path) -> None:
    """The folder for sessions, a .gitignore over everything, and a random store id."""
    assert ensure_store(PROJECT, work_dir, work_dir) == work_dir / ".kimi" / "sessions"
    assert (work_dir / ".kimi" / "sessions").is_dir()
    assert (work_dir / ".kimi" / ".gitignore").read_bytes() == b"*\n"
    found = work_dir_file(work_dir)
    assert list(found) == ["version", "store_id", "last_session_id"]
    assert found == {"version": 1, "store_id": read_store_id(work_dir), "last_session_id": None}
    assert len(found["store_id"]) >= 32


def test_making_a_store_twice_changes_nothing(work_dir: Path) -> None:
    """The store id is made once; a .gitignore with another text is someone's decision and stays."""
    ensure_store(PROJECT, work_dir, work_dir)
    (work_dir / ".kimi" / ".gitignore").write_text("sessions/\n")
    before = snapshot(work_dir)
    ensure_store(PROJECT, work_dir, work_dir)
    assert snapshot(work_dir) == before


def test_a_kimi_folder_that_was_there_gets_its_gitignore(work_dir: Path) -> None:
    """A folder made by another program is kept out of commits too."""
    (work_dir / ".kimi").mkdir()
    (work_dir / ".kimi" / "theirs").write_text("x")
    ensure_store(PROJECT, work_dir, work_dir)
    assert (work_dir / ".kimi" / ".gitignore").read_bytes() == b"*\n"
    assert (work_dir / ".kimi" / "theirs").read_text() == "x"


def test_eight_programs_make_one_store_at_once(tmp_path: Path, home: Path) -> None:
    """All of them see one store id, and one registry entry comes of it; in ten work dirs one after the other."""
    work_dirs = [tmp_path / f"w{number}" for number in range(10)]
    for work_dir in work_dirs:
        work_dir.mkdir()
    script = (
        "for number in range(10):\n"
        "    path = Path(arg, f'w{number}')\n"
        "    metadata.ensure_store(ProjectLayout(), path, path)\n"
        "    print(metadata.read_store_id(path))\n"
        "    assert metadata.register_work_dir(ProjectLayout(), path, path) == ''"
    )
    printed = at_once(script, [str(tmp_path)] * 8)
    assert printed == ["".join(f"{read_store_id(work_dir)}\n" for work_dir in work_dirs)] * 8
    assert sorted(map(str, known_paths(PROJECT))) == [str(work_dir) for work_dir in work_dirs]
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_damaged_work_dir_file_is_set_aside_and_made_anew(work_dir: Path) -> None:
    """Its bytes stay under another name; the new file has an id of its own."""
    ensure_store(PROJECT, work_dir, work_dir)
    path = PROJECT.work_dir_file_path(work_dir)
    path.write_bytes(b'{"store_id": "0123')
    assert "work_dir.json" in load_work_dir_meta(PROJECT, work_dir, work_dir).problem
    assert read_store_id(work_dir) is None
    ensure_store(PROJECT, work_dir, work_dir)
    assert read_store_id(work_dir) is not None
    assert path.with_name("work_dir.json.damaged-1").read_bytes() == b'{"store_id": "0123'


@pytest.mark.parametrize("bad", ["", "short", "A" * 32, "g" * 32, "../" * 12, 12345678901234567890, None])
def test_a_store_id_that_is_none_is_made_and_the_rest_kept(work_dir: Path, bad: object) -> None:
    """Whatever stands there and is no id is replaced; unknown keys and the last session stay."""
    ensure_store(PROJECT, work_dir, work_dir)
    value = {"version": 1, "future": 1, "store_id": bad, "last_session_id": "s1"}
    PROJECT.work_dir_file_path(work_dir).write_text(json.dumps(value))
    assert read_store_id(work_dir) is None
    ensure_store(PROJECT, work_dir, work_dir)
    assert work_dir_file(work_dir) == {**value, "store_id": read_store_id(work_dir)}
    assert read_store_id(work_dir) is not None


def test_recording_a_last_session_keeps_the_store_id(work_dir: Path) -> None:
    """One value changes, unknown keys stay."""
    ensure_store(PROJECT, work_dir, work_dir)
    before = {**work_dir_file(work_dir), "future": {"a": 1}}
    PROJECT.work_dir_file_path(work_dir).write_text(json.dumps(before))
    set_last_session_id(PROJECT, work_dir, work_dir, "s1")
    assert work_dir_file(work_dir) == {**before, "last_session_id": "s1"}


def test_a_project_without_a_store_is_not_given_one_by_recording(work_dir: Path) -> None:
    """Forgetting is nothing to do; recording is an error; no folder appears."""
    set_last_session_id(PROJECT, work_dir, work_dir, None)
    with pytest.raises(WriteError):
        set_last_session_id(PROJECT, work_dir, work_dir, "s1")
    assert os.listdir(work_dir) == []
    assert load_work_dir_meta(PROJECT, work_dir, work_dir) == WorkDirMeta(str(work_dir))


def test_a_work_dir_that_is_not_there_is_said(tmp_path: Path, home: Path) -> None:
    """No folder is made for it; a file is no work dir either."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "gone", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WorkDirNotFoundError):
            ensure_store(PROJECT, path, path)
    assert sorted(os.listdir(tmp_path)) == ["file", "home"]


def test_a_kimi_that_leads_out_of_its_project_is_refused(work_dir: Path, tmp_path: Path) -> None:
    """A repository can bring a link; nothing is written, or read, through it."""
    target = tmp_path / "other"
    make_project(target)
    (work_dir / ".kimi").symlink_to(target / ".kimi")
    before = snapshot(target)
    with pytest.raises(WriteError, match="leads out of the project"):
        ensure_store(PROJECT, work_dir, work_dir)
    with pytest.raises(WriteError, match="leads out of the project"):
        set_last_session_id(PROJECT, work_dir, work_dir, "s1")
    assert read_store_id(work_dir) is None
    assert "leads out of the project" in load_work_dir_meta(PROJECT, work_dir, work_dir).problem
    assert snapshot(target) == before


def test_a_kimi_that_is_the_project_itself_is_refused(work_dir: Path) -> None:
    """A link to the project's own root would have everything in it ignored by git."""
    (work_dir / ".kimi").symlink_to(".")
    with pytest.raises(WriteError):
        ensure_store(PROJECT, work_dir, work_dir)
    assert os.listdir(work_dir) == [".kimi"]


def test_a_kimi_that_is_a_link_inside_its_project_works(work_dir: Path, tmp_path: Path) -> None:
    """A folder of the same project under another name is the user's own arrangement, also through a link."""
    (work_dir / "data").mkdir()
    (work_dir / ".kimi").symlink_to("data")
    link = tmp_path / "link"
    link.symlink_to(work_dir)
    ensure_store(PROJECT, link, work_dir)
    set_last_session_id(PROJECT, link, work_dir, "s1")
    assert load_work_dir_meta(PROJECT, work_dir, work_dir).last_session_id == "s1"
    assert (work_dir / "data" / "sessions").is_dir()


@pytest.mark.parametrize("kind", ["file", "pipe", "dangling"])
def test_a_kimi_that_is_no_folder_is_refused(work_dir: Path, kind: str) -> None:
    """A file, a pipe, a link to nothing: one clear error, no hang, and the thing stays."""
    path = work_dir / ".kimi"
    if kind == "file":
        path.write_text("mine")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    before = snapshot(work_dir)
    with pytest.raises(WriteError, match=r"\.kimi"):
        ensure_store(PROJECT, work_dir, work_dir)
    assert snapshot(work_dir) == before
    assert read_store_id(work_dir) is None


@pytest.mark.parametrize("name", ["sessions", "work_dir.json", ".gitignore", ".lock"])
def test_links_inside_a_store_are_not_followed(work_dir: Path, tmp_path: Path, name: str) -> None:
    """Nothing outside is written through a planted link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text(json.dumps({"store_id": OTHER_ID}))
    (work_dir / ".kimi").mkdir()
    (work_dir / ".kimi" / name).symlink_to(outside if name == "sessions" else outside / "file")
    before = snapshot(outside)
    if name == ".gitignore":
        ensure_store(PROJECT, work_dir, work_dir)
    else:
        with pytest.raises(WriteError):
            ensure_store(PROJECT, work_dir, work_dir)
        assert read_store_id(work_dir) is None
    assert snapshot(outside) == before


def test_a_planted_link_for_a_share_key_is_refused(
    work_dir: Path, share: ShareLayout, tmp_path: Path
) -> None:
    """The folder of a work dir inside a share is a folder, or an error."""
    (tmp_path / "outside").mkdir()
    (share.share / "sessions").mkdir()
    share.sessions_path(work_dir).symlink_to(tmp_path / "outside")
    with pytest.raises(WriteError):
        ensure_store(share, work_dir, work_dir)
    assert known_work_dirs(share) == (
        [],
        [f"{share.sessions_path(work_dir)}: is a link and was not followed"],
    )


@pytest.mark.parametrize("call", ["open", "mkdir", "write", "fsync", "link", "replace"])
def test_a_store_that_cannot_be_written_is_one_clear_error(work_dir: Path, call: str) -> None:
    """Whatever call fails first, the error is a WriteError with the cause, and the next try works."""
    with _fs.using(Fails(call, errno.ENOSPC)), pytest.raises(WriteError) as caught:
        ensure_store(PROJECT, work_dir, work_dir)
    assert caught.value.errno == errno.ENOSPC
    assert not list(work_dir.rglob("*.tmp"))
    ensure_store(PROJECT, work_dir, work_dir)
    assert read_store_id(work_dir) is not None
    assert (work_dir / ".kimi" / ".gitignore").read_bytes() == b"*\n"


def test_a_file_made_whole_is_made_once(tmp_path: Path) -> None:
    """The second maker gets False and the first one's bytes stay, with hard links and without."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for name, code in (("linked", 0), ("written", errno.EPERM)):
            with _fs.using(Fails("link" if code else "", code)):
                assert create_whole(name, b"first", dir_fd=fd)
                assert not create_whole(name, b"second", dir_fd=fd)
            assert (tmp_path / name).read_bytes() == b"first"
    finally:
        os.close(fd)
    assert sorted(os.listdir(tmp_path)) == ["linked", "written"]


# --- all known work dirs ------------------------------------------------------------------------------------


def test_a_share_knows_its_entries_and_then_its_folders(share: ShareLayout) -> None:
    """Entries in order and once each, another kaos under its own key, then folders that no entry names."""
    put_registry(
        share,
        {
            "work_dirs": [
                {"path": "/b", "kaos": "local", "last_session_id": None},
                {"path": "/a"},
                {"path": "/b", "kaos": "ssh"},
                {"path": "/b", "kaos": "local"},
            ]
        },
    )
    unknown, far = "f" * 32, f"acp_{'0' * 32}"
    for key in (work_dir_key("/a"), unknown, far, ".hidden", "deleting~x"):
        (share.share / "sessions" / key).mkdir(parents=True)
    (share.share / "sessions" / "file").write_text("")
    ssh = f"ssh_{work_dir_key('/b')}"
    assert known_work_dirs(share) == (
        [
            KnownWorkDir(Path("/b"), work_dir_key("/b"), share.key_path(work_dir_key("/b"))),
            KnownWorkDir(Path("/a"), work_dir_key("/a"), share.key_path(work_dir_key("/a"))),
            KnownWorkDir(Path("/b"), ssh, share.key_path(ssh), "ssh"),
            KnownWorkDir(None, far, share.key_path(far), "acp"),
            KnownWorkDir(None, unknown, share.key_path(unknown)),
        ],
        [],
    )


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        "text",
        [],
        {},
        {"path": None},
        {"path": ""},
        {"path": "/a\0b"},
        {"path": "/b", "kaos": "../../x"},
        {"path": "/b", "kaos": "a/b"},
        {"path": "/b", "kaos": 1},
    ],
)
def test_a_damaged_entry_hides_no_other(share: ShareLayout, work_dir: Path, entry: object) -> None:
    """It is a problem with its index; a kaos can't lead out of the share; the others are known."""
    put_registry(share, {"work_dirs": [entry, {"path": str(work_dir), "last_session_id": "s1"}]})
    known, problems = known_work_dirs(share)
    assert [each.path for each in known] == [work_dir]
    assert len(problems) == 1
    assert "entry 0" in problems[0]
    assert load_work_dir_meta(share, work_dir, work_dir).last_session_id == "s1"


def test_old_registries_are_read(corpus: Callable[[str], Path]) -> None:
    """What the oldest and the newest client wrote is known, without a problem and without a write."""
    for version in ("0.35", "1.52.0"):
        share = ShareLayout(corpus(version))
        before = snapshot(share.share)
        entries = registry_of(share)["work_dirs"]
        known, problems = known_work_dirs(share)
        assert [str(each.path) for each in known if each.path is not None] == [e["path"] for e in entries]
        assert problems == []
        for entry in entries:
            path = Path(entry["path"])
            assert load_work_dir_meta(share, path, path).last_session_id == entry["last_session_id"]
        assert snapshot(share.share) == before


def test_our_registry_knows_projects_oldest_first_also_gone_ones(tmp_path: Path, home: Path) -> None:
    """One entry per folder whatever its spelling, the first spelling shown, and gone ones stay known."""
    first, second, link = tmp_path / "z-first", tmp_path / "a-second", tmp_path / "link"
    make_project(first)
    second.mkdir()
    link.symlink_to(second)
    ensure_store(PROJECT, link, second)
    for spelling in (link, second):
        assert register_work_dir(PROJECT, spelling, second) == ""
    shutil.rmtree(first)
    assert known_paths(PROJECT) == [first, link]
    known = known_work_dirs(PROJECT)[0]
    assert known[0].sessions_path == first / ".kimi" / "sessions"
    link.unlink()
    assert known_paths(PROJECT) == [first, second]


def test_no_registry_is_no_work_dirs(home: Path, tmp_path: Path) -> None:
    """Asking before anything was made gives nothing and makes nothing."""
    assert known_work_dirs(PROJECT) == ([], [])
    assert known_work_dirs(ShareLayout(tmp_path / "none")) == ([], [])
    assert os.listdir(home) == []


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"{}", b'{"path": "relative", "store_id": "%s"}' % OTHER_ID.encode()]
)
def test_a_damaged_entry_of_ours_hides_no_other(work_dir: Path, home: Path, raw: bytes) -> None:
    """It is a problem that names the file."""
    make_project(work_dir)
    (home / "kimi-sessions" / "work_dirs" / "bad.json").write_bytes(raw)
    known, problems = known_work_dirs(PROJECT)
    assert [each.path for each in known] == [work_dir]
    assert len(problems) == 1
    assert "bad.json" in problems[0]


@pytest.mark.parametrize("where", ["a file in the way", "no home"])
def test_a_store_works_without_a_registry(
    work_dir: Path, home: Path, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A state folder that can't be written is a problem and a warning, not an error."""
    if where == "no home":
        monkeypatch.delenv("KIMI_SESSIONS_HOME")
        monkeypatch.setenv("HOME", "not/absolute")
    else:
        (home / "kimi-sessions").write_text("")
    ensure_store(PROJECT, work_dir, work_dir)
    assert "registry" in register_work_dir(PROJECT, work_dir, work_dir)
    assert len(caplog.records) == 1
    set_last_session_id(PROJECT, work_dir, work_dir, "s1")
    assert load_work_dir_meta(PROJECT, work_dir, work_dir).last_session_id == "s1"


def test_registering_twice_writes_once(work_dir: Path, home: Path) -> None:
    """A known work dir costs one small read; unknown keys of the entry survive later changes."""
    make_project(work_dir)
    before = snapshot(home)
    register_work_dir(PROJECT, work_dir, work_dir)
    follow_move(work_dir, work_dir)
    assert snapshot(home) == before


# --- moved and copied stores --------------------------------------------------------------------------------


def test_the_registry_follows_a_project_that_moved(tmp_path: Path, home: Path) -> None:
    """The old place is forgotten, the new one known, age and unknown keys kept; reading changes nothing."""
    old, new = tmp_path / "old", tmp_path / "new"
    store_id = make_project(old)
    (entry_path,) = (home / "kimi-sessions" / "work_dirs").glob("*.json")
    entry = {**json.loads(entry_path.read_bytes()), "future": 1, "first_seen": 17.5}
    entry_path.write_text(json.dumps(entry))
    old.rename(new)
    before = snapshot(home)
    assert standing(new, new, store_id) is Standing.MOVED
    assert known_paths(PROJECT) == [old]
    assert snapshot(home) == before
    assert follow_move(new, new) == ""
    assert standing(new, new, store_id) is Standing.HERE
    assert known_paths(PROJECT) == [new]
    assert read_store_id(new) == store_id
    (entry_path,) = (home / "kimi-sessions" / "work_dirs").glob("*.json")
    found = json.loads(entry_path.read_bytes())
    assert (found["future"], found["first_seen"], found["path"]) == (1, 17.5, str(new))


def test_a_project_that_moved_and_was_cloned_anew_in_its_old_place_has_moved(
    tmp_path: Path, home: Path
) -> None:
    """The old place exists again, without the store or with another: the first store is in the new one."""
    old, new = tmp_path / "old", tmp_path / "new"
    first = make_project(old)
    old.rename(new)
    old.mkdir()
    assert standing(new, new, first) is Standing.MOVED
    second = make_project(old)
    assert second != first
    assert standing(new, new, first) is Standing.MOVED
    assert follow_move(new, new) == ""
    assert standing(new, new, first) is Standing.HERE
    assert standing(old, old, second) is Standing.HERE
    assert sorted(map(str, known_paths(PROJECT))) == [str(new), str(old)]
    assert (read_store_id(new), read_store_id(old)) == (first, second)


def test_a_copied_store_gets_an_id_of_its_own_at_its_first_write(tmp_path: Path, home: Path) -> None:
    """The original keeps its id and its place; asking or following a move does not vouch for the copy."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    store_id = make_project(original)
    set_last_session_id(PROJECT, original, original, "s1")
    shutil.copytree(original, copy)
    before = snapshot(home), snapshot(copy)
    assert standing(copy, copy, store_id) is Standing.COPY
    assert follow_move(copy, copy) == ""
    ensure_store(PROJECT, copy, copy)
    assert (snapshot(home), snapshot(copy)) == before
    assert register_work_dir(PROJECT, copy, copy) == ""
    fresh = read_store_id(copy)
    assert fresh is not None
    assert fresh != store_id
    assert standing(copy, copy, fresh) is Standing.HERE
    assert standing(copy, copy, store_id) is Standing.COPY
    assert standing(original, original, store_id) is Standing.HERE
    assert read_store_id(original) == store_id
    assert work_dir_file(copy) == {**work_dir_file(original), "store_id": fresh}


def test_of_two_copies_of_a_gone_project_one_has_moved(tmp_path: Path, home: Path) -> None:
    """The first to be written to is the project; the other one is a copy of it from then on."""
    original, one, two = tmp_path / "original", tmp_path / "one", tmp_path / "two"
    store_id = make_project(original)
    shutil.copytree(original, two)
    original.rename(one)
    follow_move(one, one)
    assert standing(two, two, store_id) is Standing.COPY
    register_work_dir(PROJECT, two, two)
    assert read_store_id(one) == store_id
    assert read_store_id(two) != store_id


def test_an_old_place_that_cannot_be_read_still_holds_its_store(tmp_path: Path, home: Path) -> None:
    """What can't be looked at is not taken for gone."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    store_id = make_project(original)
    shutil.copytree(original, copy)
    PROJECT.work_dir_file_path(original).write_bytes(b"\0\0\0")
    assert standing(copy, copy, store_id) is Standing.COPY


def test_the_same_folder_by_another_path_is_no_copy(tmp_path: Path, home: Path) -> None:
    """A project whose old path is a link to where it is now needs nothing, and keeps its id."""
    old, new = tmp_path / "old", tmp_path / "new"
    store_id = make_project(old)
    old.rename(new)
    old.symlink_to(new)
    assert standing(new, new, store_id) is Standing.HERE
    assert register_work_dir(PROJECT, new, new) == ""
    assert read_store_id(new) == store_id
    assert known_paths(PROJECT) == [old]


def test_a_link_to_another_projects_store_is_not_that_project(tmp_path: Path, home: Path) -> None:
    """A repository that brings a link to a store it guessed does not stand where that store does."""
    original, planted = tmp_path / "original", tmp_path / "planted"
    store_id = make_project(original)
    planted.mkdir()
    (planted / ".kimi").symlink_to(original / ".kimi")
    assert standing(planted, planted, store_id) is Standing.COPY


def test_a_store_nobody_knows_is_unknown_until_it_is_written_to(work_dir: Path) -> None:
    """A cloned store keeps its id (no seal of this user is for it) and is known from the first write on."""
    ensure_store(PROJECT, work_dir, work_dir)
    store_id = read_store_id(work_dir)
    assert store_id is not None
    assert standing(work_dir, work_dir, store_id) is Standing.UNKNOWN
    follow_move(work_dir, work_dir)
    assert standing(work_dir, work_dir, store_id) is Standing.UNKNOWN
    register_work_dir(PROJECT, work_dir, work_dir)
    assert standing(work_dir, work_dir, store_id) is Standing.HERE
    assert read_store_id(work_dir) == store_id


def test_a_store_that_comes_back_to_its_place_is_known(work_dir: Path) -> None:
    """A store put back from a backup, after another one had been made in its place, is at home."""
    first = make_project(work_dir)
    (work_dir / ".kimi").rename(work_dir.with_name("backup"))
    second = make_project(work_dir)
    assert first != second
    shutil.rmtree(work_dir / ".kimi")
    work_dir.with_name("backup").rename(work_dir / ".kimi")
    assert standing(work_dir, work_dir, first) is Standing.HERE
    assert register_work_dir(PROJECT, work_dir, work_dir) == ""
    assert read_store_id(work_dir) == first
    assert standing(work_dir, work_dir, second) is Standing.HERE


def test_programs_that_write_to_one_copy_at_once_agree_on_its_new_id(tmp_path: Path, home: Path) -> None:
    """The id changes once."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    store_id = make_project(original)
    shutil.copytree(original, copy)
    script = (
        "metadata.register_work_dir(ProjectLayout(), Path(arg), Path(arg))\n"
        "print(metadata.read_store_id(Path(arg)))"
    )
    printed = at_once(script, [str(copy)] * 4)
    assert printed == [f"{read_store_id(copy)}\n"] * 4
    assert read_store_id(copy) != store_id


def test_of_copies_of_a_gone_project_written_to_at_once_one_has_moved(tmp_path: Path, home: Path) -> None:
    """Exactly one keeps the id, whoever comes first; no two of them share one."""
    original = tmp_path / "original"
    store_id = make_project(original)
    copies = [tmp_path / f"copy{number}" for number in range(4)]
    for copy in copies:
        shutil.copytree(original, copy)
    shutil.rmtree(original)
    script = (
        "metadata.register_work_dir(ProjectLayout(), Path(arg), Path(arg))\n"
        "print(metadata.read_store_id(Path(arg)))"
    )
    printed = at_once(script, [str(copy) for copy in copies])
    assert printed.count(f"{store_id}\n") == 1
    assert len(set(printed)) == 4
    assert sorted(map(str, known_paths(PROJECT))) == [str(copy) for copy in copies]


def test_a_registry_that_can_t_be_made_is_named_by_its_whole_path(work_dir: Path, home: Path) -> None:
    """Whoever has to mend it needs more than the last name of its path."""
    ensure_store(PROJECT, work_dir, work_dir)
    shutil.rmtree(home / "kimi-sessions", ignore_errors=True)
    with _fs.using(Fails("mkdir", errno.EROFS)):
        problem = register_work_dir(PROJECT, work_dir, work_dir)
    assert problem.endswith(f"{os.strerror(errno.EROFS)} ({home / 'kimi-sessions' / 'work_dirs'})")


def test_the_registry_is_not_changed_without_a_lock(work_dir: Path) -> None:
    """A state folder whose file system has no locks is a problem; nothing is written there unguarded."""
    ensure_store(PROJECT, work_dir, work_dir)
    with _fs.using(Fails("flock", errno.ENOLCK)):
        assert "no file locks" in register_work_dir(PROJECT, work_dir, work_dir)
    assert known_paths(PROJECT) == []


def test_the_room_is_cheap_to_enter() -> None:
    """Neither pydantic nor asyncio nor the lookup of platform folders comes with it."""
    script = (
        "import sys\nimport kimi_sessions.metadata, kimi_sessions.trust\n"
        "print(*({'pydantic', 'asyncio', 'platformdirs', 'filelock'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
