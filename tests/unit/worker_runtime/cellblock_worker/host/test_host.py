"""A whole host against a scripted broker, over real ZeroMQ in one process, mostly with fake workers; also one whose
processes serve several runs of one key: who gets which, who waits for which, and which must go."""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from cellblock_worker.confinement import confinement
from cellblock_worker.host import host as host_module, reusable, warm
from cellblock_worker.host.host import Host
from cellblock_worker.host.host_config import HostConfig
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import pack_header
from cellblock_worker.worker import worker
from cellblock_worker.worker.worker import Worker
from support.fake_worker import FakeWorkers
from support.scripted_broker import BOUND, RUN, Broker, StartHost, config
from support.waits import until, within

ECHO = """
ready()
start = read()
frame(start.body, t="done", ms=0)
hang()
"""


async def ended(broker: Broker, body: bytes = b"{}", token: bytes = b"token") -> protocol.Ended:
    """The end of a run."""
    broker.say(RUN, token, body)
    return await broker.end_of(token)


async def test_the_warm_target_is_kept(serve: StartHost) -> None:
    _, broker = await serve(ECHO, warm=2, one_at_first=True)
    await broker.status(warm=1, booting=0, wanted=1)
    await ended(broker)
    await broker.status(warm=2, running=0, booting=0, wanted=2)


