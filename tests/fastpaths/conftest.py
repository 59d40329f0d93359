"""Old logs, and what can happen to their bytes: what every fast way is compared with its slow one over."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

CORPUS = Path(__file__).parents[2] / "fixtures" / "corpus"
_LARGE_BYTES = 60_000


def logs(pattern: str) -> list[bytes]:
    """Give the contents of all logs of one name that released clients wrote, large ones cut short."""
    found = sorted(CORPUS.glob(f"*/share/sessions/*/*/{pattern}"))
    found += sorted(CORPUS.glob(f"chain/**/{pattern}"))
    return [data[:_LARGE_BYTES] for path in found if (data := path.read_bytes())]


WIRE_LOGS = logs("wire.jsonl")
CONTEXT_LOGS = logs("context*.jsonl")


@contextmanager
def opened(data: bytes) -> Iterator[int]:
    """Give a descriptor of a file with these bytes."""
    fd, path = tempfile.mkstemp()
    try:
        os.unlink(path)
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


JUNK = [
    b"\n",
    b"\0\0\0",
    b"{",
    b"}",
    b'"',
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b" \t",
    b"\r",
    b"null",
    b"[1]",
    b"12345678901234567890123",
    b'"TurnBegin"',
    b'"TurnEnd"',
    b'"role":"user"',
    b"\\ud800",
    b"\xc3\xa9\x01",
]


@st.composite
def damaged(draw: st.DrawFn, contents: list[bytes]) -> bytes:
    """Give one of the logs with a few cuts, insertions, swaps of lines and glued lines."""
    data = draw(st.sampled_from(contents))
    lines = data.split(b"\n")
    if len(lines) > 40:
        first = draw(st.integers(0, len(lines) - 40))
        lines = lines[first : first + 40]
    for _ in range(draw(st.integers(0, 5))):
        index = draw(st.integers(0, len(lines) - 1))
        line = lines[index]
        at = draw(st.integers(0, len(line)))
        match draw(st.sampled_from(["cut", "insert", "glue", "drop", "double", "flip"])):
            case "cut":
                lines[index] = line[:at]
            case "insert":
                lines[index] = line[:at] + draw(st.sampled_from(JUNK)) + line[at:]
            case "glue":
                lines[index] = line[:at] + (lines[index + 1] if index + 1 < len(lines) else b"")
            case "drop":
                lines[index] = line[at:]
            case "double":
                lines.insert(index, line)
            case "flip" if line:
                place = min(at, len(line) - 1)
                lines[index] = line[:place] + bytes([draw(st.integers(0, 255))]) + line[place + 1 :]
    return b"\n".join(lines)[: draw(st.sampled_from([None, None, -1, -2]))]
