"""
Programs as others write them, over the whole public surface: type-checked, never run.

Each function is one reader's program. `assert_type` holds the types that such programs rely on; a change that breaks
one of them breaks theirs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, assert_type

from kimi_sessions import (
    AmbiguousIdError,
    CheckpointNotFoundError,
    ContextFile,
    DamagedError,
    Finding,
    Holder,
    InvalidIdError,
    InvalidTurnError,
    Layout,
    Message,
    MigrationError,
    NotFoundError,
    ProjectLayout,
    Session,
    SessionBusyError,
    SessionExistsError,
    SessionList,
    SessionNotFoundError,
    SessionsError,
    SessionState,
    ShareLayout,
    TrashEntry,
    Turn,
    UnsupportedVersionError,
    UntrustedSessionError,
    WireFile,
    WorkDirMeta,
    WorkDirNotFoundError,
    WriteError,
    __version__,
    clean,
)
from kimi_sessions import errors as every_error
from kimi_sessions.catalog import (
    Hit,
    SearchResult,
    SessionStats,
    search,
    session_stats,
    total,
    work_dir_stats,
)
from kimi_sessions.check import Report, check
from kimi_sessions.fork import (
    enumerate_turns,
    fork_session,
    truncate_context_at_turn,
    truncate_wire_at_turn,
)
from kimi_sessions.repair import RepairReport, repair
from kimi_sessions.state import ApprovalState, TodoItem, load_session_state, save_session_state
from kimi_sessions.wire import (
    WIRE_PROTOCOL_LEGACY_VERSION,
    WIRE_PROTOCOL_VERSION,
    AudioURLPart,
    ImageURLPart,
    StatusUpdate,
    StepBegin,
    TextPart,
    ThinkPart,
    ToolCall,
    ToolResult,
    TurnBegin,
    TurnEnd,
    VideoURLPart,
    WireFileMetadata,
    WireMessage,
    WireMessageEnvelope,
    WireMessageRecord,
    parse_wire_file_line,
)


class OnKaos:
    """A path of another file system, as KaosPath is one."""

    def unsafe_to_local_path(self) -> Path:
        """Give the local path."""
        return Path("/project")


async def whoever_keeps_a_session(work_dir: Path) -> None:
    """Make, find, list, go on with, and end sessions; a work dir may be given in several ways."""
    session = await Session.create(work_dir)
    assert_type(session, Session)
    named = await Session.create(str(work_dir), "named", layout=ShareLayout())
    await Session.create(OnKaos(), session_id="on-kaos", layout=ProjectLayout())
    found = await Session.find(work_dir, "named", layout=ShareLayout("/share"))
    assert_type(found, Session | None)
    listed = await Session.list(work_dir, layout=None, include_empty=True, limit=5)
    assert_type(listed, SessionList)
    for each in listed:
        assert_type(each, Session)
    assert_type(listed.problems, list[Finding])
    as_list: list[Session] = await Session.list_all(layout=ShareLayout(Path("/share")))
    last = await Session.continue_(work_dir, allow_untrusted=True)
    assert_type(last, Session | None)
    meant = await Session.open(work_dir, "@last")
    assert_type(meant, Session)
    await session.close()
    await named.close(ok=False)
    as_list.sort(key=lambda each: each.updated_at)


async def whoever_looks_at_a_session(session: Session) -> None:
    """Read its facts."""
    assert_type(session.id, str)
    assert_type(session.title, str)
    assert_type(session.updated_at, float)
    assert_type(session.created_at, float)
    assert_type(session.work_dir, Path)
    assert_type(session.work_dir_meta, WorkDirMeta)
    assert_type(session.work_dir_meta.sessions_dir, Path)
    assert_type(session.work_dir_meta.last_session_id, str | None)
    assert_type(session.work_dir_known, bool)
    assert_type(session.work_dir_key, str)
    assert_type(session.path, Path)
    assert_type(session.dir, Path)
    assert_type(session.subagents_dir, Path)
    assert_type(session.context_file, Path)
    assert_type(session.wire_file, WireFile)
    assert_type(session.context, ContextFile)
    assert_type(session.layout, Layout)
    assert_type(session.trusted, bool)
    assert_type(session.archived, bool)
    assert_type(session.empty, bool)
    assert_type(session.is_empty(), bool)
    assert_type(session.tags, tuple[str, ...])
    assert_type(session.pinned, bool)
    assert_type(session.parent, dict[str, Any] | None)
    for problem in session.problems:
        assert_type(problem.kind, str)
        assert_type(problem.line_number, int | None)
        assert_type(problem.as_dict(), dict[str, Any])
    turns = await session.turns()
    assert_type(turns, list[Turn])
    assert_type(turns[0].user_text, str)
    assert_type(turns[0].started_at, float | None)
    assert_type(clean(session.title), str)
    assert_type(__version__, str)


async def whoever_changes_a_session(session: Session) -> None:
    """Name, archive, tag, own, throw away and bring back."""
    session.title = "shown"
    session.updated_at = 5.0
    session.durability = "disk"
    await session.rename("a name")
    await session.archive()
    await session.unarchive()
    await session.tag("a", "b")
    await session.untag("a")
    await session.pin()
    await session.pin(False)
    await session.refresh()
    await session.trust()
    session.mark_last()
    async with session.hold("my agent") as held:
        assert_type(held, Session)
    assert_type(await session.fork(), Session)
    assert_type(await session.fork(turn_index=2, title="a branch"), Session)
    await session.trash("too old", force=True)
    assert_type(await Session.restore(session.work_dir, session.id), Session)
    entries = await Session.list_trash(session.work_dir)
    assert_type(entries, list[TrashEntry])
    assert_type(entries[0].deleted_at, float)
    assert_type(await Session.empty_trash(session.work_dir, older_than_s=86_400), int)
    await session.delete(force=True)


def whoever_keeps_a_state(session: Session, folder: Path) -> None:
    """Change the state of a session, or of a folder."""
    state = session.state
    assert_type(state, SessionState)
    state.custom_title = "a name"
    state.approval = ApprovalState(yolo=True, auto_approve_actions={"run"})
    state.approval.auto_approve_actions.add("edit")
    state.todos.append(TodoItem(title="a", status="in_progress"))
    assert_type(state.additional_dirs, list[str])
    assert_type(state.wire_mtime, float | None)
    session.state = SessionState(plan_mode=True)
    session.save_state()
    loaded = load_session_state(os.fspath(folder))
    assert_type(loaded, SessionState)
    save_session_state(loaded, folder)


async def whoever_writes_a_wire_log(session: Session, path: Path) -> None:
    """Append typed messages, and carry records from one log to another."""
    wire = session.wire_file
    await wire.append_message(TurnBegin(user_input="hi"))
    await wire.append_message(
        TurnBegin(
            user_input=[
                TextPart(text="see"),
                ImageURLPart(image_url=ImageURLPart.ImageURL(url="data:")),
            ]
        ),
        timestamp=5.0,
    )
    messages: list[WireMessage] = [
        StepBegin(n=1),
        ThinkPart(think="hm"),
        StatusUpdate(context_usage=0.1),
        TurnEnd(),
    ]
    await wire.append_many(messages)
    other = WireFile(path, durability="disk")
    async for record in wire.iter_records(start_offset=0):
        assert_type(record, WireMessageRecord)
        await other.append_record(record)
    other.close()
    await other.append_record(WireMessageRecord.from_wire_message(TurnEnd(), timestamp=1.0))


async def whoever_reads_a_wire_log(path: str) -> AsyncIterator[str]:
    """Read records, raw and typed, and follow a log."""
    wire = WireFile(path)
    assert_type(wire.path, Path)
    assert_type(wire.version, str)
    assert_type(wire.is_empty(), bool)
    findings: list[Finding] = []
    async for record in wire.iter_records(on_finding=findings.append):
        assert_type(record.timestamp, float)
        assert_type(record.message, WireMessageEnvelope)
        assert_type(record.message.type, str)
        assert_type(record.message.payload, dict[str, Any])
        message = record.to_wire_message()
        if isinstance(message, TurnBegin):
            yield "turn"
        elif isinstance(message, ToolCall):
            yield message.function.name
        elif isinstance(message, ToolResult):
            yield message.tool_call_id
        elif isinstance(message, TextPart):
            yield message.text
        elif isinstance(message, AudioURLPart | VideoURLPart):
            yield "media"
    async for record in wire.follow():
        yield record.message.type
    parsed = parse_wire_file_line(b"{}")
    if isinstance(parsed, WireFileMetadata):
        yield parsed.protocol_version
    yield WIRE_PROTOCOL_VERSION + WIRE_PROTOCOL_LEGACY_VERSION


async def whoever_keeps_a_context(session: Session, path: Path) -> None:
    """Append messages, read the newest, go back, begin anew."""
    context = session.context
    await context.append(Message(role="user", content="hi"))
    await context.append({"role": "assistant", "content": "hello"})
    await context.append([Message(role="user", content="a"), Message(role="user", content="b")])
    messages = await context.messages(limit=10)
    assert_type(messages, list[Message])
    assert_type(messages[0].text, str)
    checkpoint = await context.checkpoint()
    assert_type(checkpoint, int)
    assert_type(await context.revert_to(checkpoint), str | None)
    assert_type(await context.clear(), str | None)
    await context.set_system_prompt("be nice")
    await context.set_usage(token_count=5)
    assert_type(context.history.system_prompt, str | None)
    assert_type(context.history.token_count, int)
    assert_type(context.history.next_checkpoint_id, int)
    ContextFile(path, durability="os").close()


def whoever_forks_by_path(folder: Path, work_dir: str) -> None:
    """Use the functions on paths."""
    assert_type(enumerate_turns(folder / "wire.jsonl"), list[Turn])
    assert_type(truncate_wire_at_turn(folder / "wire.jsonl", 0), list[str])
    assert_type(truncate_context_at_turn(folder / "context.jsonl", 0), list[str])
    new_id: str = fork_session(folder, work_dir, 2, title_prefix="Undo", source_title="x")
    os.fspath(new_id)


async def whoever_checks_and_searches(session: Session) -> None:
    """Look for damage, mend it, search and count."""
    assert_type(await check(session), Report)
    assert_type(await repair(session, dry_run=True), RepairReport)
    result = await search("word", session.work_dir, limit=5)
    assert_type(result, SearchResult)
    assert_type(result.hits, list[Hit])
    assert_type(await session_stats(session), SessionStats)
    counted = await work_dir_stats(session.work_dir)
    assert_type(total(stats for _, stats in counted), SessionStats)


async def whoever_handles_errors(work_dir: Path) -> int:
    """Branch by what can be done next, most special first."""
    try:
        await Session.open(work_dir, "some")
    except SessionNotFoundError as error:
        assert_type(error.session_id, str)
        assert_type(error.searched, tuple[str, ...])
        assert_type(error.near, tuple[str, ...])
    except WorkDirNotFoundError as error:
        assert_type(error.path, str)
    except CheckpointNotFoundError as error:
        assert_type(error.checkpoint_id, int)
    except NotFoundError:
        return 3
    except SessionExistsError as error:
        assert_type(error.path, str)
    except AmbiguousIdError as error:
        assert_type(error.candidates, tuple[str, ...])
    except InvalidIdError as error:
        assert_type(error.reason, str)
    except InvalidTurnError as error:
        assert_type(error.turn_count, int)
    except SessionBusyError as error:
        assert_type(error.holder, Holder | None)
    except UntrustedSessionError as error:
        assert_type(error.session_id, str)
    except DamagedError as error:
        assert_type(error.offset, int | None)
    except UnsupportedVersionError as error:
        assert_type(error.supported, str)
    except WriteError as error:
        as_os_error: OSError = error
        return as_os_error.errno or 7
    except MigrationError as error:
        assert_type(error.step, str)
    except SessionsError as error:
        return len(str(error)) + len(every_error.__all__)
    return 0


def whoever_mistypes_a_name(session: Session) -> None:
    """Is told so by the type checker: were these no errors, the comments that expect them would be."""
    from kimi_sessions import Sesion  # type: ignore[attr-defined] # noqa: F401
    from kimi_sessions.catalog import serch  # type: ignore[attr-defined] # noqa: F401
    from kimi_sessions.context import ContextFil  # type: ignore[attr-defined] # noqa: F401
    from kimi_sessions.wire import TurnBegins  # type: ignore[attr-defined] # noqa: F401

    session.titel = "x"  # type: ignore[attr-defined]
    session.id = "x"  # type: ignore[misc]
