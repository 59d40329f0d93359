"""
What the documents say is true: examples run, tables are the code's, links lead somewhere, drawings show the tree.

Everything is read from the documents themselves, so a changed page is a changed test. docs/cli.md is rewritten by
`scripts/update_cli_docs.py`, which also runs its examples here.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from scripts import update_cli_docs

import kimi_sessions
from kimi_sessions import ContextFile, ProjectLayout, Session, ShareLayout, WireFile, layout
from kimi_sessions.cli import _exit
from kimi_sessions.cli._commands import COMMANDS
from kimi_sessions.state import ApprovalState, SessionState, TodoItem
from kimi_sessions.wire import (
    CONTENT_PART_TYPES,
    DISPLAY_BLOCK_TYPES,
    EVENT_TYPES,
    REQUEST_TYPES,
    TextPart,
    ToolCall,
    ToolReturnValue,
    TurnBegin,
    TurnEnd,
)

PROJECT = Path(__file__).parent.parent
SOURCE = PROJECT / "src" / "kimi_sessions"
_BUILT = {".venv", "build", "dist", "__pycache__", "corpus"}


def read(name: str) -> str:
    """Give a document's text."""
    return (PROJECT / name).read_text("utf-8")


def ours(*patterns: str) -> list[Path]:
    """Give the project's files of these kinds; not what was built, nor what other clients wrote."""
    found = []
    for folder, folders, names in os.walk(PROJECT):
        folders[:] = [name for name in folders if name not in _BUILT and (name[0] != "." or name == ".ci")]
        paths = (Path(folder, name) for name in names)
        found += [path for path in paths if any(path.match(pattern) for pattern in patterns)]
    return sorted(found)


def section(page: str, head: str) -> str:
    """Give what stands below a heading, up to the next heading."""
    _, found, rest = page.partition(f"\n{head}\n")
    assert found, f"no heading {head!r}"
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def blocks(page: str, language: str) -> list[str]:
    """Give the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def without_blocks(page: str) -> str:
    """Give a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def rows(text: str, head: str) -> list[list[str]]:
    """Give the cells of the table whose first column has this head."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {head} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def quoted(text: str) -> list[str]:
    """Give what stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def outside_brackets(text: str) -> str:
    """Give a text without what stands in round brackets."""
    return re.sub(r"\([^()]*\)", "", text)


# --- README ------------------------------------------------------------------------------------------------------


def test_the_python_example_prints_what_its_comments_say(work_dir: Path) -> None:
    """Copied from README and run in an empty folder, it prints those lines and leaves no session behind."""
    (example,) = blocks(read("README.md"), "python")
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", example, flags=re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=work_dir,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == promised == ["['A greeting']", "['Say hello']"]
    assert list(ProjectLayout().sessions_path(work_dir).iterdir()) == []


async def _have_a_conversation(work_dir: Path, session_id: str, where: kimi_sessions.Layout) -> None:
    session = await Session.create(work_dir, session_id, layout=where)
    await session.wire_file.append_many(
        [TurnBegin(user_input="Is a word enough?"), TextPart(text="Yes."), TurnEnd()]
    )
    await session.context.append({"role": "user", "content": "Is a word enough?"})
    await session.close()


def test_the_shell_examples_run_as_they_stand(work_dir: Path, home: Path) -> None:
    """Each line of README's shell blocks, in their order, ends with exit code 0 and says something (`make` aside)."""
    asyncio.run(_have_a_conversation(work_dir, "here", ProjectLayout()))
    asyncio.run(_have_a_conversation(work_dir, "there", ShareLayout()))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said: dict[str, str] = {}
    for line in "".join(blocks(read("README.md"), "sh")).splitlines():
        command = line.partition(" # ")[0].strip()
        if command.startswith("make "):
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=work_dir,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout or done.stderr, command
        said[command.partition(" ")[2]] = done.stdout + done.stderr
    assert len(said) >= 9
    assert "Is a word enough?" in said["list"]
    assert "> Is a word enough?" in said["show @last"]
    assert said["continue"] == "here\n"
    assert said['search "a word"'].startswith("here  ")
    assert "1 added" in said["migrate --all-dirs"]
    assert [entry.session_id for entry in asyncio.run(Session.list_trash(work_dir))] == ["here"]
    assert [session.id for session in asyncio.run(Session.list(work_dir))] == ["there"]


