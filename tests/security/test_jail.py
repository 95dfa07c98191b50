"""What workers of one host share when they live in one jail, and what none of them can do to another or to the host."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from cellblock import Broker, Observer
from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.launch.launching import Launcher, SpawnRequest, Started
from security.native.harness import Native, attack, let_loose, steps
from support.entries import settings
from support.processes import alive, command_line, launchers_of, workers_of
from support.responses import succeeded
from support.waits import until, warmed, within

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")

OWN = ("pid", "ipc", "uts")
SHARED = ("user", "mnt", "net")
SECRET = 0x5EC12E7
"""Key of a System V object that one worker makes, and another looks for."""


@pytest.fixture
async def attacked(tmp_path: Path, native_hosts: Native) -> AsyncIterator[Broker]:
    pool = {"warm": 2, "capacity": 6}
    async with Broker(settings(tmp_path, isolation="required", pool=pool)) as broker:
        yield broker


def namespaces(pid: int, names: tuple[str, ...]) -> list[str]:
    return [str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in names]


async def two(broker: Broker) -> list[psutil.Process]:
    await warmed(broker)
    found: list[psutil.Process] = []

    def booted() -> bool:
        found[:] = [one for one in workers_of(broker.host_pid or 0) if command_line(one)[:1] == ["/deno"]]
        return len(found) >= 2

    await until(booted, "two workers")
    return found[:2]


async def test_each_worker_has_its_own_pid_ipc_and_uts_namespace_and_no_more(tmp_path: Path) -> None:
    async with Broker(settings(tmp_path, isolation="required", pool={"warm": 2})) as broker:
        first, second = await two(broker)
        host = broker.host_pid
        for name, one, other in zip(
            OWN, namespaces(first.pid, OWN), namespaces(second.pid, OWN), strict=True
        ):
            assert len({one, other, *namespaces(host, (name,))}) == 3, name
        assert namespaces(first.pid, SHARED) == namespaces(second.pid, SHARED)
        for name in ("user", "mnt"):
            assert namespaces(first.pid, (name,)) != namespaces(host, (name,))
        assert first.ppid() == second.ppid() == host
        # No program that is started in the jail can have a capability, whatever its child was before.
        status = Path(f"/proc/{launchers_of(host)[0].pid}/status").read_text()  # noqa: ASYNC240 - the kernel's
        assert "CapBnd:\t0000000000000000" in status
        [hello] = broker.hosts
        assert any("are each worker's own" in layer for layer in hello.layers)


async def test_who_signals_everybody_reaches_nobody(attacked: Broker, native_hosts: Native) -> None:
    """kill(-1, SIGKILL) and every pid by number, beside a run that goes on."""
    native_hosts.takes(100)
    held = asyncio.Event()
    waits = steps("say here", ("sleep", 3_000), ("getpid",))
    beside = asyncio.create_task(attacked.run(waits, observer=Observer(on_log=lambda _: held.set())))
    await within(held.wait())
    launchers = launchers_of(attacked.host_pid)
    shots = [("kill", -1, signal.SIGKILL), *[("kill", pid, 0) for pid in range(2, 40)]]
    shots += [("kill", launcher.pid, signal.SIGKILL) for launcher in launchers]
    shots += [("kill", attacked.host_pid, signal.SIGKILL)]
    fired = succeeded(await within(attacked.run(steps(*shots))))
    assert isinstance(fired, list) and all(said < 0 for said in fired), fired
    assert succeeded(await within(beside))[-1] == 1
    assert all(map(alive, launchers))


@pytest.mark.parametrize("filtered", [True, False], ids=["with the filter", "without it"])
async def test_two_workers_of_a_room_find_nothing_of_each_other(
    filtered: bool, native_workers: Native
) -> None:
    """System V objects, tracing, mounts, the host's name: kept apart by the namespaces alone, too."""
    jail = confinement.jail()
    launcher = Launcher(jail=jail if filtered else jail._replace(filter=b""))
    try:
        maker, made = await let_loose(
            ("shmget", SECRET, 4096, 0o1666),
            ("semget", SECRET, 1, 0o1666),
            "say made",
            ("sleep", 600_000),
            launcher=launcher,
        )
        await within(made.until("says"))
        found = await attack(
            ("shmget", SECRET, 4096, 0o666),
            ("semget", SECRET, 1, 0o666),
            ("ptrace", 16, 2),
            ("mount", b"none\0", b"/\0", b"tmpfs\0", 0, 0),
            ("setns", 0, 0),
            ("chroot", b"/worker\0"),
            ("sethostname", b"x", 1),
            ("mkdir", b"/mine\0", 0o777),
            ("kill", -1, signal.SIGKILL),
            launcher=launcher,
        )
        assert all(value < 0 for value in found), found
        assert launcher.jail is not None and "ended" not in made.events
        maker.kill("cancelled")
        await made.end()
    finally:
        launcher.close()


async def test_an_order_for_a_room_is_refused_where_there_is_none() -> None:
    launcher = Launcher()
    try:
        refused = await ordered(launcher, SpawnRequest(["/bin/true"], {}, in_jail=True))
        assert isinstance(refused, OSError)
    finally:
        launcher.close()


async def test_where_no_room_can_be_made_each_worker_gets_a_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bubblewrap is one that does not hold still, as an older one or another security module may have it."""
    real = bubblewrap.find_binary()
    assert real is not None
    stand_in = tmp_path / "bin" / "bwrap"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\ncase " $* " in *" --block-fd "*) exit 1;; esac\nexec {real} "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}")
    async with Broker(settings(tmp_path, isolation="required", pool={"warm": 1})) as broker:
        assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1"))) == 1
        [hello] = broker.hosts
        assert not any("are each worker's own" in layer for layer in hello.layers)
        assert any(layer.startswith("namespaces: user, pid") for layer in hello.layers)


async def test_the_next_host_leaves_living_workers_of_others_alone(tmp_path: Path) -> None:
    async with Broker(settings(tmp_path, isolation="required", pool={"warm": 2})) as broker:
        workers = await two(broker)
        assert not {worker.pid for worker in workers} & set(bubblewrap.end_orphans())
        assert all(map(alive, workers))


# ---- a launcher of this very process ---------------------------------------------------------------------


async def ordered(launcher: Launcher, order: SpawnRequest) -> Started | OSError:
    answered: asyncio.Future[Started | OSError] = asyncio.get_running_loop().create_future()
    nothing = os.open(os.devnull, os.O_RDWR)
    launcher.start(order, (nothing, nothing, nothing), answered.set_result)
    os.close(nothing)
    return await within(answered)
