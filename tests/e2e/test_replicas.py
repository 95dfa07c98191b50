"""Several brokers of one PostgreSQL. Behind HAProxy, which finds the broker of a session by the session's id, any of
them has a run; a command line of another state directory has it, too; `/readyz` says when PostgreSQL is away. What
the manifests for Kubernetes start, started here: two brokers at addresses of their own, a host, and what a cluster
asks.
"""

import asyncio
import base64
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from mcp.client.streamable_http import streamable_http_client
from ruamel.yaml import YAML

from cellblock_worker.wire.keys import make_key_file
from support import commands, haproxy
from support.asking_client import always, asking
from support.certificates import certificate
from support.commands import piped
from support.documents import ROOT, examples
from support.entries import CELLBLOCK, ledger
from support.haproxy import KEY, SECTION, Fleet, fleet
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
    streaming,
)
from support.http_server import free_port
from support.modern_client import FORMS, TASKS, allowing, ask, message
from support.parked_runs import ended, parked
from support.postgresql import Postgres
from support.waits import until, until_found, within

command = partial(commands.command, state="elsewhere")


def sections(url: str) -> dict[str, Any]:
    """What brokers that share a PostgreSQL are told."""
    return {**SECTION, "state": {"url": url, "key": KEY}}


async def test_a_run_is_answered_elsewhere_and_a_probe_hears_that_postgresql_is_away(
    postgres_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    async with daemon(tmp_path, **sections(postgres_url)) as served:
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")
        run_id = await parked(served, GIVE)
        (listed,) = json.loads(await command(tmp_path, "runs", "list", "--parked", "--json"))
        assert listed["id"] == run_id
        assert f"{run_id} goes on" in await command(tmp_path, "runs", "approve", run_id)
        assert (await ended(served, run_id))["outcome"] == "ok"
        assert [event["arguments"] for event in ledger(served.ledger) if event.get("tool") == "give"] == [
            {"text": "one"}
        ]
        assert not (tmp_path / "elsewhere" / "journals.sqlite3").exists()
        postgres.stop()
        try:
            await served.until_says("/readyz", lambda answer: answer.body == b"ok, but PostgreSQL is away\n")
        finally:
            postgres.start()
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")
    # With the level that a log has where nothing is set.
    away, back = served.said[-1].find("PostgreSQL is away"), served.said[-1].find("PostgreSQL is there again")
    assert 0 <= away < back, served.said[-1]


async def test_a_broker_that_finds_tables_of_a_newer_one_is_not_ready_and_says_so(
    postgres_url: str, tmp_path: Path
) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    async with daemon(tmp_path / "new", **sections(postgres_url)) as served:
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "UPDATE cellblock.migrations SET version = 99, oldest = 99 WHERE kind = 'journals'"
            )
        async with daemon(tmp_path / "old", **sections(postgres_url)) as old:
            said = "not ready: the tables of journals were made by a newer Cellblock (version 99 of them)\n"
            await old.until_says("/readyz", lambda answer: answer.body == said.encode())
        # One that runs already goes on.
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")


GIVE = """import { give } from "@codemode/servers/plain";
globalThis.__codemode_result__ = (await give({ text: "one" })).text;
"""
NEVER = 'import { never } from "@codemode/servers/plain"; await never({ text: "under way" });'
THEN_NEVER = """import { give, never } from "@codemode/servers/plain";
await give({ text: "one" });
await never({ text: "under way" });
"""
ONE = "globalThis.__codemode_result__ = 1;"


ASKS: dict[str, Any] = {"policy": {"default": {"approve": ["plain.give"]}}}


