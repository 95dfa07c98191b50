"""A worker host's configuration comes from its broker, or from the command line of a host with several brokers."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cellblock_worker.confinement import confinement

EXIT_REFUSED: Final = 3
"""Names the exit code of a host that will not serve: starting it again would not help."""

REFUSED_PREFIX: Final = "cellblock_worker refuses to serve: "

CANNOT_PREFIX: Final = "cellblock_worker cannot start now: "
"""Begins the last line that a host which will not serve writes to its stderr."""


class HostConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host's configuration is what the broker tells it at its start, as one JSON line on the host's stdin.

    `connect` is the broker's ZeroMQ endpoint, `identity` the hex name the broker expects this host under.
    `warm` workers are kept booted, some more after a burst; with `one_at_first` only one until the first run. Half of a
    boot is waiting, so twice as many boot at a time as there are cores.
    `total_memory_bytes` caps all workers and the host together where there are cgroups; None computes it.
    With `reuse` a process may serve several runs of one key, each in a V8 context of its own.
    """

    connect: str
    identity: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    capacity: Annotated[int, Meta(ge=1)]
    warm: Annotated[int, Meta(ge=0)]
    one_at_first: bool = False
    boot_parallel: Annotated[int, Meta(ge=1)] = 2 * (os.cpu_count() or 1)
    max_message_bytes: Annotated[int, Meta(ge=1024)]
    max_old_space_mb: Annotated[int, Meta(ge=16)]
    total_memory_bytes: Annotated[int, Meta(ge=1)] | None = None
    isolation: confinement.Isolation = "auto"
    reuse: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "warning"

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: bytes) -> HostConfig:
        """Returns what a line of JSON says. Raises ValueError."""
        return msgspec.json.decode(text, type=cls)
