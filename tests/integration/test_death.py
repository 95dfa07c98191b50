"""Death of any part, by SIGKILL unless said otherwise: what is told, what recovers, and that nothing is left.

Hosts that refuse to serve are an error at the broker's start, and one more death later. Clients that read slowly, or
not at all, or vanish with their pipe full keep nothing alive.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, HostUnavailable
from cellblock.run.calls import ToolCalls
from support.brokers import begun, host_of, ready
from support.cellblock_zygote import Command, started
from support.commands import cellblock, piped
from support.entries import CELLBLOCK, WARM, ledger, plain_server, recorded, settings, write_config
from support.params import mostly
from support.processes import alive, command_line, descendants, gone, workers_of
from support.public_servers import node_entry
from support.responses import error_of, succeeded
from support.waits import until, warmed, within

pytestmark = pytest.mark.real_host

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
ENDLESS = "console.log('running'); for (;;) {}"
IN_A_CALL = """
    import { echo, never } from "@codemode/servers/plain";
    await echo({});
    console.log("running");
    await never({});
"""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker of its own for each test: its host is going to die. No run goes on elsewhere (`test_going_on.py`)."""
    plain = plain_server("--ledger", tmp_path / "ledger.jsonl")
    async with ready(settings(tmp_path, {"plain": plain}, journal="off", pool={"warm": WARM})) as started:
        yield started


async def works(broker: Broker) -> None:
    """There is a host, as soon as it has started again, and a script with a tool call runs."""
    await until(lambda: broker.hosts, "a host")
    code = """
        import { echo } from "@codemode/servers/plain";
        globalThis.__codemode_result__ = await echo({ fine: true });
    """
    assert succeeded(await within(broker.run(code))) == '{"fine": true}'


async def called(record: Path, tool: str) -> None:
    """Waits until the plain server has been called."""
    await until(lambda: any(event.get("tool") == tool for event in ledger(record)), f"a call of {tool}")


async def test_a_killed_host_takes_its_workers_and_the_broker_recovers(
    broker: Broker, tmp_path: Path
) -> None:
    endless = await begun(broker, ENDLESS)
    in_a_call = await begun(broker, IN_A_CALL)
    await called(tmp_path / "ledger.jsonl", "never")
    host = host_of(broker)
    workers = workers_of(host.pid)
    assert len(workers) >= 2
    host.kill()
    lost = await within(endless)
    assert "may have run in part" in error_of(lost, "HOST_LOST").message
    assert [entry.message for entry in lost.logs] == ["running"]
    with_calls = error_of(await within(in_a_call), "HOST_LOST")
    assert "1 completed, 1 in flight (may have run), 0 not started" in with_calls.message
    await gone([host, *workers])
    await works(broker)
    assert broker.host_pid != host.pid


async def test_a_host_that_hangs_is_replaced(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: it is there, but says nothing. Its workers die with it, one in an endless loop too."""
    monkeypatch.setattr("cellblock.pool.pool.HOST_SILENCE_SECONDS", 2.5)
    endless = await begun(broker, ENDLESS)
    host = host_of(broker)
    workers = workers_of(host.pid)
    host.suspend()
    assert "silent" in error_of(await within(endless), "HOST_LOST").message
    await gone([host, *workers])
    await works(broker)


@pytest.mark.thorough
async def test_a_host_that_hangs_cannot_hold_a_run_past_its_deadline(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's own clock ends the run, even if silence alone would never replace the host."""
    monkeypatch.setattr("cellblock.pool.pool.HOST_SILENCE_SECONDS", 1000.0)
    endless = await begun(broker, ENDLESS, limits={"timeoutMs": 500})
    host = host_of(broker)
    host.suspend()
    started = time.monotonic()
    error_of(await within(endless), "HOST_LOST")
    assert time.monotonic() - started < 60
    await until(lambda: not alive(host), "the host is killed")
    await works(broker)


@pytest.mark.thorough
async def test_a_worker_that_is_stopped_in_its_run_is_still_killed_at_its_timeout(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"plain": plain_server()}, journal="off")) as broker:
        endless = await begun(broker, ENDLESS, limits={"timeoutMs": 1500})
        # None is warm beside it.
        (worker,) = workers_of(host_of(broker).pid)
        worker.suspend()
        error_of(await within(endless), "SANDBOX_LIMIT")
        await gone([worker])
        await works(broker)


