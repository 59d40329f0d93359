"""
Everything at once, for minutes: programs on shared sessions, failing disks, kills and cuts, checked all the while.

    python -m tests.torture.mixed [--seconds 900] [--seed N] [--round N]

Prints the seed first and a table last. The seed decides everything that is decided here: which steps the programs
take, which calls of the disk fail, in which call a program is killed, where a log is cut. When two programs run when
is the machine's to decide; so a seed gives back the plan, and as a rule the fault. `--round` runs one round's plan
alone, again and again.

What is checked: every record whose append had returned is read, until the torture itself cut it off; every
tag is there; every session that was made and not deleted is there; no program ends in an error that is not the
library's own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kimi_sessions import Layout, ProjectLayout, Session, SessionsError, ShareLayout
from kimi_sessions.repair import repair

PROJECT = Path(__file__).parent.parent.parent
SHARED = [f"s{n}" for n in range(4)]
#: After so many rounds a new store is begun, so that reading it all again stays quick.
ROUNDS_PER_STORE = 6


@dataclass
class Count:
    """The numbers of the table."""

    rounds: int = 0
    programs: int = 0
    operations: int = 0
    refused: int = 0
    kills: int = 0
    cuts: int = 0
    repairs: int = 0
    injected: int = 0
    foreign: int = 0
    acknowledged: int = 0
    cut_off: int = 0
    checks: int = 0
    lost: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass
class Store:
    """One store under torture, and what must be found in it."""

    root: Path
    layout: Layout
    layout_name: str
    wire: dict[str, set[str]] = field(default_factory=dict)
    context: dict[str, set[str]] = field(default_factory=dict)
    tags: dict[str, set[str]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    @property
    def work_dir(self) -> Path:
        """The project."""
        return self.root / "project"

    def expect(self, what: str, session: str, record: str) -> None:
        """Take down what a program said."""
        if what in ("wire", "context", "tag"):
            kind = {"wire": self.wire, "context": self.context, "tag": self.tags}[what]
            kind.setdefault(session, set()).add(record)
        elif what == "made":
            self.made.add(session)
        elif what == "deleted":
            self.made.discard(session)
            for kind in (self.wire, self.context, self.tags):
                kind.pop(session, None)


def records_in(data: bytes, wire: bool) -> Counter[str]:
    """Give the names of the records in a log, however its lines are: what is counted is names, not lines."""
    found: Counter[str] = Counter()
    marker = b'"user_input":"' if wire else b'"content":"'
    for part in data.split(marker)[1:]:
        found[part.split(b" ", 1)[0].decode("utf-8", "replace")] += 1
    marker = marker.replace(b'":"', b'": "')
    for part in data.split(marker)[1:]:
        found[part.split(b" ", 1)[0].decode("utf-8", "replace")] += 1
    return found


async def names_read(session: Session) -> tuple[Counter[str], Counter[str]]:
    """Read a session as a program does: the names of its records, and of its messages, rotated ones too."""
    wire: Counter[str] = Counter()
    async for record in session.wire_file.iter_records():
        text = record.message.payload.get("user_input")
        if isinstance(text, str):
            wire[text.split(" ", 1)[0]] += 1
    context: Counter[str] = Counter()
    from kimi_sessions import ContextFile

    for path in sorted(session.path.glob("context*.jsonl")):
        for message in await ContextFile(path).messages():
            context[message.text.split(" ", 1)[0]] += 1
    return wire, context


async def check(store: Store, count: Count, *, final: bool) -> None:
    """Look for everything that was acknowledged so far. While programs run, a session may be in the trash."""
    wire = {key: set(value) for key, value in store.wire.items()}
    context = {key: set(value) for key, value in store.context.items()}
    tags = {key: set(value) for key, value in store.tags.items()}
    made = set(store.made)
    count.checks += 1
    if final:
        for entry in await Session.list_trash(store.work_dir, layout=store.layout):
            try:
                await Session.restore(store.work_dir, entry.session_id, layout=store.layout)
            except SessionsError as error:
                count.errors.append(f"restore of {entry.session_id}: {error}")
    for session_id in {*wire, *context, *tags, *made}:
        session = await Session.find(store.work_dir, session_id, layout=store.layout)
        if session is None:
            if final:
                count.lost += len(wire.get(session_id, ())) + 1
                count.errors.append(f"session {session_id} is gone")
            continue
        try:
            found_wire, found_context = await names_read(session)
        except FileNotFoundError:
            continue  # trashed this moment
        if not final and await Session.find(store.work_dir, session_id, layout=store.layout) is None:
            continue
        for kind, expected, found in (
            ("record", wire.get(session_id, set()), found_wire),
            ("message", context.get(session_id, set()), found_context),
        ):
            missing = sorted(name for name in expected if not found[name])
            if missing and not final:
                continue  # it may have been trashed and restored while we looked; the final look decides
            for name in missing:
                count.lost += 1
                count.errors.append(f"{kind} {name} of {session_id} is lost")
        twice = sorted(name for name, times in found_wire.items() if times > 1)
        count.errors.extend(f"record {name} of {session_id} is there twice" for name in twice)
        lost_tags = tags.get(session_id, set()) - set(session.tags)
        if final and lost_tags:
            count.lost += len(lost_tags)
            count.errors.append(f"tags {sorted(lost_tags)} of {session_id} are lost")


FOREIGN = """
import json, sys, time, os
path, name, count = sys.argv[1:]
for n in range(int(count)):
    try:
        # Not made anew where the session is in the trash at this moment: then the folder is not there either.
        log = open(path, "a", encoding="utf-8")
    except FileNotFoundError:
        continue
    with log:
        log.write(json.dumps({"timestamp": time.time(), "message": {"type": "TurnBegin", "payload":
                  {"user_input": f"{name}.f{n} " + "z" * (n % 5 * 9000)}}}) + "\\n")
    print("wire", path.split(os.sep)[-2], f"{name}.f{n}", 0, flush=True)
    time.sleep(0.001)
