"""Decides which worker hosts on other machines are taken, and on what terms."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import zmq

from cellblock.base.errors import ConfigError
from cellblock.base.settings.hosts import HostSettings
from cellblock.base.settings.sections import PoolSettings
from cellblock.base.state_dir import LOGS, RAY_LOG
from cellblock.fleet.curve_link import CurveLink
from cellblock.fleet.ray_hosts import RayHosts
from cellblock.pool.pool import Pool
from cellblock.pool.start import Terms
from cellblock_worker.wire import protocol
from cellblock_worker.wire.endpoints import EndpointError
from cellblock_worker.wire.keys import KeyFileError, KeyPair, make_pair, pair_of, read_key_file

NAMESPACES: Final = "namespaces"
SECCOMP: Final = "seccomp"
"""Begins an entry of a host's `missing` that has no bubblewrap."""

ON_RAY: Final = b"cellblock: the pair of hosts on Ray"


def open_hosts(
    hosts: HostSettings,
    bounds: PoolSettings,
    terms: Terms,
    state_dir: Path,
    pool: Pool,
    stack: contextlib.AsyncExitStack,
) -> CurveLink:
    """Opens the wire for hosts on other machines, and has Ray start some where that is configured; `stack` ends both.

    Raises:
        ConfigError: The keys, the endpoint or Ray cannot be used.
    """
    own = own_pair(hosts)
    on_ray: RayHosts | None = None
    if hosts.ray is not None:
        on_ray = RayHosts(
            hosts.ray,
            bounds,
            own.public,
            pair_on_ray(own),
            terms,
            # What has no place on this machine.
            load=lambda: max(0, pool.running + pool.queued - bounds.capacity * hosts.local),
            log_file=state_dir / LOGS / RAY_LOG,
        )
        stack.push_async_callback(on_ray.stop)
    link = listen_for_hosts(hosts, own, terms, pool)
    stack.callback(link.close)
    pool.use(link)
    if on_ray is not None:
        on_ray.start(link.endpoint)
    return link


def own_pair(hosts: HostSettings) -> KeyPair:
    """Reads the broker's pair, or makes one where only hosts on Ray are to know it. Raises ConfigError."""
    if hosts.key is None:
        return make_pair()
    try:
        return read_key_file(hosts.key.expanduser())
    except KeyFileError as error:
        raise ConfigError(
            f"cellblock.hosts.key: {error}.", hint="Correct the file or its permissions."
        ) from None


def pair_on_ray(own: KeyPair) -> KeyPair:
    """Returns the pair of a broker's hosts on Ray: brokers that share a key file share the hosts, and nobody keeps two
    secrets. The broker's secret cannot be found by it."""
    return pair_of(hashlib.blake2b(ON_RAY, key=own.secret, digest_size=32).digest())


def listen_for_hosts(hosts: HostSettings, own: KeyPair, terms: Terms, pool: Pool) -> CurveLink:
    """Opens the wire for hosts on other machines; the caller closes it.

    Raises:
        ConfigError: The endpoint cannot be used.
    """
    assert hosts.listen is not None
    allowed = {key: name for name, key in hosts.allowed_keys.items()}
    if hosts.ray is not None:
        allowed[pair_on_ray(own).public] = "hosts on Ray"
    try:
        return CurveLink(
            hosts.listen,
            own=own,
            allowed=allowed,
            max_message_bytes=terms.message_bytes,
            events=pool,
            judge=lambda hello: refusal(hello, terms),
            on_gone=pool.host_gone,
        )
    except (EndpointError, zmq.ZMQError) as error:
        raise ConfigError(
            f"cellblock.hosts.listen: {hosts.listen} cannot be listened on: {error}.",
            hint="Use an address of this machine and a port that is free.",
        ) from None


def refusal(hello: protocol.Hello, terms: Terms) -> str | None:
    """Says why a host is not taken, with what to change, or None."""
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
    if terms.isolation == "required":
        for layer in hello.missing:
            if layer.startswith(NAMESPACES):
                return 'it has no namespaces around its workers, and this broker\'s isolation is "required"'
            if layer.startswith(SECCOMP):
                return f'its workers lack {layer}; this broker\'s isolation is "required"'
    return None
