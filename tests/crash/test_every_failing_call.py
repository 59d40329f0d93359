"""Each call to the disk fails once, in every operation: an error that says so, nothing lost, a retry."""

from __future__ import annotations

import os
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.seam import FailingFs, UnsyncedFs, failing_calls
from tests.stores import said, say, strays, told, write

from kimi_sessions import (
    Layout,
    ProjectLayout,
    Session,
    SessionsError,
    ShareLayout,
    WriteError,
)
from kimi_sessions._fs import using

WIRE = ["turn one", "turn two"]
CONTEXT = ["said one", "said two"]


@dataclass
class Scene:
    """One store with one session of known content, and an operation's own notes."""

    work_dir: Path
    layout: Layout
    session: Session
    notes: dict[str, object] = field(default_factory=dict)

    async def seen(self, session_id: str = "old") -> Session | None:
        """Look the session up anew, as another program would."""
        return await Session.find(self.work_dir, session_id, layout=self.layout)


Step = Callable[[Scene], Awaitable[object]]


@dataclass(frozen=True)
class Operation:
    """What is done, how to see on disk that it was done, and what it may do to what was there before."""

    do: Step
    done: Callable[[Scene], Awaitable[bool]]
    before: Step | None = None
    #: The session may be gone, if it is all gone.
    removes: bool = False
    #: Where it failed, nothing of it is left.
    all_or_nothing: bool = False
    #: Doing it again where it was done already is an error; then it must have been done whole.
    once: bool = False


async def _old(scene: Scene) -> Session:
    found = await scene.seen()
    assert found is not None
    return found


async def _append_wire(scene: Scene) -> None:
    await write(scene.session, ["new"])


async def _append_both(scene: Scene) -> None:
    from kimi_sessions.wire import TurnBegin

    await scene.session.wire_file.append_many([TurnBegin(user_input=text) for text in ("new", "newer")])


async def _wire_ends(scene: Scene, *texts: str) -> bool:
    return (await told(await _old(scene)))[-len(texts) :] == list(texts)


async def _say(scene: Scene) -> None:
    await say(scene.session, ["new"])


async def _checkpoint(scene: Scene) -> None:
    await scene.session.context.checkpoint()


async def _has_checkpoint(scene: Scene) -> bool:
    return (await _old(scene)).context.history.next_checkpoint_id > 0


async def _rename(scene: Scene) -> None:
    await scene.session.rename("A new name")


async def _save_state(scene: Scene) -> None:
    scene.session.state.plan_slug = "new"
    scene.session.state.approval.yolo = True
    scene.session.save_state()


async def _load_state(scene: Scene) -> None:
    assert not scene.session.state.approval.yolo


async def _saved(scene: Scene) -> bool:
    state = (await _old(scene)).state
    return state.plan_slug == "new" and state.approval.yolo


async def _create(scene: Scene) -> None:
    await Session.create(scene.work_dir, "new", layout=scene.layout)


async def _is_there(scene: Scene, session_id: str) -> bool:
    return await scene.seen(session_id) is not None


async def _fork(scene: Scene) -> None:
    await scene.session.fork()


async def _forked(scene: Scene) -> bool:
    everyone = await Session.list(scene.work_dir, layout=scene.layout, include_empty=True)
    forks = [each for each in everyone if each.parent is not None]
    assert len(forks) <= 1, "a fork that failed was left behind"
    return len(forks) == 1 and await told(forks[0]) == WIRE and await said(forks[0]) == CONTEXT


async def _trash(scene: Scene) -> None:
    await scene.session.trash()


async def _trashed(scene: Scene) -> bool:
    entries = await Session.list_trash(scene.work_dir, layout=scene.layout)
    return await scene.seen() is None and [entry.session_id for entry in entries] == ["old"]


async def _restore(scene: Scene) -> None:
    await Session.restore(scene.work_dir, "old", layout=scene.layout)


async def _restored(scene: Scene) -> bool:
    entries = await Session.list_trash(scene.work_dir, layout=scene.layout)
    return await scene.seen() is not None and not entries


async def _delete(scene: Scene) -> None:
    await scene.session.delete()


async def _deleted(scene: Scene) -> bool:
    return await scene.seen() is None


async def _empty_trash(scene: Scene) -> None:
    await Session.empty_trash(scene.work_dir, layout=scene.layout)


async def _emptied(scene: Scene) -> bool:
    return await scene.seen() is None and not await Session.list_trash(scene.work_dir, layout=scene.layout)


def _flat_path(scene: Scene) -> Path:
    return scene.session.path.with_name("flat.jsonl")


async def _put_flat(scene: Scene) -> None:
    _flat_path(scene).write_text('{"role": "user", "content": "from before"}\n')


