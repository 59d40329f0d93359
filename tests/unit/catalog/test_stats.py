"""Statistics say what is in the logs, and go on from where they were."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kimi_sessions import Session
from kimi_sessions.catalog import SessionStats, session_stats, total, work_dir_stats

from .conftest import Store


async def stats_of(store: Store, name: str = "one") -> SessionStats:
    """Count twice, require the same, and return it."""
    session = await Session.open(store.work_dir, name)
    first = await session_stats(session)
    assert await session_stats(session) == first
    return first


def usage(store: Store, message_id: str, sent: int, written: int) -> bytes:
    """Return the record of a reply's tokens."""
    tokens = {"input_other": sent, "output": written, "input_cache_read": 5, "input_cache_creation": 2}
    return store.line("StatusUpdate", {"token_usage": tokens, "message_id": message_id})


def call(store: Store, number: int, tool: str, *, failed: bool = False) -> list[bytes]:
    """Return the records of a tool call and its result."""
    function = {"name": tool, "arguments": "{}"}
    value = {"is_error": failed, "output": "", "message": "", "display": []}
    return [
        store.line("ToolCall", {"type": "function", "id": f"c{number}", "function": function}),
        store.line("ToolResult", {"tool_call_id": f"c{number}", "return_value": value}),
    ]


async def test_each_thing_is_counted_where_it_belongs(store: Store) -> None:
    """Turns, steps, calls and errors by tool, compactions, tokens."""
    store.put(
        "one",
        store.prompt("hi"),
        store.line("StepBegin", {"n": 1}),
        *call(store, 1, "Shell"),
        *call(store, 2, "Shell", failed=True),
        *call(store, 3, "ReadFile"),
        usage(store, "m1", 100, 7),
        store.line("CompactionBegin", {}),
        store.line("StepInterrupted", {}),
        store.line("ApprovalResponse", {"request_id": "r", "response": "reject"}),
    )
    stats = await stats_of(store)
    assert (stats.turns, stats.steps, stats.compactions, stats.errors) == (1, 1, 1, 3)
    assert stats.tool_calls == {"Shell": 2, "ReadFile": 1}
    assert stats.tool_errors == {"Shell": 1}
    assert (stats.input_tokens, stats.cached_tokens, stats.output_tokens) == (107, 5, 7)
    assert stats.records == 12


async def test_a_replys_tokens_count_once(store: Store) -> None:
    """The same message id again, in the same reading or a later one, adds nothing."""
    store.put("one", usage(store, "m1", 100, 7), usage(store, "m1", 100, 7))
    assert (await stats_of(store)).output_tokens == 7
    store.append("one", usage(store, "m1", 100, 7), usage(store, "m2", 1, 1))
    assert (await stats_of(store)).output_tokens == 8


async def test_a_result_that_comes_later_is_charged_to_its_tool(store: Store) -> None:
    """A call is remembered from one reading to the next."""
    begun, ended = call(store, 1, "Shell", failed=True)
    store.put("one", begun)
    assert (await stats_of(store)).tool_errors == {}
    store.append("one", ended)
    assert (await stats_of(store)).tool_errors == {"Shell": 1}


async def test_the_work_of_subagents_counts_and_their_turns_do_not(store: Store) -> None:
    """Wrapped events are unwrapped, to any depth."""
    inner = {"type": "ToolCall", "payload": {"id": "x", "function": {"name": "Grep", "arguments": "{}"}}}
    wrapped = {"type": "SubagentEvent", "payload": {"event": inner}}
    store.put(
        "one",
        store.prompt("hi"),
        store.line("SubagentEvent", {"event": {"type": "TurnBegin", "payload": {"user_input": "x"}}}),
        store.line("SubagentEvent", {"event": {"type": "StepBegin", "payload": {"n": 1}}}),
        store.line("SubagentEvent", {"event": wrapped}),
    )
    stats = await stats_of(store)
    assert (stats.turns, stats.steps, stats.tool_calls) == (1, 1, {"Grep": 1})


async def test_a_pause_is_not_work(store: Store) -> None:
    """Idle days are not in the active time, and the times span all records."""
    base = 1_700_000_000.0
    store.put("one", store.prompt("a", base), store.prompt("b", base + 10), store.prompt("c", base + 200_000))
    stats = await stats_of(store)
    assert (stats.active_s, stats.first_at, stats.last_at) == (10.0, base, base + 200_000)


async def test_counting_on_is_counting_anew(store: Store, catalog_file: Path) -> None:
    """Statistics that grew with their log are those of a catalog made afterwards."""
    store.put("one", store.prompt("a"))
    lines = [usage(store, f"m{n % 7}", n, n) for n in range(20)] + [
        b"{torn\n",
        *call(store, 4, "X", failed=True),
    ]
    for line in lines:
        store.append("one", line)
        grown = await stats_of(store)
    catalog_file.unlink()
    assert await stats_of(store) == grown


async def test_a_record_in_front_of_a_torn_one_is_counted_before_the_line_has_its_end(
    store: Store, catalog_file: Path
) -> None:
    """As every other reader counts it; whatever becomes of the line, the figures are those of counting anew."""
    store.put("one", store.prompt("a"))
    pieces = [
        store.prompt("b").rstrip() + b'{"timestamp": 1',
        store.prompt("c").rstrip(),
        b'{"torn": ' + store.prompt("d").rstrip(),
        b"}\n",
        store.prompt("e"),
    ]
    for piece in pieces:
        store.append("one", piece)
        session = await Session.open(store.work_dir, "one")
        grown = await stats_of(store)
        assert grown.turns == len(await session.turns())
        assert grown.records == len([record async for record in session.wire_file.iter_records()])
        catalog_file.unlink()
        assert await stats_of(store) == grown


async def test_without_a_catalog_the_figures_are_the_same(store: Store, home: Path) -> None:
    """Where nothing can be kept the log is read whole."""
    store.put("one", store.prompt("a"), usage(store, "m", 3, 4))
    kept = await stats_of(store)
    cache = home / "kimi-sessions" / "cache"
    for path in cache.iterdir():
        path.unlink()
    cache.rmdir()
    cache.write_text("in the way")
    assert await stats_of(store) == kept


async def test_a_session_without_a_wire_log_is_counted_from_its_context(store: Store) -> None:
    """Old sessions have turns and tool calls, and no tokens."""
    place = store.folder / "old"
    place.mkdir(parents=True)
    place.joinpath("context.jsonl").write_text(
        '{"role":"user","content":"hi"}\n'
        '{"role":"assistant","content":"","tool_calls":'
        '[{"type":"function","id":"1","function":{"name":"Shell","arguments":"{}"}}]}\n'
        '{"role":"user","content":"<system>CHECKPOINT 1</system>"}\n'
    )
    stats = await stats_of(store, "old")
    assert (stats.turns, stats.steps, stats.tool_calls) == (1, 1, {"Shell": 1})


async def test_totals_add_up(store: Store) -> None:
    """The sum over a work dir is the sum of its sessions."""
    store.put("one", store.prompt("a"), *call(store, 1, "Shell"))
    store.put("two", store.prompt("b"), *call(store, 1, "Shell", failed=True))
    each = await work_dir_stats(store.work_dir)
    assert {session.id for session, _ in each} == {"one", "two"}
    everything = total(stats for _, stats in each)
    assert everything.turns == 2
    assert everything.tool_calls == {"Shell": 2}
    assert everything.tool_errors == {"Shell": 1}
    assert dataclasses.asdict(total([])) == dataclasses.asdict(SessionStats())
