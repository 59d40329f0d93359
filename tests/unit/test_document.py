"""A document is read forgivingly, replaced whole, and never loses what it could not read."""

from __future__ import annotations

import errno
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sessions import _fs
from kimi_sessions._document import (
    Document,
    dump_document,
    parse_document,
    read_document,
    set_aside,
    update_document,
)
from kimi_sessions.errors import WriteError

OLD = {"title": "old", "unknown": [1, {"deep": "项目"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """Give a descriptor of this test's folder."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def update(folder: int, change: Callable[[Document], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Update the document under test."""
    return update_document("doc.json", change, dir_fd=folder, folder="/the/folder")


# --- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data,value",
    [
        (b"{}", {}),
        (b'{"a": 1}', {"a": 1}),
        (b' \n{"a": 1}\n', {"a": 1}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": 1}' + b"\0" * 50, {"a": 1}),
        (b'{"a": "bad \xff"}', {"a": "bad \ufffd"}),
        (b'{"a": "tab\there"}', {"a": "tab\there"}),
        (b'{"a": 123456789012345678901}', {"a": 123456789012345678901}),
        (b'{"a": "\\ud83d"}', {"a": "\ud83d"}),
    ],
)
def test_a_document_is_read_without_a_word_about_what_does_no_harm(
    data: bytes, value: dict[str, Any]
) -> None:
    """Padding, marks, broken UTF-8, raw controls, big integers."""
    document = parse_document(data)
    assert (document.value, document.problem, document.whole) == (value, "", True)


@pytest.mark.parametrize(
    "data,problem",
    [
        (b"{bad json", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"\0" * 100, "empty"),
        (b" \n", "blank"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not valid JSON"),
    ],
)
def test_a_damaged_document_is_none_with_a_reason_and_its_bytes_are_worth_keeping(
    data: bytes, problem: str
) -> None:
    """Nothing of it may be thrown away by a save."""
    document = parse_document(data)
    assert document.value is None
    assert problem in document.problem
    assert not document.whole


def test_an_empty_file_is_none_and_holds_nothing_to_keep() -> None:
    """What a crash between create and write leaves."""
    assert parse_document(b"") == Document(None, "empty", whole=True)


def test_an_old_end_after_a_shorter_document_does_not_hide_it() -> None:
    """Written over a longer one without truncation: the first object counts, the rest is told and not whole."""
    document = parse_document(b'{"a": 1}longer": 2}')
    assert document.value == {"a": 1}
    assert "11 characters of junk" in document.problem
    assert not document.whole


def test_a_missing_document_is_no_problem(folder: int) -> None:
    """It is simply not there."""
    assert read_document("doc.json", dir_fd=folder) == Document(None, exists=False)


@pytest.mark.parametrize("place", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/hostname", path)])
def test_what_is_no_regular_file_is_a_problem_and_is_not_opened(
    folder: int, tmp_path: Path, place: Callable[[Path], None]
) -> None:
    """Folders, pipes and links are named, not followed, not waited for; and never written over."""
    place(tmp_path / "doc.json")
    document = read_document("doc.json", dir_fd=folder)
    assert document.value is None
    assert "not a regular file" in document.problem
    before = (tmp_path / "doc.json").lstat()
    with pytest.raises(WriteError, match="not a regular file"):
        update(folder, lambda _: {"a": 1})
    assert (tmp_path / "doc.json").lstat() == before
    assert os.listdir(tmp_path) == ["doc.json"]


def test_a_huge_file_is_not_read_into_memory(folder: int, tmp_path: Path) -> None:
    """A document is small; a sparse gigabyte of this name is something else."""
    with (tmp_path / "doc.json").open("wb") as file:
        file.truncate(1 << 30)
    document = read_document("doc.json", dir_fd=folder)
    assert document.value is None
    assert "too large" in document.problem


# --- writing -------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=())),
        st.one_of(st.text(st.characters(exclude_categories=())), st.integers(), st.booleans(), st.none()),
    )
)
def test_what_was_dumped_reads_as_the_same_document(value: dict[str, Any]) -> None:
    """Any text, half pairs too, and integers of any size. Two halves side by side are one character afterwards."""
    assert parse_document(dump_document(value)) == Document(_joined(value))


def _joined(value: dict[str, Any]) -> dict[str, Any]:
    def join(text: str) -> str:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    return {join(key): join(each) if isinstance(each, str) else each for key, each in value.items()}


def test_a_document_is_written_as_the_client_writes_its_own() -> None:
    """Two spaces of indent, other scripts as they are."""
    assert dump_document({"标题": ["a"]}) == '{\n  "标题": [\n    "a"\n  ]\n}'.encode()


def test_a_document_too_deep_or_too_large_for_indents_is_written_without() -> None:
    """What could be read can be written again, and what was written be read."""
    deep = parse_document(b'{"a": ' + b"[" * 600 + b"]" * 600 + b"}")
    wide = parse_document(b'{"a": [' + b"0," * 3_000_000 + b"0]}")
    for document in (deep, wide):
        assert document.value is not None
        assert parse_document(dump_document(document.value)) == document


def test_a_document_that_could_not_be_read_again_is_not_written(folder: int, tmp_path: Path) -> None:
    """Too deep for the encoder, or larger than a reader takes: the old one stays."""
    (tmp_path / "doc.json").write_bytes(dump_document(OLD))
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    for value, reason in (({"a": deep}, "nested too deeply"), ({"a": "x" * (17 << 20)}, "too large")):
        with pytest.raises(WriteError, match=reason):
            update(folder, lambda _, value=value: value)  # type: ignore[misc]
        assert json.loads((tmp_path / "doc.json").read_bytes()) == OLD
    assert os.listdir(tmp_path) == ["doc.json"]


def test_an_update_sees_the_disk_and_replaces_the_whole_file(folder: int, tmp_path: Path) -> None:
    """What it returns is what is there; private, and nothing else is left in the folder."""
    (tmp_path / "doc.json").write_bytes(dump_document(OLD))
    written = update(folder, lambda document: {**(document.value or {}), "title": "new"})
    assert written == {**OLD, "title": "new"}
    assert json.loads((tmp_path / "doc.json").read_bytes()) == written
    assert (tmp_path / "doc.json").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["doc.json"]


def test_an_update_that_wants_nothing_writes_nothing(folder: int, tmp_path: Path) -> None:
    """Not even a new inode."""
    path = tmp_path / "doc.json"
    path.write_bytes(b"{}")

    def written() -> tuple[int, ...]:
        # Not the time of the last look, which a look may move.
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    before = written()
    assert update(folder, lambda _: None) is None
    assert written() == before


def test_a_reader_sees_the_old_or_the_new_document(folder: int, tmp_path: Path) -> None:
    """An open descriptor still has the old one, whole, although it is longer."""
    (tmp_path / "doc.json").write_bytes(dump_document(OLD))
    with (tmp_path / "doc.json").open("rb") as reader:
        update(folder, lambda _: {"a": 1})
        assert json.loads(reader.read()) == OLD
    assert json.loads((tmp_path / "doc.json").read_bytes()) == {"a": 1}


@pytest.mark.parametrize("damaged", [b"{bad json", b"[]", b"\0\0", b'{"a": 1}junk'])
def test_a_damaged_file_is_set_aside_before_it_is_replaced(
    folder: int, tmp_path: Path, damaged: bytes
) -> None:
    """Byte for byte, under a name that is never used again."""
    for number in (1, 2):
        (tmp_path / "doc.json").write_bytes(damaged + b"%d" % number)
        update(folder, lambda document: {"was": document.problem})
        assert (tmp_path / f"doc.json.damaged-{number}").read_bytes() == damaged + b"%d" % number
    assert len(os.listdir(tmp_path)) == 3


def test_an_empty_file_is_replaced_without_ceremony(folder: int, tmp_path: Path) -> None:
    """There is nothing in it to keep."""
    (tmp_path / "doc.json").write_bytes(b"")
    update(folder, lambda _: {"a": 1})
    assert os.listdir(tmp_path) == ["doc.json"]


def test_a_document_that_another_program_replaced_meanwhile_is_merged_anew(
    folder: int, tmp_path: Path
) -> None:
    """The real client takes no lock: its change is not lost, the change is asked for again."""
    (tmp_path / "doc.json").write_bytes(b'{"n": 1}')
    seen = []

    def change(document: Document) -> dict[str, Any]:
        assert document.value is not None
        seen.append(document.value)
        if len(seen) == 1:
            (tmp_path / "other").write_bytes(b'{"n": 2, "theirs": true}')
            (tmp_path / "other").rename(tmp_path / "doc.json")
        return {**document.value, "mine": True}

    assert update(folder, change) == {"n": 2, "theirs": True, "mine": True}
    assert seen == [{"n": 1}, {"n": 2, "theirs": True}]
    assert os.listdir(tmp_path) == ["doc.json"]


def test_a_document_that_never_holds_still_is_an_error_in_the_end(folder: int, tmp_path: Path) -> None:
    """And the other program's version stays."""
    path = tmp_path / "doc.json"
    count = 0

    def change(document: Document) -> dict[str, Any]:
        nonlocal count
        count += 1
        path.write_bytes(b'{"theirs": %d}' % (10**count))
        return {"mine": True}

    with pytest.raises(WriteError, match="keeps changing"):
        update(folder, change)
    assert "theirs" in json.loads(path.read_bytes())
    assert os.listdir(tmp_path) == ["doc.json"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open_new"])
@pytest.mark.parametrize("before", [None, dump_document(OLD), b"{bad"])
def test_an_update_that_fails_leaves_the_old_file_and_no_temp_file(
    folder: int, tmp_path: Path, call: str, before: bytes | None
) -> None:
    """Whichever call fails, the error names the file and the retry works."""
    path = tmp_path / "doc.json"
    if before is not None:
        path.write_bytes(before)

    class Failing(_fs.OsFileSystem):
        def __init__(self) -> None:
            def fail(*args: object, **kwargs: object) -> Any:
                raise OSError(errno.ENOSPC, "No space left on device")

            def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
                return fail() if flags & os.O_CREAT else os.open(path, flags, *args, **kwargs)

            setattr(self, "open" if call == "open_new" else call, open_ if call == "open_new" else fail)

    with _fs.using(Failing()), pytest.raises(WriteError) as caught:
        update(folder, lambda _: {"a": 1})
    assert (caught.value.errno, caught.value.path) == (errno.ENOSPC, "/the/folder/doc.json")
    assert (path.read_bytes() if path.exists() else None) == before
    assert not [name for name in os.listdir(tmp_path) if "tmp" in name]
    assert update(folder, lambda _: {"a": 1}) == {"a": 1}


def test_a_change_that_fails_with_an_error_of_ours_keeps_its_cause(folder: int) -> None:
    """What the change itself raised comes through as it was: with the system's error behind it, fit for pickling."""

    def change(_: Document) -> dict[str, Any] | None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise WriteError.of(error, "/the/seal") from error

    with pytest.raises(WriteError, match="/the/seal") as caught:
        update(folder, change)
    assert isinstance(caught.value.__cause__, OSError)
    assert not isinstance(caught.value.__cause__, WriteError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_setting_aside_works_without_hard_links(folder: int, tmp_path: Path) -> None:
    """By a private copy, under the next free name."""
    (tmp_path / "doc.json").write_bytes(b"{bad")
    (tmp_path / "doc.json.damaged-1").write_bytes(b"earlier")

    class NoLinks(_fs.OsFileSystem):
        def __init__(self) -> None:
            def link(*args: object, follow_symlinks: bool = False, **kwargs: object) -> None:
                if os.path.exists(tmp_path / str(args[1])):
                    raise FileExistsError
                raise OSError(errno.EPERM, "no links here")

            self.link = link

    with _fs.using(NoLinks()):
        assert set_aside("doc.json", dir_fd=folder) == "doc.json.damaged-2"
    assert (tmp_path / "doc.json.damaged-1").read_bytes() == b"earlier"
    assert (tmp_path / "doc.json.damaged-2").read_bytes() == b"{bad"
    assert (tmp_path / "doc.json.damaged-2").stat().st_mode & 0o777 == 0o600


def test_setting_aside_without_hard_links_never_overwrites(folder: int, tmp_path: Path) -> None:
    """Where the file system refuses every link before it looks whether the name is taken."""
    (tmp_path / "doc.json").write_bytes(b"{bad")
    (tmp_path / "doc.json.damaged-1").write_bytes(b"earlier")

    class NoLinks(_fs.OsFileSystem):
        def __init__(self) -> None:
            def link(*args: object, **kwargs: object) -> None:
                raise OSError(errno.EPERM, "no links here")

            self.link = link

    with _fs.using(NoLinks()):
        assert set_aside("doc.json", dir_fd=folder) == "doc.json.damaged-2"
    assert (tmp_path / "doc.json.damaged-1").read_bytes() == b"earlier"
