"""
The list as people and programs see it: the sessions of a work dir, or of all of them.

On a terminal and in a pipe it is the same table: ids cut to the shortest beginning that is unique (every command
takes that), titles cut to the width (``$COLUMNS``, the terminal's, else 80). In a pipe there is no colour and times
are dates. Whole values are in ``--json``.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._exit import complain
from ._render import (
    clean_path,
    fit,
    line_width,
    on_terminal,
    out,
    print_json,
    session_facts,
    shown_dir,
    shown_title,
    table,
    when,
)
from ._where import Where, in_line

if TYPE_CHECKING:
    from kimi_sessions import Session, SessionList

__all__ = ["Sort", "Wish", "print_list"]

#: How many sessions a terminal is shown where nobody asked for a number.
_SCREENFUL = 50
_SHORTEST_ID = 8
_LONGEST_ID = 24
_COMPLAINTS = 5


class Sort(enum.StrEnum):
    """What a list is ordered by."""

    UPDATED = "updated"
    CREATED = "created"
    TITLE = "title"


_KEYS: dict[Sort, Callable[[Session], Any]] = {
    Sort.UPDATED: lambda session: (-session.updated_at, session.id),
    Sort.CREATED: lambda session: (-session.created_at, session.id),
    Sort.TITLE: lambda session: (session.title.casefold(), session.title, session.id),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a person wants to see. ``limit`` None: as many as suit the place; 0: all."""

    all_dirs: bool = False
    archived: bool = False
    empty: bool = False
    limit: int | None = None
    sort: Sort = Sort.UPDATED
    title: str | None = None
    tags: tuple[str, ...] = ()

    def covers(self, session: Session) -> bool:
        """Tell whether a session is wanted."""
        return (
            (self.archived or not session.archived)
            and (self.empty or not session.empty)
            and (self.title is None or self.title.casefold() in shown_title(session).casefold())
            and all(tag in session.tags for tag in self.tags)
        )


def print_list(where: Where, wish: Wish) -> None:
    """Print the sessions that are wanted."""
    from kimi_sessions import Session

    if wish.all_dirs:
        everyone = in_line(Session.list_all(layout=where.layout, include_empty=True))
    else:
        everyone = in_line(Session.list(where.work_dir, layout=where.layout, include_empty=True))
    wanted = [session for session in everyone if wish.covers(session)]
    if wish.sort is not Sort.UPDATED:
        wanted.sort(key=_KEYS[wish.sort])
    limit = wish.limit
    if limit is None:
        limit = _SCREENFUL if on_terminal() and not where.as_json else 0
    shown = wanted[:limit] if limit else wanted
    if where.as_json:
        print_json(
            {
                "sessions": [session_facts(session) for session in shown],
                "problems": [problem.as_dict() for problem in everyone.problems],
            }
        )
    elif shown:
        _print_table(shown, everyone, by_created=wish.sort is Sort.CREATED, with_dirs=wish.all_dirs)
    _report(where, everyone, shown, len(wanted), all_dirs=wish.all_dirs)