@pytest.fixture(scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> AsyncIterator[Fleet]:
    """Two daemons that park a run before its client hears the question."""
    kept = {"inline_bytes": 1024}
    async with fleet(tmp_path_factory.mktemp("two"), postgres.database(), frontend=kept, **ASKS) as found:
        yield found


@pytest.fixture
async def killed(tmp_path: Path, postgres: Postgres) -> AsyncIterator[Fleet]:
    """Two of which a test ends some."""
    async with fleet(tmp_path, postgres.database(), **ASKS) as found:
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


async def accepted_task(there: Daemon, here: Daemon, code: str) -> str:
    """A task of one broker whose question is answered at another."""
    task = (await run(there, code, TASKS))["taskId"]
    given = {"question-1": {"action": "accept"}}
    await ask(here, "tasks/update", task, TASKS, taskId=task, inputResponses=given)
    return task


async def pinged(served: Daemon, session: dict[str, str], method: str = "POST") -> int:
    """The status of the answer to a request in a session."""
    return (await served.ask(method, headers=session, body=message("ping", 5))).status


async def in_session(served: Daemon, session: dict[str, str], code: str) -> Any:
    """The result of a script that is run in a session."""
    _, told = await said(served, served.request("POST", "/mcp", headers=session, body=call(code)))
    return result(told["result"])


async def until_known(served: Daemon, status: int) -> None:
    """Until a broker has seen that a token was made, or revoked, elsewhere."""

    async def is_so() -> bool:
        headers = {**MCP_HEADERS, **served.auth}
        return (await served.ask(headers=headers, body=json.dumps(INITIALIZE).encode())).status == status

    await until_found(is_so, "a token is known" if status == 200 else "it is revoked", pause=0.1)


# ---- sessions ----------------------------------------------------------------------------------------


@haproxy.needs_haproxy
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_and_its_user_behind_the_balancer(two: Fleet, mode: str) -> None:
    """Each request comes to the next broker: the call, the question's answer, the stream."""
    served = two.behind()
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        httpx2.AsyncClient(
            headers=served.auth, timeout=60, limits=limits, trust_env=False, verify=False
        ) as http,
        asking(streamable_http_client(served.url, http_client=http), mode) as client,
    ):
        client.answer = always("accept")
        for _ in range(3):
            response = await client.run(GIVE)
            assert response["result"] == "one", response
        assert len(client.questions) == 3


@haproxy.needs_haproxy
async def test_a_session_is_at_its_broker(two: Fleet) -> None:
    served = two.behind()
    sessions: list[dict[str, str]] = []

    async def each_has_some() -> bool:
        sessions.append(await opened(served))
        return {one["Mcp-Session-Id"].partition(".")[0] for one in sessions} == {"b0", "b1"}

    await until_found(each_has_some, "each broker gets some")
    for mine in sessions:
        assert await in_session(served, mine, ONE) == 1
        own = mine["Mcp-Session-Id"].startswith("b1.")
        answers = [await pinged(one, mine) for one in (served, *two.daemons)]
        assert answers == ([200, 404, 200] if own else [200, 200, 404])
    mine = sessions[0]
    assert await in_session(served, mine, ONE + "//" + "x" * 700_000) == 1
    assert (await served.ask("DELETE", headers=mine)).status == 200
    assert [await pinged(one, mine) for one in (served, *two.daemons)] == [404, 404, 404]


@haproxy.needs_haproxy
async def test_a_stream_and_its_end_pass_through(two: Fleet) -> None:
    served = two.behind()
    mine = await opened(served)
    async with streaming(served, "GET", mine) as listening:
        assert b" 200 " in await within(listening.readline())
        # A session has one such stream, and this is it.
        assert (await served.ask("GET", headers=mine)).status == 409

    async def free() -> bool:
        async with streaming(served, "GET", mine) as listening:
            return b" 200 " in await within(listening.readline())

    await until_found(free, "the stream is over")
    token = {"_meta": {"progressToken": "p"}, "name": TOOL, "arguments": {"code": NEVER}}
    before = served.recorded(event="cancelled")
    async with streaming(served, "POST", mine, message("tools/call", 7, **token)) as stream:
        _, told = await first_message(stream)
        assert told["method"] == "notifications/progress"
        await until(lambda: served.recorded(tool="never"), "the call is made")
        async with asyncio.timeout(60):
            while (await next_message(stream))["params"]["progress"] < 2:
                pass
    await until(lambda: served.recorded(event="cancelled") > before, "who hangs up ends the run")


