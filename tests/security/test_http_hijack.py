"""Tokens of one principal against the sessions, streams, runs and questions of another."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from support.http_daemon import (
    MCP_HEADERS,
    TOOL,
    Daemon,
    daemon,
    first_message,
    next_message,
    opened,
    streaming,
)
from support.identity_provider import AUDIENCE, ISSUER, Issuer
from support.modern_client import message
from support.waits import until, within

GIVE = """
import { give } from "@codemode/servers/plain";
let got;
try { got = await give({ path: "a" }); } catch (error) { got = error.code; }
globalThis.__codemode_result__ = got;
"""


@dataclass
class Team:
    """A daemon as its members reach it."""

    served: Daemon
    issuer: Issuer

    def member(self, **claims: Any) -> Daemon:
        return replace(self.served, token=self.issuer.token(**claims))


@pytest.fixture(scope="module")
async def team(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> AsyncIterator[Team]:
    oauth = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.jwks_url}
    http = {"oauth": oauth, "max_sessions": 12}
    policy = {"default": {"approve": ["plain.give"]}}
    folder = tmp_path_factory.mktemp("team")
    log = {"level": "debug", "file": str(folder / "log")}
    async with daemon(folder, http=http, token=issuer.token(), policy=policy, log=log) as running:
        yield Team(running, issuer)


def give(request_id: int) -> bytes:
    return message("tools/call", request_id, name=TOOL, arguments={"code": GIVE})


def says(request_id: object, action: str) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": request_id, "result": {"action": action, "content": {}}}
    ).encode()


async def end(served: Daemon, headers: dict[str, str]) -> None:
    assert (await served.ask("DELETE", headers=headers)).status == 200


async def test_a_session_is_for_its_owner_alone(team: Team) -> None:
    """Nobody else may post to it, listen to it or end it, and nobody is told that it exists."""
    ada = team.member()
    mine = await opened(ada)
    old = int(time.time()) - 3600
    intruders = {
        "another principal": (team.member(sub="eve"), 404),
        "another program of the same": (team.member(client_id="another"), 404),
        "her token, expired": (team.member(exp=old), 401),
        "her token for another server": (team.member(aud="https://another.example/mcp"), 401),
        "no token": (replace(team.served, token=None), 401),
    }
    async with streaming(ada, "GET", mine) as listening:
        assert b" 200 " in await within(listening.readline())
        for who, (intruder, status) in intruders.items():
            theirs = {**mine, **intruder.auth}
            if not intruder.auth:
                del theirs["Authorization"]
            for method, body in (
                ("POST", message("ping", 5)),
                ("POST", give(6)),
                ("POST", message("initialize", 7)),
                ("POST", message("notifications/cancelled", requestId=5)),
                ("POST", says(1, "accept")),
                ("GET", b""),
                ("DELETE", b""),
            ):
                answer = await intruder.ask(method, headers=theirs, body=body)
                assert answer.status == status, (who, method, body)
                assert "mcp-session-id" not in answer.headers
        assert not listening.at_eof()
        assert (await ada.ask(headers=mine, body=message("ping", 8))).status == 200
    assert team.served.recorded(tool="give") == 0
    await end(ada, mine)
    for method in ("POST", "GET", "DELETE"):
        assert (await ada.ask(method, headers=mine, body=message("ping", 9))).status == 404


async def test_an_answer_counts_only_in_the_session_that_was_asked(team: Team) -> None:
    """Questions are numbered in each session, so that the numbers of others are easily guessed."""
    ada, eve = team.member(), team.member(sub="eve")
    asked, second = await opened(ada, elicitation={}), await opened(ada, elicitation={})
    eves = await opened(eve, elicitation={})
    seen: list[object] = []
    for number in (10, 11):
        async with streaming(ada, "POST", asked, give(number)) as stream:
            _, question = await first_message(stream)
            assert question["method"] == "elicitation/create"
            for guess in {question["id"], *seen, *range(5), *(str(guess) for guess in range(5))}:
                for served, headers in ((ada, second), (eve, eves)):
                    assert (await served.ask(headers=headers, body=says(guess, "accept"))).status == 202
                assert (
                    await eve.ask(headers={**asked, **eve.auth}, body=says(guess, "accept"))
                ).status == 404
            for old in seen:
                # An answer that was good for the last question.
                assert (await ada.ask(headers=asked, body=says(old, "accept"))).status == 202
            cancel = message("notifications/cancelled", requestId=number)
            for served, headers in ((ada, second), (eve, eves)):
                assert (await served.ask(headers=headers, body=cancel)).status == 202
            assert (await ada.ask(headers=asked, body=says(question["id"], "decline"))).status == 202
            answer = await next_message(stream)
            assert answer["result"]["structuredContent"]["result"] == "APPROVAL_DECLINED", answer
            seen.append(question["id"])
    assert team.served.recorded(tool="give") == 0
    for served, headers in ((ada, asked), (ada, second), (eve, eves)):
        await end(served, headers)


async def test_one_principal_does_not_take_all_sessions(team: Team) -> None:
    """More sessions of one take the place of its own that are idle, whichever program opens them, and no other's."""
    ada, eve = team.member(), team.member(sub="eve")
    another = team.member(client_id="another")
    eves = await opened(eve)
    mine = [await opened(ada) for _ in range(6)]
    listening: list[asyncio.StreamReader] = []
    async with contextlib.AsyncExitStack() as streams:
        for session in mine[1:]:
            listening.append(await streams.enter_async_context(streaming(ada, "GET", session)))
            assert b" 200 " in await within(listening[-1].readline())
        theirs = await opened(another)
        assert (await ada.ask(headers=mine[0], body=message("ping", 5))).status == 404
        listening.append(await streams.enter_async_context(streaming(another, "GET", theirs)))
        assert b" 200 " in await within(listening[-1].readline())
        # All are in use now.
        for served in (ada, another):
            refused = await served.ask(headers={**MCP_HEADERS, **served.auth})
            assert refused.status == 503
            assert "each with a request or a stream" in json.loads(refused.body)["error"]["message"]
        assert not any(stream.at_eof() for stream in listening)
        assert (await eve.ask(headers=eves, body=message("ping", 5))).status == 200
        await end(eve, await opened(eve))
    for served, headers in ((eve, eves), (another, theirs), *((ada, one) for one in mine[1:])):
        await end(served, headers)


async def test_no_log_lets_its_reader_into_a_session(team: Team) -> None:
    """Not at its most curious, and whatever happens to the session."""
    ada, eve = team.member(), team.member(sub="eve")
    mine = await opened(ada)
    assert (await eve.ask(headers={**mine, **eve.auth}, body=message("ping", 5))).status == 404
    made_up = {**MCP_HEADERS, **ada.auth, "Mcp-Session-Id": "f" * 32}
    assert (await ada.ask(headers=made_up, body=message("ping", 5))).status == 404
    await end(ada, mine)
    log = team.served.folder / "log"
    for line in ("expired session ID: [redacted]", "Terminating session: [redacted]"):
        await until(lambda line=line: line in log.read_text(), f"{line!r} is in the log")
    text = log.read_text()
    assert mine["Mcp-Session-Id"] not in text and "f" * 32 not in text
