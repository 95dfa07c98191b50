"""Several brokers behind one address: any of them answers, whoever has the session or the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from mcp.client.streamable_http import streamable_http_client

from cellblock.cli.main import main
from support.asking_client import always, asking
from support.certificates import certificate
from support.entries import ledger
from support.http_daemon import (
    INITIALIZE,
    MCP_HEADERS,
    TOOL,
    Daemon,
    daemon,
    first_message,
    next_message,
    opened,
    said,
)
from support.modern_client import FORMS, TASKS, allowing, ask, message
from support.postgresql import Postgres
from support.replicas import Fleet, fleet, words
from support.waits import until, until_found, within

GIVE = """import { give } from "@codemode/servers/plain";
globalThis.__codemode_result__ = (await give({ text: "one" })).text;
"""
NEVER = 'import { never } from "@codemode/servers/plain"; await never({ text: "under way" });'
THEN_NEVER = """import { give, never } from "@codemode/servers/plain";
await give({ text: "one" });
await never({ text: "under way" });
"""
ONE = "globalThis.__codemode_result__ = 1;"


def section(park_after_ms: int) -> dict[str, Any]:
    return {
        "policy": {"default": {"approve": ["plain.give"]}},
        "journal": {"park_after_ms": park_after_ms},
    }


@pytest.fixture(scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> AsyncIterator[Fleet]:
    """Two daemons that hold the runs whose clients are away."""
    kept = {"outputs": {"inline_bytes": 1024}}
    async with fleet(
        tmp_path_factory.mktemp("two"), postgres.database(), **section(600_000), **kept
    ) as found:
        yield found


def call(code: str, request_id: int = 5) -> bytes:
    return message("tools/call", request_id, name=TOOL, arguments={"code": code})


async def run(served: Daemon, code: str, able: dict[str, Any] = FORMS, **more: Any) -> dict[str, Any]:
    answer = await ask(served, "tools/call", TOOL, able, name=TOOL, arguments={"code": code}, **more)
    assert "result" in answer, answer
    return answer["result"]


async def asked(served: Daemon, code: str = GIVE) -> dict[str, Any]:
    """What a client comes back with that allows everything."""
    found = await run(served, code)
    assert found["resultType"] == "input_required", found
    return allowing(found)


def result(found: dict[str, Any]) -> Any:
    return found["structuredContent"]["result"]


async def until_known(served: Daemon, status: int) -> None:
    """Until a broker has seen that a token was made, or revoked, elsewhere."""

    async def is_so() -> bool:
        headers = {**MCP_HEADERS, **served.auth}
        return (await served.ask(headers=headers, body=json.dumps(INITIALIZE).encode())).status == status

    await until_found(is_so, "a token is known" if status == 200 else "it is revoked", pause=0.1)


def events(served: Daemon, **wanted: Any) -> int:
    return sum(wanted.items() <= event.items() for event in ledger(served.ledger))


@contextlib.asynccontextmanager
async def streaming(
    served: Daemon, method: str, headers: dict[str, str], body: bytes = b""
) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=served.tls)
    try:
        writer.write(served.request(method, "/mcp", headers=headers, body=body))
        yield reader
    finally:
        writer.transport.abort()


@contextlib.contextmanager
def listed(database: str, name: str, url: str) -> Iterator[None]:
    """Lists a broker that is none, so that it stays."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO cellblock.brokers VALUES (%s, %s, false, now() + interval '1 day')",
            (name, words().address(name, url)),
        )
        yield
        connection.execute("DELETE FROM cellblock.brokers WHERE name = %s", (name,))


# ---- sessions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_and_its_user_behind_the_balancer(two: Fleet, mode: str) -> None:
    """Each request comes to the next broker: the call, the question's answer, the stream."""
    served = two.behind()
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(headers=served.auth, timeout=60, limits=limits, trust_env=False) as http:
        transport = streamable_http_client(served.url, http_client=http)
        async with asking(transport, mode) as client:
            client.answer = always("accept")
            for _ in range(3):
                response = await client.run(GIVE)
                assert response["result"] == "one", response
            assert len(client.questions) == 3


async def test_a_session_is_answered_by_the_broker_that_has_it(two: Fleet) -> None:
    here, there = two.daemons
    mine = await opened(here)
    answer = await there.ask(headers=mine, body=message("ping", 5))
    assert answer.status == 200
    assert (
        "mcp-session-id" not in answer.headers or answer.headers["mcp-session-id"] == mine["Mcp-Session-Id"]
    )
    _, told = await said(there, there.request("POST", "/mcp", headers=mine, body=call(ONE)))
    assert told["result"]["structuredContent"]["result"] == 1
    large = call(ONE + "//" + "x" * 700_000)
    _, told = await said(there, there.request("POST", "/mcp", headers=mine, body=large))
    assert told["result"]["structuredContent"]["result"] == 1
    assert (await there.ask("DELETE", headers=mine)).status == 200
    for served in (here, there):
        assert (await served.ask(headers=mine, body=message("ping", 6))).status == 404


