"""Every file of a session and of its store, cut at every length, as a crash may leave it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.seam import UnsyncedFs
from tests.stores import said, say, snapshot, strays, told, write

from kimi_sessions import ContextFile, Layout, ProjectLayout, Session, ShareLayout, WireFile, WriteError
from kimi_sessions._fs import using
from kimi_sessions.wire import TurnBegin


def whole_lines(data: bytes, cut: int) -> int:
    """Count the lines of ``data`` that are whole in its first ``cut`` bytes, the last one's newline left aside."""
    ends = [at for at, byte in enumerate(data) if byte == 0x0A]
    return sum(end <= cut for end in ends)


async def test_a_wire_log_cut_anywhere_keeps_what_was_whole_and_takes_the_next_record(tmp_path: Path) -> None:
    """Whole records are read, the next one is read, and no byte of the torn rest goes away."""
    path = tmp_path / "wire.jsonl"
    log = WireFile(path)
    for text in ("one", "zwei é 漢字 🎈", 'three "}{" \n'):
        await log.append_message(TurnBegin(user_input=text), timestamp=1.5)
    data = path.read_bytes()
    texts = ["one", "zwei é 漢字 🎈", 'three "}{" \n']
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        log = WireFile(path)
        expected = texts[: max(whole_lines(data, cut) - 1, 0)]
        assert [r.message.payload["user_input"] async for r in log.iter_records()] == expected, cut
        await log.append_message(TurnBegin(user_input="next"))
        found = [r.message.payload["user_input"] async for r in WireFile(path).iter_records()]
        assert found == [*expected, "next"], cut
        assert path.read_bytes().startswith(data[:cut]), cut
        log.close()


async def test_a_context_cut_anywhere_keeps_what_was_whole_and_takes_the_next_message(tmp_path: Path) -> None:
    """The same of the context, whose facts (system prompt, checkpoints) come from what is whole."""
    path = tmp_path / "context.jsonl"
    context = ContextFile(path)
    await context.set_system_prompt("Be brief. 简短")
    await context.append({"role": "user", "content": "eins é 漢字"})
    assert await context.checkpoint() == 0
    await context.append({"role": "assistant", "content": "two"})
    data = path.read_bytes()
    # A message counts once its line is whole: lines 2 and 4 are messages, 1 the prompt, 3 the checkpoint.
    messages = {0: [], 1: [], 2: ["eins é 漢字"], 3: ["eins é 漢字"], 4: ["eins é 漢字", "two"]}
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = whole_lines(data, cut)
        context = ContextFile(path)
        assert [message.text for message in await context.messages()] == messages[whole], cut
        assert (context.history.system_prompt is not None) == (whole >= 1), cut
        assert context.history.next_checkpoint_id == (1 if whole >= 3 else 0), cut
        await context.append({"role": "user", "content": "next"})
        found = [message.text for message in await ContextFile(path).messages()]
        assert found == [*messages[whole], "next"], cut
        assert [message.text for message in await ContextFile(path).messages(limit=1)] == ["next"], cut
        assert path.read_bytes().startswith(data[:cut]), cut
        context.close()


@pytest.mark.parametrize("layout_name", ["project", "share"])
async def test_a_session_with_a_wire_log_cut_anywhere_is_listed_and_goes_on(
    work_dir: Path, home: Path, layout_name: str
) -> None:
    """Find, list and turns agree on the torn log, and the session takes its next turn."""
    layout: Layout = ProjectLayout() if layout_name == "project" else ShareLayout(home / ".kimi")
    session = await Session.create(work_dir, "torn", layout=layout)
    await write(session, ["one", "two"])
    await session.tag("kept")  # so that it is listed also when nothing is left of the log
    await session.close()
    path = session.path / "wire.jsonl"
    data = path.read_bytes()
    with using(UnsyncedFs()):
        for cut in range(len(data) + 1):
            path.write_bytes(data[:cut])
            expected = ["one", "two"][: max(whole_lines(data, cut) - 1, 0)]
            [listed] = await Session.list(work_dir, layout=layout)
            assert listed.title == (expected[0] if expected else "Untitled"), cut
            assert [turn.user_text for turn in await listed.turns()] == expected, cut
            await write(listed, ["next"])
            assert await told(listed) == [*expected, "next"], cut
            await listed.close()


