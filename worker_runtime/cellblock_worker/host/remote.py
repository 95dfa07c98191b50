"""`python -m cellblock_worker --connect tcp://…` runs a worker host that dials brokers on other machines.

It greets each once the CURVE handshake is over, and lends its places to those that have work. When a connection is
lost, the broker gives up its runs here, and so does the host: it kills their workers and comes back under another name.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import zmq

from cellblock_worker.host.host import BrokerLink, Host
from cellblock_worker.host.host_config import HostConfig
from cellblock_worker.host.host_process import (
    EXIT_USAGE,
    RefusedByBroker,
    first_line,
    first_of,
    on_signals,
    run_confined,
    serve_tested,
    watch_lifeline,
    zmq_context,
)
from cellblock_worker.wire.endpoints import DNS, EndpointError, check_names
from cellblock_worker.wire.keys import DialKeys, KeyFileError, parse_public_key, read_key_file, read_line
from cellblock_worker.wire.loop_socket import explain

logger = logging.getLogger("cellblock.host")

RETURN_PAUSE_SECONDS: Final = 0.5
"""Bounds the time from losing a broker to dialling again; ZeroMQ itself then retries with longer and longer pauses."""

REFUSED_SECONDS: Final = 60.0
"""Passes before a broker that has refused this host is dialled again: it may have been started anew, on terms that this
host meets."""

DISMISSED_SECONDS: Final = 5.0
"""Passes before a broker is dialled again that lets this host go for now: while brokers are upgraded, those of another
version do, one after the other."""

TEND_SECONDS: Final = 0.25
"""Sets the interval of looking which brokers there are, and which of them have a link."""

LOOK_UP_SECONDS: Final = 5.0
"""Sets the pause between two look-ups of names: records of a headless service are as old as that anyway."""

LOOK_UP_BOUND_SECONDS: Final = 10.0
"""Bounds one look-up: a resolver's own retries take longer, and the next look-up is as good."""

DRAIN_POLL_SECONDS: Final = 0.1
"""Sets the pause between two looks at whether the last run has ended."""

LOG_INTERVAL_SECONDS: Final = 10.0
"""Sets the pause between two lines about a broker that cannot be reached."""

BY_PIPE: Final = "-"
"""Stands in place of a key file for a line of stdin."""


class Names:
    """Knows the brokers' endpoints, as of the last `look_up`.

    Args:
        names: `tcp://HOST:PORT` is one broker; `dns://NAME:PORT` is one at each address of the name.
        resolve: Returns the addresses of a name, or raises OSError.

    Attributes:
        endpoints: Each `tcp://HOST:PORT`. What a name stood for stays while it cannot be looked up.

    Raises:
        EndpointError: A name has neither form.
    """

    def __init__(
        self, names: Sequence[str], resolve: Callable[[str], Awaitable[list[str]]] | None = None
    ) -> None:
        check_names(names)
        self._resolve = resolve or addresses_of
        self._found: dict[str, list[str]] = {
            name: [] if name.startswith(DNS) else [name] for name in dict.fromkeys(names)
        }

    @property
    def endpoints(self) -> list[str]:
        return list(dict.fromkeys(endpoint for found in self._found.values() for endpoint in found))

    async def look_up(self) -> None:
        for name in self._found:
            if not name.startswith(DNS):
                continue
            host, _, port = name.removeprefix(DNS).rpartition(":")
            try:
                async with asyncio.timeout(LOOK_UP_BOUND_SECONDS):
                    addresses = await self._resolve(host)
            except OSError as error:
                logger.error("%s cannot be looked up: %s", host, error or "no answer in time")
                continue
            self._found[name] = [f"tcp://{_bracketed(address)}:{port}" for address in sorted(set(addresses))]


