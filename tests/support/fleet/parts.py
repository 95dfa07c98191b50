"""The parts of a fleet: each is a process that is started, killed, paused, stopped, and started again where it was."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from support import haproxy
from support.entries import CELLBLOCK
from support.fleet.network import Place
from support.http_daemon import Daemon
from support.postgresql import Postgres
from support.processes import alive, left_after

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


class NotStarted(AssertionError):
    """A part does not serve; the text has the end of what it has said."""


class Part:
    """A process at a place.

    Args:
        place: Where.
        folder: Its own, made here: its log is in it, and what it takes for home and for temporary files.
        environment: More of it than PATH, HOME and TMPDIR.

    Attributes:
        wrapper: Goes before the command: `["taskset", "-c", "0"]`.
        programs: The folder of programs of the Cellblock that it is, this checkout's at first.
    """

    def __init__(self, place: Place, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.place = place
        self.folder = folder
        self.log = folder / "log"
        self.wrapper: Sequence[str] = ()
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
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether it serves."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts it, at once."""
        assert not self.is_running
        self._said_before = len(self.said())
        self.process = self.place.spawn([*self.wrapper, *self.command()], log=self.log, env=self.environment)

    def wait(self, bound: float = START_SECONDS, *, ready: Callable[[], bool] | None = None) -> None:
        """Waits until it serves. Raises NotStarted."""
        until = time.monotonic() + bound
        while not (ready or self.is_ready)():
            if not self.is_running or time.monotonic() > until:
                raise NotStarted(f"{self.name} does not serve: {self.said()[-3000:]}")
            time.sleep(POLL_SECONDS)

    def said(self) -> str:
        """All that it has said, in all its lives."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def said_now(self) -> str:
        """What it has said since its last start."""
        return self.said()[self._said_before :]

    def family(self) -> list[psutil.Process]:
        """It and all below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        return []

    def kill(self, *, alone: bool = False) -> None:
        """Ends it by SIGKILL, with all below it, or alone."""
        if self.process is None:
            return
        family = self.family()
        self._below.update(family)
        for one in family[:1] if alone else family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._reap(None)

    def pause(self) -> None:
        """Stops it as it is, with all below it."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Has it go on."""
        self._signal(signal.SIGCONT)

    def stop(self, bound: float = STOP_SECONDS) -> int | None:
        """Ends it as a service manager does; gives its exit code, or None of one that had to be killed."""
        if self.process is None:
            return None
        family = self.family()
        self._below.update(family)
        self.process.terminate()
        try:
            return self._reap(bound)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def close(self) -> None:
        """Ends it and whatever is left of all its lives."""
        if self.is_running:
            self.resume()
            self.stop()
        for one in self._below:
            if alive(one):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        left_after(self._below, STOP_SECONDS)

    def left(self) -> list[psutil.Process]:
        """What still runs of all that was below it when it was stopped, or killed."""
        return [one for one in self._below if alive(one)]

    def _reap(self, bound: float | None) -> int:
        return self.process.wait(bound)

    def _signal(self, number: signal.Signals) -> None:
        for one in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)


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
        files = ["--config", str(self._configure()), "--state-dir", str(self.state)]
        where = f"{self.place.address}:{BROKER_PORT}"
        serve = [str(self.programs / CELLBLOCK.name), "serve", "--http", where]
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
        assert self.process is not None
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
        given = [
            "--connect",
            *self.names,
            "--key",
            str(key),
            "--server-key",
            server,
            *map(str, self._options),
        ]
        return [str(self.programs / "python"), "-m", "cellblock_worker", *given]

    def is_ready(self) -> bool:
        return "connected to the broker" in self.said_now()


class Balancer(Part):
    """HAProxy, with the rules that are shipped. It leaves out who does not answer at all."""

    def __init__(self, place: Place, folder: Path) -> None:
        assert haproxy.PROGRAM is not None, "HAProxy is needed: `bash scripts/test` unpacks it"
        super().__init__(place, folder, haproxy.ENVIRONMENT)
        self._program = haproxy.PROGRAM
        self.targets: list[str] = []
        self._out: set[int] = set()

    def command(self) -> list[str]:
        where = f"{self.place.address}:{BALANCER_PORT}"
        file = self.folder / "haproxy.cfg"
        brokers = {f"b{number}": one for number, one in enumerate(self.targets)}
        file.write_text(haproxy.configured(where, brokers, admin=str(self.folder / "admin")), "utf-8")
        return [self._program, "-db", "-f", str(file)]

    def start(self) -> None:
        super().start()
        if self._out:
            self.wait()
            for number in self._out:
                self._admin(f"set server brokers/b{number} state maint")

    def is_ready(self) -> bool:
        try:
            socket.create_connection((self.place.address, BALANCER_PORT), PROBE_SECONDS).close()
            return self.up() > 0
        except OSError:
            return False

    def enable(self, number: int, *, is_in: bool = True) -> None:
        """Takes one of the brokers in, or leaves it out for new connections."""
        (self._out.discard if is_in else self._out.add)(number)
        if self.is_running:
            self._admin(f"set server brokers/b{number} state {'ready' if is_in else 'maint'}")

    def up(self) -> int:
        """How many of the brokers it gives connections to."""
        rows = [
            row.split(",") for row in self._admin("show stat").splitlines() if row.startswith("brokers,b")
        ]
        return sum(row[17].startswith("UP") for row in rows if row[1] != "BACKEND")

    def _admin(self, words: str) -> str:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(PROBE_SECONDS)
            asking.connect(str(self.folder / "admin"))
            asking.sendall(f"{words}\n".encode())
            said = b""
            while data := asking.recv(65536):
                said += data
        return said.decode()


class Database:
    """A PostgreSQL at a place: started at once, stopped, and started again."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.server: Postgres = place.run(lambda: Postgres(address=place.address))
        self.url = self.server.database()
        """By its socket: whoever is at no place asks it so, also when its links are cut."""

    def url_by(self, way: str) -> str:
        """The URL for who reaches it by `ADDRESS:PORT`."""
        return f"postgresql://postgres@{way}{urlsplit(self.url).path}"

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Ends it: by SIGQUIT as if its processes were killed, by SIGINT in an orderly way."""
        self.server.stop(how)

    def start(self) -> None:
        """Starts it, where it was, and waits until it answers."""
        self.place.run(self.server.start)

    def rows(self, statement: str) -> list[Any]:
        """Asks it."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def close(self) -> None:
        self.server.close()
