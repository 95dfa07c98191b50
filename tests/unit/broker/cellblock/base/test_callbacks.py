"""What a callback raises stays with it: logged, and nothing else."""

import logging
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.callbacks import Listeners, tell
from cellblock.base.settings.settings import UpstreamSettings
from cellblock.run.run import Run
from cellblock.tools.upstream.session import UpstreamSession
from support.memory_host import BOUND, World, codes, hold
from support.waits import until, within


def broken(*_: Any) -> None:
    raise RuntimeError("an observer's own fault")


def test_tell(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    tell(None, 1)
    tell(seen.append, 1)
    assert seen == [1] and not caplog.records
    with caplog.at_level(logging.ERROR):
        tell(broken, 1)
    assert "an observer's own fault" in caplog.text


async def test_every_run_of_a_lost_host_is_told_though_one_raises(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Run] = []
    lost = Run.host_lost

    def first_raises(self: Run, why: str) -> None:
        told.append(self)
        lost(self, why)
        if len(told) == 1:
            raise RuntimeError("a run's own fault")

    host = await world.host(hold)
    runs = [world.begin(), world.begin()]
    await host.until_runs(2)
    monkeypatch.setattr(Run, "host_lost", first_raises)
    world.lose(host)
    assert [codes(await within(run, BOUND)) for run in runs] == [["HOST_LOST"]] * 2
    assert len(told) == 2


async def test_a_failed_hosts_runs_end_though_nobody_can_replace_it(world: World) -> None:
    host = await world.host(hold)
    run = world.begin()
    await host.until_runs(1)
    world.pool._on_host_failed = broken  # pyright: ignore[reportPrivateUsage]
    world.pool.host_failed(host.identity, "a lie")
    assert codes(await within(run, BOUND)) == ["HOST_LOST"]


async def test_a_session_goes_on_though_its_listener_raises(tmp_path: Path) -> None:
    session = UpstreamSession(
        "none",
        parse_settings({"mcpServers": {"none": {"command": "/no/such/command"}}}).servers["none"],
        UpstreamSettings().for_server("none"),
        max_message_bytes=1 << 20,
        log_dir=tmp_path,
        on_change=broken,
    )
    session.start()
    await until(lambda: session.life.reason, "a reason")
    await within(session.close())


def test_listeners(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    listeners = Listeners()
    listeners.add(broken)
    remove = listeners.add(lambda: seen.append(1))
    listeners.add(lambda: (seen.append(2), remove()))
    listeners.tell()
    listeners.tell()
    remove()
    assert seen == [1, 2, 2]
    assert "an observer's own fault" in caplog.text
