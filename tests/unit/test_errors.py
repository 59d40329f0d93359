"""Errors carry fields, make sentences of them, and cross process boundaries."""

from __future__ import annotations

import copy
import errno
import inspect
import pickle

import pytest

from kimi_sessions import errors
from kimi_sessions.errors import (
    AmbiguousIdError,
    CheckpointNotFoundError,
    DamagedError,
    Holder,
    HomeNotFoundError,
    InvalidIdError,
    InvalidRecordError,
    InvalidTurnError,
    LocksUnavailableError,
    MigrationError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    SessionsError,
    SourceNotFoundError,
    UnsupportedVersionError,
    UntrustedSessionError,
    WorkDirNotFoundError,
    WriteError,
)

HOLDER = Holder(pid=7, host="box", program="kimi", since=1_700_000_000.0)
EXAMPLES: list[tuple[SessionsError, str]] = [
    (SessionNotFoundError(session_id="x"), "no session 'x'"),
    (
        SessionNotFoundError(session_id="x", searched=("/a", "/b"), near=("xy",)),
        "no session 'x' in /a, /b (near: xy)",
    ),
    (SourceNotFoundError(path="/gone", reason="no Flux data"), "/gone: no Flux data"),
    (WorkDirNotFoundError(path="/gone"), "work dir '/gone' does not exist or is not a folder"),
    (HomeNotFoundError(variable="HOME"), "no home folder can be found for this user; set HOME"),
    (
        CheckpointNotFoundError(checkpoint_id=4, next_checkpoint_id=2),
        "no checkpoint 4; the next new one would be 2",
    ),
    (SessionExistsError(session_id="x", path="/a/x"), "session 'x' exists already at /a/x"),
    (AmbiguousIdError(prefix="x", candidates=("x1", "x2")), "'x' could be any of: x1, x2"),
    (
        InvalidIdError(value="a/b", reason="it may not contain '/'"),
        "'a/b' is not a valid id: it may not contain '/'",
    ),
    (InvalidTurnError(turn_index=9, turn_count=2), "turn 9 out of range: the session has turns 0 to 1"),
    (InvalidTurnError(turn_index=0, turn_count=0), "turn 0 out of range: the session has no turns"),
    (InvalidRecordError(reason="a torn record"), "a torn record"),
    (SessionBusyError(path="/a/.lock"), "/a is busy: another program has its .lock"),
    (SessionBusyError(path="/a/wire.jsonl"), "/a/wire.jsonl is busy"),
    (
        SessionBusyError(path="/a/.hold", holder=HOLDER),
        "/a is busy: held by kimi pid 7 on box since 2023-11-14 22:13:20 UTC",
    ),
    (
        UntrustedSessionError(session_id="x", path="/a/x"),
        "session 'x' at /a/x is not trusted: this user has not sealed it",
    ),
    (DamagedError(path="/a", reason="bad"), "/a: bad"),
    (DamagedError(path="/a", line_number=2, offset=30, reason="bad"), "/a, line 2, byte 30: bad"),
    (
        UnsupportedVersionError(path="/a", found="9", supported="1"),
        "/a has version 9; this library knows up to 1",
    ),
    (WriteError(path="/a", reason="disk full", code=errno.ENOSPC), "could not write /a: disk full"),
    (WriteError(path="/a"), "could not write /a: write failed"),
    (
        LocksUnavailableError(path="/a", reason="no locks", code=errno.ENOLCK),
        "could not write /a: this file system gives no file locks (no locks)",
    ),
    (MigrationError(step="copy"), "migration stopped at copy"),
    (
        MigrationError(step="copy", session_id="x", reason="disk full"),
        "migration stopped at copy of session 'x': disk full",
    ),
]


@pytest.mark.parametrize("error,sentence", EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_s_sentence_is_built_from_its_fields(error: SessionsError, sentence: str) -> None:
    """What a person reads."""
    assert str(error) == sentence


@pytest.mark.parametrize(
    "error", [example for example, _ in EXAMPLES], ids=lambda value: type(value).__name__
)
def test_an_error_survives_a_pickle_and_a_copy_with_fields_and_cause(error: SessionsError) -> None:
    """So it can be raised in a worker process and caught in another."""
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), repr(again)) == (str(error), repr(error))
        assert {name: getattr(again, name) for name in error._fields} == {
            name: getattr(error, name) for name in error._fields
        }
        assert isinstance(again.__cause__, OSError)
        assert again.__cause__.errno == errno.ENOSPC
        assert getattr(again, "errno", None) == getattr(error, "errno", None)


def test_every_error_of_the_tree_has_an_example_here() -> None:
    """A new error does not go without its sentence and its pickle."""
    drawn = {
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, SessionsError) and each._fields
    }
    assert drawn == {type(example) for example, _ in EXAMPLES}


@pytest.mark.parametrize(
    "error,builtin",
    [
        (InvalidIdError(value="", reason="it is empty"), ValueError),
        (InvalidTurnError(turn_index=1, turn_count=0), ValueError),
        (InvalidRecordError(reason="x"), ValueError),
        (SessionBusyError(path="x"), TimeoutError),
        (WriteError(path="x"), OSError),
        (LocksUnavailableError(path="x"), WriteError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_programs_that_catch_the_built_in_error_catch_ours(
    error: SessionsError, builtin: type[Exception]
) -> None:
    """Each is also what Python calls that kind of failure."""
    assert isinstance(error, builtin)
    assert isinstance(error, SessionsError)


def test_a_write_error_repeats_the_system_s_number() -> None:
    """`errno` says why without parsing a sentence."""
    error = WriteError.of(OSError(errno.EROFS, "Read-only file system"), "/a")
    assert (error.path, error.errno, error.reason) == ("/a", errno.EROFS, "Read-only file system")


def test_a_long_bad_id_is_not_quoted_whole() -> None:
    """A megabyte that is no id does not fill the screen; the field still has it."""
    error = InvalidIdError(value="x" * 1_000_000, reason="it is too long")
    assert len(str(error)) < 120
    assert len(error.value) == 1_000_000


def test_a_holder_that_says_nothing_is_an_unknown_program() -> None:
    """No field, no claim."""
    assert str(Holder()) == "an unknown program"
    assert str(Holder(pid=4)) == "pid 4"


@pytest.mark.parametrize("since", [float("nan"), float("inf"), 1e300, -1e300])
def test_a_nonsense_time_in_a_hold_file_does_not_break_the_busy_error(since: float) -> None:
    """Whoever wrote it, the sentence is still made."""
    assert "pid 4" in str(SessionBusyError(path="x", holder=Holder(pid=4, since=since)))
