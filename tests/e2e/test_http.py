"""`cellblock serve --http`: runs and their ends, probes, TLS, tokens of an authorization server, and named ones."""

import asyncio
import json
import signal
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from cellblock_worker.wire.keys import make_key_file
from cellblock_worker.wire.protocol import PROTOCOL_VERSION
from support.certificates import certificate
from support.commands import Said, cellblock, in_this_process
from support.http_daemon import INITIALIZE, MCP_HEADERS, TOOL, Daemon, daemon, opened, streaming
from support.identity_provider import AUDIENCE, ISSUER, Issuer
from support.modern_client import ModernClient, message
from support.processes import alive
from support.waits import until, within

MODES = ("auto", "legacy")
NEVER = 'import { never } from "@codemode/servers/plain"; await never({});'


async def run(client: Client, code: str) -> Any:
    """What a run gives, and what is told of it."""
    result = await within(client.call_tool(TOOL, {"code": code}))
    return {key: result.structured_content[key] for key in ("result", "diagnostics")}


async def test_a_client_that_hangs_up_ends_its_run(served: Daemon) -> None:
    """Also in a session, where the protocol would let it come back for the answer: there is nothing to come back to."""
    calls, cancelled = served.recorded(tool="never"), served.recorded(event="cancelled")
    session = await opened(served)
    body = message("tools/call", 2, name=TOOL, arguments={"code": NEVER})
    async with streaming(served, "POST", session, body):
        await until(lambda: served.recorded(tool="never") > calls, "the script is in its call")
    await until(lambda: served.recorded(event="cancelled") > cancelled, "a cancel notification upstream")
    assert (await served.ask("DELETE", headers=session)).status == 200
    assert (await served.ask(headers=session, body=body)).status == 404


async def test_probes_need_no_token(served: Daemon) -> None:
    # A worker's process is there long before it is warm; and no test of this file has left a run behind.
    await served.until_status("/readyz", 200)
    for path in ("/livez", "/readyz"):
        answer = await served.ask("GET", path)
        assert (answer.status, answer.body) == (200, b"ok\n"), path
        assert (await served.ask("POST", path)).status == 405


async def test_a_broker_without_a_host_is_not_ready_whoever_waits_there(tmp_path: Path) -> None:
    """In an upgrade hosts of one version do not serve brokers of another, and the balancer is to know."""
    make_key_file(tmp_path / "broker.key")
    hosts = {
        "local": False,
        "listen": "tcp://127.0.0.1:*",
        "key": str(tmp_path / "broker.key"),
        "allowed_keys": {"none": make_key_file(tmp_path / "host.key").public},
    }
    async with daemon(tmp_path, hosts=hosts, pool={"warm": 0, "queue_wait_ms": 600_000}) as running:
        before = await running.ask("GET", "/readyz")
        waiting = asyncio.create_task(ModernClient(running).run("1;"))
        await running.until_says("/metrics", lambda answer: b"cellblock_pool_queued 1" in answer.body)
        for answer in (before, await running.ask("GET", "/readyz")):
            said = f"not ready: no worker host is connected that speaks protocol {PROTOCOL_VERSION}"
            assert answer.status == 503 and said in answer.body.decode()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_nothing_on_stderr_tells_the_token(served: Daemon) -> None:
    assert served.token
    assert not any(served.token in line for line in served.said)
    assert str(served.folder / "s" / "token") in served.said[1]


@pytest.mark.parametrize("mode", MODES)
async def test_a_run_in_flight_ends_before_the_daemon_does(tmp_path: Path, mode: str) -> None:
    code = """
        import { wait } from "@codemode/servers/plain";
        await wait({ ms: 1500 });
        globalThis.__codemode_result__ = "done";
    """
    async with daemon(tmp_path) as running, running.client(mode) as client:
        family = running.family()
        await within(client.list_tools())
        call = asyncio.create_task(run(client, code))
        await until(lambda: running.recorded(tool="wait"), "the run is in its call")
        running.process.terminate()
        await running.until_status("/readyz", 503)
        assert (await running.ask("GET", "/livez")).status == 200
        # Nothing new is taken.
        assert (await running.ask(headers={**MCP_HEADERS, **running.auth})).status == 503
        with pytest.raises(MCPError, match="stopping"):
            await run(client, "1;")
        assert await call == {"result": "done", "diagnostics": []}
        assert await within(running.process.wait()) == 0
        await until(lambda: not any(map(alive, family)), "no process is left")


