"""`scripts/loadtest --fleet`: the parts of it that compute, and its client against a server that is slow on
purpose."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.fleet.books import Look, Spent, spent
from benchmarks.fleet.client import NUMBER, Load, Offered, due_times, request_of
from benchmarks.fleet.core import figures
from benchmarks.fleet.fit import Fit, Point, fitted, slope_of
from benchmarks.fleet.linear import point_of, row_of
from benchmarks.fleet.links import together
from benchmarks.fleet.report import costs, delayed_part
from benchmarks.fleet.steps import Calls, NoSteps, calls_in, script_of, steps_in
from support.waits import within

STEPS = [Calls(3, "local", "nap", {"ms": 2}), 40, Calls(1, "plain", "give", {"a": "}"})]


def body_of(text: str) -> bytes:
    """What the worker of a run is sent, as far as it matters."""
    main = f"data:text/javascript;base64,{b64encode(text.encode()).decode()}"
    return json.dumps({"main": main, "modules": {}, "refused": {}}).encode()


def test_steps_go_through_a_script_and_back() -> None:
    script = script_of(STEPS)
    assert steps_in(body_of(script)) == STEPS
    assert calls_in(STEPS) == 4
    assert "await local.nap(" in script and "await plain.give(" in script and "setTimeout(go, 40)" in script


@pytest.mark.parametrize("body", [b"{}", body_of("globalThis.__codemode_result__ = 1;")])
def test_a_script_without_steps_is_refused(body: bytes) -> None:
    with pytest.raises(NoSteps):
        steps_in(body)


def test_runs_are_due_evenly_and_as_many_as_the_rate_says() -> None:
    due = list(due_times(8.0, 2.5))
    assert len(due) == 20 and due[0] == 0.0
    assert {round(after - before, 9) for before, after in pairwise(due)} == {0.125}


def point(hosts: int, per_second: float, *, broker: float = 0.1, machine: float = 0.1) -> Point:
    return Point(hosts, per_second, broker, machine)


def test_a_line_is_met_within_a_tenth_of_what_it_says() -> None:
    found = fitted([point(1, 1.3), point(2, 2.7), point(4, 5.1), point(8, 10.9)])
    assert found.met and 1.27 < found.per_host < 1.38
    bent = fitted([point(1, 1.3), point(2, 2.6), point(4, 5.2), point(8, 7.8)])
    assert bent.met is False and bent.residuals[8] < -0.10


def test_what_was_full_does_not_count_and_too_few_points_say_nothing() -> None:
    full = [
        point(1, 1.3),
        point(2, 2.6),
        point(4, 5.2),
        point(8, 6.0, machine=0.95),
        point(16, 6.0, broker=0.9),
    ]
    found = fitted(full)
    assert found.met and set(found.residuals) == {1, 2, 4}
    assert [one.limit for one in full] == [None, None, None, "this machine", "a broker's core"]
    assert fitted([]) == Fit(0.0, {}, None)
    few = fitted(full[1:])
    assert few.met is None and set(few.residuals) == {2, 4, 8, 16}, "all are shown, and none is judged"


def test_links_are_told_by_what_delayed_them_and_by_medians_of_turns() -> None:
    def turn(per_second: float, wrong: int = 0) -> dict[str, Any]:
        of = {"per_second": per_second, "p50_ms": 600.0, "p99_ms": 700.0, "machine_share": 0.5}
        return {**of, "runs": 10, "wrong": wrong, "why": "late" if wrong else ""}

    rows = [
        together(0.0, 0.0, [turn(9.0), turn(8.0), turn(1.0)]),
        together(0.005, 0.001, [turn(6.0), turn(7.0, 2)]),
    ]
    assert [row["per_second"] for row in rows] == [8.0, 6.5]
    assert (rows[1]["runs"], rows[1]["wrong"], rows[1]["why"]) == (20, 2, "late")
    told = {"hosts": 2, "calls": 10, "wait_ms": 1000, "turns": 3, "rows": rows}
    assert "5 ms | 0.1% | 6.50 | 600 | 700 | 50% | 20 | 2" in "\n".join(delayed_part({**told, "by": "netem"}))
    assert "none of it loses packets" in "\n".join(delayed_part({**told, "by": "relays"}))


def test_the_slope_is_that_of_an_exact_line() -> None:
    assert slope_of([(1, 2.5), (7, 17.5)]) == pytest.approx(2.5)


def test_books_are_the_difference_of_two_looks() -> None:
    before = Look(10.0, {"broker 0": 1.0, "hosts": 5.0}, {"broker 0": 0.5}, 20.0, 100, 1_000)
    after = Look(14.0, {"broker 0": 3.0, "hosts": 5.4, "new": 0.2}, {"broker 0": 2.1}, 26.0, 300, 5_000)
    found = spent(before, after)
    assert found.shares == pytest.approx({"broker 0": 0.5, "hosts": 0.1, "new": 0.05})
    assert found.loops == pytest.approx({"broker 0": 0.4}) and found.machine == pytest.approx(1.5)
    assert found.us_a_run("broker 0", 1000) == pytest.approx(2000)
    told = found.as_json(100)
    assert (told["transactions_a_run"], told["wal_bytes_a_run"]) == (2.0, 40)
    assert found.as_json(0)["us_a_run"]["broker 0"] == 0.0


def offered(answered: int, seconds: float = 2.0) -> Offered:
    found = Offered(answered=answered, seconds=seconds)
    found.latencies.add(answered / 1000)
    return found


def test_figures_are_medians_of_windows_and_sums_of_brokers() -> None:
    windows = [offered(100), offered(200), offered(900)]
    used = {"broker 0": 0.5, "broker 1": 0.25, "hosts": 0.1}
    parts = [Spent(2.0, used, {"broker 0": 0.4, "broker 1": 0.2}, 1.0, 400, 8_000)] * 3
    found = figures(windows, parts)
    assert (found["per_second"], found["runs"], found["p50_ms"]) == (
        100.0,
        1200,
        pytest.approx(200, rel=0.01),
    )
    assert (found["broker_share"], found["loop_share"]) == (0.75, 0.4)
    assert found["us_a_run"] == {"hosts": 1000.0, "broker": 7500.0}
    assert (found["transactions_a_run"], found["wal_bytes_a_run"]) == (2.0, 40)


def test_a_count_of_hosts_has_the_share_of_its_busiest_broker() -> None:
    looks = [
        Look(
            float(second),
            {"broker 0": second / 10, "broker 1": second / 5, "hosts": second / 2},
            {},
            float(second),
        )
        for second in (0, 2)
    ]
    found = row_of(4, [offered(50)], looks, 120.0)
    assert (found["per_second"], found["broker_share"], found["hosts_ms_a_run"]) == (25.0, 0.2, 20.0)
    assert point_of(found).hosts == 4


def test_a_call_costs_what_ten_of_them_add() -> None:
    def row(script: str, us: float, transactions: float) -> dict[str, object]:
        usage = {"broker": us, "PostgreSQL": us / 10}
        return {
            "script": script, "journal": "all", "arrival": "closed", "brokers": 1, "us_a_run": usage,
            "transactions_a_run": transactions, "wal_bytes_a_run": 0,
        }  # fmt: skip

    found = costs([row("no call", 1000, 2), row("10 calls of a stdio server", 4000, 22)])
    call = {"broker_us": 300.0, "postgresql_us": 30.0, "transactions": 2.0, "wal_bytes": 0.0}
    assert found["a call of a stdio server", "all"] == pytest.approx(call)
    assert found["a run", "all"]["broker_us"] == 1000


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


def late(seconds: float, came: list[bytes], answer: bytes = b'{"result":1}') -> Handler:
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


REQUEST = request_of("127.0.0.1", "codemode.run", {"code": NUMBER.decode()}, None)
RIGHT = b'"result":1'


async def test_who_waits_for_a_connection_waits_since_it_was_due() -> None:
    async with served(late(0.1, [])) as address:
        load = Load(address, 1)
        await load.open()
        found = await load.offer(20.0, 2.0, REQUEST, RIGHT)
        load.close()
    # One after the other, each 0.1 s: the next is due after 0.05 s, and counts from then.
    assert found.due == 40 and 1 <= found.answered <= 20 and not found.wrong
    assert found.latencies.at(100) >= 0.99 * (100 + 50 * (found.answered - 1))


async def test_each_run_has_a_number_and_all_are_answered() -> None:
    came: list[bytes] = []
    async with served(late(0.0, came)) as address:
        load = Load(address, 3)
        await load.open()
        found = await load.finish(10, REQUEST, RIGHT, 60)
        load.close()
    assert found.answered == 10 and found.per_second > 0
    assert len(set(came)) == 10


async def test_clients_that_hold_a_server_have_one_run_each_and_windows_are_apart() -> None:
    edges: list[float] = []
    async with served(late(0.02, [])) as address:
        load = Load(address, 2)
        await load.open()
        now = asyncio.get_running_loop().time
        found = await load.hold(2, 0.5, REQUEST, RIGHT, lead=0.1, windows=2, edge=lambda: edges.append(now()))
        await load.settled(60)
        load.close()
    assert len(found) == 2 and len(edges) == 3
    longest = max(after - before for before, after in pairwise(edges))
    # Of each client: answers one after the other, and one that was under way before.
    assert sum(one.answered for one in found) > 0 and all(
        one.answered <= 2 * (longest / 0.02 + 1) for one in found
    )


async def test_a_window_lasts_until_each_client_may_have_had_an_answer() -> None:
    async with served(late(0.1, [])) as address:
        load = Load(address, 2)
        await load.open()
        found = await load.hold(2, 0.01, REQUEST, RIGHT, windows=2)
        await load.settled(60)
        load.close()
    assert all(one.answered >= 2 and one.seconds >= 0.09 for one in found), found


async def test_a_wrong_answer_and_a_lost_connection_are_told() -> None:
    async with served(late(0.0, [], b'{"error":7}')) as address:
        load = Load(address, 1)
        await load.open()
        found = await load.finish(2, REQUEST, RIGHT, 60)
        load.close()
    assert found.answered == 0 and [reason[-11:] for reason in found.wrong.elements()] == ['{"error":7}'] * 2

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with served(hang_up) as address:
        load = Load(address, 1)
        await load.open()
        found = await load.finish(1, REQUEST, RIGHT, 60)
        load.close()
    assert [reason.partition(":")[0] for reason in found.wrong] == ["the connection was lost"]