def exit_codes() -> dict[int, str]:
    """Map the exit codes of the program to their names."""
    return {code: name for name in _exit.__all__ if isinstance(code := getattr(_exit, name), int)}


#: What a list of exit codes has to say of each.
_TOLD = {
    "OK": "ok",
    "UNEXPECTED": "unexpected",
    "USAGE": "usage",
    "NOT_FOUND": "not found",
    "BUSY": "busy",
    "DAMAGED": "damaged",
    "TOO_NEW": "too new",
    "NOT_WRITTEN": "could not write",
    "INTERRUPTED": "interrupted",
}


def test_the_lists_of_exit_codes_are_the_programs() -> None:
    """README and docs/cli.md name every exit code that there is, and what it stands for."""
    _, _, sentence = " ".join(read("README.md").split()).partition("Exit codes: ")
    readme = {int(code): text for code, text in re.findall(r"(\d+) ([^,.]+)", sentence.partition(". ")[0])}
    page = {int(code): text for code, text in rows(read("docs/cli.md"), "code")}
    for told in (readme, page):
        assert told.keys() == exit_codes().keys()
        assert [name for code, name in exit_codes().items() if _TOLD[name] not in told[code]] == []


# --- docs/cli.md -------------------------------------------------------------------------------------------------


def _essence(command: str, output: str) -> str:
    """Give an output as it is; of a help, what does not depend on the parser's way to wrap and to draw brackets."""
    return re.sub(r"<str>|[\s{}<>\[\]]", "", output) if command.endswith("--help") else output


def test_the_command_page_shows_what_the_commands_print() -> None:
    """Help and examples are what the program prints now; `python scripts/update_cli_docs.py` rewrites them."""
    page = read("docs/cli.md")
    shown = update_cli_docs.commands_of(page)
    printed = update_cli_docs.commands_of(update_cli_docs.refreshed(page))
    assert len(shown) > len(COMMANDS)
    assert [(command, _essence(command, text)) for command, text in shown] == [
        (command, _essence(command, text)) for command, text in printed
    ]


def test_every_command_is_on_the_command_page() -> None:
    """Each has a heading of its own, its help (a family's members, too) and at least one example."""
    page = read("docs/cli.md")
    assert sorted(re.findall(r"^## (\S+)$", page, flags=re.MULTILINE)) == sorted(COMMANDS)
    for name, row in COMMANDS.items():
        assert row.help
        commands = [command for command, _ in update_cli_docs.commands_of(section(page, f"## {name}"))]
        family = getattr(importlib.import_module(f"kimi_sessions.cli.{row.module}"), "commands", {})
        for member in ("", *(f" {part}" for part in family)):
            assert f"kimi-sessions {name}{member} --help" in commands
        examples = [command for command in commands if not command.endswith("--help")]
        assert any(f" {name}" in command for command in examples), name


# --- docs/api.md -------------------------------------------------------------------------------------------------

_OWNERS: Mapping[str, type] = {
    "Session": Session,
    "session": Session,
    "wire": WireFile,
    "context": ContextFile,
}


def documented_calls() -> list[str]:
    """Give what stands in the first column of the tables of calls; a `.name` has the owner of the one before it."""
    found = []
    for line in read("docs/api.md").splitlines():
        if not line.startswith("| `"):
            continue
        owner = ""
        for code in quoted(line.split("|")[1]):
            text = re.sub(r"^(await|async for record in|async with) ", "", code)
            if text.startswith("."):
                text = owner + text
            owner = text.partition("(")[0].rpartition(".")[0]
            found.append(text)
    return found


