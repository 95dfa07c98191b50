"""`cellblock connect` finds a daemon, and carries MCP messages between it and this process's stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.loopback import is_loopback
from cellblock.base.tasks import at_most
from cellblock.frontend.http.address import CONFIG_HEADER, MCP_PATH
from cellblock.frontend.http.token import read_token
from cellblock.frontend.misread import INTERNAL_ERROR, Misread
from cellblock.frontend.relay.channel import CONNECT_SECONDS, Broken, Channel, HungUp, Unreached
from cellblock.frontend.relay.listeners import Stranger
from cellblock.frontend.relay.local_http import LocalHttp
from cellblock.frontend.relay.messages import Kind, Message, encoded, message_of_line
from cellblock.frontend.relay.relay import DaemonUnavailable, Relay
from cellblock.frontend.stdio.stdin import LineTooLong, StdinLines
from cellblock.frontend.stdio.stdout import StdoutLines

FIRST_REQUEST_SECONDS: Final = 5.0
"""Bounds the wait for the request whose error tells a client why there is no daemon."""


class NotThere(DaemonUnavailable):
    """Tells that nobody listens, or that a daemon is just ending."""


class HangsUp(DaemonUnavailable):
    """Tells that the listener answers nothing: it is a daemon that was killed, or another program."""


class Daemon:
    """Knows where a daemon is, and what it is shown.

    Args:
        url: Of its MCP endpoint.
        token_file: Where the token is.
        token_optional: Whether that file may be missing; then no token is shown.
        own: Whether it is to be this user's daemon: a program of another user is not shown the token.
        tls_ca: Certificates to trust beside those of the system.
        config: What `config_mark` makes of the configuration that it must serve; None: any.

    Raises:
        ConfigError: The URL, the token file or the certificates cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path,
        token_optional: bool = False,
        own: bool = False,
        tls_ca: Path | None = None,
        config: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--url {url}: this is no http or https URL.", hint="Give what the daemon printed."
            )
        self.url = url
        self._config = config
        shown = token_file.exists() or not token_optional
        self._token = read_token(token_file) if shown else None
        self._own = own and self._token is not None
        self._local, self._plain = is_loopback(parts.hostname), parts.scheme == "http"
        if self._token and self._plain and not self._local:
            raise ConfigError(f"--url {url} would send the token in the clear.", hint="Use https.")
        try:
            self._tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--tls-ca {tls_ca} cannot be used: {error}.", hint="Give a PEM file."
            ) from None

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncGenerator[Channel]:
        """Opens a way to the daemon that shows the token."""
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        if self._local and self._plain:
            with contextlib.closing(LocalHttp(headers, own=self._own)) as channel:
                yield channel
            return
        from cellblock.frontend.relay.remote_http import remote_http

        # A proxy of the environment is not between us and our own machine.
        async with remote_http(headers, self._tls, trust_env=not self._local) as channel:
            yield channel

    async def check(self, channel: Channel) -> None:
        """Asks the daemon whether it takes us.

        Raises:
            NotThere: Nobody listens, or it is just ending.
            HangsUp: It answers nothing.
            DaemonUnavailable: It does not.
            ConfigError: It serves another configuration.
        """
        try:
            # Of the methods that no MCP endpoint has, so that it is answered at once; it passes all checks before.
            async with asyncio.timeout(CONNECT_SECONDS), channel.ask("HEAD", self.url) as answer:
                status, served = answer.status, answer.headers.get(CONFIG_HEADER)
        except TimeoutError:
            raise self.gone(f"it is silent for {CONNECT_SECONDS:g} s") from None
        except Unreached as error:
            gone = self.gone(str(error))
            raise NotThere(gone.message, hint=gone.hint) from None
        except Stranger as error:
            raise DaemonUnavailable(
                f"The token is not shown at {self.url}: {error}.",
                hint="Give --url with a port of your own; or --token-file, if that user's daemon is meant.",
            ) from None
        except HungUp as error:
            gone = self.gone(str(error))
            raise HangsUp(gone.message, hint=gone.hint) from None
        except Broken as error:
            raise self.gone(str(error)) from None
        if status == 405:
            if self._config not in (None, served):
                raise ConfigError(
                    f"The daemon at {self.url} serves another configuration than --config names.",
                    hint="Give this one an address of its own, such as --url http://127.0.0.1:7434/mcp; or use the "
                    "daemon as it is with --no-start.",
                )
            return
        if status == 503:
            raise NotThere(f"The daemon at {self.url} is stopping.", hint="Try again in a moment.")
        if status == 401:
            raise DaemonUnavailable(
                f"The daemon at {self.url} refuses the token{'' if self._token else ': none is shown'}.",
                hint="Give the same --state-dir or --token-file as to the daemon. If it is another user's, give --url "
                "with a port of your own.",
            )
        if status == 403:
            raise DaemonUnavailable(
                f"The daemon at {self.url} does not know itself by this name.",
                hint="Use the URL that it printed, or list the name in cellblock.http.allowed_hosts.",
            )
        raise DaemonUnavailable(
            f"{self.url} is no Cellblock daemon (HTTP status {status}).", hint="Check --url."
        )

    def gone(self, why: str) -> DaemonUnavailable:
        """Makes the error that says that the connection has failed."""
        return DaemonUnavailable(
            f"No daemon answers at {self.url}: {why}.",
            hint="Start it with `cellblock serve --http`, or have it run with `cellblock service`.",
        )


