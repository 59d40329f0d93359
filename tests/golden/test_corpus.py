"""
Every session that released clients wrote is read as the newest client reads it, or better and on purpose.

Ids, titles, emptiness, conversations, logs, state, order and what continue picks are compared with what
version 1.52.0 reports over the same files. Where we answer differently, `WANTED` says so and why; a wanted
difference that no longer shows is a failure too, so the table stays true.

`updated_at` is compared by the order it gives, not by value: the newest client shows a file's modification
time there, which copying a store changes. Where a fork cuts is not compared; forks have tests of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kimi_sessions import Session, SessionState, ShareLayout
from kimi_sessions.wire import TextPart

if TYPE_CHECKING:
    from tests.golden.conftest import Facts, Golden, GoldenOf

CORPUS = Path(__file__).parent.parent.parent / "fixtures" / "corpus"
VERSIONS = sorted(path.name for path in CORPUS.iterdir())

ABSENT = "(no answer)"
UNREADABLE = "cannot be read"

Answers = dict[tuple[str, str], tuple[Any, Any]]  # (subject, question): the newest client's answer, ours


@dataclass(frozen=True)
class Difference:
    """What we answer differently about some sessions, and why that is right."""

    why: str
    where: dict[str, str]  # scenario: versions
    answers: dict[str, tuple[Any, Any]]  # question: the newest client's answer, ours


WITH_WIRE_LOG = "0.60 0.68 0.84 0.88 1.5 1.12.0 1.20.0 1.24.0 1.28.0 1.31.0 1.44.0 1.52.0"
TORN_TURNS = [*(f"Long turn {number}." for number in range(6)), "/clear", "A turn that hits the full disk."]
RESUMED_TURNS = [*TORN_TURNS, "Are you there after the full disk?"]

WANTED = (
    Difference(
        "a flat <id>_N.jsonl or <id>_sub_N.jsonl is a part of session <id> and no session",
        where={
            "clear_1": "0.35 0.58",
            "compact_1": "0.35 0.58",
            "subagent_sub_1": "0.58",
            "subagent_sub_2": "0.58",
            "subagent_sub_3": "0.58",
        },
        answers={"found": (True, False), "listed": (True, False)},
    ),
    Difference(
        "what was said before a clear belongs to the session: it is not empty, and listed",
        where={"clear": "0.58"},
        answers={"empty": (True, False), "listed": (False, True)},
    ),
    Difference(
        "a clear cut short left no context.jsonl, but a whole wire log: found, with its title and an empty context",
        where={"clear": "0.60 0.68"},
        answers={
            "found": (False, True),
            "listed": (False, True),
            "empty": (ABSENT, False),
            "title": (ABSENT, "Remember the number 41."),
            "state": (ABSENT, SessionState().model_dump(mode="json")),
            "messages by role": (ABSENT, {}),
            "user texts": (ABSENT, []),
            "parts by type": (ABSENT, {}),
            "tool calls": (ABSENT, 0),
            "token count": (ABSENT, 0),
            "checkpoints": (ABSENT, 0),
        },
    ),
    Difference(
        "an image alone has no text to make a title of, and a title is never empty",
        where={"image-first": WITH_WIRE_LOG},
        answers={"title": ("", "Untitled")},
    ),
    Difference(
        "a prompt of white space makes no title, the first prompt that has text does",
        where={"blank-first": "0.60 0.68 0.84 0.88 1.5 1.12.0 1.20.0 1.24.0 1.28.0"},
        answers={"title": ("", "hello now")},
    ),
    Difference(
        "every run was killed, so no last session is recorded: the newest one is continued",
        where={"proj-c-live": "0.58"},
        answers={"continue": (None, "killed-first-stream")},
    ),
    Difference(
        "`brief` display blocks of 0.60 have their text under `data`; their results are results all the same",
        where={"tools": "0.60"},
        answers={"ToolResult records": (7, 13)},
    ),
    Difference(
        "see above",
        where={"approvals": "0.60"},
        answers={"ToolResult records": (3, 4)},
    ),
    Difference(
        "a steer of 1.20 stands in the context as a call without arguments; the newest client loses the message",
        where={"steer": "1.20.0"},
        answers={
            "messages by role": (
                {"user": 1, "assistant": 2, "tool": 2},
                {"user": 1, "assistant": 3, "tool": 2},
            ),
            "tool calls": (1, 2),
        },
    ),
    Difference(
        "a record cut inside a character ends no reading",
        where={"torn-wire": "0.88 1.5 1.12.0 1.20.0 1.24.0 1.28.0 1.31.0 1.44.0 1.52.0"},
        answers={"turns": (UNREADABLE, TORN_TURNS)},
    ),
    Difference(
        "and hides neither whole records before it nor the one that a resumed client glued onto it",
        where={"torn-wire-resumed": "0.84 0.88 1.5 1.12.0 1.20.0 1.28.0 1.31.0 1.44.0 1.52.0"},
        answers={
            "turns": (UNREADABLE, RESUMED_TURNS),
            "TurnBegin records": (6, 9),
            "StepBegin records": (6, 8),
            "TextPart records": (5, 8),
        },
    ),
    Difference(
        "see above; these versions wrote no usage for a turn that failed",
        where={"torn-wire-resumed": "0.84 0.88 1.5"},
        answers={"StatusUpdate records": (5, 7)},
    ),
    Difference(
        "see above; these versions wrote TurnEnd",
        where={"torn-wire-resumed": "1.12.0 1.20.0 1.28.0 1.31.0 1.44.0 1.52.0"},
        answers={"StatusUpdate records": (5, 8), "TurnEnd records": (5, 8)},
    ),
    Difference(
        "a record glued onto one that was cut between two characters is read too",
        where={"torn-wire-resumed": "1.24.0"},
        answers={"turns": (TORN_TURNS, RESUMED_TURNS), "TurnBegin records": (8, 9)},
    ),
)

# What a list says of damage: it reads the ends of the logs, so a torn record deeper inside is the whole check's.
PROBLEMS = {
    "clear": ("no-context", "0.60 0.68"),
    "torn": ("torn-tail", "0.60 0.68 0.84 0.88 1.5 1.12.0 1.20.0"),
    "torn-resumed": ("torn-tail", "0.68 0.84 0.88 1.5 1.12.0 1.20.0"),
    "torn-wire": ("torn-tail", "0.84 0.88 1.5 1.12.0 1.20.0 1.24.0 1.28.0 1.31.0 1.44.0 1.52.0"),
}


def wanted_in(version: str) -> Answers:
    """Give the part of the table that concerns one version."""
    return {
        (scenario, question): answers
        for difference in WANTED
        for scenario, versions in difference.where.items()
        for question, answers in difference.answers.items()
        if version in versions.split()
    }


def differences(newest: Facts, ours: Facts) -> Answers:
    """
    Give the answers of both sides wherever they are not the same.

    Of what is no session for us, it is enough to say so once.
    """
    not_ours = {
        subject for (subject, question), answer in ours.items() if (question, answer) == ("found", False)
    }
    return {
        (subject, question): (newest.get((subject, question), ABSENT), ours.get((subject, question), ABSENT))
        for subject, question in newest.keys() | ours.keys()
        if newest.get((subject, question), ABSENT) != ours.get((subject, question), ABSENT)
        and (question in {"found", "listed"} or subject not in not_ours)
    }


def same_order(newest: list[str], ours: list[str]) -> bool:
    """Say whether what both lists hold stands in one order."""
    both = set(newest) & set(ours)
    return [name for name in newest if name in both] == [name for name in ours if name in both]


def comparable_state(session: Session) -> dict[str, Any]:
    """Give a session's state as JSON has it, without the fields of old versions that the newest client drops."""
    state: dict[str, Any] = session.state.model_dump(mode="json", exclude={"dynamic_subagents"})
    return state


