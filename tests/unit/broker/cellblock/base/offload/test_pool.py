"""Checks in a process apart: their pool, what they may take, and what comes back."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from pydantic import BaseModel

from cellblock.base.errors import HostUnavailable
from cellblock.base.offload import pool, worker
from cellblock.base.offload.budget import ByteBudget, OverBudget
from cellblock.base.offload.light import LIGHT_BYTES, LIGHT_CONTAINERS, is_light, is_small
from cellblock.base.offload.pool import Apart, Bill
from cellblock.base.offload.raw import TOKEN_START, Splices
from cellblock.base.offload.task import ApartFailed, Task, TookTooLong
from cellblock_worker.confinement.cgroup_workers import WorkerGroup, WorkerGroups
from cellblock_worker.launch.spawning import kill, reaped, spawn
from support.processes import gone
from support.waits import until, within

WORK = Path(__file__).parents[5] / "fixtures" / "apart_work"

MIB = 1024 * 1024


def task(name: str, **bounds: Any) -> Task:
    return Task(f"apart_work:{name}", "This body", **bounds)


@pytest.fixture
async def apart(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Apart]:
    monkeypatch.setenv("PYTHONPATH", str(WORK))
    made = Apart()
    yield made
    await within(made.close())


async def test_what_is_told_and_large_parts_come_back_from_one_process(apart: Apart) -> None:
    parts = (os.urandom(3 * MIB), b"", b"[1]")
    first = await within(apart.do(task("echo"), {"a": "\ud800é"}, *parts, key="k"))
    assert first.parts == list(parts)
    assert first.facts["a"] == "\ud800é"
    second = await within(apart.do(task("echo"), {}, key="k"))
    assert second.facts["pid"] == first.facts["pid"] != os.getpid(), "what it has imported is kept"
    assert set(first.facts["environment"]) <= {*worker.ENVIRONMENT, "LC_CTYPE"}, "and no credential"


async def test_too_much_memory_ends_one_piece_of_work(apart: Apart) -> None:
    with pytest.raises(ApartFailed, match=r"This body could not be read.*memory"):
        await within(apart.do(task("grow", memory_bytes=256 * MIB), {}, key="k"))
    assert (await within(apart.do(task("echo"), {"b": 1}, key="k"))).facts["b"] == 1


async def test_memory_that_the_limit_does_not_see_ends_one_piece_of_work(apart: Apart) -> None:
    held = await within(apart.do(task("share", memory_bytes=64 * MIB), {"mib": 16}, key="k"))
    membership = apart._membership  # pyright: ignore[reportPrivateUsage]
    if membership is None or not any("memory" in said for said in membership.in_force):
        pytest.skip("no memory cgroup can be made here")
    groups = membership.paths
    assert all(any(f"/{group.name}/" in line for line in held.facts["groups"]) for group in groups)
    with pytest.raises(ApartFailed, match=r"This body could not be read: that took more than 67108864 bytes"):
        await within(apart.do(task("share", memory_bytes=64 * MIB), {"mib": 200}, key="k"))
    assert (await within(apart.do(task("echo"), {"b": 1}, key="k"))).facts["b"] == 1
    await within(apart.close())
    assert not any(group.exists() for group in groups), "nothing is left of them"


@pytest.mark.slow
async def test_what_fails_is_billed_and_ends_one_piece_of_work(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    bills = {name: Bill() for name in ("computes", "grows", "cancelled", "late")}
    # A busy machine gives one second of computing in a minute.
    monkeypatch.setattr(pool, "WALL_SECONDS", 600.0)
    with pytest.raises(ApartFailed, match="1 s of computing"):
        await within(apart.do(task("spin", cpu_seconds=1), {}, key="k", bill=bills["computes"]))
    with pytest.raises(ApartFailed):
        await within(apart.do(task("grow", memory_bytes=512 * MIB), {}, key="k", bill=bills["grows"]))
    work = asyncio.ensure_future(apart.do(task("spin"), {}, key="k", bill=bills["cancelled"]))
    await until(lambda: any(child.cpu_times().user > 0.3 for child in children()), "its work")
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    monkeypatch.setattr(pool, "WALL_SECONDS", 2.0)
    with pytest.raises(TookTooLong):
        await within(apart.do(task("spin"), {}, key="k", bill=bills["late"]))
    assert bills["computes"].cpu_ms > 500, "all but what it took since the last look"
    assert bills["grows"].cpu_ms > 0
    assert bills["cancelled"].cpu_ms >= 300
    assert bills["late"].cpu_ms > 0


async def test_what_cannot_be_begun_is_not_billed_what_was_done_before(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Bill(), Bill()
    await within(apart.do(task("compute"), {"seconds": 0.2}, key="k", bill=first))
    (held,) = apart._idle  # pyright: ignore[reportPrivateUsage]

    class Refusing(WorkerGroup):
        def limit_run(self, memory_bytes: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(held, "_group", Refusing([]))
        patch.setattr(held, "_groups", WorkerGroups([]))
        with pytest.raises(ApartFailed):
            await within(apart.do(task("echo"), {}, key="k", bill=second))
    assert first.cpu_ms >= 200 and second.cpu_ms == 0


async def test_an_answer_that_does_not_come_ends_one_piece_of_work(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "WALL_SECONDS", 0.5)
    with pytest.raises(TookTooLong, match=r"within 0\.5 s"):
        await within(apart.do(task("sleep"), {}, key="k"))
    assert not children()


@pytest.mark.parametrize(("name", "why"), [("fail", "Cellblock failed"), ("chatter", "could not be read")])
async def test_a_fault_ends_one_piece_of_work(apart: Apart, name: str, why: str) -> None:
    with pytest.raises(ApartFailed, match=why):
        await within(apart.do(task(name), {}, key="k"))


async def test_a_killed_process_ends_only_what_it_had(apart: Apart) -> None:
    works = [
        asyncio.ensure_future(apart.do(task("sleep"), {}, key=key, subject=f"That of {key}"))
        for key in ("a", "b")
    ]
    await until(lambda: len(children()) == 2, "two processes")
    children()[0].kill()
    done, pending = await within(asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED))
    with pytest.raises(ApartFailed, match=r"That of [ab] could not be read.*was killed"):
        await done.pop()
    assert len(pending) == 1
    pending.pop().cancel()
    await asyncio.gather(*works, return_exceptions=True)
    assert not children()


async def test_a_process_that_dies_while_it_is_idle_is_replaced(apart: Apart) -> None:
    pid = (await within(apart.do(task("echo"), {}, key="k"))).facts["pid"]
    (held,) = apart._idle  # pyright: ignore[reportPrivateUsage]
    psutil.Process(pid).kill()
    await until(lambda: not held.alive, "its end")
    assert (await within(apart.do(task("echo"), {}, key="k"))).facts["pid"] != pid


async def test_a_process_that_was_large_or_is_idle_ends(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = (await within(apart.do(task("large"), {}, key="k"))).facts["pid"]
    assert not psutil.pid_exists(pid)
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.01)
    await within(apart.do(task("echo"), {}, key="k"))
    await until(lambda: not children(), "its end")


async def test_cancelled_work_and_a_closed_pool_leave_no_process(apart: Apart) -> None:
    work = asyncio.ensure_future(apart.do(task("spin"), {}, key="k"))
    await until(children, "a process")
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert not children()
    await within(apart.do(task("echo"), {}, key="k"))
    await within(apart.close())
    assert not children()
    with pytest.raises(HostUnavailable, match="stopping"):
        await apart.do(task("echo"), {}, key="k")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PDEATHSIG")
async def test_a_pool_that_is_closed_while_processes_start_or_work_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(WORK))
    made = Apart()
    before = psutil.Process().num_fds()
    works = asyncio.create_task(made.do(task("sleep"), {}, key="a"))
    await until(lambda: bool(made._working), "it works")  # pyright: ignore[reportPrivateUsage]
    starts = asyncio.create_task(made.do(task("echo"), {}, key="b"))
    await asyncio.sleep(0)
    await within(made.close())
    with pytest.raises(ApartFailed):
        await within(works)
    with pytest.raises(HostUnavailable):
        await within(starts)
    await until(lambda: psutil.Process().num_fds() == before, "all descriptors are closed")


async def test_a_process_dies_with_a_broker_that_is_killed() -> None:
    program = (
        "import asyncio\nfrom cellblock.base.offload.pool import Apart\nfrom cellblock.base.offload.task import Task\n"
        "asyncio.run(Apart().do(Task('apart_work:spin', ''), {}, key='k'))"
    )
    broker = await spawn(sys.executable, "-c", program, env={**os.environ, "PYTHONPATH": str(WORK)})
    try:
        mine = psutil.Process(broker.pid)
        await until(mine.children, "a process")
        spinning = mine.children()
        await until(lambda: spinning[0].cpu_times().user > 0.3, "its work")
    finally:
        kill(broker, group=False)
        await reaped(broker)
    await gone(spinning)


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "cellblock.base.offload.process" in child.cmdline()
    ]


def test_each_and_all_together_are_bounded() -> None:
    budget = ByteBudget(each=10, whole=15, of="this client")
    budget.take("a", 10)
    with pytest.raises(OverBudget, match="this client have over 10 bytes"):
        budget.take("a", 1)
    with pytest.raises(OverBudget, match="all together have over 15 bytes"):
        budget.take("b", 6)
    with budget.holding("b", 5), pytest.raises(OverBudget):
        budget.take("c", 1)
    budget.give_back("a", 10)
    assert (budget.total, budget.held_for("a"), budget.held_for("b")) == (0, 0, 0)
    budget.take("b", 10)


@pytest.mark.parametrize(
    ("raw", "light"),
    [
        (b"", True),
        (b'"' + b"x" * (LIGHT_BYTES - 2) + b'"', True),
        (b'"' + b"x" * (LIGHT_BYTES - 1) + b'"', False),
        (b"[" + b"[]," * (LIGHT_CONTAINERS - 2) + b"{}]", True),
        (b"[" + b"{}," * (LIGHT_CONTAINERS - 1) + b"[]]", False),
    ],
)
def test_bytes_and_containers_are_counted(raw: bytes, light: bool) -> None:
    assert is_light(raw) is light


class Model(BaseModel):
    rows: list[int]


@dataclass
class Plain:
    rows: Any


@dataclass(slots=True)
class Slotted:
    rows: Any


@dataclass(slots=True)
class Below(Slotted):
    more: int = 0


class Named(NamedTuple):
    rows: Any


@pytest.mark.parametrize("kind", [list, tuple, set, deque, Plain, Slotted, Below, Named])
def test_data_is_counted_whatever_holds_it(kind: Any) -> None:
    assert is_small(kind([1, 2, 3]))
    assert not is_small(kind([*range(LIGHT_BYTES)]))
    assert not is_small([[{"a": kind([*range(LIGHT_BYTES)])}]])


def test_models_bytes_and_what_names_itself_are_counted() -> None:
    assert is_small(Model(rows=[1])) and not is_small(Model(rows=[0] * LIGHT_BYTES))
    few, many = bytes(10), bytes(2 * LIGHT_BYTES)
    for kind in (bytes, bytearray, memoryview):
        assert is_small(kind(few)) and not is_small(kind(many))
    loop = Slotted(None)
    loop.rows = [loop]
    assert not is_small(loop)


def test_a_text_takes_the_place_of_its_token_and_of_its_quotes() -> None:
    splices = Splices()
    with splices.holding(b'{"a":[1]}') as token:
        message = json.dumps({"x": token, "y": [token]}).encode()
        assert json.loads(b"".join(splices.spliced(message))) == {"x": {"a": [1]}, "y": [{"a": [1]}]}
    assert splices.spliced(message) == [message], "it is over"


def test_a_text_within_a_text_is_put_in_escaped() -> None:
    splices = Splices()
    gone: list[str] = []
    token = splices.add(rb"[\"\\u0000\"]", quote=b'\\"', on_gone=lambda: gone.append("gone"))
    message = json.dumps({"text": json.dumps({"result": token})}).encode()
    whole = b"".join(splices.spliced(message))
    assert json.loads(json.loads(whole)["text"]) == {"result": ["\0"]}
    assert gone == ["gone"] and splices.spliced(message) == [message], "it is good for one use"


def test_what_only_looks_like_a_token_stays() -> None:
    splices = Splices()
    with splices.holding(b"1") as token:
        other = json.dumps([TOKEN_START, TOKEN_START + "0" * 32, token[:-1], TOKEN_START * 3]).encode()
        assert b"".join(splices.spliced(other)) == other
        assert b"".join(splices.spliced(other[:-1] + b',"' + token.encode() + b'"]')) == other[:-1] + b",1]"
