"""What a list shows of a session, read from few bytes, is what reading all of its log gives."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions import Finding, _facts
from kimi_sessions._facts import read_facts, sane_time
from kimi_sessions._lines import decode_line, iter_lines
from kimi_sessions._text import UNTITLED, title_from, user_text
from kimi_sessions.wire.file import WireFile
from kimi_sessions.wire.records import WireMessageRecord, record_from_span, refuse

from .conftest import WIRE_LOGS, damaged, opened

NOW = 4e9


def records_slowly(data: bytes) -> tuple[list[WireMessageRecord], int]:
    """Decode every line by the whole policy; also give how many pieces of damage there were."""
    records, damage = [], 0
    with opened(data) as fd:
        for _, line in iter_lines(fd):
            decoded = decode_line(line, refuse)
            damage += len(decoded.damage)
            records += [record for span in decoded.records if (record := record_from_span(span)) is not None]
    return records, damage


def check_facts(data: bytes, head: int, whole: int) -> None:
    """Compare title, time and emptiness with those made of all records."""
    records, damage = records_slowly(data)
    prompts = [
        title_from(user_text(record.message.payload.get("user_input")))
        for record in records
        if record.type == "TurnBegin"
    ]
    times = [time for record in records if (time := sane_time(record.timestamp, NOW)) is not None]
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_facts, "HEAD_BYTES", head)
        patch.setattr(_facts, "_WHOLE_BYTES", whole)
        folder = Path(root, "one")
        folder.mkdir()
        (folder / "wire.jsonl").write_bytes(data)
        (folder / "context.jsonl").touch()
        os.utime(folder / "context.jsonl", (77, 77))
        fd = os.open(root, os.O_RDONLY)
        try:
            facts = read_facts(fd, "one", now=NOW)
        finally:
            os.close(fd)
    assert facts is not None
    assert facts.title == next((prompt for prompt in prompts if prompt), UNTITLED)
    assert facts.updated_at == (times[-1] if times else 77)
    assert facts.empty is not (bool(records) or damage > 0)


async def check_records(data: bytes) -> None:
    """Compare what iterating gives, and reports, with every line decoded slowly."""
    slow, damage = records_slowly(data)
    found: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wire.jsonl")
        path.write_bytes(data)
        fast = [record async for record in WireFile(path).iter_records(on_finding=found.append)]
    assert len(found) == damage
    assert len(fast) == len(slow)
    for one, other in zip(fast, slow, strict=True):
        assert one.type == other.type
        assert one.message == other.message
        assert one.timestamp == other.timestamp or math.isnan(other.timestamp)
        assert (one.raw or b"").strip() == (other.raw or b"").strip()


async def test_old_logs_are_told_by_few_bytes_as_by_all() -> None:
    """Read in one go, by head and tail, or a few bytes at a time."""
    for data in WIRE_LOGS:
        await check_records(data)
        for head, whole in ((8192, 32768), (512, 0), (64, 16)):
            check_facts(data, head, whole)


@given(damaged(WIRE_LOGS), st.sampled_from([(8192, 32768), (300, 0), (16, 8)]))
def test_a_damaged_log_is_told_by_few_bytes_as_by_all(data: bytes, sizes: tuple[int, int]) -> None:
    """Title, time and emptiness, whatever of the log is read first."""
    check_facts(data, *sizes)


@given(damaged(WIRE_LOGS))
async def test_iterating_a_damaged_log_gives_what_every_line_gives(data: bytes) -> None:
    """No record is missed or made up, and all damage is told."""
    await check_records(data)
