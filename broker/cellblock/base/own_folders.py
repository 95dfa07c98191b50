"""A folder that Cellblock makes and removes has a mark in it and a lock, and nothing goes without both.

The lock tells whether its process lives, in whatever pid namespace: a container's broker and its machine's may share a
state folder. The mark holds the folder's name and inode, so that no copy of it, and no folder of others, has one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from cellblock_worker.base.folders import FILE, Contents, Folder, InTheWay, is_known, remove_known

logger = logging.getLogger("cellblock")

PREFIX: Final = "broker-"

_NAME: Final = re.compile(PREFIX + "[a-z0-9_]{8}")

LOCK_NAME: Final = "lock"
"""Names the lock and mark of the folder that one process has."""

MARK_NAME: Final = ".cellblock"
"""Names the mark of a folder that processes share."""

MARK_BYTES: Final = 1024
"""Caps what is read of a mark; one takes 100 bytes and the folder's name."""

ATTEMPTS: Final = 10
"""Caps the times in a row that the last of the other brokers may remove the shared folder just then."""

SHORTAGES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""Names what the machine lacks, and no configuration mends."""


class OwnFolder:
    """Owns a new folder of this process alone, with mode 0700, held by a lock. Owns it.

    Args:
        parent: The folder to make it in, which is made when it is missing.
        contents: What will be in it. Anything else stays at the end, and the folder with it.

    Raises:
        InTheWay: Something else has the parent's name.
        OSError: It cannot be made.
    """

    def __init__(self, parent: Path, contents: Contents) -> None:
        self._contents = contents
        name = PREFIX + secrets.token_hex(4)
        for _ in range(ATTEMPTS):
            # The last of the other brokers may just be tidying up.
            with contextlib.suppress(FileNotFoundError):
                self._take(parent, name)
                return
        raise FileNotFoundError(errno.ENOENT, "removed as soon as it was made, again and again", str(parent))

    @property
    def path(self) -> Path:
        """Returns the folder's path."""
        return self.folder.path

    def restore(self) -> None:
        """Makes the folder anew under its name, where someone has removed or moved it, or removed its lock.

        Raises:
            InTheWay: Something else has its name.
            OSError: It cannot be made.
        """
        parent, folder, lock = self.parent, self.folder, self._lock
        with shared_folder(parent.path) as now:
            seen = now.look(folder.path.name)
        if seen is not None and os.path.samestat(seen, folder.stat()) and os.fstat(lock).st_nlink > 0:
            return
        self._take(parent.path, folder.path.name, was=folder.stat())
        os.close(lock)
        folder.close()
        parent.close()

    def close(self) -> None:
        """Removes the folder with what is ours in it, then gives up its lock; and the parent, when no broker's folder
        is left in it."""
        try:
            _remove(self.parent, self.folder, self._contents)
            _give_back(self.parent)
        except OSError as error:
            logger.warning("%s is not removed: %s", self.path, error)
        finally:
            os.close(self._lock)
            self.folder.close()
            self.parent.close()

    def _take(self, parent: Path, name: str, was: os.stat_result | None = None) -> None:
        with contextlib.ExitStack() as stack:
            within = stack.enter_context(shared_folder(parent))
            made = within.make(name)
            if made:
                stack.callback(_remove_new, within, name)
            folder = stack.enter_context(within.below(name))
            if not made and (was is None or not os.path.samestat(folder.stat(), was)):
                raise InTheWay(folder.path, "not the folder that Cellblock has made there")
            lock = folder.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Not before the lock is held: nobody takes a folder without a mark for a leftover.
            _write_mark(lock, folder)
            self.parent: Folder = within
            self.folder: Folder = folder
            self._lock: int = lock
            stack.pop_all()


