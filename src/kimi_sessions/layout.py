"""
Every file and folder name of a store; pure path arithmetic, never a look at the disk.

Two layouts with one session shape: ProjectLayout keeps sessions inside the project they belong to, ShareLayout is
Kimi CLI's own tree with one folder per work dir. Nothing else spells a name.

    <work_dir>/.kimi/sessions/<id>/          ProjectLayout
    <share>/sessions/<key>/<id>/             ShareLayout; key = md5 of the work dir's path text
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .errors import HomeNotFoundError

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = [
    "Layout",
    "ProjectLayout",
    "ShareLayout",
    "StrPath",
    "cache_home",
    "state_home",
    "work_dir_key",
    "work_dir_path",
]

# --- inside a session folder -------------------------------------------------------------------------------------

CONTEXT = "context.jsonl"
WIRE = "wire.jsonl"
STATE = "state.json"
#: Legacy (1.7 to 1.28), merged into state.json.
METADATA = "metadata.json"
METADATA_MERGED = "metadata.json.merged"
#: Ours: created_at, tags, pinned, parent, origin. Kimi CLI leaves it alone.
SESSION = "session.json"
SEAL = "seal.json"
LOCK = ".lock"
HOLD = ".hold"
TORN_SUFFIX = ".torn"
DAMAGED_INFIX = ".damaged-"
#: The whole log as it was before a repair rewrote it.
BACKUP_INFIX = ".before-repair-"
UPLOADS = "uploads"
#: Plan files; in Kimi CLI below ``~/.kimi``, in a migrated session inside its own folder.
PLANS = "plans"
#: In a session that was made of another program's data: that data.
MADE_OF = "imported"
UPLOADS_SENT = ".sent"
SUBAGENTS = "subagents"
TASKS = "tasks"
NOTIFICATIONS = "notifications"
AGENT_META = "meta.json"
TASK_DOCUMENTS = ("spec.json", "runtime.json", "control.json", "consumer.json")
NOTIFICATION_DOCUMENTS = ("event.json", "delivery.json")
#: Temp files of ours; the real client's are ``tmp????????.tmp``.
TEMP_PREFIX = ".tmp-"
TEMP_SUFFIX = ".tmp"
#: Where the real client puts a context together that gets its system prompt late.
CONTEXT_TEMP = "context.tmp"

# --- around the session folders ----------------------------------------------------------------------------------

KIMI = ".kimi"
SESSIONS = "sessions"
TRASH = "trash"
SHARE_TRASH = "sessions-trash"
MIGRATION = "migration"
WORK_DIR_FILE = "work_dir.json"
GITIGNORE = ".gitignore"
#: Git's own: a folder, but a file in a linked worktree.
GIT = ".git"
KIMI_JSON = "kimi.json"
KIMI_JSON_LOCK = "kimi.json.lock"
LOCAL_KAOS = "local"
IMPORTED = "imported_sessions"
#: Marks a folder whose removal has begun: never listed, never restored, finished by the next delete.
DELETING_PREFIX = "deleting~"
#: Marks a session folder that is being put together; renamed to its id when whole.
CREATING_PREFIX = ".creating-"
FLAT_SUFFIX = ".jsonl"
#: Beside an entry of the trash: a note of when and why, and a folder with the session's flat files.
TRASH_NOTE_SUFFIX = ".json"
TRASH_FLATS_SUFFIX = ".flat"

# --- this user's own, outside every project ----------------------------------------------------------------------

#: One small file per known work dir.
WORK_DIRS = "work_dirs"
#: What trust seals are made with.
KEY = "key"
#: Derived data, in the cache folder.
CATALOG = "catalog.sqlite3"

_ROTATED = re.compile(r"context_(\d+)\.jsonl")
_OLD_SUBAGENT = re.compile(r"context_sub_(\d+)\.jsonl")
_CLIENT_TEMP = re.compile(r"tmp[a-z0-9_]{8}\.tmp")
_SET_ASIDE = re.compile(rf".+(?:{re.escape(DAMAGED_INFIX)}|{re.escape(BACKUP_INFIX)})\d+", re.DOTALL)

StrPath: TypeAlias = "str | os.PathLike[str]"


@runtime_checkable
class _KaosPath(Protocol):
    def unsafe_to_local_path(self) -> Path: ...


def rotated_number(name: str) -> int | None:
    """Return N of ``context_N.jsonl``, else None."""
    match = _ROTATED.fullmatch(name)
    return int(match[1]) if match else None


def rotated_name(number: int) -> str:
    """Return the name of rotation ``number`` (from 1) of a context."""
    return f"context_{number}.jsonl"


def old_subagent_number(name: str) -> int | None:
    """Return N of ``context_sub_N.jsonl``, the context of a subagent of clients before 1.25, else None."""
    match = _OLD_SUBAGENT.fullmatch(name)
    return int(match[1]) if match else None


def old_subagent_name(number: int) -> str:
    """Return the name of the context of an old client's subagent ``number`` (from 1)."""
    return f"context_sub_{number}.jsonl"