@haproxy.needs_haproxy
@pytest.mark.thorough
async def test_the_balancer_asks_brokers_over_tls_by_the_name_in_their_certificate(
    tmp_path: Path, postgres: Postgres
) -> None:
    cert, key = certificate(tmp_path, host="cellblock.test")
    client = ssl.create_default_context(cafile=str(cert))
    client.check_hostname = False
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    asked_by = f"ssl verify required ca-file {cert} sni str(cellblock.test)"
    async with fleet(tmp_path, postgres.database(), *options, tls=client, balancer_tls=asked_by) as found:
        served = found.behind()
        mine = await opened(served)
        assert await in_session(served, mine, ONE) == 1
        async with streaming(served, "POST", mine, call(NEVER, 7)):
            await until(lambda: served.recorded(tool="never"), "the call is made")
            cancelled = message("notifications/cancelled", requestId=7)
            assert (await served.ask(headers=mine, body=cancelled)).status == 202
            await until(lambda: served.recorded(event="cancelled"), "the run is cancelled")
        assert (await served.ask("DELETE", headers=mine)).status == 200


@haproxy.needs_haproxy
async def test_ids_that_are_refused(two: Fleet) -> None:
    here = two.daemons[0]
    ways = (*two.daemons, two.behind())
    token = (await command(here.folder, "token", "create", "eve", state="s")).strip()
    eves = [replace(one, token=token) for one in ways]
    for eve in eves:
        await until_known(eve, 200)
    mine = await opened(here)
    _, _, session = mine["Mcp-Session-Id"].partition(".")
    guessed = (
        session,
        f".{session}",
        f"b1.{session}",
        f"B0.{session}",
        f"b0.b0.{session}",
        f"b0.{'0' * len(session)}",
        "b0.",
        "b0.not-here",
        "not-here",
        f"nobody.{session}",
        f"<BACKEND>.{session}",
        "x" * 1000,
    )
    for served in ways:
        for word in guessed:
            answer = await served.ask(headers={**mine, "Mcp-Session-Id": word}, body=message("ping", 5))
            assert (answer.status, "mcp-session-id" in answer.headers) == (404, False), word
    for method in ("POST", "GET", "DELETE"):
        for eve in eves:
            answer = await eve.ask(method, headers={**mine, **eve.auth}, body=message("ping", 5))
            assert (answer.status, "mcp-session-id" in answer.headers) == (404, False)
    no_token = {key: value for key, value in mine.items() if key != "Authorization"}
    assert await pinged(two.behind(), no_token) == 401
    assert await pinged(two.behind(), mine) == 200


@haproxy.needs_haproxy
async def test_sessions_go_on_while_postgresql_is_away(two: Fleet, postgres: Postgres) -> None:
    served = two.behind()
    mine = await opened(served)
    postgres.stop()
    try:
        assert [await pinged(served, one) for one in (mine, await opened(served))] == [200, 200]
    finally:
        postgres.start()
    # The tests behind this one have both brokers.
    for one in two.daemons:
        await one.until_says("/readyz", lambda answer: answer.body == b"ok\n")


@haproxy.needs_haproxy
@pytest.mark.thorough
async def test_of_two_brokers_with_one_name_one_is_ready(tmp_path: Path, postgres: Postgres) -> None:
    """The other says why, and is ready when the first has gone."""
    sections: dict[str, Any] = {**SECTION, "state": {"url": postgres.database(), "key": KEY, "broker": "b0"}}

    async def says(served: Daemon, status: int, text: bytes) -> None:
        await served.until_says("/readyz", lambda answer: answer.status == status and text in answer.body)

    async with daemon(tmp_path, **sections) as first:
        await says(first, 200, b"ok")
        async with daemon(tmp_path, **sections) as second:
            await says(
                second, 503, b"not ready: another broker has the name b0: give each its own in state.broker"
            )
            await says(first, 200, b"ok")
            first.process.send_signal(signal.SIGKILL)
            await says(second, 200, b"ok")


# ---- without sessions --------------------------------------------------------------------------------


@haproxy.needs_haproxy
async def test_a_run_is_answered_at_any_broker_and_once(two: Fleet) -> None:
    here, there = two.daemons
    word = await asked(here)
    state = word["requestState"]
    (run_id, *_) = json.loads(base64.urlsafe_b64decode(state.split(".")[1] + "=="))
    with psycopg.connect(two.database, autocommit=True) as connection:
        parked = "SELECT 1 FROM cellblock.runs WHERE id = %s AND state = 'parked'"
        await until(lambda: connection.execute(parked, (run_id,)).fetchone(), "the run is parked")
    forged = {**word, "requestState": state[:-1] + ("A" if state[-1] != "A" else "B")}
    refused = await ask(there, "tools/call", TOOL, name=TOOL, arguments={"code": GIVE}, **forged)
    assert result(await run(there, GIVE, **word)) == "one"
    again = await ask(here, "tools/call", TOOL, name=TOOL, arguments={"code": GIVE}, **word)
    assert "no run that waits" in again["error"]["message"], "a word is good once"
    assert refused["error"] == again["error"]