async def addresses_of(host: str) -> list[str]:
    """Returns a name's IPv4 addresses, or those of IPv6 where it has no other: a broker with both would be dialled
    twice.

    Raises:
        OSError: It cannot be looked up.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    fours = [str(address[0]) for family, *_, address in found if family == socket.AF_INET]
    return fours or [str(address[0]) for *_, address in found]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True, slots=True)
class Arguments:
    """Holds what the command line says.

    Attributes:
        config: Of the host.
        names: Where the brokers are.
        keys: This host's pair, with each public key that a broker may have.
        drain_seconds: Bounds how long runs may go on after `RemoteHost.stop`.
        has_lifeline: Whether the host ends with its stdin.
    """

    config: HostConfig
    names: Names
    keys: list[DialKeys]
    drain_seconds: float
    has_lifeline: bool


@dataclass(slots=True)
class _Broker:
    link: BrokerLink | None = None
    greeted: bool = False
    tries: int = 0
    dial_at: float = 0.0
    may_log_at: float = 0.0
    refusal: str | None = None


class RemoteHost:
    """Serves the brokers of some names over TCP until `stop`.

    Args:
        given: What the command line says.
        context: The ZeroMQ context; the caller terminates it.
    """

    def __init__(self, given: Arguments, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._given = given
        self._host = Host(given.config, context, on_lost=self._on_lost)
        assert self._host.places is not None
        self._places = self._host.places
        self._brokers: dict[str, _Broker] = {}
        self._stop = asyncio.Event()
        self._now = asyncio.Event()

    def stop(self) -> None:
        """Ends `serve`, when its runs have ended; called again, at once."""
        if self._stop.is_set():
            self._now.set()
        self._stop.set()

    def end(self) -> None:
        """Has `serve` end at once."""
        self._now.set()
        self._stop.set()

    async def serve(self) -> None:
        """Keeps a link to each broker.

        Raises:
            RefusedByBroker: Each broker has said, within `REFUSED_SECONDS`, that it will not have this host.
            zmq.ZMQError: An endpoint cannot be dialled at all.
            SelfTestFailed, SelfTestNotMade: The isolation does not hold, or cannot be tested.
        """
        await serve_tested(self._host, self._given.config, self._stop, self._serve)

    async def _serve(self) -> None:
        looking = asyncio.create_task(self._keep_looking())
        try:
            while not self._stop.is_set():
                self._tend()
                await first_of(self._stop, seconds=TEND_SECONDS)
            await self._drain()
        finally:
            looking.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await self._given.names.look_up()
            await asyncio.sleep(LOOK_UP_SECONDS)

    def _tend(self) -> None:
        """Dials brokers that are there, and lets go of those that are not, when their runs have ended."""
        endpoints = self._given.names.endpoints
        for endpoint in endpoints:
            broker = self._brokers.setdefault(endpoint, _Broker())
            if broker.link is not None:
                self._places.retire(broker.link, False)
            elif time.monotonic() >= broker.dial_at:
                key = self._given.keys[broker.tries % len(self._given.keys)]
                broker.refusal = None
                broker.link = self._host.link(endpoint, secrets.token_bytes(16), self._on_wire, key)
        for endpoint in self._brokers.keys() - set(endpoints):
            link = self._brokers[endpoint].link
            if link is not None:
                self._places.retire(link)
                if not self._places.is_idle(link):
                    continue
                self._host.lose(link, "its name stands for it no more")
            del self._brokers[endpoint]
        refusals = [broker.refusal for broker in self._brokers.values()]
        if refusals and all(refusals):
            raise RefusedByBroker(refusals[0])

    async def _drain(self) -> None:
        """Takes no more runs, and waits a while for the runs that are here."""
        links = [broker.link for broker in self._brokers.values() if broker.link is not None]
        for link in links:
            self._places.retire(link)
        if self._given.drain_seconds:
            logger.warning(
                "takes no more runs, and ends with the last one, in %g s at most", self._given.drain_seconds
            )
        until = time.monotonic() + self._given.drain_seconds
        while time.monotonic() < until and not self._now.is_set():
            if all(self._places.is_idle(link) for link in links):
                return
            await first_of(self._now, seconds=DRAIN_POLL_SECONDS)

    def _on_lost(self, link: BrokerLink, why: str) -> None:
        broker = self._brokers[link.endpoint]
        broker.link, broker.greeted = None, False
        broker.refusal, pause = None, RETURN_PAUSE_SECONDS
        if link.dismissed is not None:
            broker.refusal = why if link.dismissed.final else None
            pause = REFUSED_SECONDS if link.dismissed.final else DISMISSED_SECONDS
        broker.dial_at = time.monotonic() + pause
        logger.error("the broker at %s is let go: %s", link.endpoint, why)

    def _on_wire(self, link: BrokerLink, event: zmq.Event, value: int) -> None:
        broker = self._brokers[link.endpoint]
        if broker.link is not link:
            return
        match event:
            case zmq.Event.HANDSHAKE_SUCCEEDED if broker.greeted:
                # A connection behind this host's back: the broker has dropped its runs.
                self._host.lose(link, "its connection was lost, and with it its runs here")
            case zmq.Event.HANDSHAKE_SUCCEEDED:
                logger.warning("connected to the broker at %s", link.endpoint)
                broker.greeted = True
                self._host.greet(link)
            case zmq.Event.DISCONNECTED if broker.greeted:
                self._host.lose(link, "its connection was lost, and with it its runs here")
            case zmq.Event.CONNECT_RETRIED:
                _say_now_and_then(broker, link, "the broker does not answer")
            case _:
                mine = self._given.keys[0].own.public
                said = f"{explain(event, value)}: check --server-key, and that the broker allows {mine}"
                _say_now_and_then(broker, link, said)
                if len(self._given.keys) > 1:
                    broker.tries += 1
                    self._host.lose(link, "the next try is with the other server key")


def _say_now_and_then(broker: _Broker, link: BrokerLink, why: str) -> None:
    if time.monotonic() >= broker.may_log_at:
        broker.may_log_at = time.monotonic() + LOG_INTERVAL_SECONDS
        logger.error("no connection to the broker at %s yet: %s", link.endpoint, why)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments; secrets are none of them."""
    parser = argparse.ArgumentParser(
        prog="python -m cellblock_worker",
        description="Runs scripts for brokers on other machines, over CURVE-encrypted TCP.",
    )
    parser.add_argument(
        "--connect",
        required=True,
        nargs="+",
        action="extend",
        metavar="tcp://HOST:PORT",
        help="each broker's hosts.listen; dns://NAME:PORT is one at each address of the name",
    )
    parser.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="this host's pair, made by `cellblock keygen`; - is a line of stdin, with whose end the host ends",
    )
    parser.add_argument(
        "--server-key",
        nargs="+",
        action="extend",
        metavar="HEX",
        help="the brokers' public key, 64 digits; two while they change theirs",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long runs may go on after SIGTERM, which a second one ends (default 0)",
    )
    parser.add_argument(
        "--capacity",
        type=int,
        default=16,
        metavar="N",
        help="runs at the same time, of all brokers (default 16)",
    )
    parser.add_argument("--warm", type=int, default=4, metavar="N", help="workers kept booted (default 4)")
    parser.add_argument(
        "--isolation", choices=("required", "auto", "off"), default="auto", help="bubblewrap (default auto)"
    )
    parser.add_argument(
        "--max-message-bytes",
        type=int,
        default=16 * 1024 * 1024,
        metavar="N",
        help="at least the brokers' max_message_bytes (default 16 MiB)",
    )
    parser.add_argument(
        "--max-memory-mb",
        dest="max_old_space_mb",
        type=int,
        default=256,
        metavar="N",
        help="at least the maximum of the broker's limits.max_memory_bytes (default 256)",
    )
    # They have no effect any more; units that give them still start.
    parser.add_argument("--realtime", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seccomp", choices=("enforce", "log"), help=argparse.SUPPRESS)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")
    return parser


