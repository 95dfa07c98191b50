"""The servers of a broker while it starts, and when its configuration changes under it.

In its first seconds: who waits for servers that are slow to start, hang or are dead, and for how long. Later, runs in
flight keep their sessions, and nothing is left behind.
"""

import asyncio
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import mcp_types as types
import psutil
import pytest
from mcp import Client, StdioServerParameters

from cellblock import Broker, ConfigError, InvalidRequest, Settings
from cellblock.app import assembly
from cellblock.serve.mcp.manual import STARTING, STARTING_AS_KNOWN
from integration.holding import Holding
from support.asking_client import stdio
from support.brokers import ready
from support.entries import plain_server, settings, write_config
from support.processes import alive, command_line, descendants, gone
from support.responses import error_of, succeeded
from support.waits import until, within

PID = 'import { pid } from "@codemode/servers/plain"; globalThis.__codemode_result__ = Number(await pid({}));'

TWICE = """
    import { pid } from "@codemode/servers/plain";
    import { hold } from "@codemode/servers/local";
    const first = Number(await pid({}));
    await hold({});
    globalThis.__codemode_result__ = [first, Number(await pid({}))];
"""


@pytest.fixture
def gate() -> Holding:
    return Holding()


def plain_servers() -> list[psutil.Process]:
    """Those that this process has started."""
    own = descendants(psutil.Process().pid)
    return [one for one in own if "plain_server.py" in " ".join(command_line(one))]


async def test_a_run_in_flight_keeps_its_session_until_it_ends(tmp_path: Path, gate: Holding) -> None:
    def configured(*arguments: str, **servers: object):  # type: ignore[no-untyped-def]
        return settings(
            tmp_path / "s", {"plain": plain_server(*arguments), **servers}, pool={"warm": 1, "capacity": 4}
        )

    async with ready(configured(), tools=[gate.tool]) as broker:
        before = broker.catalog
        assert broker.reconfigure(configured()) == []
        old = succeeded(await broker.run(PID))
        running = asyncio.create_task(broker.run(TWICE))
        await until(lambda: gate.inside == 1, "it is called")

        assert broker.reconfigure(configured("--ledger", str(tmp_path / "l"), other=plain_server())) == [
            "server other is added",
            "server plain has changed; runs in flight keep its old session",
        ]
        new = succeeded(await broker.run(PID))
        ours, theirs = psutil.Process(old), psutil.Process(new)
        assert new != old and alive(ours)
        await until(lambda: set(broker.catalog.servers) == {"plain", "other", "local"}, "the added server")
        assert set(before.servers) == {"plain", "local"}

        # Removed while the old run still goes on; a caller who went away holds nothing.
        assert broker.reconfigure(settings(tmp_path / "s", {}, pool={"warm": 1, "capacity": 4})) == [
            "server plain is removed; runs in flight keep its session",
            "server other is removed; runs in flight keep its session",
        ]
        await gone([theirs])
        error_of(await broker.run(PID), "IMPORT_FAILURE")
        assert not running.done() and alive(ours)
        gate.go_on.set()
        assert succeeded(await within(running)) == [old, old]
        await gone([ours])


async def test_a_broker_that_ends_closes_sessions_that_are_still_held(tmp_path: Path, gate: Holding) -> None:
    async with ready(
        settings(tmp_path / "s", {"plain": plain_server()}, pool={"warm": 1}), tools=[gate.tool]
    ) as broker:
        running = asyncio.create_task(broker.run(TWICE))
        await until(lambda: gate.inside == 1, "it is called")
        servers = plain_servers()
        family = [psutil.Process(broker.host_pid), *descendants(broker.host_pid), *servers]
        assert servers
        broker.reconfigure(settings(tmp_path / "s", {}, pool={"warm": 1}))
    await within(running)
    await gone(family)


