"""
The context log of a session: what the model saw.

Messages and control records share one append-only log. Reading the newest messages starts from the end of the file;
going back to a checkpoint and clearing replace the log while the old one stays as ``context_N.jsonl``, so the old or
the new context is whole at every instant. Nothing is remembered here that is not on disk: facts are read again
whenever the file has changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kimi_sessions import _fs, layout
from kimi_sessions._append_log import AppendLog, Durability, join_lines, open_for_reading
from kimi_sessions._appender import Appender
from kimi_sessions._lines import decode_line, iter_blocks
from kimi_sessions._locking import bare_lock
from kimi_sessions._log import logger
from kimi_sessions.errors import CheckpointNotFoundError, WriteError
from kimi_sessions.findings import Finding

from .history import Entry, HistoryFold, find_checkpoint_offset, newest_messages, refuse
from .records import (
    Message,
    dump_checkpoint,
    dump_system_prompt,
    dump_usage,
    parse_message_record,
    to_message_bytes,
)
from .unread import is_plain_control, unread_message

if TYPE_CHECKING:
    from kimi_sessions.layout import StrPath

__all__ = ["ContextFacts", "ContextFile"]

_MessageLike: TypeAlias = "Message | Mapping[str, object]"


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """What is in force in a context: the last system prompt, the last token count, the id of the next checkpoint."""

    system_prompt: str | None
    token_count: int
    next_checkpoint_id: int


class ContextFile:
    """
    One context log. The file need not exist; reading a missing one gives nothing.

    A session's own ``context`` shares the session's locks; ``ContextFile(path)`` alone locks the log itself (or the
    ``.lock`` beside it, where there is one).
    """

    __slots__ = ("_appender", "_fold", "_mark", "_owned", "_read_to", "path")

    def __init__(self, path: StrPath, *, durability: Durability = "os") -> None:
        self.path = Path(path)
        text = str(self.path)
        self._appender = Appender(AppendLog(text, lock=bare_lock(text)), durability=durability)
        self._owned: Callable[[], AbstractContextManager[None]] = nullcontext
        self._forget()

    @classmethod
    def bound(
        cls, path: Path, appender: Appender, owned: Callable[[], AbstractContextManager[None]]
    ) -> ContextFile:
        """Return the log of a session; ``owned`` makes this caller the session's only owner for a rewrite."""
        context = cls.__new__(cls)
        context.path = path
        context._appender = appender
        context._owned = owned
        context._forget()
        return context

    def __repr__(self) -> str:
        return f"ContextFile({str(self.path)!r})"

    def close(self) -> None:
        """Close the descriptor that appends keep open; the next append opens it again."""
        self._appender.log.close()

    # --- facts ---------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._fold = HistoryFold(layout.CONTEXT)
        self._mark = (-1, -1)
        self._read_to = 0

    @property
    def history(self) -> ContextFacts:
        """The facts in force now; what was read before is not read again. Raises OSError if it can't be read."""
        fold = self._caught_up()
        return ContextFacts(fold.system_prompt, fold.token_count, fold.next_checkpoint_id)

    def _caught_up(self) -> HistoryFold:
        """Fold the control records that were added since the last look."""
        with open_for_reading(self.path) as fd:
            if fd is None:
                self._forget()
                return self._fold
            found = _fs.active().fstat(fd)
            mark = _fs.identity(found)
            if mark != self._mark or found.st_size < self._read_to:
                self._forget()
                self._mark = mark
            fold = self._fold
            for block in iter_blocks(fd, self._read_to, found.st_size):
                if not block.terminated:
                    # It may still grow: count it now, and read it again next time.
                    fold = _copy_of(fold)
                at = block.offset
                for line in block.lines:
                    if b'"_' in line:
                        for span in decode_line(line, refuse).records:
                            if span.value["role"].startswith("_"):
                                fold.feed(
                                    Entry(at + span.offset, at + span.offset + len(span.raw), span.value)
                                )
                    at += len(line) + 1
                if block.terminated:
                    self._read_to = at
            return fold

    # --- reading -------------------------------------------------------------------------------------------------

    async def messages(
        self, limit: int | None = None, *, on_finding: Callable[[Finding], None] | None = None
    ) -> list[Message]:
        """
        Return the messages, oldest first; with ``limit`` the newest so many, read from the end of the file.

        Damage is logged, given to ``on_finding``, and passed over. Every message was checked; a plain one is held as
        its record's bytes and decoded when it is first looked at. Raises OSError if the file can't be read.
        """
        return await asyncio.to_thread(self._messages, limit, on_finding)

    def _messages(self, limit: int | None, on_finding: Callable[[Finding], None] | None) -> list[Message]:
        with open_for_reading(self.path) as fd:
            if fd is None:
                return []
            if limit is not None:
                size = _fs.active().fstat(fd).st_size
                return [parse_message_record(entry.record) for entry in newest_messages(fd, size, limit)]
            messages: list[Message] = []
            number = 0
            for block in iter_blocks(fd):
                at = block.offset
                for line in block.lines:
                    number += 1
                    message = unread_message(line)
                    if message is not None:
                        messages.append(message)
                    elif line and not is_plain_control(line):
                        messages.extend(self._slow_messages(line, at, number, on_finding))
                    at += len(line) + 1
            return messages

    def _slow_messages(
        self, line: bytes, offset: int, number: int, on_finding: Callable[[Finding], None] | None
    ) -> Iterator[Message]:
        """Decode one line by the whole policy, through the fold that everyone uses."""
        fold = HistoryFold(self.path.name, first_line=number)
        fold.feed_line(line, offset)
        for finding in fold.findings:
            logger().warning("%s: %s", self.path.parent, finding)
            if on_finding is not None:
                on_finding(finding)
        for entry in fold.messages:
            yield parse_message_record(entry.record)

    # --- appending -----------------------------------------------------------------------------------------------

    async def append(self, message: _MessageLike | Iterable[_MessageLike]) -> None:
        """
        Append a message, or several in one write: all of them are acknowledged, or none.

        When it returns they are in the operating system's hands, or on the device in ``"disk"`` durability. Raises
        ValueError or TypeError for what is no message, WriteError, SessionBusyError, SessionNotFoundError.
        """
        given: Any = message
        is_one = isinstance(given, (Message, Mapping, str, bytes)) or not isinstance(given, Iterable)
        many = [given] if is_one else list(given)
        data = join_lines([to_message_bytes(each) for each in many])
        pending = self._appender.append(data) if data else None
        if pending is not None:
            await pending

    async def checkpoint(self) -> int:
        """Mark a place to come back to, and return its id: one more than the last one's, also with two writers."""
        made = -1

        def step() -> bytes:
            nonlocal made
            made = self._caught_up().next_checkpoint_id
            return dump_checkpoint(made) + b"\n"

        await self._appender.run_locked(step)
        return made

    async def set_usage(self, token_count: int) -> None:
        """Record how many tokens the context holds up to here."""
        pending = self._appender.append(dump_usage(token_count) + b"\n")
        if pending is not None:
            await pending

    async def set_system_prompt(self, text: str) -> None:
        """
        Set the system prompt: the first record of a context without one, else a further record that counts from now.

        The same text again changes nothing. Putting one before existing messages rewrites the log and therefore
        needs to own the session: SessionBusyError if another program holds it.
        """
        record = dump_system_prompt(text) + b"\n"

        def step() -> bytes | None:
            current = self._caught_up().system_prompt
            if current == text:
                return None
            if current is not None or not self._holds_anything():
                return record
            with self._owned():
                self._appender.log.rewrite(lambda old, end, new: _prepend(record, old, end, new))
            self._forget()
            return None

        await self._appender.run_locked(step)

    def _holds_anything(self) -> bool:
        try:
            return _fs.active().stat(self.path, follow_symlinks=False).st_size > 0
        except FileNotFoundError:
            return False

    # --- going back ----------------------------------------------------------------------------------------------

    async def revert_to(self, checkpoint_id: int) -> str | None:
        """
        Go back to a checkpoint: keep what lies before its record. Returns the name the whole old log is kept under.

        The old or the new log is in place at every instant. Raises CheckpointNotFoundError (nothing changes),
        SessionBusyError if another program holds the session, SessionNotFoundError, WriteError.
        """
        kept: str | None = None

        def build(old: int, end: int, new: int) -> None:
            offset = None if old < 0 else find_checkpoint_offset(old, checkpoint_id, end)
            if offset is None:
                raise CheckpointNotFoundError(
                    checkpoint_id=checkpoint_id, next_checkpoint_id=self._caught_up().next_checkpoint_id
                )
            _copy_whole_lines(old, offset, new)

        def step() -> None:
            nonlocal kept
            with self._owned():
                kept = self._appender.log.rewrite(build, keep_as=self._free_names(), bring_along=False)
            self._forget()

        await self._appender.run_locked(step)
        return kept

    async def clear(self) -> str | None:
        """
        Begin an empty context. Returns the name the old one is kept under (``context_N.jsonl``), None without one.

        The old or the new log is in place at every instant. Raises as ``revert_to``.
        """
        kept: str | None = None

        def step() -> None:
            nonlocal kept
            with self._owned():
                keep = self._free_names() if self._holds_anything() else None
                kept = self._appender.log.rewrite(lambda *_: None, keep_as=keep, bring_along=False)
            self._forget()

        await self._appender.run_locked(step)
        return kept

    def _free_names(self) -> Iterator[str]:
        """Yield names for a rotated context, from one past the highest there is."""
        stem, suffix = os.path.splitext(self.path.name)
        highest = 0
        try:
            with _fs.active().scandir(self.path.parent) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise WriteError.of(error, str(self.path.parent)) from error
        for name in names:
            number = name.removeprefix(f"{stem}_").removesuffix(suffix)
            if name == f"{stem}_{number}{suffix}" and number.isascii() and number.isdigit():
                highest = max(highest, int(number))
        while True:
            highest += 1
            yield f"{stem}_{highest}{suffix}"


def _copy_of(fold: HistoryFold) -> HistoryFold:
    copy = HistoryFold(fold.file)
    copy.system_prompt = fold.system_prompt
    copy.token_count = fold.token_count
    copy.checkpoints = dict(fold.checkpoints)
    copy.next_checkpoint_id = fold.next_checkpoint_id
    return copy


def _prepend(record: bytes, old: int, end: int, new: int) -> None:
    _fs.write_all(new, record)
    if old >= 0:
        _fs.copy_bytes(old, new, 0, end)


def _copy_whole_lines(old: int, end: int, new: int) -> None:
    """Copy a log up to ``end``; where that lies within a line, the piece gets a newline of its own."""
    _fs.copy_bytes(old, new, 0, end)
    if end > 0 and _fs.read_fd(old, end - 1, 1) != b"\n":
        _fs.write_all(new, b"\n")
