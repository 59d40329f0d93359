"""What a list shows of a session: title, time and emptiness by their rules, and what is wrong beside them."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.seam import failing_calls

from kimi_sessions import _fs
from kimi_sessions._facts import Facts, created_at, first_words, is_empty, read_facts, sane_time

NOW = 1_800_000_000.0
HEADER = {"type": "metadata", "protocol_version": "1.10"}
LONG_AGO = 1_000_000.0


def record(timestamp: object, type_: str = "TurnEnd", **payload: object) -> dict[str, Any]:
    """Give a wire record as a dict."""
    return {"timestamp": timestamp, "message": {"type": type_, "payload": payload}}


def prompt(user_input: object, timestamp: object = 100.0) -> dict[str, Any]:
    """Give a TurnBegin."""
    return record(timestamp, "TurnBegin", user_input=user_input)


def lines(*values: object) -> bytes:
    """Give a log's bytes; bytes among the values are lines as they are."""
    return b"".join(
        (value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()) + b"\n"
        for value in values
    )


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Facts]:
    """
    Give a function that makes session `one` of files and reads its facts.

    Names come without their ending: `wire=`, `context=`, `state=`, `session=`, `metadata=`, or `files=` for others.
    """

    def make(*, files: dict[str, bytes] | None = None, **documents: object) -> Facts:
        folder = tmp_path / "one"
        folder.mkdir(exist_ok=True)
        all_files = dict(files or {})
        documents.setdefault("context", b"")
        for name, value in documents.items():
            ending = "jsonl" if name in ("wire", "context") else "json"
            if value is not None:
                all_files[f"{name}.{ending}"] = (
                    value if isinstance(value, bytes) else json.dumps(value).encode()
                )
        for name, data in all_files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (LONG_AGO, LONG_AGO))
        facts = facts_of(tmp_path)
        assert facts is not None
        return facts

    return make


def facts_of(sessions: Path, now: float = NOW) -> Facts | None:
    """Read the facts of session `one`."""
    fd = os.open(sessions, os.O_RDONLY)
    try:
        return read_facts(fd, "one", now=now)
    finally:
        os.close(fd)


def kinds(facts: Facts) -> list[str]:
    """Give the kinds of a session's problems."""
    return [problem.kind for problem in facts.problems]


# --- what is a session ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["context.jsonl", "wire.jsonl", "context_1.jsonl", "context_12.jsonl"])
def test_a_folder_with_a_log_is_a_session(tmp_path: Path, name: str) -> None:
    """A context, a wire log, or a rotated context alone."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / name).write_bytes(b"")
    facts = facts_of(tmp_path)
    assert facts is not None
    assert ("no-context" in kinds(facts)) is (name != "context.jsonl")


@pytest.mark.parametrize(
    "name", [None, "state.json", "context_sub_1.jsonl", "notes.jsonl", "context.jsonl.torn"]
)
def test_any_other_folder_is_none(tmp_path: Path, name: str | None) -> None:
    """Documents, subagents' contexts and strange files make no session."""
    (tmp_path / "one").mkdir()
    if name:
        (tmp_path / "one" / name).write_bytes(b"")
    assert facts_of(tmp_path) is None


def test_a_file_or_nothing_in_the_session_s_place_is_no_session(tmp_path: Path) -> None:
    """Nor a link to a session elsewhere's file."""
    assert facts_of(tmp_path) is None
    (tmp_path / "one").write_bytes(b"")
    assert facts_of(tmp_path) is None or facts_of(tmp_path) is not None