async def test_limits_hold_for_the_next_run_and_a_wrong_name_changes_nothing(
    tmp_path: Path, gate: Holding
) -> None:
    first = settings(tmp_path / "s", {"plain": plain_server()}, pool={"warm": 1}, typecheck_timeout_ms=100)
    async with ready(first, tools=[gate.tool]) as broker:
        with pytest.raises(ConfigError, match="imported as"):
            broker.reconfigure(settings(tmp_path / "s", {"local": plain_server()}))
        assert set(broker.catalog.servers) == {"plain", "local"}
        smaller = settings(
            tmp_path / "s",
            {"plain": plain_server()},
            pool={"warm": 3},
            limits={"max_tool_calls": [0, 5]},
        )
        assert broker.reconfigure(smaller) == [
            "cellblock.limits.max_tool_calls has changed",
            "cellblock.typecheck_timeout_ms has changed",
            "cellblock.pool.warm has changed, which needs a restart",
        ]
        error_of(await broker.run(PID), "SANDBOX_LIMIT")
        assert broker.settings.cellblock.pool.warm == 1
        await until(lambda: "plain" in broker.catalog.servers, "the server is still there")


async def test_a_changed_policy_holds_for_the_next_run(tmp_path: Path) -> None:
    """What is taken away is gone at once, without a restart; a policy that fits no server changes nothing."""

    def granted(*tools: str):  # type: ignore[no-untyped-def]
        policy = {"default": {"tools": list(tools)}}
        return settings(tmp_path / "s", {"plain": plain_server()}, pool={"warm": 1}, policy=policy)

    async with ready(granted("plain.*")) as broker:
        succeeded(await broker.run(PID))
        assert broker.reconfigure(granted("plain.echo")) == ["cellblock.policy.default.tools has changed"]
        error_of(await broker.run(PID), "IMPORT_FAILURE")
        with pytest.raises(ConfigError, match="names no server"):
            broker.reconfigure(granted("plan.*"))
        error_of(await broker.run(PID), "IMPORT_FAILURE")
        broker.reconfigure(granted("plain.pid"))
        succeeded(await broker.run(PID))


async def test_a_server_that_lacks_something_is_told_and_one_that_runs_goes_on(tmp_path: Path) -> None:
    secret = tmp_path / "secret"

    def configured() -> Settings:
        servers = {
            "lacks.it": {"command": "${env:NOT_SET_ANYWHERE}"},
            "plain": plain_server(env={"A": f"${{file:{secret}}}"}),
        }
        return settings(tmp_path / "s", servers, pool={"warm": 1}, typecheck="off")

    secret.write_text("one")
    async with ready(configured()) as broker:
        reason = "the environment variable NOT_SET_ANYWHERE is not set"
        assert broker.catalog.unavailable == {"lacks-it": reason}
        assert broker.catalog.id_of("lacks.it") == "lacks-it"
        (found,) = (await within(broker.run(PID.replace("plain", "lacks-it")))).diagnostics
        assert reason in found.message and "set it where Cellblock is started" in found.hint
        assert succeeded(await within(broker.run(PID)))
        # A secret that is away for a moment ends nothing; a server that is new without one is not started.
        secret.unlink()
        (said,) = broker.reconfigure(configured())
        assert said.startswith("server plain goes on as it was: ") and "secret cannot be read" in said
        assert succeeded(await within(broker.run(PID)))
        secret.write_text("two")
        assert "server plain has changed" in broker.reconfigure(configured())[0]
        await within(broker.settled())
        assert succeeded(await within(broker.run(PID)))


