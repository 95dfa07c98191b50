"""The attacker itself: it is where Deno would be, does what it is told, and Deno lies beside it."""

import errno
from pathlib import Path

from cellblock import Broker
from security.native.harness import Native, attack, let_loose, steps
from support.entries import settings
from support.responses import succeeded


async def test_it_does_its_steps_inside_the_layers(native_workers: Native) -> None:
    outcome = await attack(
        "getpid",
        ("openat", -100, b"/worker/boot.js", 0),
        ("read", "$1", "&4", 4),
        ("peek", "%2.1", 4),
        ("openat", -100, b"/etc/passwd", 0),
        ("socket", 1, 1, 0),
        "nonsense",
        ("fill", 2, 0x22),
    )
    assert outcome[0] == 1  # of its own namespace
    assert outcome[1] > 2 and outcome[2] == 4 and len(bytes.fromhex(outcome[3])) == 4
    assert outcome[4:] == [-errno.ENOENT, -errno.EPERM, "no such step", 2 << 20]


async def test_one_that_computes_is_ended_like_any_script(native_workers: Native) -> None:
    _, owner = await let_loose("say begun", "spin", cpu_ms=50)
    assert (await owner.end()).reason == "cpu" and owner.logs == [("log", "begun")]


async def test_a_brokers_host_has_it_among_its_workers(native_hosts: Native, tmp_path: Path) -> None:
    async with Broker(settings(tmp_path / "state", isolation="required", pool={"warm": 1})) as broker:
        assert succeeded(await broker.run(steps("getpid"))) == [1]
        native_hosts.takes(0)
        # One that had started before may be left.
        assert [succeeded(await broker.run(steps("getpid"))) for _ in range(3)][-1] == "deno"
