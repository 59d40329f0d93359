"""How things look on a real terminal: a pseudo terminal of 80 columns, and the installed command on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
import unicodedata
from pathlib import Path

from .conftest import COMMAND, Make, Run

TITLES = (
    "请仔细阅读以下需求说明，并给出完整的实现方案和测试用例",
    "🎉👩‍👩‍👧‍👦 a party 🎉 for the whole family 🎉 and friends 🎉🎉🎉",
    "한국어로 된 아주 긴 제목이 여기에 있습니다 그리고 더 길어집니다",
    "plain ASCII text that goes on for quite a while, as they do",
)


def on_terminal(*args: str, answer: bytes = b"", columns: int = 80, cwd: Path) -> tuple[int, str]:
    """Run the command on a pseudo terminal, type `answer`, and give exit code and all that was written."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    process = subprocess.Popen(
        [COMMAND, *args], cwd=cwd, env=env | {"TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
        if answer and b"[y/N]" in seen:
            os.write(ours, answer)
            answer = b""
    code = process.wait(timeout=60)
    os.close(ours)
    return code, seen.decode("utf-8").replace("\r\n", "\n")


def cells(text: str) -> int:
    """Count the cells of a line."""
    return sum(
        0
        if unicodedata.combining(char) or char in "\u200d\ufe0f"
        else 2
        if unicodedata.east_asian_width(char) in "WF"
        else 1
        for char in text
    )


def test_the_table_fits_a_terminal_of_80_columns(run: Run, make: Make, work_dir: Path) -> None:
    """No line is wider than the terminal, with CJK and emoji in it; the header is set off, times are short."""
    for title in TITLES:
        run("rename", make("prompt").id, title)
    for args in (["list"], ["list", "--all-dirs"]):
        code, seen = on_terminal(*args, cwd=work_dir)
        assert code == 0
        lines = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in seen.splitlines()]
        assert len(lines) == len(TITLES) + 1
        assert max(map(cells, lines)) <= 80
        assert all(cells(line) > 60 for line in lines[1:])
    assert seen.startswith("\x1b[1mID")
    assert "2023-11-14" in seen


def test_a_wider_terminal_shows_more(run: Run, make: Make, work_dir: Path) -> None:
    """The width is the terminal's own."""
    run("rename", make("prompt").id, "x" * 150)
    assert "x" * 150 in on_terminal("list", columns=200, cwd=work_dir)[1]
    assert "x" * 70 not in on_terminal("list", columns=80, cwd=work_dir)[1]


def test_delete_on_a_terminal_takes_no_for_an_answer(make: Make, work_dir: Path) -> None:
    """Only y and yes delete; the question names the session."""
    session = make("Precious work")
    code, seen = on_terminal("delete", session.id, answer=b"n\n", cwd=work_dir)
    assert code == 1
    assert "Precious work" in seen
    assert "nothing was changed" in seen
    assert session.path.is_dir()
    code, seen = on_terminal("delete", session.id, answer=b"y\n", cwd=work_dir)
    assert code == 0
    assert not session.path.is_dir()


def test_a_long_list_on_a_terminal_is_cut_and_says_so(make: Make, work_dir: Path) -> None:
    """The newest fifty are shown, and how many there are; elsewhere all are."""
    for number in range(52):
        make(session_id=f"s-{number}")
    code, seen = on_terminal("list", "--empty", cwd=work_dir)
    assert code == 0
    assert "50 of 52 sessions" in seen
    assert len(seen.splitlines()) == 52