def named(path: str) -> Any:
    """Give what a dotted name on the page stands for. Raises AttributeError or ModuleNotFoundError."""
    owner, _, name = path.rpartition(".")
    if owner in _OWNERS:
        return getattr(_OWNERS[owner], name)
    return getattr(importlib.import_module(owner or "kimi_sessions"), name)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Give name, kind and default of each parameter but the first of a method."""
    found = list(inspect.signature(function).parameters.values())
    if found and found[0].name == "self":
        del found[0]
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


def test_the_interface_page_lists_many_calls() -> None:
    """The page's tables are found at all: the test below has something to look at."""
    assert len(documented_calls()) > 60


@pytest.mark.parametrize("call", documented_calls())
def test_a_call_on_the_interface_page_is_declared_so(call: str) -> None:
    """Name, parameters, their order, kinds and defaults are the code's."""
    path, bracket, rest = call.partition("(")
    found = named(path)
    if not bracket:
        assert isinstance(found, property)
        return
    tree = ast.parse(f"def call({rest}: ...")
    scope: dict[str, Any] = {}
    exec(compile(tree, "docs/api.md", "exec"), scope)
    assert parameters(found) == parameters(scope["call"])


def test_coroutines_on_the_interface_page_are_awaited() -> None:
    """What is marked `await` is a coroutine function (or a method of that name that gives one), and nothing else is."""
    for line in read("docs/api.md").splitlines():
        for code in quoted(line.split("|")[1]) if line.startswith("| `") else []:
            if code.startswith("."):
                continue
            path = code.removeprefix("await ").partition("(")[0]
            if not path.startswith("async "):
                assert inspect.iscoroutinefunction(named(path)) == code.startswith("await "), code


def test_names_on_the_interface_page_are_there() -> None:
    """Attributes of a session, classes and constants named in the text, and errors can all be had."""
    page = read("docs/api.md")
    prose = section(page, "## One session").partition("\n|")[0]
    attributes = [name for name in quoted(prose) if re.fullmatch("[a-z_]+", name)]
    assert len(attributes) > 20
    assert [name for name in attributes if not hasattr(Session, name)] == []
    public = [kimi_sessions, *map(importlib.import_module, ("kimi_sessions.wire", "kimi_sessions.context"))]
    public += map(
        importlib.import_module, ("kimi_sessions.check", "kimi_sessions.migration", "kimi_sessions.state")
    )
    outside = {"OSError", "ValueError", "TypeError"}
    names = {name for name in quoted(without_blocks(page)) if re.fullmatch("[A-Z][A-Za-z_]+", name)} - outside
    assert {"SessionList", "TurnBegin", "WIRE_PROTOCOL_VERSION", "MigrationError"} <= names
    assert [name for name in sorted(names) if not any(hasattr(door, name) for door in public)] == []


# --- docs/format.md ----------------------------------------------------------------------------------------------


def check_fields(model: type[BaseModel], text: str) -> None:
    """Compare the fields in a cell, and those in brackets of one that is itself a model, with the code's."""
    listed = text.partition(";")[0]
    assert quoted(outside_brackets(listed)) == list(model.model_fields), model.__name__
    for name, inner in re.findall(r"`(\w+)` \((`[^()]*`)\)", listed):
        kind = model.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            assert quoted(inner) == list(kind.model_fields), f"{model.__name__}.{name}"


def test_the_table_of_wire_types_is_the_registry() -> None:
    """Every event and request is in it with its payload's fields, in their order, and no other."""
    known = {**EVENT_TYPES, **REQUEST_TYPES}
    told = {name: row[1] for row in rows(read("docs/format.md"), "type") for name in quoted(row[0])}
    assert told.keys() == known.keys()
    for name, text in told.items():
        if name == "ContentPart":
            continue
        if text.startswith("empty"):
            assert list(known[name].model_fields) == []
        elif name in ("TurnBegin", "SteerInput"):
            assert list(known[name].model_fields) == quoted(text)
        else:
            check_fields(known[name], text)
    assert "`name`, `arguments`" in told["ToolCall"]
    assert list(ToolCall.FunctionBody.model_fields) == ["name", "arguments"]
    assert list(ToolReturnValue.model_fields) == ["is_error", "output", "message", "display", "extras"]