async def test_a_stream_and_its_end_pass_through(two: Fleet) -> None:
    here, there = two.daemons
    mine = await opened(here)
    async with streaming(there, "GET", mine) as listening:
        assert b" 200 " in await within(listening.readline())
        # A session has one such stream, and this is it.
        assert (await here.ask("GET", headers=mine)).status == 409

    async def free() -> bool:
        async with streaming(here, "GET", mine) as listening:
            return b" 200 " in await within(listening.readline())

    await until_found(free, "the stream is over")
    token = {"_meta": {"progressToken": "p"}, "name": TOOL, "arguments": {"code": NEVER}}
    before = events(here, event="cancelled")
    async with streaming(there, "POST", mine, message("tools/call", 7, **token)) as stream:
        _, told = await first_message(stream)
        assert told["method"] == "notifications/progress"
        await until(lambda: events(here, tool="never"), "the call is made")
        async with asyncio.timeout(60):
            while (await next_message(stream))["params"]["progress"] < 2:
                pass
    await until(lambda: events(here, event="cancelled") > before, "who hangs up ends the run")


async def test_brokers_whose_certificate_is_for_a_name_reach_each_other_by_addresses(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pods do: over TLS that is verified."""
    cert, key = certificate(tmp_path, host="cellblock.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    client = ssl.create_default_context(cafile=str(cert))
    client.check_hostname = False
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    replicas = {"replicas": {"name": "cellblock.test"}}
    async with fleet(tmp_path, postgres.database(), *options, tls=client, **replicas) as found:
        here, there = found.daemons
        mine = await opened(here)
        _, told = await said(there, there.request("POST", "/mcp", headers=mine, body=call(ONE)))
        assert told["result"]["structuredContent"]["result"] == 1
        async with streaming(there, "POST", mine, call(NEVER, 7)):
            await until(lambda: events(here, tool="never"), "the call is made")
            cancelled = message("notifications/cancelled", requestId=7)
            assert (await there.ask(headers=mine, body=cancelled)).status == 202
            await until(
                lambda: events(here, event="cancelled"), "who cancels through another broker ends the run"
            )
        assert (await there.ask("DELETE", headers=mine)).status == 200


async def test_ids_that_are_refused(two: Fleet, capfd: pytest.CaptureFixture[str]) -> None:
    here, there = two.daemons
    place = ("--config", str(here.folder / "cellblock.json"), "--state-dir", str(here.folder / "s"))
    assert await asyncio.to_thread(main, ["token", "create", "eve", *place]) == 0
    eve = replace(there, token=capfd.readouterr().out.strip())
    for one in (eve, replace(eve, port=here.port)):
        await until_known(one, 200)
    mine = await opened(here)
    whole = mine["Mcp-Session-Id"]
    session, broker, tag = whole.split(".")
    (other, _, others_tag) = (await opened(there))["Mcp-Session-Id"].split(".")
    forged = (
        session,
        f"{session}.{broker}",
        f"{session}.{broker}.{'A' * len(tag)}",
        f"{session}.{broker}.{others_tag}",
        f"{other}.{broker}.{tag}",
        words().session(session.encode(), "broker-of-before").decode(),
        words().session(other.encode(), broker).decode(),
        "x" * 1000,
    )
    for served in (here, there):
        for word in forged:
            answer = await served.ask(headers={**mine, "Mcp-Session-Id": word}, body=message("ping", 5))
            assert answer.status == 404, word
    for method in ("POST", "GET", "DELETE"):
        for one in (eve, replace(eve, port=here.port)):
            answer = await one.ask(method, headers={**mine, **eve.auth}, body=message("ping", 5))
            assert (answer.status, "mcp-session-id" in answer.headers) == (404, False)
    no_token = {key: value for key, value in mine.items() if key != "Authorization"}
    assert (await there.ask(headers=no_token, body=message("ping", 5))).status == 401
    assert (await there.ask(headers=mine, body=message("ping", 5))).status == 200


async def test_a_request_is_passed_on_once(two: Fleet) -> None:
    """Whatever the table says: here, that a broker is to be found where another one is, or this one."""
    here, there = two.daemons
    headers = {**MCP_HEADERS, **here.auth, "Mcp-Session-Id": words().session(b"one", "broker-loop").decode()}
    for url in (here.url, there.url):
        with listed(two.database, "broker-loop", url.removesuffix("/mcp")):
            answer = await within(here.ask(headers=headers, body=message("ping", 5)))
            assert answer.status == 404
            assert b"Begin a new one" in answer.body
    mark = words().mark("broker-loop", "127.0.0.1").decode()
    for word in (mark, "nonsense", ""):
        marked = {**MCP_HEADERS, **here.auth, "X-Cellblock-Relayed": word}
        assert (await here.ask(headers=marked)).status == 421


async def test_while_postgresql_is_away_nobody_is_told_that_a_session_has_ended(
    two: Fleet, postgres: Postgres
) -> None:
    """The session of a broker that was not seen before: it may live."""
    served = two.daemons[0]
    unknown = words().session(b"one", "broker-that-came-a-moment-ago").decode()
    headers = {**MCP_HEADERS, **served.auth, "Mcp-Session-Id": unknown}
    postgres.stop()
    try:
        answer = await within(served.ask(headers=headers, body=message("ping", 5)))
        assert answer.status == 503 and b"PostgreSQL is away" in answer.body
    finally:
        postgres.start()

    async def ended() -> bool:
        return (await served.ask(headers=headers, body=message("ping", 5))).status == 404

    await until_found(ended, "who is not there when PostgreSQL is back has gone")


# ---- without sessions --------------------------------------------------------------------------------


async def test_a_run_that_another_broker_holds_goes_on_there(two: Fleet) -> None:
    here, there = two.daemons
    word = await asked(here)
    gone_back = await run(there, GIVE, **word)
    assert result(gone_back) == "one"
    assert "runId" not in gone_back["structuredContent"]["usage"], "it was never parked"
    again = await ask(there, "tools/call", TOOL, name=TOOL, arguments={"code": GIVE}, **word)
    assert "no run that waits" in again["error"]["message"], "a word is good once"
    state = word["requestState"]
    forged = {**word, "requestState": state[:-1] + ("A" if state[-1] != "A" else "B")}
    refused = await ask(there, "tools/call", TOOL, name=TOOL, arguments={"code": GIVE}, **forged)
    assert refused["error"] == again["error"]


async def test_an_output_is_read_at_any_broker_by_its_owner(
    two: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    here, there = two.daemons
    place = ("--config", str(here.folder / "cellblock.json"), "--state-dir", str(here.folder / "elsewhere"))
    assert await asyncio.to_thread(main, ["token", "create", "ann", *place]) == 0
    ann = replace(here, token=capfd.readouterr().out.strip())
    for one in (ann, replace(ann, port=there.port)):
        await until_known(one, 200)
    found = await run(ann, 'globalThis.__codemode_result__ = "x".repeat(3000);')
    (output,) = found["structuredContent"]["outputs"]
    third = f"{output['uri']}?page=3"
    for port in (here.port, there.port):
        asked = replace(ann, port=port)
        read = await ask(asked, "resources/read", third, uri=third)
        assert read["result"]["contents"][0]["text"] == "x" * 953 + '"'
        listed_there = await ask(asked, "resources/list", "")
        assert output["uri"] in [one["uri"] for one in listed_there["result"]["resources"]]
        refused = await ask(
            replace(asked, token=here.token), "resources/read", output["uri"], uri=output["uri"]
        )
        assert "not kept for this connection" in refused["error"]["message"]
    assert await asyncio.to_thread(main, ["token", "revoke", "ann", *place]) == 0
    for one in (ann, replace(ann, port=there.port)):
        await until_known(one, 401)


async def test_brokers_that_die(tmp_path: Path, postgres: Postgres) -> None:
    """What is parked goes on with whoever is asked, sessions begin anew, and who waits for an answer sees the end."""
    async with fleet(tmp_path, postgres.database(), **section(100)) as found:
        here, there = found.daemons
        mine, word = await opened(here), await asked(here)
        with psycopg.connect(found.database, autocommit=True) as connection:
            await until(
                lambda: connection.execute("SELECT 1 FROM cellblock.runs WHERE state = 'parked'").fetchone(),
                "the run is parked",
            )
        async with streaming(there, "POST", mine, call(NEVER)) as stream:
            await until(lambda: events(here, tool="never"), "the call is made")
            here.process.send_signal(signal.SIGKILL)
            await within(here.process.wait())
            head, _, body = (await within(stream.read())).partition(b"\r\n\r\n")
            assert b" 502 " in head or b'"result"' not in body
        for method in ("POST", "GET", "DELETE"):
            answer = await there.ask(method, headers=mine, body=message("ping", 5))
            assert answer.status == 404, method
        assert b"Begin a new one" in answer.body
        assert (await there.ask(headers=await opened(there), body=message("ping", 5))).status == 200
        gone_back = await run(there, GIVE, **word)
        assert result(gone_back) == "one"
        assert gone_back["structuredContent"]["usage"]["resumed"] == 1


async def test_a_task_that_another_broker_goes_on_with_is_cancelled(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with fleet(tmp_path, postgres.database(), **section(0)) as found:
        here, there = found.daemons
        task = (await run(there, THEN_NEVER, TASKS))["taskId"]
        given = {"question-1": {"action": "accept"}}
        await ask(here, "tasks/update", task, TASKS, taskId=task, inputResponses=given)
        await until(lambda: events(here, tool="never"), "it goes on")

        async def status() -> str:
            return (await ask(there, "tasks/get", task, TASKS, taskId=task))["result"]["status"]

        async def is_cancelled() -> bool:
            return await status() == "cancelled"

        assert await status() == "working"
        for one in (there, here):
            assert "result" in await ask(one, "tasks/cancel", task, TASKS, taskId=task)
        await until_found(is_cancelled, "it is cancelled", pause=0.2)


async def test_a_broker_that_stops_hands_on_what_it_can(tmp_path: Path, postgres: Postgres) -> None:
    async with fleet(tmp_path, postgres.database(), **section(600_000)) as found:
        here, there = found.daemons
        mine, word = await opened(here), await asked(here)
        async with streaming(there, "POST", mine, call(NEVER)):
            await until(lambda: events(here, tool="never"), "the call is made")
            here.process.send_signal(signal.SIGTERM)

            async def unready() -> bool:
                return (await here.ask("GET", "/readyz")).status == 503

            await until_found(unready, "it drains")
            # It takes no session, and another one does.
            new = await here.ask(headers={**MCP_HEADERS, **here.auth}, body=json.dumps(INITIALIZE).encode())
            assert new.status == 200
            theirs = {**mine, "Mcp-Session-Id": new.headers["mcp-session-id"]}
            assert (await there.ask(headers=theirs, body=message("ping", 5))).status == 200
            # The run whose client is away is parked, and goes on elsewhere, whoever is asked.
            gone_back = await run(here, GIVE, **word)
            assert result(gone_back) == "one"
            assert gone_back["structuredContent"]["usage"]["resumed"] == 1
            assert here.process.returncode is None, "it waits for what is under way"
        await within(here.process.wait())
        answer = await there.ask(headers=mine, body=message("ping", 5))
        assert answer.status == 404
        assert result(await run(there, ONE)) == 1


async def test_a_broker_that_stops_lets_runs_end_that_no_client_waits_for(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with fleet(tmp_path, postgres.database(), **section(0)) as found:
        here, there = found.daemons
        files = [tmp_path / name for name in ("one", "two")]
        calls = "".join(f"await hold({{ path: {json.dumps(str(file))} }});\n" for file in files)
        held = GIVE.replace("{ give }", "{ give, hold }") + calls
        task = (await run(there, held, TASKS))["taskId"]
        given = {"question-1": {"action": "accept"}}
        await ask(here, "tasks/update", task, TASKS, taskId=task, inputResponses=given)
        await until(lambda: events(here, tool="hold"), "it goes on")
        for one in found.daemons:
            one.process.send_signal(signal.SIGTERM)

        async def unready() -> bool:
            return (await here.ask("GET", "/readyz")).status == 503

        await until_found(unready, "it drains")
        for _ in range(100):
            # One that does not wait for the run is gone meanwhile.
            assert await unready()
            await asyncio.sleep(0.02)
        files[0].touch()
        await until(lambda: events(here, tool="hold") == 2, "it makes its next call")
        files[1].touch()
        await within(asyncio.gather(*(one.process.wait() for one in found.daemons)))
        with psycopg.connect(found.database) as connection:
            rows = connection.execute("SELECT state, outcome FROM cellblock.runs").fetchall()
        assert rows == [("ended", "ok")]
        assert (events(here, tool="give"), events(here, tool="hold")) == (1, 2)


async def test_at_its_end_a_broker_parks_what_waits_for_a_person(tmp_path: Path) -> None:
    """Of a client that is there: its form may be open until then."""
    settings: dict[str, Any] = {**section(600_000), "auth": {"keyring": "off"}, "pool": {"warm": 1}}
    async with daemon(tmp_path, http={"drain_ms": 300}, **settings) as served:
        mine = await opened(served, elicitation={})
        durable = message("tools/call", 5, name=TOOL, arguments={"code": GIVE, "durable": True})
        async with streaming(served, "POST", mine, durable) as stream:
            _, question = await first_message(stream)
            assert question["method"] == "elicitation/create"
            served.process.send_signal(signal.SIGTERM)
            taken_back = await next_message(stream)
            assert taken_back["method"] == "notifications/cancelled"
            told = await next_message(stream)
            assert "result" in told, told
            diagnostics = told["result"]["structuredContent"]["diagnostics"]
            assert [entry["code"] for entry in diagnostics] == ["RUN_PARKED"]