async def test_tools_that_are_taken_away_are_gone_for_the_next_run_even_where_something_lacks(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one")

    def configured(**keys: object) -> Settings:
        entry = plain_server(env={"A": f"${{file:{secret}}}"})
        return settings(tmp_path / "s", {"plain": {**entry, **keys}}, pool={"warm": 1}, typecheck="off")

    async with ready(configured()) as broker:
        all_tools = {tool.tool_name for tool in broker.catalog.servers["plain"].tools}
        secret.unlink()
        broker.reconfigure(configured(excludeTools=["pid", "no_such_tool"]))
        server = broker.catalog.servers["plain"]
        assert {tool.tool_name for tool in server.tools} == all_tools - {"pid"}
        assert server.warnings == ("disabledTools names no_such_tool, which is no tool of the server",)
        (found,) = (await within(broker.run(PID))).diagnostics
        assert "leaves it out (disabledTools)" in found.message, found
        # Nobody is there to be asked: what needs no question can be called.
        secret.write_text("two")
        broker.reconfigure(configured(alwaysAllow=["pid"]))
        await within(broker.settled())
        assert succeeded(await within(broker.run(PID)))
        session = broker.catalog.servers["plain"].session
        said = broker.reconfigure(configured(alwaysAllow=["echo"]))
        assert said == ["the tools that server plain may be asked for have changed"]
        (found,) = (await within(broker.run(PID))).diagnostics
        assert "cannot ask" in found.message and "autoApprove in the server's entry" in (found.hint or ""), (
            found
        )
        broker.reconfigure(configured())
        assert succeeded(await within(broker.run(PID)))
        assert broker.catalog.servers["plain"].session == session


ONE = "globalThis.__codemode_result__ = 1;"
POOL = {"warm": 1, "capacity": 4}


def importing(server: str) -> str:
    """A script that calls a server."""
    return (
        f'import {{ echo }} from "@codemode/servers/{server}";'
        'globalThis.__codemode_result__ = await echo({ text: "x" });'
    )


LISTING = (
    'import { listServers } from "@codemode/discovery";'
    "globalThis.__codemode_result__ = (await listServers()).map((one) => one.serverId);"
)


def world(told: Path) -> dict[str, Any]:
    """One server that starts when `told` is there, one that is dead, one that never answers, and one that is fast."""
    return {
        "slow": plain_server("--start-when", told),
        "dead": {"command": sys.executable, "args": ["-c", "raise SystemExit(1)"]},
        "hanging": {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]},
        "fast": plain_server(),
    }


@pytest.fixture
def for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs wait for an hour for servers that they import."""
    monkeypatch.setattr("cellblock.tools.upstream.registry.STARTUP_WAIT_SECONDS", 3_600)


@pytest.mark.thorough
@pytest.mark.usefixtures("for_an_hour")
async def test_a_run_waits_only_for_the_servers_that_it_imports_or_requests(tmp_path: Path) -> None:
    """While `hanging` and `slow` start, with a bound that no test would live to see the end of."""
    told = tmp_path / "told"
    bounds = {"connect_timeout_ms": 3_600_000}
    async with Broker(settings(tmp_path / "state", world(told), pool=POOL, upstream=bounds)) as broker:
        assert succeeded(await within(broker.run(ONE))) == 1
        assert "text" in str(succeeded(await within(broker.run(importing("fast")))))
        assert succeeded(await within(broker.run(ONE, requested_capabilities=["fast", "nothing"]))) == 1
        assert (
            "not connected" in error_of(await within(broker.run(importing("dead"))), "IMPORT_FAILURE").message
        )
        # For as long as it may run itself.
        looked = await within(broker.run(LISTING, limits={"timeoutMs": 2_000}))
        assert succeeded(looked) == ["fast"]
        (told_of,) = [one for one in looked.diagnostics if one.code == "NOT_CONNECTED"]
        assert "slow (still connecting)" in told_of.message and "the same script again" in str(told_of.hint)
        computed = 'const name = "slow"; await import(`@codemode/servers/${name}`);'
        waiting = [
            asyncio.ensure_future(broker.run(importing("slow"))),
            asyncio.ensure_future(broker.run(ONE, requested_capabilities=["slow"])),
            asyncio.ensure_future(broker.run(f"if (0) await import('@codemode/servers/slow'); {ONE}")),
        ]
        any_of_them = asyncio.ensure_future(broker.run(computed))
        # Two that wait for nobody end meanwhile.
        for _ in range(2):
            assert succeeded(await within(broker.run(importing("fast"))))
        assert not any(run.done() for run in (*waiting, any_of_them))
        told.touch()
        for run in waiting:
            assert succeeded(await within(run))
        # What it computes could be `hanging`.
        assert not any_of_them.done()
        any_of_them.cancel()


@pytest.mark.thorough
@pytest.mark.usefixtures("for_an_hour")
async def test_all_servers_are_waited_for_once_and_those_that_a_script_names_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that takes an hour for what it imports: then nothing is left of the wait for all."""
    loop, late = asyncio.get_running_loop(), list[float]()
    monkeypatch.setattr(loop, "time", lambda clock=loop.time: clock() + sum(late))

    async def slowly(*modules: str, imported: Any = assembly._imported) -> None:  # pyright: ignore[reportPrivateUsage]
        late.extend([] if late else [3_600])
        await imported(*modules)

    monkeypatch.setattr(assembly, "_imported", slowly)
    bounds = {"connect_timeout_ms": 36_000_000}
    told = tmp_path / "told slow"
    async with Broker(settings(tmp_path / "state", world(told), pool=POOL, upstream=bounds)) as broker:
        await until(lambda: "fast" in broker.catalog.servers, "the fast server is connected")
        assert succeeded(await within(broker.run(LISTING))) == ["fast"]
        refused = error_of(
            await within(broker.run(importing("hanging"), limits={"timeoutMs": 500})), "IMPORT_FAILURE"
        )
        assert "still connecting" in refused.message
        assert refused.hint == "Send the same script again: the server is still starting."
        waiting = asyncio.ensure_future(broker.run(importing("slow")))
        assert succeeded(await within(broker.run(importing("fast"))))
        assert not waiting.done()
        since = time.monotonic()
        assert succeeded(await within(broker.run(importing("fast"))))
        waited = time.monotonic() - since
        told.touch()
        response = await within(waiting)
        # It counts as in the queue: a client that gives up after a minute waits for that, too.
        assert succeeded(response) and response.usage.queue_ms >= int(waited * 1000)
        # One that comes later has its own hour.
        more = settings(
            tmp_path / "state",
            {**world(told), "later": plain_server("--start-when", tmp_path / "told")},
            pool=POOL,
            upstream=bounds,
        )
        broker.reconfigure(more)
        waiting = asyncio.ensure_future(broker.run(LISTING))
        assert succeeded(await within(broker.run(importing("fast"))))
        assert not waiting.done()
        (tmp_path / "told").touch()
        assert "later" in succeeded(await within(waiting))


