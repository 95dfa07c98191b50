"""How a command reaches a daemon: over the Unix socket of this user's own, or over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import select
import ssl
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

from cellblock.base.daemon_socket import (
    FOLDER,
    HELLO_SECONDS,
    KEY,
    REFUSES_TOKEN,
    STOPPING,
    Stranger,
    connected,
    hello,
)
from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.loopback import is_loopback
from cellblock.base.state_dir import in_the_way
from cellblock.serve.http.address import CONFIG_HEADER, MCP_PATH
from cellblock.serve.http.token import FILE_NAME, read_token
from cellblock_worker.base.folders import InTheWay

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS: Final = 5.0
"""Bounds the time for a daemon to take a connection, and to answer what takes no work."""

SILENCE_SECONDS: Final = 60.0
"""Bounds the silence of a daemon in the middle of an answer; it sends a sign of life every 15 s."""

DOES_NOT_START: Final = "the daemon does not start the server "
"""Begins what a daemon tells of a server that it does not start; its name and a colon follow."""

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Bounds one message of a daemon: a result of 16 MiB is in it twice."""


class DaemonUnavailable(CellblockError):
    """Tells that the daemon is not there, does not take us, or has gone."""


class NotThere(DaemonUnavailable):
    """Tells that no daemon is there yet, or one is just ending."""


class NoSocket(NotThere):
    """Tells that no daemon of this user listens on the socket."""


class Link:
    """A connection with a daemon. Owns the connection; `close` ends it.

    Args:
        reader: Of its lines.
        writer: Of lines to it.
        facts: What it has said that it is; None where it is not asked.
        bridge: What carries the lines, where they go over HTTP.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        facts: dict[str, Any] | None = None,
        bridge: asyncio.Task[None] | None = None,
    ) -> None:
        self.reader, self.writer, self.facts = reader, writer, facts
        self._bridge = bridge

    def has_ended(self) -> bool:
        """Says whether the daemon has hung up, which the loop may not have seen yet."""
        poll = select.poll()
        poll.register(self.writer.get_extra_info("socket").fileno(), 0)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Ends the connection."""
        self.writer.close()
        if self._bridge is not None:
            self._bridge.cancel()


