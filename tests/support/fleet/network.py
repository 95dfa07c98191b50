"""Where the parts of a fleet are, and the links between them, that can be cut, slowed and delayed.

Each part has an address of the loopback, which nobody else uses, and there is a relay in each link.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from support.fleet.relay import Relay, Relays

_T = TypeVar("_T")


class Place:
    """Where one part is.

    Attributes:
        name: Of the part.
        address: Its own, where its ports are.
    """

    def __init__(self, name: str, address: str, starter: ThreadPoolExecutor) -> None:
        self.name = name
        self.address = address
        self._starter = starter

    def run(self, work: Callable[[], _T]) -> _T:
        """Does something that starts a process, which dies with this program."""
        return self._starter.submit(work).result()

    def spawn(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a program, whose output goes to the end of a file."""
        dying = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("ab") as output:
            return self.run(
                lambda: subprocess.Popen(
                    [*dying, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(env)
                )
            )


class Loopback:
    """Has places, whose addresses are made of this process's id, and the ways between them. `with` owns it.

    Args:
        relays: Whether links can be cut, slowed and delayed.

    Attributes:
        starter: The one thread that starts processes: they die with the thread that has started them.
    """

    def __init__(self, *, relays: bool = True) -> None:
        pid = os.getpid()
        self._prefix = f"127.{64 + pid % 128}.{pid // 128 % 256}"
        self.starter = ThreadPoolExecutor(1, "starter")
        self._relays = Relays() if relays else None
        self._ways: dict[tuple[Place | None, Place, int], Relay] = {}
        self._numbers = iter(range(2, 255))

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(self, *error: object) -> None:
        if self._relays is not None:
            self._relays.close()
        self.starter.shutdown()

    def place(self, name: str) -> Place:
        """Makes a place."""
        return Place(name, self._address(), self.starter)

    def way(self, frm: Place | None, to: Place, port: int) -> str:
        """The `ADDRESS:PORT` by which one place reaches a port of another (None: whoever has no place)."""
        if self._relays is None:
            return f"{to.address}:{port}"
        relay = self._ways.get((frm, to, port))
        if relay is None:
            relay = self._relays.add(self._address(), port, (to.address, port))
            self._ways[frm, to, port] = relay
        return f"{relay.address}:{port}"

    def cut(self, place: Place, *, is_cut: bool = True) -> None:
        """Has nothing get to a place, nor out of it, and nobody told so; or mends that."""
        for relay in self._relays_of(place):
            self._relays.cut(relay, is_cut)

    def slow(self, place: Place, rate: float = 0.0) -> None:
        """Lets so many bytes a second get to a place, and out of it; 0 for all."""
        for relay in self._relays_of(place):
            relay.rate = rate

    def delay(self, place: Place, seconds: float = 0.0) -> None:
        """Has what goes to a place, or comes from it, take so long."""
        for relay in self._relays_of(place):
            relay.delay = seconds

    def _address(self) -> str:
        return f"{self._prefix}.{next(self._numbers)}"

    def _relays_of(self, place: Place) -> list[Relay]:
        return [relay for (frm, to, _), relay in self._ways.items() if place in (frm, to)]