async def relay_stdio(
    find: Callable[[], Daemon],
    on_answer: Callable[[], None] = lambda: None,
    start: Callable[[], Awaitable[Daemon]] | None = None,
) -> None:
    """Relays between stdin and stdout and the daemon until the client closes stdin.

    What keeps the daemon from being reached is the error of the client's first request, too.

    Args:
        find: Says where the daemon is; may raise ConfigError.
        on_answer: Called once, when the client has its first answer.
        start: Has a daemon run where none does; None: one must run already, and one that goes ends this.

    Raises:
        DaemonUnavailable: The daemon is not there, does not take us, or has gone.
        CellblockError: It cannot be asked, or started.
    """
    lines = await StdinLines.open()
    output = await StdoutLines.open(on_lost=lines.close)
    try:
        async with contextlib.AsyncExitStack() as stack:

            async def reached(daemon: Daemon) -> Channel:
                # The way to a daemon that went.
                await stack.aclose()
                channel = await stack.enter_async_context(daemon.channel())
                await daemon.check(channel)
                return channel

            async def revived() -> Channel:
                assert start is not None
                return await reached(await start())

            try:
                daemon = find()
                try:
                    channel = await reached(daemon)
                except (NotThere, HangsUp):
                    if start is None:
                        raise
                    channel = await revived()
            except CellblockError as error:
                await _tell(lines, output, error)
                raise
            again = None if start is None else revived
            relay = Relay(daemon.url, daemon.gone, channel, lines, output.send, on_answer, again)
            lost = await relay.run()
            output.say_farewell()
            await output.flush()
    finally:
        output.close()
        # Otherwise the reader of stdin keeps the process for as long as the client likes.
        lines.close()
    if lost is not None:
        raise lost


def startable_address(url: str) -> str | None:
    """Returns `HOST:PORT` of a daemon that may be started to be reached by a URL; None for one that may not be."""
    try:
        parts = urlsplit(url)
        ip = ipaddress.ip_address("127.0.0.1" if parts.hostname == "localhost" else parts.hostname or "")
        port = parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or parts.path != MCP_PATH or not ip.is_loopback:
        return None
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


# ---- inside ------------------------------------------------------------------------------------------


async def _tell(lines: StdinLines, output: StdoutLines, error: CellblockError) -> None:
    """Answers a client's first request with an error; editors show that, and not what is on stderr."""
    if os.isatty(0):
        return
    async with at_most(FIRST_REQUEST_SECONDS):
        while line := await _next_line(lines):
            found = message_of_line(line)
            if isinstance(found, Message) and found.kind is Kind.REQUEST:
                await output.send(encoded(Misread(INTERNAL_ERROR, found.id, str(error)).answer()))
                output.say_farewell()
                return


async def _next_line(lines: StdinLines) -> bytes:
    while True:
        with contextlib.suppress(LineTooLong):
            return await lines.line()