async def test_a_host_that_is_idle_after_a_burst_sheds_workers(
    serve: StartHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    waits = f"while not os.path.exists({str(there)!r}): time.sleep(0.01)\nframe("
    _, broker = await serve(ECHO.replace("frame(", waits), warm=2)
    await broker.status(warm=2, booting=0)
    for number in range(4):
        broker.say(RUN, b"%d" % number, b"1")
    await broker.status(wanted=4)
    monkeypatch.setattr(warm, "IDLE_SECONDS", 0.0)
    there.touch()
    await broker.status(warm=2, running=0, wanted=2)


async def test_no_more_boots_at_once_than_allowed(serve: StartHost) -> None:
    _, broker = await serve("time.sleep(0.1)\n" + ECHO, warm=5, boot_parallel=2)
    await broker.until(lambda: any(status.warm == 5 for status in broker.of(protocol.Status)))
    assert max(status.booting for status in broker.of(protocol.Status)) == 2


@pytest.mark.parametrize(("warm", "rehearsed"), [(1, b"True"), (0, b"False")])
async def test_a_worker_that_a_run_waits_for_rehearses_nothing(
    warm: int, rehearsed: bytes, serve: StartHost
) -> None:
    _, broker = await serve(
        """
        ready()
        read()
        frame(str(any(rehearsals)).encode(), t="done", ms=0)
        hang()
        """,
        warm=warm,
    )
    await broker.status(warm=warm, booting=0)
    await ended(broker)
    assert broker.results() == [rehearsed]


@pytest.mark.parametrize("lasts", [True, False])
async def test_a_brief_run_is_one_message_and_one_that_lasts_is_told_before_its_end(
    lasts: bool, serve: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "LASTS_SECONDS", 0.01 if lasts else 60.0)
    _, broker = await serve("""
        ready()
        start = read()
        if start.body == b"waits":
            read()
        frame(start.body, t="failed", ms=0, kind="rejection")
        hang()
        """)
    broker.say(RUN, b"token", b"waits" if lasts else b"1")
    if lasts:
        await broker.until(lambda: broker.run_of(b"token") == ["leased"])
        assert broker.of(protocol.Leased)[0].wall_ms >= 10
        broker.say(protocol.Reply(id=1, ok=True), b"token")
    rejected = await broker.end_of(b"token")
    assert broker.run_of(b"token") == (["leased", "ended"] if lasts else ["ended"])
    assert (rejected.reason, rejected.outcome) == ("finished", "rejection")


async def test_a_brief_run_without_an_outcome_is_told_to_have_begun(
    serve: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end alone would say that it may not have."""
    monkeypatch.setattr(host_module, "LASTS_SECONDS", 60.0)
    _, broker = await serve("ready()\nread()\nos._exit(3)")
    assert ((await ended(broker)).reason, broker.run_of(b"token")) == (
        "crashed",
        ["leased", "ended"],
    )


async def test_a_call_and_its_reply(serve: StartHost) -> None:
    _, broker = await serve("""
        ready()
        read()
        frame(b'{"a":1}', t="call", id=1, server="s", tool="t", events="")
        frame(read().body, t="done", ms=0)
        hang()
        """)
    broker.say(RUN, b"token", b"{}")
    await broker.until(lambda: "call" in broker.run_of(b"token"))
    broker.say(protocol.Reply(id=1, ok=True), b"another", b"foreign")
    turned = dict(reversed(msgspec.to_builtins(protocol.Reply(id=1, ok=True)).items()))
    broker.raw(b"token", pack_header(turned), b"in another order")
    broker.say(protocol.Reply(id=1, ok=True), b"token", b"mine")
    await broker.end_of(b"token")
    assert broker.results() == [b"mine"]
    broker.say(protocol.Reply(id=1, ok=True), b"token", b"late")
    await broker.status(warm=1)


async def test_cancel_of_a_run_that_waits_and_of_one_that_runs(serve: StartHost) -> None:
    _, broker = await serve("time.sleep(0.3)\nready()\nread()\nhang()", warm=0, boot_parallel=1)
    broker.say(RUN, b"runs", b"{}")
    broker.say(RUN, b"waits", b"{}")
    broker.say(protocol.Cancel(), b"waits")
    assert ((await broker.end_of(b"waits")).reason, broker.run_of(b"waits")) == ("cancelled", ["ended"])
    await broker.until(lambda: "leased" in broker.run_of(b"runs"))
    broker.say(protocol.Cancel(), b"runs")
    assert ((await broker.end_of(b"runs")).reason, broker.run_of(b"runs")) == (
        "cancelled",
        ["leased", "ended"],
    )
    broker.say(protocol.Cancel(), b"never was")
    await broker.status(running=0)


@pytest.mark.parametrize("program", ["raise SystemExit(1)", None], ids=["exits", "cannot be spawned"])
async def test_boots_that_fail_are_reported_to_who_waits_and_not_spun(
    program: str | None, start_host: StartHost, fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is None:
        fake_workers.argv(["/no/such/program"])
    else:
        fake_workers.run(program)
    monkeypatch.setattr(host_module, "BOOT_RETRY_SECONDS", 0.1)
    spawns: list[float] = []
    real = host_module.Worker

    def counted(*args: Any, **kwargs: Any) -> Any:
        spawns.append(asyncio.get_running_loop().time())
        return real(*args, **kwargs)

    monkeypatch.setattr(host_module, "Worker", counted)
    _, broker = await start_host(warm=1, boot_parallel=1)
    failed = await ended(broker)
    assert failed.reason == "boot_failed" and failed.detail
    assert host_module.BOOT_FAILURES_TOLERATED <= len(spawns) <= 6
    pauses = [after - before for before, after in itertools.pairwise(spawns)]
    assert min(pauses) >= 0.09

    # And it serves again as soon as boots work.
    fake_workers.run(ECHO)
    broker.say(RUN, b"later", b"1")
    await broker.until(lambda: "ended" in broker.run_of(b"later"))
    if broker.run_of(b"later") == ["ended"]:
        # One more boot of the broken kind was under way.
        await broker.status(warm=1)
        assert (await ended(broker, token=b"last")).reason == "finished"


async def test_malformed_messages_of_the_broker_are_dropped(serve: StartHost) -> None:
    _, broker = await serve(ECHO)
    await broker.status(warm=1)
    broker.raw(b"one part")
    for header in (b"\xc1", pack_header({"t": "done", "ms": 1}), pack_header({"t": "run"})):
        broker.raw(b"", header, b"")
    assert (await ended(broker)).reason == "finished"


@pytest.mark.parametrize("way", ["stop", "shutdown"])
async def test_stopping_ends_every_run_and_kills_every_worker(
    way: str, serve: StartHost, fake_workers: FakeWorkers
) -> None:
    others = psutil.Process().children()
    host, broker = await serve("ready()\nread()\nhang()", warm=0, boot_parallel=1)
    broker.say(RUN, b"runs", b"{}")
    await broker.until(lambda: "leased" in broker.run_of(b"runs"))
    fake_workers.run("hang()")
    broker.say(RUN, b"waits", b"{}")
    await broker.status(booting=1, running=1)
    children = [child for child in psutil.Process().children() if child not in others]
    if way == "stop":
        await within(asyncio.gather(host.stop(), host.stop()))
    else:
        broker.say(protocol.Shutdown())
        await within(host.stopped.wait())
    assert {(await broker.end_of(token)).reason for token in (b"runs", b"waits")} == {"host_stopping"}
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize(
    "change",
    [
        {"identity": "xyz"},
        {"capacity": 0},
        {"warm": -1},
        {"surprise": 1},
        {"warm": "1"},
        {"log_level": "loud"},
        *({"reuse": wrong} for wrong in ({}, [], 1, None)),
    ],
    ids=str,
)
def test_configurations_that_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        config("ipc:///x", **change)


@pytest.mark.parametrize("reuse", [False, True])
def test_a_configuration_is_read_as_it_was_written(reuse: bool) -> None:
    made = config("ipc:///x", reuse=reuse, total_memory_bytes=1 << 40, log_level="debug")
    assert HostConfig.from_json(made.to_json().encode()) == made


@pytest.mark.parametrize("text", ["", "[]", "5", '{"connect": "ipc:///x"}', "{"])
def test_what_is_no_configuration(text: str) -> None:
    with pytest.raises(ValueError):
        HostConfig.from_json(text.encode())


async def test_a_violation_that_is_as_long_as_a_header_may_be_still_ends_the_run(serve: StartHost) -> None:
    """What the worker sent must not come back whole in the reason: with it `Ended` would be over a header's cap."""
    _, broker = await serve('ready()\nread()\nframe(t="done", ms=0, **{"x" * 16_300: 0})\nhang()')
    broken = await ended(broker)
    assert broken.reason == "protocol" and len(broken.detail) <= protocol.MAX_DETAIL_CHARS
    await broker.status(running=0, warm=1)


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
    """Where those take long, it does not."""
    monkeypatch.setattr(reusable, "WAIT_SECONDS", BOUND)
    monkeypatch.setattr(reusable, "SOON_SECONDS", BOUND if waits else 1e-9)
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
    assert ((await broker.end_of(b"second")).reason, broker.run_of(b"second")) == (ends, ["ended"])


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
