"""A daemon's Unix socket, which only programs of its user reach: the folder has mode 0700, the socket 0600, and each
end asks the kernel who is at the other. Each writes one line first (`hello`)."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

from cellblock.base.orphans import WATCHER
from cellblock.base.state_dir import LONGEST_SOCKET_PATH
from cellblock_worker.base.folders import SOCKET, Folder, InTheWay

FOLDER: Final = "daemons"
"""Names the folder of these sockets in the state directory."""

BACKLOG: Final = 256

_XUCRED_BYTES: Final = 76

KEY: Final = "cellblock"

HELLO_SECONDS: Final = 5.0
"""Bounds the wait for the other's first line."""

REFUSES_TOKEN: Final = "token"
STOPPING: Final = "stopping"
TOO_MANY: Final = "too many"


class Stranger(OSError):
    """Tells that a process of another user is at the other end."""


class ListeningSocket:
    """Owns the socket of the daemon that has an address, which nobody else can have as long as it listens there.

    Raises:
        InTheWay: Something else has its name, or its folder is open to others; that stays as it is.
        OSError: It cannot be made, or another daemon listens on it.
    """

    def __init__(self, state_dir: Path, address: str) -> None:
        self._name = _name(address)
        self._folder = _private_folder(state_dir, make=True)
        try:
            path = _path(self._folder, self._name)
            self._folder.check(self._name, SOCKET)
            if _is_listened_on(path):
                raise OSError(errno.EADDRINUSE, "another daemon listens on it", path)
            # What is there now is of a daemon that was killed.
            self._folder.remove(self._name, SOCKET)
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self.socket.bind(path)
                os.chmod(self._name, 0o600, dir_fd=self._folder.descriptor)
                self.socket.listen(BACKLOG)
                seen = os.stat(self._name, dir_fd=self._folder.descriptor, follow_symlinks=False)
                self._made = (seen.st_ino, seen.st_ctime_ns)
                WATCHER.add(self._folder.path / self._name)
            except OSError:
                self.socket.close()
                raise
        except OSError:
            self._folder.close()
            raise

    def is_there(self) -> bool:
        """Says whether the socket that was made can be found."""
        seen = self._folder.look(self._name)
        # An inode may be used again.
        return seen is not None and (seen.st_ino, seen.st_ctime_ns) == self._made

    def close(self) -> None:
        """Ends listening, and removes the socket where it still is the one that was made."""
        self.socket.close()
        WATCHER.discard(self._folder.path / self._name)
        with self._folder:
            if self.is_there():
                self._folder.remove(self._name, SOCKET)


def connected(state_dir: Path, address: str) -> socket.socket:
    """Returns a connection with this user's daemon.

    Raises:
        FileNotFoundError, ConnectionError: No daemon listens there.
        InTheWay: Something else is there.
        Stranger: A process of another user listens.
        OSError: It cannot be reached.
    """
    with _private_folder(state_dir) as folder:
        folder.check(_name(address), SOCKET)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(_path(folder, _name(address)))
            refuse_strangers(connection)
        except OSError:
            connection.close()
            raise
        return connection


def addresses(state_dir: Path) -> list[str]:
    """Returns the addresses of the daemons whose sockets are in a state directory; some may have been killed."""
    return sorted(file.stem.replace("-", ":") for file in (state_dir / FOLDER).glob("*.sock"))


def refuse_strangers(connection: socket.socket) -> None:
    """Raises Stranger where the peer of a connection is of another user."""
    if (uid := _peer_uid(connection)) != os.geteuid():
        raise Stranger(errno.EPERM, f"a program of another user (uid {uid}) is there")


def hello(**facts: Any) -> bytes:
    """Returns the line that says these facts."""
    return json.dumps({KEY: facts}).encode() + b"\n"


# ---- inside ------------------------------------------------------------------------------------------


def _private_folder(state_dir: Path, *, make: bool = False) -> Folder:
    folder = Folder.inside(state_dir / FOLDER, make=make)
    if folder.stat().st_mode & 0o077:
        folder.close()
        raise InTheWay(folder.path, f"open to other users (chmod 700 {folder.path})")
    return folder


def _name(address: str) -> str:
    return f"{address.replace(':', '-')}.sock"


def _path(folder: Folder, name: str) -> str:
    """Returns a path of a socket that the system takes, however long the folder's is."""
    path = str(folder.path / name)
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    if sys.platform.startswith("linux"):
        return f"/proc/self/fd/{folder.descriptor}/{name}"
    raise OSError(errno.ENAMETOOLONG, f"a socket's path has at most {LONGEST_SOCKET_PATH} bytes", path)


def _is_listened_on(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # With EAGAIN many wait to be taken.
        return probe.connect_ex(path) in (0, errno.EAGAIN)


def _peer_uid(connection: socket.socket) -> int:
    if sys.platform.startswith("linux"):
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        return struct.unpack("iII", found)[1]
    # `struct xucred` of macOS and the BSDs: its version, then the uid. SOL_LOCAL is 0, LOCAL_PEERCRED 1.
    return struct.unpack_from("II", connection.getsockopt(0, 1, _XUCRED_BYTES))[1]