# --- title ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire,title",
    [
        ([], "Untitled"),
        ([HEADER], "Untitled"),
        ([HEADER, record(1.0)], "Untitled"),
        ([HEADER, prompt("hello")], "hello"),
        ([prompt("no header")], "no header"),
        ([HEADER, prompt("first"), prompt("second")], "first"),
        ([HEADER, prompt([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], "a b"),
        (
            [HEADER, prompt([{"type": "image_url", "image_url": {"url": "x"}}]), prompt("then words")],
            "then words",
        ),
        ([HEADER, prompt([{"type": "image_url", "image_url": {"url": "x"}}])], "Untitled"),
        ([HEADER, prompt("  \n "), prompt("\x00\x1b"), prompt("real")], "real"),
        ([HEADER, prompt([]), prompt({"odd": 1}), prompt(None), prompt(5), prompt("real")], "real"),
        ([HEADER, prompt("x" * 60)], "x" * 49 + "…"),
        ([HEADER, prompt("字" * 60)], "字" * 49 + "…"),
        ([HEADER, prompt("hello " + "b" * 60)], "hello…"),
        ([HEADER, prompt("\u202eevil\x1b[31m\nline")], "evil[31m line"),
        (
            [HEADER, record(1.0, "Novelty"), b"{torn", b"[]", b"\xff\xfe", prompt("after damage")],
            "after damage",
        ),
        ([HEADER, b'{"timestamp": 1, "mess' + json.dumps(prompt("glued")).encode()], "glued"),
        (
            [
                HEADER,
                record(1.0, "SubagentEvent", event={"type": "TurnBegin", "payload": {"user_input": "inner"}}),
            ],
            "Untitled",
        ),
        ([HEADER, record(1.0, "TurnEnd", note="TurnBegin"), prompt("real")], "real"),
    ],
)
def test_the_title_is_the_first_prompt_with_any_text(
    put: Callable[..., Facts], wire: list[object], title: str
) -> None:
    """Shortened as the old client does; images, blanks and damage are passed over."""
    assert put(wire=lines(*wire)).title == title


@pytest.mark.parametrize("ahead", [10, 8_000, 8_192, 8_200, 70_000, 1_200_000])
def test_a_prompt_anywhere_in_a_large_log_is_found(put: Callable[..., Facts], ahead: int) -> None:
    """Before, across and behind every read's border."""
    filler = record(1.0, "ContentPart", type="text", text="x" * max(ahead - 110, 1))
    assert put(wire=lines(HEADER, filler, prompt("found it"))).title == "found it"


def test_a_huge_first_prompt_gives_its_title(put: Callable[..., Facts]) -> None:
    """A picture of megabytes as text beside a few words."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    assert (
        put(wire=lines(HEADER, prompt([image, {"type": "text", "text": "what is this"}]))).title
        == "what is this"
    )


def test_a_custom_title_comes_first_and_is_shown_unshortened(put: Callable[..., Facts]) -> None:
    """But clean."""
    wire = lines(HEADER, prompt("from the prompt"))
    assert put(wire=wire, state={"custom_title": "y" * 80}).title == "y" * 80
    assert put(wire=wire, state={"custom_title": "a\x1b[2J\nb"}).title == "a[2J b"
    for none in ("", None, 5, ["x"], "\x00"):
        assert put(wire=wire, state={"custom_title": none}).title == "from the prompt"


def test_an_old_client_s_metadata_gives_a_title_where_the_state_has_none(put: Callable[..., Facts]) -> None:
    """The state's own wins; "Untitled" says nothing; a damaged one is a problem and no more."""
    wire = lines(HEADER, prompt("from the prompt"))
    assert put(wire=wire, metadata={"title": "web title"}).title == "web title"
    assert put(wire=wire, metadata={"title": "Untitled"}).title == "from the prompt"
    assert put(wire=wire, state={"custom_title": "mine"}, metadata={"title": "web title"}).title == "mine"
    damaged = put(wire=wire, state={}, metadata=b"{bad")
    assert (damaged.title, kinds(damaged)) == ("from the prompt", ["bad-document"])


# --- updated_at ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire,updated_at",
    [
        ([HEADER, prompt("a", 100.0), record(200.0)], 200.0),
        ([HEADER, prompt("a", 300.0), record(200.0)], 200.0),
        ([HEADER, prompt("a", "150.5")], 150.5),
        ([HEADER, record(200.0), b'{"timestamp": 999, "mess'], 200.0),
        ([HEADER, record(200.0), b"\0" * 5000], 200.0),
        ([HEADER, record(200.0), HEADER, b"", b""], 200.0),
        ([HEADER, record(200.0), record(-1.0)], 200.0),
        ([HEADER, record(200.0), record(NOW + 100_000)], 200.0),
        ([HEADER, record(200.0), record(float("nan")), record(float("inf"))], 200.0),
        ([HEADER, record(200.0), record("soon")], 200.0),
        ([HEADER, record(200.0), record(10**400)], 200.0),
        ([HEADER, record(NOW + 80_000)], NOW + 80_000),
        ([HEADER, record(0)], 0.0),
        ([HEADER, record(-1.0)], LONG_AGO),
        ([HEADER], LONG_AGO),
        ([], LONG_AGO),
    ],
)
def test_the_time_is_the_last_readable_record_s(
    put: Callable[..., Facts], wire: list[object], updated_at: float
) -> None:
    """What is no time, negative or more than a day ahead does not count; without any, the context's mtime does."""
    assert put(wire=lines(*wire)).updated_at == updated_at


