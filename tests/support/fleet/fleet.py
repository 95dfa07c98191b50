"""A fleet: brokers on one PostgreSQL behind a balancer, and the worker hosts that dial them all."""

import base64
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cellblock_worker.wire.keys import make_key_file
from support.entries import ledger, plain_server, write_config
from support.fleet.network import Loopback
from support.fleet.parts import (
    BALANCER_PORT,
    BROKER_PORT,
    HOSTS_PORT,
    Balancer,
    Broker,
    Database,
    Host,
    Part,
)
from support.http_daemon import Daemon
from support.postgresql import PORT


class Fleet:
    """Makes the parts; `start` starts them, and the end of the `with` ends them all.

    Args:
        folder: An empty one with a short path.
        network: Where the parts are.
        brokers: How many.
        hosts: How many worker hosts dial them; 0 where the brokers have others.
        capacity: Runs at the same time at one host.
        warm: Workers that one host keeps booted.
        servers: The `mcpServers` of each broker beside `plain`, whose calls are in `ledger`.
        settings: Sections of `cellblock`; over those that a fleet needs, key by key.
        host_options: More of the hosts' command line.
        environment: More of the brokers'.
        alone: Whether it is one broker on its own files, with its own host: without a balancer and a database.

    Attributes:
        settings: As given; brokers take what is changed when they are started.
        token: Of all brokers' clients.
        state_key: With which brokers seal what they share.
        host_keys: The file of the hosts' key, and the brokers' public key: for a host of another kind.
    """

    def __init__(
        self,
        folder: Path,
        network: Loopback,
        *,
        brokers: int = 2,
        hosts: int = 3,
        capacity: int = 4,
        warm: int = 1,
        servers: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        host_options: Sequence[object] = (),
        environment: Mapping[str, str] | None = None,
        alone: bool = False,
    ) -> None:
        self.folder = folder
        self.network = network
        self.ledger_file = folder / "ledger.jsonl"
        self.servers = {"plain": plain_server("--ledger", self.ledger_file), **(servers or {})}
        self.settings = dict(settings or {})
        self.token = secrets.token_urlsafe(32)
        self._token_file = folder / "token"
        self._token_file.touch(0o600)
        self._token_file.write_text(self.token, "ascii")
        server = make_key_file(folder / "broker.key")
        self._host_public = make_key_file(folder / "host.key").public
        self.host_keys = (folder / "host.key", server.public)
        self.state_key = secrets.token_bytes(32)
        self._environment = {
            "FLEET_STATE_KEY": base64.b64encode(self.state_key).decode(),
            **(environment or {}),
        }
        self._host_options = ("--capacity", capacity, "--warm", warm, *host_options)
        self._parts: list[Part] = []
        # The folders of brokers of 0.1.0, which have no names and pass requests on to each other by their URLs.
        self.nameless: set[Path] = set()
        self.brokers: list[Broker] = []
        self.hosts: list[Host] = []
        self.alone = alone
        if alone:
            self.add_broker()
            return
        self.balancer = Balancer(network.place("balancer"), folder / "balancer")
        self.database = Database(network.place("database"))
        try:
            for _ in range(brokers):
                self.add_broker()
            for _ in range(hosts):
                self.add_host()
        except BaseException:
            self.database.close()
            raise

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        # Hosts first, so that none looks for brokers that have gone; the last one to end is the database.
        with contextlib.ExitStack() as stack:
            if not self.alone:
                stack.callback(self.database.close)
            for part in self.parts:
                stack.callback(part.close)

    @property
    def parts(self) -> list[Part]:
        """All but the database."""
        return [*self.brokers, *([] if self.alone else [self.balancer]), *self.hosts, *self._parts]

    def start(self) -> None:
        """Starts all, and waits until they serve."""
        for broker in self.brokers:
            broker.start()
        if self.alone:
            self.brokers[0].wait()
            return
        self.balancer.start()
        for broker in self.brokers:
            broker.wait(ready=lambda broker=broker: broker.probe() > 0)
        # Only now: a host that has found nobody looks again after seconds.
        for host in self.hosts:
            host.start()
        for part in self.parts:
            if part.is_running:
                part.wait()
        self.balancer.wait(ready=lambda: self.balancer.up() == len(self.brokers))

    def behind(self) -> Daemon:
        """The brokers as clients reach them, through the balancer: its `client()`, `ask()` and `url`."""
        if self.alone:
            return self.brokers[0].served
        way = self.network.way(None, self.balancer.place, BALANCER_PORT)
        return self.brokers[0].at(way.rpartition(":")[0], BALANCER_PORT)

    def ledger(self) -> list[dict[str, Any]]:
        """What the upstream servers of all brokers have recorded, each call that was made."""
        return ledger(self.ledger_file)

    def add(self, part: Part) -> None:
        """Takes a part of another kind, which ends with the others."""
        self._parts.append(part)

    def add_broker(self) -> Broker:
        """Makes one more broker; a balancer that runs, and hosts with a list, know it from their next start on."""
        number = len(self.brokers)
        place = self.network.place(f"broker {number}")
        own = self.folder / f"b{number}"
        own.mkdir()
        broker = Broker(
            place,
            own / "p",
            lambda: self._config(place, own),
            self._token_file,
            self._environment,
        )
        self.brokers.append(broker)
        if not self.alone:
            self.balancer.targets.append(self.network.way(self.balancer.place, place, BROKER_PORT))
        for host in self.hosts:
            host.names = self.names_for(host.place)
        return broker

    def add_host(self) -> Host:
        """Makes one more host."""
        number = len(self.hosts)
        place = self.network.place(f"host {number}")
        host = Host(
            place,
            self.folder / f"h{number}",
            self.names_for(place),
            self.host_keys,
            self._host_options,
        )
        self.hosts.append(host)
        return host

    def names_for(self, place: Any) -> list[str]:
        """Where a host at a place finds the brokers, as `--connect` takes it."""
        return [f"tcp://{self.network.way(place, broker.place, HOSTS_PORT)}" for broker in self.brokers]

    def _config(self, place: Any, folder: Path) -> Path:
        sections = {"auth": {"keyring": "off"}} if self.alone else self._shared(place, folder)
        for name, section in self.settings.items():
            sections[name] = {**sections[name], **section} if name in sections else section
        return write_config(folder, self.servers, **sections)

    def _shared(self, place: Any, folder: Path) -> dict[str, Any]:
        """The sections of a broker that has its state, its hosts and its balancer with others."""
        url = self.database.url_by(self.network.way(place, self.database.place, PORT))
        balancer = self.balancer.place
        known = [self.network.way(None, balancer, BALANCER_PORT), f"{balancer.address}:{BALANCER_PORT}"]
        sections: dict[str, Any] = {
            "auth": {"keyring": "off"},
            "state": {"url": url, "key": "${env:FLEET_STATE_KEY}", "broker": folder.name},
            "http": {"allowed_hosts": known},
            "hosts": {
                "local": False,
                "listen": f"tcp://{place.address}:{HOSTS_PORT}",
                "key": str(self.folder / "broker.key"),
                "allowed_keys": {"fleet": self._host_public},
            },
        }
        if folder in self.nameless:
            del sections["state"]["broker"]
            sections["replicas"] = {"url": f"http://{self.network.way(None, place, BROKER_PORT)}"}
        return sections


def summary(fleet: Fleet) -> str:
    """What a fleet is made of, in a line."""
    if fleet.alone:
        return "one broker, on its own files"
    return f"{len(fleet.brokers)} brokers, {len(fleet.hosts)} hosts, HAProxy and PostgreSQL"
