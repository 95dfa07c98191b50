"""Runs beside and behind one another: calls at once, and runs that wait for a place, or share a process.

A noisy client and a quiet one share the queue by client, and a flood is refused in words. Scripts that ask for much at
once and come to the answers later wait for nobody but themselves; errors as large or as deep as scripts and servers can
make them are told, and cost nobody else anything. Runs of one principal may have one process: who shares one, what is
counted for each run, and what ends the process.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker, InvalidRequest, RunResponse, tool
from cellblock.base.settings.sections import PoolSettings
from cellblock_worker.confinement import confinement
from support.brokers import begun, ready
from support.entries import plain_server, settings
from support.params import mostly
from support.processes import workers_of
from support.responses import error_of, succeeded
from support.waits import until, until_found, warmed, within

CAPACITY = 8


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with a plain server, and places for eight runs."""
    config = settings(
        tmp_path_factory.mktemp("concurrency"),
        {"plain": plain_server()},
        pool={"capacity": CAPACITY, "warm": 4, "queue_size": 64},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cellblock.run.calls.CONCURRENT_CALLS", 4)
        async with ready(config) as started:
            yield started


async def test_calls_over_the_concurrent_maximum_wait_their_turn(broker: Broker) -> None:
    """Four is the maximum here: nine calls of 100 ms are three turns."""
    code = """
        import { wait } from "@codemode/servers/plain";
        const calls = Array.from({ length: 9 }, () => wait({ ms: 100 }));
        globalThis.__codemode_result__ = (await Promise.all(calls)).length;
    """
    response = await within(broker.run(code))
    assert succeeded(response) == 9
    assert response.usage.wall_ms >= 300


async def test_runs_wait_for_each_other_only_when_all_places_are_taken(tmp_path: Path) -> None:
    there, all_there = 0, asyncio.Event()

    @tool()
    async def meet() -> None:
        """Comes back when as many are there as there are places."""
        nonlocal there
        there += 1
        if there == CAPACITY:
            all_there.set()
        await all_there.wait()

    code = 'import { meet } from "@codemode/servers/local"; await meet();'
    made = settings(tmp_path, pool={"capacity": CAPACITY, "warm": 4})
    async with Broker(made, tools=[meet]) as broker:
        responses = await within(asyncio.gather(*(broker.run(code) for _ in range(CAPACITY))))
    assert all(response.ok for response in responses)


@pytest.mark.parametrize("configured", [{}, {"warm": 2}], ids=["by itself", "as configured"])
async def test_the_first_run_has_a_warm_worker_and_others_are_booted_then(
    configured: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    sections = settings(tmp_path).with_section(pool=PoolSettings(**configured))
    async with Broker(sections) as broker:
        reach = broker._reach
        assert reach is not None
        pool = reach.workers.pool
        wanted = configured.get("warm", 1)
        await until(lambda: (pool.warm, pool.booting, pool.warm_wanted) == (wanted, 0, wanted), "it is idle")
        succeeded(await within(broker.run("1")))
        await warmed(broker, 2)


async def test_the_default_time_limit_ends_a_run_that_still_waits(tmp_path: Path) -> None:
    """Its client gives up after a minute, whatever the queue allows; who names a time waits for as long as that."""
    made = settings(tmp_path, pool={"capacity": 1, "warm": 1}, limits={"timeout_ms": [300, 60_000]})
    async with Broker(made) as broker:
        idle = "await new Promise((resolve) => setTimeout(resolve, 60000));"
        running = asyncio.create_task(broker.run(idle, limits={"timeoutMs": 3_000}))
        await asyncio.sleep(0)
        patient = asyncio.create_task(
            broker.run("globalThis.__codemode_result__ = 1;", limits={"timeoutMs": 299})
        )
        found = error_of(await within(broker.run(idle)), "OVERLOADED")
        assert "not started" in found.message and "limits.timeoutMs = 300" in found.message
        assert not running.done() and not patient.done()
        error_of(await within(running), "SANDBOX_LIMIT")
        assert succeeded(await within(patient)) == 1


async def test_a_broker_that_closes_starts_none_of_the_runs_that_wait(tmp_path: Path) -> None:
    called: list[int] = []
    inside = asyncio.Event()

    @tool()
    def effect(number: int) -> int:
        """Is seen."""
        called.append(number)
        return number

    @tool()
    async def slow() -> None:
        """Takes its time to be cancelled."""
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)

    async with Broker(settings(tmp_path, pool={"warm": 2, "capacity": 2}), tools=[effect, slow]) as broker:
        held = [
            asyncio.create_task(broker.run(code))
            for code in (
                'import { slow } from "@codemode/servers/local"; await slow();',
                "await new Promise((done) => setTimeout(done, 60_000));",
            )
        ]
        await within(inside.wait())
        await warmed(broker, 1)
        code = 'import {{ effect }} from "@codemode/servers/local"; await effect({{ number: {} }});'
        waiting = [asyncio.create_task(broker.run(code.format(number))) for number in range(6)]
        pool = broker._reach and broker._reach.workers.pool
        await until(lambda: pool.queued == len(waiting), "they wait")
    for task in held:
        await within(task)
    for task in waiting:
        assert "not started" in error_of(await within(task), "WORKER_UNAVAILABLE").message
    assert called == []


async def test_a_servers_turn_is_waited_for_within_the_calls_own_time(tmp_path: Path) -> None:
    """Two places for all calls, and a time of its own."""
    bounds = {"servers": {"plain": {"max_concurrent_calls": 2, "call_timeout_ms": 1500}}}
    code = """
        import { wait, echo } from "@codemode/servers/plain";
        const took = [];
        const timed = async (ms) => {
            const started = performance.now();
            const said = await wait({ ms }).then(() => "answered", (error) => error.message);
            took.push([Math.round(performance.now() - started), said]);
        };
        await Promise.all([timed(1000), timed(1000), timed(60_000)]);
        globalThis.__codemode_result__ = took;
    """
    async with ready(settings(tmp_path, {"plain": plain_server()}, upstream=bounds)) as broker:
        *answered, (late, said) = succeeded(await within(broker.run(code)))
    assert [one for _, one in answered] == ["answered"] * 2 and "did not answer wait within 1.5 s" in said
    assert late < 2200, "a call has waited for its turn, and then for its whole time once more"


PLACES = 2
NOISY_QUEUE = 200
ATTEMPTS = 10
"""On a busy machine a trivial run may itself take long enough to count as a long one, or the 10 ms be missed; and runs
that compute may get so little that their client is no heavy one."""

COMPUTING = 3
"""So many runs of one client compute: it is a heavy one also where others leave it little."""


@pytest.mark.parametrize("reuse", mostly(["never"], ["never", "principal"]))
async def test_a_quiet_client_waits_for_one_run_of_a_noisy_one_not_for_its_queue(
    tmp_path: Path, reuse: str
) -> None:
    inside = 0
    gate = asyncio.Semaphore(0)

    @tool()
    async def pass_gate() -> None:
        """Returns when the test lets one run through."""
        nonlocal inside
        inside += 1
        await gate.acquire()

    noise = 'import { pass_gate } from "@codemode/servers/local"; await pass_gate({});'
    sizes = {
        "reuse": reuse,
        "capacity": PLACES,
        "warm": PLACES,
        "queue_size": 2 * NOISY_QUEUE,
    }
    async with Broker(settings(tmp_path, pool=sizes), tools=[pass_gate]) as broker:
        flood = [asyncio.create_task(broker.run(noise, client="noisy")) for _ in range(PLACES + NOISY_QUEUE)]
        await until(lambda: inside == PLACES, "the noisy client's runs hold all places")
        pool = broker._reach and broker._reach.workers.pool
        for number in range(1, 5 + 1):
            code = f"globalThis.__codemode_result__ = {number};"
            queued = pool.queued
            quiet: asyncio.Task[RunResponse] = asyncio.create_task(broker.run(code, client="quiet"))
            await until(lambda queued=queued: pool.queued == queued + 1, "the quiet run waits")
            # One run of the noisy client ends, and no other can: the place must have gone to the quiet client.
            gate.release()
            assert succeeded(await within(quiet)) == number
            wanted = PLACES + number
            await until(lambda wanted=wanted: inside == wanted, "then the noisy client has its place again")

        for task in flood:
            task.cancel()
        await asyncio.wait(flood, timeout=20)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are no cores to be kept off")
async def test_a_client_that_computes_much_leaves_a_core_while_another_is_active(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core only")
    others = cores - {min(cores)}
    async with Broker(settings(tmp_path, pool={"warm": 2})) as broker:

        def kept_off() -> set[int]:
            found: set[int] = set()
            for worker in workers_of(broker.host_pid):
                with contextlib.suppress(ProcessLookupError):
                    found |= {worker.pid} if os.sched_getaffinity(worker.pid) == others else set()
            return found

        def computed() -> float:
            times = [worker.cpu_times() for worker in workers_of(broker.host_pid)]
            return sum(one.user + one.system for one in times)

        heavy = {"client": "heavy", "limits": {"timeoutMs": 60_000, "maxCpuMs": 60_000}}
        runs = [asyncio.create_task(broker.run("for (;;);", **heavy)) for _ in range(COMPUTING)]
        await until(lambda: computed() > COMPUTING, "they have computed for a second each")
        assert kept_off() == set(), "nobody is there to leave it to"
        for _ in range(ATTEMPTS):
            succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;", client="light")))
            await until(lambda: len(kept_off()) == COMPUTING, "the runs that compute are kept off a core")
            computing = kept_off()
            waits = "console.log('begun'); await new Promise(() => setTimeout(() => 0, 1e9));"
            runs.append(await begun(broker, waits, **heavy))
            if is_kept_off := bool(kept_off() - computing):
                break
        assert is_kept_off, "its client's next run is so from its start"
        for run in runs:
            run.cancel()
        await asyncio.wait(runs, timeout=20)


MESSAGE_BYTES = 1 << 20
TOOL = {
    "description": "x" * 2_000,
    "inputSchema": {
        "type": "object",
        "properties": {f"member_{number}": {"type": "string"} for number in range(30)},
    },
}

COMPUTE = "for (const until = performance.now() + 700; performance.now() < until;) {}"


@pytest.fixture(scope="module")
async def roomy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    folder = tmp_path_factory.mktemp("parallel")
    definitions = folder / "definitions.json"
    definitions.write_text(
        json.dumps({"pages": [[{"name": f"tool_{number}", **TOOL} for number in range(30)]]})
    )
    config = settings(
        folder,
        {"plain": plain_server(), "many": plain_server("--definitions", definitions)},
        pool={"capacity": 4},
        max_message_bytes=MESSAGE_BYTES,
        limits={"max_log_bytes": [65_536, 65_536]},
    )
    async with ready(config) as started:
        yield started


async def test_discovery_requests_queue(roomy: Broker) -> None:
    code = f"""
        import {{ listTools, searchTools }} from "@codemode/discovery";
        const one = JSON.stringify(await listTools("many", {{ detail: "full" }}));
        const asked = Array.from({{ length: 300 }}, () => listTools("many", {{ detail: "full" }}));
        asked.push(searchTools("tool"));
        {COMPUTE}
        const found = await Promise.all(asked);
        found.pop();
        globalThis.__codemode_result__ = [
            one.length > 50_000 && 300 * one.length > 8 * {MESSAGE_BYTES},
            found.every((each) => JSON.stringify(each) === one),
        ];
    """
    assert succeeded(await within(roomy.run(code))) == [True, True]


@pytest.mark.parametrize(("calls", "size"), [(60, 120_000), (300, 10)], ids=["large", "many"])
async def test_answers_of_calls_wait_for_a_script_that_computes(roomy: Broker, calls: int, size: int) -> None:
    """Also of 300 calls at once, if so many may be made."""
    code = f"""
        import {{ flood }} from "@codemode/servers/plain";
        const asked = Array.from({{ length: {calls} }}, () => flood({{ bytes: {size} }}));
        {COMPUTE}
        globalThis.__codemode_result__ = (await Promise.all(asked)).map((text) => text.length);
    """
    response = await within(roomy.run(code, limits={"maxToolCalls": 300}))
    assert succeeded(response) == [size] * calls and response.usage.tool_calls == calls


@pytest.mark.parametrize(
    ("code", "fails"),
    [
        (
            """
            const text = "\\0".repeat(10_000);
            const error = new Error(text);
            Object.assign(error, { name: text, stack: text, hint: text, path: text, errors: Array(9).fill(text) });
            error.cause = new Error(text, { cause: new Error(text, { cause: new Error(text, { cause: text }) }) });
            throw error;
            """,
            True,
        ),
        ("throw '\\0'.repeat(100_000);", True),
        (
            """
            const named = { ["\\0".repeat(100_000)]() {} };
            globalThis.__codemode_result__ = Array(30).fill(Object.values(named)[0]);
            """,
            False,
        ),
    ],
    ids=["an error", "a thrown text", "notices"],
)
async def test_what_the_sandbox_tells_by_itself_fits_its_caps(roomy: Broker, code: str, fails: bool) -> None:
    response = await within(roomy.run(code))
    codes = [each.code for each in response.diagnostics]
    assert response.ok is not fails and codes
    assert "PROTOCOL_VIOLATION" not in codes and codes[0] != "WORKER_CRASHED"


TOLD = """
    const told = async (work) => {
        try { await work(); return "no error"; } catch ({ name, message, certainty }) {
            return [name, message.length < 5000, certainty ?? null];
        }
    };
"""


@pytest.mark.parametrize(
    "call",
    mostly(
        [
            'discovery.listTools("\\u0000".repeat(150_000))',
            "plain.refuse({ bytes: 3_000_000 })",
            "plain.deep({ depth: 150, error: true })",
        ],
        [
            'discovery.describeServer("x".repeat(700_000))',
            'discovery.listTools("\\u0000".repeat(150_000))',
            'discovery.getTool("plain", "x".repeat(700_000))',
            'discovery.searchTools("x", { serverId: "x".repeat(700_000) })',
            'discovery.searchTools("x", { detail: "x".repeat(700_000) })',
            "plain.refuse({ bytes: 3_000_000 })",
            "plain.fail({ text: 'x'.repeat(900_000) })",
            "plain.deep({ depth: 150, error: true })",
        ],
    ),
)
async def test_a_huge_error_is_told_and_nobody_else_loses_a_run(roomy: Broker, call: str) -> None:
    host = roomy.host_pid
    other = asyncio.create_task(
        roomy.run(
            "await new Promise((done) => setTimeout(done, 700)); globalThis.__codemode_result__ = 'here';"
        )
    )
    code = f"""
        import * as discovery from "@codemode/discovery";
        import * as plain from "@codemode/servers/plain";
        {TOLD}
        globalThis.__codemode_result__ = await told(() => {call});
    """
    name, is_short, certainty = succeeded(await within(roomy.run(code)))
    assert is_short and name != "Error"
    if call.startswith("plain."):
        assert certainty == ("may_have_run" if "refuse" in call else "completed")
    assert succeeded(await within(other)) == "here"
    assert roomy.host_pid == host


async def test_an_import_of_any_length_is_refused_in_short_words(roomy: Broker) -> None:
    response = await within(roomy.run(f'import "{"x" * 500_000}";'))
    assert len(error_of(response, "IMPORT_FAILURE").message) < 1000
    response = await within(
        roomy.run("globalThis.__codemode_result__ = 1", requested_capabilities=["x" * 200])
    )
    (warning,) = response.diagnostics
    assert warning.code == "CAPABILITY_UNAVAILABLE" and len(warning.message) < 1000
    with pytest.raises(InvalidRequest, match="at most 200 characters") as caught:
        await within(roomy.run("1", requested_capabilities=["x" * 500_000]))
    assert len(str(caught.value)) < 1000


TRIES = 200
"""A process is ready again a millisecond or two after an answer; on a busy machine another one has the next run."""

PLAIN = "globalThis.__codemode_result__ = [typeof LEFT, globalThis.LEFT = 1].at(0);"
SUM = "let sum = 0; for (let i = 0; i < 1000; i++) sum += i; globalThis.__codemode_result__ = sum;"


POOL: dict[str, Any] = {"reuse": "principal", "warm": 2, "capacity": 4}


@pytest.fixture(scope="module")
async def reusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that reuses processes."""
    policy = {"clients": {"team:a": {"tools": ["plain.*"]}, "team:b": {"tools": ["plain.*"]}}}
    pool = {**POOL, "reuse": {"*": "principal", "team:b": "never"}}
    folder = tmp_path_factory.mktemp("reuse")
    limits = {"max_memory_bytes": [256 << 20, 512 << 20]}
    async with ready(
        settings(folder, {"plain": plain_server()}, pool=pool, policy=policy, limits=limits)
    ) as made:
        yield made


async def _used(reusing: Broker, code: str, **more: Any) -> RunResponse:
    """The response of the first run of this script that another one of its kind has gone before in its process."""
    for _ in range(TRIES):
        response = await reusing.run(code, **more)
        if response.usage.reused:
            return response
    raise AssertionError(f"no process was reused in {TRIES} runs")


@pytest.mark.parametrize("is_journaled", [False, True])
async def test_without_the_setting_or_with_a_journal_each_run_has_a_process_of_its_own(
    tmp_path: Path, is_journaled: bool
) -> None:
    """A journal replaces the clock and the randomness in the process."""
    section: dict[str, Any] = {"pool": POOL, "journal": "all"} if is_journaled else {}
    async with Broker(settings(tmp_path, **section)) as made:
        for _ in range(3):
            response = await made.run(PLAIN)
            assert (succeeded(response), response.usage.reused) == ("undefined", None)
            assert "reused" not in response.as_json()["usage"]
            assert (response.usage.run_id is not None) is is_journaled


async def test_one_clients_runs_share_a_process_and_see_nothing_of_each_other(reusing: Broker) -> None:
    response = await _used(reusing, PLAIN, client="one")
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
async def test_others_do_not_share_it(reusing: Broker, other: dict[str, Any]) -> None:
    """Their first run has a process that has served nobody."""
    await _used(reusing, PLAIN, client="many")
    first = await reusing.run(PLAIN, **other)
    assert (succeeded(first), first.usage.reused) == ("undefined", 0)


async def test_a_changed_catalog_takes_another_process(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"plain": plain_server()}, pool=POOL)) as made:
        await _used(made, PLAIN)
        made.reconfigure(settings(tmp_path, {"plain": plain_server(), "more": plain_server()}, pool=POOL))
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
async def test_these_have_a_process_of_their_own(reusing: Broker, code: str, more: dict[str, Any]) -> None:
    ran = [await reusing.run(code, **more) for _ in range(3)]
    assert [(one.result, one.usage.reused) for one in ran] == [("undefined", None)] * 3


async def test_scripts_import_call_and_find_out_as_ever(reusing: Broker) -> None:
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
    assert succeeded(await _used(reusing, code, client="imports")) == ['{"n": 1}', True, "CodemodeError", 1]


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
async def test_a_cap_holds_in_a_used_process_and_ends_it(reusing: Broker, cap: str) -> None:
    code, limits, said = ENDS[cap]
    client = f"over {cap}"
    # As many runs in a row as it takes until the one at its cap was in a used process.
    for _ in range(TRIES):
        await _used(reusing, SUM, client=client, limits=limits)
        response = await reusing.run(code, client=client, limits=limits)
        error_of(response, said)
        if response.usage.reused:
            break
    else:
        raise AssertionError("no run at its cap was in a used process")
    assert response.usage.cpu_ms < 5_000


async def test_each_run_has_its_own_cpu_and_memory(reusing: Broker) -> None:
    """What runs before have used is not this one's: ten of 40 ms under a cap of 200, ten of 40 MB under one of 96."""
    busy = (
        "const all = new Uint8Array(40 << 20).fill(1); const end = performance.now() + 40;"
        "while (performance.now() < end); globalThis.__codemode_result__ = all.length;"
    )
    limits = {"maxCpuMs": 200, "maxMemoryBytes": 96 << 20}
    reused: list[int] = []
    for _ in range(10):
        response = await reusing.run(busy, client="busy", limits=limits)
        assert succeeded(response) == 40 << 20
        assert response.usage.cpu_ms < 200
        reused.append(response.usage.reused or 0)
    assert max(reused) >= 1, reused


async def test_a_failed_script_leaves_a_process_that_serves_on(reusing: Broker) -> None:
    await _used(reusing, SUM, client="fails")
    error_of(await _used(reusing, "throw new Error('mine');", client="fails"), "UNCAUGHT_EXCEPTION")
    assert succeeded(await _used(reusing, SUM, client="fails")) == 499_500


def _booted_from(reusing: Broker) -> set[str]:
    """The files that the workers of a broker's host have booted from."""
    files: set[str] = set()
    for worker in workers_of(reusing.host_pid or 0):
        with contextlib.suppress(psutil.Error):
            files |= {Path(word).name for word in worker.cmdline()[-1:]}
    return files


@pytest.mark.skipif(sys.platform != "linux", reason="without kernel limits nothing is reused")
async def test_clients_who_reuse_nothing_have_plain_workers(tmp_path: Path) -> None:
    """A host that may reuse processes for one client boots plain workers for the others, and both are served."""
    warm, reuse = 2, {"team:a": "principal"}
    pool = {"warm": warm, "capacity": 4, "reuse": reuse}
    lasting, plain = {confinement.CONTEXTS_SCRIPT}, {confinement.BOOT_SCRIPT}
    async with Broker(settings(tmp_path, pool=pool, policy={"clients": {"team:a": {"tools": []}}})) as made:
        await until(lambda: _booted_from(made) == lasting, "workers boot")
        assert [(await made.run(PLAIN)).usage.reused for _ in range(6)] == [None] * 6

        async def are_plain() -> bool:
            # One at a time may leave a worker that lasts unused, where a plain one is ready soon enough.
            await asyncio.gather(*(made.run(PLAIN) for _ in range(warm)))
            return _booted_from(made) == plain

        await until_found(are_plain, "the others' workers are plain")
        assert succeeded(await _used(made, PLAIN, client="team:a")) == "undefined"
        await until(lambda: _booted_from(made) == lasting | plain, "there are both")
