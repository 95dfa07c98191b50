"""Where the parts of a fleet are, and the links between them, that can be cut, slowed and delayed.

`Namespaces` (Linux, as root) gives each part a network namespace with an address of its own. The namespaces have no
names, so the kernel takes all of it away with the last process in them. `Loopback` works for anybody: addresses
127.x.y.z, and a relay in each link. `best_network()` is the first of the two that is possible.

A link is delayed by the kernel's netem, which can lose packets, too. Kernels without it are common: there a relay in
the link holds what goes through it.
"""

from __future__ import annotations

import ctypes
import functools
import ipaddress
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from support.fleet.relay import Relay, Relays

CLONE_NEWNET = 0x40000000
SLOW_BURST_BYTES = 16 * 1024
SLOW_QUEUE_MS = 400
"""How long packets may wait at a slow link before they are lost."""

NETEM_PACKETS = 10_000
"""On their way through a link that is delayed; more would be lost, which is for `loss` alone to say."""

BOUND_SECONDS = 30.0
"""For a command that sets up a link, which takes milliseconds."""

_T = TypeVar("_T")


class Place:
    """Where one part is.

    Attributes:
        name: Of the part.
        address: Its own, where its ports are.
    """

    def __init__(self, name: str, address: str, network: Network) -> None:
        self.name = name
        self.address = address
        self.network = network

    def run(self, work: Callable[[], _T]) -> _T:
        """Does something there that starts a process: it is born in this place, and dies with this program."""
        return self.network.starter.submit(self.inside, work).result()

    def spawn(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Starts a program there, whose output goes to the end of a file."""
        dying = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("ab") as output:
            return self.run(
                lambda: subprocess.Popen(
                    [*dying, *command], stdin=stdin, stdout=output, stderr=output, env=dict(env)
                )
            )

    def inside(self, work: Callable[[], _T]) -> _T:
        """Runs in the network's starter."""
        return work()


class Network:
    """Has places and the ways between them. Owned by who makes it: `with`.

    Attributes:
        starter: The one thread that starts processes: they die with the thread that has started them.
        needs_tls: Whether brokers serve nobody at its addresses without TLS.
        delays_by: What delays its links; nothing where they cannot be delayed.
    """

    needs_tls = False

    def __init__(self, *, relays: bool) -> None:
        self.delays_by: Literal["", "relays", "netem"] = "relays" if relays else ""
        self.starter = ThreadPoolExecutor(1, "starter")
        self._relays = Relays() if relays else None
        self._ways: list[tuple[Place | None, Place, int, str, Relay]] = []
        self._numbers = iter(range(2, 255))

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *error: object) -> None:
        if self._relays is not None:
            self._relays.close()
        self.starter.shutdown()

    def place(self, name: str) -> Place:
        """Makes a place."""
        return Place(name, self.address(), self)

    def address(self) -> str:
        """The next free address."""
        raise NotImplementedError

    def way(self, frm: Place | None, to: Place, port: int) -> str:
        """The `ADDRESS:PORT` by which one place reaches a port of another (None: whoever has no place)."""
        if self._relays is None:
            return f"{to.address}:{port}"
        for from_there, there, its_port, address, _ in self._ways:
            if (from_there, there, its_port) == (frm, to, port):
                return f"{address}:{port}"
        address = self.address()
        self._ways.append((frm, to, port, address, self._relays.add(address, port, (to.address, port))))
        return f"{address}:{port}"

    def cut(self, place: Place, *, is_cut: bool = True) -> None:
        """Has nothing get to a place, nor out of it, and nobody told so; or mends that."""
        assert self._relays is not None
        for relay in self._relays_of(place):
            self._relays.cut(relay, is_cut)

    def slow(self, place: Place, rate: float = 0.0) -> None:
        """Lets so many bytes a second get to a place, and out of it; 0 for all."""
        for relay in self._relays_of(place):
            relay.rate = rate

    def delay(self, place: Place, seconds: float = 0.0, *, loss: float = 0.0) -> None:
        """Has what goes to a place, or comes from it, take so long, and a share of the packets be lost."""
        assert self._relays is not None, "nothing delays: make the network with relays=True"
        assert not loss, "only netem loses packets"
        for relay in self._relays_of(place):
            relay.delay = seconds

    def _relays_of(self, place: Place) -> list[Relay]:
        return [relay for frm, to, _, _, relay in self._ways if place in (frm, to)]


class Loopback(Network):
    """Addresses of the loopback, which nobody else uses: they are made of this process's id.

    Args:
        relays: Whether links can be cut, slowed and delayed.
    """

    def __init__(self, *, relays: bool = True) -> None:
        super().__init__(relays=relays)
        pid = os.getpid()
        self._prefix = f"127.{64 + pid % 128}.{pid // 128 % 256}"

    def address(self) -> str:
        return f"{self._prefix}.{next(self._numbers)}"


class NamespacePlace(Place):
    """A network namespace, and its link to the switch."""

    def __init__(self, name: str, address: str, network: Namespaces) -> None:
        super().__init__(name, address, network)
        self.link = f"v{ipaddress.ip_address(address).packed[3]}"
        self.namespace = -1
        self.shape: dict[str, float] = {}

    def inside(self, work: Callable[[], Any]) -> Any:
        enter(self.namespace)
        try:
            return work()
        finally:
            assert isinstance(self.network, Namespaces)
            enter(self.network.switch)


