"""On the same damaged bytes every reader counts the same: list, show, turns, messages, fork, check and repair."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_sessions import Finding, Session
from kimi_sessions.check import check
from kimi_sessions.context.history import refuse_message
from kimi_sessions.context.records import parse_message_record
from kimi_sessions.repair import INTERRUPTED, repair

HEADER = '{"type": "metadata", "protocol_version": "1.10"}'
TEXTS = [
    "hi",
    "}{",
    '{"role":"user","content":"inner"}',
    "a\u2028b",
    "\\ud800",
    "日本",
    "x" * 300,
    '\\"}',
    "\\n",
    "\t",
]


def wire_line(number: int, type_: str, text: str) -> bytes:
    """Give a wire record as Kimi CLI spells it."""
    payload = f'{{"user_input": "{text}"}}' if type_ == "TurnBegin" else "{}"
    return f'{{"timestamp": {number}.5, "message": {{"type": "{type_}", "payload": {payload}}}}}'.encode()


def context_line(role: str, text: str, call_id: str) -> bytes:
    """Give a context record."""
    if role == "_checkpoint":
        return b'{"role": "_checkpoint", "id": 1}'
    extra = f', "tool_call_id": "{call_id}"' if role == "tool" else ""
    if role == "assistant":
        call = f'{{"type": "function", "id": "{call_id}", "function": {{"name": "R", "arguments": "{{}}"}}}}'
        extra = f', "tool_calls": [{call}]'
    return f'{{"role": "{role}", "content": "{text}"{extra}}}'.encode()


@dataclass(frozen=True)
class Damage:
    """One thing that happens to the bytes of a log; places are in thousandths of its length."""

    what: str
    place: int
    length: int

    def apply(self, data: bytes) -> bytes:
        """Give the bytes afterwards."""
        at = len(data) * self.place // 1000
        if self.what == "cut":
            return data[:at]
        if self.what == "lose":
            return data[:at] + data[at + self.length :]
        if self.what == "fuse":
            at = data.find(b"\n", at)
            return data if at < 0 else data[:at] + data[at + 1 :]
        if self.what == "zero":
            return data[:at] + b"\0" * len(data[at : at + self.length]) + data[at + self.length :]
        if self.what == "repeat":
            return data[:at] + data[max(at - self.length, 0) :]
        inserted = {
            "nul": b"\0" * self.length,
            "junk": b"\xff\xfe{[",
            "mark": b"\xef\xbb\xbf",
            "line": b"\n",
            "array": b"\n[1]\n",
            "number": b"\n7\n",
            "return": b"\r",
            "foreign": b'\n{"role": 5}\n{"message": null, "timestamp": 1}\n{"a": 123456789012345678901}\n',
            "odd": b'\n{"role":"user","content":7}\n{"role":"_usage"}\n{"role":"critic","content":"x"}\n',
        }[self.what]
        return data[:at] + inserted + data[at:]


DAMAGE = st.builds(
    Damage,
    st.sampled_from(
        [
            *("cut", "lose", "fuse", "zero", "repeat", "nul", "junk", "mark", "line"),
            *("array", "number", "return", "foreign", "odd"),
        ]
    ),
    st.integers(0, 1000),
    st.integers(1, 120),
)
WIRE = st.lists(
    st.tuples(
        st.sampled_from(["TurnBegin", "TurnEnd", "StepBegin", "FromTheFuture"]), st.sampled_from(TEXTS)
    ),
    max_size=12,
)
CONTEXT = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "tool", "_checkpoint", "_later"]),
        st.sampled_from(TEXTS),
        st.sampled_from(["a", "b"]),
    ),
    max_size=12,
)


def log(lines: list[bytes], damages: list[Damage]) -> bytes:
    """Give the bytes of a log to which some things happened."""
    data = b"".join(line + b"\n" for line in lines)
    for damage in damages:
        data = damage.apply(data)
    return data


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    """Give a folder on a fast disk for many small stores."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(dir=base))
    yield folder
    shutil.rmtree(folder)


def session_with(work_dir: Path, wire: bytes, context: bytes) -> Path:
    """Make a store with one session of these bytes."""
    shutil.rmtree(work_dir, ignore_errors=True)
    folder = work_dir / ".kimi/sessions/s"
    folder.mkdir(parents=True, mode=0o700)
    for path in (work_dir / ".kimi", folder.parent, folder):
        path.chmod(0o700)
    for name, data in (("wire.jsonl", wire), ("context.jsonl", context)):
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    return folder


async def totals(session: Session) -> dict[str, int]:
    """Count records, turns and messages through every door, and require that all say the same."""
    report = {log.file: log for log in (await check(session)).logs}
    wire, context = report["wire.jsonl"], report["context.jsonl"]
    found: list[Finding] = []
    records = [record async for record in session.wire_file.iter_records(on_finding=found.append)]
    assert wire.records == len(records)
    turns = await session.turns()
    assert wire.turns == len(turns) == sum(record.type == "TurnBegin" for record in records)
    messages = await session.context.messages()
    assert context.messages == len(messages)
    newest = await session.context.messages(limit=10_000)
    assert [message.model_dump() for message in newest] == [message.model_dump() for message in messages]
    damaged = {
        (finding.line_number, finding.offset, finding.length)
        for finding in (await check(session)).findings
        if finding.file == "wire.jsonl" and finding.kind in {"damaged-line", "torn-tail", "nul-bytes"}
    }
    assert damaged == {(finding.line_number, finding.offset, finding.length) for finding in found}
    [listed] = await Session.list(session.work_dir, include_empty=True)
    assert listed.empty == session.is_empty()
    if records or messages:
        assert not listed.empty
    last = next((r.timestamp for r in reversed(records)), None)
    if last is not None:
        assert listed.updated_at == last
    return {"records": len(records), "turns": len(turns), "messages": len(messages)}


