"""
Session and agent ids: parse or refuse.

An id becomes the name of a folder, so this is the gate against an id that is really a path. It lives here alone,
and nothing here touches the disk. Two rules: what we make is plain and portable; what we find may be an older
client's named session, with spaces and any script.
"""

from __future__ import annotations

import re
import uuid

from .errors import InvalidIdError

__all__ = ["is_session_id", "new_session_id", "parse_agent_id", "parse_new_session_id", "parse_session_id"]

_NEW_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_AGENT_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
#: Endings that are ours for other things: a trailing dot is dropped by some systems, the rest name flat files,
#: locks and half-written files.
_RESERVED_ENDINGS = (".", ".jsonl", ".lock", ".tmp")
#: Separators of any platform; the colon also starts a drive or a stream there.
_FORBIDDEN = frozenset("/\\:\0")
#: Not "printable" to Python, yet part of ordinary names: wide and hard spaces, and the joiners inside emoji.
_ALSO_PRINTABLE = frozenset("\u00a0\u3000\u200c\u200d")
_MAX_BYTES = 255


def new_session_id() -> str:
    """Return a fresh random id (uuid4 text)."""
    return str(uuid.uuid4())


def parse_new_session_id(value: object) -> str:
    """
    Return ``value`` if a new session may have this id.

    Raises InvalidIdError otherwise: letters, digits, ``_ . -``, at most 128, starting with a letter, digit or ``_``.
    """
    text = parse_session_id(value)
    if _NEW_ID.fullmatch(text) is None:
        raise InvalidIdError(
            value=text,
            reason="a new id has letters, digits, '_', '.', '-' (at most 128), not starting with '.' or '-'",
        )
    lowered = text.lower()
    for ending in _RESERVED_ENDINGS:
        if lowered.endswith(ending):
            raise InvalidIdError(value=text, reason=f"it may not end in {ending!r}")
    return text


def is_plain(name: str) -> bool:
    """Tell fast that a name can be a session's: letters, digits, inner hyphens, as nearly all. False tells nothing."""
    return name.isascii() and len(name) <= _MAX_BYTES and name[0] != "-" and name.replace("-", "").isalnum()


def parse_session_id(value: object) -> str:
    """
    Return ``value`` if it can be the name of an existing session: one printable path component.

    Raises InvalidIdError otherwise, without touching the disk.
    """
    if not isinstance(value, str):
        raise InvalidIdError(value=repr(value), reason="it is not text")
    if not value:
        raise InvalidIdError(value=value, reason="it is empty")
    if is_plain(value):
        return value
    if value[0] in ".-":
        raise InvalidIdError(value=value, reason=f"it may not start with {value[0]!r}")
    for char in value:
        if char in _FORBIDDEN:
            raise InvalidIdError(value=value, reason=f"it may not contain {char!r}")
    if not value.isprintable():
        for char in value:
            if not char.isprintable() and char not in _ALSO_PRINTABLE:
                raise InvalidIdError(value=value, reason=f"it contains {char!r}, which can't be printed")
    if (not value.isascii() and len(value.encode("utf-8")) > _MAX_BYTES) or len(value) > _MAX_BYTES:
        raise InvalidIdError(value=value, reason=f"it is longer than {_MAX_BYTES} bytes")
    return value


def is_session_id(value: object) -> bool:
    """Tell whether ``value`` can be the name of an existing session; ``parse_session_id`` tells why not."""
    try:
        parse_session_id(value)
    except InvalidIdError:
        return False
    return True


def parse_agent_id(value: object) -> str:
    """Return ``value`` if it can name a subagent's folder, else raise InvalidIdError."""
    if not isinstance(value, str) or _AGENT_ID.fullmatch(value) is None:
        raise InvalidIdError(value=str(value), reason="an agent id has letters, digits, '_' and '-'")
    return value