def is_context_name(name: str) -> bool:
    """Tell whether a name is a context's: the one in use, a rotated one, or an old client's subagent's."""
    return name == CONTEXT or rotated_number(name) is not None or old_subagent_number(name) is not None


def further_context_names(like: str, taken: Iterable[str]) -> Iterator[str]:
    """
    Yield free names for a context that can't be called ``like``: rotations, or of a subagent's context further ones.

    They go on from the highest number among the names that are ``taken``.
    """
    is_subagent = old_subagent_number(like) is not None
    number_of = old_subagent_number if is_subagent else rotated_number
    name_of = old_subagent_name if is_subagent else rotated_name
    number = max((number_of(name) or 0 for name in taken), default=0)
    while True:
        number += 1
        yield name_of(number)


def is_temp_name(name: str) -> bool:
    """Tell whether a name is one that a writer, ours or the real client, gives a file that it is putting together."""
    ours = name.startswith(TEMP_PREFIX) and name.endswith(TEMP_SUFFIX)
    return ours or name == CONTEXT_TEMP or _CLIENT_TEMP.fullmatch(name) is not None


def is_set_aside_name(name: str) -> bool:
    """Tell whether a name is one that a repair or a save gives what it keeps for a person to look at."""
    return _SET_ASIDE.fullmatch(name) is not None


def split_flat_side(name: str) -> tuple[str, str] | None:
    """
    Split the flat name of a rotation or subagent context into its session's id and its name inside the folder.

    ``<id>_2.jsonl`` gives ``(id, "context_2.jsonl")``, ``<id>_sub_1.jsonl`` gives ``(id, "context_sub_1.jsonl")``;
    anything else gives None. An id may itself end in digits, so the longest id is not assumed: the caller asks
    whether that id is there.
    """
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "jsonl":
        return None
    head, sep, number = stem.rpartition("_")
    if not sep or not head or not number.isascii() or not number.isdigit():
        return None
    if head.endswith("_sub") and len(head) > 4:
        return head[:-4], old_subagent_name(int(number))
    return head, rotated_name(int(number))


def first_flat_sides(session_id: str) -> tuple[str, str]:
    """Return the flat names of a session's first rotation and of its first subagent's context."""
    return f"{session_id}_1{FLAT_SUFFIX}", f"{session_id}_sub_1{FLAT_SUFFIX}"


def flat_owner(name: str, flats: Container[str], folders: Container[str]) -> str | None:
    """
    Return the id of the session that a flat rotation or subagent file belongs to, None if it is a session itself.

    ``flats`` and ``folders`` are the names that lie beside it: it belongs to a session only if that one is there.
    """
    side = split_flat_side(name)
    if side is None:
        return None
    session_id = side[0]
    return session_id if session_id in folders or session_id + FLAT_SUFFIX in flats else None


def work_dir_path(work_dir: object) -> Path:
    """
    Return the absolute path of a work dir; ``.`` and ``..`` are resolved by text, links are not.

    Accepts text, a path, or a KaosPath-like object (one with ``unsafe_to_local_path()``).
    """
    # Asking for the method costs more than all else here, and those two have it not.
    if not isinstance(work_dir, (str, Path)) and isinstance(work_dir, _KaosPath):
        work_dir = work_dir.unsafe_to_local_path()
    if not isinstance(work_dir, (str, os.PathLike)):
        message = f"a work dir is text or a path, not {type(work_dir).__name__}"
        raise TypeError(message)
    text = os.fspath(work_dir)
    if not isinstance(text, str):
        message = "a work dir is text, not bytes"
        raise TypeError(message)
    if not text or "\0" in text:
        message = f"not a path: {text!r}"
        raise ValueError(message)
    return Path(os.path.abspath(text))