@haproxy.needs_haproxy
async def test_an_output_is_read_at_any_broker_by_its_owner(two: Fleet) -> None:
    here = two.daemons[0]
    token = (await command(here.folder, "token", "create", "ann")).strip()
    anns = [replace(one, token=token) for one in two.daemons]
    for ann in anns:
        await until_known(ann, 200)
    found = await run(anns[0], 'globalThis.__codemode_result__ = "x".repeat(66_000);')
    (uri,) = [output["uri"] for output in found["structuredContent"]["outputs"]]
    third = f"{uri}?page=3"
    for ann in anns:
        read = await ask(ann, "resources/read", third, uri=third)
        assert read["result"]["contents"][0]["text"] == "x" * 465 + '"'
        assert uri in [one["uri"] for one in (await ask(ann, "resources/list", ""))["result"]["resources"]]
        refused = await ask(replace(ann, token=here.token), "resources/read", uri, uri=uri)
        assert "not kept for this connection" in refused["error"]["message"]
    await command(here.folder, "token", "revoke", "ann")
    for ann in anns:
        await until_known(ann, 401)


async def goes_on_elsewhere(served: Daemon, word: dict[str, Any]) -> None:
    gone_back = await run(served, GIVE, **word)
    assert result(gone_back) == "one"
    assert gone_back["structuredContent"]["usage"]["resumed"] == 1


@haproxy.needs_haproxy
async def test_brokers_that_die(killed: Fleet) -> None:
    """What is parked goes on with whoever is asked, sessions begin anew, and who waits for an answer sees the end."""
    here, served = killed.daemons[0], killed.behind()
    mine, word = await opened(here), await asked(here)
    with psycopg.connect(killed.database, autocommit=True) as connection:
        await until(
            lambda: connection.execute("SELECT 1 FROM cellblock.runs WHERE state = 'parked'").fetchone(),
            "the run is parked",
        )
    async with streaming(served, "POST", mine, call(NEVER)) as stream:
        await until(lambda: here.recorded(tool="never"), "the call is made")
        here.process.send_signal(signal.SIGKILL)
        await within(here.process.wait())
        head, _, body = (await within(stream.read())).partition(b"\r\n\r\n")
        assert b" 502 " in head or b'"result"' not in body
    assert [await pinged(served, mine, method) for method in ("POST", "GET", "DELETE")] == [404, 404, 404]
    assert await pinged(served, await opened(served)) == 200
    await goes_on_elsewhere(served, word)


@haproxy.needs_haproxy
@pytest.mark.thorough
async def test_a_task_that_another_broker_goes_on_with_is_cancelled(killed: Fleet) -> None:
    here, there = killed.daemons
    task = await accepted_task(there, here, THEN_NEVER)
    await until(lambda: here.recorded(tool="never"), "it goes on")

    async def status() -> str:
        return (await ask(there, "tasks/get", task, TASKS, taskId=task))["result"]["status"]

    async def is_cancelled() -> bool:
        return await status() == "cancelled"

    assert await status() == "working"
    for one in (there, here):
        assert "result" in await ask(one, "tasks/cancel", task, TASKS, taskId=task)
    await until_found(is_cancelled, "it is cancelled", pause=0.2)


@haproxy.needs_haproxy
@pytest.mark.thorough
async def test_a_broker_that_stops_hands_on_what_it_can(killed: Fleet) -> None:
    (here, there), served = killed.daemons, killed.behind()
    mine, word = await opened(here), await asked(here)
    async with streaming(served, "POST", mine, call(NEVER)):
        await until(lambda: here.recorded(tool="never"), "the call is made")
        here.process.send_signal(signal.SIGTERM)
        await here.until_status("/readyz", 503)
        # It takes nothing new, and another one does, also before the balancer has looked.
        for _ in range(4):
            assert (await opened(served))["Mcp-Session-Id"].startswith("b1.")
        assert await pinged(served, mine) == 200, "its sessions go on"
        # The run whose client is away is parked.
        await goes_on_elsewhere(served, word)
        assert here.process.returncode is None, "it waits for what is under way"
    await within(here.process.wait())
    assert await pinged(served, mine) == 404
    assert result(await run(there, ONE)) == 1