DOCUMENTS = ("state.json", "session.json", "seal.json")


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_a_document_cut_anywhere_does_not_keep_a_session_from_working(
    work_dir: Path, name: str
) -> None:
    """The session is listed with its records; the next save writes a whole document and keeps the cut one."""
    session = await Session.create(work_dir, "cut")
    await write(session, ["one"])
    await say(session, ["uno"])
    await session.rename("A title é")
    await session.tag("first")
    await session.close()
    path = session.path / name
    data = path.read_bytes()
    with using(UnsyncedFs()):
        for cut in range(len(data) + 1):
            for kept in session.path.glob("*.damaged-*"):
                kept.unlink()
            path.write_bytes(data[:cut])
            [found] = await Session.list(work_dir)
            assert (await told(found), await said(found)) == (["one"], ["uno"]), cut
            assert found.state is not None
            assert snapshot(session.path)[name] == data[:cut], f"reading changed {name} cut at {cut}"
            whole = cut >= len(data.rstrip())
            assert bool(found.problems) == (not whole), cut
            found.state.plan_slug = f"plan-{cut}"
            found.save_state()
            await found.tag(f"tag-{cut}")
            again = await Session.find(work_dir, "cut")
            assert again is not None
            assert again.state.plan_slug == f"plan-{cut}"
            assert f"tag-{cut}" in again.tags
            kept_bytes = [kept.read_bytes() for kept in session.path.glob(f"{name}.damaged-*")]
            if name == "seal.json":
                # A damaged seal is not made good by a save: that would vouch for what nobody looked at.
                assert path.read_bytes() == data[:cut]
                assert again.trusted == whole
            else:
                assert kept_bytes == ([] if whole or cut == 0 else [data[:cut]]), cut
            assert strays(work_dir) == []
            await found.close()


async def test_a_store_document_cut_anywhere_does_not_hide_a_session(work_dir: Path) -> None:
    """work_dir.json cut at any length: sessions are continued and take changes, and new ones can be made."""
    session = await Session.create(work_dir, "old")
    await write(session, ["one"])
    await session.close()
    path = work_dir / ".kimi" / "work_dir.json"
    data = path.read_bytes()
    with using(UnsyncedFs()):
        for cut in range(len(data) + 1):
            path.write_bytes(data[:cut])
            going_on = await Session.continue_(work_dir)
            assert going_on is not None
            assert going_on.id == "old"
            [found] = await Session.list(work_dir)
            assert (await told(found))[0] == "one"
            assert found.trusted
            found.state.approval.yolo = not found.state.approval.yolo
            found.save_state()
            await write(found, [f"cut {cut}"])
            made = await Session.create(work_dir, f"new-{cut}")
            assert made.trusted, made.problems
            again = await Session.find(work_dir, "old")
            assert again is not None
            assert again.trusted
            assert again.state.approval.yolo == found.state.approval.yolo
            assert (await told(again))[-1] == f"cut {cut}"
            await made.delete()
            await found.close()


async def test_a_cut_kimi_json_is_never_replaced_and_keeps_nobody_from_working(
    work_dir: Path, home: Path
) -> None:
    """The client's registry, damaged: sessions are read, made and written; the damaged file keeps its bytes."""
    layout = ShareLayout(home / ".kimi")
    session = await Session.create(work_dir, "old", layout=layout)
    await write(session, ["one"])
    await session.close()
    path = home / ".kimi" / "kimi.json"
    data = path.read_bytes()
    with using(UnsyncedFs()):
        for cut in range(1, len(data)):
            path.write_bytes(data[:cut])
            [found] = await Session.list(work_dir, layout=layout)
            assert (await told(found))[0] == "one"
            await write(found, [f"cut {cut}"])
            assert (await told(found))[-1] == f"cut {cut}"
            assert [each.id for each in await Session.list_all(layout=layout)] == ["old"]
            made = await Session.create(work_dir, f"new-{cut}", layout=layout)
            assert any("kimi.json" in str(problem) for problem in made.problems), made.problems
            await write(made, ["new"])
            await made.trash()
            with pytest.raises(WriteError):
                found.mark_last()
            assert path.read_bytes() == data[:cut]
            await found.close(ok=False)


async def test_a_cut_registry_entry_is_written_anew(work_dir: Path, home: Path) -> None:
    """Our own registry, damaged: nothing is lost by it, and the next session made puts it right."""
    await (await Session.create(work_dir, "old")).tag("kept")
    [path] = (home / "kimi-sessions" / "work_dirs").glob("*.json")
    data = path.read_bytes()
    with using(UnsyncedFs()):
        for cut in (*range(0, len(data), 5), len(data)):
            path.write_bytes(data[:cut])
            assert [each.id for each in await Session.list(work_dir)] == ["old"]
            made = await Session.create(work_dir, f"new-{cut}")
            assert made.trusted
            assert {each.id for each in await Session.list_all()} == {"old"}
            [old] = await Session.list(work_dir)
            assert old.trusted, cut
            await made.delete()