"""


def start(arguments: list[str], home: Path) -> subprocess.Popen[bytes]:
    """Start one program of the torture."""
    env = {**os.environ, "KIMI_SESSIONS_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )


async def run_round(store: Store, plan: str, count: Count) -> None:
    """Let the programs of one round run, take down what they say, and look for it all the while."""
    rng = random.Random(plan)
    home = store.root / "home"
    # A program without our lock can't be undone around: it is not mixed with short writes.
    foreign = rng.random() < 0.25
    rate = 0.0 if foreign else rng.choice((0.0, 0.002, 0.01))
    children: dict[subprocess.Popen[bytes], bytes] = {}
    for n in range(rng.choice((2, 3, 4))):
        die_at = rng.choice((0, rng.randrange(50, 400), rng.randrange(100, 6000)))
        operations = rng.randrange(60, 200)
        sync = "1" if rng.random() < 0.1 else "0"
        arguments = [str(store.work_dir), store.layout_name, f"{plan}.{n}", str(operations), str(rate)]
        children[start(["-m", "tests.torture.worker", *arguments, str(die_at), sync], home)] = b""
    if foreign:
        session = await Session.find(store.work_dir, rng.choice(SHARED), layout=store.layout)
        if session is not None and (session.path / "wire.jsonl").exists():
            # What it writes into a log that is in the trash just then is there, too, once that is restored.
            path = str(session.path / "wire.jsonl")
            children[start(["-c", FOREIGN, path, plan, "100"], home)] = b""
            count.foreign += 1
    count.programs += len(children)
    errors: dict[subprocess.Popen[bytes], list[bytes]] = {child: [] for child in children}
    injected: dict[subprocess.Popen[bytes], int] = {}
    selector = selectors.DefaultSelector()
    for child in children:
        assert child.stdout is not None
        assert child.stderr is not None
        selector.register(child.stdout, selectors.EVENT_READ, (child, "out"))
        selector.register(child.stderr, selectors.EVENT_READ, (child, "err"))
    next_check = time.monotonic() + 0.7
    while selector.get_map():
        for key, _ in selector.select(timeout=0.2):
            child, kind = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                selector.unregister(key.fileobj)
                continue
            if kind == "err":
                errors[child].append(data)
                continue
            *lines, children[child] = (children[child] + data).split(b"\n")
            for line in lines:
                what, session_id, record, failures = line.decode().split()
                injected[child] = int(failures)
                count.operations += what != "end"
                count.refused += what == "refused"
                count.acknowledged += what in ("wire", "context", "tag")
                store.expect(what, session_id, record)
        if time.monotonic() > next_check:
            await check(store, count, final=False)
            next_check = time.monotonic() + 0.7
    for child in children:
        child.wait()
        count.injected += injected.get(child, 0)
        if child.returncode == -9:
            count.kills += 1
        elif child.returncode != 0:
            text = b"".join(errors[child]).decode("utf-8", "replace")
            count.errors.append(f"a program of round {plan} ended with {child.returncode}:\n{text[-3000:]}")
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    await check(store, count, final=True)


async def damage(store: Store, rng: random.Random, count: Count) -> None:
    """Cut logs where a crash of the machine would, forgive what was cut off, and sometimes let repair go over it."""
    for session_id in SHARED:
        session = await Session.find(store.work_dir, session_id, layout=store.layout)
        if session is None:
            continue
        for name, expected in (("wire.jsonl", store.wire), ("context.jsonl", store.context)):
            path = session.path / name
            if rng.random() < 0.3 and path.exists():
                data = path.read_bytes()
                cut = min(rng.choice((1, 2, rng.randrange(1, 300), rng.randrange(1, 9000))), len(data))
                path.write_bytes(data[: len(data) - cut])
                count.cuts += 1
                # All but whole lines before the cut may be gone, and nothing else.
                line = data.rfind(b"\n", 0, len(data) - cut) + 1
                before, after = records_in(data[:line], name == "wire.jsonl"), set()
                for record in expected.get(session_id, set()):
                    if before[record]:
                        after.add(record)
                    elif records_in(data[line:], name == "wire.jsonl")[record] == 0:
                        after.add(record)  # of a rotated context
                    else:
                        count.cut_off += 1
                expected[session_id] = after
        if rng.random() < 0.3:
            await repair(session)
            count.repairs += 1


def table(count: Count, seed: str, began: float) -> str:
    """Give the numbers as a table."""
    rows = [
        ("seed", seed),
        ("minutes", f"{(time.monotonic() - began) / 60:.1f}"),
        ("rounds", count.rounds),
        ("programs", count.programs),
        ("of them without our locks", count.foreign),
        ("operations", count.operations),
        ("refused, and told so", count.refused),
        ("kills", count.kills),
        ("cuts", count.cuts),
        ("repairs", count.repairs),
        ("failures injected", count.injected),
        ("checks", count.checks),
        ("records acknowledged", count.acknowledged),
        ("records cut off by the torture", count.cut_off),
        ("records lost", count.lost),
        (
            "other faults",
            len(count.errors) if not count.lost else f"{len(count.errors)} (lost ones among them)",
        ),
    ]
    return "\n".join(f"{name:<32}{value!s:>14}" for name, value in rows)


async def torture(seed: str, deadline: float, only: int | None, count: Count) -> None:
    """Run round after round until the time is up or something is lost."""
    store: Store | None = None
    number = 0 if only is None else only
    while time.monotonic() < deadline and not count.errors:
        if store is None or number % ROUNDS_PER_STORE == 0 or only is not None:
            if store is not None:
                shutil.rmtree(store.root)
            rng = random.Random(f"{seed}/store/{number // ROUNDS_PER_STORE}")
            root = Path(tempfile.mkdtemp(prefix="torture-"))
            (root / "project").mkdir()
            os.environ["KIMI_SESSIONS_HOME"] = str(root / "home")
            share = rng.random() < 0.4
            layout: Layout = ShareLayout(root / "share") if share else ProjectLayout()
            store = Store(root, layout, str(root / "share") if share else "project")
            for session_id in SHARED:
                await Session.create(store.work_dir, session_id, layout=layout)
                store.made.add(session_id)
        plan = f"{seed}-{number}"
        await run_round(store, plan, count)
        count.rounds += 1
        if not count.errors:
            await damage(store, random.Random(plan + "/damage"), count)
            await check(store, count, final=True)
        number += only is None
    if store is not None and not count.errors:
        shutil.rmtree(store.root)
    elif store is not None:
        count.errors.append(f"the store was left in {store.root}; it was round {number}")


def main() -> int:
    """Read the arguments, run, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=900.0, help="how long to go on (900)")
    parser.add_argument("--seed", default="", help="the seed of an earlier run")
    parser.add_argument("--round", type=int, default=None, help="this round's plan alone, again and again")
    given = parser.parse_args()
    seed = given.seed or str(secrets.randbelow(1 << 32))
    sys.stdout.write(f"torture for {given.seconds:g} seconds with seed {seed}\n")
    sys.stdout.flush()
    count = Count()
    began = time.monotonic()
    import logging

    logging.getLogger("kimi_sessions").setLevel(logging.CRITICAL)
    asyncio.run(torture(seed, began + given.seconds, given.round, count))
    sys.stderr.writelines(f"{error}\n" for error in [*count.errors[:20], *count.errors[-1:]])
    sys.stdout.write(table(count, seed, began) + "\n")
    return 1 if count.errors or count.lost else 0


if __name__ == "__main__":
    sys.exit(main())