def work_dir_key(path_text: str, kaos: str = LOCAL_KAOS) -> str:
    """Return Kimi CLI's folder key of a work dir: md5 of the path text, prefixed by the kaos unless it is local."""
    digest = hashlib.md5(path_text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
    return digest if kaos == LOCAL_KAOS else f"{kaos}_{digest}"


def _home_of_user(variable: str) -> str:
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise HomeNotFoundError(variable=variable)
    return home


def state_home() -> Path:
    """
    Return the folder of what is ours outside every project: registry and key.

    ``$KIMI_SESSIONS_HOME`` if set, else the platform's user state dir. Raises HomeNotFoundError.
    """
    given = os.environ.get("KIMI_SESSIONS_HOME")
    if given:
        return Path(os.path.abspath(given))
    _home_of_user("KIMI_SESSIONS_HOME or HOME")
    import platformdirs

    return Path(platformdirs.user_state_dir("kimi-sessions", appauthor=False))


def cache_home() -> Path:
    """Return the folder of derived data (the catalog), safe to delete at any time. Raises HomeNotFoundError."""
    given = os.environ.get("KIMI_SESSIONS_HOME")
    if given:
        return Path(os.path.abspath(given), "cache")
    _home_of_user("KIMI_SESSIONS_HOME or HOME")
    import platformdirs

    return Path(platformdirs.user_cache_dir("kimi-sessions", appauthor=False))


class Layout:
    """
    Where the sessions of a work dir lie. Use ProjectLayout or ShareLayout.

    Immutable and cheap to make. Work dirs are passed as absolute paths (see ``work_dir_path``).
    """

    __slots__ = ()

    @property
    def sealed(self) -> bool:
        """True if sessions here carry a trust seal, because the folder can arrive from someone else."""
        raise NotImplementedError

    def sessions_path(self, work_dir: Path) -> Path:
        """Return the folder that new sessions of this work dir go into."""
        raise NotImplementedError

    def sessions_paths(self, work_dir: Path, resolved: Path | None = None) -> tuple[Path, ...]:
        """
        Return every folder to look in, the one for new sessions first.

        ``resolved`` is the work dir with its links resolved, where the caller knows it to differ.
        """
        raise NotImplementedError

    def trash_path(self, work_dir: Path) -> Path:
        """Return the folder that trashed sessions of this work dir go into."""
        raise NotImplementedError


class ProjectLayout(Layout):
    """Sessions inside their project: ``<work_dir>/.kimi/sessions/<id>/``. The default."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ProjectLayout()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProjectLayout)

    def __hash__(self) -> int:
        return hash(ProjectLayout)

    @property
    def sealed(self) -> bool:
        return True

    def kimi_path(self, work_dir: Path) -> Path:
        """Return ``<work_dir>/.kimi``."""
        return work_dir / KIMI

    def work_dir_file_path(self, work_dir: Path) -> Path:
        """Return the small file with this store's id and its last session's id."""
        return work_dir / KIMI / WORK_DIR_FILE

    def sessions_path(self, work_dir: Path) -> Path:
        return Path(work_dir, KIMI, SESSIONS)

    def sessions_paths(self, work_dir: Path, resolved: Path | None = None) -> tuple[Path, ...]:
        return (work_dir / KIMI / SESSIONS,)

    def trash_path(self, work_dir: Path) -> Path:
        return work_dir / KIMI / TRASH

    def migration_path(self, work_dir: Path) -> Path:
        """Return the folder of migration reports."""
        return work_dir / KIMI / MIGRATION


class ShareLayout(Layout):
    """
    Kimi CLI's own tree: ``<share>/sessions/<md5 of the path>/<id>/``, with the registry in ``<share>/kimi.json``.

    ``share`` None means ``$KIMI_SHARE_DIR``, else ``~/.kimi``, looked up when first needed.
    """

    __slots__ = ("_share",)

    def __init__(self, share: StrPath | None = None) -> None:
        self._share = None if share is None else os.path.abspath(os.fspath(share))

    def __repr__(self) -> str:
        return f"ShareLayout({self._share!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShareLayout) and str(self.share) == str(other.share)

    def __hash__(self) -> int:
        return hash(self._share)

    @property
    def sealed(self) -> bool:
        return False

    @property
    def share(self) -> Path:
        """The share dir. Raises HomeNotFoundError if none was given and the user has no home."""
        if self._share is not None:
            return Path(self._share)
        given = os.environ.get("KIMI_SHARE_DIR")
        if given:
            return Path(os.path.abspath(given))
        return Path(_home_of_user("KIMI_SHARE_DIR or HOME"), KIMI)

    @property
    def kimi_json_path(self) -> Path:
        """The registry of work dirs."""
        return self.share / KIMI_JSON

    @property
    def all_sessions_path(self) -> Path:
        """The folder that holds one folder per work dir."""
        return self.share / SESSIONS

    def key_path(self, key: str) -> Path:
        """Return the sessions folder of a work dir key."""
        return self.share / SESSIONS / key

    def sessions_path(self, work_dir: Path) -> Path:
        return Path(self.share, SESSIONS, work_dir_key(str(work_dir)))

    def sessions_paths(self, work_dir: Path, resolved: Path | None = None) -> tuple[Path, ...]:
        # The client keys by the text it was given, so a work dir reached through a link has two keys.
        first = self.sessions_path(work_dir)
        if resolved is None or resolved == work_dir:
            return (first,)
        return (first, self.sessions_path(resolved))

    def trash_path(self, work_dir: Path) -> Path:
        return self.share / SHARE_TRASH / work_dir_key(str(work_dir))
