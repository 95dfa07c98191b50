"""The embedding API at its edges: entered twice, used from another event loop, asked after its end. A broker in
somebody's program keeps to itself, unless the program or the configuration says otherwise."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker, ConfigError, Settings
from cellblock.app.config.load import parse_settings
from cellblock.base.errors import CellblockError, HostUnavailable
from support.entries import settings, write_config
from support.processes import command_line, gone
from support.responses import succeeded
from support.waits import within

ONE = "globalThis.__codemode_result__ = 1;"
POOL = {"warm": 1, "capacity": 2}


def worker_hosts() -> list[psutil.Process]:
    """Those of this process."""
    children = psutil.Process().children()
    return [child for child in children if any("cellblock_worker" in word for word in command_line(child))]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(settings(tmp_path, pool=POOL))


def test_another_kind_of_event_loop_is_refused(tmp_path: Path) -> None:
    """As trio drives it, which is no asyncio."""
    with pytest.raises(CellblockError, match="loop of asyncio, and trio's is none"):
        Broker(settings(tmp_path)).__aenter__().send(None)


@pytest.mark.real_host
async def test_entering_twice_is_refused_and_the_first_goes_on(broker: Broker) -> None:
    async with broker:
        host, hosts = broker.host_pid, worker_hosts()
        with pytest.raises(CellblockError, match="running already"):
            await broker.__aenter__()
        assert succeeded(await within(broker.run(ONE))) == 1
        assert [broker.host_pid] == [host] == [one.pid for one in hosts]
        assert worker_hosts() == hosts
    await gone(hosts)


async def test_entering_while_it_starts_is_refused(broker: Broker) -> None:
    began = await asyncio.gather(broker.__aenter__(), broker.__aenter__(), return_exceptions=True)
    try:
        assert began[0] is broker
        assert isinstance(began[1], CellblockError) and "Make a second Broker" in began[1].hint
        assert succeeded(await within(broker.run(ONE))) == 1
    finally:
        await broker.__aexit__(None, None, None)


async def test_it_can_be_entered_again_after_its_end_and_after_a_failed_start(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    broker = Broker(settings(tmp_path / "state", pool=POOL))
    with pytest.raises(CellblockError, match="state"):
        await broker.__aenter__()
    (tmp_path / "state").unlink()
    for _ in range(2):
        async with broker:
            assert succeeded(await within(broker.run(ONE))) == 1


async def test_a_broker_that_has_ended_has_nothing_to_show(broker: Broker) -> None:
    async with broker:
        assert succeeded(await within(broker.run(ONE))) == 1
        assert broker.hosts and broker.facts()
    assert (broker.hosts, broker.warm_workers, broker.host_pid) == ([], 0, None)
    assert not broker.catalog.servers
    for ask in (broker.facts, lambda: broker.reconfigure(broker.settings)):
        with pytest.raises(HostUnavailable):
            ask()
    with pytest.raises(HostUnavailable):
        await broker.run(ONE)
    await broker.settled()
    await broker.learnt()


async def test_another_event_loop_is_refused_at_once_and_so_is_a_thread_without_one(broker: Broker) -> None:
    async def reconfigure() -> None:
        broker.reconfigure(broker.settings)

    async with broker:
        for ask in (
            lambda: broker.run(ONE),
            broker.settled,
            broker.learnt,
            broker.wait_until_learnt,
            reconfigure,
            lambda: broker.__aexit__(None, None, None),
        ):
            with pytest.raises(CellblockError, match=r"another event loop.*run_coroutine_threadsafe"):
                await within(asyncio.to_thread(lambda ask=ask: asyncio.run(ask())))
            assert succeeded(await within(broker.run(ONE))) == 1
        # A thread without a loop is refused, too, and can use the right one.
        with pytest.raises(CellblockError, match="another event loop"):
            await asyncio.to_thread(broker.reconfigure, broker.settings)
        loop = asyncio.get_running_loop()
        in_its_loop = await asyncio.to_thread(
            lambda: asyncio.run_coroutine_threadsafe(broker.run(ONE), loop).result(20)
        )
        assert succeeded(in_its_loop) == 1


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path: the sockets of these brokers are in it."""
    return tmp_path_factory.mktemp("p")


@pytest.fixture(autouse=True)
def users(tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of the user; the temporary directory is another."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "users"))
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    return Settings().state_dir


def parsed(**cellblock: Any) -> Settings:
    return parse_settings({"cellblock": {"pool": {"warm": 1, "capacity": 1}, **cellblock}})


async def test_by_default_it_is_a_folder_of_its_own_that_ends_with_it(users: Path, short_path: Path) -> None:
    broker = Broker(parsed())
    folder = broker.settings.state_dir
    assert folder.parent == short_path
    assert not folder.exists(), "nothing is made before it begins"
    for _ in range(2):
        async with broker:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / "logs").is_dir()
            assert succeeded(await within(broker.run(ONE))) == 1
            assert broker.reconfigure(parsed()) == [], "it stays the same folder"
        assert not folder.exists()
    assert not list(users.parent.glob("*"))
    assert Broker(parsed()).settings.state_dir != Broker(parsed()).settings.state_dir


async def test_it_is_what_the_configuration_or_the_program_names(users: Path, tmp_path: Path) -> None:
    own, configured = tmp_path / "own", tmp_path / "configured"
    file = write_config(tmp_path, {}, state_dir=str(configured))
    assert Broker.from_config(file).settings.state_dir == configured
    assert Broker.from_config(file, state_dir=own).settings.state_dir == own
    for given, expected in ((own, own), (str(own), own), ("user", users)):
        assert Broker.from_config(None, state_dir=given).settings.state_dir == expected
    async with Broker(parsed(), state_dir=own) as broker:
        assert broker.reconfigure(parsed()) == [], "it stays the same folder"
    assert (own / "logs").is_dir(), "what a program names stays"


@pytest.mark.parametrize("section", [{"audit": ["calls"]}, {"pins": {"reaction": "quarantine"}}])
def test_what_must_outlive_it_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="state_dir"):
        Broker(parsed(**section))
    assert Broker(parsed(**section), state_dir="user")


async def test_what_must_outlive_it_is_refused_later_too() -> None:
    async with Broker(parsed()) as broker:
        with pytest.raises(ConfigError, match="state_dir"):
            broker.reconfigure(parsed(pins={"reaction": "quarantine"}))


def test_the_users_word_on_tools_holds_for_it_all_the_same(users: Path, tmp_path: Path) -> None:
    assert Broker(parsed()).settings.overlay_dir == users / "overlays"
    own = parsed(schemas={"overlays": str(tmp_path / "words")})
    assert Broker(own).settings.overlay_dir == tmp_path / "words"