@haproxy.needs_haproxy
@pytest.mark.thorough
async def test_a_broker_that_stops_lets_runs_end_that_no_client_waits_for(
    killed: Fleet, tmp_path: Path
) -> None:
    here, there = killed.daemons
    files = [tmp_path / name for name in ("one", "two")]
    calls = "".join(f"await hold({{ path: {json.dumps(str(file))} }});\n" for file in files)
    await accepted_task(there, here, GIVE.replace("{ give }", "{ give, hold }") + calls)
    await until(lambda: here.recorded(tool="hold"), "it goes on")
    # Either broker may have taken it.
    (working,) = [one for one in killed.daemons if await one.live()]
    for one in killed.daemons:
        one.process.send_signal(signal.SIGTERM)
    await working.until_status("/readyz", 503)
    for _ in range(100):
        # One that does not wait for the run is gone meanwhile.
        assert (await working.ask("GET", "/readyz")).status == 503
        await asyncio.sleep(0.02)
    files[0].touch()
    await until(lambda: here.recorded(tool="hold") == 2, "it makes its next call")
    files[1].touch()
    await within(asyncio.gather(*(one.process.wait() for one in killed.daemons)))
    with psycopg.connect(killed.database) as connection:
        rows = connection.execute("SELECT state, outcome FROM cellblock.runs").fetchall()
    assert rows == [("ended", "ok")]
    assert (here.recorded(tool="give"), here.recorded(tool="hold")) == (1, 2)


@haproxy.needs_haproxy
@pytest.mark.thorough
async def test_a_server_that_must_exist_once_runs_once_behind_http(
    tmp_path: Path, postgres: Postgres
) -> None:
    """A program that speaks stdio, behind a broker of its own: every broker has it by its URL."""
    behind = tmp_path / "fleet"
    behind.mkdir()
    async with daemon(tmp_path, "--profile", "proxy", auth={"keyring": "off"}) as server:
        entry = {"once": {"url": server.url, "headers": server.auth}}
        async with fleet(behind, postgres.database(), servers=entry) as found:
            for one in found.daemons:
                assert result(await run(one, GIVE.replace("/plain", "/once"))) == "one"
        assert (server.recorded(event="start"), server.recorded(tool="give")) == (1, 2)


@haproxy.needs_haproxy
async def test_at_its_end_a_broker_parks_what_waits_for_a_person(tmp_path: Path) -> None:
    """Of a client that is there: its form may be open until then."""
    async with daemon(tmp_path, http={"drain_ms": 300}, auth={"keyring": "off"}, **ASKS) as served:
        mine = await opened(served, elicitation={})
        durable = message("tools/call", 5, name=TOOL, arguments={"code": GIVE, "durable": True})
        async with streaming(served, "POST", mine, durable) as stream:
            _, question = await first_message(stream)
            assert question["method"] == "elicitation/create"
            served.process.send_signal(signal.SIGTERM)
            assert (await next_message(stream))["method"] == "notifications/cancelled"
            diagnostics = (await next_message(stream))["result"]["structuredContent"]["diagnostics"]
            assert [entry["code"] for entry in diagnostics] == ["RUN_PARKED"]


# ---- what the manifests of Kubernetes start ----------------------------------------------------------

needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the loopback has one address only"
)

ADDRESSES = ("127.0.0.2", "127.0.0.3")
NAME = "cellblock.cellblock.svc"
TOKEN = "t" * 32
OTHER = "o" * 32


def pod_of(file: str) -> dict[str, Any]:
    """The pod of a manifest's Deployment."""
    documents = YAML(typ="safe", pure=True).load_all((ROOT / "deploy/kubernetes/base" / file).read_text())
    (found,) = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "Deployment"]
    return found


