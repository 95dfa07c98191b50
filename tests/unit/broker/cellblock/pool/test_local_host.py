"""Hosts that the pool starts itself: here, and on Ray."""

import asyncio
import importlib.util
import logging
import stat
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from cellblock import Broker, ConfigError
from cellblock.base.settings.hosts import RaySettings
from cellblock.base.settings.sections import PoolSettings
from cellblock.fleet import remote_hosts
from cellblock.fleet.remote_hosts import RayHosts, pair_on_ray
from cellblock.pool import local_host
from cellblock.pool.local_host import RESTART_FIRST_SECONDS, RESTART_MAX_SECONDS, LocalHost, restart_pause
from cellblock.pool.start import Terms
from cellblock_worker.host.host_config import HostConfig
from cellblock_worker.wire.keys import make_pair, pair_of
from support.entries import settings
from support.waits import until

pytestmark = pytest.mark.real_host


def test_the_first_restart_is_at_once_and_the_others_are_further_and_further_apart() -> None:
    pauses = [restart_pause(failures) for failures in range(100)]
    assert pauses[:4] == [0, 0, RESTART_FIRST_SECONDS, 2 * RESTART_FIRST_SECONDS]
    assert pauses == sorted(pauses) and pauses[-1] == RESTART_MAX_SECONDS


def config(identity: str) -> HostConfig:
    return HostConfig(
        connect="ipc:///nowhere",
        identity=identity,
        capacity=1,
        warm=0,
        boot_parallel=1,
        max_message_bytes=1024,
        max_old_space_mb=16,
    )


@pytest.mark.parametrize(("greets", "expected"), [(True, [1, 2, 3, 4]), (False, [2, 4, 6, 8])])
async def test_hosts_that_end_at_once_are_started_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greets: bool, expected: list[int]
) -> None:
    """Real processes that end at once; what is asked of `restart_pause` is kept, and the pauses are left out."""
    program = tmp_path / "host"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(program))
    pause = Mock(return_value=0.0)
    monkeypatch.setattr(local_host, "restart_pause", pause)
    logging.getLogger("cellblock.pool").disabled = True
    host: LocalHost

    def on_starting(identity: bytes) -> None:
        if greets:
            # As if its hello came before its end.
            asyncio.get_running_loop().call_soon(host.greeted, identity)

    host = LocalHost(config, log_file=tmp_path / "log", on_starting=on_starting, on_exit=lambda _, __: None)
    host.start()
    try:
        await until(lambda: pause.call_count >= 4, "four ends")
    finally:
        await host.stop()
        logging.getLogger("cellblock.pool").disabled = False
    assert [asked.args[0] for asked in pause.call_args_list[:4]] == expected


async def test_without_ray_a_broker_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    hosts = {"local": False, "listen": "tcp://127.0.0.1:*", "ray": {"command": "same-user"}}
    with pytest.raises(ConfigError, match="Ray is not installed") as caught:
        async with Broker(settings(tmp_path / "state", hosts=hosts)):
            pass
    assert caught.value.hint == "pip install 'cellblock[ray]'"


async def test_an_answer_that_cannot_be_read_is_not_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is another program here: each time it says something else."""
    odd = ["x" * 100_000, "no JSON", "[1]", "[" * 50_000]
    first = tmp_path / "first"
    (program := tmp_path / "program").write_text(
        f"""#!{sys.executable}
import json, pathlib, sys
first = pathlib.Path({str(first)!r})
number = len(first.read_text()) if first.exists() else 0
first.write_text("x" * (number + 1))
sys.stdin.readline()
for _ in sys.stdin:
    print([*{odd!r}, json.dumps({{"said": "all is well"}})][min(number, {len(odd)})], flush=True)
"""
    )
    program.chmod(0o700)
    monkeypatch.setattr(remote_hosts, "REPORT_SECONDS", 0.01)
    hosts = RayHosts(
        RaySettings(command=[str(program)]),
        PoolSettings(),
        "0" * 64,
        make_pair(),
        Terms(1 << 20, 64, "auto"),
        lambda: 0,
        tmp_path / "log",
    )
    hosts.start("tcp://127.0.0.1:1")
    try:
        await until(lambda: "all is well" in caplog.text, "it is asked again")
    finally:
        await hosts.stop()


def test_brokers_with_one_key_have_one_for_their_hosts_and_it_is_another() -> None:
    own, other = pair_of(b"a" * 32), pair_of(b"b" * 32)
    assert pair_on_ray(own) == pair_on_ray(pair_of(b"a" * 32))
    assert len({own.secret, pair_on_ray(own).secret, pair_on_ray(other).secret}) == 3
