"""`kimi-sessions migrate` as a person, and as a script, uses it."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Make, Run, Shell


@pytest.fixture
def share(corpus: Callable[[str], Path]) -> Path:
    """Give a share dir of the flat era, with five work dirs."""
    return corpus("0.58")


PROJ_A = "/home/dev/0.58/proj-a"


def test_a_dry_run_says_what_would_go_where_and_changes_nothing(
    run: Run, share: Path, work_dir: Path
) -> None:
    """The plan names each session; neither side is touched."""
    done = run(
        "--share-dir",
        str(share),
        "-w",
        str(work_dir),
        "migrate",
        "--map",
        f"{PROJ_A}={work_dir}",
        "--dry-run",
    )
    assert done.code == 0
    assert f"{PROJ_A} -> {work_dir}: 11 to add" in done.out
    assert "b83287da-fec9-44a6-bc6e-e6d628357ce1" in done.out
    assert "nothing was changed" in done.out
    assert "2 more work dirs" in done.out
    assert os.listdir(work_dir) == []
    assert not (share / "migration").exists()


def test_sessions_come_into_the_project_and_are_listed_there(run: Run, share: Path, work_dir: Path) -> None:
    """Afterwards the project's list is the old client's; a second time there is nothing to do."""
    args = ("--share-dir", str(share), "-w", str(work_dir), "migrate", "--map", f"{PROJ_A}={work_dir}")
    done = run(*args)
    assert (done.code, done.err) == (0, "")
    assert "11 added" in done.out
    assert "16 files" in done.out
    (report,) = (work_dir / ".kimi" / "migration").glob("report-*.json")
    assert f"report: {report}" in done.out
    listed = run("-w", str(work_dir), "list", "--json").data
    assert len(listed["sessions"]) == 11
    assert listed["problems"] == []
    assert all(session["trusted"] for session in listed["sessions"])
    again = run(*args)
    assert again.code == 0
    assert "11 already there" in again.out
    assert len(list((work_dir / ".kimi" / "migration").glob("report-*.json"))) == 1


def test_json_tells_every_file_and_every_record_by_type(run: Run, share: Path, work_dir: Path) -> None:
    """The document on stdout is the report, dry or not."""
    args = (
        "--share-dir",
        str(share),
        "-w",
        str(work_dir),
        "--json",
        "migrate",
        "--map",
        f"{PROJ_A}={work_dir}",
    )
    dry = run(*args, "--dry-run").data
    assert (dry["dry_run"], dry["totals"]["sessions"], dry["totals"]["planned"]) == (True, 11, 11)
    done = run(*args)
    assert done.code == 0
    data = done.data
    assert (data["totals"]["added"], data["totals"]["not_carried"], data["not_carried"]) == (11, 0, [])
    (place,) = data["work_dirs"]
    sessions = {session["id"]: session for session in place["sessions"]}
    subagents = sessions["b83287da-fec9-44a6-bc6e-e6d628357ce1"]
    assert sorted(name for name, _, _ in subagents["files"]) == [
        "context.jsonl",
        "context_sub_1.jsonl",
        "context_sub_2.jsonl",
        "context_sub_3.jsonl",
    ]
    assert all(len(digest) == 64 for _, _, digest in subagents["files"])
    assert subagents["records"]["context.jsonl"]["user"] == 2
    kept = json.loads(Path(data["reports"][0]).read_bytes())
    assert kept["work_dirs"] == data["work_dirs"]


def test_all_work_dirs_at_once_and_what_can_not_go_is_named(run: Run, share: Path, tmp_path: Path) -> None:
    """A work dir that is gone is no reason to be silent: exit 5, and the way to place it."""
    (tmp_path / "dev" / "proj-a").mkdir(parents=True)
    done = run("--share-dir", str(share), "migrate", "--all-dirs", "--map", f"/home/dev/0.58={tmp_path}/dev")
    assert done.code == 5
    assert f"{PROJ_A} -> {tmp_path}/dev/proj-a: 11 added" in done.out
    assert "3 sessions of /home/dev/0.58/proj-c-live can't go" in done.err
    assert "--map OLD=NEW" in done.err
    assert (tmp_path / "dev" / "proj-a" / ".kimi").is_dir()
    nowhere = run("--share-dir", str(share), "migrate", "--all-dirs", "--dry-run")
    assert "0 of 18 sessions, 0 bytes; nothing was changed" in nowhere.out
    made = run(
        "--share-dir",
        str(share),
        "migrate",
        "--all-dirs",
        "--make-dirs",
        "--map",
        f"/home/dev/0.58={tmp_path}/dev",
    )
    assert made.code == 0
    assert sorted(os.listdir(tmp_path / "dev")) == ["proj b ünïcode 项目", "proj-a", "proj-c-live"]


def test_a_report_takes_a_run_back(run: Run, share: Path, work_dir: Path) -> None:
    """What has changed since is left and named; the rest is gone."""
    args = ("--share-dir", str(share), "-w", str(work_dir), "migrate")
    run(*args, "--map", f"{PROJ_A}={work_dir}")
    (report,) = (work_dir / ".kimi" / "migration").glob("report-*.json")
    run("-w", str(work_dir), "rename", "b83287da", "mine now")
    looked = run("migrate", "--rollback", str(report), "--dry-run")
    assert looked.code == 5
    assert len(os.listdir(work_dir / ".kimi" / "sessions")) == 11
    done = run("migrate", "--rollback", str(report))
    assert done.code == 5
    assert "10 taken away, 1 left as they are" in done.out
    assert "b83287da" in done.err
    assert [s["title"] for s in run("-w", str(work_dir), "list", "--json").data["sessions"]] == ["mine now"]
    missing = run("migrate", "--rollback", str(work_dir / "none.json"), "--json")
    assert missing.code == 3
    assert "there is no such report" in missing.err


def test_a_session_goes_to_kimi_clis_store_and_comes_home(
    run: Run, make: Make, work_dir: Path, tmp_path: Path
) -> None:
    """What was made here is in the share dir's list, registered and without our seal."""
    session = make("Hello from the project")
    share = tmp_path / "share"
    share.mkdir()
    done = run("--share-dir", str(share), "-w", str(work_dir), "migrate", "--to-share")
    assert (done.code, done.err) == (0, "")
    listed = run("--share-dir", str(share), "-w", str(work_dir), "list", "--json").data["sessions"]
    assert [(each["id"], each["title"]) for each in listed] == [(session.id, "Hello from the project")]
    assert json.loads((share / "kimi.json").read_bytes())["work_dirs"][0] == {
        "path": str(work_dir),
        "kaos": "local",
        "last_session_id": session.id,
    }
    assert not list(share.rglob("seal.json"))
    back = run("--share-dir", str(share), "-w", str(work_dir), "migrate")
    assert "1 already there" in back.out


