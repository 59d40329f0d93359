"""
Whether a session inside a project is this user's own: the seal.

A ``.kimi`` folder can arrive with a cloned repository, and its ``state.json`` could allow every tool call. So
each session carries ``seal.json``, two MACs made with a key that only this user has, outside every project.
What a place is worth (known, moved, copied) is ``metadata``'s knowledge; what to do with an untrusted session
is the caller's.

    <session>/seal.json   {"version": 1, "identity": hex, "approvals": [hex, ...]}
    <state>/key           32 random bytes, 0600

- ``identity`` is over store id and session id. It says: this user's program made or sealed this session, in
  this store. Trusted is a session whose identity verifies, in a place where the registry has its store, or
  where the store moved to (its old place is gone, or holds it no more). A copied store is not trusted while
  the original is there.
- ``approvals`` are over the same two ids and what the session may do without asking. More than one is held
  while these change. Values are taken as they lie in the file, so a spelling that a lenient reader would take
  for ``true`` is not the spelling that was sealed. Defaults allow nothing and need no seal.
- The key is made once, whole, by one of those who want it at the same moment. A damaged key, or one that
  others can read, is named and never replaced: a new one would turn every sealed session untrusted without a
  word.

Verifying reads only and never raises.
"""

from __future__ import annotations

import hmac
import secrets
import stat as stat_module
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import JSONEncoder
from pathlib import Path
from typing import Any

from . import _document, _fs, metadata
from .errors import HomeNotFoundError, WriteError
from .layout import KEY, SEAL, ProjectLayout, state_home
from .metadata import Standing, follow_move

__all__ = ["Trust", "Verdict", "approvals_of", "follow_move", "mask_approvals", "verify", "write_seal"]

_VERSION = 1
_KEY_BYTES = 32
# Different first bytes: a MAC of the one kind can never pass for the other.
_IDENTITY = b"kimi-sessions/seal/1/identity\n"
_APPROVALS = b"kimi-sessions/seal/1/approvals\n"
#: A seal has one or two; a planted list of a million would cost a million comparisons.
_MAX_APPROVALS = 4
_canonical = JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a seal says about a session.

    ``trusted``: this user's own, in its place. ``approvals_ok``: trusted, and what it may do without asking
    is what was sealed. ``problem``: why not, "" if both hold.
    """

    trusted: bool
    approvals_ok: bool
    problem: str


_GOOD = Verdict(trusted=True, approvals_ok=True, problem="")
_CHANGED = Verdict(
    trusted=True,
    approvals_ok=False,
    problem="what it may do without asking is not what this user's program wrote; it is taken as nothing",
)


def _untrusted(problem: str) -> Verdict:
    return Verdict(trusted=False, approvals_ok=False, problem=problem)


# --- what is sealed -----------------------------------------------------------------------------------------


def approvals_of(state_doc: Mapping[str, Any] | None) -> list[Any]:
    """
    Return what a state document allows without asking: yolo, afk, the sorted actions, the additional dirs.

    The values are the document's own, whatever their types; missing ones are at their defaults.
    """
    if state_doc is None:
        return [False, False, [], []]
    approval = state_doc.get("approval", {})
    dirs = state_doc.get("additional_dirs", [])
    if not isinstance(approval, dict):
        return [approval, dirs]
    actions = approval.get("auto_approve_actions", [])
    if isinstance(actions, list) and all(type(action) is str for action in actions):
        actions = sorted(set(actions))
    return [approval.get("yolo", False), approval.get("afk", False), actions, dirs]


def _allows_nothing(approvals: list[Any]) -> bool:
    """Tell whether approvals are the defaults; equal is not enough, because 0 equals False."""
    match approvals:
        case [yolo, afk, [], []]:
            return yolo is False and afk is False
    return False


def mask_approvals(state_doc: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of a state document that allows nothing without asking; all else in it is as it was."""
    masked = dict(state_doc or {})
    if "approval" in masked:
        approval = masked["approval"]
        masked["approval"] = {
            **(approval if isinstance(approval, dict) else {}),
            "yolo": False,
            "afk": False,
            "auto_approve_actions": [],
        }
    if "additional_dirs" in masked:
        masked["additional_dirs"] = []
    return masked


