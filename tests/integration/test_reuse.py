"""Runs of one principal in one process: who shares one, what is counted for each run, and what ends the process."""

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker, RunResponse
from cellblock_worker.confinement import confinement
from support.brokers import ready
from support.entries import plain_server, settings
from support.processes import workers_of
from support.responses import error_of, succeeded
from support.waits import until

TRIES = 200
"""A process is ready again a millisecond or two after an answer; on a busy machine another one has the next run."""

PLAIN = "globalThis.__codemode_result__ = [typeof LEFT, globalThis.LEFT = 1].at(0);"
SUM = "let sum = 0; for (let i = 0; i < 1000; i++) sum += i; globalThis.__codemode_result__ = sum;"


def _pool(**more: Any) -> dict[str, Any]:
    return {"reuse": "principal", "warm": 2, "capacity": 4, **more}


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that reuses processes."""
    policy = {"clients": {"team:a": {"tools": ["plain.*"]}, "team:b": {"tools": ["plain.*"]}}}
    pool = _pool(reuse={"*": "principal", "team:b": "never"})
    folder = tmp_path_factory.mktemp("reuse")
    limits = {"max_memory_bytes": [256 << 20, 512 << 20]}
    async with ready(
        settings(folder, {"plain": plain_server()}, pool=pool, policy=policy, limits=limits)
    ) as made:
        yield made


async def _used(broker: Broker, code: str, **more: Any) -> RunResponse:
    """The response of the first run of this script that another one of its kind has gone before in its process."""
    for _ in range(TRIES):
        response = await broker.run(code, **more)
        if response.usage.reused:
            return response
    raise AssertionError(f"no process was reused in {TRIES} runs")


@pytest.mark.parametrize("is_journaled", [False, True])
async def test_without_the_setting_or_with_a_journal_each_run_has_a_process_of_its_own(
    tmp_path: Path, is_journaled: bool
) -> None:
    """A journal replaces the clock and the randomness in the process."""
    section: dict[str, Any] = {"pool": _pool(), "journal": "all"} if is_journaled else {}
    async with Broker(settings(tmp_path, **section)) as made:
        for _ in range(3):
            response = await made.run(PLAIN)
            assert (succeeded(response), response.usage.reused) == ("undefined", None)
            assert "reused" not in response.as_json()["usage"]
            assert (response.usage.run_id is not None) is is_journaled


async def test_one_clients_runs_share_a_process_and_see_nothing_of_each_other(broker: Broker) -> None:
    response = await _used(broker, PLAIN, client="one")
    assert succeeded(response) == "undefined"
    assert response.as_json()["usage"]["reused"] >= 1


@pytest.mark.parametrize(
    "other",
    [
        {"client": "another"},
        {"client": "team:a"},
        {"client": "many", "grants": {"readOnly": True}},
        {"client": "many", "limits": {"maxMemoryBytes": 300 << 20}},
    ],
    ids=["another client", "another principal", "other grants", "a higher limit"],
)
async def test_others_do_not_share_it(broker: Broker, other: dict[str, Any]) -> None:
    """Their first run has a process that has served nobody."""
    await _used(broker, PLAIN, client="many")
    first = await broker.run(PLAIN, **other)
    assert (succeeded(first), first.usage.reused) == ("undefined", 0)


async def test_a_changed_catalog_takes_another_process(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"plain": plain_server()}, pool=_pool())) as made:
        await _used(made, PLAIN)
        made.reconfigure(settings(tmp_path, {"plain": plain_server(), "more": plain_server()}, pool=_pool()))
        assert (await made.run(PLAIN)).usage.reused == 0


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (PLAIN, {"reuse": False}),
        (PLAIN, {"client": "team:b"}),
        ("enum A { B = 'undefined' }; globalThis.__codemode_result__ = A.B;", {}),
        (
            "const e = import(/* why */'@codemode/errors'); await e; globalThis.__codemode_result__ = 'undefined'",
            {},
        ),
    ],
    ids=["it insists", "the policy says never", "Deno compiles it", "an import that cannot be replaced"],
)
async def test_these_have_a_process_of_their_own(broker: Broker, code: str, more: dict[str, Any]) -> None:
    ran = [await broker.run(code, **more) for _ in range(3)]
    assert [(one.result, one.usage.reused) for one in ran] == [("undefined", None)] * 3


async def test_scripts_import_call_and_find_out_as_ever(broker: Broker) -> None:
    code = """
        import { echo } from "@codemode/servers/plain";
        import { listServers } from "@codemode/discovery";
        const name = "@codemode/servers/plain";
        const again = await import(name);
        let refused = "";
        try { await import("node:fs"); } catch (error) { refused = error.name; }
        globalThis.__codemode_result__ = [await echo({ n: 1 }), again.echo === echo, refused,
            (await listServers()).length];
    """
    assert succeeded(await _used(broker, code, client="imports")) == ['{"n": 1}', True, "CodemodeError", 1]


ENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "timeout": ("for (;;);", {"timeoutMs": 200}, "SANDBOX_LIMIT"),
    "cpu": ("for (;;);", {"maxCpuMs": 100}, "SANDBOX_LIMIT"),
    "memory": (
        "const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1));",
        {"maxMemoryBytes": 64 << 20},
        "SANDBOX_LIMIT",
    ),
    "calls": (
        "import { echo } from '@codemode/servers/plain'; await echo({}); await echo({});",
        {"maxToolCalls": 1},
        "SANDBOX_LIMIT",
    ),
}


@pytest.mark.parametrize("cap", ENDS)
async def test_a_cap_holds_in_a_used_process_and_ends_it(broker: Broker, cap: str) -> None:
    code, limits, said = ENDS[cap]
    client = f"over {cap}"
    # As many runs in a row as it takes until the one at its cap was in a used process.
    for _ in range(TRIES):
        await _used(broker, SUM, client=client, limits=limits)
        response = await broker.run(code, client=client, limits=limits)
        error_of(response, said)
        if response.usage.reused:
            break
    else:
        raise AssertionError("no run at its cap was in a used process")
    assert response.usage.cpu_ms < 5_000


async def test_each_run_has_its_own_cpu_and_memory(broker: Broker) -> None:
    """What runs before have used is not this one's: ten of 40 ms under a cap of 200, ten of 40 MB under one of 96."""
    busy = (
        "const all = new Uint8Array(40 << 20).fill(1); const end = performance.now() + 40;"
        "while (performance.now() < end); globalThis.__codemode_result__ = all.length;"
    )
    limits = {"maxCpuMs": 200, "maxMemoryBytes": 96 << 20}
    reused: list[int] = []
    for _ in range(10):
        response = await broker.run(busy, client="busy", limits=limits)
        assert succeeded(response) == 40 << 20
        assert response.usage.cpu_ms < 200
        reused.append(response.usage.reused or 0)
    assert max(reused) >= 1, reused


