"""
The real Kimi CLI reads and writes our sessions, and we read and write its.

Run by ``scripts/interop`` in an environment that has both. ``Theirs`` is the client's own code (its session list, its
lookup, the context it restores, the turns it counts, its fork) and, for the last checks, its own command with a model
that answers from a script. Every check stands on a share dir of its own below one temporary folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fixtures" / "corpus"
SCRATCH = Path(tempfile.mkdtemp(prefix="kimi-sessions-interop-"))
# Before either side is imported: both look their places up in the environment.
os.environ.update(
    HOME=str(SCRATCH / "home"),
    KIMI_SESSIONS_HOME=str(SCRATCH / "state"),
    KIMI_SHARE_DIR=str(SCRATCH / "share"),
)
(SCRATCH / "home").mkdir()
sys.path.insert(0, str(ROOT))

from kaos.path import KaosPath  # noqa: E402
from kimi_cli import session_fork  # noqa: E402
from kimi_cli.constant import get_version  # noqa: E402
from kimi_cli.session import Session as TheirSession  # noqa: E402
from kimi_cli.session_state import load_session_state, save_session_state  # noqa: E402
from kimi_cli.soul.context import Context  # noqa: E402
from kimi_cli.wire import types as their_wire  # noqa: E402
from kimi_cli.wire.file import WireFile as TheirWireFile  # noqa: E402
from kosong.message import Message as TheirMessage  # noqa: E402
from loguru import logger  # noqa: E402
from tests.seam import UnsyncedFs  # noqa: E402

from kimi_sessions import ProjectLayout, Session, ShareLayout  # noqa: E402
from kimi_sessions._fs import using  # noqa: E402
from kimi_sessions.check import check  # noqa: E402
from kimi_sessions.context import Message  # noqa: E402
from kimi_sessions.layout import work_dir_key  # noqa: E402
from kimi_sessions.migration import PathMap, apply_plan, plan_from_share, plan_to_share  # noqa: E402
from kimi_sessions.repair import repair  # noqa: E402
from kimi_sessions.wire import StepBegin, TextPart, ThinkPart, ToolCall, ToolResult, TurnBegin, TurnEnd  # noqa: E402

Check = Callable[["Place"], Awaitable[None]]
CHECKS: list[Check] = []


def checked(check_: Check) -> Check:
    """Put a function on the list of what is run."""
    CHECKS.append(check_)
    return check_


@dataclass
class Seen:
    """What one side makes of one session: what both must agree on."""

    title: str
    turns: list[str]
    messages: list[tuple[str, str]]


def plain(content: Any) -> str:
    """Give the text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(getattr(part, "text", "") or "" for part in content)


@dataclass
class Place:
    """A share dir and a work dir of one check."""

    share: Path
    work_dir: Path

    @property
    def layout(self) -> ShareLayout:
        """Our layout over that share dir."""
        return ShareLayout(self.share)

    # --- the real client ---

    @property
    def kaos(self) -> KaosPath:
        """The work dir as the client names it."""
        return KaosPath.unsafe_from_local_path(self.work_dir)

    async def their_list(self) -> dict[str, Seen]:
        """What the client lists, each looked up once more by its own find."""
        seen = {}
        for listed in await TheirSession.list(self.kaos):
            found = await TheirSession.find(self.kaos, listed.id)
            assert found is not None, f"listed and not found: {listed.id}"
            assert found.title == listed.title
            seen[listed.id] = await self.theirs(found)
        return seen

    async def theirs(self, session: TheirSession) -> Seen:
        """What the client makes of a session."""
        context = Context(session.context_file)
        await context.restore()
        wire = session.wire_file.path
        turns = [turn.user_text for turn in session_fork.enumerate_turns(wire)] if wire.exists() else []
        records = [record async for record in session.wire_file.iter_records()]
        for record in records:
            record.to_wire_message()
        return Seen(session.title, turns, [(m.role, plain(m.content)) for m in context.history])

    async def their_continue(self) -> str | None:
        """What the client goes on with."""
        session = await TheirSession.continue_(self.kaos)
        return None if session is None else session.id

    # --- ours ---

    async def our_list(self) -> dict[str, Seen]:
        """What we list."""
        return {s.id: await self.ours(s) for s in await Session.list(self.work_dir, layout=self.layout)}

    async def ours(self, session: Session) -> Seen:
        """What we make of a session."""
        messages = [(m.role, m.text) for m in await session.context.messages()]
        return Seen(session.title, [turn.user_text for turn in await session.turns()], messages)

    async def create(self, session_id: str, *prompts: str, layout: Any = None) -> Session:
        """Make a session of ours with a tool call in each turn."""
        session = await Session.create(self.work_dir, session_id, layout=layout or self.layout)
        await session.context.set_system_prompt("You are a test.")
        for number, prompt in enumerate(prompts):
            await self.add_turn(session, prompt, f"call_{number}")
        return session

    async def add_turn(self, session: Session, prompt: str, call_id: str) -> None:
        """Append a turn to both logs."""
        call = ToolCall(id=call_id, function={"name": "Shell", "arguments": '{"command": "ls"}'})
        value = {"is_error": False, "output": "a.txt", "message": "done", "display": []}
        await session.context.checkpoint()
        await session.context.append(
            [
                Message(role="user", content=prompt),
                Message(
                    role="assistant",
                    content=[ThinkPart(think="hm"), TextPart(text="let me see")],
                    tool_calls=[call],
                ),
                Message(role="tool", content="a.txt", tool_call_id=call_id),
                Message(role="assistant", content=f"answer to {prompt}"),
            ]
        )
        await session.context.set_usage(1234)
        await session.wire_file.append_many(
            [
                TurnBegin(user_input=prompt),
                StepBegin(n=1),
                ThinkPart(think="hm"),
                TextPart(text="let me see"),
                call,
                ToolResult(tool_call_id=call_id, return_value=value),
                StepBegin(n=2),
                TextPart(text=f"answer to {prompt}"),
                TurnEnd(),
            ]
        )

    async def agree(self) -> dict[str, Seen]:
        """Require that both sides see the same sessions, and give them."""
        ours, theirs = await self.our_list(), await self.their_list()
        assert ours == theirs, f"ours {ours}\ntheirs {theirs}"
        return ours


