"""A folder is held by its descriptor: what is in it is opened, made and removed without following links, and only if it
is ours.

A path is looked up anew with every use, and whoever can write to a folder on it decides where that leads. A descriptor
stays what was looked at. Only a folder that the user has named may be reached through links.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

FILE: Final = stat.S_IFREG
SOCKET: Final = stat.S_IFSOCK

Contents = Mapping[str, "int | Contents"]
"""Tells what we put into a folder: patterns of names, each with its kind, or with the contents of the folder of that
name."""

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}

_WRITABLE_BY_ALL: Final = 0o002


class InTheWay(OSError):
    """Tells that something that Cellblock has not made is at a name that it needs; it is left as it is.

    `strerror` names it and says what it is.
    """

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(errno.EEXIST, f"{path} is {what}", str(path))

    def __str__(self) -> str:
        return self.strerror or ""


class Folder:
    """A folder is open as long as this object has its descriptor, which it owns; it is a context manager, too.

    Args:
        path: Where it was, for messages.
        descriptor: Ours from now on.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path: Final = path
        self.descriptor: Final = descriptor

    @classmethod
    def named(cls, path: Path) -> Folder:
        """Opens a folder that the user has named: links on the way are the user's own. Raises OSError."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    @classmethod
    def inside(cls, path: Path, *, make: bool = False) -> Folder:
        """Opens a folder of ours inside one that the user has named.

        Raises:
            InTheWay: Something else has its name.
            OSError: It cannot be opened, or made.
        """
        if make:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with cls.named(path.parent) as parent:
            return parent.below(path.name, make=make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)

    def stat(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def names(self) -> list[str]:
        """Returns the names of what is in the folder, sorted. Raises OSError."""
        return sorted(os.listdir(self.descriptor))  # noqa: PTH208 - a descriptor

    def look(self, name: str) -> os.stat_result | None:
        """Returns the state of what is at a name, not followed; None when there is nothing. Raises OSError."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def holds(self, name: str, kind: int) -> bool:
        """Says whether a thing of this kind that belongs to this user is at a name. Raises OSError."""
        seen = self.look(name)
        return seen is not None and stat.S_IFMT(seen.st_mode) == kind and seen.st_uid == os.geteuid()

    def make(self, name: str) -> bool:
        """Makes a folder inside of this one, with mode 0700; False when something has that name. Raises OSError."""
        try:
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        except FileExistsError:
            return False
        return True

    def below(self, name: str, *, make: bool = False) -> Folder:
        """Opens a folder inside of this one, which must be this user's and not be open to writing by all.

        Raises:
            InTheWay: It is not, or something else has its name.
            OSError: It cannot be opened, or made.
        """
        if make:
            self.make(name)
        self.check(name, stat.S_IFDIR)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = Folder(self.path / name, os.open(name, flags, dir_fd=self.descriptor))
        try:
            refuse_other(folder.path, folder.stat(), stat.S_IFDIR)
        except BaseException:
            folder.close()
            raise
        return folder

    def open(self, name: str, flags: int, *, alone: bool = False) -> int:
        """Opens a plain file of this user in the folder; a new one has mode 0600. Gives its descriptor.

        Args:
            name: Its name.
            flags: As for `os.open`.
            alone: Refuse a file that has other names, which might be somebody's.

        Raises:
            InTheWay: Something else has its name.
            OSError: It cannot be opened.
        """
        # Before it is opened: whoever has the other end of a pipe would notice.
        self.check(name, stat.S_IFREG)
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self.descriptor)
        try:
            seen = os.fstat(descriptor)
            refuse_other(self.path / name, seen, stat.S_IFREG)
            if alone and seen.st_nlink > 1:
                raise InTheWay(self.path / name, "a file with a second name (a hard link)")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def beginning(self, name: str, size: int) -> bytes:
        """Returns the first `size` bytes of a plain file of this user in the folder. Raises as `open` does."""
        with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read(size)

    def remove(self, name: str, kind: int = FILE) -> bool:
        """Removes what is at a name, when it is of this kind and this user's; False: nothing is there.

        Raises:
            InTheWay: It is something else.
            OSError: It cannot be removed.
        """
        self.check(name, kind)
        try:
            if kind == stat.S_IFDIR:
                os.rmdir(name, dir_fd=self.descriptor)
            else:
                os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return False
        return True

    def replace(self, old: str, new: str) -> None:
        """Renames a file in the folder, over another one of ours when there is one.

        Raises:
            InTheWay: Something else is at one of the names.
            OSError: It cannot be renamed.
        """
        self.check(old, stat.S_IFREG)
        self.check(new, stat.S_IFREG)
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def link(self, old: str, new: str) -> None:
        """Gives a file in the folder one more name. Raises OSError: FileExistsError when that is taken, by
        whatever."""
        os.link(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor, follow_symlinks=False)

    def check(self, name: str, kind: int) -> None:
        """Refuses what is at a name, unless it is of this kind and this user's; nothing there is fine.

        Raises:
            InTheWay: It is something else.
            OSError: It cannot be looked at.
        """
        seen = self.look(name)
        if seen is not None:
            refuse_other(self.path / name, seen, kind)


def refuse_other(path: Path, seen: os.stat_result, kind: int) -> None:
    """Refuses what is of another kind, or another user's; and a folder that all may write to.

    Raises:
        InTheWay: It is.
    """
    found = stat.S_IFMT(seen.st_mode)
    if found != kind:
        raise InTheWay(path, f"{_KINDS.get(found, 'a device')}, not {_KINDS[kind]} of Cellblock's")
    if seen.st_uid != os.geteuid():
        raise InTheWay(path, f"another user's (uid {seen.st_uid})")
    if kind == stat.S_IFDIR and seen.st_mode & _WRITABLE_BY_ALL:
        raise InTheWay(path, f"open to writing by all users (chmod o-w {path})")


def remove_known(folder: Folder, contents: Contents) -> list[str]:
    """Removes from a folder what is known to be in it, and gives what is left, by name.

    A folder that is known is removed when it has nothing else in it. Raises OSError.
    """
    left: list[str] = []
    for name in folder.names():
        known = _known(name, contents)
        try:
            if known is None:
                left.append(name)
            elif isinstance(known, int):
                folder.remove(name, known)
            else:
                with folder.below(name) as inner:
                    within = remove_known(inner, known)
                if not within:
                    folder.remove(name, stat.S_IFDIR)
                left += [f"{name}/{other}" for other in within]
        except FileNotFoundError:
            continue
        except InTheWay:
            left.append(name)
    return left


def _known(name: str, contents: Contents) -> int | Contents | None:
    return next((known for pattern, known in contents.items() if re.fullmatch(pattern, name)), None)
