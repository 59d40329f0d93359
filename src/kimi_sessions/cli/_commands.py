"""
The table of commands.

A new command is a row here and a file with a function ``command`` (or, for a family such as ``trash list``, a mapping
``commands`` of such functions). Its docstring is its help, and the row repeats the first line of that, so that help and
completion need not load the file.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COMMANDS", "Command", "find"]


class Command(NamedTuple):
    """A row of the table: the file below ``cli`` that has it, the first line of its help, other names it answers to."""

    module: str
    help: str
    aliases: tuple[str, ...] = ()
    #: True where the first argument names a session: the shell can complete it.
    takes_id: bool = False
    function: str = "command"


COMMANDS: dict[str, Command] = {
    "list": Command("list_", "List sessions, newest first.", aliases=("ls",)),
    "show": Command("show", "Show one session: its facts, then the conversation.", takes_id=True),
    "search": Command("search", "Find messages that hold all words of QUERY, newest first."),
    "stats": Command("stats", "Count turns, tool calls, tokens and time.", takes_id=True),
    "continue": Command("continue_", "Print the id of the session to go on with.", takes_id=True),
    "path": Command("path", "Print the folder of a session, or of all sessions.", takes_id=True),
    "rename": Command("rename", "Give a session a title of your own.", takes_id=True),
    "archive": Command("archive", "Hide a session from ordinary lists.", takes_id=True),
    "unarchive": Command("archive", "Bring an archived session back.", takes_id=True, function="unarchive"),
    "fork": Command("fork", "Make a new session from the first turns of one.", takes_id=True),
    "delete": Command("delete", "Move a session to the trash.", aliases=("rm",), takes_id=True),
    "migrate": Command("migrate", "Bring sessions of Kimi CLI into the project's layout."),
    "relink": Command("relink", "Let a store follow a project that was moved or renamed."),
    "doctor": Command("doctor", "Check sessions for damage, and repair them.", takes_id=True),
    "trash": Command("trash", "List the trash, restore from it, empty it."),
    "trust": Command("trust", "Seal a session as yours, with what it may do unasked.", takes_id=True),
}


def find(name: str) -> Command | None:
    """Return the row of a command by its name or another name that it answers to."""
    row = COMMANDS.get(name)
    if row is not None:
        return row
    return next((row for row in COMMANDS.values() if name in row.aliases), None)