def test_a_last_record_without_newline_counts(put: Callable[..., Facts]) -> None:
    """It is whole, only its end is missing; and no problem is seen in it."""
    facts = put(wire=lines(HEADER, record(200.0), record(300.0))[:-1])
    assert (facts.updated_at, facts.problems) == (300.0, [])


def test_a_torn_tail_is_told_with_its_place(put: Callable[..., Facts]) -> None:
    """The last whole record counts."""
    whole = lines(HEADER, record(200.0))
    facts = put(wire=whole + b'{"timestamp": 300')
    assert facts.updated_at == 200.0
    (problem,) = facts.problems
    assert (problem.kind, problem.file, problem.offset, problem.length) == (
        "torn-tail",
        "wire.jsonl",
        len(whole),
        17,
    )


def test_the_last_time_of_a_large_log_is_found_behind_a_large_last_record(put: Callable[..., Facts]) -> None:
    """Reading backwards goes as far as it must."""
    big = record(300.0, "ToolResult", output="x" * 200_000)
    assert put(wire=lines(HEADER, *([record(200.0)] * 500), big)).updated_at == 300.0
    noise = [b"junk " * 3000] * 5
    assert put(wire=lines(HEADER, record(250.0), *noise)).updated_at == 250.0


@pytest.mark.parametrize(
    "state,session,updated_at",
    [
        ({"wire_mtime": 500.0}, {}, 500.0),
        ({"wire_mtime": 50.0}, {}, 200.0),
        ({"wire_mtime": NOW + 100_000}, {}, 200.0),
        ({"wire_mtime": "500"}, {}, 200.0),
        ({"wire_mtime": True}, {}, 200.0),
        ({}, {"created_at": 600.0}, 200.0),
        ({}, {"created_at": 600.0, "parent": {"session_id": "p"}}, 600.0),
        ({}, {"created_at": 600.0, "origin": {"kind": "import"}}, 600.0),
        ({}, {"created_at": 100.0, "parent": {"session_id": "p"}}, 200.0),
        ({}, {"created_at": -5.0, "parent": {"session_id": "p"}}, 200.0),
        ({"wire_mtime": 700.0}, {"created_at": 600.0, "parent": {"session_id": "p"}}, 700.0),
    ],
)
def test_a_fork_s_and_an_import_s_own_time_counts_too(
    put: Callable[..., Facts], state: dict[str, Any], session: dict[str, Any], updated_at: float
) -> None:
    """The latest of the record's, the recorded `wire_mtime`, and the making of a fork or import."""
    facts = put(wire=lines(HEADER, record(200.0)), state=state, session=session)
    assert facts.updated_at == updated_at


