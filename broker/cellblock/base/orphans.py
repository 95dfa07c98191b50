"""Nothing stays of a process that is killed: neither its servers and what they have started, such as that of a `sh -c`
or `npx`, nor its socket and folders.

A shell has the list of process groups and paths, and ends and removes those on it when its input ends. PDEATHSIG would
reach the first process of a group alone.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

_SCRIPT: Final = """
set -f
IFS='
'
while read -r line; do
  left=
  for one in $kept; do
    [ "$one" = "${line#?}" ] || left="$left$IFS$one"
  done
  kept=$left
  case $line in +*) kept="$kept$IFS${line#+}" ;; esac
done
for one in $kept; do
  case $one in
    */) ;;
    /*) rm -f -- "$one" ;;
    *) kill -s KILL -- "-$one" ;;
  esac
done
sleep 1
for one in $kept; do
  one=${one%/}
  case $one in /*/broker-*) "$0" -P -c "$1" "${one%/*}" ;; esac
done
"""

_REMOVE_FOLDERS: Final = """
import pathlib, sys
from cellblock.base.state_dir import SOCKETS, remove_stale
remove_stale(pathlib.Path(sys.argv[1]), SOCKETS)
"""
"""Removes what is ours of dead brokers' folders, a second later: something that ends may still be in them."""


class _Watcher:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: set[str] = set()
        self._shell: subprocess.Popen[bytes] | None = None

    def add(self, one: int | Path, *, is_folder: bool = False) -> None:
        """Has a process group killed, or a socket or folder removed, when this process is killed."""
        key = f"{one}/" if is_folder else str(one)
        # Without a process left for it, servers still see the end of their input.
        with self._lock, contextlib.suppress(OSError):
            self._kept.add(key)
            if self._shell is None:
                self._shell = subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT, sys.executable, _REMOVE_FOLDERS],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    bufsize=0,
                    start_new_session=True,
                )
            self._tell("+", key)

    def discard(self, one: int | Path, *, is_folder: bool = False) -> None:
        """Forgets what is over; blocks a moment at the last one."""
        key = f"{one}/" if is_folder else str(one)
        with self._lock, contextlib.suppress(OSError):
            if key not in self._kept:
                return
            self._kept.remove(key)
            self._tell("-", key)
            if not self._kept and self._shell is not None:
                shell, self._shell = self._shell, None
                # Nothing is left for it to do.
                shell.kill()
                shell.communicate()

    def _tell(self, change: str, key: str) -> None:
        if self._shell is not None and self._shell.stdin is not None and "\n" not in key:
            self._shell.stdin.write(f"{change}{key}\n".encode("utf-8", "surrogateescape"))


WATCHER: Final = _Watcher()
"""Watches over what all brokers of this process have."""
