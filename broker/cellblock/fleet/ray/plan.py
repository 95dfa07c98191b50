"""A plan says what hosts on Ray are like; brokers with the same plan share them."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Final

from cellblock_worker.wire.keys import KeyPair, pair_of

NAMESPACE: Final = "cellblock"
"""Names the actors' namespace in Ray."""

ORPHAN_SECONDS: Final = 60.0
"""Bounds how long actors stay that nobody asks any more. A broker that was killed has been started again by then, and
the fleet, whose node has died, is back on another one, which takes Ray some 15 s."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Holds what makes the hosts of a cluster: Ray keeps it, and gives it to an actor that it starts again.

    Attributes:
        arguments: Of `python -m cellblock_worker`, without the key; nothing secret.
        secret: The secret key of all hosts.
        least: The hosts that there are at least.
        most: The hosts that there are at most.
        capacity: Runs at the same time at one host.
        resources: What Ray keeps free for one host, by its names.
        runtime_env: Ray's, for the hosts.
        shrink_seconds: How long fewer hosts must have been enough before one goes.
    """

    arguments: tuple[str, ...]
    secret: bytes = field(repr=False)
    least: int
    most: int
    capacity: int
    resources: Mapping[str, float]
    runtime_env: Mapping[str, Any]
    shrink_seconds: float

    @property
    def key(self) -> KeyPair:
        """Returns the key pair of all hosts."""
        return pair_of(self.secret)

    @property
    def name(self) -> str:
        """Returns the name of what brokers with this plan, and this version of Cellblock, share; no secret is in it."""
        said = asdict(self) | {"secret": self.key.public, "version": version("cellblock")}
        return f"hosts-{hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]}"

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options of a host's actor."""
        rest = dict(self.resources)
        options: dict[str, Any] = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
        if "memory" in rest:
            options["memory"] = rest.pop("memory")
        if self.runtime_env:
            options["runtime_env"] = dict(self.runtime_env)
        return options | {"resources": rest}


def the_ray() -> Any:
    """Returns the module `ray`, which few installations have. Raises ImportError."""
    return importlib.import_module("ray")