async def _list(scene: Scene) -> None:
    listed = await Session.list(scene.work_dir, layout=scene.layout, include_empty=True)
    for each in listed:
        if each.id == "flat":
            return
    # A list never raises because of one session; then it has to say what it could not do.
    raise WriteError(path="", reason=str(listed.problems)) if listed.problems else AssertionError(listed)


async def _flat_moved(scene: Scene) -> bool:
    flat = await scene.seen("flat")
    return flat is not None and await said(flat) == ["from before"] and not _flat_path(scene).exists()


async def _mark_last(scene: Scene) -> None:
    scene.session.mark_last()


async def _is_last(scene: Scene) -> bool:
    last = await Session.continue_(scene.work_dir, layout=scene.layout)
    return last is not None and last.id == "old"


async def _other_is_last(scene: Scene) -> None:
    other = await Session.create(scene.work_dir, "other", layout=scene.layout)
    await write(other, ["other"])
    await other.close()


async def _hold(scene: Scene) -> None:
    async with scene.session.hold("test"):
        await write(scene.session, ["held"])


async def _trust(scene: Scene) -> None:
    await scene.session.trust()


async def _unseal(scene: Scene) -> None:
    (scene.session.path / "seal.json").unlink()


async def _trusted(scene: Scene) -> bool:
    return (await _old(scene)).trusted


async def _revert(scene: Scene) -> None:
    await scene.session.context.revert_to(0)


async def _checkpoint_and_more(scene: Scene) -> None:
    await scene.session.context.checkpoint()
    await say(scene.session, ["after"])


async def _reverted(scene: Scene) -> bool:
    return await said(await _old(scene)) == CONTEXT and len(_rotations(scene)) == 1


async def _clear(scene: Scene) -> None:
    await scene.session.context.clear()


async def _cleared(scene: Scene) -> bool:
    return await said(await _old(scene)) == [] and len(_rotations(scene)) == 1


def _rotations(scene: Scene) -> list[Path]:
    return sorted(scene.session.path.glob("context_*.jsonl"))


async def _set_prompt(scene: Scene) -> None:
    await scene.session.context.set_system_prompt("Be brief.")


async def _has_prompt(scene: Scene) -> bool:
    old = await _old(scene)
    return old.context.history.system_prompt == "Be brief." and await said(old) == CONTEXT


async def _flag(scene: Scene, name: str) -> bool:
    return bool(getattr(await _old(scene), name))


async def _forget_registry(scene: Scene) -> None:
    home = Path(os.environ["KIMI_SESSIONS_HOME"])
    for entry in (home / "work_dirs").glob("*.json"):
        entry.unlink()


async def _close_empty(scene: Scene) -> None:
    session = scene.notes["empty"]
    assert isinstance(session, Session)
    await session.close()


async def _make_empty(scene: Scene) -> None:
    scene.notes["empty"] = await Session.create(scene.work_dir, "empty", layout=scene.layout)


async def _empty_is_gone(scene: Scene) -> bool:
    # What can't be read counts as something, so it may also still be there, whole.
    left = await scene.seen("empty")
    return left is None or left.is_empty()


async def _ends_with_new(scene: Scene) -> bool:
    return (await said(await _old(scene)))[-1:] == ["new"]


async def _titled(scene: Scene) -> bool:
    return (await _old(scene)).title == "A new name"


OPERATIONS: dict[str, Operation] = {
    "create": Operation(_create, lambda s: _is_there(s, "new"), all_or_nothing=True),
    "append_next": Operation(_append_wire, lambda s: _wire_ends(s, "new")),
    "append_many": Operation(_append_both, lambda s: _wire_ends(s, "new", "newer")),
    "append_context": Operation(_say, _ends_with_new),
    "checkpoint": Operation(_checkpoint, _has_checkpoint),
    "set_system_prompt": Operation(_set_prompt, _has_prompt),
    "revert_to": Operation(_revert, _reverted, before=_checkpoint_and_more, once=True),
    "clear": Operation(_clear, _cleared, once=True),
    "save_state": Operation(_save_state, _saved, before=_load_state),
    "rename": Operation(_rename, _titled),
    "archive": Operation(lambda s: s.session.archive(), lambda s: _flag(s, "archived")),
    "tag": Operation(lambda s: s.session.tag("new"), lambda s: _flag(s, "tags")),
    "pin": Operation(lambda s: s.session.pin(), lambda s: _flag(s, "pinned")),
    "fork": Operation(_fork, _forked, all_or_nothing=True),
    "trash": Operation(_trash, _trashed, removes=True, once=True),
    "restore": Operation(_restore, _restored, before=_trash, removes=True, once=True),
    "delete": Operation(_delete, _deleted, removes=True, once=True),
    "empty_trash": Operation(_empty_trash, _emptied, before=_trash, removes=True),
    "close_empty": Operation(_close_empty, _empty_is_gone, before=_make_empty, removes=True, once=True),
    "flat_move": Operation(_list, _flat_moved, before=_put_flat),
    "mark_last": Operation(_mark_last, _is_last, before=_other_is_last),
    "hold": Operation(_hold, lambda s: _wire_ends(s, "held")),
    "trust": Operation(_trust, _trusted, before=_unseal),
    "create_unregistered": Operation(
        _create, lambda s: _is_there(s, "new"), before=_forget_registry, once=True
    ),
}
SEALED_ONLY = {"trust", "create_unregistered"}