async def facts_of_session(session: Session, subject: str, beginning: Callable[[str, int], str]) -> Facts:
    """Ask one of our sessions all that the manifests know about it."""
    facts: Facts = {
        (subject, "title"): session.title,
        (subject, "empty"): session.is_empty(),
        (subject, "state"): comparable_state(session),
    }
    messages = await session.context.messages()
    parts = Counter(part.type for message in messages for part in message.content)
    history = session.context.history
    facts[subject, "messages by role"] = dict(Counter(message.role for message in messages))
    facts[subject, "user texts"] = [
        beginning("".join(part.text for part in message.content if isinstance(part, TextPart)), 120)
        for message in messages
        if message.role == "user"
    ]
    facts[subject, "parts by type"] = dict(parts)
    facts[subject, "tool calls"] = sum(len(message.tool_calls or ()) for message in messages)
    facts[subject, "token count"] = history.token_count
    facts[subject, "checkpoints"] = history.next_checkpoint_id
    if session.wire_file.path.exists():
        facts[subject, "turns"] = [beginning(turn.user_text, 160) for turn in await session.turns()]
        facts[subject, "wire version"] = session.wire_file.version
        async for record in session.wire_file.iter_records():
            question = f"{type(record.to_wire_message()).__name__} records"
            facts[subject, question] = facts.get((subject, question), 0) + 1
    return facts


