"""What `replicas` takes: a PostgreSQL beside it, and a URL of one broker."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cellblock.base.errors import ConfigError
from cellblock.config.settings import CellblockSettings, parse_settings

STATE = {"url": "postgresql://me@db/cellblock", "key": base64.b64encode(bytes(32)).decode()}


def read(**section: Any) -> CellblockSettings:
    return parse_settings({"cellblock": section}).cellblock


def test_a_broker_is_alone_unless_it_is_said() -> None:
    assert read().replicas is None
    made = read(state=STATE, replicas={"url": "https://10.0.0.5:7433"}).replicas
    assert made is not None and made.url == "https://10.0.0.5:7433"
    assert read(state=STATE, replicas={}).replicas is not None


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"replicas": {}}, "state.url"),
        ({"replicas": {}, "state": STATE, "journal": "off"}, "journal"),
        ({"replicas": {"url": "10.0.0.5:7433"}, "state": STATE}, "replicas.url"),
        ({"replicas": {"url": "https://10.0.0.5:7433/mcp"}, "state": STATE}, "replicas.url"),
        ({"replicas": {"url": "https://fd00::5:7433"}, "state": STATE}, "in brackets"),
        ({"replicas": {"url": "https://10.0.0.5:x"}, "state": STATE}, "its port"),
        ({"replicas": {"url": "https://?x"}, "state": STATE}, "replicas.url"),
        ({"replicas": {"url": "http://10.0.0.5:7433"}, "state": STATE}, "in the clear"),
        ({"replicas": {"url": "http://broker-1"}, "state": STATE}, "in the clear"),
        ({"replicas": {"url": "https://me@10.0.0.5:7433"}, "state": STATE}, "replicas.url"),
    ],
)
def test_what_cannot_be_used(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as said:
        read(**section)
    assert says in f"{said.value} {said.value.hint}"


def test_a_server_exists_once_among_brokers_that_can_reach_each_other() -> None:
    server = {"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}
    upstream = {"servers": {"a": {"single": True}, "b": {"single": False}}}

    def singles(**section: Any) -> frozenset[str]:
        return parse_settings({**server, "cellblock": {"upstream": upstream, **section}}).cellblock.singles

    assert singles() == frozenset(), "a broker that is alone has each once"
    assert singles(state=STATE, replicas={}) == {"a"}
    with pytest.raises(ConfigError) as said:
        singles(state=STATE)
    assert "upstream.servers.a.single" in str(said.value) and "give replicas" in str(said.value)
