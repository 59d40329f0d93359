"""
What the tool is for, shown in a minute: old sessions of Kimi CLI come into a project, are listed, shown and continued.

Everything happens in a temporary folder with a home of its own, with the real command on real old sessions from
`fixtures/corpus`. Nothing else on this machine is read or written, and nothing is left behind. Run by `make demo`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

CORPUS = Path(__file__).resolve().parent.parent / "fixtures" / "corpus"
COMMAND = Path(sys.executable).with_name("kimi-sessions")

# One or two sessions of each era: the client's version, the beginning of the session's id.
OLD_SESSIONS = (
    ("0.58", "3f7b3ad0"),
    ("0.84", "647c5b7c"),
    ("1.12.0", "639e7560"),
    ("1.28.0", "ca8705e9"),
    ("1.52.0", "0c1bc165"),
    ("1.52.0", "d01969dd"),
)


class Demo:
    """A scratch place, and what is said and done in it."""

    def __init__(self, scratch: Path) -> None:
        self.project = scratch / "project"
        self.share = scratch / "old-store"
        self.project.mkdir()
        elsewhere = {"KIMI_SHARE_DIR", "KIMI_SESSIONS_HOME", "KIMI_SESSIONS_TRACEBACK", "COLUMNS"}
        self.env = {name: value for name, value in os.environ.items() if name not in elsewhere}
        self.env |= {"HOME": str(scratch), "KIMI_SESSIONS_HOME": str(scratch / "home")}
        if not sys.stdout.isatty():
            self.env["COLUMNS"] = "80"

    def say(self, text: str) -> None:
        """Print a paragraph of explanation."""
        print()
        print(textwrap.fill(" ".join(text.split()), 80, break_on_hyphens=False), flush=True)

    def run(self, *args: str) -> None:
        """Echo a command and run it in the project; its output is the demo's. A command that fails ends the demo."""
        print()
        print("$ kimi-sessions", " ".join(f"'{arg}'" if " " in arg else arg for arg in args), flush=True)
        done = subprocess.run(
            [COMMAND, *args], cwd=self.project, env=self.env, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode != 0:
            sys.exit(f"demo: that command ended with {done.returncode}")

    def put_old_sessions(self) -> None:
        """Build the store that somebody would have who used Kimi CLI in the project through all these versions."""
        key = hashlib.md5(str(self.project).encode(), usedforsecurity=False).hexdigest()
        folder = self.share / "sessions" / key
        folder.mkdir(parents=True)
        registry = {"work_dirs": [{"path": str(self.project), "kaos": "local", "last_session_id": None}]}
        for version, beginning in OLD_SESSIONS:
            source = CORPUS / version
            files = json.loads((source / "MANIFEST.json").read_bytes())["files"]
            for name, facts in files.items():
                if not (name.startswith("sessions/") and name.split("/")[2].startswith(beginning)):
                    continue
                target = folder.joinpath(*name.split("/")[2:])
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / "share" / name, target)
                # A checkout has today's times; the old clients told a session's age by them.
                os.utime(target, ns=(facts["mtime_ns"], facts["mtime_ns"]))
                registry["work_dirs"][0]["last_session_id"] = name.split("/")[2].removesuffix(".jsonl")
        (self.share / "kimi.json").write_text(json.dumps(registry, indent=2), "utf-8")


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="kimi-sessions-demo-") as name:
        demo = Demo(Path(name).resolve())
        demo.put_old_sessions()
        demo.say(
            f"""kimi-sessions keeps an agent's sessions as folders of plain files, inside the project they belong to.
            This demo has a scratch project, and beside it a store of Kimi CLI's as it looks after years of use:
            sessions that five released versions wrote, from 0.58 to 1.52, each in the layout of its time. All of it
            is in {demo.project.parent}."""
        )
        demo.say("What would come into the project? A dry run only reads.")
        demo.run("migrate", "--share-dir", "../old-store", "--dry-run")
        demo.say("Do it. The old store is copied, compared and counted, and never changed.")
        demo.run("migrate", "--share-dir", "../old-store")
        demo.say(
            """Here they are, newest first. An id can be shortened as it is here, in every command. The session of 0.58
            has no title: that client did not write down what titles are made of."""
        )
        demo.run("list")
        demo.say(
            "So give it one, and look at it. What was compacted away in it is still there, and comes first."
        )
        demo.run("rename", "3f7b3ad0", "Things to remember")
        demo.run("show", "3f7b3ad0")
        demo.say("A session with tools. Each call is one line with what came back; --json has all of it.")
        demo.run("show", "647c5b7c")
        demo.say(
            "Continue where you left off: the id is what an agent needs. --json tells everything about it."
        )
        demo.run("continue")
        demo.run("continue", "--json")
        demo.say("Or go back to an earlier turn of it, in a session of its own; the old one stays as it is.")
        demo.run("fork", "@last", "--turn", "0", "--title", "Another try")
        demo.say("Deleting moves to the trash, and the trash gives back.")
        demo.run("delete", "3f7b3ad0", "--yes")
        demo.run("trash", "list")
        demo.run("trash", "restore", "3f7b3ad0")
        demo.run("list")
        demo.say(
            "That was all in a temporary folder, which is gone now. 'kimi-sessions --help' lists the commands; try "
            "'kimi-sessions --share list --all-dirs' to see what Kimi CLI has kept for you."
        )


if __name__ == "__main__":
    main()