async def set_scene(root: Path, layout_name: str) -> Scene:
    """Make a work dir with one session that was closed, so that everything is opened anew."""
    work_dir = root / "project"
    work_dir.mkdir(parents=True)
    layout: Layout = ProjectLayout() if layout_name == "project" else ShareLayout(root / "share")
    session = await Session.create(work_dir, "old", layout=layout)
    await write(session, WIRE)
    await say(session, CONTEXT)
    await session.close()
    found = await Session.find(work_dir, "old", layout=layout)
    assert found is not None
    return Scene(work_dir, layout, found)


async def check(scene: Scene, operation: Operation, root: Path, fs: FailingFs) -> None:
    """What must hold after a failure: what was acknowledged is there, whole, and nothing is left lying about."""
    where = f"after call {fs.nth} ({fs.failed}) failed"
    # A file whose removal itself failed is still there; only then may something lie about.
    if fs.failed not in ("unlink", "rmdir"):
        prefixes = (".creating-",) if operation.removes else (".creating-", "deleting~")
        assert strays(root, prefixes=prefixes) == [], where
    everyone = await Session.list(scene.work_dir, layout=scene.layout, include_empty=True)
    assert everyone.problems == [], where
    for each in everyone:
        assert not [p for p in each.problems if p.kind not in ("untrusted", "approvals")], (
            where,
            each.problems,
        )
    old = await scene.seen()
    entries = await Session.list_trash(scene.work_dir, layout=scene.layout)
    assert {entry.session_id for entry in entries} <= {"old"}, where
    if old is None:
        assert operation.removes, where
        assert operation.do is not _delete or entries == [], where
        return
    assert [entry.session_id for entry in entries] == [], where
    assert (await told(old))[: len(WIRE)] == WIRE, where
    if not operation.once or operation.do is not _clear:
        assert (await said(old))[: len(CONTEXT)] == CONTEXT, where


async def failure_of(operation: Operation, scene: Scene, fs: FailingFs) -> SessionsError | None:
    """Run the operation where one call fails; give its error, which may be no other than one of the library's."""
    failure: SessionsError | None = None
    try:
        with using(fs):
            await operation.do(scene)
    except SessionsError as error:
        failure = error
    assert failure is None or str(pickle.loads(pickle.dumps(failure))) == str(failure)
    return failure


# What takes the same way as another one, or the same in both layouts, is left to the long run.
ALIKE = {"archive", "pin", "create_unregistered"}
DIFFERENT = {"create", "fork", "trash", "restore", "delete", "mark_last", "hold"}
CASES = [
    pytest.param(
        name,
        layout,
        marks=() if name not in ALIKE and (layout == "project" or name in DIFFERENT) else pytest.mark.torture,
    )
    for name in OPERATIONS
    for layout in ("project", "share")
    if layout == "project" or name not in SEALED_ONLY
]


@pytest.mark.parametrize("name, layout", CASES)
async def test_a_failing_disk_loses_nothing_and_is_never_passed_over(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, name: str, layout: str
) -> None:
    """Each call of the operation fails once; it is told, nothing is lost, and the same again succeeds."""
    operation = OPERATIONS[name]
    with using(UnsyncedFs()):
        for fs in failing_calls():
            root = tmp_path / f"call-{fs.nth}"
            monkeypatch.setenv("KIMI_SESSIONS_HOME", str(root / "home"))
            scene = await set_scene(root, layout)
            if operation.before is not None:
                await operation.before(scene)
            error = await failure_of(operation, scene, fs)
            failed = error is not None
            where = f"call {fs.nth} ({fs.failed})"
            assert fs.failed or not failed, f"failed without a failing call: {error!r}"
            # A list alone tells of what failed without an error of its own.
            assert error is None or bool(getattr(error, "path", None)) or operation.do is _list, (
                f"{where}: {error!r}"
            )
            if not operation.removes:
                await scene.session.close(ok=False)
            await check(scene, operation, root, fs)
            done = await operation.done(scene)
            assert done or failed, f"{where}: failed, and nobody was told"
            assert not (done and failed and operation.all_or_nothing), f"{where}: failed, and was left there"
            if failed and not (operation.once and done):
                scene.session = await scene.seen() or scene.session
                await operation.do(scene)
                assert await operation.done(scene), f"{where}: did not succeed the second time"
                assert strays(root) == [], where