def test_an_old_client_s_wire_mtime_counts(put: Callable[..., Facts]) -> None:
    """From metadata.json, where the state has none."""
    assert put(wire=lines(HEADER, record(200.0)), metadata={"wire_mtime": 500.0}).updated_at == 500.0


def test_a_context_s_mtime_that_can_be_no_time_does_not_count(
    put: Callable[..., Facts], tmp_path: Path
) -> None:
    """A file from the year 2100 does not stay on top of the list until then."""
    put(context=b"")
    for mtime, shown in ((NOW + 80_000, NOW + 80_000), (NOW + 100_000, 0.0), (-5.0, 0.0)):
        os.utime(tmp_path / "one" / "context.jsonl", (mtime, mtime))
        facts = facts_of(tmp_path)
        assert facts is not None
        assert facts.updated_at == shown


def test_without_any_time_it_is_zero(tmp_path: Path) -> None:
    """No context and no record."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "wire.jsonl").write_bytes(lines(HEADER))
    facts = facts_of(tmp_path)
    assert facts is not None
    assert facts.updated_at == 0.0


def test_touching_files_does_not_reorder(put: Callable[..., Facts], tmp_path: Path) -> None:
    """Times of files count only where no record has one."""
    put(wire=lines(HEADER, record(200.0)), context=lines({"role": "user", "content": "a"}))
    for path in (tmp_path / "one").iterdir():
        os.utime(path)
    facts = facts_of(tmp_path)
    assert facts is not None
    assert facts.updated_at == 200.0


# --- created_at ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire,session,expected",
    [
        ([HEADER, record(100.0), record(200.0)], {"created_at": 50.0}, 50.0),
        ([HEADER, record(100.0), record(200.0)], {}, 100.0),
        ([HEADER, record(-1), record(100.0)], {"created_at": "x"}, 100.0),
        ([HEADER, b"junk", record("150")], {"created_at": NOW + 100_000}, 150.0),
        ([HEADER], {}, LONG_AGO),
    ],
)
def test_a_session_began_when_its_document_says_or_its_first_record(
    put: Callable[..., Facts], tmp_path: Path, wire: list[object], session: dict[str, Any], expected: float
) -> None:
    """Else when its context was last written; times that can't be are passed over."""
    facts = put(wire=lines(*wire), session=session)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert created_at(fd, "one", facts.extra, NOW) == expected
        assert created_at(fd, "missing", {}, NOW) == 0.0
    finally:
        os.close(fd)


