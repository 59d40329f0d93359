"""
Flat files of clients up to 0.58, moved into their sessions' folders.

    <id>.jsonl         ->  <id>/context.jsonl
    <id>_N.jsonl       ->  <id>/context_N.jsonl        only where <id> is there
    <id>_sub_N.jsonl   ->  <id>/context_sub_N.jsonl    only where <id> is there

This is the one thing that finding and listing write: once, atomically, logged. Nothing is ever overwritten, no link is
followed on either side, and a file always has a name. Two processes may do it at the same moment.
"""

from __future__ import annotations

import os

from . import _fs, ids, layout
from ._log import logger
from ._text import clean
from .findings import Finding

__all__ = ["flats_of", "may_have_flats", "move_flats", "move_flats_of"]


def flats_of(root_fd: int, session_id: str) -> list[str]:
    """List the flat files in an open sessions folder that are, or would become, part of a session."""
    with _fs.active().scandir(root_fd) as entries:
        names = [
            e.name
            for e in entries
            if e.name.endswith(layout.FLAT_SUFFIX) and e.is_file(follow_symlinks=False)
        ]
    mine = session_id + layout.FLAT_SUFFIX
    return [n for n in names if n == mine or layout.flat_owner(n, names, {session_id}) == session_id]


def move_flats_of(fd: int, path: str, session_id: str) -> list[Finding]:
    """Move the flat files of one session, if there are any. Raises OSError where the folder can't be looked through."""
    if not may_have_flats(fd, session_id):
        return []
    with _fs.active().scandir(fd) as entries:
        names = [(e.name, e.is_dir(follow_symlinks=False), e.is_file(follow_symlinks=False)) for e in entries]
    flats = [n for n, _, is_file in names if is_file and n.endswith(layout.FLAT_SUFFIX)]
    folders = {n for n, is_dir, _ in names if is_dir}
    flat = session_id + layout.FLAT_SUFFIX
    if flat not in flats and session_id not in folders:
        return []
    mine = [n for n in flats if n == flat or layout.flat_owner(n, flats, folders) == session_id]
    return move_flats(fd, path, mine, folders, all_flats=flats).get(session_id, [])


def may_have_flats(fd: int, session_id: str) -> bool:
    """Tell fast whether a session may have flat files in an open sessions folder (``_fs.may_exist``)."""
    first, sub = layout.first_flat_sides(session_id)
    may_exist = _fs.may_exist
    return may_exist(session_id + layout.FLAT_SUFFIX, fd) or may_exist(first, fd) or may_exist(sub, fd)


def move_flats(
    fd: int, path: str, flats: list[str], folders: set[str], *, all_flats: list[str] | None = None
) -> dict[str, list[Finding]]:
    """Move flat files into their sessions' folders; return the clashes by session id, in order of their names."""
    problems: dict[str, list[Finding]] = {}
    names = all_flats if all_flats is not None else flats
    for name in sorted(flats, key=_order):
        owner = layout.flat_owner(name, names, folders)
        if owner is not None:
            side = layout.split_flat_side(name)
            session_id, target = owner, side[1] if side is not None else layout.CONTEXT
        else:
            session_id, target = name[: -len(layout.FLAT_SUFFIX)], layout.CONTEXT
        if not ids.is_session_id(session_id):
            continue
        problem = _move_flat(fd, path, name, session_id, target)
        if problem is not None:
            problems.setdefault(session_id, []).append(problem)
    for clashes in problems.values():
        clashes.sort(key=lambda clash: clash.file)
    return problems


def _order(name: str) -> tuple[int, str]:
    """
    Order flat files so that those by which a session's are known to be there move last.

    Whoever looks for one session's asks for its own file and for the first of each kind beside it: if a program is
    killed halfway, they are still there, and the next one moves the rest.
    """
    side = layout.split_flat_side(name)
    if side is None:
        return 1, name
    number = layout.rotated_number(side[1]) or layout.old_subagent_number(side[1]) or 0
    return -number, name


def _move_flat(fd: int, path: str, name: str, session_id: str, target: str) -> Finding | None:
    fs = _fs.active()
    try:
        _fs.ensure_folder(session_id, dir_fd=fd)
        folder_fd = _fs.open_folder(session_id, dir_fd=fd)
    except OSError as error:
        return Finding("flat-not-moved", clean(name), f"can't be moved into its folder: {error.strerror}")
    try:
        # A link first, so that nothing is ever overwritten and the file always has a name; a second process
        # doing the same finds either the flat name gone, or both names being one file.
        try:
            fs.link(name, target, src_dir_fd=fd, dst_dir_fd=folder_fd, follow_symlinks=False)
        except FileExistsError:
            if not _same_file(name, fd, target, folder_fd):
                return _clash(name, target, fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _fs.NO_HARD_LINKS:
                raise
            if _fs.exists(target, dir_fd=folder_fd):
                return _clash(name, target, fd)
            fs.rename(name, target, src_dir_fd=fd, dst_dir_fd=folder_fd)
            _log_move(path, name, target)
            return None
        try:
            fs.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return None
        _log_move(path, name, target)
    except OSError as error:
        return Finding("flat-not-moved", clean(name), f"can't be moved into its folder: {error.strerror}")
    finally:
        fs.close(folder_fd)
    return None


def _clash(name: str, target: str, fd: int) -> Finding | None:
    if not _fs.exists(name, dir_fd=fd):
        return None  # another process finished the same move
    return Finding(
        "flat-clash", clean(name), f"an old flat file beside {target} of the same session; both are kept"
    )


def _same_file(first: str, first_fd: int, second: str, second_fd: int) -> bool:
    fs = _fs.active()
    try:
        one = fs.stat(first, dir_fd=first_fd, follow_symlinks=False)
        two = fs.stat(second, dir_fd=second_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return _fs.identity(one) == _fs.identity(two)


def _log_move(path: str, name: str, target: str) -> None:
    logger().info("moved %s into its folder as %s", os.path.join(path, name), target)