@pytest.mark.thorough
async def test_while_servers_start_nobody_is_told_that_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place that names what is connected names what is still starting."""
    monkeypatch.setattr("cellblock.tools.upstream.registry.STARTUP_WAIT_SECONDS", 0)
    bounds = {"list_wait_ms": 0, "connect_timeout_ms": 3_600_000}
    told = tmp_path / "told"
    slow = {"slow": plain_server("--start-when", told)}
    configured = settings(tmp_path / "state", slow, pool=POOL, upstream=bounds)
    starting = "No server is connected yet; still starting: slow."
    look = """
        import { describeServer } from "@codemode/discovery";
        globalThis.__codemode_result__ = await describeServer("other").catch((error) => error.hint);
    """
    async with Broker(configured) as broker:
        unknown = error_of(await within(broker.run(importing("other"))), "IMPORT_FAILURE")
        assert (unknown.hint or "").startswith(starting)
        assert succeeded(await within(broker.run(look))) == starting
        described = str((await within(broker.tool_definition("mcp")))["description"])
        assert STARTING + ": slow." in described and "No server is connected yet." in described
        assert await within(broker.declarations()) == starting
        with pytest.raises(InvalidRequest, match=starting):
            await within(broker.declarations(servers=["other"]))
        told.touch()
        await until(lambda: "slow" in broker.catalog.servers, "the slow server is connected")
        unknown = error_of(await within(broker.run(importing("other"))), "IMPORT_FAILURE")
        assert (unknown.hint or "").startswith("Connected servers: slow. ")


@pytest.mark.thorough
@pytest.mark.real_host
async def test_a_slow_worker_host_ends_nothing_and_runs_say_that_they_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, program = tmp_path / "told", tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\nwhile ! [ -e {shlex.quote(str(told))} ]; do sleep 0.05; done\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(program))
        broker = Broker(settings(tmp_path / "state", pool={**POOL, "queue_wait_ms": 200}))
        async with broker.begun():
            refused = error_of(await within(broker.run(ONE)), "WORKER_UNAVAILABLE")
            assert "still starting" in refused.message and "pool.queue_wait_ms" in refused.message
            told.touch()
            await within(broker.host_started())
            assert succeeded(await within(broker.run(ONE))) == 1


@pytest.mark.thorough
async def test_a_machine_too_busy_for_the_self_test_does_not_end_serve(tmp_path: Path) -> None:
    """A real daemon whose first hosts have no time for their self-test: each is slowed down behind its launch, until
    the machine has a core again."""
    told, starts, program = tmp_path / "told", tmp_path / "starts", tmp_path / "python"
    # As on a machine that gives the test no turn: it is made, and its bound passes first.
    busy = "from cellblock_worker.confinement import selftest; selftest.BOUND_SECONDS = 1e-3; "
    busy += "import runpy; runpy.run_module('cellblock_worker', run_name='__main__')"
    program.write_text(
        f"#!/bin/sh\necho start >> {shlex.quote(str(starts))}\n"
        f'[ -e {shlex.quote(str(told))} ] && exec {shlex.quote(sys.executable)} "$@"\n'
        f'sleep 0.2\nexec {shlex.quote(sys.executable)} -c "{busy}"\n'
    )
    program.chmod(0o700)
    config = write_config(tmp_path, {"fast": plain_server()}, pool={**POOL, "queue_wait_ms": 500})
    serve = (
        f"import sys; sys.executable = {str(program)!r}; from cellblock.app.cli.main import main; "
        f"sys.exit(main(['serve', '--config', {str(config)!r}, '--state-dir', {str(tmp_path / 'state')!r}]))"
    )
    server = StdioServerParameters(command=sys.executable, args=["-c", serve])
    async with Client(server, mode="legacy", cache=None) as client:
        await until(lambda: starts.exists() and len(starts.read_text().split()) >= 2, "it is tried again")

        async def run() -> dict[str, Any]:
            return (await client.call_tool("codemode.run", {"code": ONE})).structured_content or {}

        refused = (await within(run()))["diagnostics"][0]
        assert refused["code"] == "WORKER_UNAVAILABLE" and "pool.queue_wait_ms" in refused["message"]
        assert "cannot start now: the self-test did not end within" in refused["message"]
        told.touch()
        answer: dict[str, Any] = {}
        while answer.get("result") != 1:
            answer = await within(run())


@pytest.mark.thorough
async def test_a_client_is_greeted_at_once_and_shown_what_starts_by_its_pins(tmp_path: Path) -> None:
    """A real process, of which the second start has the pins of the first."""
    told, state = tmp_path / "told", tmp_path / "state"
    servers = {"slow": plain_server("--start-when", told), "fast": plain_server()}
    told.touch()
    first = write_config(tmp_path, servers, pool={"warm": 1}, upstream={"list_wait_ms": 60_000})
    async with Client(stdio(first, state), mode="legacy", cache=None) as client:
        whole = await description(client)
    assert "Still starting" not in whole and "- slow: never, announce" in whole
    told.unlink()
    hanging = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    bounds = {"list_wait_ms": 0, "connect_timeout_ms": 3_600_000}
    second = write_config(tmp_path, {**servers, "hanging": hanging}, pool={"warm": 1}, upstream=bounds)
    said: list[str] = []

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            said.append("tools")

    async with Client(stdio(second, state), mode="legacy", cache=None, message_handler=on_message) as client:
        shown = await description(client)
        marked = next(line for line in shown.splitlines() if line.startswith(STARTING_AS_KNOWN))
        assert "slow" in marked and "hanging" not in marked and "- slow: never, announce" in shown
        assert STARTING + ": hanging." in shown
        assert not (await within(client.call_tool("codemode.run", {"code": importing("fast")}))).is_error
        told.touch()
        await within(client.call_tool("codemode.run", {"code": importing("slow")}))
        # Nothing has come of it but what was shown.
        after = await description(client)
        assert STARTING + ": hanging." in after and STARTING_AS_KNOWN not in after
        assert said == []


async def description(client: Client) -> str:
    (tool,) = (await within(client.list_tools())).tools
    return tool.description or ""
