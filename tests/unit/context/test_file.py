"""What the model saw is kept: messages come back in order, and going back or clearing keeps the old log."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.seam import UnsyncedFs

from kimi_sessions import _fs
from kimi_sessions.context import ContextFile, Message
from kimi_sessions.errors import CheckpointNotFoundError, SessionNotFoundError, WriteError
from kimi_sessions.findings import Finding


@pytest.fixture(autouse=True)
def unsynced() -> Iterator[None]:
    """Wait for no disk: what is durable when is tested elsewhere."""
    with _fs.using(UnsyncedFs()):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the path of a context that is not there yet."""
    return tmp_path / "context.jsonl"


def user(text: str) -> dict[str, Any]:
    """Give a user's message as a record."""
    return {"role": "user", "content": text}


def line(value: object) -> bytes:
    """Give a record's line without its newline."""
    return json.dumps(value, ensure_ascii=False).encode()


def put(path: Path, *values: object) -> None:
    """Write a context as another program; bytes are lines as they are."""
    path.write_bytes(
        b"".join((value if isinstance(value, bytes) else line(value)) + b"\n" for value in values)
    )


async def texts(context: ContextFile, limit: int | None = None) -> list[str]:
    """Give the texts of the messages."""
    return [message.text for message in await context.messages(limit)]


# --- appending and reading -----------------------------------------------------------------------------------------


async def test_messages_come_back_in_order_as_they_were(path: Path) -> None:
    """One or several at a time, typed or plain, in any script; the log is private."""
    context = ContextFile(path)
    call = {"type": "function", "id": "c1", "function": {"name": "run", "arguments": "{}"}}
    await context.append(Message(role="user", content="项目 🎉"))
    await context.append(
        [
            {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [call]},
            {"role": "tool", "content": "done", "tool_call_id": "c1"},
        ]
    )
    await context.append([])
    messages = await context.messages()
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert [message.text for message in messages] == ["项目 🎉", "a", "done"]
    assert messages[1].tool_calls is not None
    assert messages[1].tool_calls[0].id == messages[2].tool_call_id == "c1"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "项目 🎉".encode() in path.read_bytes()


async def test_a_batch_is_one_write_and_all_or_nothing(path: Path) -> None:
    """One bad message keeps its neighbours out."""
    context = ContextFile(path)
    with pytest.raises(ValueError, match="role"):
        await context.append([user("a"), {"role": "nobody", "content": "x"}])
    assert not path.exists() or path.read_bytes() == b""
    await context.append([user("a"), user("b")])
    assert await texts(context) == ["a", "b"]


@pytest.mark.parametrize("what", ["text", ["text"], 5, [5], None])
async def test_what_is_no_message_is_refused_by_name(path: Path, what: object) -> None:
    """A text alone has no role; it is neither taken apart into letters nor called a dictionary."""
    context = ContextFile(path)
    with pytest.raises(TypeError, match=r"a message is a Message or a mapping, not (str|int|NoneType)"):
        await context.append(what)  # type: ignore[arg-type]
    assert not path.exists()


async def test_a_missing_context_is_empty_and_is_not_made_by_reading(path: Path) -> None:
    """Nor are there facts."""
    context = ContextFile(str(path))
    assert await context.messages() == await context.messages(5) == []
    facts = context.history
    assert (facts.system_prompt, facts.token_count, facts.next_checkpoint_id) == (None, 0, 0)
    assert not path.exists()
    assert repr(context) == f"ContextFile({str(path)!r})"


@pytest.mark.parametrize(
    "limit,shown", [(0, ""), (-1, ""), (1, "e"), (3, "cde"), (5, "abcde"), (99, "abcde")]
)
async def test_the_newest_messages_are_given_oldest_first(path: Path, limit: int, shown: str) -> None:
    """Control records and damage do not count."""
    put(
        path, user("a"), user("b"), {"role": "_checkpoint", "id": 0}, user("c"), b"junk", user("d"), user("e")
    )
    assert await texts(ContextFile(path), limit) == list(shown)


