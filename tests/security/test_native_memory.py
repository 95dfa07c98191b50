"""Memory that RLIMIT_DATA does not see, taken by a native attacker: its own cgroup ends it, and bills it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Broker, Observer, RunResponse
from cellblock_worker.confinement.cgroup_workers import MIB, RUN_ROOM_BYTES
from cellblock_worker.confinement.confinement import ADDRESS_ROOM_BYTES
from security.native.harness import Native, steps
from security.native.harness import attack as attack_here
from support.entries import settings
from support.responses import error_of, succeeded
from support.waits import within

BUDGET_MIB = 64
WANTED_MIB = 400
TOTAL_BYTES = 700 * MIB
"""For all workers together: four attackers that got what they want would have the kernel kill the others."""

NEIGHBOURS = 3
NEIGHBOUR = """
    const held = [];
    for (let piece = 0; piece < 24; piece++) held.push(new Uint8Array(1 << 20).fill(7));
    console.log("held");
    for (;;) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        if (held.some((piece) => piece[99] !== 7)) break;
    }
"""
MAP_SHARED_ANONYMOUS = 0x21
READ_ONLY = 0
"""Private pages, which are made read-only when they are filled."""
IPC_CREAT_ALL = 0o1777

ATTACKS = {
    "shared pages": [("fill", WANTED_MIB, MAP_SHARED_ANONYMOUS)],
    "pages made read-only": [("fill", WANTED_MIB, READ_ONLY)],
    "a System V segment": [
        ("shmget", 0, WANTED_MIB * MIB, IPC_CREAT_ALL),
        ("shmat", "$0", 0, 0),
        ("touch", "$1", WANTED_MIB * MIB),
    ],
    "page tables": [("tables", WANTED_MIB)],
}


@pytest.fixture
async def broker(tmp_path: Path, native_hosts: Native) -> AsyncIterator[Broker]:
    pool = {"warm": 2, "capacity": 12, "total_memory_bytes": TOTAL_BYTES}
    async with Broker(settings(tmp_path, isolation="required", pool=pool)) as started:
        [hello] = started.hosts
        if not any("each worker has one of its own" in text and "memory" in text for text in hello.layers):
            pytest.skip(f"no memory cgroup can be made here: {hello.missing}")
        yield started


async def attacked(
    broker: Broker, attack: list[tuple[object, ...]], budget_mib: int = BUDGET_MIB
) -> RunResponse:
    """The response of a run that an attacker had; a Deno that was warm before gives only its word."""
    while True:
        response = await within(broker.run(steps(*attack), limits={"maxMemoryBytes": budget_mib * MIB}))
        if response.result != "deno":
            return response


def got(response: RunResponse) -> int | None:
    """Bytes that the attacker says it has; None when it was killed."""
    last = response.result[-1] if isinstance(response.result, list) else None
    assert last is None or isinstance(last, int)
    return last


async def test_four_attackers_at_once_die_and_no_neighbour_does(broker: Broker, native_hosts: Native) -> None:
    native_hosts.takes(0)
    # Those that are warm by now would be attackers.
    while succeeded(await within(broker.run(steps("getpid")))) != "deno":
        pass
    held = [asyncio.Event() for _ in range(NEIGHBOURS)]
    neighbours: list[asyncio.Task[RunResponse]] = []
    for event in held:
        observer = Observer(on_log=lambda _, event=event: event.set())
        neighbours.append(asyncio.create_task(broker.run(NEIGHBOUR, observer=observer)))
    await within(asyncio.gather(*(event.wait() for event in held)))
    native_hosts.takes(100)
    responses = await asyncio.gather(*(attacked(broker, attack) for attack in ATTACKS.values()))
    assert not any(neighbour.done() for neighbour in neighbours)
    for name, response in zip(ATTACKS, responses, strict=True):
        if (had := got(response)) is not None:
            # The filter refused it, at the first step or at some other.
            assert had < BUDGET_MIB * MIB, (name, response)
            continue
        assert "used up its memory" in error_of(response, "SANDBOX_LIMIT").message, name
        most = (BUDGET_MIB * MIB + RUN_ROOM_BYTES) + 64 * MIB
        assert BUDGET_MIB * MIB <= response.usage.peak_memory_bytes <= most, (name, response.usage)
    # Nothing refuses a process to look at its own pages.
    error_of(responses[list(ATTACKS).index("page tables")], "SANDBOX_LIMIT")
    for neighbour in neighbours:
        neighbour.cancel()
    await asyncio.gather(*neighbours, return_exceptions=True)


async def test_a_group_that_is_used_again_bills_only_its_run(broker: Broker, native_hosts: Native) -> None:
    small = await attacked(broker, [("fill", 8, READ_ONLY)])
    assert 8 * MIB <= (got(small) or 0) <= small.usage.peak_memory_bytes
    over = await attacked(broker, [("fill", 60, READ_ONLY)], budget_mib=32)
    assert "used up its memory" in error_of(over, "SANDBOX_LIMIT").message
    # What the kernel keeps in pipes would count, too; the filter refuses to make any.
    assert (got(await attacked(broker, [("pipes", 8)])) or 0) < 0
    for _ in range(4):
        again = await attacked(broker, [("getpid",)])
        assert again.usage.peak_memory_bytes < 32 * MIB, again.usage


@pytest.mark.parametrize("attack", ["shared pages", "pages made read-only"])
async def test_without_a_group_its_address_space_ends_it(attack: str, native_workers: Native) -> None:
    """This very process is in no group of Cellblock's."""
    [had] = await attack_here(*ATTACKS[attack], memory_bytes=BUDGET_MIB * MIB)
    assert had <= BUDGET_MIB * MIB + ADDRESS_ROOM_BYTES
