"""A fleet: brokers on one PostgreSQL behind a balancer, and the worker hosts that dial them all. Each part is a process
that is started, killed, paused, stopped, and started again where it was.
"""

import base64
import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from cellblock_worker.wire.keys import make_key_file
from support import haproxy
from support.entries import CELLBLOCK, ledger, plain_server, write_config
from support.fleet.network import Loopback, Place
from support.http_daemon import Daemon
from support.postgresql import PORT, Postgres
from support.processes import alive, family, left_after, signal_all

START_SECONDS = 120.0
"""For a part to serve, which takes a second or two on a quiet machine."""

STOP_SECONDS = 60.0
"""For a part that is told to end: a broker lets runs go on for 30 s."""

POLL_SECONDS = 0.05
PROBE_SECONDS = 5.0
"""For the answer to one probe."""

BROKER_PORT = 7433
HOSTS_PORT = 7070
BALANCER_PORT = 7400


class Part:
    """A process at a place.

    Args:
        place: Where.
        folder: Its own, made here: its log is in it, and what it takes for home and for temporary files.
        environment: More of it than PATH, HOME and TMPDIR.

    Attributes:
        programs: The folder of programs of the Cellblock that it is, this checkout's at first.
    """

    def __init__(self, place: Place, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.place = place
        self.folder = folder
        self.log = folder / "log"
        self.programs = CELLBLOCK.parent
        self.process: subprocess.Popen[bytes] | None = None
        self._below: set[psutil.Process] = set()
        self._said_before = 0
        own = {"PATH": os.environ["PATH"]}
        for name, kind in (("HOME", "home"), ("TMPDIR", "tmp")):
            (folder / kind).mkdir(parents=True)
            own[name] = str(folder / kind)
        self.environment = own | dict(environment or {})

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def command(self) -> list[str]:
        """What is run."""

    def is_ready(self) -> bool:
        """Whether it serves."""

    def start(self) -> None:
        """Starts it, at once."""
        assert not self.is_running
        self._said_before = len(self.said())
        self.process = self.place.spawn(self.command(), log=self.log, env=self.environment)

    def wait(self, bound: float = START_SECONDS, *, ready: Callable[[], bool] | None = None) -> None:
        """Waits until it serves."""
        until = time.monotonic() + bound
        while not (ready or self.is_ready)():
            waits = self.is_running and time.monotonic() < until
            assert waits, f"{self.name} does not serve: {self.said()[-3000:]}"
            time.sleep(POLL_SECONDS)

    def said(self) -> str:
        """All that it has said, in all its lives."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def family(self) -> list[psutil.Process]:
        """It and all below it."""
        return family(self.pid)

    def kill(self, *, alone: bool = False) -> None:
        """Ends it by SIGKILL, with all below it, or alone."""
        if self.process is None:
            return
        all_of_it = self.family()
        self._below.update(all_of_it)
        signal_all(all_of_it[:1] if alone else all_of_it, signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """Stops it as it is, with all below it."""
        signal_all(self.family(), signal.SIGSTOP)

    def resume(self) -> None:
        """Has it go on."""
        signal_all(self.family(), signal.SIGCONT)

    def stop(self, bound: float = STOP_SECONDS) -> int | None:
        """Ends it as a service manager does; gives its exit code, or None of one that had to be killed."""
        if self.process is None:
            return None
        self._below.update(self.family())
        self.process.terminate()
        try:
            return self.process.wait(bound)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def close(self) -> None:
        """Ends it and whatever is left of all its lives."""
        if self.is_running:
            self.resume()
            self.stop()
        signal_all(self.left(), signal.SIGKILL)
        left_after(self._below, STOP_SECONDS)

    def left(self) -> list[psutil.Process]:
        """What still runs of all that was below it when it was stopped, or killed."""
        return [one for one in self._below if alive(one)]


class Broker(Part):
    """A `cellblock serve --http`.

    Args:
        place: Where.
        folder: Its own.
        configure: Writes its configuration and gives the file, before each start.
        token_file: The token of its clients.
        environment: More of it.
    """

    def __init__(
        self,
        place: Place,
        folder: Path,
        configure: Callable[[], Path],
        token_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(place, folder, environment)
        self._configure = configure
        self.state = folder / "state"
        self.token = token_file.read_text("ascii").strip()
        self._token_file = token_file

    def command(self) -> list[str]:
        serve = [
            str(self.programs / CELLBLOCK.name),
            "serve",
            "--http",
            f"{self.place.address}:{BROKER_PORT}",
        ]
        files = ["--config", str(self._configure()), "--state-dir", str(self.state)]
        return [*serve, *files, "--token-file", str(self._token_file)]

    def is_ready(self) -> bool:
        return self.probe() == 200

    def probe(self, path: str = "/readyz") -> int:
        """The status of a page, asked of it alone; 0 where nobody answers."""
        return self.page(path)[0]

    def page(self, path: str) -> tuple[int, bytes]:
        """A page, asked of it alone, with its clients' token."""
        asking = http.client.HTTPConnection(self.place.address, BROKER_PORT, timeout=PROBE_SECONDS)
        with contextlib.closing(asking), contextlib.suppress(OSError, http.client.HTTPException):
            asking.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            answer = asking.getresponse()
            return answer.status, answer.read()
        return 0, b""

    @property
    def served(self) -> Daemon:
        """The broker as clients reach it alone."""
        return self.at(self.place.address, BROKER_PORT)

    def at(self, address: str, port: int) -> Daemon:
        """The broker, or others in its place, as clients reach them at an address."""
        return Daemon(self.process, port, self.folder.parent, self.token, None, [], address)


class Host(Part):
    """A `python -m cellblock_worker`, that dials brokers.

    Args:
        place: Where.
        folder: Its own.
        names: As `--connect` takes them.
        keys: The file of its key, and the brokers' public key.
        options: More of the command line.
    """

    def __init__(
        self,
        place: Place,
        folder: Path,
        names: Sequence[str],
        keys: tuple[Path, str],
        options: Sequence[object] = (),
    ) -> None:
        super().__init__(place, folder)
        self.names = names
        self._keys = keys
        self._options = options

    def command(self) -> list[str]:
        key, server = self._keys
        own = ["--key", str(key), "--server-key", server, *map(str, self._options)]
        program = [str(self.programs / "python"), "-m", "cellblock_worker"]
        return [*program, "--connect", *self.names, *own]

    def is_ready(self) -> bool:
        return "connected to the broker" in self.said()[self._said_before :]


class Balancer(Part):
    """HAProxy, with the rules that are shipped. It leaves out who does not answer at all."""

    def __init__(self, place: Place, folder: Path) -> None:
        assert haproxy.PROGRAM is not None, "HAProxy is needed: `bash scripts/test` unpacks it"
        super().__init__(place, folder, haproxy.ENVIRONMENT)
        self._admin = folder / "admin"
        self.targets: list[str] = []
        self._out: set[int] = set()

    def command(self) -> list[str]:
        where = f"{self.place.address}:{BALANCER_PORT}"
        file = self.folder / "haproxy.cfg"
        brokers = {f"b{number}": one for number, one in enumerate(self.targets)}
        file.write_text(haproxy.configured(where, brokers, admin=str(self._admin)), "utf-8")
        return [haproxy.PROGRAM, "-db", "-f", str(file)]

    def start(self) -> None:
        super().start()
        if self._out:
            self.wait()
            for number in self._out:
                haproxy.told(self._admin, f"set server brokers/b{number} state maint")

    def is_ready(self) -> bool:
        try:
            socket.create_connection((self.place.address, BALANCER_PORT), PROBE_SECONDS).close()
        except OSError:
            return False
        return self.up() > 0

    def enable(self, number: int, *, is_in: bool = True) -> None:
        """Takes one of the brokers in, or leaves it out for new connections."""
        (self._out.discard if is_in else self._out.add)(number)
        if self.is_running:
            haproxy.told(self._admin, f"set server brokers/b{number} state {'ready' if is_in else 'maint'}")

    def up(self) -> int:
        """How many of the brokers it gives connections to."""
        return sum(state.startswith("UP") for state in haproxy.states(self._admin))


class Database(Postgres):
    """A PostgreSQL at a place: started at once, stopped, and started again."""

    def __init__(self, place: Place) -> None:
        self.place = place
        super().__init__(address=place.address)
        self.url = self.database()
        """By its socket: whoever is at no place asks it so, also when its links are cut."""

    def start(self) -> None:
        """Starts it, where it was, and waits until it answers."""
        self.place.run(super().start)

    def rows(self, statement: str) -> list[Any]:
        """Asks it."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()


class Fleet:
    """Makes the parts; `start` starts them, and the end of the `with` ends them all.

    Args:
        folder: An empty one with a short path.
        network: Where the parts are.
        brokers: How many.
        hosts: How many worker hosts dial them; 0 where the brokers have others.
        capacity: Runs at the same time at one host.
        servers: The `mcpServers` of each broker beside `plain`, whose calls are in `ledger`.
        settings: Sections of `cellblock`; over those that a fleet needs, key by key.
        host_options: More of the hosts' command line.
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
        servers: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        host_options: Sequence[object] = (),
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
        self._host_public = make_key_file(folder / "host.key").public
        self.host_keys = (folder / "host.key", make_key_file(folder / "broker.key").public)
        self.state_key = secrets.token_bytes(32)
        self._environment = {"FLEET_STATE_KEY": base64.b64encode(self.state_key).decode()}
        self._host_options = ("--capacity", capacity, "--warm", 1, *host_options)
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
        way = self.network.way(place, self.database.place, PORT)
        url = f"postgresql://postgres@{way}{urlsplit(self.database.url).path}"
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
