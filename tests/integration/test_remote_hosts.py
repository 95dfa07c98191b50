"""Worker hosts that dial in over TCP: real processes, real keys, and what becomes of runs when one goes.

The commands of the systemd template are run as systemd would run them, against a real broker.
"""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker, ConfigError
from cellblock_worker.wire import protocol
from cellblock_worker.wire.keys import KeyPair, line_of, make_key_file
from integration.holding import Holding
from support.cellblock_zygote import forked_python
from support.commands import piped
from support.documents import ROOT
from support.entries import settings
from support.processes import gone, workers_of
from support.responses import error_of, succeeded
from support.waits import until, within

ANSWER = "globalThis.__codemode_result__ = 6 * 7;"
PYTHON = Path(sys.executable)
START_BOUND = 60.0
"""A host tests its isolation before it dials; on a busy machine that takes seconds."""

StartHost = Callable[..., Awaitable[Process]]


class Keys:
    """The files of a broker and of two hosts; the broker allows the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = make_key_file(folder / "broker.key")
        self.host = make_key_file(folder / "host.key")
        self.stranger = make_key_file(folder / "stranger.key")

    def section(self, listen: str = "tcp://127.0.0.1:*", **more: Any) -> dict[str, Any]:
        """The `hosts` section of the broker."""
        file = str(self.folder / "broker.key")
        return {"listen": listen, "key": file, "allowed_keys": {"box": self.host.public}, **more}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def holding() -> Holding:
    return Holding()


@pytest.fixture
async def broker(tmp_path: Path, keys: Keys, holding: Holding) -> AsyncIterator[Broker]:
    """A broker without a local host."""
    made = settings(tmp_path / "state", hosts=keys.section(local=False))
    async with Broker(made, tools=[holding.tool]) as started:
        yield started


@pytest.fixture
async def start_host(keys: Keys) -> AsyncIterator[StartHost]:
    """Starts a host process against an endpoint; kills what is left at the end."""
    async with AsyncExitStack() as stack:

        async def start(
            endpoint: str,
            *more: str,
            key: str = "host.key",
            server: KeyPair | None = None,
            program: Sequence[str] = ("-m", "cellblock_worker"),
        ) -> Process:
            words = (*program, "--connect", *endpoint.split(), "--key", keys.folder / key, "--warm", "1")
            server_key = ("--server-key", (server or keys.broker).public)
            running = piped(*words, *server_key, *more, program=PYTHON, stdin=DEVNULL, stdout=DEVNULL)
            return (await stack.enter_async_context(running)).process

        yield start


async def until_said(process: Process, words: bytes) -> None:
    """Reads what a host says on stderr, up to a line with these words."""
    while words not in (line := await within(process.stderr.readline())):
        assert line, "the host has ended"


async def hosts(broker: Broker, pids: set[int]) -> None:
    """Waits until just these hosts are connected."""
    await until(lambda: {hello.pid for hello in broker.hosts} == pids, f"hosts {pids}", START_BOUND)


async def test_a_remote_host_runs_a_real_script_and_its_death_is_told_and_mended(
    broker: Broker, holding: Holding, keys: Keys, start_host: StartHost
) -> None:
    assert broker.host_pid is None
    first = await start_host(broker.hosts_endpoint)
    await hosts(broker, {first.pid})
    holding.go_on.set()
    assert succeeded(await within(broker.run(Holding.RUN))) == {"result": "held"}
    argv = psutil.Process(first.pid).cmdline()
    assert not [word for word in argv if keys.host.secret.hex() in word]

    holding.go_on.clear()
    held = asyncio.create_task(broker.run(Holding.RUN))
    await until(lambda: holding.inside == 1, "it runs", START_BOUND)
    workers = workers_of(first.pid)
    assert workers
    first.kill()
    found = error_of(await within(held), "HOST_LOST")
    assert "connection has ended" in found.message and "1 in flight" in found.message
    await gone(workers)
    await hosts(broker, set())

    waiting = asyncio.create_task(broker.run(ANSWER))
    second = await start_host(broker.hosts_endpoint)
    assert succeeded(await within(waiting, START_BOUND)) == 42
    await hosts(broker, {second.pid})
    second.terminate()
    assert await within(second.wait()) == 0
    await hosts(broker, set())


async def test_a_host_comes_back_to_a_broker_that_was_started_again(
    tmp_path: Path, keys: Keys, start_host: StartHost
) -> None:
    async with Broker(settings(tmp_path / "one", hosts=keys.section(local=False))) as broker:
        endpoint = broker.hosts_endpoint
        process = await start_host(endpoint)
        await hosts(broker, {process.pid})
    async with Broker(settings(tmp_path / "two", hosts=keys.section(endpoint, local=False))) as broker:
        await hosts(broker, {process.pid})
        assert succeeded(await within(broker.run(ANSWER))) == 42


async def test_local_and_remote_hosts_serve_side_by_side_and_strangers_change_nothing(
    tmp_path: Path, keys: Keys, start_host: StartHost, holding: Holding, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path / "state", hosts=keys.section(), pool={"capacity": 1, "warm": 1})
    async with Broker(config, tools=[holding.tool]) as broker:
        stranger = await start_host(broker.hosts_endpoint, key="stranger.key")
        misled = await start_host(broker.hosts_endpoint, server=keys.stranger)
        remote = await start_host(broker.hosts_endpoint, "--capacity", "1")
        await hosts(broker, {broker.host_pid, remote.pid})
        both = asyncio.gather(broker.run(Holding.RUN), broker.run(Holding.RUN))
        await until(lambda: holding.inside == 2, "with one place on each host, both serve", START_BOUND)
        holding.go_on.set()
        assert [succeeded(response) for response in await within(both)] == [{"result": "held"}] * 2

        for said in (keys.stranger.public, "another server key"):
            await until(lambda said=said: said in caplog.text, f"{said} is in the log", START_BOUND)
        assert {hello.pid for hello in broker.hosts} == {broker.host_pid, remote.pid}
        for process, said in ((stranger, b"not allowed"), (misled, b"check --server-key")):
            assert process.returncode is None and said in await within(process.stderr.readline())


async def test_a_host_on_other_terms_is_refused_and_ends_with_the_reason(
    broker: Broker, start_host: StartHost
) -> None:
    process = await start_host(broker.hosts_endpoint, "--max-message-bytes", "4096")
    _, stderr = await within(process.communicate(), START_BOUND)
    assert process.returncode == 3
    assert b"refuses to serve" in stderr and b"--max-message-bytes 16777216" in stderr
    assert broker.hosts == []


async def test_what_cannot_be_listened_with_is_a_configuration_error(tmp_path: Path, keys: Keys) -> None:
    for mode, listen, said in (
        (0o640, "tcp://127.0.0.1:*", r"cellblock\.hosts\.key: .*chmod 600"),
        (0o600, "tcp://192.0.2.1:7070", r"cellblock\.hosts\.listen: tcp://192\.0\.2\.1:7070 cannot"),
    ):
        (keys.folder / "broker.key").chmod(mode)
        with pytest.raises(ConfigError, match=said):
            await Broker(settings(tmp_path / "state", hosts=keys.section(listen, local=False))).__aenter__()


async def test_a_host_lends_the_places_of_an_idle_broker_to_a_loaded_one_and_takes_them_back(
    tmp_path: Path, keys: Keys, start_host: StartHost
) -> None:
    one, other = Holding(), Holding()
    async with (
        Broker(settings(tmp_path / "one", hosts=keys.section(local=False)), tools=[one.tool]) as loaded,
        Broker(settings(tmp_path / "other", hosts=keys.section(local=False)), tools=[other.tool]) as idle,
    ):
        process = await start_host(f"{loaded.hosts_endpoint} {idle.hosts_endpoint}", "--capacity", "4")
        await hosts(loaded, {process.pid})
        await hosts(idle, {process.pid})
        held = [asyncio.create_task(loaded.run(Holding.RUN)) for _ in range(6)]
        await until(lambda: one.inside == 4, "all four places are lent", START_BOUND)
        waiting = asyncio.create_task(idle.run(Holding.RUN))
        one.go_on.set()
        await until(lambda: other.inside == 1, "the other broker has work now, too", START_BOUND)
        other.go_on.set()
        responses = await within(asyncio.gather(*held, waiting), START_BOUND)
        assert [succeeded(response) for response in responses] == [{"result": "held"}] * 7
        assert one.most == 4 and len(workers_of(process.pid)) <= 4
        process.terminate()
        assert await within(process.wait()) == 0


LOADED_BROKER = """
import asyncio, sys
from pathlib import Path
from cellblock import Broker, tool
from cellblock.app.config.load import parse_settings