def digests(root: Path) -> dict[str, str]:
    """Map every file below a folder to its hash."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


# --- ours, read by the client -------------------------------------------------------------------------------------


@checked
async def what_we_create_and_append_is_listed_found_and_continued(place: Place) -> None:
    """Same ids, titles, turns and messages; the last one we wrote to is the one it goes on with."""
    await place.create("first", "Hello", "And once more")
    await place.create("zweite", "你好，世界 👩‍👩‍👧 \u2028 end", "multi\nline")
    seen = await place.agree()
    assert seen["first"].turns == ["Hello", "And once more"]
    assert len(seen["first"].messages) == 8
    assert await place.their_continue() == "zweite"


@checked
async def what_we_fork_stands_beside_its_source(place: Place) -> None:
    """A cut fork and a whole one are complete sessions to the client."""
    session = await place.create("source", "one", "two", "three")
    cut, whole = await session.fork(1), await session.fork()
    seen = await place.agree()
    assert seen[cut.id].turns == ["one", "two"]
    assert seen[cut.id].messages == seen["source"].messages[:8]
    assert seen[whole.id].messages == seen["source"].messages
    assert seen[cut.id].title.startswith("Fork: ")


@checked
async def what_we_rename_archive_tag_and_pin_is_so_there(place: Place) -> None:
    """Title and archive reach it; our own notes are in a file it leaves alone."""
    session = await place.create("one", "hello")
    await session.rename("A title of my own")
    await session.archive()
    await session.tag("keep")
    await session.pin()
    seen = await place.agree()
    assert seen["one"].title == "A title of my own"
    found = await TheirSession.find(place.kaos, "one")
    assert found is not None
    assert found.state.archived
    assert found.state.title_generated
    found.state.plan_mode = True
    found.save_state()
    again = await Session.find(place.work_dir, "one", layout=place.layout)
    assert again is not None
    assert (again.title, again.archived, again.tags, again.pinned) == (
        "A title of my own",
        True,
        ("keep",),
        True,
    )
    assert again.state.plan_mode


@checked
async def what_we_trash_is_gone_there_and_what_we_restore_is_back(place: Place) -> None:
    """The trash is out of its sight."""
    session = await place.create("one", "hello")
    await place.create("two", "hello again")
    before = await place.agree()
    await session.trash()
    assert set(await place.agree()) == {"two"}
    await Session.restore(place.work_dir, "one", layout=place.layout)
    assert await place.agree() == before


@checked
async def what_we_repair_it_reads_whole(place: Place) -> None:
    """After a cut in both logs and a repair, both sides read every whole record and what comes after."""
    session = await place.create("one", "hello")
    for name in ("context.jsonl", "wire.jsonl"):
        with (session.path / name).open("ab") as log:
            log.write(b'{"role": "user", "cont' if name == "context.jsonl" else b'{"timestamp": 17')
    await place.add_turn(session, "after the crash", "call_9")
    fresh = await Session.find(place.work_dir, "one", layout=place.layout)
    assert fresh is not None
    await repair(fresh)
    fresh = await Session.find(place.work_dir, "one", layout=place.layout)
    assert fresh is not None
    assert not (await check(fresh)).findings
    seen = await place.agree()
    assert seen["one"].turns == ["hello", "after the crash"]
    assert len(seen["one"].messages) == 8


@checked
async def what_we_clear_and_take_back_it_reads_as_we_do(place: Place) -> None:
    """A revert and a clear leave a context that both read alike."""
    session = await place.create("one", "hello", "second")
    await session.context.revert_to(1)
    assert len((await place.agree())["one"].messages) == 4
    await session.context.clear()
    assert (await place.agree())["one"].messages == []


@checked
async def what_we_migrate_into_its_share_dir_it_lists(place: Place) -> None:
    """Out of a project, with everything that it holds."""
    session = await place.create("from-project", "hello", "there", layout=ProjectLayout())
    await session.rename("Made in the project")
    apply_plan(plan_to_share(place.layout, place.work_dir))
    seen = await place.agree()
    assert seen["from-project"] == await place.ours(session)
    assert await place.their_continue() == "from-project"


@checked
async def old_sessions_come_back_from_a_project_as_they_went(place: Place) -> None:
    """Every version's share dir, into projects and into an empty share dir: the client lists all that it did before."""
    for source in sorted(CORPUS.iterdir()):
        projects = place.work_dir / source.name
        entries = json.loads((source / "share" / "kimi.json").read_bytes())["work_dirs"]
        there = PathMap([(f"/home/dev/{source.name}", str(projects))])
        back = PathMap([(str(projects), f"/home/dev/{source.name}")])
        for entry in entries:
            (projects / Path(entry["path"]).name).mkdir(parents=True, exist_ok=True)
        target = ShareLayout(place.share / source.name)
        with using(UnsyncedFs()):
            apply_plan(plan_from_share(ShareLayout(source / "share"), None, paths=there))
            for entry in entries:
                apply_plan(plan_to_share(target, projects / Path(entry["path"]).name, paths=back))
        copy = place.share / f"{source.name}-copy"
        shutil.copytree(source / "share", copy)
        for entry in entries:
            kaos = KaosPath.unsafe_from_local_path(Path(entry["path"]))
            os.environ["KIMI_SHARE_DIR"] = str(copy)
            # Its own answer, without the old rotations that it takes for sessions.
            was = {s.id: s.title for s in await TheirSession.list(kaos)}
            folder = target.sessions_path(Path(entry["path"]))
            was = {
                n: t for n, t in was.items() if "_" not in n or not (folder / n.partition("_")[0]).is_dir()
            }
            os.environ["KIMI_SHARE_DIR"] = str(target.share)
            now = {s.id: s.title for s in await TheirSession.list(kaos)}
            assert now.items() >= was.items(), f"{source.name}: {was.items() - now.items()}"
            # More than before are only the folders it could not see, which held a wire log and no context.
            for name in now.keys() - was.keys():
                assert (folder / name / "wire.jsonl").stat().st_size, f"{source.name}: {name}"


