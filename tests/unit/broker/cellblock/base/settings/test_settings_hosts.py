"""The `hosts` section: a network endpoint only with keys, and somewhere for scripts to run."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import HostSettings

KEYS: dict[str, Any] = {"key": "broker.key", "allowed_keys": {"box": "ab" * 32}}


def parsed(**hosts: Any) -> HostSettings:
    return parse_settings({"cellblock": {"hosts": hosts}}, source="my.json").cellblock.hosts


def test_by_default_scripts_run_here_and_nothing_listens() -> None:
    assert (HostSettings().local, HostSettings().listen) == (True, None)


@pytest.mark.parametrize(
    "listen", ["tcp://0.0.0.0:7070", "tcp://*:7070", "tcp://127.0.0.1:*", "tcp://[::]:7070"]
)
@pytest.mark.parametrize("local", [True, False])
def test_an_endpoint_with_keys_may_be_any_tcp_address(listen: str, local: bool) -> None:
    assert parsed(listen=listen, local=local, **KEYS).listen == listen


def test_hosts_on_ray_need_no_key_of_yours() -> None:
    ray = parsed(listen="tcp://0.0.0.0:7070", local=False, ray={"connect": ["dns://brokers:7070"]}).ray
    assert ray is not None and (ray.min, ray.max, ray.resources) == (1, 8, {"CPU": 2})
    assert parsed(listen="tcp://0.0.0.0:7070", ray={}, **KEYS).ray is not None


@pytest.mark.parametrize(
    ("hosts", "place", "said"),
    [
        ({"listen": "tcp://0.0.0.0:7070"}, "cellblock.hosts", "`listen` needs `key`"),
        ({"listen": "tcp://127.0.0.1:7070"}, "cellblock.hosts", "cellblock keygen"),
        ({"listen": "tcp://h:1", "key": "k"}, "cellblock.hosts", "`listen` needs `allowed_keys`"),
        ({"listen": "tcp://h:1", "key": "k", "allowed_keys": {}}, "cellblock.hosts", "`allowed_keys`"),
        ({"listen": "ipc:///tmp/x", **KEYS}, "cellblock.hosts", "tcp://HOST:PORT"),
        ({"listen": "tcp://h:99999", **KEYS}, "cellblock.hosts", "tcp://HOST:PORT"),
        (
            {"listen": "tcp://h:1", "key": "k", "allowed_keys": {"a": "xyz"}},
            "cellblock.hosts.allowed_keys.a",
            "",
        ),
        ({"key": "k"}, "cellblock.hosts", "only with `listen`"),
        ({"local": False}, "cellblock.hosts", "no script could run"),
        ({"ray": {}}, "cellblock.hosts", "only with `listen`"),
        ({"listen": "tcp://h:1", "ray": {"min": 3, "max": 2}}, "cellblock.hosts.ray", "min 3 is over max 2"),
        (
            {"listen": "tcp://h:1", "ray": {"connect": ["h:1"]}},
            "cellblock.hosts.ray.connect",
            "tcp://HOST:PORT",
        ),
        ({"listen": "tcp://h:1", "ray": {"resources": {"CPU": 0}}}, "cellblock.hosts.ray.resources.CPU", ""),
        ({"lisen": "tcp://h:1"}, "cellblock.hosts.lisen", ""),
    ],
)
def test_what_is_wrong_is_named(hosts: dict[str, Any], place: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(**hosts)
    assert caught.value.message.startswith(f"my.json: {place}: ") and said in caught.value.message