@tool()
async def hold() -> str:
    "Holds."
    print("inside", flush=True)
    await asyncio.sleep(600)
    return ""

async def main() -> None:
    async with Broker(parse_settings(__import__("json").loads(sys.argv[1])), tools=[hold]) as broker:
        print(broker.hosts_endpoint, flush=True)
        await asyncio.gather(*(broker.run(sys.argv[2]) for _ in range(4)))

asyncio.run(main())
"""


@pytest.mark.thorough
async def test_the_places_of_a_broker_that_is_killed_go_to_the_other_one(
    tmp_path: Path, keys: Keys, start_host: StartHost
) -> None:
    section = {"hosts": keys.section(local=False), "state_dir": str(tmp_path / "killed")}
    words = ("-c", LOADED_BROKER, json.dumps({"cellblock": section}), Holding.RUN)
    async with piped(*words, program=forked_python()) as running:
        killed = running.process
        endpoint = (await within(killed.stdout.readline(), START_BOUND)).decode().strip()
        async with Broker(settings(tmp_path / "other", hosts=keys.section(local=False))) as broker:
            process = await start_host(endpoint, "--capacity", "2")
            assert [await within(killed.stdout.readline(), START_BOUND) for _ in range(2)] == [
                b"inside\n"
            ] * 2
            process.terminate()
            await within(process.wait())
            both = await start_host(f"{endpoint} {broker.hosts_endpoint}", "--capacity", "2")
            await hosts(broker, {both.pid})
            assert [await within(killed.stdout.readline(), START_BOUND) for _ in range(2)] == [
                b"inside\n"
            ] * 2
            assert workers_of(both.pid), "the places are taken"
            waiting = asyncio.create_task(broker.run(ANSWER))
            killed.kill()
            assert succeeded(await within(waiting, START_BOUND)) == 42


async def test_a_host_that_is_to_stop_lets_its_runs_end_and_takes_no_more(
    broker: Broker, holding: Holding, start_host: StartHost
) -> None:
    process = await start_host(broker.hosts_endpoint, "--drain", "60")
    held = asyncio.create_task(broker.run(Holding.RUN))
    await until(lambda: holding.inside == 1, "it runs", START_BOUND)
    process.terminate()
    await until_said(process, b"takes no more runs")
    holding.go_on.set()
    assert succeeded(await within(held)) == {"result": "held"}
    assert await within(process.wait()) == 0


async def test_a_host_that_got_its_key_by_a_pipe_ends_with_it(
    broker: Broker, holding: Holding, keys: Keys
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cellblock_worker", "--connect", broker.hosts_endpoint, "--key", "-",
        "--server-key", keys.broker.public, "--warm", "1", "--drain", "600", stdin=PIPE, stdout=DEVNULL,
    )  # fmt: skip
    process.stdin.write(line_of(keys.host))
    await hosts(broker, {process.pid})
    held = asyncio.create_task(broker.run(Holding.RUN))
    await until(lambda: holding.inside == 1, "it runs", START_BOUND)
    process.stdin.close()
    assert await within(process.wait(), START_BOUND) == 0
    error_of(await within(held), "HOST_LOST")


@pytest.mark.thorough
async def test_a_host_that_knows_two_keys_finds_the_one_that_the_broker_has(
    broker: Broker, keys: Keys, start_host: StartHost
) -> None:
    process = await start_host(broker.hosts_endpoint, keys.broker.public, server=keys.stranger)
    await hosts(broker, {process.pid})


IMPATIENT = """
import sys
from cellblock_worker.host import remote
remote.REFUSED_SECONDS = 0.5
sys.exit(remote.main(sys.argv[1:]))
"""


@pytest.mark.thorough
async def test_a_broker_that_has_refused_a_host_is_dialled_again(
    broker: Broker, tmp_path: Path, keys: Keys, start_host: StartHost
) -> None:
    """It was started with larger messages than the host takes, and then anew without; another one had it meanwhile."""
    large = settings(tmp_path / "two", hosts=keys.section(local=False), max_message_bytes=32 * 1024 * 1024)
    async with Broker(large) as other:
        endpoint = other.hosts_endpoint
        process = await start_host(f"{broker.hosts_endpoint} {endpoint}", program=("-c", IMPATIENT))
        await hosts(broker, {process.pid})
        await until_said(process, b"--max-message-bytes 33554432")
        assert other.hosts == [] and process.returncode is None
    async with Broker(settings(tmp_path / "two", hosts=keys.section(endpoint, local=False))) as other:
        await hosts(other, {process.pid})
        assert succeeded(await within(other.run(ANSWER), START_BOUND)) == 42


@pytest.mark.thorough
async def test_a_host_of_another_version_waits_for_a_broker_of_its_own(
    tmp_path: Path, keys: Keys, start_host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So in an upgrade hosts of the new version may be there before its first broker is."""
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "PROTOCOL_VERSION", protocol.PROTOCOL_VERSION - 1)
        async with Broker(settings(tmp_path / "state", hosts=keys.section(local=False))) as broker:
            endpoint = broker.hosts_endpoint
            process = await start_host(endpoint)
            await until_said(process, b"install the same Cellblock")
            # It is the only broker, and yet the host does not end.
            await until_said(process, b"install the same Cellblock")
            assert broker.hosts == [] and process.returncode is None
    async with Broker(settings(tmp_path / "state", hosts=keys.section(endpoint, local=False))) as broker:
        await hosts(broker, {process.pid})
        assert succeeded(await within(broker.run(ANSWER), START_BOUND)) == 42


