"""`cellblock connect`: where a daemon is, and MCP messages between it and this process's stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from urllib.parse import urlsplit

from cellblock.base.errors import ConfigError
from cellblock.frontend.http.token import read_token
from cellblock.frontend.relay.channel import CONNECT_SECONDS, Broken, Channel
from cellblock.frontend.relay.local_http import LocalHttp
from cellblock.frontend.relay.relay import DaemonUnavailable, Relay
from cellblock.frontend.stdio.stdin import StdinLines
from cellblock.frontend.stdio.stdout import StdoutLines


class Daemon:
    """Knows where a daemon is, and what it is shown.

    Args:
        url: Of its MCP endpoint.
        token_file: Where the token is.
        token_optional: Whether that file may be missing; then no token is shown.
        tls_ca: Certificates to trust beside those of the system.

    Raises:
        ConfigError: The URL, the token file or the certificates cannot be used.
    """

    def __init__(
        self, url: str, *, token_file: Path, token_optional: bool = False, tls_ca: Path | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--url {url}: this is no http or https URL.", hint="Give what the daemon printed."
            )
        self.url = url
        shown = token_file.exists() or not token_optional
        self._token = read_token(token_file) if shown else None
        self._local, self._plain = _is_loopback(parts.hostname), parts.scheme == "http"
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
            with contextlib.closing(LocalHttp(headers)) as channel:
                yield channel
            return
        from cellblock.frontend.relay.remote_http import remote_http

        # A proxy of the environment is not between us and our own machine.
        async with remote_http(headers, self._tls, trust_env=not self._local) as channel:
            yield channel

    async def check(self, channel: Channel) -> None:
        """Asks the daemon whether it takes us.

        Raises:
            DaemonUnavailable: It does not, or nobody answers.
        """
        try:
            # Of the methods that no MCP endpoint has, so that it is answered at once; it passes all checks before.
            async with asyncio.timeout(CONNECT_SECONDS), channel.ask("HEAD", self.url) as answer:
                status = answer.status
        except TimeoutError:
            raise self.gone(f"it is silent for {CONNECT_SECONDS:g} s") from None
        except Broken as error:
            raise self.gone(str(error)) from None
        if status == 405:
            return
        if status == 401:
            raise DaemonUnavailable(
                f"The daemon at {self.url} refuses the token{'' if self._token else ': none is shown'}.",
                hint="Give the same --state-dir or --token-file as to the daemon.",
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


async def relay_stdio(daemon: Daemon, on_answer: Callable[[], None] = lambda: None) -> None:
    """Relays between stdin and stdout and the daemon until the client closes stdin.

    Args:
        daemon: That runs.
        on_answer: Called once, when the client has its first answer.

    Raises:
        DaemonUnavailable: The daemon is not there, does not take us, or has gone.
    """
    async with daemon.channel() as channel:
        await daemon.check(channel)
        lines = await StdinLines.open()
        output = await StdoutLines.open(on_lost=lines.close)
        try:
            lost = await Relay(daemon.url, daemon.gone, channel, lines, output.send, on_answer).run()
            output.say_farewell()
            await output.flush()
        finally:
            output.close()
            # Otherwise the reader of stdin keeps the process for as long as the client likes.
            lines.close()
    if lost is not None:
        raise lost


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