async def test_the_newest_messages_of_a_large_log_cost_few_bytes(path: Path) -> None:
    """Reading starts from the end."""

    class Counting(UnsyncedFs):
        def __init__(self) -> None:
            self.bytes_read = 0

            def pread(fd: int, length: int, offset: int) -> bytes:
                data = os.pread(fd, length, offset)
                self.bytes_read += len(data)
                return data

            self.pread = pread

    put(path, *(user(f"{n} " + "x" * 1000) for n in range(3000)))
    counting = Counting()
    with _fs.using(counting):
        newest = await texts(ContextFile(path), 3)
    assert [text.split()[0] for text in newest] == ["2997", "2998", "2999"]
    assert counting.bytes_read < 100_000


async def test_damage_is_told_with_its_place_and_costs_no_neighbour(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bad JSON, an array, a number, objects that are no message; each is logged once."""
    bad = [b"{bad", b"[]", b"5", b"{}", b'{"role": "nobody"}', b'{"role": "user", "content": 5}']
    put(path, user("a"), *bad, line(user("torn"))[:12] + line(user("b")), user("c"))
    findings: list[Finding] = []
    messages = await ContextFile(path).messages(on_finding=findings.append)
    assert [message.text for message in messages] == ["a", "b", "c"]
    assert [finding.line_number for finding in findings] == [2, 3, 4, 5, 6, 7, 8]
    offset = len(line(user("a"))) + 1
    for finding, raw in zip(findings, bad, strict=False):
        assert (finding.offset, finding.length) == (offset, len(raw))
        offset += len(raw) + 1
    assert len(caplog.records) == 7
    assert await texts(ContextFile(path), 99) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "raw,text",
    [
        (b'{"role":"user","content":"tab\there"}', "tab\there"),
        (b'{"role":"user","content":"bad \xff"}', "bad \ufffd"),
        (b'{"role":"user","content":"half \\ud83d"}', "half \ud83d"),
        (b'{"role":"user","content":null}', ""),
        (b'{"role":"user"}', ""),
        (b'{"role":"user","content":[]}', ""),
        (b'{"content":"order","role":"user"}', "order"),
        (b'\xef\xbb\xbf{"role": "user", "content": "mark"}\r', "mark"),
    ],
)
async def test_what_old_clients_wrote_loosely_is_read(path: Path, raw: bytes, text: str) -> None:
    """From the beginning and from the end alike."""
    put(path, user("before"), raw, user("after"))
    for limit in (None, 3):
        assert await texts(ContextFile(path), limit) == ["before", text, "after"]


async def test_a_torn_tail_does_not_swallow_the_next_message(path: Path) -> None:
    """It stays, and the new one is readable; one that lacked only its newline becomes whole."""
    path.write_bytes(line(user("a")) + b"\n" + line(user("torn"))[:15])
    context = ContextFile(path)
    await context.append(user("b"))
    assert await texts(context) == ["a", "b"]
    path.write_bytes(line(user("a")))
    await context.append(user("b"))
    assert await texts(context) == ["a", "b"]


@pytest.mark.parametrize("place", ["folder", "pipe", "link"])
async def test_a_context_that_is_no_file_is_an_error_and_not_an_empty_history(path: Path, place: str) -> None:
    """An agent must not go on as if nothing had been said."""
    if place == "folder":
        path.mkdir()
    elif place == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("x")
    context = ContextFile(path)
    for limit in (None, 1):
        with pytest.raises(OSError, match="regular"):
            await context.messages(limit)
    with pytest.raises(OSError, match="regular"):
        _ = context.history
    with pytest.raises(WriteError):
        await context.append(user("a"))


async def test_an_append_into_a_folder_that_is_not_there_makes_none(tmp_path: Path) -> None:
    """It is not found."""
    with pytest.raises(SessionNotFoundError):
        await ContextFile(tmp_path / "missing" / "context.jsonl").append(user("a"))
    assert os.listdir(tmp_path) == []


LINES = st.lists(
    st.one_of(
        st.sampled_from("abc").map(lambda text: line(user(text))),
        st.sampled_from(
            [
                b"",
                b"junk",
                b"[]",
                line({"role": "_checkpoint", "id": 1}),
                line({"role": "_usage", "token_count": 5}),
                line({"role": "assistant", "content": [{"type": "think", "think": "x"}]}),
                line(user("glued")) + line(user("twice")),
                line(user("torn"))[:14] + line(user("whole")),
                b'{"role": "user", "content": [{"type": "novelty"}]}',
                b'{"role": "user", "content": "big", "n": 123456789012345678901}',
                b'{"role":"user","content":"dup","content":"last"}',
                b'{"role":"user","role":"_usage","content":"x","token_count":1}',
                b'{"role":"user","content":"x","tool_calls":5}',
                b'{"role":"assistant","content":"x","partial":"?"}',
            ]
        ),
        st.tuples(st.sampled_from([line(user("some text"))]), st.integers(0, 30)).map(
            lambda pair: pair[0][: pair[1]]
        ),
    ),
    max_size=10,
)


@given(LINES, st.booleans(), st.integers(0, 12))
def test_the_newest_messages_are_the_end_of_all_messages(lines: list[bytes], ended: bool, limit: int) -> None:
    """Whatever lies in the log, both ways of reading agree, and so does a reader that saw it grow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "context.jsonl")
        data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
        path.write_bytes(data[: len(data) // 2])
        growing = ContextFile(path)
        _ = growing.history
        path.write_bytes(data)
        everything = [message.model_dump() for message in ContextFile(path)._messages(None, None)]
        newest = [message.model_dump() for message in ContextFile(path)._messages(limit, None)]
        assert newest == (everything[-limit:] if limit else [])
        assert growing.history == ContextFile(path).history


# --- facts ---------------------------------------------------------------------------------------------------------


async def test_facts_are_the_last_ones_and_follow_the_file(path: Path) -> None:
    """Also what another program appends, and when the log is replaced."""
    context, other = ContextFile(path), ContextFile(path)
    await context.set_system_prompt("be nice")
    await context.set_usage(10)
    assert await context.checkpoint() == 0
    await other.set_usage(20)
    assert await other.checkpoint() == 1
    facts = context.history
    assert (facts.system_prompt, facts.token_count, facts.next_checkpoint_id) == ("be nice", 20, 2)
    path.unlink()
    assert context.history.next_checkpoint_id == 0
    put(path, {"role": "_usage", "token_count": 7})
    assert context.history.token_count == 7


async def test_an_unfinished_control_record_counts_once_it_is_whole(path: Path) -> None:
    """A reader that looked in between is not confused."""
    put(path, {"role": "_usage", "token_count": 1})
    context = ContextFile(path)
    assert context.history.token_count == 1
    record = line({"role": "_usage", "token_count": 2})
    with path.open("ab") as file:
        file.write(record[:-3])
        file.flush()
        assert context.history.token_count == 1
        file.write(record[-3:])
        file.flush()
        assert context.history.token_count == 2
        file.write(b"\n" + line({"role": "_usage", "token_count": 3}) + b"\n")
    assert context.history.token_count == 3


async def test_checkpoints_of_two_writers_all_have_ids_of_their_own(path: Path) -> None:
    """Each is one more than the last one in the log."""
    one, two = ContextFile(path), ContextFile(path)
    ids = await asyncio.gather(*(context.checkpoint() for _ in range(10) for context in (one, two)))
    assert sorted(ids) == list(range(20))


# --- system prompt -------------------------------------------------------------------------------------------------


async def test_a_system_prompt_is_the_first_record(path: Path) -> None:
    """Of an empty context at once, of one with messages by a rewrite; the same again changes nothing."""
    context = ContextFile(path)
    await context.set_system_prompt("first")
    await context.append(user("a"))
    before = path.read_bytes()
    await context.set_system_prompt("first")
    assert path.read_bytes() == before
    await context.set_system_prompt("second")
    assert context.history.system_prompt == "second"
    assert path.read_bytes().startswith(before)
    put(path, user("a"), b"{torn")
    await context.set_system_prompt("late")
    assert json.loads(path.read_bytes().splitlines()[0]) == {"role": "_system_prompt", "content": "late"}
    assert path.read_bytes().endswith(line(user("a")) + b"\n{torn\n")
    assert await texts(context) == ["a"]


# --- going back ----------------------------------------------------------------------------------------------------


async def talk(context: ContextFile) -> None:
    """Append a prompt, and two turns with a checkpoint before each."""
    await context.set_system_prompt("be nice")
    for text in ("a", "b"):
        await context.checkpoint()
        await context.append([user(text), {"role": "assistant", "content": f"re {text}"}])


async def test_going_back_keeps_what_lies_before_the_checkpoint_and_the_whole_old_log(path: Path) -> None:
    """Under the next free name; the next checkpoint has the id that it would have had then."""
    context = ContextFile(path)
    await talk(context)
    old = path.read_bytes()
    assert await context.revert_to(1) == "context_1.jsonl"
    assert await texts(context) == ["a", "re a"]
    assert (path.parent / "context_1.jsonl").read_bytes() == old
    assert context.history.next_checkpoint_id == 1
    assert await context.checkpoint() == 1
    assert await context.revert_to(0) == "context_2.jsonl"
    assert await texts(context) == []
    assert context.history.system_prompt == "be nice"


@pytest.mark.parametrize("checkpoint_id", [2, 99, -1])
async def test_a_checkpoint_that_is_not_there_changes_nothing(path: Path, checkpoint_id: int) -> None:
    """The error says which is the next one."""
    context = ContextFile(path)
    await talk(context)
    before = path.read_bytes()
    with pytest.raises(CheckpointNotFoundError) as caught:
        await context.revert_to(checkpoint_id)
    assert (caught.value.checkpoint_id, caught.value.next_checkpoint_id) == (checkpoint_id, 2)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("context_*"))
    with pytest.raises(CheckpointNotFoundError):
        await ContextFile(path.with_name("missing.jsonl")).revert_to(0)


async def test_a_damaged_checkpoint_is_none(path: Path) -> None:
    """Nothing is cut on a guess; bytes before a good one are kept as they are, bad ones too."""
    put(
        path,
        user("a"),
        b'{"role": "_checkpoint", "id": 0',
        b"\xff bad",
        {"role": "_checkpoint", "id": 1},
        user("b"),
    )
    context = ContextFile(path)
    with pytest.raises(CheckpointNotFoundError):
        await context.revert_to(0)
    await context.revert_to(1)
    assert path.read_bytes().endswith(b"\n\xff bad\n")
    assert await texts(context) == ["a"]


async def test_clearing_keeps_the_old_context_under_a_name_never_used_before(path: Path) -> None:
    """One past the highest there is; an empty or missing one has nothing to keep."""
    context = ContextFile(path)
    assert await context.clear() is None
    assert path.read_bytes() == b""
    assert await context.clear() is None
    (path.parent / "context_7.jsonl").write_bytes(b"earlier\n")
    await talk(context)
    old = path.read_bytes()
    assert await context.clear() == "context_8.jsonl"
    assert (path.parent / "context_8.jsonl").read_bytes() == old
    assert (path.parent / "context_7.jsonl").read_bytes() == b"earlier\n"
    assert path.read_bytes() == b""
    assert context.history.next_checkpoint_id == 0
    await context.append(user("new"))
    assert await texts(context) == ["new"]
    assert {
        p.stat().st_mode & 0o777 for p in path.parent.glob("context*") if p.name != "context_7.jsonl"
    } == {0o600}


async def test_another_opener_sees_the_new_log_after_a_clear(path: Path) -> None:
    """What it appends then goes there, and not into the old one."""
    one, two = ContextFile(path), ContextFile(path)
    await one.append(user("a"))
    await two.append(user("b"))
    kept = await one.clear()
    await two.append(user("c"))
    assert await texts(one) == await texts(two) == ["c"]
    assert kept is not None
    assert await texts(ContextFile(path.with_name(kept))) == ["a", "b"]
    one.close()
    await one.append(user("d"))
    assert await texts(two) == ["c", "d"]