async def test_the_bound_of_draining_ends_what_does_not_end_by_itself(tmp_path: Path) -> None:
    """A run, and the stream that a session has open for what the server may have to say."""
    async with (
        daemon(tmp_path, http={"drain_ms": 300}) as running,
        running.client("legacy") as client,
        streaming(running, "GET", await opened(running)) as stream,
    ):
        assert b" 200 " in await within(stream.readline())
        call = asyncio.create_task(client.call_tool(TOOL, {"code": NEVER}))
        await until(lambda: running.recorded(tool="never"), "the script is in its call")
        running.process.terminate()
        with pytest.raises(MCPError, match="stopping"):
            await within(call)
        assert await within(running.process.wait()) == 0


@pytest.mark.parametrize(("mode", "pauses"), [("auto", True), ("legacy", False)])
async def test_a_second_signal_kills(tmp_path: Path, mode: str, pauses: bool) -> None:
    """But the run's client is told, and stderr has no traceback, also where signals come without a pause."""
    async with daemon(tmp_path, http={"drain_ms": 600_000}) as running:
        family = running.family()
        async with running.client(mode) as client:
            call = asyncio.create_task(client.call_tool(TOOL, {"code": NEVER}))
            await until(lambda: running.recorded(tool="never"), "the script is in its call")
            running.process.terminate()
            if pauses:
                await running.until_status("/readyz", 503)
                assert running.process.returncode is None
                running.process.terminate()
                with pytest.raises(MCPError, match="the time that runs had to end by themselves is over"):
                    await within(call)
            else:
                # Those that come at the same moment are one.
                await until(
                    lambda: running.process.terminate() or running.process.returncode is not None,
                    "it ends",
                    pause=0.01,
                )
            assert await within(running.process.wait()) == 128 + signal.SIGTERM
            await until(lambda: not any(map(alive, family)), "no process is left")
            call.cancel()
            await within(asyncio.gather(call, return_exceptions=True))
    assert "Traceback" not in "".join(running.said)


async def test_a_team_shares_a_daemon_over_tls(tmp_path: Path, issuer: Issuer) -> None:
    cert, key = certificate(tmp_path)
    trust = ssl.create_default_context(cafile=cert)
    oauth = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.jwks_url}
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with daemon(tmp_path, *options, http={"oauth": oauth}, tls=trust, token=issuer.token()) as running:
        assert not (tmp_path / "s" / "token").exists(), "the token file is not used"
        # Whoever may run scripts would see the runs of all: a team has a dashboard only when it says so.
        assert (await running.ask("GET", "/dashboard/state", headers=running.auth)).status == 404
        assert (await running.ask("GET", "/metrics", headers=running.auth)).status == 200
        for mode in MODES:
            async with running.client(mode) as client:
                assert (await run(client, "globalThis.__codemode_result__ = 1;"))["result"] == 1

        refused = await running.ask(headers=MCP_HEADERS)
        assert refused.status == 401 and b"cellblock connect" in refused.body
        where = "/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer resource_metadata="https://cellblock.example{where}"'
        assert refused.headers["www-authenticate"] == challenge
        metadata = json.loads((await running.ask("GET", where)).body)
        assert (metadata["authorization_servers"], metadata["resource"]) == ([ISSUER], AUDIENCE)

        # And `connect` trusts the certificate that it is told to trust, and no other.
        token_file = private_file(tmp_path / "mine", issuer.token())
        lines = json.dumps(INITIALIZE).encode() + b"\n" + message("tools/list", 2) + b"\n"
        for trusted, code in (([], 3), (["--tls-ca", str(cert)], 0)):
            words = ("connect", "--url", running.url, "--token-file", token_file, *trusted)
            done = await cellblock(*words, given=lines)
            assert done.code == code, done.err
            answers = [json.loads(line) for line in done.out.splitlines()]
            assert [answer["id"] for answer in answers if "result" in answer] == ([] if code else [1, 2])


def private_file(file: Path, text: str) -> Path:
    file.touch(0o600)
    file.write_text(text)
    return file


ECHO = (
    'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ is: 1 });'
)


def token(folder: Path, *arguments: object) -> Said:
    place = ("--config", folder / "cellblock.json", "--state-dir", folder / "s")
    return in_this_process("token", *arguments, *place)