def shared_folder(path: Path) -> Folder:
    """Opens a folder that brokers have theirs in; one that is made here is marked, and goes with the last of them.

    Raises:
        InTheWay: Something else has its name.
        OSError: It cannot be opened, or made.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Folder.named(path.parent) as above:
        made = above.make(path.name)
        folder = above.below(path.name)
    if made:
        try:
            _mark(folder)
        except BaseException:
            folder.close()
            raise
    return folder


def remove_stale(parent: Path, contents: Contents, *, unmarked: bool = False) -> None:
    """Removes the folders of brokers that were killed, and `parent` when it was made for them and has nothing else.

    Args:
        parent: What they are in; it need not be there.
        contents: What is in them.
        unmarked: Those too that an earlier version has made, without marks: an empty lock, and not one unknown file.

    Raises:
        InTheWay: Something else has the parent's name.
        OSError: It cannot be looked into.
    """
    try:
        folder = Folder.inside(parent)
    except FileNotFoundError:
        return
    with folder:
        # What this version has marked has nothing of an earlier one in it.
        unmarked = unmarked and not _is_marked(folder, MARK_NAME)
        for name in folder.names():
            if _NAME.fullmatch(name):
                # Others come and go meanwhile, and what cannot be looked into is not ours.
                with contextlib.suppress(OSError):
                    _remove_if_stale(folder, name, contents, unmarked=unmarked)
        _give_back(folder)


def is_living(parent: Path, name: str) -> bool:
    """Says whether the process that has made a folder still runs. Raises OSError: That cannot be seen."""
    try:
        with Folder.named(parent) as within, own_folder(within, name) as folder:
            lock = folder.open(LOCK_NAME, os.O_RDWR)
    except (FileNotFoundError, InTheWay):
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def own_folder(parent: Folder, name: str) -> Folder:
    """Opens a broker's folder, living or not.

    Raises:
        InTheWay: Its name, owner or mark is not a broker's.
        OSError: It cannot be opened.
    """
    if not _NAME.fullmatch(name):
        raise InTheWay(parent.path / name, "not a folder that Cellblock has made")
    folder = parent.below(name)
    if not _is_marked(folder, LOCK_NAME):
        folder.close()
        raise InTheWay(folder.path, "not a folder that Cellblock has made")
    return folder


# ---- inside ------------------------------------------------------------------------------------------------


def _remove_if_stale(parent: Folder, name: str, contents: Contents, *, unmarked: bool) -> None:
    with parent.below(name) as folder:
        if not _is_marked(folder, LOCK_NAME) and not (unmarked and _is_of_earlier_version(folder, contents)):
            return
        lock = folder.open(LOCK_NAME, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another broker may have been faster.
            if os.fstat(lock).st_nlink > 0:
                _remove(parent, folder, contents)
        finally:
            os.close(lock)


def _is_of_earlier_version(folder: Folder, contents: Contents) -> bool:
    lock = folder.look(LOCK_NAME)
    return (
        lock is not None
        and lock.st_size == 0
        and stat.S_IMODE(folder.stat().st_mode) == 0o700
        and is_known(folder, {LOCK_NAME: FILE, **contents})
    )


def _remove(parent: Folder, folder: Folder, contents: Contents) -> None:
    """Removes a folder whose lock is held, but for what is not ours."""
    left = [name for name in remove_known(folder, contents) if name != LOCK_NAME]
    # The last of ours: without it nobody could prove any more whose the rest is.
    folder.remove(LOCK_NAME)
    if left:
        logger.warning("%s stays: Cellblock has not made what is in it: %s", folder.path, ", ".join(left))
        return
    _remove_empty(parent, folder)


def _remove_new(parent: Folder, name: str) -> None:
    with contextlib.suppress(OSError):
        parent.remove(name, stat.S_IFDIR)


def _remove_empty(parent: Folder, folder: Folder) -> None:
    """Removes an empty folder, where it still has its name."""
    name = folder.path.name
    seen = parent.look(name)
    if seen is not None and os.path.samestat(seen, folder.stat()):
        parent.remove(name, stat.S_IFDIR)


def _give_back(folder: Folder) -> None:
    """Removes a shared folder that was made for brokers, when it has nothing but its mark."""
    if folder.names() != [MARK_NAME] or not _is_marked(folder, MARK_NAME):
        return
    folder.remove(MARK_NAME)
    try:
        with Folder.named(folder.path.parent) as above:
            _remove_empty(above, folder)
    except OSError:
        # Another broker has its folder there since.
        _mark(folder)


def _mark(folder: Folder) -> None:
    descriptor = folder.open(MARK_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        _write_mark(descriptor, folder)
    finally:
        os.close(descriptor)


def _write_mark(descriptor: int, folder: Folder) -> None:
    try:
        os.write(descriptor, _mark_of(folder))
    except OSError as error:
        # On a full disk it serves all the same; only, nobody removes the folder should this process be killed.
        if error.errno not in SHORTAGES:
            raise


def _is_marked(folder: Folder, name: str) -> bool:
    with contextlib.suppress(OSError):
        return folder.beginning(name, MARK_BYTES) == _mark_of(folder)
    return False


def _mark_of(folder: Folder) -> bytes:
    name = os.fsencode(folder.path.name)
    return b"Cellblock made this folder and removes it: %s %d\n" % (name, folder.stat().st_ino)
