"""Settings of hosts say where scripts run: in a worker host on this machine, on others, on a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cellblock.base.settings.sections import Section
from cellblock_worker.wire.endpoints import EndpointError, check_names, check_tcp

Least = Annotated[int, Field(ge=0, le=10_000, title="min")]
Most = Annotated[int, Field(ge=1, le=10_000, title="max")]


def _pair(given: Any) -> Any:
    return (given, given) if isinstance(given, int) else given


def _whose(given: Any) -> Any:
    if not given:
        raise ValueError(
            "`command` is needed: who may run jobs on the cluster can run code where Ray is talked to; start that as "
            'another user, or write "same-user" where the cluster is yours alone'
        )
    return given


class RaySettings(Section):
    """Starts worker hosts as actors on a Ray cluster, as many as runs need. It requires `cellblock[ray]`, `listen` at
    an address that the cluster's nodes reach, and the same version of Cellblock in their Python. Brokers with the
    same values and one `key` share the hosts. Each host has `pool.capacity` and `pool.warm`."""

    address: str = "auto"
    """Names the cluster, as for `ray.init`: `auto` is the one of this machine."""

    connect: list[str] = Field(default_factory=list[str])
    """Names where hosts find the brokers, as in their `--connect`: `tcp://HOST:PORT`, `dns://NAME:PORT`. Absent: they
    find only this broker, at `listen`. If that is any address of this machine, they use the address by which Ray
    knows the machine."""

    hosts: Annotated[
        tuple[Least, Most], BeforeValidator(_pair, json_schema_input_type=Most | tuple[Least, Most])
    ] = (1, 8)
    """Sets the number of hosts, or `[MIN, MAX]`."""

    options: dict[Literal["resources", "runtime_env"], dict[str, Any]] = Field(
        default={"resources": {"CPU": 2.0}}
    )
    """Sets Ray's options of a host's actor: `resources` is what Ray reserves (`CPU`, `GPU`, `memory` in bytes, or your
    own); `runtime_env`, such as `{"pip": ["cellblock==0.1.0"]}`, is for nodes without Cellblock."""

    command: Annotated[list[str] | Literal["same-user"], BeforeValidator(_whose)] = Field(
        default=None, validate_default=True
    )
    """Starts `cellblock.fleet.ray` as another user: whoever may run jobs on the cluster can run code there. Required;
    `same-user`, on a cluster of your own, starts it as the broker's."""

    @field_validator("connect")
    @classmethod
    def _are_names(cls, connect: list[str]) -> list[str]:
        check_names(connect)
        return connect

    @field_validator("hosts")
    @classmethod
    def _ordered(cls, hosts: tuple[int, int]) -> tuple[int, int]:
        if hosts[0] > hosts[1]:
            raise ValueError(f"min {hosts[0]} is over max {hosts[1]}")
        return hosts

    @field_validator("options")
    @classmethod
    def _with_resources(cls, options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        resources = options.get("resources", {"CPU": 2.0})
        for name, amount in resources.items():
            if not isinstance(amount, int | float) or amount <= 0:
                raise ValueError(f"resources: {name} is no number over 0")
        # Brokers that say 2 and 2.0 share their hosts.
        return options | {"resources": {name: float(amount) for name, amount in resources.items()}}


class HostSettings(Section):
    """Sets where scripts run: in a worker host on this machine, in hosts on other machines that connect by TCP, or in
    both."""

    local: bool = True
    """Says whether a worker host is started on this machine."""

    listen: str | None = None
    """Names the address that hosts on other machines connect to, `tcp://ADDRESS:PORT`. Absent: nothing listens."""

    key: Path | None = None
    """Names the file of the broker's key pair, which `cellblock keygen` makes. `listen` requires it."""

    allowed_keys: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(
        default_factory=dict[str, str]
    )
    """Lists the public keys of the hosts that may connect, each under a name of your choice. `listen` requires it."""

    ray: RaySettings | None = None
    """Starts hosts on a Ray cluster (docs/howto-ray.md); none when absent."""

    @model_validator(mode="after")
    def _only_with_keys(self) -> HostSettings:
        if self.listen is None:
            if self.key is not None or self.allowed_keys or self.ray is not None:
                raise ValueError("`key`, `allowed_keys` and `ray` are of use only with `listen`")
            if not self.local:
                raise ValueError("`local` is false and there is no `listen`: no script could run")
            return self
        try:
            check_tcp(self.listen)
        except EndpointError as error:
            raise ValueError(f"`listen`: {error}") from None
        if self.ray is not None:
            return self
        if self.key is None:
            raise ValueError("`listen` needs `key`: make one with `cellblock keygen FILE`")
        if not self.allowed_keys:
            raise ValueError("`listen` needs `allowed_keys`: the public key of each host, by a name")
        return self