NAMED = """
import sys
from pathlib import Path
from cellblock_worker.host import remote

file = Path(sys.argv.pop(1))

async def addresses_of(host):
    return file.read_text().split()

remote.addresses_of = addresses_of
remote.LOOK_UP_SECONDS = 0.2
sys.exit(remote.main(sys.argv[1:]))
"""


@pytest.mark.thorough
async def test_a_host_follows_the_addresses_of_a_name(
    broker: Broker, tmp_path: Path, keys: Keys, start_host: StartHost
) -> None:
    port = broker.hosts_endpoint.rpartition(":")[2]
    asked = await start_host(f"dns://localhost:{port}")
    await hosts(broker, {asked.pid})
    there = keys.section(f"tcp://127.0.0.2:{port}", local=False)
    async with Broker(settings(tmp_path / "two", hosts=there)) as other:
        found = tmp_path / "addresses"
        found.write_text("127.0.0.1")
        process = await start_host(f"dns://brokers:{port}", program=("-c", NAMED, str(found)))
        await hosts(broker, {asked.pid, process.pid})
        found.write_text("127.0.0.1 127.0.0.2")
        await hosts(other, {process.pid})
        found.write_text("127.0.0.2")
        await hosts(broker, {asked.pid})
        assert succeeded(await within(other.run(ANSWER), START_BOUND)) == 42