@dataclass
class Place:
    """Where the paths and ports of the pods are on this machine."""

    folder: Path
    ports: dict[str, int]

    @property
    def temporary(self) -> dict[str, str]:
        """Where a pod's files may be that are nobody's."""
        return dict.fromkeys(("HOME", "TMPDIR"), str(self.folder / "tmp"))

    def here(self, text: str) -> str:
        """A text of a manifest, or of the page, with what is here in the place of what is there."""
        for path in ("/secret", "/etc/cellblock", "/run/cellblock", "/state"):
            text = re.sub(rf"(?<![\w.]){path}\b", f"{self.folder}{path}", text)
        for there, port in self.ports.items():
            text = re.sub(rf"(?<=:){there}\b", str(port), text)
        return text


def make_volume(path: Path) -> None:
    """An empty volume as kubelet makes it with a `fsGroup`: root's, and open to all."""
    path.mkdir(parents=True)
    if os.geteuid() == 0:
        # Here pods are root's, and so a volume is somebody else's.
        os.chown(path, 65532, 65532)
    path.chmod(0o2777)


def prepared(folder: Path) -> Place:
    """The volumes, as the Secrets and the page say, and what the init container makes of them."""
    place = Place(folder, {"7433": free_port(""), "7070": free_port("")})
    for path in ("secret/key", "secret/token", "secret/tls", "etc/cellblock/config"):
        (folder / path).mkdir(parents=True)
    for pod in ("broker.yaml", "hosts.yaml"):
        empty = {one["name"] for one in pod_of(pod)["volumes"] if "emptyDir" in one}
        for container in pod_of(pod)["containers"]:
            for mount in container["volumeMounts"]:
                path = folder / mount["mountPath"].strip("/")
                if mount["name"] in empty and not path.exists():
                    make_volume(path)
    cert, key = certificate(folder, host=NAME)
    tls = folder / "etc/cellblock/tls"
    tls.mkdir()
    for where in (tls, folder / "secret/tls"):
        for name, file in (("tls.crt", cert), ("tls.key", key), ("ca.crt", cert)):
            (where / name).write_bytes(file.read_bytes())
    make_key_file(folder / "secret/key/broker.key")
    for name, token in (("token", TOKEN), ("other", OTHER)):
        (folder / "secret/token" / name).write_text(token)
    host = make_key_file(folder / "host.key")
    text = next(
        one.text for one in examples() if one.page.name == "howto-kubernetes.md" and one.language == "json"
    )
    text = place.here(text).replace("<public key of the hosts>", host.public)
    # Two pods of one machine, which have a network each on a cluster.
    text = text.replace("tcp://0.0.0.0", "tcp://${env:POD_IP}")
    section = json.loads(text)["cellblock"]
    quick = {"typecheck": "off", "auth": {"keyring": "off"}, "pool": {"warm": 0}}
    state = {**section["state"], "broker": "${env:POD}"}
    config = {"mcpServers": {}, "cellblock": {**section, **quick, "state": state}}
    (folder / "etc/cellblock/config/cellblock.json").write_text(json.dumps(config))
    (init,) = pod_of("broker.yaml")["initContainers"]
    command = [place.here(word) for word in init["command"]]
    public = Path("/etc/ssl/certs/ca-certificates.crt")
    if not public.exists():
        command = [word.replace(str(public), str(cert)) for word in command]
    subprocess.run(command, check=True, timeout=60)
    return place


@pytest.fixture(scope="module")
async def brokers(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres
) -> AsyncIterator[tuple[Place, list[Daemon]]]:
    """Two pods of the Deployment."""
    place = prepared(tmp_path_factory.mktemp("k"))
    (container,) = pod_of("broker.yaml")["containers"]
    secret = {"url": postgres.database(), "key": base64.b64encode(bytes(range(32))).decode()}
    trusted = ssl.create_default_context(cafile=str(place.folder / "secret/tls/ca.crt"))
    trusted.check_hostname = False
    found: list[Daemon] = []
    async with AsyncExitStack() as stack:
        for address in ADDRESSES:
            # Pods have host names of their own.
            environment = {"PATH": os.environ["PATH"], "POD": address.replace(".", "-"), **place.temporary}
            for one in container["env"]:
                kinds = one.get("valueFrom", {})
                environment[one["name"]] = (
                    address
                    if kinds.get("fieldRef") == {"fieldPath": "status.podIP"}
                    else secret[kinds["secretKeyRef"]["key"]]
                    if kinds
                    else place.here(one["value"])
                )
            # As pods, they share no folder.
            state = f"{place.folder}/state"
            make_volume(Path(f"{state}-{address}"))
            arguments = [place.here(word).replace("0.0.0.0", address) for word in container["args"]]
            arguments = [word.replace(state, f"{state}-{address}") for word in arguments]
            started = piped(*arguments, program=CELLBLOCK, stdout=None, env=environment, cwd=place.folder)
            process = (await stack.enter_async_context(started)).process
            while b"serving" not in (line := await within(process.stderr.readline())):
                assert line, "it did not start"
            found.append(Daemon(process, place.ports["7433"], place.folder, TOKEN, trusted, host=address))
        yield place, found
        for one in found:
            one.process.terminate()
            await within(one.process.wait())