class _Sealer:
    """The two kinds of MAC in one store. What all sessions of a store share is worked in once."""

    __slots__ = ("_approvals", "_identity")

    def __init__(self, key: bytes, store_id: str) -> None:
        store = store_id.encode("ascii") + b"\n"
        self._identity = hmac.new(key, _IDENTITY + store, "sha256")
        self._approvals = hmac.new(key, _APPROVALS + store, "sha256")

    def identity(self, session_id: str) -> str:
        mac = self._identity.copy()
        mac.update(_canonical(session_id).encode("ascii"))
        return mac.hexdigest()

    def approvals(self, session_id: str, state_doc: Mapping[str, Any] | None) -> str:
        # The session's id is in it, so that what one session may do can't be pinned on another.
        mac = self._approvals.copy()
        mac.update(f"{_canonical(session_id)}\n{_canonical(approvals_of(state_doc))}".encode("ascii"))
        return mac.hexdigest()


def _same(mac: str, given: object) -> bool:
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(mac, given)


# --- the key ------------------------------------------------------------------------------------------------


def _read_key(dir_fd: int) -> tuple[bytes, str]:
    """Return the key, or b"" and what is wrong with it. Raises FileNotFoundError if there is none."""
    fs = _fs.active()
    try:
        fd = _fs.open_regular(KEY, dir_fd=dir_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        return b"", f"can't be read: {error.strerror}"
    try:
        mode = stat_module.S_IMODE(fs.fstat(fd).st_mode)
        if mode & 0o077:
            return b"", f"can be read by others (mode {mode:04o}, should be 0600)"
        key = _fs.read_fd(fd, 0, _KEY_BYTES + 1)
    except OSError as error:
        return b"", f"can't be read: {error.strerror}"
    finally:
        fs.close(fd)
    if len(key) != _KEY_BYTES or key.count(0) == _KEY_BYTES:
        return b"", "is damaged"
    return key, ""


def _load_key(*, create: bool) -> tuple[bytes, str]:
    """Return this user's key, or b"" and why there is none to be had."""
    try:
        folder = state_home()
    except HomeNotFoundError as error:
        return b"", str(error)
    try:
        fd = metadata.open_state_home() if create else _fs.open_folder(folder, follow=True)
    except (FileNotFoundError, NotADirectoryError):
        return b"", "this user has no key yet"
    except OSError as error:
        return b"", f"no key can be kept in {folder}: {error.strerror}"
    try:
        try:
            key, problem = _read_key(fd)
        except FileNotFoundError:
            if not create:
                return b"", "this user has no key yet"
            metadata.create_whole(KEY, secrets.token_bytes(_KEY_BYTES), dir_fd=fd)
            # Whoever came first made it; everyone uses that one.
            key, problem = _read_key(fd)
    except OSError as error:
        return b"", f"no key can be kept in {folder}: {error.strerror}"
    finally:
        _fs.active().close(fd)
    return key, f"the key {folder / KEY} {problem}" if problem else ""


# --- verifying ----------------------------------------------------------------------------------------------


class Trust:
    """
    What is needed to judge all sessions of one project, read once, when the first sealed session asks.

    Keep one for as long as one list or one lookup takes; what it read is not read again.
    """

    __slots__ = ("_former", "_key", "_problem", "_resolved", "_sealer", "_work_dir")

    def __init__(self, work_dir: Path, resolved: Path) -> None:
        self._work_dir = work_dir
        self._resolved = resolved
        self._key = b""
        self._sealer: _Sealer | None = None
        self._former: list[_Sealer] | None = None
        self._problem = ""

    def judge(
        self, session_id: str, seal: str, state_doc: Mapping[str, Any] | None, *, dir_fd: int | None = None
    ) -> Verdict:
        """Like ``verify``, by the seal in the file ``seal`` (relative to the open folder ``dir_fd``)."""
        document = _document.read_document(seal, dir_fd=dir_fd)
        if document.value is None and document.exists:
            return _untrusted(f"its seal is damaged: {document.problem}")
        return self.verify(session_id, document.value, state_doc)

    def verify(
        self, session_id: str, seal_doc: Mapping[str, Any] | None, state_doc: Mapping[str, Any] | None
    ) -> Verdict:
        """Judge a session by its seal and state (None where there is none). Reads only; never raises."""
        if seal_doc is None:
            return _untrusted("it has no seal of this user")
        if seal_doc.get("version") != _VERSION:
            return _untrusted(f"its seal has version {seal_doc.get('version')!r}")
        if self._sealer is None and self._former is None:
            self._load()
        sealer = self._sealer_of(session_id, seal_doc.get("identity"))
        if sealer is None:
            return _untrusted(
                self._problem or "its seal was not made by this user for this session in this project"
            )
        if _allows_nothing(approvals_of(state_doc)):
            return _GOOD
        try:
            mac = sealer.approvals(session_id, state_doc)
        except (TypeError, ValueError, RecursionError):
            return _CHANGED
        given = seal_doc.get("approvals")
        if isinstance(given, list) and any(_same(mac, each) for each in given[:_MAX_APPROVALS]):
            return _GOOD
        return _CHANGED

    def _sealer_of(self, session_id: str, identity: object) -> _Sealer | None:
        """
        Return what a session was sealed with, if it was one of this place's stores; None if it was not.

        A ``work_dir.json`` that was lost takes the store's id with it, and a new one names another. The registry still
        has both, at this very place, and a seal for either is this user's.
        """
        if self._sealer is not None and _same(self._sealer.identity(session_id), identity):
            return self._sealer
        if self._former is None:
            self._former = self._of_this_place()
        return next((each for each in self._former if _same(each.identity(session_id), identity)), None)

    def _of_this_place(self) -> list[_Sealer]:
        return [_Sealer(self._key, each) for each in metadata.store_ids_at(self._resolved)]

    def _load(self) -> None:
        """Read key, store id and registry, for what judges the sessions here, or what is against them."""
        self._key, self._problem = _load_key(create=False)
        if self._problem:
            self._former = []
            return
        store_id = metadata.read_store_id(self._work_dir)
        if store_id is None:
            path = ProjectLayout().work_dir_file_path(self._work_dir)
            self._former, self._problem = self._of_this_place(), f"{path} names no store"
            return
        try:
            standing = metadata.standing(self._work_dir, self._resolved, store_id)
        except (OSError, HomeNotFoundError) as error:
            self._former, self._problem = [], f"the registry can't be read: {error}"
            return
        if standing is Standing.COPY:
            self._former, self._problem = [], "this store is a copy of one that is still in its place"
        elif standing is Standing.UNKNOWN:
            self._former, self._problem = self._of_this_place(), "this store is not in this user's registry"
        else:
            self._sealer = _Sealer(self._key, store_id)


def verify(
    work_dir: Path, resolved: Path, session_id: str, folder: str, state_doc: Mapping[str, Any] | None
) -> Verdict:
    """Judge one session by the seal in its folder. Writes nothing, never raises."""
    try:
        fd = _fs.open_folder(folder)
    except OSError as error:
        return _untrusted(f"its folder can't be read: {error.strerror}")
    try:
        return Trust(work_dir, resolved).judge(session_id, SEAL, state_doc, dir_fd=fd)
    finally:
        _fs.active().close(fd)


# --- sealing ------------------------------------------------------------------------------------------------


def write_seal(
    work_dir: Path,
    resolved: Path,
    session_id: str,
    folder_fd: int,
    state_doc: Mapping[str, Any] | None,
    *,
    also: Mapping[str, Any] | None = None,
) -> str:
    """
    Seal a session with the approvals of ``state_doc``; return "", or why it is not sealed or not yet trusted.

    The store gets an id if it has lost its own, and the work dir is registered, so that what is sealed is
    trusted. ``also`` is a second state document whose approvals verify too: to change approvals, seal new and
    old, save the state, seal the new alone. Durable when it returns; nothing is written if the seal is there
    already. The caller holds the session's lock.

    Raises WriteError if the session's folder, or a store without an id, can't be written.
    """
    if metadata.read_store_id(work_dir) is None:
        metadata.ensure_store(ProjectLayout(), work_dir, resolved)
    problem = metadata.register_work_dir(ProjectLayout(), work_dir, resolved)
    key, missing = _load_key(create=True)
    if missing:
        return missing
    store_id = metadata.read_store_id(work_dir)
    if store_id is None:
        return f"{ProjectLayout().work_dir_file_path(work_dir)} names no store"
    sealer = _Sealer(key, store_id)
    documents = [state_doc] if also is None else [state_doc, also]
    seal = {
        "version": _VERSION,
        "identity": sealer.identity(session_id),
        "approvals": list(dict.fromkeys(sealer.approvals(session_id, document) for document in documents)),
    }
    try:
        if _document.read_document(SEAL, dir_fd=folder_fd).value != seal:
            _fs.replace_file(SEAL, _document.dump_document(seal), dir_fd=folder_fd)
    except OSError as error:
        path = ProjectLayout().sessions_path(work_dir) / session_id / SEAL
        raise WriteError.of(error, str(path)) from error
    return problem
