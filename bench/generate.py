"""
Makes stores and logs to measure with: seeded, so that the same arguments give the same bytes.

The logs look like what Kimi CLI writes: headers, turns, steps, streamed text, tool calls with results, usage, in its
spacing; prose follows a power law of words, with some in Chinese and Japanese, code and paths between. Records
average about 370 bytes. Nothing here uses the library, so a peer can be measured on the same data.

    python bench/generate.py store DIR --layout share --sessions 10000
    python bench/generate.py wire FILE --mb 200
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import uuid
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

#: Time of the first record of the first session; fixed, so that bytes do not depend on the day.
EPOCH_S = 1_750_000_000.0
_WORDS = 20_000
_SYLLABLES = (
    "an ar ba be ca co da de el en er fa fi ga ge ha he in ir ka ki la le ma me na ne on or pa pe qua ra re sa se "
    "ta te un ur va ve wa we xa ya yo za ze"
)
_CJK = (
    "数据库连接会话记录文件目录搜索索引错误修复测试代码函数变量类型接口服务器客户端网络请求响应缓存内存线程进程"
    "日志配置部署版本分支合并提交项目任务用户权限安全加密时间性能优化問題解決設定確認実行結果表示検索保存"
)
_TOOLS = ("ReadFile", "WriteFile", "StrReplaceFile", "Shell", "Grep", "Glob", "FetchURL", "Think")
_EXTENSIONS = ("py", "ts", "rs", "md", "json", "toml")


class Prose:
    """Words by a power law: some in every message, most in very few."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        words: dict[str, None] = {}
        while len(words) < _WORDS:
            words["".join(self.random.choices(_SYLLABLES.split(), k=self.random.randint(1, 4)))] = None
        self.words = list(words)
        self._weights = list(accumulate(1 / (rank + 2) for rank in range(_WORDS)))
        self._pool: list[str] = []

    def word(self) -> str:
        """One word."""
        if not self._pool:
            self._pool = self.random.choices(self.words, cum_weights=self._weights, k=50_000)
        return self._pool.pop()

    def text(self, words: int) -> str:
        """A run of words; one run in eight holds a phrase in Chinese or Japanese."""
        if len(self._pool) < words:
            self._pool = self.random.choices(self.words, cum_weights=self._weights, k=50_000)
        taken = self._pool[-words:]
        del self._pool[-words:]
        text = " ".join(taken)
        if self.random.random() < 0.125:
            text += " " + "".join(self.random.choices(_CJK, k=self.random.randint(4, 24))) + "。"
        return text

    def path(self) -> str:
        """A source file's path."""
        return f"src/{self.word()}/{self.word()}.{self.random.choice(_EXTENSIONS)}"


def _line(timestamp: float, kind: str, payload: object) -> bytes:
    record = {"timestamp": timestamp, "message": {"type": kind, "payload": payload}}
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


HEADER = b'{"type": "metadata", "protocol_version": "1.10"}\n'


def wire_lines(
    prose: Prose, start_s: float, turns: int | None, *, first_text: str | None = None
) -> Iterator[bytes]:
    """Yield the lines of a wire log, one turn after another (None: for ever), without the header."""
    rand = prose.random
    now = start_s
    turn = 0
    while turns is None or turn < turns:
        text = first_text if first_text is not None and turn == 0 else prose.text(rand.randint(4, 40))
        turn += 1
        yield _line(now, "TurnBegin", {"user_input": [{"type": "text", "text": text}]})
        for step in range(1, rand.randint(2, 6)):
            now += rand.random() * 3
            yield _line(now, "StepBegin", {"n": step})
            yield _line(
                now + 0.4, "ContentPart", {"type": "think", "think": prose.text(40), "encrypted": None}
            )
            yield _line(now + 0.9, "ContentPart", {"type": "text", "text": prose.text(rand.randint(10, 60))})
            for _ in range(rand.randint(0, 2)):
                call_id = f"tool_{rand.getrandbits(64):016x}"
                arguments = json.dumps({"path": prose.path(), "pattern": prose.text(3)}, ensure_ascii=False)
                function = {"name": rand.choice(_TOOLS), "arguments": arguments}
                yield _line(
                    now + 1,
                    "ToolCall",
                    {"type": "function", "id": call_id, "function": function, "extras": None},
                )
                value = {
                    "is_error": rand.random() < 0.05,
                    "output": "\n".join(prose.text(12) for _ in range(rand.randint(1, 9))),
                    "message": prose.text(4),
                    "display": [],
                    "extras": None,
                }
                yield _line(now + 1.6, "ToolResult", {"tool_call_id": call_id, "return_value": value})
            usage = {
                "input_other": rand.randint(50, 3000),
                "output": rand.randint(5, 900),
                "input_cache_read": rand.randint(0, 90_000),
                "input_cache_creation": 0,
            }
            status = {
                "context_usage": round(rand.random(), 6),
                "context_tokens": rand.randint(1000, 100_000),
                "max_context_tokens": 131072,
                "token_usage": usage,
                "message_id": f"chatcmpl-{rand.getrandbits(48):012x}",
                "plan_mode": False,
                "mcp_status": None,
            }
            yield _line(now + 2, "StatusUpdate", status)
            now += 2
        yield _line(now, "TurnEnd", {})
        now += rand.random() * 60