def test_an_unsealed_session_does_not_get_into_kimi_clis_store(
    run: Run, make: Make, work_dir: Path, tmp_path: Path
) -> None:
    """A session that came with a cloned repository would there be the user's own, with all it allows itself."""
    session = make("planted")
    (session.path / "seal.json").unlink()
    (session.path / "state.json").write_text('{"approval": {"yolo": true}}')
    (tmp_path / "share").mkdir()
    done = run("--share-dir", str(tmp_path / "share"), "-w", str(work_dir), "migrate", "--to-share")
    assert done.code == 5
    assert "not sealed as yours" in done.err
    assert not list(tmp_path.joinpath("share").rglob("state.json"))


def test_a_folder_without_a_name_gets_a_hint_where_it_belongs(run: Run, share: Path, tmp_path: Path) -> None:
    """The key, and the path whose hash it is where a record names that."""
    work_dir = tmp_path / "found"
    work_dir.mkdir()
    from kimi_sessions.layout import work_dir_key

    folder = share / "sessions" / work_dir_key(str(work_dir)) / "one"
    folder.mkdir(parents=True)
    (folder / "context.jsonl").write_text(json.dumps({"role": "user", "content": f"cd {work_dir}"}) + "\n")
    done = run("--share-dir", str(share), "migrate", "--all-dirs", "--dry-run")
    key = work_dir_key(str(work_dir))
    assert f"hint: records of it name {work_dir}: --map {key}={work_dir}" in done.err
    assert (
        run("--share-dir", str(share), "-w", str(tmp_path), "migrate", "--map", f"{key}={work_dir}").code == 0
    )
    assert (work_dir / ".kimi" / "sessions" / "one").is_dir()