async def facts_of_ours(golden: Golden) -> tuple[Facts, dict[str, list[str]]]:
    """Ask the library the questions of the manifests; give facts and orders."""
    layout = ShareLayout(golden.share)
    facts: Facts = {}
    orders: dict[str, list[str]] = {}
    for work_dir in golden.work_dirs:
        place = Path(work_dir).name
        listed = await Session.list(work_dir, layout=layout)
        chosen = await Session.continue_(work_dir, layout=layout)
        everything = await Session.list(work_dir, layout=layout, include_empty=True)
        orders[place] = [golden.label_of(session.id) for session in listed]
        facts[place, "continue"] = chosen and golden.label_of(chosen.id)
        known = {session.id for session in everything} | set(golden.ids[place])
        for session_id in known:
            subject = golden.label_of(session_id)
            session = await Session.find(work_dir, session_id, layout=layout)
            facts[subject, "found"] = session is not None
            facts[subject, "listed"] = session_id in {session.id for session in listed}
            if session is not None:
                facts |= await facts_of_session(session, subject, golden.beginning)
    orders["everywhere"] = [golden.label_of(session.id) for session in await Session.list_all(layout=layout)]
    return facts, orders


def shown_by_the_command_line(share: Path) -> list[dict[str, Any]]:
    """Run the installed command over a share dir; give the sessions of its JSON."""
    command = Path(sys.executable).with_name("kimi-sessions")
    arguments = ["--share-dir", str(share), "list", "--all-dirs", "--archived", "--json"]
    done = subprocess.run([command, *arguments], capture_output=True, check=True)
    sessions: list[dict[str, Any]] = json.loads(done.stdout)["sessions"]
    return sessions


@pytest.mark.parametrize("version", VERSIONS)
async def test_sessions_of_a_version_are_read_as_the_newest_client_reads_them(
    version: str, golden: GoldenOf
) -> None:
    """Each answer about each session is the newest client's, or stands in the table."""
    known = golden(version)
    ours, orders = await facts_of_ours(known)
    assert differences(known.newest, ours) == wanted_in(version)
    for place, order in known.orders_of_newest.items():
        assert same_order(order, orders[place]), place


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_list_names_the_damaged_sessions_and_no_others(version: str, golden: GoldenOf) -> None:
    """A session that a full disk or a kill left torn is listed with its problem, its neighbours without one."""
    known = golden(version)
    found = {
        known.label_of(session.id): [problem.kind for problem in session.problems]
        for session in await Session.list_all(layout=ShareLayout(known.share))
        if session.problems
    }
    expected = {label: [kind] for label, (kind, versions) in PROBLEMS.items() if version in versions.split()}
    assert found == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_line_lists_a_share_dir_as_the_newest_client_does(version: str, golden: GoldenOf) -> None:
    """`list --all-dirs --archived --json` has its ids, titles and order, but for what the table says."""
    known = golden(version)
    shown = {known.label_of(session["id"]): session for session in shown_by_the_command_line(known.share)}
    agreed = known.newest | {key: ours for key, (_, ours) in wanted_in(version).items()}
    listed = [subject for (subject, question), answer in agreed.items() if question == "listed" and answer]
    assert {subject: (session["title"], session["archived"]) for subject, session in shown.items()} == {
        subject: (agreed[subject, "title"], agreed[subject, "state"]["archived"]) for subject in listed
    }
    assert not any(session["empty"] for session in shown.values())
    assert same_order(known.orders_of_newest["everywhere"], list(shown))


def test_the_table_of_differences_is_well_formed() -> None:
    """Every version it names is there, and nothing is said twice."""
    lines = [
        (scenario, version, question)
        for difference in WANTED
        for scenario, versions in difference.where.items()
        for version in versions.split()
        for question in difference.answers
    ]
    assert len(lines) == len(set(lines))
    assert {version for _, version, _ in lines} <= set(VERSIONS)