class Daemon:
    """Knows where a daemon is, and what it is shown.

    Args:
        url: Of its MCP endpoint.
        state_dir: Its state directory, where that is known.
        token_file: The token that it is shown instead of the one in its state directory.
        tls_ca: Certificates to trust beside those of the system.
        config: What `config_mark` makes of the configuration that it must serve; None: any.

    Raises:
        ConfigError: The URL, the token file or the certificates cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        state_dir: Path | None,
        token_file: Path | None = None,
        tls_ca: Path | None = None,
        config: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--url {url}: this is no http or https URL.", hint="Give what the daemon printed."
            )
        self.url = url
        self.address = local_address(url)
        self._state_dir, self._config = state_dir, config
        self.facts: dict[str, Any] | None = None
        """Holds what it has said of itself, where its socket was reached."""
        self._given = None if token_file is None else read_token(token_file)
        self._own = None if token_file is not None or state_dir is None else state_dir / FILE_NAME
        self._local, self._plain = is_loopback(parts.hostname), parts.scheme == "http"
        if self._plain and not self._local and (self._given or (self._own and self._own.exists())):
            raise ConfigError(f"--url {url} would send the token in the clear.", hint="Use https.")
        try:
            self._tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--tls-ca {tls_ca} cannot be used: {error}.", hint="Give a PEM file."
            ) from None

    @property
    def is_own(self) -> bool:
        """Says whether it is shown the token of the state directory, which a program of others must not see."""
        return self._own is not None and self._own.exists()

    async def linked(self, **more: object) -> Link:
        """Connects with the daemon's socket; `more` is said in our first line.

        Raises:
            NoSocket: No daemon of this user listens on it.
            NotThere: It is just ending.
            DaemonUnavailable: It does not take us.
            ConfigError: It serves another configuration, or something else is in the socket's place.
        """
        if self.address is None or self._state_dir is None:
            raise self._other(f": its path is not {MCP_PATH}")
        try:
            connection = connected(self._state_dir, self.address)
        except InTheWay as error:
            raise in_the_way(error) from None
        except Stranger as error:
            raise DaemonUnavailable(
                f"The socket in {self._state_dir / FOLDER} is not used: {error.strerror}.",
                hint="Use another --state-dir.",
            ) from None
        except (FileNotFoundError, NotADirectoryError, ConnectionError):
            raise self.gone("nobody listens there", NoSocket) from None
        except OSError as error:
            raise self.gone(error.strerror or str(error)) from None
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_MESSAGE_BYTES)
        try:
            return Link(reader, writer, await self._greeted(reader, writer, more))
        except BaseException:
            writer.close()
            raise

    @contextlib.asynccontextmanager
    async def http(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """Opens a client that shows the daemon the token. Raises as `linked` where the token is not shown there."""
        import httpx2

        token = self._given
        if token is None and self.is_own:
            assert self._own is not None
            token = read_token(self._own)
            if self._local and self._plain:
                await self._prove_own()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        timeout = httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
        # A proxy of the environment is not between us and our own machine.
        async with httpx2.AsyncClient(
            headers=headers, timeout=timeout, verify=self._tls or not self._plain, trust_env=not self._local
        ) as client:
            yield client

    async def check(self, client: httpx2.AsyncClient) -> None:
        """Asks the daemon over HTTP whether it takes us.

        Raises:
            NotThere: It is just ending.
            DaemonUnavailable: It does not.
            ConfigError: It serves another configuration.
        """
        import httpx2

        try:
            # Of the methods that no MCP endpoint has, so that it is answered at once; it passes all checks before.
            answer = await client.head(self.url, timeout=CONNECT_SECONDS)
        except httpx2.HTTPError as error:
            raise self.gone(_why(error)) from None
        status = answer.status_code
        if status == 405:
            self._check_config(answer.headers.get(CONFIG_HEADER))
            return
        if status == 503:
            raise self._stopping()
        if status == 401:
            raise self._refuses_token(shown="authorization" in client.headers)
        if status == 403:
            raise DaemonUnavailable(
                f"The daemon at {self.url} does not know itself by this name.",
                hint="Use the URL that it printed, or list the name in cellblock.http.allowed_hosts.",
            )
        raise self._other(f" (HTTP status {status})")

    async def ask(self, method: str, path: str, *, absent: bool = False) -> Any:
        """Returns what the daemon answers; with `absent`, None for what it does not know.

        Raises:
            DaemonUnavailable: It does not answer.
        """
        import httpx2

        async with self.http() as client:
            try:
                answer = await client.request(method, urljoin(self.url, path))
            except httpx2.HTTPError as error:
                raise self.gone(_why(error)) from None
            status = answer.status_code
            if status == 200:
                with contextlib.suppress(ValueError):
                    return json.loads(answer.content)
                raise self._other("")
            if status == 404 and absent:
                return None
            if status == 404:
                raise DaemonUnavailable(
                    f"The daemon at {self.url} has no dashboard.",
                    hint='Set cellblock.dashboard to "logs" in its configuration.',
                )
            await self.check(client)
        if status == 403:
            raise DaemonUnavailable(
                f"The daemon at {self.url} does not show its dashboard to this token.",
                hint="Use the token of its token file: a named one does not open it.",
            )
        raise DaemonUnavailable(
            f"The daemon at {self.url} answers with status {status}.", hint="Try again in a moment."
        )

    async def socketless(self) -> DaemonUnavailable:
        """Makes the error for an address at which somebody listens without the socket that our own daemon has."""
        import httpx2

        with contextlib.suppress(httpx2.HTTPError):
            async with httpx2.AsyncClient(timeout=CONNECT_SECONDS, trust_env=False) as client:
                try:
                    answer = await client.get(urljoin(self.url, "/livez"))
                except httpx2.ConnectError as error:
                    # Whoever listened has gone meanwhile.
                    return self.gone(_why(error), NotThere)
            if answer.status_code == 200 and answer.text.startswith("ok"):
                where = "" if self._state_dir is None else f" in {self._state_dir / FOLDER}"
                return DaemonUnavailable(
                    f"The daemon at {self.url} has no socket{where}: it is of an earlier version, has another state "
                    "directory, or is another user's. The token is not shown.",
                    hint="End it, and this version starts or is started in its place (`systemctl --user restart "
                    "cellblock` for a service); or give its --state-dir; or a --token-file, which it is shown.",
                )
        return self._other("")

    def gone(self, why: str, kind: type[DaemonUnavailable] = DaemonUnavailable) -> DaemonUnavailable:
        """Makes the error that says that the daemon cannot be reached."""
        return kind(
            f"No daemon answers at {self.url}: {why}.",
            hint="Start it with `cellblock serve --http`, or have it run with `cellblock service`.",
        )

    # ---- inside ------------------------------------------------------------------------------------------

    async def _prove_own(self) -> None:
        """Sees that this user's daemon has the port: any user can take one, and who has the socket has its port."""
        try:
            (await self.linked()).close()
        except NoSocket:
            if self.address is not None and await is_taken(self.address):
                raise await self.socketless() from None
            raise

    async def _greeted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, more: Mapping[str, object]
    ) -> dict[str, Any]:
        shown = {} if self._given is None else {"token": self._given}
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                writer.write(hello(**shown, **more))
                said = json.loads(await reader.readuntil(b"\n"))
                facts: dict[str, Any] = said[KEY]
                refused = facts.get("refused")
        except TimeoutError:
            raise self.gone(f"it is silent for {HELLO_SECONDS:g} s") from None
        except (EOFError, ConnectionError):
            # As one that is killed does.
            raise self.gone("it has hung up", NotThere) from None
        except (ValueError, LookupError, TypeError, AttributeError, asyncio.LimitOverrunError):
            raise self._other("") from None
        if refused == STOPPING:
            raise self._stopping()
        if refused == REFUSES_TOKEN:
            raise self._refuses_token(shown=self._given is not None)
        if refused is not None:
            raise DaemonUnavailable(
                f"The daemon at {self.url} takes no further client: {refused}.",
                hint="Close an editor, or raise cellblock.http.max_sessions.",
            )
        self._check_config(facts.get("config"))
        self.facts = facts
        return facts

    def _check_config(self, served: object) -> None:
        if self._config not in (None, served):
            raise ConfigError(
                f"The daemon at {self.url} serves another configuration than --config names.",
                hint="Give this one an address of its own, such as --url http://127.0.0.1:7434/mcp; or use the "
                "daemon as it is with --no-start.",
            )

    def _stopping(self) -> NotThere:
        return NotThere(f"The daemon at {self.url} is stopping.", hint="Try again in a moment.")

    def _refuses_token(self, *, shown: bool) -> DaemonUnavailable:
        return DaemonUnavailable(
            f"The daemon at {self.url} refuses the token{'' if shown else ': none is shown'}.",
            hint="Give the same --state-dir or --token-file as to the daemon. If it is another user's, give --url "
            "with a port of your own."
            if self._given is None
            else "It has expired or was revoked (see `cellblock token list` there), or is another daemon's.",
        )

    def _other(self, how: str) -> DaemonUnavailable:
        return DaemonUnavailable(f"{self.url} is no Cellblock daemon{how}.", hint="Check --url.")


def _why(error: Exception) -> str:
    said = str(error) or type(error).__name__
    return said.replace("All connection attempts failed", "nobody listens there")


def local_address(url: str) -> str | None:
    """Returns `HOST:PORT` of a daemon of this machine that has a socket, and may be started; None for others."""
    try:
        parts = urlsplit(url)
        ip = ipaddress.ip_address("127.0.0.1" if parts.hostname == "localhost" else parts.hostname or "")
        port = parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or parts.path.removesuffix("/") != MCP_PATH or not ip.is_loopback:
        return None
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


async def is_taken(address: str) -> bool:
    """Says whether anybody listens at an address."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