UNIT = ROOT / "deploy" / "systemd" / "cellblock-host@.service"


def command(name: str, variables: dict[str, str]) -> list[str]:
    """A command line of the unit: `${NAME}` is one word, `$NAME` as many as it has (systemd.service(5))."""
    text = UNIT.read_text("utf-8").replace("\\\n", " ")
    (line,) = re.findall(rf"^{name}=(.+)$", text, re.MULTILINE)
    words: list[str] = []
    for word in shlex.split(line):
        if whole := re.fullmatch(r"\$(\w+)", word):
            words += variables[whole[1]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word))
    return words


async def test_the_units_commands_start_a_host_that_drains(
    broker: Broker, tmp_path: Path, keys: Keys
) -> None:
    (tmp_path / "host.key").chmod(0o440)
    (tmp_path / "runtime").mkdir()
    variables = {
        "CREDENTIALS_DIRECTORY": str(tmp_path),
        "RUNTIME_DIRECTORY": str(tmp_path / "runtime"),
        "BROKERS": broker.hosts_endpoint,
        "SERVER_KEYS": f"{keys.broker.public} {keys.host.public}",
        "MORE": "--capacity 2 --warm 1 --isolation auto",
    }
    copy = await asyncio.create_subprocess_exec(*command("ExecStartPre", variables))
    assert await within(copy.wait()) == 0
    python, *words = command("ExecStart", variables)
    assert python == "/opt/cellblock/bin/python"
    async with piped(*words, program=PYTHON, stdin=DEVNULL, stdout=DEVNULL) as running:
        await hosts(broker, {running.process.pid})
        assert succeeded(await within(broker.run(ANSWER), START_BOUND)) == 42
        running.process.terminate()
        assert await within(running.process.wait()) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "cellblock-host@one.service"
    # It looks for the program.
    text = UNIT.read_text("utf-8").replace("/opt/cellblock/bin/python", sys.executable)

    def verified(text: str) -> str:
        unit.write_text(text)
        verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
        return subprocess.run(verify, capture_output=True, text=True, timeout=START_BOUND, check=False).stderr

    assert verified(text) == ""
    assert "kill mode" in verified(text.replace("KillMode=mixed", "KillMode=gently"))