@pytest.mark.parametrize(
    "head,known", [("content part", CONTENT_PART_TYPES), ("display block", DISPLAY_BLOCK_TYPES)]
)
def test_the_tables_of_parts_and_blocks_are_the_registry(
    head: str, known: Mapping[str, type[BaseModel]]
) -> None:
    """Every part and block is there with its fields beside `type`, and no other."""
    told = {quoted(name)[0]: text for name, text in rows(read("docs/format.md"), head)}
    assert told.keys() == known.keys()
    for name, text in told.items():
        fields = [field for field in known[name].model_fields if field != "type"]
        assert quoted(outside_brackets(text)) == fields
        if inner := re.search(r"\((`url`.*)\)", text):
            kind = known[name].model_fields[name].annotation
            assert isinstance(kind, type)
            assert issubclass(kind, BaseModel)
            assert quoted(inner[1]) == list(kind.model_fields)


#: How the page says a default.
_DEFAULTS: Mapping[str, Any] = {
    "0": 0,
    "1": 1,
    "empty": [],
    "false": False,
    "none allowed": ApprovalState(),
    "null": None,
}


def test_the_table_of_the_state_is_the_model() -> None:
    """Fields, their order and their defaults are those of `SessionState`; so are the fields inside of them."""
    table = rows(section(read("docs/format.md"), "## state.json"), "field")
    told = [(name, _DEFAULTS[default]) for names, _, default in table for name in quoted(names)]
    fields = SessionState.model_fields
    assert told == [(name, field.get_default(call_default_factory=True)) for name, field in fields.items()]
    kinds = {quoted(names)[0]: text for names, text, _ in table}
    assert quoted(kinds["approval"]) == list(ApprovalState.model_fields)
    assert quoted(kinds["todos"]) == list(TodoItem.model_fields)


def test_the_names_of_files_are_the_layouts() -> None:
    """Each file and folder of a session stands in the table under the name that the code uses, and no other does."""
    told = {
        name
        for row in rows(section(read("docs/format.md"), "## A session's folder"), "name")
        for name in quoted(row[0])
    }
    assert told == {
        layout.CONTEXT,
        layout.WIRE,
        layout.STATE,
        "context_N.jsonl",
        "context_sub_N.jsonl",
        layout.METADATA,
        f"{layout.SUBAGENTS}/<agent>/",
        f"{layout.TASKS}/<task>/",
        f"{layout.NOTIFICATIONS}/<id>/",
        f"{layout.UPLOADS}/",
        f"{layout.PLANS}/",
        "imported/",
        layout.SESSION,
        layout.SEAL,
        layout.LOCK,
        layout.HOLD,
        f"*{layout.TORN_SUFFIX}",
        f"*{layout.DAMAGED_INFIX}N",
        f"*{layout.BACKUP_INFIX}N",
        layout.METADATA_MERGED,
        "tmp????????.tmp",
        f"{layout.TEMP_PREFIX}*{layout.TEMP_SUFFIX}",
        layout.CONTEXT_TEMP,
    }
    assert layout.rotated_number("context_7.jsonl") == layout.old_subagent_number("context_sub_7.jsonl") == 7
    assert layout.is_temp_name("tmp1a2b3c4d.tmp")


def test_places_on_the_format_page_are_the_layouts() -> None:
    """Where sessions, trash and registries lie is what the path arithmetic says."""
    page = read("docs/format.md")
    work_dir = Path("/w")
    share = ShareLayout("/s")
    key = layout.work_dir_key("/w")

    def shown(path: Path) -> str:
        text = str(path).replace("/w/", "<work_dir>/").replace("/s/", "<share>/").replace(key, "<key>")
        return f"`{text}"

    project = ProjectLayout()
    for path in (
        project.sessions_path(work_dir),
        project.trash_path(work_dir),
        project.work_dir_file_path(work_dir),
        project.migration_path(work_dir),
        share.sessions_path(work_dir),
        share.trash_path(work_dir),
        share.kimi_json_path,
    ):
        assert shown(path) in page
    for name in (
        layout.WORK_DIRS,
        layout.KEY,
        layout.CATALOG,
        layout.DELETING_PREFIX,
        layout.CREATING_PREFIX,
    ):
        assert f"`{name}" in page


