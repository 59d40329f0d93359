"""
What the machine can do at all: raw calls and raw parsing, with nothing of this library around them.

``bench.py`` measures these in the same run as the library, so that its figures can be read as shares of a limit.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import orjson
from measure import Meter, main

LINE = (b'{"timestamp": 1750000000.123456, "message": {"type": "ContentPart", "payload": {"type": "text", "text": "'
        + b"word " * 56 + b'"}}}\n')  # fmt: skip


def _file() -> tuple[int, str]:
    return tempfile.mkstemp(prefix="kimi-sessions-limits-")


def write(p: dict[str, Any]) -> dict[str, Any]:
    """Append 400 bytes with one system call."""
    fd, path = _file()
    os.set_blocking(fd, True)
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            os.write(fd, LINE)
    os.close(fd)
    os.unlink(path)  # noqa: PTH108 - as mkstemp made it
    return meter.result


def write_locked(p: dict[str, Any]) -> dict[str, Any]:
    """Append 400 bytes between taking and giving back a lock."""
    fd, path = _file()
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, LINE)
            fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
    os.unlink(path)  # noqa: PTH108
    return meter.result


def write_synced(p: dict[str, Any]) -> dict[str, Any]:
    """Append 400 bytes and have them on the device, each time."""
    fd, path = _file()
    sync = getattr(os, "fdatasync", os.fsync)
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            os.write(fd, LINE)
            sync(fd)
    os.close(fd)
    os.unlink(path)  # noqa: PTH108
    return meter.result


async def hop(p: dict[str, Any]) -> dict[str, Any]:
    """Go into a thread and back."""
    await asyncio.to_thread(os.getpid)
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            await asyncio.to_thread(os.getpid)
    return meter.result


def _lines(path: str) -> list[bytes]:
    with open(path, "rb") as file:  # noqa: PTH123
        lines = file.read(32 << 20).split(b"\n")
    return lines[1:-1]


def parse_all(p: dict[str, Any]) -> dict[str, Any]:
    """Parse lines into plain objects and throw them away."""
    lines = _lines(p["path"])
    loads = orjson.loads
    with Meter(len(lines)) as meter:
        for line in lines:
            loads(line)
    return meter.result


class _Envelope(msgspec.Struct):
    type: str
    payload: msgspec.Raw


class _Record(msgspec.Struct):
    timestamp: float
    message: _Envelope


def parse_outline(p: dict[str, Any]) -> dict[str, Any]:
    """Parse lines, leaving their payloads as bytes."""
    lines = _lines(p["path"])
    decode = msgspec.json.Decoder(_Record).decode
    with Meter(len(lines)) as meter:
        for line in lines:
            decode(line)
    return meter.result


def scan(p: dict[str, Any]) -> dict[str, Any]:
    """Look through a file for bytes that are not there; the time is that of a million bytes."""
    with open(p["path"], "rb") as file:  # noqa: PTH123
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            view.find(b"\x01never\x01")
            with Meter() as meter:
                view.find(b"\x01never\x01")
    return _per_mb(meter, size)


def read(p: dict[str, Any]) -> dict[str, Any]:
    """Read a file in pieces and look through them; the time is that of a million bytes."""
    fd = os.open(p["path"], os.O_RDONLY)
    with Meter() as meter:
        offset = 0
        while data := os.pread(fd, 1 << 20, offset):
            data.find(b"\x01never\x01")
            offset += len(data)
    os.close(fd)
    return _per_mb(meter, offset)


def copy(p: dict[str, Any]) -> dict[str, Any]:
    """Copy a file in pieces; the time is that of a million bytes."""
    fd = os.open(p["path"], os.O_RDONLY)
    out, path = _file()
    with Meter() as meter:
        offset = 0
        while data := os.pread(fd, 1 << 20, offset):
            os.write(out, data)
            offset += len(data)
        os.fsync(out)
    os.close(fd)
    os.close(out)
    os.unlink(path)  # noqa: PTH108
    return _per_mb(meter, offset)


def _per_mb(meter: Meter, size: int) -> dict[str, Any]:
    result = meter.result
    return result | {"wall_s": result["wall_s"] / size * 1e6, "cpu_s": result["cpu_s"] / size * 1e6}


def folders(p: dict[str, Any]) -> dict[str, Any]:
    """List a folder of session folders, and ask the size and time of three files in each."""
    fd = os.open(p["path"], os.O_RDONLY)
    count = 0
    with Meter() as meter:
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in names:
            for file in ("wire.jsonl", "context.jsonl", "state.json"):
                os.stat(f"{name}/{file}", dir_fd=fd, follow_symlinks=False)
            count += 1
    os.close(fd)
    return meter.result | {"count": count}


def heads(p: dict[str, Any]) -> dict[str, Any]:
    """What a list reads at the barest: state.json, parsed, and the head of each wire log."""
    fd = os.open(p["path"], os.O_RDONLY)
    with Meter() as meter:
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            for file, size in (("state.json", 1 << 14), ("wire.jsonl", 1 << 12)):
                one = os.open(f"{name}/{file}", os.O_RDONLY, dir_fd=fd)
                data = os.read(one, size)
                os.close(one)
                if file == "state.json":
                    orjson.loads(data)
    os.close(fd)
    return meter.result | {"count": len(names)}


def is_there(p: dict[str, Any]) -> dict[str, Any]:
    """Find out whether one path exists."""
    path = Path(p["path"])
    with Meter(p["count"]) as meter:
        for _ in range(p["count"]):
            path.stat()
    return meter.result


if __name__ == "__main__":
    main(
        {
            "copy": copy,
            "folders": folders,
            "heads": heads,
            "hop": hop,
            "is_there": is_there,
            "parse_all": parse_all,
            "parse_outline": parse_outline,
            "read": read,
            "scan": scan,
            "write": write,
            "write_locked": write_locked,
            "write_synced": write_synced,
        }
    )
