"""
Imports of the library point down: a room knows only the rooms below it.

`ROWS` is the picture of the layers as data. What is imported for annotations only (`if TYPE_CHECKING:`) does
not count; what a function imports when it runs does. A module that no row names fails the test: whoever makes
a room says where it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = "kimi_sessions"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE
FRONT_DOOR = "__init__"

# From the ground up; within a row, what stands to the right may import what stands to the left. A plain name
# is one module (a folder's name its __init__), "name.*" a folder whose modules may know each other.
ROWS: tuple[tuple[str, ...], ...] = (
    # 0: what can go wrong, what things are called, where they lie; no file is touched
    ("_lazy", "_log", "_async", "errors", "findings", "_text", "ids", "layout"),
    # 1a: bytes, from the disk and in lines
    ("_fs", "_lines"),
    # 1b: shapes; nothing of files
    ("wire.messages", "wire.records", "context.roles", "context.records", "context.unread", "_state_merge"),
    # 1c: files; nothing of sessions
    ("_locking", "_append_log", "_appender", "_document"),
    # 2a: folds, records in and values out
    ("wire.scan", "wire.turns", "context.history", "context.alignment"),
    # 2b: the files of a session and of a work dir one by one, then the doors of their folders
    ("wire.file", "context.file", "wire", "context", "state"),
    ("_places", "_kimi_json", "_registry", "metadata", "trust"),
    # 3a: what a work dir holds
    (
        "_facts",
        "catalog._database",
        "catalog._logs",
        "catalog.listing",
        "catalog.turns",
        "_survey",
        "_flats",
        "_folder",
        "_trash",
        "_store",
        "fork",
    ),
    # 3b: one open session
    ("session",),
    # 3c: sessions treated from outside
    (
        "check",
        "repair",
        "migration.*",
        "catalog._text",
        "catalog._scope",
        "catalog.stats",
        "catalog.searching",
        "catalog",
    ),
    # 4: the front door, and those who come in by it
    (FRONT_DOOR, "cli.*"),
)

# Guests see what is public and nothing else.
GUESTS = ("cli.*",)

# Packages that take long to import, or that only one room has a use for.
KEPT_IN_THEIR_ROOMS: Mapping[str, tuple[str, ...]] = {
    "pydantic": ("wire.messages", "context.records", "context.unread", "state"),
    "typer": ("cli.*",),
    "rich": ("cli.*",),
    "sqlite3": ("catalog._database", "history.*", "migration.flux"),
}


def stands_for(entry: str, module: str) -> bool:
    """Say whether a table entry names this module."""
    if not entry.endswith(".*"):
        return entry == module
    return module == entry[:-2] or module.startswith(entry[:-1])


def height(module: str) -> tuple[int, int] | None:
    """Give the row and the place in it, or None for a module that the table does not know."""
    for row, entries in enumerate(ROWS):
        for place, entry in enumerate(entries):
            if stands_for(entry, module):
                return row, place
    return None


def may_import(importer: str, imported: str) -> bool:
    """Say whether the table lets one module know another."""
    above, below = height(importer), height(imported)
    if above is None or below is None:
        return False
    if any(stands_for(guest, importer) for guest in GUESTS):
        private = any(part.startswith("_") and part != FRONT_DOOR for part in imported.split("."))
        if private and above != below:
            return False
    return below <= above


def modules_under(source: Path) -> dict[str, Path]:
    """Map each module's name below the package ("wire.file", "wire", "__init__") to its file."""
    found: dict[str, Path] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


def statements_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, function bodies too, but not what stands under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for other in child.orelse:
                yield other
                yield from statements_that_run(other)
            continue
        yield child
        yield from statements_that_run(child)