@pytest.mark.usefixtures("home")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wire=WIRE, context=CONTEXT, to_wire=st.lists(DAMAGE, max_size=4), to_context=st.lists(DAMAGE, max_size=4)
)
def test_every_reader_counts_the_same_on_damaged_logs(
    ground: Path,
    wire: list[tuple[str, str]],
    context: list[tuple[str, str, str]],
    to_wire: list[Damage],
    to_context: list[Damage],
) -> None:
    """List, turns, records, messages, check and a fork of everything agree; so they do after a repair."""
    lines = [HEADER.encode(), *(wire_line(number, *line) for number, line in enumerate(wire))]
    work_dir = ground / "project"
    folder = session_with(
        work_dir, log(lines, to_wire), log([context_line(*line) for line in context], to_context)
    )

    async def run() -> None:
        session = await Session.open(work_dir, "s")
        before = await totals(session)
        fork = await session.fork()
        forked = await check(fork)
        assert {
            "records": next((log.records for log in forked.logs if log.file == "wire.jsonl"), 0),
            "turns": next((log.turns for log in forked.logs if log.file == "wire.jsonl"), 0),
            "messages": next(log.messages for log in forked.logs if log.file == "context.jsonl"),
        } == before
        await fork.delete()
        report = await repair(session)
        assert report.after.findings == ()
        if not (folder / "wire.jsonl").exists():
            return
        after = await totals(session)
        assert (after["records"], after["turns"]) == (before["records"], before["turns"])
        added = sum(INTERRUPTED in message.text for message in await session.context.messages())
        orphans = sum(finding.kind == "orphan-result" for finding in report.before.findings)
        assert after["messages"] == before["messages"] + added - orphans

    asyncio.run(run())


@pytest.mark.usefixtures("home")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wire=WIRE, context=CONTEXT, to_wire=st.lists(DAMAGE, max_size=4), to_context=st.lists(DAMAGE, max_size=4)
)
def test_no_byte_is_lost_by_a_repair(
    ground: Path,
    wire: list[tuple[str, str]],
    context: list[tuple[str, str, str]],
    to_wire: list[Damage],
    to_context: list[Damage],
) -> None:
    """The old log is kept whole; the new one and the torn file together hold all of it that says anything."""
    lines = [HEADER.encode(), *(wire_line(number, *line) for number, line in enumerate(wire))]
    work_dir = ground / "project-b"
    old = {
        "wire.jsonl": log(lines, to_wire),
        "context.jsonl": log([context_line(*line) for line in context], to_context),
    }
    folder = session_with(work_dir, old["wire.jsonl"], old["context.jsonl"])

    async def run() -> None:
        report = await repair(await Session.open(work_dir, "s"))
        assert report.after.findings == ()
        assert (await repair(await Session.open(work_dir, "s"))).actions == ()

    asyncio.run(run())
    for name, before in old.items():
        backup = folder / f"{name}.before-repair-1"
        aside = folder / f"{name}.damaged-1"
        kept = (
            backup.read_bytes()
            if backup.exists()
            else (aside if aside.exists() else folder / name).read_bytes()
        )
        assert kept == before
        if not backup.exists():
            continue
        torn = folder / f"{name}.torn"
        moved = torn.read_bytes().split(b"\n") if torn.exists() else [b""]
        pieces = moved[1::2]
        for origin, piece in zip(moved[:-1:2], pieces, strict=True):
            place = json.loads(origin)
            assert before[place["offset"] : place["offset"] + place["length"]] == piece
        now = (folder / name).read_bytes()
        whole = b"\n".join(line for line in now.split(b"\n") if INTERRUPTED.encode() not in line)
        for line in whole.split(b"\n"):
            assert line in before or line == HEADER.replace(" ", "").encode()
        assert said(before) - said(whole) - said(b" ".join(pieces)) == Counter()


def said(data: bytes) -> Counter[int]:
    """Count the bytes that are neither space nor filling."""
    return Counter(data.replace(b"\xef\xbb\xbf", b"").translate(None, b" \t\r\n\0\x0b\x0c"))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 3)
    | st.sampled_from(["", "text", "function", "user", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "think", "id", "function", "name", "arguments", "image_url", "url"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": VALUES,
            "function": st.fixed_dictionaries({"name": VALUES}, optional={"arguments": VALUES}),
        },
        optional={"type": VALUES, "extras": VALUES},
    ),
    max_size=2,
)


@given(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "critic"])},
        optional={
            "content": VALUES,
            "name": VALUES,
            "tool_calls": VALUES | CALLS,
            "tool_call_id": VALUES,
            "partial": VALUES,
        },
    )
)
def test_what_counts_as_a_message_can_be_read_as_one(record: dict[str, Any]) -> None:
    """The quick look that counts messages and the model that gives them agree on every record."""
    counted = refuse_message(record) is None
    try:
        parse_message_record(json.dumps(record).encode())
    except ValueError:
        assert not counted
    else:
        assert counted
