"""
What the newest client reported over the corpus, brought into a form that can be compared line by line.

A fact is one small answer about one subject: a session (named by the scenario that made it: `compact-twice`)
or a work dir (`proj-a`). Facts of both sides are dicts from (subject, question) to answer; the comparison and
the table of differences that are wanted stand in the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).parent.parent.parent / "fixtures" / "corpus"

REMINDER = "<system-reminder>"

Facts = dict[tuple[str, str], Any]


@dataclass(frozen=True)
class Golden:
    """One version's share dir, what is known about it, and the names of what lies in it."""

    version: str
    share: Path
    work_dirs: tuple[str, ...]
    newest: Facts
    orders_of_newest: dict[str, list[str]]
    ids: dict[str, list[str]]
    label_of: Callable[[str], str]

    @staticmethod
    def beginning(text: str, length: int) -> str:
        """Give what the manifests and the corpus both have of a text: of a built-in reminder the tag alone."""
        return REMINDER if text.startswith(REMINDER) else text[:length]


GoldenOf = Callable[[str], Golden]


def names(manifest: dict[str, Any]) -> dict[str, str]:
    """
    Map session ids to the names of the scenarios that made them.

    A scenario's second session is `<scenario>#2`; its flat rotation `<id>_1.jsonl` is `<scenario>_1`.
    """
    named: dict[str, str] = {}
    for scenario in manifest.get("sessions", ()):
        owners = [name for name in scenario["ids"] if name.partition("_")[0] == name]
        for number, owner in enumerate(owners, start=1):
            named[owner] = scenario["label"] if number == 1 else f"{scenario['label']}#{number}"
        for side in set(scenario["ids"]) - set(owners):
            owner, _, rest = side.partition("_")
            named[side] = f"{named[owner]}_{rest}"
    for step in manifest.get("steps", ()):
        for session_id in step["new_ids"]:
            named[session_id] = f"{step['what'].partition(':')[0]} of {step['version']}".replace(" ", "-")
    return named


def facts_of_newest(latest: dict[str, Any], label_of: Callable[[str], str]) -> Facts:
    """Read one MANIFEST_LATEST.json into facts; orders are kept apart, they concern what both sides list."""
    facts: Facts = {}
    for work_dir in latest["facts"]["work_dirs"]:
        place = Path(work_dir["path"]).name
        facts[place, "continue"] = work_dir["continue"] and label_of(work_dir["continue"]["id"])
        listed = {session["id"]: session for session in work_dir["list"]}
        for session_id, session in work_dir["sessions"].items():
            subject = label_of(session_id)
            found = session["find"]
            facts[subject, "found"] = found is not None
            facts[subject, "listed"] = session_id in listed
            if found is not None:
                assert listed.get(session_id, found) == found, "list and find agree"
                facts[subject, "title"] = found["title"]
                facts[subject, "empty"] = found["is_empty"]
                facts[subject, "state"] = session["state"]
            context = session.get("context")
            if context is not None:
                facts[subject, "messages by role"] = context["by_role"]
                facts[subject, "user texts"] = [Golden.beginning(text, 120) for text in context["user_texts"]]
                facts[subject, "parts by type"] = context["part_types"]
                facts[subject, "tool calls"] = context["tool_calls"]
                facts[subject, "token count"] = context["token_count"]
                facts[subject, "checkpoints"] = context["n_checkpoints"]
            wire = session.get("wire")
            if wire is not None:
                facts[subject, "turns"] = wire.get("turns", "cannot be read")
                facts[subject, "wire version"] = wire["protocol_version"]
                facts |= {(subject, f"{name} records"): number for name, number in wire["types"].items()}
    return facts


@pytest.fixture
def golden(corpus: Callable[[str], Path]) -> GoldenOf:
    """Give a function from a client's version to a copy of its share dir and to what is known about that."""

    def gather(version: str) -> Golden:
        manifest = json.loads((CORPUS / version / "MANIFEST.json").read_bytes())
        latest = json.loads((CORPUS / version / "MANIFEST_LATEST.json").read_bytes())
        named = names(manifest)

        def label_of(session_id: str) -> str:
            return named.get(session_id, session_id)

        return Golden(
            version=version,
            share=corpus(version),
            work_dirs=tuple(work_dir["path"] for work_dir in latest["facts"]["work_dirs"]),
            newest=facts_of_newest(latest, label_of),
            orders_of_newest={
                Path(work_dir["path"]).name: [label_of(session["id"]) for session in work_dir["list"]]
                for work_dir in latest["facts"]["work_dirs"]
            }
            | {"everywhere": [label_of(session["id"]) for session in latest["facts"]["list_all"]]},
            ids={
                Path(work_dir["path"]).name: list(work_dir["sessions"])
                for work_dir in latest["facts"]["work_dirs"]
            },
            label_of=label_of,
        )

    return gather
