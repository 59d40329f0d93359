"""
The turns of long logs, kept so that they need not be looked for again.

Short logs are scanned: that takes less than opening the catalog. Of a long one the turns up to the last whole line are
kept, and the next call reads on from there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kimi_sessions import _fs, layout
from kimi_sessions._append_log import open_for_reading
from kimi_sessions._lines import decode_value
from kimi_sessions._log import logger
from kimi_sessions.wire.records import dump_json
from kimi_sessions.wire.turns import Turn, TurnScan, scan_turns

if TYPE_CHECKING:
    from ._database import Connection

__all__ = ["session_turns"]

#: The smallest log that is worth a look into the catalog.
_LONG_BYTES = 4 << 20
_ALL = "SELECT packed FROM turn WHERE log = ? ORDER BY first"
_PUT = "INSERT OR REPLACE INTO turn (log, first, packed) VALUES (?, ?, ?)"
#: Turns to a row: enough that a row costs little, few enough that an append rewrites little.
_ROW_TURNS = 256


def session_turns(sessions_path: str, name: str) -> list[Turn]:
    """Return the turns of a session's wire log; none if it is not there. Raises OSError if it can't be read."""
    with open_for_reading(os.path.join(sessions_path, name, layout.WIRE)) as fd:  # noqa: PTH118 - text is enough
        if fd is None:
            return []
        found = _fs.active().fstat(fd)
        if found.st_size < _LONG_BYTES:
            return list(scan_turns(fd).turns)
        from ._database import CatalogUnusableError, opened, writing

        before: TurnScan | None = None
        try:
            with opened() as connection:
                before = _kept(connection, sessions_path, name, fd, found)
        except CatalogUnusableError as error:
            logger().debug("the turns of %s are looked for without the catalog: %s", name, error)
            return list(scan_turns(fd).turns)
        scan = scan_turns(fd, found.st_size, after=before)
        if before is None or scan.offset != before.offset:
            try:
                with opened() as connection, writing(connection):
                    _keep(connection, sessions_path, name, fd=fd, found=found, before=before, scan=scan)
            except CatalogUnusableError as error:
                logger().debug("the turns of %s are not kept: %s", name, error)
        return list(scan.turns)


def _kept(
    connection: Connection, sessions_path: str, name: str, fd: int, found: os.stat_result
) -> TurnScan | None:
    """Return what is known of the turns of a log that only grew since."""
    from ._database import folder_id
    from ._logs import TURNS, Place, find_position, resumes

    number = folder_id(connection, sessions_path)
    if number is None:
        return None
    position = find_position(connection, Place(number, name, layout.WIRE), TURNS)
    if position is None or not resumes(position, fd, found):
        return None
    settled: list[Turn] = []
    for (packed,) in connection.execute(_ALL, (position.id,)):
        for values in decode_value(packed.encode()):
            settled.append(Turn(len(settled), *values))
    turns = tuple(settled)
    return TurnScan(turns, position.offset, turns) if len(turns) == position.fold else None


def _keep(
    connection: Connection,
    sessions_path: str,
    name: str,
    *,
    fd: int,
    found: os.stat_result,
    before: TurnScan | None,
    scan: TurnScan,
) -> None:
    """Keep the turns that will not change any more."""
    from ._database import ensure_folder_id
    from ._logs import TURNS, Place, marks_of, save_position, tail_of

    number = ensure_folder_id(connection, sessions_path)
    place = Place(number, name, layout.WIRE)
    log = save_position(
        connection,
        place,
        TURNS,
        marks=marks_of(found),
        offset=scan.offset,
        tail=tail_of(fd, scan.offset),
        fold=len(scan.settled),
    )
    turns = scan.settled
    first = 0
    if before is None:
        connection.execute("DELETE FROM turn WHERE log = ?", (log,))
    else:
        # What no append has touched is the very object that was read from the catalog.
        same = zip(before.settled, turns, strict=False)
        changed = next((old.index for old, new in same if old is not new), len(before.settled))
        first = changed // _ROW_TURNS * _ROW_TURNS
    starts = range(first, len(turns), _ROW_TURNS)
    connection.executemany(_PUT, ((log, at, _packed(turns[at : at + _ROW_TURNS])) for at in starts))


def _packed(turns: tuple[Turn, ...]) -> str:
    return dump_json(
        [[turn.user_text, turn.started_at, turn.ended_at, turn.offset, turn.end_offset] for turn in turns]
    ).decode()
