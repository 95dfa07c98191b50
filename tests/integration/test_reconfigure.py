"""A changed configuration under a running broker: runs in flight keep their sessions, and nothing is left behind.

A server that is started again with the definitions that it had is known by the same ones: nothing is held twice.
"""

import asyncio
from pathlib import Path

import psutil
import pytest

from cellblock import ConfigError, Settings
from integration.holding import Holding
from support.brokers import ready
from support.entries import plain_server, settings
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
        await gone([theirs], 20)
        error_of(await broker.run(PID), "IMPORT_FAILURE")
        assert not running.done() and alive(ours)
        gate.go_on.set()
        assert succeeded(await within(running)) == [old, old]
        await gone([ours], 20)


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
    await gone(family, 20)


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


async def test_a_run_keeps_its_session_through_two_changes(tmp_path: Path, gate: Holding) -> None:
    def configured(**servers: object):  # type: ignore[no-untyped-def]
        return settings(tmp_path / "s", servers, pool={"warm": 1, "capacity": 4})

    async with ready(configured(plain=plain_server()), tools=[gate.tool]) as broker:
        running = asyncio.create_task(broker.run(TWICE))
        await until(lambda: gate.inside == 1, "it is called")
        broker.reconfigure(configured(plain=plain_server(), other=plain_server()))
        # Nobody has run in between: the run is of the generation before the one that this change ends.
        broker.reconfigure(configured(other=plain_server()))
        await within(broker.settled())
        gate.go_on.set()
        assert len(set(succeeded(await within(running)))) == 1


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


@pytest.mark.usefixtures("quick_retries")
async def test_a_server_that_was_killed_has_the_definitions_that_it_had(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"plain": plain_server()})) as broker:
        before, session = broker.catalog.servers["plain"], broker.registry.sessions["plain"]
        for process in plain_servers():
            process.kill()
        await until(
            lambda: session.life.attempts > 1 and "plain" in broker.catalog.servers, "its next session"
        )
        assert broker.catalog.servers["plain"] is before
