"""A host whose processes serve several runs of one key: who gets which, who waits for which, and which must go."""

import itertools
import os
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from msgspec.structs import replace

from cellblock_worker.confinement import confinement
from cellblock_worker.host import reusable
from cellblock_worker.host.host import Host
from cellblock_worker.wire import protocol
from cellblock_worker.worker import worker
from cellblock_worker.worker.worker import Worker
from support.scripted_broker import BOUND, RUN, Broker, StartHost
from support.waits import until


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits for as long as it takes for a process of its key, whatever its return costs."""
    monkeypatch.setattr(reusable, "WAIT_SECONDS", BOUND)
    monkeypatch.setattr(worker, "RETURN_POLLS", 10_000)
    monkeypatch.setattr(worker, "RETURN_CPU_SECONDS", BOUND)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="without kernel limits nothing is reused")

AGAIN = """
ready()
while True:
    start = read()
    if start.body == b"calls":
        frame(b"{}", t="call", id=1, server="s", tool="t", events="")
        read()
    frame(str(os.getpid()).encode(), t="done", ms=0)
    ready()
"""


async def _pid_of(broker: Broker, token: bytes) -> int:
    """The process that this run had."""
    await broker.end_of(token)
    return next(int(body) for of, said, body in broker.heard if of == token and said.t == "ended")


async def _reused(broker: Broker, run: protocol.Run, tokens: Iterator[bytes]) -> bytes:
    """The token of a run that got a process of one before it: its `Ready` may come after the next run."""
    for token in itertools.islice(tokens, 100):
        broker.say(run, token, b"1")
        if (await broker.end_of(token)).reused:
            return token
    raise AssertionError("no process was reused")


def _idle(host: Host) -> list[Worker]:
    """The processes that wait for another run."""
    return host._reusable.over(0)


async def _gone(pid: int) -> None:
    await until(lambda: not psutil.pid_exists(pid), "it is gone")


@on_linux
async def test_a_process_that_no_run_can_have_any_more_ends(serve: StartHost) -> None:
    """One that is kept, and one that has a run when it is told."""
    _, broker = await serve(AGAIN, warm=1, reuse=True)
    tokens = (f"run {number}".encode() for number in itertools.count())
    old, new = replace(RUN, key="old 1"), replace(RUN, key="new 1")
    await _reused(broker, old, tokens)
    broker.say(old, calling := next(tokens), b"calls")
    await broker.until(lambda: "call" in broker.run_of(calling))
    broker.say(old, other := next(tokens), b"1")
    kept = await _pid_of(broker, other)
    broker.say(new, token := next(tokens), b"1")
    await broker.end_of(token)
    broker.say(protocol.Keys(prefix="new"))
    await _gone(kept)
    broker.say(protocol.Reply(id=1, ok=True), calling, b"1")
    await _gone(await _pid_of(broker, calling))
    await _reused(broker, new, tokens)


@on_linux
async def test_a_busy_client_beside_another_that_is_there_keeps_its_process(serve: StartHost) -> None:
    """Its runs give way, and so has a process that has been lowered for them."""
    host, broker = await serve(AGAIN, warm=1, reuse=True)
    run, tokens = replace(RUN, key="busy", lane=1), map(str.encode, map(str, itertools.count()))
    pids: list[int] = []
    # Half of what is remembered goes in two seconds: on a busy machine the other client may be forgotten in between.
    while len(pids) < 5 or (len(set(pids[-5:])) > 1 and len(pids) < 30):
        host._waiting.used(2, 0.001, time.monotonic())
        host._waiting.used(1, 1e9, time.monotonic())
        pids.append(await _pid_of(broker, await _reused(broker, run, tokens)))
    assert len(set(pids[-5:])) == 1
    assert os.getpriority(os.PRIO_PROCESS, pids[-1]) > os.getpriority(os.PRIO_PROCESS, 0)


@on_linux
async def test_what_a_client_has_kept_holds_no_place_that_another_waits_for(
    serve: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two places, both with a kept process of one client: the one that has waited longest goes for another's run."""
    monkeypatch.setattr(reusable, "SURPLUS_SECONDS", BOUND)
    host, broker = await serve(AGAIN, warm=1, capacity=2, reuse=True)
    mine, other = (replace(RUN, key=key) for key in ("mine", "other"))
    for token in (b"a", b"b"):
        broker.say(mine, token, b"calls")
    await broker.until(lambda: len(broker.of(protocol.Call)) == 2)
    pids: list[int] = []
    for kept, token in enumerate((b"a", b"b"), 1):
        broker.say(protocol.Reply(id=1, ok=True), token, b"1")
        pids.append(await _pid_of(broker, token))
        await until(lambda kept=kept: len(_idle(host)) == kept, "it is kept")
    broker.say(other, b"c", b"calls")
    await broker.until(lambda: len(broker.of(protocol.Call)) == 3)
    await _gone(pids[0])
    assert psutil.pid_exists(pids[1]) and len(_idle(host)) == 1
    broker.say(other, b"d", b"calls")
    await broker.until(lambda: len(broker.of(protocol.Call)) == 4)
    await _gone(pids[1])