async def test_each_is_a_principal_of_its_own_until_it_is_revoked(tmp_path: Path) -> None:
    async with daemon(tmp_path, audit=["calls"]) as owner:
        grants = (("ann",), ("bob", "--grants", '{"tools": ["plain.fail"]}'))
        made = [await asyncio.to_thread(token, tmp_path, "create", *words) for words in grants]
        ann, bob = (replace(owner, token=said.out.strip()) for said in made)
        for mode in MODES:
            async with ann.client(mode) as client:
                assert (await run(client, ECHO))["diagnostics"] == []
            async with bob.client(mode) as client:
                assert "echo" not in ((await within(client.list_tools())).tools[0].description or "")
                said = json.dumps(await run(client, ECHO))
                assert "The tool echo is left out: the policy for this client does not grant it" in said

        session, ping = await opened(ann), message("ping", 5)
        assert (await ann.ask(headers=session, body=ping)).status == 200

        # The dashboard shows the runs of all by name, and not to all.
        state = json.loads((await owner.ask("GET", "/dashboard/state", headers=owner.auth)).body)
        clients = {run["client"].split(" session")[0].split(" 127")[0] for run in state["recent"]}
        assert clients == {"http token:ann", "http token:bob"}
        for path, method, status in (
            ("/dashboard", "GET", 403),
            ("/dashboard/state", "GET", 403),
            ("/dashboard/kept", "GET", 403),
            ("/dashboard/runs/0123456789abcdef", "GET", 403),
            ("/dashboard/code", "POST", 403),
            ("/metrics", "GET", 200),
        ):
            assert (await ann.ask(method, path, headers=ann.auth)).status == status

        file = private_file(tmp_path / "mine", ann.token or "")
        page = await cellblock("dashboard", "--no-open", "--url", owner.url, "--token-file", file)
        assert page.code == 3 and "a named one does not open it" in page.err

        # A session that is open ends with its token.
        place = ("--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s")
        said = await cellblock("token", "revoke", "ann", "--everything", *place)
        nothing = "0 secrets, 0 kept runs, 0 kept outputs, and what was learnt of 0 tools"
        assert said.out == f"revoked ann\nRemoved of token:ann: {nothing}.\n"
        assert (await ann.ask(headers=session, body=ping)).status == 401
        page = await cellblock("connect", "--no-start", "--url", owner.url, "--token-file", file)
        assert page.code == 3 and "refuses the token. It has expired or was revoked" in page.err
        assert (await bob.ask("GET", "/metrics", headers=bob.auth)).status == 200
    lines = [json.loads(line) for line in (tmp_path / "s" / "audit.jsonl").read_text().splitlines()]
    assert {line["client"].split()[1] for line in lines if line["event"] == "call"} == {"token:ann"}


def test_what_is_said_of_them(tmp_path: Path) -> None:
    (tmp_path / "cellblock.json").write_text('{"mcpServers": {}}')
    said = partial(token, tmp_path)
    assert said("list") == (0, "There are no named tokens.\n", "")
    for wrong, why in (
        (("create", "ci", "--expires", "tomorrow"), "write a span such as"),
        (("create", "ci", "--expires", "2020-01-01"), "over already"),
        (("create", "ci", "--expires", "0d"), "write a span such as"),
        (("create", "ci", "--grants", '{"tols": []}'), "tols"),
        (("create", "ci", "--grants", '{"tools": ["files.*"]}'), "names no server"),
        (
            ("create", "ci", "--grants", str(tmp_path / "none.json")),
            "cannot be read: No such file or directory; name a file",
        ),
        (("create", "A B"), "no name for a token"),
        (("revoke", "ci"), "There are none"),
    ):
        code, output, error = said(*wrong)
        assert (code, output) == (2, "") and why in error, error
    assert not (tmp_path / "s" / "tokens" / "ci.json").exists()
    code, output, error = said("create", "ci", "--expires", "2099-01-31", "--grants", '{"readOnly": true}')
    assert code == 0 and output.startswith("cellblock.ci.") and "mode 600" in error
    code, listed, _ = said("list")
    assert "ends 2099-01-31T00:00:00Z; with grants of its own" in listed and output.strip() not in listed
    assert json.loads(said("list", "--json")[1])[0]["grants"] == {"readOnly": True}
    assert "Did you mean ci?" in said("revoke", "cii")[2]
    assert said("create", "ci")[0] == 2 and said("revoke", "ci")[:2] == (0, "revoked ci\n")