# --- the client's, read by us -------------------------------------------------------------------------------------


@checked
async def what_it_writes_into_our_session_we_read(place: Place) -> None:
    """Records and messages that its own code appends, a fork and a title of its making."""
    await place.create("one", "hello")
    found = await TheirSession.find(place.kaos, "one")
    assert found is not None
    context = Context(found.context_file)
    await context.restore()
    await context.checkpoint(add_user_message=False)
    await context.append_message(TheirMessage(role="user", content="from the client"))
    await context.update_token_count(99)
    wire = TheirWireFile(found.wire_file.path)
    for message in (
        their_wire.TurnBegin(user_input="from the client"),
        their_wire.TextPart(text="ok"),
        their_wire.TurnEnd(),
    ):
        await wire.append_message(message)
    state = load_session_state(found.dir)
    state.custom_title = "The client's title"
    save_session_state(state, found.dir)
    fork = await session_fork.fork_session(found.dir, place.kaos, turn_index=0, source_title="one")
    seen = await place.agree()
    assert seen["one"].turns == ["hello", "from the client"]
    assert seen["one"].messages[-1] == ("user", "from the client")
    assert seen["one"].title == "The client's title"
    assert seen[fork].turns == ["hello"]
    ours = await Session.find(place.work_dir, "one", layout=place.layout)
    assert ours is not None
    assert ours.context.history.token_count == 99
    assert ours.problems == []


