"""`scripts/loadtest --fleet`: what it computes, and its clients against a server that is slow on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.fleet.books import Look
from benchmarks.fleet.client import NUMBER, Answered, Clients, bytes_of, right_of, script_of
from benchmarks.fleet.measure import figures, fitted
from support.waits import within


def row(hosts: int, per_second: float, *, broker: float = 0.1, machine: float = 0.1) -> dict[str, Any]:
    return {"hosts": hosts, "per_second": per_second, "loop_share": broker, "machine_share": machine}


def test_a_line_is_met_within_a_tenth_of_what_it_says() -> None:
    found = fitted([row(1, 1.3), row(2, 2.7), row(4, 5.1), row(8, 10.9)])
    assert found["met"] and 1.27 < found["per_host"] < 1.38
    bent = fitted([row(1, 1.3), row(2, 2.6), row(4, 5.2), row(8, 7.8)])
    assert bent["met"] is False and bent["residuals"]["8"] < -0.10
    assert fitted([row(1, 2.5), row(7, 17.5)])["per_host"] == pytest.approx(2.5)


def test_what_was_full_does_not_count_and_too_few_points_say_nothing() -> None:
    full = [row(1, 1.3), row(2, 2.6), row(4, 5.2), row(8, 6.0, machine=0.95), row(16, 6.0, broker=0.9)]
    found = fitted(full)
    assert found["met"] and set(found["residuals"]) == {"1", "2", "4"}
    assert fitted([])["met"] is None
    few = fitted(full[1:])
    assert few["met"] is None and set(few["residuals"]) == {"2", "4", "8", "16"}, (
        "all are shown, none is judged"
    )


def test_books_are_the_difference_of_two_looks() -> None:
    before = Look(10.0, {"broker 0": 1.0, "hosts": 5.0}, 20.0, 100, 1_000)
    after = Look(14.0, {"broker 0": 3.0, "hosts": 5.4, "new": 0.2}, 26.0, 300, 5_000)
    found = after.since(before)
    assert found.parts == pytest.approx({"broker 0": 2.0, "hosts": 0.4, "new": 0.2})
    assert (found.share("broker"), found.seconds, found.machine) == (0.5, 4.0, 6.0)
    assert (found.transactions, found.wal_bytes) == (200, 4_000)


def test_figures_are_medians_of_windows_and_sums_of_brokers() -> None:
    windows = [Answered(count, 2.0) for count in (100, 200, 900)]
    for one in windows:
        one.latencies.add(one.count / 1000)
    used = {"broker 0": 1.0, "broker 1": 0.5, "hosts": 0.2}
    found = figures(windows, [Look(2.0, used, 2.0, 400, 8_000)] * 3)
    assert (found["per_second"], found["runs"], found["p50_ms"]) == (
        100.0,
        1200,
        pytest.approx(200, rel=0.01),
    )
    assert (found["broker_share"], found["loop_share"]) == (0.75, 0.5)
    assert (found["us_a_run"]["hosts"], found["us_a_run"]["broker"]) == (1000.0, 7500.0)
    assert (found["transactions_a_run"], found["wal_bytes_a_run"]) == (2.0, 40)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def served(handle: Handler) -> AsyncGenerator[tuple[str, int]]:
    """Serves inside the block, and waits for the connections to end; gives the address."""
    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await handle(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[:2]
    await within(asyncio.gather(*serving))


def late(seconds: float, came: list[bytes], answer: bytes = b'{"result":1,}') -> Handler:
    """Answers each request so late; `came` gets the bodies."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            came.append(await reader.readexactly(size))
            await asyncio.sleep(seconds)
            said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
            # In two pieces, as a network may bring them.
            writer.write(said[:20])
            await writer.drain()
            writer.write(said[20:] + answer)

    return handle


REQUEST = bytes_of("127.0.0.1", "codemode.run", {"code": script_of(1, "local", "noop({})")}, None)
RIGHT = right_of(1)


@asynccontextmanager
async def clients_of(handle: Handler, count: int) -> AsyncGenerator[Clients]:
    async with served(handle) as address:
        clients = Clients(address)
        await clients.open(count)
        yield clients
        clients.close()


async def test_each_run_has_a_number_and_all_are_answered() -> None:
    came: list[bytes] = []
    async with clients_of(late(0.0, came), 3) as clients:
        found = [await clients.each(REQUEST, RIGHT) for _ in range(3)]
    assert [one.count for one in found] == [3, 3, 3] and not any(one.wrong for one in found)
    assert len(set(came)) == 9 and NUMBER in REQUEST


async def test_clients_that_hold_a_server_have_one_run_each_and_windows_are_apart() -> None:
    edges: list[float] = []
    async with clients_of(late(0.02, []), 2) as clients:
        now = asyncio.get_running_loop().time
        found = await clients.hold(
            REQUEST, RIGHT, seconds=0.5, lead=0.1, windows=2, edge=lambda: edges.append(now())
        )
    assert len(found) == 2 and len(edges) == 3
    longest = max(after - before for before, after in pairwise(edges))
    # Of each client: answers one after the other, and one that was under way before.
    assert sum(one.count for one in found) > 0
    assert all(one.count <= 2 * (longest / 0.02 + 1) and one.seconds >= 0.5 for one in found)


async def test_a_wrong_answer_and_a_lost_connection_are_told() -> None:
    async with clients_of(late(0.0, [], b'{"error":7}'), 2) as clients:
        found = await clients.each(REQUEST, RIGHT)
    assert found.count == 0 and list(found.wrong.elements()) == ['{"error":7}'] * 2

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with clients_of(hang_up, 1) as clients:
        found = await clients.each(REQUEST, RIGHT)
    assert [reason.partition(":")[0] for reason in found.wrong] == ["the connection was lost"]