async def test_warm_workers_that_die_are_replaced_unnoticed(broker: Broker) -> None:
    await warmed(broker)
    victims = workers_of(host_of(broker).pid)
    for victim in victims:
        victim.kill()
    # A run may be given to a worker whose death the host has not seen yet; it must be told so, not hang.
    response = await within(broker.run("globalThis.__codemode_result__ = 1;"))
    assert response.ok or response.diagnostics[0].code == "WORKER_CRASHED"
    await gone(victims)
    await until(
        lambda: len(workers_of(host_of(broker).pid)) == broker.settings.cellblock.pool.warm, "a full pool"
    )
    await works(broker)


async def test_a_run_that_is_aborted_twice_still_cancels_its_calls(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the broker closes on a cancelled caller: the second order comes while the SDK writes the notice."""
    abandon = ToolCalls.abandon

    def twice(calls: ToolCalls) -> None:
        abandon(calls)
        asyncio.get_running_loop().call_soon(abandon, calls)

    monkeypatch.setattr(ToolCalls, "abandon", twice)
    run = await begun(broker, IN_A_CALL)
    await called(tmp_path / "ledger.jsonl", "never")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(run)
    await until(
        lambda: any(event["event"] == "cancelled" for event in ledger(tmp_path / "ledger.jsonl")),
        "a cancel notification",
    )


async def test_closing_the_broker_ends_runs_that_are_under_way(tmp_path: Path) -> None:
    """Every call in flight is cancelled upstream, each once, and every run gets its response."""
    record = tmp_path / "ledger.jsonl"
    before = set(descendants(os.getpid()))
    async with ready(settings(tmp_path, {"plain": plain_server("--ledger", record)})) as broker:
        runs = [await begun(broker, ENDLESS), *[await begun(broker, IN_A_CALL) for _ in range(8)]]

        def in_flight() -> list[Any]:
            return [event["id"] for event in ledger(record) if event.get("tool") == "never"]

        await until(lambda: len(in_flight()) == 8, "eight calls in flight")
        started = time.monotonic()
    assert time.monotonic() - started < 60
    for run in runs:
        error_of(await within(run), "CANCELLED")
    assert set(descendants(os.getpid())) - before == set()
    cancelled = sorted(event["id"] for event in ledger(record) if event["event"] == "cancelled")
    assert cancelled == sorted(in_flight())


# ---- a whole broker in a process of its own --------------------------------------------------------------


async def all_of(pid: int, *parts: str) -> list[Any]:
    """The descendants of a process, as soon as there is one whose command line has each of `parts`."""

    def are_there() -> bool:
        lines = [" ".join(command_line(process)) for process in descendants(pid)]
        return all(any(part in line for line in lines) for part in parts)

    await until(are_there, f"processes {parts}")
    return descendants(pid)


async def running_script(tmp_path: Path, *options: str, **more: Any) -> list[str]:
    """The arguments of a `cellblock run` with the servers and a script that stays in a call."""
    servers = {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl"), **more}
    config = write_config(tmp_path, servers)
    script = tmp_path / "script.js"
    script.write_text(IN_A_CALL)
    return ["run", str(script), "--config", str(config), "--state-dir", str(tmp_path / "s"), *options]


PARTS = ("cellblock_worker", "deno", "plain_server")


@pytest.mark.servers
@pytest.mark.parametrize(
    "number",
    mostly([signal.SIGKILL], [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]),
)
async def test_the_end_of_cellblock_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Neither host nor worker nor upstream server; after a signal that can be handled, no socket either."""
    # A server of others is not so quick to see that nobody is there any more.
    more = {"everything": node_entry("server-everything", "stdio")} if number is signal.SIGKILL else {}
    parts = (*PARTS, *(["server-everything"] if more else []))
    async with piped(*await running_script(tmp_path, **more), program=CELLBLOCK) as running:
        process = running.process
        await called(tmp_path / "ledger.jsonl", "never")
        left = await all_of(process.pid, *parts)
        process.send_signal(number)
        code = await within(process.wait())
        output, said = await within(process.communicate())
        await gone(left)
    assert output == b""
    if number is signal.SIGKILL:
        assert code == -number
    else:
        assert code == 128 + (signal.SIGINT if number is signal.SIGINT else signal.SIGTERM), said
        assert list((tmp_path / "s" / "run").glob("*")) == []
        assert any(event["event"] == "cancelled" for event in ledger(tmp_path / "ledger.jsonl"))


async def test_what_a_killed_broker_left_is_removed_by_the_next_which_repeats_no_call(tmp_path: Path) -> None:
    """Its socket directory, which nobody was there to remove."""
    state = Path("/tmp") / f"cellblock-test-{os.getpid()}"  # short enough for a socket inside it
    arguments = [*(await running_script(tmp_path)), "--state-dir", str(state)]
    try:
        async with piped(*arguments, program=CELLBLOCK) as running:
            await called(tmp_path / "ledger.jsonl", "never")
            running.process.kill()
            await within(running.process.wait())
        assert len(list((state / "run").glob("broker-*"))) == 1
        (tmp_path / "script.js").write_text("globalThis.__codemode_result__ = 1;")
        done = await cellblock(*arguments, program=CELLBLOCK)
        assert (done.code, json.loads(done.out)["result"]) == (0, 1)
        assert [*(state / "run").iterdir()] == []
        calls = [event["tool"] for event in ledger(tmp_path / "ledger.jsonl") if event["event"] == "call"]
        assert calls == ["echo", "never"]
    finally:
        shutil.rmtree(state, ignore_errors=True)


@pytest.mark.parametrize("number", mostly([None], [signal.SIGKILL, signal.SIGTERM, None]), ids=str)
async def test_the_end_of_cellblock_serve_leaves_nothing(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    """With a run in flight; after a signal although the client keeps its end of stdin open."""
    config = write_config(tmp_path, {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")})
    arguments = ["serve", "--stdio", "--config", str(config), "--state-dir", str(tmp_path / "s")]
    async with piped(*arguments, program=CELLBLOCK) as running:
        running.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
        assert (await running.answer())["result"]["serverInfo"]["name"] == "cellblock"
        run = {"name": "codemode.run", "arguments": {"code": IN_A_CALL}}
        running.send(
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": run},
        )
        await called(tmp_path / "ledger.jsonl", "never")
        left = await all_of(running.process.pid, *PARTS)
        if number is None:
            running.close()
        else:
            running.process.send_signal(number)
        await within(running.process.wait())
        await gone(left)
    if number is not signal.SIGKILL:
        assert list((tmp_path / "s" / "run").glob("*")) == []
        assert any(event["event"] == "cancelled" for event in ledger(tmp_path / "ledger.jsonl"))


Refusing = Callable[..., Callable[[], int]]


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusing:
    """Given the numbers of the starts at which the host exits like one whose self-test gave no outcome: how many
    starts there were so far."""
    counter, refuse, program = tmp_path / "starts", tmp_path / "refuse", tmp_path / "python"
    refuse.write_text("")
    program.write_text(
        f"""#!/bin/sh
echo start >> {shlex.quote(str(counter))}
if grep -qx "$(($(wc -l < {shlex.quote(str(counter))})))" {shlex.quote(str(refuse))}; then
  echo "cellblock_worker refuses to serve: the self-test gave no outcome: it said nothing" >&2
  exit 3
fi
exec {shlex.quote(sys.executable)} "$@"
"""
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    def at(*starts: int) -> Callable[[], int]:
        refuse.write_text("".join(f"{start}\n" for start in starts))
        return lambda: len(counter.read_text().splitlines())

    return at


async def test_a_host_that_refuses_after_one_has_served_is_started_again(
    refusing: Refusing, tmp_path: Path
) -> None:
    """The soak found it: a self-test that was killed left the broker without a host for ever."""
    starts = refusing(2, 3)
    async with Broker(settings(tmp_path / "state")) as broker:
        host_of(broker).kill()
        await until(lambda: not broker.hosts, "the death is noticed")
        assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1
    assert starts() == 4


async def test_a_first_host_that_refuses_is_an_error_at_once(refusing: Refusing, tmp_path: Path) -> None:
    starts = refusing(1)
    with pytest.raises(HostUnavailable, match="the self-test gave no outcome"):
        await within(Broker(settings(tmp_path / "state")).__aenter__())
    assert starts() == 1


ANSWERS = 4
BIG = """
    import { echo } from "@codemode/servers/plain";
    await echo({ number: NUMBER });
    globalThis.__codemode_result__ = { number: NUMBER, filler: "x".repeat(100_000) };
"""
"""One of these is more than a pipe holds (64 KiB)."""


def message(method: str, parameters: dict[str, Any], **number: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters, **number}).encode() + b"\n"


@asynccontextmanager
async def served(tmp_path: Path, *, console_script: bool = False) -> AsyncIterator[Process | Command]:
    """A connected server, and runs that have all called their tool; nobody has read an answer yet."""
    config = write_config(tmp_path, {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")})
    words = ("serve", "--stdio", "--config", str(config), "--state-dir", str(tmp_path / "s"))
    streams: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "limit": 1 << 12}
    if console_script:
        process = await asyncio.create_subprocess_exec(CELLBLOCK, *words, **streams)
    else:
        process = await started(*words, **streams)
    try:
        process.stdin.write(message("initialize", HELLO, id=1))
        await within(read_line(process, bytearray()))
        process.stdin.write(message("notifications/initialized", {}))
        for number in range(ANSWERS):
            arguments = {"name": "codemode.run", "arguments": {"code": BIG.replace("NUMBER", str(number))}}
            process.stdin.write(message("tools/call", arguments, id=100 + number))
        await until(
            lambda: recorded(tmp_path / "ledger.jsonl", tool="echo") == ANSWERS,
            "every run has called its tool",
            bound=40,
        )
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await within(process.communicate())


async def read_line(process: Process | Command, rest: bytearray) -> bytes:
    """The next line of stdout, read in small pieces; what follows it stays in `rest`."""
    while b"\n" not in rest:
        piece = await process.stdout.read(4096)
        assert piece, "stdout has ended"
        rest += piece
    line, _, after = bytes(rest).partition(b"\n")
    rest[:] = after
    return line


@pytest.mark.thorough
async def test_a_client_that_reads_late_gets_every_answer_once(tmp_path: Path) -> None:
    async with served(tmp_path) as process:
        rest, answered = bytearray(), list[int]()
        while len(answered) < ANSWERS:
            said = json.loads(await within(read_line(process, rest)))
            if "id" in said:
                answered.append(said["id"])
                assert said["result"]["structuredContent"]["result"]["number"] == said["id"] - 100
        assert sorted(answered) == [100 + number for number in range(ANSWERS)]
        process.stdin.close()
        assert await within(process.wait()) == 0
    assert recorded(tmp_path / "ledger.jsonl", tool="echo") == ANSWERS


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["closes stdin", "SIGTERM", "closes both"])
async def test_a_client_that_never_reads_cannot_keep_anything_alive(tmp_path: Path, way: str) -> None:
    """Its pipe is full, so that nothing more can be written to it, also not by an interpreter that ends."""
    async with served(tmp_path, console_script=way != "closes stdin") as process:
        left = descendants(process.pid)
        assert left
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        if way == "closes both":
            process.stdout._transport.close()  # pyright: ignore
        # `Process.wait` waits for the end of the pipe, too, and nobody reads what is left in it.
        await until(lambda: process.returncode is not None, "the server's exit")
        assert process.returncode in (0, 128 + signal.SIGTERM)
        await gone(left)
    assert list((tmp_path / "s" / "run").glob("*")) == []
