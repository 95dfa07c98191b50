"""What a host that dials over the network refuses before it dials, and how it is told; and key files: made for their
owner alone, and refused when anybody else could have read or written them."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from cellblock_worker.host import remote
from cellblock_worker.host.host import Host
from cellblock_worker.host.remote import Names, addresses_of
from cellblock_worker.wire.endpoints import EndpointError, check_tcp
from cellblock_worker.wire.keys import (
    DialKeys,
    KeyFileError,
    KeyPair,
    line_of,
    make_key_file,
    make_pair,
    pair_of,
    parse_public_key,
    prepare_dialler,
    prepare_listener,
    read_key_file,
    read_line,
)
from support.scripted_broker import config

SERVER = "ab" * 32


@pytest.fixture
def dealer(zmq_context: Any) -> Any:
    return zmq_context.socket(zmq.DEALER)


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://10.0.0.1:7070", "tcp://[::1]:7070", "tcp://host.example:1", "tcp://*:*", "tcp://0.0.0.0:5"],
)
def test_tcp_endpoints(endpoint: str) -> None:
    check_tcp(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["", "tcp://", "tcp://host", "tcp://host:", "tcp://host:70000", "tcp://a b:1", "udp://host:1", "ipc:///x",
     "tcp://host:1\n", "tcp://host:1;tcp://other:2", "host:1"],
)  # fmt: skip
def test_what_is_no_tcp_endpoint(endpoint: str) -> None:
    with pytest.raises(EndpointError, match="tcp://HOST:PORT"):
        check_tcp(endpoint)


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:1", "tcp://0.0.0.0:1", "ws://x:1", "udp://x:1", "vmci://1:1"]
)
def test_a_network_endpoint_without_keys_is_refused(endpoint: str, dealer: Any) -> None:
    with pytest.raises(EndpointError, match="only with keys"):
        prepare_dialler(dealer, endpoint, None)


def test_keys_are_for_tcp_only(made: KeyPair, dealer: Any) -> None:
    with pytest.raises(EndpointError, match="tcp"):
        prepare_dialler(dealer, "ipc:///tmp/x", DialKeys(made, made.public_bytes))
    with pytest.raises(EndpointError, match="tcp"):
        prepare_listener(dealer, "ipc:///tmp/x", made)


def test_the_bounds_are_set_on_the_socket(made: KeyPair, dealer: Any) -> None:
    prepare_dialler(dealer, "tcp://[::1]:1", DialKeys(made, made.public_bytes))
    assert dealer.getsockopt(zmq.MECHANISM) == zmq.CURVE
    assert dealer.getsockopt(zmq.HANDSHAKE_IVL) == 5000 and dealer.getsockopt(zmq.IPV6) == 1
    assert 0 < dealer.getsockopt(zmq.RECONNECT_IVL) < dealer.getsockopt(zmq.RECONNECT_IVL_MAX) <= 5000


async def test_a_host_does_not_dial_a_bare_tcp_endpoint(zmq_context: Any) -> None:
    with pytest.raises(EndpointError, match="only with keys"):
        Host(config("tcp://127.0.0.1:9"), zmq_context).announce()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--connect", "tcp://h:1"], "only with keys"),
        (["--connect", "tcp://h:1", "--key", "KEY"], "only with keys"),
        (["--connect", "tcp://h:1", "--server-key", SERVER], "only with keys"),
        (["--connect", "ipc:///x", "--key", "KEY", "--server-key", SERVER], "tcp://HOST:PORT"),
        (["--connect", "tcp://h:1", "--key", "none", "--server-key", SERVER], "cannot be read"),
        (["--connect", "dns://h", "--key", "KEY", "--server-key", SERVER], "tcp://HOST:PORT"),
        (["--connect", "tcp://h:1", "--key", "KEY", "--server-key", "zz"], "--server-key: a public key"),
        (
            ["--connect", "tcp://h:1", "--key", "KEY", "--server-key", SERVER, "zz"],
            "--server-key: a public key",
        ),
        (["--connect", "tcp://h:1", "--key", "KEY", "--server-key", SERVER, "--capacity", "0"], "capacity"),
        (["--connect", "tcp://h:1", "--key", "OPEN", "--server-key", SERVER], "chmod 600"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_starts(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_key_file(tmp_path / "KEY")
    make_key_file(tmp_path / "OPEN")
    (tmp_path / "OPEN").chmod(0o644)
    paths = [str(tmp_path / word) if word in ("KEY", "OPEN") else word for word in arguments]
    assert remote.main(paths) == remote.EXIT_USAGE
    assert said in capsys.readouterr().err


def test_names_and_server_keys_may_be_given_apart(tmp_path: Path) -> None:
    own = make_key_file(tmp_path / "KEY")
    other = "cd" * 32
    words = ["--connect", "tcp://a:1", "--connect=tcp://b:2", "--key", str(tmp_path / "KEY")]
    given = remote.read_arguments(
        [*words, f"--server-key={SERVER}", "--server-key", other, "--drain=60", "--realtime"]
    )
    assert given.names.endpoints == ["tcp://a:1", "tcp://b:2"] and given.drain_seconds == 60
    assert given.keys == [DialKeys(own, bytes.fromhex(SERVER)), DialKeys(own, bytes.fromhex(other))]


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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.key"


@pytest.fixture
def made(file: Path) -> KeyPair:
    """The pair in that file."""
    return make_key_file(file)


def test_a_pair_is_the_same_when_it_is_read_again(file: Path, made: KeyPair, tmp_path: Path) -> None:
    assert read_key_file(file) == made
    assert len(made.secret) == len(made.public_bytes) == 32 and made.secret != made.public_bytes
    assert make_key_file(tmp_path / "b.key").public != made.public


def test_a_file_that_exists_is_left_alone(file: Path, made: KeyPair) -> None:
    with pytest.raises(KeyFileError, match="exists"):
        make_key_file(file)
    assert read_key_file(file) == made


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
@pytest.mark.usefixtures("made")
def test_a_file_that_is_open_to_others_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(KeyFileError, match=f"open to others .mode {mode:04o}.: chmod 600"):
        read_key_file(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.usefixtures("made")
def test_root_refuses_a_file_of_another_user(file: Path) -> None:
    os.chown(file, 65534, -1)
    with pytest.raises(KeyFileError, match="another user"):
        read_key_file(file)


def test_what_is_no_key_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read_key_file(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for odd in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(KeyFileError, match="no regular file"):
            read_key_file(odd)
    file = tmp_path / "file"
    file.touch(0o600)
    for text in (b"", b"\xff\xfe", b"curve-secret-key 00\n", b"x" * 10_000):
        file.write_bytes(text)
        with pytest.raises(KeyFileError, match="holds no key pair"):
            read_key_file(file)


def test_a_secret_is_in_no_text(made: KeyPair) -> None:
    assert made.secret.hex() not in repr(made) and str(made.secret) not in repr(made)


def test_a_pair_passes_a_pipe_and_any_32_bytes_are_one() -> None:
    pair = make_pair()
    assert read_line(line_of(pair)) == pair != make_pair() and line_of(pair).endswith(b"\n")
    assert pair_of(b"s" * 32) == pair_of(b"s" * 32) != pair_of(b"t" * 32)
    for line in (b"", b"\n", b"curve-secret-key 00\n"):
        with pytest.raises(KeyFileError, match="stdin"):
            read_line(line)


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, "A" * 64, "0" * 64 + "\n"])
def test_a_public_key_is_64_hexadecimal_digits(text: str) -> None:
    with pytest.raises(KeyFileError, match="64 digits"):
        parse_public_key(text)
    assert parse_public_key("0a" * 32) == b"\x0a" * 32