def context_lines(prose: Prose, turns: int | None, *, first_text: str | None = None) -> Iterator[bytes]:
    """Yield the lines of a context log, one turn after another (None: for ever)."""
    rand = prose.random
    yield json.dumps({"role": "_system_prompt", "content": prose.text(60)}).encode() + b"\n"
    checkpoint = 0
    turn = 0
    while turns is None or turn < turns:
        text = first_text if first_text is not None and turn == 0 else prose.text(rand.randint(4, 40))
        turn += 1
        yield b'{"role": "_checkpoint", "id": %d}\n' % checkpoint
        yield _compact({"role": "user", "content": text})
        for _ in range(rand.randint(1, 5)):
            checkpoint += 1
            yield b'{"role": "_checkpoint", "id": %d}\n' % checkpoint
            call_id = f"tool_{rand.getrandbits(64):016x}"
            function = {"name": rand.choice(_TOOLS), "arguments": json.dumps({"path": prose.path()})}
            yield _compact(
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": prose.text(rand.randint(10, 60))}],
                    "tool_calls": [{"type": "function", "id": call_id, "function": function}],
                }
            )
            yield b'{"role": "_usage", "token_count": %d}\n' % rand.randint(1000, 100_000)
            yield _compact(
                {"role": "tool", "content": prose.text(rand.randint(12, 90)), "tool_call_id": call_id}
            )
        checkpoint += 1


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _fill(path: Path, head: bytes, lines: Iterator[bytes], size_bytes: int, tail: bytes = b"") -> int:
    """Write lines until the file has this size; return how many."""
    count = 0
    with path.open("wb", buffering=1 << 20) as file:
        written = file.write(head)
        for line in lines:
            if written >= size_bytes:
                break
            written += file.write(line)
            count += 1
        file.write(tail)
    return count


def generate_wire(path: Path, size_mb: float, *, seed: int = 1, prompt_at_end: bool = False) -> int:
    """
    Write one wire log of about ``size_mb`` million bytes; return how many records it has.

    With ``prompt_at_end`` the only TurnBegin is the last line, as in a log whose beginning was lost.
    """
    prose = Prose(seed)
    lines = wire_lines(prose, EPOCH_S, None)
    tail = b""
    if prompt_at_end:
        lines = (line for line in lines if b'"TurnBegin"' not in line and b'"TurnEnd"' not in line)
        tail = _line(EPOCH_S + 9e6, "TurnBegin", {"user_input": "the prompt at the very end"})
    return _fill(path, HEADER, lines, int(size_mb * 1e6), tail) + bool(tail)


def generate_context(path: Path, size_mb: float, *, seed: int = 1) -> int:
    """Write one context log of about ``size_mb`` million bytes; return how many records it has."""
    return _fill(path, b"", context_lines(Prose(seed), None), int(size_mb * 1e6))


def sessions_path(root: Path, layout: str) -> Path:
    """Return the folder of the sessions of the work dir ``root/project``, in a share that is ``root/share``."""
    work_dir = root / "project"
    if layout == "project":
        return work_dir / ".kimi" / "sessions"
    key = hashlib.md5(str(work_dir).encode(), usedforsecurity=False).hexdigest()
    return root / "share" / "sessions" / key


