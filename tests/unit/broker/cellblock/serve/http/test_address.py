"""Where the front-end may listen, and under which names."""

from __future__ import annotations

import socket

import pytest

from cellblock.base.errors import ConfigError
from cellblock.serve.http.address import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("localhost:0", "127.0.0.1", 0),
        ("[::1]:7433", "[::1]", 7433),
        ("0.0.0.0:1", "0.0.0.0", 1),
    ],
)
def test_an_address_is_an_ip_and_a_port(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:80", "name.example:80", "127.0.0.1:65536"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1"])
def test_the_loopback_needs_no_protection(text: str) -> None:
    Address.parse(text).check_safe(authenticated=False, encrypted=False, named=False)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "192.0.2.1:1", "[::]:1"])
@pytest.mark.parametrize(("authenticated", "encrypted"), [(False, True), (True, False), (False, False)])
def test_other_addresses_need_a_token_and_tls(text: str, authenticated: bool, encrypted: bool) -> None:
    with pytest.raises(ConfigError, match="open to other machines"):
        Address.parse(text).check_safe(authenticated=authenticated, encrypted=encrypted, named=True)


def test_every_address_needs_names() -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        Address.parse("0.0.0.0:1").check_safe(authenticated=True, encrypted=True, named=False)
    Address.parse("0.0.0.0:1").check_safe(authenticated=True, encrypted=True, named=True)
    Address.parse("192.0.2.1:1").check_safe(authenticated=True, encrypted=True, named=False)


def test_host_headers_are_of_the_loopback_only_for_the_loopback() -> None:
    assert set(Address.parse("127.0.0.1:0").hosts(99)) == {"127.0.0.1:99", "localhost:99", "[::1]:99"}
    assert Address.parse("192.0.2.1:0").hosts(99) == ["192.0.2.1:99"]
    assert "localhost" in Address.parse("127.0.0.1:0").hosts(80)


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            Address.parse(f"127.0.0.1:{port}").bind()