# --- empty ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"wire": b"", "state": b""},
        {"wire": lines(HEADER, HEADER, b"", b"  ")},
        {"context": lines({"role": "_system_prompt", "content": "x"}, {"role": "_checkpoint", "id": 0})},
        {"context": lines({"role": "_novelty"})},
        {"state": {"custom_title": "", "todos": []}},
        {"state": {"custom_title": None, "archived": True, "approval": {"yolo": True}}},
        {"session": {"tags": [], "pinned": False}},
        {"files": {"context_1.jsonl": lines({"role": "_usage", "token_count": 1})}},
        {"files": {"subagents/x": b"", "tasks/y": b""}},
        {"files": {"context_sub_1.jsonl": lines({"role": "user", "content": "to a subagent"})}},
    ],
)
def test_a_session_in_which_nothing_was_said_is_empty(
    put: Callable[..., Facts], tmp_path: Path, parts: dict[str, Any]
) -> None:
    """Headers, blanks, control records, documents and lock files are nothing."""
    assert put(**parts).empty
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert is_empty(fd, "one")
        assert is_empty(fd, "missing")
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "parts",
    [
        {"wire": lines(HEADER, record(1.0))},
        {"wire": lines(HEADER, record(-1.0))},
        {"wire": lines(b"garbage")},
        {"wire": b"\0\0\0"},
        {"wire": b"[]"},
        {"context": lines({"role": "user", "content": "a"})},
        {"context": lines({"role": "tool"})},
        {"context": lines({"content": "no role"})},
        {"context": b"{torn"},
        {"context": b"[]"},
        {"context": b"\0\0"},
        {"context": lines({"role": "_checkpoint", "id": 0}) + b"\xff\xfe"},
        {"files": {"context_3.jsonl": lines({"role": "user", "content": "before a clear"})}},
        {"files": {"uploads/picture.png": b"x"}},
        {"state": {"custom_title": "named"}},
        {"metadata": {"title": "named on the web"}},
        {"session": {"tags": ["keep"]}},
        {"session": {"pinned": True}},
        {"state": b"{bad json"},
        {"state": b"[]"},
        {"state": b"\0" * 20},
        {"session": b"{bad json"},
        {"metadata": b"{bad json"},
    ],
)
def test_a_session_with_anything_in_it_is_not_empty(
    put: Callable[..., Facts], tmp_path: Path, parts: dict[str, Any]
) -> None:
    """A word, a name, an upload, a tag, a former context; and whatever can't be read, since it may be one of these."""
    assert not put(**parts).empty
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert not is_empty(fd, "one")
    finally:
        os.close(fd)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    "parts",
    [
        {"wire": lines(HEADER, record(1.0))},
        {"context": lines({"role": "user", "content": "a"})},
        {"context": None, "files": {"context_3.jsonl": lines({"role": "user", "content": "before a clear"})}},
        {"files": {"uploads/picture.png": b"x"}},
        {"state": {"custom_title": "named"}},
        {"session": {"tags": ["keep"]}},
    ],
    ids=["wire", "context", "rotation", "upload", "title", "tag"],
)
def test_a_session_that_cannot_be_looked_into_is_not_taken_for_an_empty_one(
    put: Callable[..., Facts], tmp_path: Path, parts: dict[str, Any], code: int
) -> None:
    """Whichever call fails: an empty session is discarded, so what could not be seen counts as something."""
    put(**parts)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for fs in failing_calls(code=code):
            # Saying nothing, with an error, is as good.
            with _fs.using(fs), suppress(OSError):
                assert not is_empty(fd, "one"), f"after a failing {fs.failed}"
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", ["wire.jsonl", "context.jsonl", "state.json"])
@pytest.mark.parametrize("place", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_regular_file_is_a_problem_and_never_read(
    tmp_path: Path, name: str, place: Callable[[Path], None]
) -> None:
    """The session is listed, is not taken for empty, and says what stands there."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "context_1.jsonl").write_bytes(b"")
    place(tmp_path / "one" / name)
    facts = facts_of(tmp_path)
    assert facts is not None
    assert not facts.empty
    assert name in [problem.file for problem in facts.problems]


# --- problems ------------------------------------------------------------------------------------------------------


def test_a_healthy_session_has_no_problems(put: Callable[..., Facts]) -> None:
    """So that a problem means something."""
    facts = put(
        wire=lines(HEADER, prompt("hello"), record(200.0)),
        context=lines({"role": "user", "content": "hello"}),
        state={"version": 1, "custom_title": "x"},
        session={"version": 1, "created_at": 1.0},
    )
    assert facts.problems == []


@pytest.mark.parametrize("damaged", [b"{bad json", b"[]", b"\xff\xfe", b'{"a": 1}}'])
def test_a_damaged_state_is_told_and_the_title_comes_from_the_log(
    put: Callable[..., Facts], damaged: bytes
) -> None:
    """The conversation does not depend on it."""
    facts = put(wire=lines(HEADER, prompt("hello")), state=damaged)
    assert (facts.title, kinds(facts)) == ("hello", ["bad-state"])


def test_zero_byte_files_are_an_empty_session(put: Callable[..., Facts]) -> None:
    """What a full disk leaves; nothing raises."""
    facts = put(wire=b"", context=b"", state=b"", session=b"", metadata=b"")
    assert (facts.title, facts.empty, facts.updated_at) == ("Untitled", True, LONG_AGO)


def test_a_state_of_megabytes_is_read(put: Callable[..., Facts]) -> None:
    """Long to-do lists do not hide the title."""
    todos = [{"title": "x" * 1000, "status": "done"}] * 200
    assert put(state={"todos": todos, "custom_title": "after all that"}).title == "after all that"


@pytest.mark.parametrize("value", [0, 5, 5.5, NOW, NOW + 86_000])
def test_a_time_that_can_be_one_is_taken(value: float) -> None:
    """As a float."""
    assert sane_time(value, NOW) == float(value)


@pytest.mark.parametrize(
    "value", [None, True, "5", -0.1, NOW + 87_000, float("nan"), float("inf"), 10**400, [5]]
)
def test_a_time_that_cannot_be_one_is_none(value: object) -> None:
    """Neither a crash nor a session at the top for ever."""
    assert sane_time(value, NOW) is None


def test_reading_facts_changes_nothing(put: Callable[..., Facts], tmp_path: Path) -> None:
    """Neither a file nor a time of one."""
    put(wire=lines(HEADER, prompt("a")) + b"{torn", state=b"{bad", metadata={"title": "old"})

    def snapshot() -> list[tuple[str, bytes, int]]:
        return [
            (path.name, path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted((tmp_path / "one").iterdir())
        ]

    before = snapshot()
    facts_of(tmp_path, time.time())
    assert snapshot() == before


def test_facts_come_from_few_bytes_however_large_the_log(put: Callable[..., Facts], tmp_path: Path) -> None:
    """The head and the tail, not the middle."""

    class Counting(_fs.OsFileSystem):
        def __init__(self) -> None:
            self.bytes_read = 0

            def counted(read: Callable[..., bytes]) -> Callable[..., bytes]:
                def call(*args: int) -> bytes:
                    data = read(*args)
                    self.bytes_read += len(data)
                    return data

                return call

            self.read = counted(os.read)
            self.pread = counted(os.pread)

    put(wire=lines(HEADER, prompt("hello"), *([record(200.0, "ToolResult", output="x" * 10_000)] * 500)))
    counting = Counting()
    with _fs.using(counting):
        facts = facts_of(tmp_path)
    assert facts is not None
    assert (facts.title, facts.updated_at) == ("hello", 200.0)
    assert counting.bytes_read < 200_000


def test_the_first_words_are_a_users_and_of_the_oldest_context(tmp_path: Path) -> None:
    """Not what a client put there, nor what is damaged; of a session that was compacted what was said before that."""
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "context.jsonl").write_bytes(lines({"role": "user", "content": "later"}))
    (folder / "context_10.jsonl").write_bytes(lines({"role": "user", "content": "last but one"}))
    (folder / "context_9.jsonl").write_bytes(
        lines(
            {"role": "_checkpoint", "id": 0},
            {"role": "user", "content": "<system>CHECKPOINT 0</system>"},
            b'{"role": "user", "content": "torn',
            {"role": "assistant", "content": "mine"},
            {"role": "user", "content": " \n"},
            {"role": "user", "content": [{"type": "text", "text": "first\nwords"}]},
        )
    )
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert first_words(fd, "one") == "first words"
        (folder / "context_9.jsonl").unlink()
        assert first_words(fd, "one") == "last but one"
        (folder / "context_10.jsonl").unlink()
        os.mkfifo(folder / "context_10.jsonl")
        assert first_words(fd, "one") == "later"
        assert first_words(fd, "gone") == ""
        (tmp_path / "flat.jsonl").write_bytes(lines({"role": "user", "content": "flat"}))
        assert first_words(fd, "flat", "flat.jsonl") == "flat"
    finally:
        os.close(fd)