def _print_table(
    shown: Sequence[Session], everyone: SessionList, *, by_created: bool, with_dirs: bool
) -> None:
    now = time.time()
    width = line_width()
    short = _short_ids([session.id for session in everyone])
    rows = []
    for session in shown:
        row = [
            fit(short[session.id], _LONGEST_ID) if on_terminal() else short[session.id],
            when(session.created_at if by_created else session.updated_at, now),
        ]
        if with_dirs:
            row.append(fit(shown_dir(session), max(width // 4, 12), keep_end=True))
        rows.append([*row, _marks(session) + shown_title(session)])
    heads = ["ID", "CREATED" if by_created else "UPDATED", *(["WORK DIR"] if with_dirs else []), "TITLE"]
    for line in table(heads, rows, width=width):
        out(line)


def _marks(session: Session) -> str:
    found = [
        ("pinned", session.pinned),
        ("archived", session.archived),
        ("empty", session.empty),
        ("untrusted", not session.trusted),
        ("damaged", any(problem.kind not in _NOT_DAMAGE for problem in session.problems)),
    ]
    words = [word for word, holds in found if holds] + [f"#{tag}" for tag in session.tags]
    return f"[{' '.join(words)}] " if words else ""


_NOT_DAMAGE = frozenset({"untrusted", "approvals", "flat-clash"})


def _short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Map each id to its shortest beginning, of at least eight characters, that no other id has."""
    ordered = sorted(set(ids))
    short = {}
    for at, name in enumerate(ordered):
        need = _SHORTEST_ID
        for other in (ordered[at - 1] if at else "", ordered[at + 1] if at + 1 < len(ordered) else ""):
            common = 0
            while common < min(len(name), len(other)) and name[common] == other[common]:
                common += 1
            need = max(need, common + 1)
        # A name that somebody chose is worth more than the room it takes.
        short[name] = name[:need] if len(name) == 36 and name.count("-") == 4 else name
    return short


def _report(
    where: Where, everyone: SessionList, shown: Sequence[Session], total: int, *, all_dirs: bool
) -> None:
    """Say on stderr what the list itself does not: what was cut off, what is wrong, and that nothing is here."""
    for problem in everyone.problems:
        complain(str(problem), kind="warning")
    _report_damage(where, shown, all_dirs=all_dirs)
    if len(shown) < total:
        complain(f"{len(shown)} of {total} sessions; --limit 0 shows all", kind="note")
    if shown or where.as_json:
        return
    hidden = [
        f"{count} {word} (--{word} shows {'it' if count == 1 else 'them'})"
        for word, count in (
            ("archived", sum(session.archived for session in everyone)),
            ("empty", sum(session.empty and not session.archived for session in everyone)),
        )
        if count
    ]
    place = "in any known work dir" if all_dirs else f"for {clean_path(str(where.work_dir))}"
    if not all_dirs:
        place += where.missing
    share = where.share
    if share is not None and not share.all_sessions_path.exists() and not share.kimi_json_path.exists():
        place += f"; {clean_path(str(share.share))} holds no store of Kimi CLI"
    complain(f"no sessions {place}" + (f", but {', '.join(hidden)}" if hidden else ""), kind="note")
    if where.share is None and not all_dirs:
        _point_to_share(where)


def _report_damage(where: Where, shown: Sequence[Session], *, all_dirs: bool) -> None:
    damaged = [
        session for session in shown if any(problem.kind not in _NOT_DAMAGE for problem in session.problems)
    ]
    for session in damaged[:_COMPLAINTS]:
        reasons = "; ".join(str(problem) for problem in session.problems if problem.kind not in _NOT_DAMAGE)
        complain(f"session {session.id}: {reasons}", kind="warning")
    if len(damaged) > _COMPLAINTS:
        who = f"'{where.spell('doctor --all-dirs' if all_dirs else 'doctor')}'"
        complain(f"{len(damaged)} sessions have problems; {who} names them all", kind="warning")
    untrusted = sum(not session.trusted for session in shown)
    if untrusted:
        what = "1 session is" if untrusted == 1 else f"{untrusted} sessions are"
        how = "kimi-sessions trust --help" if all_dirs else where.spell("trust --all --dry-run")
        complain(f"{what} not sealed as yours; '{how}' tells more", kind="note")


def _point_to_share(where: Where) -> None:
    """Say so if Kimi CLI has sessions for this work dir: the likeliest reason to look here in vain."""
    from kimi_sessions import NotFoundError, ShareLayout

    try:
        folder = ShareLayout().sessions_path(where.work_dir)
        there = any(not entry.name.startswith(".") for entry in folder.iterdir())
    except (OSError, NotFoundError):
        return
    if there:
        complain("Kimi CLI has sessions for it: 'kimi-sessions --share' lists them", kind="note")