@checked
async def its_titles_and_our_changes_do_not_undo_each_other(place: Place) -> None:
    """Loaded before its write, saved after it: both changes are there."""
    session = await place.create("one", "hello")
    session.state.plan_mode = True
    found = await TheirSession.find(place.kaos, "one")
    assert found is not None
    state = load_session_state(found.dir)
    state.custom_title, state.title_generated = "Meanwhile", True
    save_session_state(state, found.dir)
    session.save_state()
    after = load_session_state(found.dir)
    assert (after.custom_title, after.plan_mode) == ("Meanwhile", True)


@checked
async def its_cleaning_up_does_not_touch_ours(place: Place) -> None:
    """An empty session of its own goes; every file of ours is as it was, and none of them is empty to it."""
    session = await place.create("one", "hello")
    titled = await place.create("titled")
    await titled.rename("Only a title")
    await session.wire_file.append_message(TurnBegin(user_input="more"))
    before = digests(place.share / "sessions")
    for found in await TheirSession.list(place.kaos):
        assert not found.is_empty(), found.id
    fresh = await TheirSession.create(place.kaos)
    assert fresh.is_empty()
    await fresh.delete()
    assert digests(place.share / "sessions") == before


# --- the client's command -----------------------------------------------------------------------------------------

_COMMAND = "import sys; from kimi_cli.cli import cli; cli(args=sys.argv[1:], prog_name='kimi')"


def run_client(place: Place, *args: str, answer: str) -> None:
    """Run the client's command in print mode, with a model that gives one answer."""
    scripts = place.share.parent / "scripts.json"
    scripts.write_text(json.dumps([f"text: {answer}"]))
    config = {
        "default_model": "scripted",
        "telemetry": False,
        "models": {"scripted": {"provider": "scripted", "model": "scripted", "max_context_size": 100_000}},
        "providers": {
            "scripted": {"type": "_scripted_echo", "base_url": "http://localhost", "api_key": "none"}
        },
    }
    done = subprocess.run(
        [
            sys.executable, "-c", _COMMAND, "--print", "--yolo", "--config", json.dumps(config),
            "--work-dir", str(place.work_dir), *args,
        ],
        env={**os.environ, "KIMI_SCRIPTED_ECHO_SCRIPTS": str(scripts), "_TYPER_STANDARD_TRACEBACK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip
    last_words = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
    assert done.returncode == 0, f"the client ended with {done.returncode}:\n{last_words}"


@checked
async def its_command_goes_on_with_our_session_and_we_with_its(place: Place) -> None:
    """`kimi -r`, then `kimi --continue`, then a turn of ours: one conversation, whole on both sides."""
    session = await place.create("ours", "hello")
    await session.tag("keep")
    await place.create("other", "not this one")
    other = digests(place.share / "sessions" / work_dir_key(str(place.work_dir)) / "other")
    run_client(place, "--session", "ours", "--prompt", "What now?", answer="an answer by the client")
    seen = await place.agree()
    assert seen["ours"].turns == ["hello", "What now?"]
    assert seen["ours"].messages[-1] == ("assistant", "an answer by the client")
    assert await place.their_continue() == "ours"
    last = await Session.continue_(place.work_dir, layout=place.layout)
    assert last is not None
    assert (last.id, last.tags, last.problems) == ("ours", ("keep",), [])
    await place.add_turn(last, "and we go on", "call_8")
    run_client(place, "--continue", "--prompt", "And now?", answer="the last word")
    seen = await place.agree()
    assert seen["ours"].turns == ["hello", "What now?", "and we go on", "And now?"]
    assert digests(place.share / "sessions" / work_dir_key(str(place.work_dir)) / "other") == other


# ------------------------------------------------------------------------------------------------------------------


def main() -> int:
    """Run all checks (or those whose names hold one of the words given) and say how each went."""
    logger.remove()
    print(f"kimi-cli {get_version()} on Python {sys.version.split()[0]}")
    words = sys.argv[1:]
    failed = 0
    for number, check_ in enumerate(CHECKS):
        if words and not any(word in check_.__name__ for word in words):
            continue
        place = Place(SCRATCH / f"check-{number}" / "share", SCRATCH / f"check-{number}" / "work dir")
        place.work_dir.mkdir(parents=True)
        place.share.mkdir()
        os.environ["KIMI_SHARE_DIR"] = str(place.share)
        begun = time.monotonic()
        try:
            asyncio.run(check_(place))
        except Exception as error:  # noqa: BLE001 - one check must not keep the others from being run
            failed += 1
            import traceback

            print(f"FAILED  {check_.__name__.replace('_', ' ')}")
            traceback.print_exception(error)
        else:
            print(f"ok      {check_.__name__.replace('_', ' ')} ({time.monotonic() - begun:.1f} s)")
    if failed:
        print(f"{failed} checks failed; what they stood on is in {SCRATCH}")
        return 1
    shutil.rmtree(SCRATCH)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