def test_flux_data_becomes_sessions_with_their_messages_times_and_usage(
    run: Run, tmp_path: Path, work_dir: Path
) -> None:
    """Snapshots are turned into logs; checkpoints and the memory lie beside them byte for byte."""
    data = tmp_path / "flux"
    for name in ("sessions", "checkpoints"):
        (data / name).mkdir(parents=True)
    snapshot = {
        "session_id": "s-1",
        "created_at": "2025-01-02T03:04:05.250000+00:00",
        "updated_at": "2025-01-02T04:00:00+00:00",
        "turn_count": 1,
        "messages": [
            {"role": "system", "content": "You are Flux"},
            {"role": "user", "content": "List files"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": {"p": "."}}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
            {"role": "assistant", "content": "One file 📄"},
        ],
        "total_usage": {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "cached_tokens": 30,
        },
    }
    (data / "sessions" / "s-1.json").write_text(json.dumps(snapshot, indent=2))
    (data / "checkpoints" / "s-1_20250102_033000.json").write_text(json.dumps(snapshot))
    (data / "checkpoints" / "gone_20250102_033000.json").write_text(
        json.dumps({**snapshot, "session_id": "gone"})
    )
    (data / "user_memory.json").write_text('{"entries": {"name": "Ada"}}')
    done = run("-w", str(work_dir), "migrate", "--from-flux", str(data))
    assert done.code == 0
    listed = {s["id"]: s for s in run("-w", str(work_dir), "list", "--json").data["sessions"]}
    assert listed["s-1"]["title"] == "List files"
    assert listed["s-1"]["created_at_iso"] == "2025-01-02T03:04:05.250Z"
    assert listed["s-1"]["updated_at_iso"] == "2025-01-02T04:00:00.000Z"
    assert set(listed) == {"s-1", "gone"}
    folder = work_dir / ".kimi" / "sessions" / "s-1"
    roles = [json.loads(line)["role"] for line in (folder / "context.jsonl").read_text().splitlines()]
    assert roles == ["_system_prompt", "user", "assistant", "tool", "assistant"]
    wire = (folder / "wire.jsonl").read_text()
    assert (
        '"token_usage":{"input_other":70,"output":20,"input_cache_read":30,"input_cache_creation":0}' in wire
    )
    for kept in ("sessions/s-1.json", "checkpoints/s-1_20250102_033000.json", "user_memory.json"):
        assert (folder / "imported" / kept).read_bytes() == (data / kept).read_bytes()
    shown = run("-w", str(work_dir), "show", "s-1").out
    assert "List files" in shown
    assert "One file 📄" in shown
    assert run("-w", str(work_dir), "doctor", "s-1").code == 0
    assert "2 already there" in run("-w", str(work_dir), "migrate", "--from-flux", str(data)).out


def test_a_flux_database_is_read_and_not_so_much_as_locked(run: Run, tmp_path: Path, work_dir: Path) -> None:
    """Every session_id of the table is a session, with each message's own time; the file and its log are untouched."""
    path = tmp_path / "flux.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE messages (session_id, role, content, metadata, created_at)")
    connection.executemany(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
        [
            ("chat", "user", "first question", '{"lang": "en"}', "2025-03-04 05:06:07"),
            ("chat", "assistant", "answer", None, "2025-03-04 05:06:09"),
            ("a/b", "user", "second chat", None, 1741000000),
            ("chat", "critic", "?", None, "2025-03-04 05:06:10"),
        ],
    )
    connection.commit()
    before = {
        name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name.startswith("flux")
    }
    done = run("-w", str(work_dir), "migrate", "--from-flux", str(path))
    after = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name.startswith("flux")}
    connection.close()
    assert after == before
    assert done.code == 5
    assert "its role is 'critic'; its bytes are in imported/" in done.err
    listed = {s["title"]: s for s in run("-w", str(work_dir), "list", "--json").data["sessions"]}
    assert listed["first question"]["updated_at_iso"] == "2025-03-04T05:06:09.000Z"
    assert listed["second chat"]["id"].startswith("flux-")
    folder = work_dir / ".kimi" / "sessions" / "chat"
    message = json.loads((folder / "context.jsonl").read_text().splitlines()[0])
    assert message["metadata"] == {"lang": "en"}
    assert len((folder / "imported" / "messages.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("what", ["missing", "empty-folder", "text", "other-database"])
def test_what_is_not_flux_data_is_said_to_be_none(
    run: Run, tmp_path: Path, work_dir: Path, what: str
) -> None:
    """A clear line and nothing written."""
    path = tmp_path / what
    if what == "empty-folder":
        path.mkdir()
    elif what == "text":
        path.write_text("hello")
    elif what == "other-database":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE other (x)")
        connection.commit()
        connection.close()
    done = run("-w", str(work_dir), "migrate", "--from-flux", str(path))
    assert done.code == (5 if what == "other-database" else 3)
    assert len(done.err.splitlines()) == 1
    assert os.listdir(work_dir) == []


def test_a_share_dir_that_is_not_there_is_named(run: Run, work_dir: Path, home: Path) -> None:
    """The default one too, with the option that names another."""
    done = run("-w", str(work_dir), "migrate")
    assert done.code == 3
    assert "--share-dir" in done.err
    assert run("--share-dir", str(home / "none"), "-w", str(work_dir), "migrate").code == 3


def test_half_a_map_is_wrong_usage(run: Run, share: Path) -> None:
    """OLD without NEW means nothing."""
    assert run("--share-dir", str(share), "migrate", "--map", "/only/old").code == 2
    assert run("--share-dir", str(share), "migrate", "--from-flux", "x", "--to-share").code == 2


def test_a_project_that_can_not_be_written_is_one_line_and_exit_7(
    run: Run, share: Path, work_dir: Path
) -> None:
    """Where the store should be stands a file; nothing of it is touched."""
    (work_dir / ".kimi").write_text("a file")
    done = run("--share-dir", str(share), "-w", str(work_dir), "migrate", "--map", f"{PROJ_A}={work_dir}")
    assert done.code == 7
    assert len(done.err.splitlines()) == 1
    assert "11 sessions" in done.err
    assert (work_dir / ".kimi").read_text() == "a file"


def test_a_pipe_gets_no_progress_bar(shell: Shell, share: Path, work_dir: Path) -> None:
    """Progress is for terminals; what is made is private under any umask."""
    done = shell("--share-dir", str(share), "-w", str(work_dir), "migrate", "--map", f"{PROJ_A}={work_dir}")
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    for path in (work_dir / ".kimi").rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