def generate_store(
    root: Path,
    sessions: int,
    *,
    turns: int = 2,
    layout: str = "share",
    seed: int = 1,
    wire_kb: float | None = None,
) -> Path:
    """
    Make the work dir ``root/project`` with so many sessions and return the folder they lie in.

    ``layout`` is "share" (the share dir is ``root/share``, readable by Kimi CLI too) or "project". Each session has
    a wire log of ``turns`` turns, or of about ``wire_kb`` thousand bytes, a context and a state.json, and in a
    project also a session.json.
    """
    root = root.absolute()
    work_dir = root / "project"
    folder = sessions_path(root, layout)
    os.umask(0o077)
    work_dir.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    if layout == "share":
        entry = {"path": str(work_dir), "kaos": "local", "last_session_id": None}
        registry = {"work_dirs": [entry], "thinking": False}
        (root / "share" / "kimi.json").write_text(json.dumps(registry, indent=2, ensure_ascii=False), "utf-8")
    prose = Prose(seed)
    rand = prose.random
    for index in range(sessions):
        session_id = str(uuid.UUID(int=rand.getrandbits(128), version=4))
        start = EPOCH_S + rand.randrange(sessions) * 3600
        text = prose.text(rand.randint(4, 30))
        place = folder / session_id
        place.mkdir()
        if wire_kb is not None:
            lines = wire_lines(prose, start, None, first_text=text)
            _fill(place / "wire.jsonl", HEADER, lines, int(wire_kb * 1e3))
        else:
            lines = wire_lines(prose, start, turns, first_text=text)
            (place / "wire.jsonl").write_bytes(HEADER + b"".join(lines))
        context = context_lines(prose, min(turns, 50), first_text=text)
        (place / "context.jsonl").write_bytes(b"".join(context))
        os.utime(place / "context.jsonl", (start, start))
        titled = index % 10 == 0
        state = {
            "version": 1,
            "approval": {"yolo": False, "afk": False, "auto_approve_actions": []},
            "additional_dirs": [],
            "custom_title": prose.text(5) if titled else None,
            "title_generated": titled,
            "title_generate_attempts": 0,
            "plan_mode": False,
            "plan_session_id": None,
            "plan_slug": None,
            "wire_mtime": None,
            "archived": index % 20 == 0,
            "archived_at": start + 9e5 if index % 20 == 0 else None,
            "auto_archive_exempt": False,
            "todos": [],
        }
        (place / "state.json").write_text(json.dumps(state, ensure_ascii=False, indent=2), "utf-8")
        if layout == "project":
            own = {"version": 1, "created_at": start}
            (place / "session.json").write_text(json.dumps(own, indent=2) + "\n", "utf-8")
    return folder


def main() -> None:
    """Make what the arguments ask for."""
    parser = argparse.ArgumentParser(description="Make a store or a log to measure with.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    store = kinds.add_parser("store", help="a work dir with many sessions")
    store.add_argument("root", type=Path)
    store.add_argument("--sessions", type=int, default=10_000)
    store.add_argument("--turns", type=int, default=2)
    store.add_argument("--wire-kb", type=float, default=None)
    store.add_argument("--layout", choices=("share", "project"), default="share")
    store.add_argument("--seed", type=int, default=1)
    for kind in ("wire", "context"):
        log = kinds.add_parser(kind, help=f"one {kind} log")
        log.add_argument("file", type=Path)
        log.add_argument("--mb", type=float, default=200.0)
        log.add_argument("--seed", type=int, default=1)
    kinds.choices["wire"].add_argument("--prompt-at-end", action="store_true")
    given = parser.parse_args()
    if given.kind == "store":
        print(
            generate_store(
                given.root,
                given.sessions,
                turns=given.turns,
                layout=given.layout,
                seed=given.seed,
                wire_kb=given.wire_kb,
            )
        )
    elif given.kind == "wire":
        print(generate_wire(given.file, given.mb, seed=given.seed, prompt_at_end=given.prompt_at_end))
    else:
        print(generate_context(given.file, given.mb, seed=given.seed))


if __name__ == "__main__":
    main()
