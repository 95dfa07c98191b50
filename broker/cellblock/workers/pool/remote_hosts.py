"""Decides which worker hosts on other machines are taken, and on what terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import zmq

from cellblock.base.errors import ConfigError
from cellblock.config.sections import HostSettings, IsolationSettings
from cellblock.workers.link.curve_link import CurveLink, other_version
from cellblock.workers.pool.pool import Pool
from cellblock_worker.wire import protocol
from cellblock_worker.wire.endpoints import EndpointError
from cellblock_worker.wire.keys import KeyFileError, read_key_file

NAMESPACES: Final = "namespaces"
SECCOMP: Final = "seccomp"
"""Begins an entry of a host's `missing` that has no bubblewrap."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Holds what every worker host must do for this broker's scripts.

    Attributes:
        message_bytes: The largest message that it takes.
        heap_mb: The largest heap that a script may have, in MiB.
        isolation: What is around a worker.
        reuse: Whether one principal's runs may have one process; on other machines none have.
    """

    message_bytes: int
    heap_mb: int
    isolation: IsolationSettings
    reuse: bool = False


def listen_for_hosts(hosts: HostSettings, terms: Terms, pool: Pool) -> CurveLink:
    """Opens the wire for hosts on other machines; the caller closes it.

    Raises:
        ConfigError: The key file or the endpoint cannot be used.
    """
    assert hosts.listen is not None and hosts.key is not None
    try:
        own = read_key_file(hosts.key.expanduser())
        return CurveLink(
            hosts.listen,
            own=own,
            allowed={key: name for name, key in hosts.allowed_keys.items()},
            max_message_bytes=terms.message_bytes,
            events=pool,
            judge=lambda hello: refusal(hello, terms),
            on_gone=pool.host_gone,
        )
    except KeyFileError as error:
        raise ConfigError(
            f"cellblock.hosts.key: {error}.", hint="Correct the file or its permissions."
        ) from None
    except (EndpointError, zmq.ZMQError) as error:
        raise ConfigError(
            f"cellblock.hosts.listen: {hosts.listen} cannot be listened on: {error}.",
            hint="Use an address of this machine and a port that is free.",
        ) from None


def refusal(hello: protocol.Hello, terms: Terms) -> str | None:
    """Says why a host is not taken, with what to change, or None."""
    if hello.protocol != protocol.PROTOCOL_VERSION:
        return other_version(hello.protocol)
    if hello.message_bytes < terms.message_bytes:
        return (
            f"it takes messages of up to {hello.message_bytes} bytes, this broker sends up to "
            f"{terms.message_bytes}: start it with --max-message-bytes {terms.message_bytes}"
        )
    if hello.heap_mb < terms.heap_mb:
        return (
            f"its workers have {hello.heap_mb} MiB, scripts here may have {terms.heap_mb}: "
            f"start it with --max-memory-mb {terms.heap_mb}"
        )
    if terms.isolation.mode == "required":
        for layer in hello.missing:
            if layer.startswith(NAMESPACES):
                return 'it has no namespaces around its workers, and this broker\'s isolation is "required"'
            if layer.startswith(SECCOMP):
                return f'its workers lack {layer}; this broker\'s isolation is "required"'
    return None
