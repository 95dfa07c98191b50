"""What names of brokers stand for, and what stays when nobody can say."""

from __future__ import annotations

import socket

import pytest

from cellblock_worker.host.names import Names, addresses_of
from cellblock_worker.wire.endpoints import EndpointError


async def test_an_address_is_itself_and_a_name_is_each_of_its_addresses() -> None:
    known: dict[str, list[str] | None] = {"brokers.example": ["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"]}

    async def resolve(host: str) -> list[str]:
        found = known[host]
        if found is None:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return found

    names = Names(["tcp://one.example:7070", "dns://brokers.example:7071", "tcp://one.example:7070"], resolve)
    assert names.endpoints == ["tcp://one.example:7070"]
    await names.look_up()
    assert names.endpoints == [
        "tcp://one.example:7070", "tcp://10.0.0.1:7071", "tcp://10.0.0.2:7071", "tcp://[fd00::1]:7071",
    ]  # fmt: skip
    known["brokers.example"] = None
    await names.look_up()
    assert len(names.endpoints) == 4, "nobody could say"
    known["brokers.example"] = ["10.0.0.2"]
    await names.look_up()
    assert names.endpoints == ["tcp://one.example:7070", "tcp://10.0.0.2:7071"]


async def test_the_machine_s_own_name_has_addresses_of_one_family() -> None:
    found = await addresses_of("localhost")
    assert found and len({":" in address for address in found}) == 1


@pytest.mark.parametrize(
    "name", ["dns://brokers", "dns://brokers:99999", "http://brokers:1", "dns://tcp://a:1"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(EndpointError, match="tcp://HOST:PORT"):
        Names([name])
