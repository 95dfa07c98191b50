"""Real daemons that follow their configuration file: over HTTP and stdio, by looking and at SIGHUP."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
from mcp import Client, StdioServerParameters, stdio_client

from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock
from support.entries import ledger, plain_server, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.processes import alive, gone
from support.waits import until, within

PID = 'import { pid } from "@codemode/servers/plain"; globalThis.__codemode_result__ = Number(await pid({}));'

SLOW = """
    import { pid, wait } from "@codemode/servers/plain";
    const first = Number(await pid({}));
    await wait({ ms: 3000 });
    globalThis.__codemode_result__ = [first, Number(await pid({}))];
"""


async def result(client: Client, code: str) -> Any:
    done = await within(client.call_tool(TOOL, {"code": code}), 60)
    return (done.structured_content or {}).get("result")


def rewrite(file: Path, servers: dict[str, Any], **cellblock: Any) -> None:
    """As editors do: another file in its place."""
    made = file.with_name("new")
    made.write_text(json.dumps({"mcpServers": servers, "cellblock": cellblock}))
    made.replace(file)


async def heard(running: Daemon, wanted: str) -> str:
    said: list[str] = []
    while True:
        line = (await within(running.process.stderr.readline(), 30)).decode()
        assert line, f"it ended: {said}"
        said.append(line)
        if wanted in line:
            return line


async def test_a_daemon_takes_changes_over_without_dropping_runs(tmp_path: Path) -> None:
    async with daemon(tmp_path, pool={"warm": 1}) as running:
        file = tmp_path / "cellblock.json"
        entry = plain_server("--ledger", running.ledger)
        async with running.client() as client:
            old = await result(client, PID)
            process = psutil.Process(old)
            slow = asyncio.create_task(result(client, SLOW))
            await until(lambda: any(one.get("tool") == "wait" for one in ledger(running.ledger)), "the call")
            changed = {**entry, "env": {"A": "b"}}
            rewrite(file, {"plain": changed, "second": plain_server()}, pool={"warm": 2})
            await heard(running, "server second is added")
            await heard(running, "server plain has changed")
            await heard(running, "cellblock.pool.warm has changed, which needs a restart")
            new = await result(client, PID)
            assert new != old
            assert await slow == [old, old]
            await gone([process], 20)

            # A broken file changes nothing, and the log says where it is broken; so does one that is gone.
            file.write_text('{"mcpServers": {\n  "plain": {"comand": "x"}}}')
            assert f"{file}:2:13: mcpServers.plain.comand: unknown key. Did you mean command?" in await heard(
                running, "not taken over"
            )
            file.unlink()
            assert "Cannot read" in await heard(running, "not taken over")
            assert await result(client, PID) == new

            # At SIGHUP the file is read at once; a secret's file is followed, too.
            secret = tmp_path / "secret"
            secret.write_text("first-secret\n")
            changed = {**entry, "env": {"A": "${file:secret}"}}
            rewrite(file, {"plain": changed}, pool={"warm": 1})
            running.process.send_signal(signal.SIGHUP)
            await heard(running, "server second is removed")
            third = await result(client, PID)
            secret.write_text("another-secret\n")
            assert "secret" not in await heard(running, "server plain has changed")
            assert await result(client, PID) not in (new, third)
            running.process.send_signal(signal.SIGHUP)
            await heard(running, "nothing has changed")
            assert alive(psutil.Process(running.process.pid))


async def test_who_asks_right_after_a_change_is_answered_by_what_the_file_says_now(tmp_path: Path) -> None:
    never = {"cellblock.app.cli.serve.CHECK_SECONDS": 600}
    async with daemon(tmp_path, constants=never, pool={"warm": 0}, typecheck="off"):
        place = ["--config", tmp_path / "cellblock.json"]
        state = ["--state-dir", tmp_path / "s"]
        assert "plain: ready" in (await cellblock("status", *place, *state)).out
        assert (await cellblock("disable", "plain", *place)).code == 0
        done = await cellblock("status", *place, *state)
        assert (done.code, done.err) == (0, "") and "plain" not in done.out, done
        assert (await cellblock("enable", "plain", *place)).code == 0
        done = await cellblock("restart", "plain", *place, *state)
        assert (done.code, done.err) == (0, ""), done
        assert (await cellblock("remove", "plain", *place)).code == 0
        done = await cellblock("logs", "plain", *place, *state)
        assert "not taken over" not in done.err, done


@contextlib.asynccontextmanager
async def stdio_daemon(config: Path, log: Path, state_dir: Path) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=str(forked_cellblock()),
        args=["serve", "--config", str(config), "--state-dir", str(state_dir)],
    )
    with log.open("w") as errlog:
        async with Client(stdio_client(parameters, errlog=errlog)) as client:
            yield client


async def test_a_stdio_server_follows_its_file_too(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server()}, pool={"warm": 1})
    log = tmp_path / "log"
    async with stdio_daemon(config, log, tmp_path / "s") as client:
        assert isinstance(await result(client, PID), int)
        rewrite(config, {"plain": plain_server(), "late": plain_server()}, pool={"warm": 1})
        await until(lambda: "server late is added" in log.read_text(), "the change")
        assert isinstance(await result(client, PID.replace("/plain", "/late")), int)
    left = [one for one in psutil.process_iter(["cmdline"]) if str(config) in (one.info["cmdline"] or [])]
    await gone(left, 20)