# --- ARCHITECTURE.md ---------------------------------------------------------------------------------------------


def drawn_modules() -> set[str]:
    """Give the modules in the drawing, as paths without suffix; a folder's are listed behind it, up to a `;`."""
    (drawing,) = (
        block for block in blocks(read("ARCHITECTURE.md"), "") if block.startswith("src/kimi_sessions/")
    )
    found = set()
    for row in re.split(r"^  (?=\S)", drawing, flags=re.MULTILINE)[1:]:
        folder = re.match(r"(\w+)/ +", row)
        if folder is None:
            found |= set(re.findall(r"(?:^|  )(\w+)\.py\b", row))
        else:
            listed = row[folder.end() :].partition(";")[0]
            found |= {f"{folder[1]}/{piece.split()[0]}" for piece in listed.split("·")}
    return found


def test_the_drawing_shows_every_module_and_no_other() -> None:
    """The house's map is the tree: rooms that were built are drawn, rooms that were torn down are not."""
    commands = {f"cli/{row.module}" for row in COMMANDS.values()}
    tree = {str(path.relative_to(SOURCE).with_suffix("")) for path in SOURCE.rglob("*.py")}
    doors = {name for name in tree if name.endswith("/__init__")}
    assert drawn_modules() == tree - doors - commands


# --- all documents -----------------------------------------------------------------------------------------------


def links() -> Iterator[tuple[Path, str]]:
    """Give each link of each document that leads to a file or a heading of ours."""
    for path in ours("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(path.read_text("utf-8"))):
            if not re.match(r"[a-z]+:", target):
                yield path, target


def anchors(page: str) -> set[str]:
    """Give what links may name after `#`: headings in small letters, spaces as hyphens, other signs left out."""
    heads = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_lead_to_files_and_headings_that_are_there() -> None:
    """No document points to a page that was moved, renamed or not written."""
    found = list(links())
    assert len(found) > 8
    broken = []
    for page, link in found:
        name, _, anchor = link.partition("#")
        path = (page.parent / name) if name else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text("utf-8"))):
            broken.append(f"{page.relative_to(PROJECT)}: {link}")
    assert broken == []


def test_no_file_speaks_of_the_machine_it_was_written_on() -> None:
    """No document, source or setting names a folder or a package server of somebody's own machine."""
    # In pieces, so that this file does not name them either.
    pieces = ("/ro,ot ", "/wo,rk/", "py,pi.org", "python,hosted.org", "arti,factory")
    unwanted = re.compile(
        "|".join(re.escape(piece.replace(",", "")).replace(r"\ ", r"\b") for piece in pieces)
    )
    # What the corpus was rewritten to is a matter of those who read it.
    corpus = re.compile("/home/" + "dev")
    readers = tuple(PROJECT / name for name in ("fixtures", "tests", "scripts", "bench"))
    found = []
    for path in ours("*.md", "*.py", "*.toml", "*.cfg", "*.ini", "*.yml", "*.yaml", "Makefile", ".ci/*"):
        text = path.read_text("utf-8")
        hits = [match[0] for match in unwanted.finditer(text)]
        if not any(path.is_relative_to(reader) for reader in readers):
            hits += [match[0] for match in corpus.finditer(text)]
        found += [f"{path.relative_to(PROJECT)}: {hit}" for hit in hits]
    assert found == []


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    """A change finds its section without asking: Unreleased comes first, and says something."""
    heads = re.findall(r"^## (.*)$", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert section(read("CHANGELOG.md"), "### Added").strip().startswith("- ")


def test_readme_is_short_enough_to_be_read() -> None:
    """A newcomer gets through it in a few minutes; what is longer has a page of its own."""
    assert len(read("README.md").splitlines()) <= 130