def imports_of(text: str, module: str, *, is_folder: bool) -> Iterator[tuple[int, str]]:
    """Give line number and full dotted name of all that a module imports, relative names resolved."""
    package = [PACKAGE, *([] if module == FRONT_DOOR else module.split("."))]
    if not is_folder:
        package.pop()
    for node in statements_that_run(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def target_of(dotted: str, modules: Mapping[str, Path]) -> str | None:
    """
    Give the module of this package that an import reaches, or None if it leads elsewhere.

    `from kimi_sessions.wire import file` reaches wire.file, `... import WireFile` the door of wire.
    """
    parts = dotted.split(".")
    if parts[0] != PACKAGE:
        return None
    for end in range(len(parts), 1, -1):
        name = ".".join(parts[1:end])
        if name in modules:
            return name
    return FRONT_DOOR


def violations(source: Path) -> list[str]:
    """Give one line for each import under a source folder that the table forbids."""
    modules = modules_under(source)
    found: list[str] = []
    for module, path in modules.items():
        if height(module) is None:
            found.append(f"{module}: stands in no row")
            continue
        for line_number, dotted in imports_of(
            path.read_text("utf-8"), module, is_folder=path.name == "__init__.py"
        ):
            target = target_of(dotted, modules)
            if target is not None and target != module and not may_import(module, target):
                found.append(f"{module}, line {line_number}: knows {target}")
            rooms = KEPT_IN_THEIR_ROOMS.get(dotted.split(".")[0])
            if rooms is not None and not any(stands_for(room, module) for room in rooms):
                found.append(f"{module}, line {line_number}: {dotted} has no place here")
    return found


def test_imports_point_down() -> None:
    """No module of the library imports one that stands above it, and every module stands somewhere."""
    assert modules_under(SOURCE), "no source found: the test looks in the wrong place"
    assert violations(SOURCE) == []


def test_every_row_names_a_module_that_is_there() -> None:
    """The picture holds no room that was torn down."""
    modules = modules_under(SOURCE)
    entries = [entry for row in ROWS for entry in row]
    assert [entry for entry in entries if not any(stands_for(entry, module) for module in modules)] == []


@pytest.mark.parametrize(
    "module,text,complaint",
    [
        ("ids", "from kimi_sessions import session", "ids, line 1: knows session"),
        ("ids", "from . import session", "ids, line 1: knows session"),
        ("ids", "from kimi_sessions.session import Session", "ids, line 1: knows session"),
        ("ids", "import kimi_sessions.session", "ids, line 1: knows session"),
        ("ids", "from kimi_sessions import Session", "ids, line 1: knows __init__"),
        ("ids", "def f():\n    from .session import Session", "ids, line 2: knows session"),
        ("wire/turns", "from ..session import Session", "wire.turns, line 1: knows session"),
        ("wire/turns", "from . import file", "wire.turns, line 1: knows wire.file"),
        ("wire/file", "from kimi_sessions.wire import Turn", "wire.file, line 1: knows wire"),
        ("wire/__init__", "from ..session import Session", "wire, line 1: knows session"),
        ("_fs", "from ._locking import lock", "_fs, line 1: knows _locking"),
        ("ids", "import pydantic.main", "ids, line 1: pydantic.main has no place here"),
        ("cli/app", "from kimi_sessions._fs import read", "cli.app, line 1: knows _fs"),
        ("newcomer", "", "newcomer: stands in no row"),
        ("wire/newcomer", "", "wire.newcomer: stands in no row"),
    ],
)
def test_an_upward_import_is_seen_however_it_is_written(
    tmp_path: Path, module: str, text: str, complaint: str
) -> None:
    """The test itself is tested: each way to write a forbidden import gives its complaint."""
    for name in ("session", "ids", "_fs", "_locking", "wire/__init__", "wire/file", "wire/turns", module):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if name == module else "", "utf-8")
    assert violations(tmp_path) == [complaint]


@pytest.mark.parametrize(
    "module,text",
    [
        ("ids", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .session import Session"),
        ("ids", "from os import path\nimport kimi_sessions_tools.session"),
        ("session", "from kimi_sessions.wire import WireFile\nfrom . import ids"),
        ("_locking", "from ._fs import read"),
        ("cli/app", "from kimi_sessions import Session\nfrom ._render import table\nimport typer"),
    ],
)
def test_a_downward_import_is_left_in_peace(tmp_path: Path, module: str, text: str) -> None:
    """Imports for annotations, from elsewhere, and from below are fine."""
    for name in ("__init__", "session", "ids", "_fs", "_locking", "wire/__init__", "cli/_render", module):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if name == module else "", "utf-8")
    assert violations(tmp_path) == []