def read_arguments(arguments: Sequence[str]) -> Arguments:
    """Checks everything that can be checked before a connection.

    Raises:
        EndpointError: An endpoint is no TCP address, or a key is missing.
        KeyFileError: A key cannot be used.
        ValidationError: A number is out of its range.
    """
    given = vars(make_parser().parse_args(arguments))
    endpoints, key, server_keys = given.pop("connect"), given.pop("key"), given.pop("server_key")
    drain_seconds = given.pop("drain")
    del given["realtime"], given["seccomp"]
    names = Names(endpoints)
    if key is None or server_keys is None:
        raise EndpointError(f"{endpoints[0]} is used only with keys: give --key and --server-key")
    try:
        servers = [parse_public_key(server_key) for server_key in server_keys]
    except KeyFileError as error:
        raise KeyFileError(f"--server-key: {error}") from None
    by_pipe = str(key) == BY_PIPE
    own = read_line(first_line()) if by_pipe else read_key_file(key)
    # Each link has an endpoint and an identity of its own.
    config = msgspec.convert({"connect": " ".join(endpoints), "identity": "0" * 32, **given}, HostConfig)
    return Arguments(config, names, [DialKeys(own, server) for server in servers], drain_seconds, by_pipe)


async def serve(given: Arguments) -> None:
    """Serves until SIGTERM or SIGINT. Raises as `RemoteHost.serve`."""
    with zmq_context() as context:
        remote = RemoteHost(given, context)
        on_signals(remote.stop)
        if given.has_lifeline:
            watch_lifeline(remote.end)
        await remote.serve()


def main(arguments: Sequence[str]) -> int:
    """Serves as a host that dials brokers on other machines. Returns the exit code: 0 stopped, 1 it cannot start now,
    2 wrong usage, 3 it will not serve or the broker will not have it."""
    try:
        given = read_arguments(arguments)
    except (msgspec.ValidationError, EndpointError, KeyFileError) as error:
        # msgspec names the place last: "Expected `int` >= 1 - at `$.capacity`".
        what, _, where = str(error).partition(" - at `$.")
        sys.stderr.write(f"cellblock_worker: {f'{where[:-1]}: ' if where else ''}{what}\n")
        return EXIT_USAGE
    return run_confined(given.config, lambda: serve(given))
