"""Servers die with a process that is killed, and with them what they have started, such as that of a `sh -c` or `npx`.

A shell has the list of their process groups, and kills those on it when its input ends. PDEATHSIG would reach the first
process of a group alone.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from typing import Final

_SCRIPT: Final = """
while read -r change group; do
  kept=
  for one in $groups; do [ "$one" = "$group" ] || kept="$kept $one"; done
  groups=$kept
  [ "$change" = + ] && groups="$groups $group"
done
for one in $groups; do kill -s KILL -- "-$one"; done
"""


class _Watcher:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        """Has a process group killed when this process is."""
        # Without a process left for it, servers still see the end of their input.
        with self._lock, contextlib.suppress(OSError):
            self._groups.add(group)
            if self._shell is None:
                self._shell = subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    bufsize=0,
                    start_new_session=True,
                )
            self._tell("+", group)

    def discard(self, group: int) -> None:
        """Forgets a group that is over; blocks a moment at the last one."""
        with self._lock, contextlib.suppress(OSError):
            if group not in self._groups:
                return
            self._groups.remove(group)
            self._tell("-", group)
            if not self._groups and self._shell is not None:
                shell, self._shell = self._shell, None
                shell.communicate()

    def _tell(self, change: str, group: int) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.write(f"{change} {group}\n".encode())


WATCHER: Final = _Watcher()
"""Watches over the servers of all brokers of this process."""