async def started_host(place: Place) -> Process:
    """A pod of the hosts, which dials both brokers."""
    (container,) = pod_of("hosts.yaml")["containers"]
    public = (place.folder / "run/cellblock/broker.key").read_text().split("\n# ")[1].split()[0]
    key = place.folder / "run/cellblock/host.key"
    key.write_bytes((place.folder / "host.key").read_bytes())
    key.chmod(0o600)
    words = [place.here(word).replace("$(BROKER_PUBLIC_KEY)", public) for word in container["args"]]
    # No cluster's DNS; and not every machine that runs tests lets bubblewrap work.
    words = [word for word in words if "--connect" not in word and "--isolation" not in word]
    names = [f"tcp://{address}:{place.ports['7070']}" for address in ADDRESSES]
    command = [sys.executable, *container["command"][1:], "--connect", *names, *words]
    return await asyncio.create_subprocess_exec(*command, env={**os.environ, **place.temporary})


def asked_by(probe: str) -> tuple[str, dict[str, str]]:
    """The path that kubelet asks for, and its headers."""
    (container,) = pod_of("broker.yaml")["containers"]
    asked = container[probe]["httpGet"]
    return asked["path"], {header["name"]: header["value"] for header in asked["httpHeaders"]}


@pytest.mark.thorough
@needs_linux
async def test_two_brokers_become_ready_with_a_host_and_share_it(
    brokers: tuple[Place, list[Daemon]],
) -> None:
    place, both = brokers
    for broker in both:
        for probe, status in (("startupProbe", 200), ("livenessProbe", 200), ("readinessProbe", 503)):
            path, headers = asked_by(probe)
            assert (await broker.ask("GET", path, headers=headers)).status == status, probe
    host = await started_host(place)
    try:
        path, headers = asked_by("readinessProbe")

        async def are_ready() -> bool:
            answers = [await broker.ask("GET", path, headers=headers) for broker in both]
            return all(answer.status == 200 for answer in answers)

        await until_found(are_ready, "both brokers have the host")
        code = {"code": "globalThis.__codemode_result__ = 6 * 7;"}
        body = message("tools/call", 3, name=TOOL, arguments=code)
        for broker in both:
            session = {**await opened(broker), "Host": "cellblock"}
            _, told = await said(broker, broker.request("POST", "/mcp", headers=session, body=body))
            assert told["result"]["structuredContent"]["result"] == 42, told
    finally:
        host.terminate()
        await within(host.wait())


@pytest.mark.thorough
@needs_linux
async def test_prometheus_is_answered_at_a_pods_address(brokers: tuple[Place, list[Daemon]]) -> None:
    place, (one, other) = brokers
    for broker in (one, other):
        itself = {"Host": f"{broker.host}:{place.ports['7433']}"}
        assert (await broker.ask("GET", "/metrics", headers=itself)).status == 401
        metrics = await broker.ask("GET", "/metrics", headers={**itself, **broker.auth})
        assert metrics.status == 200 and b"cellblock_pool_queued" in metrics.body
        beside = {**itself, "Authorization": f"Bearer {OTHER}"}
        assert (await broker.ask("GET", "/metrics", headers=beside)).status == 200, "tokens are changing"
    mistaken = {"Host": f"{other.host}:{place.ports['7433']}", **one.auth}
    assert (await one.ask("GET", "/metrics", headers=mistaken)).status == 403