async def test_a_failed_script_leaves_a_process_that_serves_on(broker: Broker) -> None:
    await _used(broker, SUM, client="fails")
    for _ in range(TRIES):
        failed = await broker.run("throw new Error('mine');", client="fails")
        error_of(failed, "UNCAUGHT_EXCEPTION")
        if failed.usage.reused:
            break
    assert succeeded(await _used(broker, SUM, client="fails")) == 499_500


def _booted_from(broker: Broker) -> set[str]:
    """The files that the workers of a broker's host have booted from."""
    files: set[str] = set()
    for worker in workers_of(broker.host_pid or 0):
        with contextlib.suppress(psutil.Error):
            files |= {Path(word).name for word in worker.cmdline()[-1:]}
    return files


@pytest.mark.skipif(sys.platform != "linux", reason="without kernel limits nothing is reused")
async def test_clients_who_reuse_nothing_have_plain_workers(tmp_path: Path) -> None:
    """A host that may reuse processes for one client boots plain workers for the others, and both are served."""
    pool = {"warm": 2, "capacity": 4, "reuse": {"team:a": "principal"}}
    lasting, plain = {confinement.CONTEXTS_SCRIPT}, {confinement.BOOT_SCRIPT}
    async with Broker(settings(tmp_path, pool=pool, policy={"clients": {"team:a": {"tools": []}}})) as made:
        await until(lambda: _booted_from(made) == lasting, "workers boot")
        assert [(await made.run(PLAIN)).usage.reused for _ in range(6)] == [None] * 6
        await until(lambda: _booted_from(made) == plain, "the others' workers are plain")
        assert succeeded(await _used(made, PLAIN, client="team:a")) == "undefined"
        await until(lambda: _booted_from(made) == lasting | plain, "there are both")