class Namespaces(Network):
    """A namespace for each part, and a switch between them: one more, in which the thread is that has made this.

    What this program opens inside the `with` is at the switch, too; so are the threads that it starts there. Nothing of
    it is seen from outside, and nothing outside is reached.

    Args:
        relays: Whether there is a relay in each link, for `delay` where the kernel has no netem.
    """

    needs_tls = True

    def __init__(self, *, relays: bool = False) -> None:
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._places: list[NamespacePlace] = []
        self._addresses: list[str] = []
        self._has_relays = relays
        unshare()
        self.switch = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            super().__init__(relays=relays)
            if not relays and has_netem():
                self.delays_by = "netem"
            ip("link set lo up")
            ip("link add switch type bridge")
            ip("addr add 10.77.0.1/16 dev switch")
            ip("link set switch up")
        except BaseException:
            enter(self._before)
            raise

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        enter(self._before)
        for descriptor in (self._before, self.switch, *(place.namespace for place in self._places)):
            os.close(descriptor)

    def address(self) -> str:
        """An address of the switch: a relay's."""
        address = f"10.77.1.{next(self._numbers)}"
        ip(f"addr add {address}/16 dev switch")
        return address

    def place(self, name: str) -> Place:
        place = NamespacePlace(name, f"10.77.0.{len(self._places) + 2}", self)
        self.starter.submit(self._join, place).result(BOUND_SECONDS)
        self._places.append(place)
        return place

    def cut(self, place: Place, *, is_cut: bool = True) -> None:
        # Only off the switch: a link that is down would be told to the part.
        assert isinstance(place, NamespacePlace)
        self._at_switch(lambda: ip(f"link set {place.link} {'nomaster' if is_cut else 'master switch'}"))

    def slow(self, place: Place, rate: float = 0.0) -> None:
        self._shape(place, rate=rate)

    def delay(self, place: Place, seconds: float = 0.0, *, loss: float = 0.0) -> None:
        if self.delays_by == "netem":
            self._shape(place, seconds=seconds, loss=loss)
        else:
            super().delay(place, seconds, loss=loss)

    def _shape(self, place: Place, **how: float) -> None:
        assert isinstance(place, NamespacePlace)
        place.shape |= how
        for link, run in ((place.link, self._at_switch), ("eth0", place.run)):
            words = f"qdisc replace dev {link} root {discipline(**place.shape)}"
            run(lambda words=words: command("tc", words))

    def _at_switch(self, work: Callable[[], None]) -> None:
        self.starter.submit(work).result(BOUND_SECONDS)

    def _join(self, place: NamespacePlace) -> None:
        unshare()
        place.namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        enter(self.switch)
        there = f"/proc/{os.getpid()}/fd/{place.namespace}"
        ip(f"link add {place.link} type veth peer name eth0 netns {there}")
        ip(f"link set {place.link} master switch up")
        place.inside(lambda: self._address(place))

    def _address(self, place: NamespacePlace) -> None:
        ip("link set lo up")
        ip(f"addr add {place.address}/16 dev eth0")
        ip("link set eth0 up")


def best_network(*, delays: bool = False) -> Network:
    """Namespaces where they are possible, else the loopback; `delays` is for one whose links can be delayed."""
    return Namespaces(relays=delays and not has_netem()) if can_namespaces() else Loopback()


def can_namespaces() -> bool:
    """Whether this machine and user have what `Namespaces` needs."""
    if (
        not sys.platform.startswith("linux")
        or os.geteuid()
        or not shutil.which("ip")
        or not shutil.which("tc")
    ):
        return False
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "v1", "type", "veth", "peer", "name", "v2"],
        capture_output=True,
        check=False,
        timeout=BOUND_SECONDS,
    )
    return tried.returncode == 0


@functools.cache
def has_netem() -> bool:
    """Whether this kernel can delay and lose packets, by trying it where nobody else is."""
    tried = subprocess.run(
        ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", *discipline(seconds=0.001).split()],
        capture_output=True,
        check=False,
        timeout=BOUND_SECONDS,
    )
    return tried.returncode == 0


def discipline(*, rate: float = 0.0, seconds: float = 0.0, loss: float = 0.0) -> str:
    """What `tc` is told of one direction of a link: bytes a second, how long, and which share of packets is lost."""
    if seconds or loss:
        limited = f" rate {int(rate * 8)}bit" if rate else ""
        return f"netem limit {NETEM_PACKETS} delay {seconds * 1000:g}ms loss {loss * 100:g}%{limited}"
    if rate:
        return f"tbf rate {int(rate * 8)}bit burst {SLOW_BURST_BYTES} latency {SLOW_QUEUE_MS}ms"
    return "pfifo limit 1000"


def ip(words: str) -> None:
    """Runs `ip` in the namespace of this thread."""
    command("ip", words)


def command(program: str, words: str) -> None:
    """Runs a program in the namespace of this thread; what it says of an error is raised."""
    done = subprocess.run(
        [program, *words.split()], capture_output=True, text=True, check=False, timeout=BOUND_SECONDS
    )
    assert done.returncode == 0, f"{program} {words}: {done.stderr}"


def unshare() -> None:
    """Has this thread in a new network namespace."""
    _checked("unshare", CLONE_NEWNET)


def enter(namespace: int) -> None:
    """Has this thread in the network namespace of a descriptor."""
    _checked("setns", namespace, CLONE_NEWNET)


def _checked(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
