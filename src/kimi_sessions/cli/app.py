"""
The program: the table of commands made into a parser.

A command's file is loaded when the command is used. The options of ``_options.everywhere`` are put on every command,
before and after its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from ._commands import COMMANDS, Command, find
from ._exit import INTERRUPTED, OK, USAGE, Failed, complain
from ._options import everywhere
from ._version import installed_version

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]


_EPILOG = "An ID is a whole id, a unique beginning of one, or @last. Without a command, the list is printed."


class _Group(TyperGroup):
    """The program: commands by the table, each loaded when it is used."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        row = find(cmd_name)
        if row is None:
            return None
        name = next(name for name, other in COMMANDS.items() if other is row)
        if name not in self.commands:
            self.commands[name] = _load(name, row)
        return self.commands[name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise Failed(f"no command {args[0]!r}{hint} ('kimi-sessions --help' lists them)", USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        rows = [(", ".join((name, *row.aliases)), row.help) for name, row in COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _load(name: str, row: Command) -> Any:
    module = import_module(f".{row.module}", __package__)
    family: dict[str, Callable[..., Any]] | None = getattr(module, "commands", None)
    app = _typer()
    if family is None:
        app.command(name)(getattr(module, row.function))
        command = typer.main.get_command(app)
        command.params.extend(_options())
        return command
    app.callback(help=module.__doc__ and row.help)(_nothing)
    for part, function in family.items():
        app.command(part)(function)
    group = cast("TyperGroup", typer.main.get_command(app))
    group.name = name
    for member in (group, *group.commands.values()):
        member.params.extend(_options())
    return group


def _nothing() -> None:
    return None


def _typer() -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def _options() -> list[Any]:
    """Return the options that every command has."""
    app = _typer()
    app.command()(everywhere)
    return list(typer.main.get_command(app).params)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kimi-sessions {installed_version()}")
        raise typer.Exit


def _program(
    ctx: typer.Context,
    *,
    _asked_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Sessions of coding agents, kept as folders of plain files."""
    if ctx.invoked_subcommand is None:
        from .list_ import command

        command(ctx)


@functools.cache
def _build() -> Any:
    app = typer.Typer(
        cls=_Group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        epilog=_EPILOG,
    )
    app.callback()(_program)
    group = typer.main.get_command(app)
    group.params.extend(_options())
    return group


def run(args: Sequence[str]) -> int:
    """Run the program with these arguments and return its exit code. Errors of the library come through."""
    usage_error = _base_named(typer.BadParameter, "UsageError")
    try:
        result = _build().main(args=list(args), prog_name="kimi-sessions", standalone_mode=False)
    except usage_error as error:
        where = getattr(error, "ctx", None)
        path = where.command_path if where is not None else "kimi-sessions"
        complain(f"{error.format_message()} ('{path} --help' tells more)")
        return USAGE
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as error:
        # The parser has a way of its own to end on a closed pipe; there is one place for that here.
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    return result if isinstance(result, int) else OK


def _base_named(cls: type, name: str) -> Any:
    """Return a base of a class by name: the parser under typer is not always the same package."""
    return next(base for base in cls.__mro__ if base.__name__ == name)
