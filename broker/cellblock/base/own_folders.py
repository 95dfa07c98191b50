"""A folder that Cellblock makes and removes has one file that is its mark and its lock, and nothing goes without both.

The lock (`flock`) tells whether its process lives, in whatever pid namespace: a container's broker and its machine's
may share a state folder. The mark holds the folder's name and inode, so that no copy of it, and no folder of others,
has one. What such folders stand in is made when it is missing, and stays.
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

from cellblock_worker.base.folders import Contents, Folder, InTheWay, remove_known

logger = logging.getLogger("cellblock")

PREFIX: Final = "broker-"

_NAME: Final = re.compile(PREFIX + "[a-z0-9_]{8}")

LOCK_NAME: Final = "lock"
"""Names the file that is a folder's mark, and its lock as long as its process lives."""

MARK_BYTES: Final = 1024
"""Caps what is read of a mark; one takes 100 bytes and the folder's name."""

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
        self._take(parent, PREFIX + secrets.token_hex(4))

    @property
    def path(self) -> Path:
        return self.folder.path

    def restore(self) -> None:
        """Makes the folder anew under its name, where someone has removed or moved it, or removed its lock.

        Raises:
            InTheWay: Something else has its name.
            OSError: It cannot be made.
        """
        parent, folder, lock = self.parent, self.folder, self._lock
        with Folder.inside(parent.path, make=True) as now:
            seen = now.look(folder.path.name)
        if seen is not None and os.path.samestat(seen, folder.stat()) and os.fstat(lock).st_nlink > 0:
            return
        self._take(parent.path, folder.path.name, was=folder.stat())
        os.close(lock)
        folder.close()
        parent.close()

    def close(self) -> None:
        """Removes the folder with what is ours in it, then gives up its lock."""
        try:
            _remove(self.parent, self.folder, self._contents)
        except OSError as error:
            logger.warning("%s is not removed: %s", self.path, error)
        finally:
            os.close(self._lock)
            self.folder.close()
            self.parent.close()

    def _take(self, parent: Path, name: str, was: os.stat_result | None = None) -> None:
        with contextlib.ExitStack() as stack:
            within = stack.enter_context(Folder.inside(parent, make=True))
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


def remove_stale(parent: Path, contents: Contents) -> None:
    """Removes the folders of brokers that were killed.

    Args:
        parent: What they are in; it need not be there.
        contents: What is in them.

    Raises:
        InTheWay: Something else has the parent's name.
        OSError: It cannot be looked into.
    """
    try:
        folder = Folder.inside(parent)
    except FileNotFoundError:
        return
    with folder:
        for name in folder.names():
            # Others come and go meanwhile, and what cannot be looked into is not ours.
            with contextlib.suppress(OSError):
                _remove_if_stale(folder, name, contents)


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
    if not _is_marked(folder):
        folder.close()
        raise InTheWay(folder.path, "not a folder that Cellblock has made")
    return folder


# ---- inside ------------------------------------------------------------------------------------------------


def _remove_if_stale(parent: Folder, name: str, contents: Contents) -> None:
    with own_folder(parent, name) as folder:
        lock = folder.open(LOCK_NAME, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another broker may have been faster.
            if os.fstat(lock).st_nlink > 0:
                _remove(parent, folder, contents)
        finally:
            os.close(lock)


def _remove(parent: Folder, folder: Folder, contents: Contents) -> None:
    """Removes a folder whose lock is held, but for what is not ours."""
    left = [name for name in remove_known(folder, contents) if name != LOCK_NAME]
    # The last of ours: without it nobody could prove any more whose the rest is.
    folder.remove(LOCK_NAME)
    if left:
        logger.warning("%s stays: Cellblock has not made what is in it: %s", folder.path, ", ".join(left))
        return
    # Only where it still has its name.
    name = folder.path.name
    seen = parent.look(name)
    if seen is not None and os.path.samestat(seen, folder.stat()):
        parent.remove(name, stat.S_IFDIR)


def _remove_new(parent: Folder, name: str) -> None:
    with contextlib.suppress(OSError):
        parent.remove(name, stat.S_IFDIR)


def _write_mark(descriptor: int, folder: Folder) -> None:
    try:
        os.write(descriptor, _mark_of(folder))
    except OSError as error:
        # On a full disk it serves all the same; only, nobody removes the folder should this process be killed.
        if error.errno not in SHORTAGES:
            raise


def _is_marked(folder: Folder) -> bool:
    with contextlib.suppress(OSError):
        return folder.beginning(LOCK_NAME, MARK_BYTES) == _mark_of(folder)
    return False


def _mark_of(folder: Folder) -> bytes:
    name = os.fsencode(folder.path.name)
    return b"Cellblock made this folder and removes it: %s %d\n" % (name, folder.stat().st_ino)
