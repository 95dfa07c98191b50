"""Ray runs many scripts at once, for who is inside of a Ray job already: agents that are trained, or evaluated, there.

The tools are functions of the calling process, or servers that it starts. The scripts run in worker hosts on the nodes
of the cluster, which are there as long as the call takes; who calls often keeps a `Broker` with `hosts.ray` instead.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from cellblock.app.broker import Broker
from cellblock.app.config.load import load_settings
from cellblock.base.errors import CellblockError, ConfigError, InvalidRequest
from cellblock.base.settings.hosts import HostSettings, RaySettings
from cellblock.base.settings.settings import Settings
from cellblock.fleet.ray.fleet import the_ray
from cellblock.run.response import RunResponse

__all__: Final = ["arun_many", "run_many"]

NODES_SECONDS: Final = 600.0
"""Bounds the wait for the first host: an autoscaler may have to start a machine for it."""


_Arguments = ParamSpec("_Arguments")
_Given = TypeVar("_Given")


def _blocking(work: Callable[_Arguments, Coroutine[Any, Any, _Given]]) -> Callable[_Arguments, _Given]:
    """Returns a function for callers without an event loop."""

    @functools.wraps(work)
    def call(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Given:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work(*args, **options))
        raise CellblockError("An event loop runs in this thread.", hint="Await `arun_many` instead.")

    return call


async def arun_many(
    scripts: Iterable[str],
    *,
    config: str | os.PathLike[str] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    hosts: int = 2,
    capacity: int = 16,
    resources: Mapping[str, float] | None = None,
    limits: Mapping[str, Any] | None = None,
    nodes_seconds: float = NODES_SECONDS,
) -> list[RunResponse]:
    """Runs scripts on the cluster that this process belongs to, and returns their responses, in order.

    `run_many` is the same for callers without an event loop. A script whose node dies has the error `HOST_LOST`, like
    any run whose host dies; the others go on.

    Args:
        scripts: JavaScript or TypeScript, an ES module each.
        config: A configuration file, for its servers, policy and limits; its `hosts` are not used.
        tools: Python functions that scripts can call as `@codemode/servers/local`, in this process.
        hosts: How many worker hosts there are at most; fewer, where fewer have places for all scripts.
        capacity: Runs at the same time at one host.
        resources: What Ray keeps free for one host, by its names; two CPUs when absent.
        limits: As for `Broker.run`, of each script.
        nodes_seconds: Bounds the wait for the first host.

    Raises:
        InvalidRequest: Something is not as described here.
        ConfigError: Ray is not installed (`pip install 'cellblock[ray]'`).
        CellblockError: As `Broker`; of `run_many`, too, that an event loop runs here.
    """
    if isinstance(scripts, str):
        raise InvalidRequest(
            "`scripts` is one text, and must be a list of scripts.", hint="Put it into a list: [script]."
        )
    all_scripts = list(scripts)
    for number, script in enumerate(all_scripts):
        if not isinstance(script, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # who calls may have no checker
            raise InvalidRequest(
                f"Script {number} is no text, but {type(script).__name__}.", hint="Give texts of scripts."
            )
    for name, value in (("hosts", hosts), ("capacity", capacity)):
        if value < 1:
            raise InvalidRequest(f"`{name}` is {value}, and no script would run.", hint="Give 1 or more.")
    count = min(hosts, math.ceil(len(all_scripts) / capacity))
    if not count:
        return []
    try:
        ray = the_ray()
    except ImportError:
        raise ConfigError("Ray is not installed.", hint="pip install 'cellblock[ray]'") from None
    if not ray.is_initialized():
        ray.init()
    context, address = ray.get_runtime_context(), ray.util.get_node_ip_address()
    on_ray = RaySettings(
        address=context.gcs_address,
        # This process is a job of the cluster.
        command="same-user",
        hosts=(count, count),
        options={
            **({} if resources is None else {"resources": dict(resources)}),
            # Not the job's variables: a credential may be among them.
            "runtime_env": {
                name: value for name, value in dict(context.runtime_env).items() if name != "env_vars"
            },
        },
    )
    listen = f"tcp://[{address}]:*" if ":" in address else f"tcp://{address}:*"
    places = count * capacity
    settings = _with_hosts(
        load_settings(config),
        HostSettings(local=False, listen=listen, ray=on_ray),
        capacity=capacity,
        queue_size=places,
        queue_wait_ms=int(nodes_seconds * 1000),
    )
    turns = asyncio.Semaphore(places)
    async with Broker(settings, tools=tools) as broker:

        async def one(number: int, script: str) -> RunResponse:
            # No place and no half of the queue is kept from a client that has one run.
            async with turns:
                return await broker.run(script, limits=limits, client=f"script {number}")

        return await asyncio.gather(*(one(*each) for each in enumerate(all_scripts)))


run_many: Final = _blocking(arun_many)
"""Runs scripts as `arun_many`, for callers without an event loop."""


def _with_hosts(settings: Settings, hosts: HostSettings, **pool: Any) -> Settings:
    return settings.with_section(hosts=hosts, pool=settings.cellblock.pool.model_copy(update=pool))