SLOW_AGAIN = """
import time
ready()
while True:
    how = read().body
    frame(str(os.getpid()).encode(), t="done", ms=0)
    if how == b"dies":
        os._exit(1)
    time.sleep(30 if how == b"hangs" else 0.03)
    ready()
"""
"""Its next context takes time to be made."""


@on_linux
@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.usefixtures("patient")
async def test_a_run_waits_for_a_process_of_its_key(places: int, serve: StartHost) -> None:
    _, broker = await serve(SLOW_AGAIN, warm=2, capacity=places, reuse=True)
    pids: list[int] = []
    for key in (*["one"] * 5, "another"):
        broker.say(replace(RUN, key=key), token := b"%d" % len(pids), b"1")
        pids.append(await _pid_of(broker, token))
    assert len(set(pids[:5])) == 1 and pids[5] != pids[0]


@on_linux
@pytest.mark.parametrize("waits", [True, False])
async def test_a_run_waits_for_a_process_at_work_whose_runs_are_brief(
    waits: bool, serve: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a boot takes less than its runs, it does not."""
    monkeypatch.setattr(reusable, "WAIT_SECONDS", BOUND)
    monkeypatch.setattr(reusable, "BOOT_SECONDS", BOUND if waits else 1e-9)
    host, broker = await serve(AGAIN, warm=1, reuse=True)
    run = replace(RUN, key="one")
    # How long its runs take is known once one of them is over.
    await _reused(broker, run, (b"%d" % number for number in itertools.count()))
    await until(lambda: len(_idle(host)) > 0, "a process is kept")
    held = [b"held %d" % number for number in range(len(_idle(host)))]
    for token in held:
        broker.say(run, token, b"calls")
    await broker.until(lambda: all("call" in broker.run_of(token) for token in held))
    broker.say(run, b"next", b"1")
    if waits:
        await until(lambda: b"next" in host._link_of, "the run has come")
        broker.say(protocol.Reply(id=1, ok=True), held[0], b"1")
        assert await _pid_of(broker, b"next") == await _pid_of(broker, held[0])
    else:
        await broker.end_of(b"next")
        assert broker.run_of(held[0])[-1] == "call"


@on_linux
@pytest.mark.parametrize("how", ["dies", "hangs"])
async def test_what_waits_for_a_process_that_does_not_return_gets_another_one(
    how: str, serve: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reusable, "WAIT_SECONDS", 0.01 if how == "hangs" else BOUND)
    host, broker = await serve(SLOW_AGAIN, warm=2, capacity=1, reuse=True)
    broker.say(replace(RUN, key="one"), b"first", how.encode())
    first = await _pid_of(broker, b"first")
    broker.say(replace(RUN, key="one"), b"second", b"1")
    assert await _pid_of(broker, b"second") != first
    await _gone(first)
    await until(lambda: all(worker.pid != first for worker in host._workers), "it is reaped")


@on_linux
@pytest.mark.parametrize("ends", ["cancelled", "host_stopping"])
@pytest.mark.usefixtures("patient")
async def test_a_run_that_waits_for_a_process_can_be_ended(ends: str, serve: StartHost) -> None:
    host, broker = await serve(SLOW_AGAIN, warm=2, capacity=1, reuse=True)
    broker.say(replace(RUN, key="one"), b"first", b"hangs")
    await broker.end_of(b"first")
    broker.say(replace(RUN, key="one"), b"second", b"1")
    if ends == "cancelled":
        broker.say(protocol.Cancel(), b"second")
    else:
        await until(lambda: b"second" in host._link_of, "the run has come")
        await host.stop()
    assert (await broker.end_of(b"second")).reason == ends
    assert broker.run_of(b"second") == ["ended"]


async def test_without_kernel_limits_no_process_is_reused_and_the_host_says_so(
    serve: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run's memory would count as a later one's."""
    monkeypatch.setattr(confinement, "_LINUX", False)
    _, broker = await serve(AGAIN, warm=1, reuse=True)
    (hello,) = broker.of(protocol.Hello)
    assert any(layer.startswith("reuse: ") for layer in hello.missing)
    assert not any(layer.startswith("reuse: ") for layer in hello.layers)
    broker.say(replace(RUN, key="a"), b"run", b"1")
    await _gone(await _pid_of(broker, b"run"))
