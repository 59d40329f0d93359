"""
The wire log of a session: what happened, append-only, with a header line and time stamps.

Reading goes through the one decoder and reports damage to the log of this library (``logging``, name
``kimi_sessions``) and to ``on_finding``; it never raises for a bad line. Writing goes through the append log, whose
rules keep every acknowledged record. Typed messages are made only where somebody asks for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_sessions._append_log import AppendLog, Durability, join_lines, open_for_reading
from kimi_sessions._appender import Appender
from kimi_sessions._lines import decode_line, iter_blocks
from kimi_sessions._locking import bare_lock
from kimi_sessions._log import logger
from kimi_sessions.findings import Finding

from .records import (
    WIRE_PROTOCOL_LEGACY_VERSION,
    WIRE_PROTOCOL_VERSION,
    WireFileMetadata,
    WireMessageRecord,
    record_from_line,
    record_from_span,
    record_line,
    refuse,
)
from .scan import holds_more_than_headers

if TYPE_CHECKING:
    from kimi_sessions.layout import StrPath

    from .messages import WireMessage

__all__ = ["WireFile"]

#: How often a follower looks for more.
_FOLLOW_S = 0.1


class WireFile:
    """
    One wire log. The file need not exist; reading a missing one gives nothing.

    A session's own ``wire_file`` shares the session's lock and marks it as last used; ``WireFile(path)`` alone locks
    the log itself (or the ``.lock`` beside it, where there is one).
    """

    __slots__ = ("_appender", "_encode", "path")

    _encode: Callable[[WireFile, WireMessage, float], bytes]

    def __init__(
        self,
        path: StrPath,
        protocol_version: str = WIRE_PROTOCOL_VERSION,
        *,
        durability: Durability = "os",
    ) -> None:
        self.path = Path(path)
        self._encode = _encode_first
        text = str(self.path)
        self._appender = Appender(
            AppendLog(text, lock=bare_lock(text), header=_header(protocol_version)), durability=durability
        )

    @classmethod
    def bound(cls, path: Path, appender: Appender) -> WireFile:
        """Return the log of a session, whose appender knows the session's locks."""
        wire = cls.__new__(cls)
        wire.path = path
        wire._appender = appender
        wire._encode = _encode_first
        return wire

    def __repr__(self) -> str:
        return f"WireFile({str(self.path)!r})"

    def close(self) -> None:
        """Close the descriptor that appends keep open; the next append opens it again."""
        self._appender.log.close()

    # --- facts ---------------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """
        Protocol version of the log: its header's if that is the first line, "1.1" if there is none, and what a new
        log would get where there is no log yet.
        """
        try:
            with open_for_reading(self.path) as fd:
                if fd is None:
                    return WIRE_PROTOCOL_VERSION
                for block in iter_blocks(fd, size=1 << 13):
                    for line in block.lines:
                        if not line.strip():
                            continue
                        decoded = decode_line(line, refuse)
                        if decoded.records:
                            version = decoded.records[0].value.get("protocol_version")
                            if isinstance(version, str) and "message" not in decoded.records[0].value:
                                return version
                        return WIRE_PROTOCOL_LEGACY_VERSION
        except OSError as error:
            logger().warning("can't read %s: %s", self.path, error)
            return WIRE_PROTOCOL_LEGACY_VERSION
        return WIRE_PROTOCOL_VERSION

    def is_empty(self) -> bool:
        """True if the log holds no line besides headers and blank ones. A log that can't be read is not empty."""
        try:
            with open_for_reading(self.path) as fd:
                return fd is None or not holds_more_than_headers(fd)
        except OSError as error:
            logger().warning("can't read %s: %s", self.path, error)
            return False

    # --- reading -------------------------------------------------------------------------------------------------

    async def iter_records(
        self, start_offset: int = 0, *, on_finding: Callable[[Finding], None] | None = None
    ) -> AsyncIterator[WireMessageRecord]:
        """
        Yield the records in file order, from ``start_offset`` bytes (a line's start) to where the log ends now.

        Headers are passed over wherever they stand. A damaged line is logged, given to ``on_finding``, and passed
        over; line numbers count from ``start_offset``. Memory stays flat. Raises OSError if the file is there but
        can't be read.
        """
        with open_for_reading(self.path) as fd:
            if fd is None:
                return
            number = 0
            for block in iter_blocks(fd, start_offset):
                # Where a line lies is worked out only for those that need it.
                at, counted = block.offset, 0
                for index, line in enumerate(block.lines):
                    record = record_from_line(line)
                    if record is not None:
                        yield record
                    elif line:
                        at += sum(len(other) + 1 for other in block.lines[counted:index])
                        counted = index
                        line_number = None if start_offset else number + index + 1
                        for record in self._slow(line, at, line_number, on_finding):
                            yield record
                number += len(block.lines)
                await asyncio.sleep(0)

    def _slow(
        self, line: bytes, offset: int, number: int | None, on_finding: Callable[[Finding], None] | None
    ) -> list[WireMessageRecord]:
        """Decode a line by the whole policy, report its damage, and return its records."""
        decoded = decode_line(line, refuse)
        for damage in decoded.damage:
            finding = Finding(
                kind="damaged-line",
                file=self.path.name,
                reason=damage.reason,
                line_number=number,
                offset=offset + damage.offset,
                length=damage.length,
            )
            logger().warning("%s: %s", self.path.parent, finding)
            if on_finding is not None:
                on_finding(finding)
        records = []
        for span in decoded.records:
            record = record_from_span(span)
            if record is not None:
                records.append(record)
        return records

    async def follow(
        self, start_offset: int = 0, *, poll_s: float = _FOLLOW_S
    ) -> AsyncGenerator[WireMessageRecord, None]:
        """
        Yield the records from ``start_offset`` on, and go on yielding what is appended later, for ever.

        A line is given once its newline is there. A log that does not exist yet is waited for.
        """
        offset = start_offset
        while True:
            read_to = offset
            with open_for_reading(self.path) as fd:
                if fd is not None:
                    for block in iter_blocks(fd, offset):
                        if not block.terminated:
                            break
                        at = block.offset
                        for line in block.lines:
                            if line:
                                plain = record_from_line(line)
                                for record in (
                                    [plain] if plain is not None else self._slow(line, at, None, None)
                                ):
                                    yield record
                            at += len(line) + 1
                        read_to = at
                        await asyncio.sleep(0)
            if read_to == offset:
                await asyncio.sleep(poll_s)
            offset = read_to

    # --- writing -------------------------------------------------------------------------------------------------

    async def append_message(self, msg: WireMessage, *, timestamp: float | None = None) -> None:
        """
        Append a typed message; ``timestamp`` in epoch seconds, None for now.

        When it returns the record is in the operating system's hands, or on the device in ``"disk"`` durability.
        Raises WriteError, SessionBusyError, SessionNotFoundError, InvalidRecordError.
        """
        if timestamp is None:
            timestamp = time.time()
        pending = self._appender.append(self._encode(self, msg, timestamp) + b"\n")
        if pending is not None:
            await pending

    async def append_many(self, msgs: Iterable[WireMessage], *, timestamp: float | None = None) -> None:
        """Append messages in one write: all of them are acknowledged, or none. Durable as ``append_message``."""
        now = time.time() if timestamp is None else timestamp
        data = join_lines([self._encode(self, msg, now) for msg in msgs])
        pending = self._appender.append(data) if data else None
        if pending is not None:
            await pending

    async def append_record(self, record: WireMessageRecord) -> None:
        """Append a record as it is: its own time, and its own bytes where it was read from a log."""
        pending = self._appender.append(record.to_line() + b"\n")
        if pending is not None:
            await pending


def _header(protocol_version: str) -> bytes:
    return WireFileMetadata(protocol_version=protocol_version).to_line() + b"\n"


def _encode_first(wire: WireFile, message: WireMessage, timestamp: float) -> bytes:
    """Load the typed messages when the first one is written, and encode through them from then on."""
    from .messages import dump_payload, message_type

    def encode(_: WireFile, msg: WireMessage, at: float) -> bytes:
        return record_line(message_type(msg), dump_payload(msg), at)

    wire._encode = encode
    return encode(wire, message, timestamp)
