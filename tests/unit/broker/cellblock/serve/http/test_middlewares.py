"""What stands in front of MCP, each by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.server.auth.provider import AccessToken
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from cellblock.base.settings.policy import NAMED
from cellblock.serve.http.activity import Activity, Seen
from cellblock.serve.http.bodies import Memory, WholeBody
from cellblock.serve.http.caller import Authenticated, Authenticator, Caller, NoNamedTokens
from cellblock.serve.http.in_flight import Drained, InFlight
from cellblock.serve.http.methods import McpMethods
from cellblock.serve.http.refusal import NO_TOKEN, Refusals
from cellblock.serve.http.sessions import SessionLimit, Sessions
from cellblock.serve.http.trusted import OneLength, OwnSite, TrustedHosts, TrustedOrigins
from support.asgi import ADA, ask
from support.waits import until

OK = PlainTextResponse("ok")
OLDER = "2025-06-18"


async def statuses(app: ASGIApp, *requests: dict[str, Any]) -> list[int]:
    return [(await ask(Refusals(app), **one)).status_code for one in requests]


async def test_a_body_has_one_length() -> None:
    both: dict[str, Any] = {"transfer_encoding": "chunked", "content_length": "4"}
    chunked: dict[str, Any] = {"transfer_encoding": "chunked"}
    assert await statuses(OneLength(OK), both, {**chunked, "http_version": "1.0"}) == [400, 400]
    assert await statuses(OneLength(OK), chunked, {"content_length": "4"}, {}) == [200, 200, 200]


async def test_hosts_and_origins_are_ours() -> None:
    hosts = TrustedHosts(OK, ["127.0.0.1:1"])
    assert await statuses(hosts, {"host": "127.0.0.1:1"}, {"host": "evil"}, {}) == [200, 403, 403]
    origins = TrustedOrigins(OK, ["http://ours"])
    allowed: list[dict[str, Any]] = [{"origin": "http://ours"}, {}, {"sec_fetch_site": "none"}]
    refused: list[dict[str, Any]] = [
        {"origin": "http://evil"},
        {"origin": ""},
        {"sec_fetch_site": "same-site"},
    ]
    assert await statuses(origins, *allowed, *refused) == [200] * 3 + [403] * 3
    # The dashboard is for its own page, whatever else is allowed.
    ours = {"origin": "http://ours", "sec_fetch_site": "cross-site"}
    assert await statuses(origins, ours) == [200]
    assert await statuses(OwnSite(OK), ours) == [403]


class Anns:
    async def verify_token(self, token: str) -> AccessToken | None:
        if token != "right":
            return None
        return AccessToken(token="", client_id="editor", subject=NAMED + "ann", scopes=[])


async def test_a_token_names_its_caller() -> None:
    seen: list[Caller | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(Caller.of(scope))
        await OK(scope, receive, send)

    for behind in (False, True):
        known = Refusals(Authenticated(app, Authenticator(Anns(), "Bearer x", behind_balancer=behind)))
        assert (await ask(known, caller=None, authorization="Bearer right")).status_code == 200
        wrong = await ask(known, caller=None, authorization="Bearer wrong")
        assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer x")
        assert NO_TOKEN.encode() in wrong.body and wrong.headers["connection"] == "close"
    assert [one and one.client for one in seen] == ["http token:ann 127.0.0.1", "http token:ann"]
    both = Authenticated(NoNamedTokens(OK), Authenticator(Anns()))
    assert await statuses(both, {"authorization": "Bearer right"}) == [403]
    assert await statuses(Authenticated(NoNamedTokens(OK), Authenticator(None)), {}) == [200]


async def test_a_client_is_there_while_it_asks_or_listens() -> None:
    entered, over = asyncio.Event(), asyncio.Event()

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await over.wait()

    activity = Activity()
    app = Seen(listening, activity)
    await until(lambda: activity.idle_seconds > 0.05, "it is idle")
    stream = asyncio.create_task(ask(app))
    await entered.wait()
    assert activity.idle_seconds == 0
    over.set()
    await stream
    await until(lambda: activity.idle_seconds > 0.05, "it is idle again")


async def test_a_relay_that_asks_while_draining_is_to_wait_for_the_next_daemon() -> None:
    in_flight = InFlight()
    app = McpMethods(OK, "mark", in_flight)
    answer = await ask(Refusals(app), "HEAD")
    assert (answer.status_code, answer.headers["x-cellblock-config"]) == (405, "mark")
    await in_flight.drain(0, asyncio.Event())
    assert await statuses(app, {"method": "HEAD"}, {"method": "GET"}) == [503, 200]


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_what_comes_when_all_has_ended_does_not_begin(method: str) -> None:
    """A session ends with the daemon: 404 has its client begin a new one elsewhere. Others are to come again."""
    begun: list[Any] = []

    async def ended(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope)

    in_flight = InFlight()
    assert await in_flight.drain(1, asyncio.Event())
    of_session = {"method": method, "mcp_session_id": "s", "mcp_protocol_version": OLDER}
    assert await statuses(Drained(ended, in_flight), of_session, {"method": method}) == [404, 503]
    assert begun == []


async def test_draining_waits_for_what_is_in_flight_and_then_ends_it() -> None:
    entered = asyncio.Event()

    async def working(scope: Any, receive: Any, send: Any) -> None:
        over = asyncio.Event()
        with scope["cellblock.exchange"].carried_by(over.set):
            entered.set()
            await over.wait()

    in_flight = InFlight()
    request = asyncio.create_task(ask(Drained(working, in_flight), "POST"))
    await entered.wait()
    assert in_flight.busy
    assert await in_flight.drain(0.01, asyncio.Event()) is False
    await request
    assert not in_flight.busy


async def test_sessions_are_followed_and_are_clients_of_their_own() -> None:
    seen: list[str] = []

    async def sdk(scope: Any, receive: Any, send: Any) -> None:
        seen.append(Caller.known(scope).client)
        headers = {} if (b"mcp-session-id", b"s1") in scope["headers"] else {"mcp-session-id": "s1"}
        await PlainTextResponse("ok", headers=headers)(scope, receive, send)

    sessions = Sessions(1, 8, 60)
    app = SessionLimit(sdk, sessions)
    opening, within = {"mcp_protocol_version": OLDER}, {"mcp_session_id": "s1"}
    assert await statuses(app, opening, within, opening, {"mcp_protocol_version": "2026-07-28"}) == [
        *(200, 200, 503, 200),
    ]
    assert seen[0] == seen[2] == ADA.client and seen[1].startswith("http session ")
    eve = Caller("eve", "editor", "http eve", "eve")
    assert await statuses(app, {**within, "caller": eve}, {"mcp_session_id": "s1, s2"}) == [404, 400]
    assert await statuses(app, {**within, "method": "DELETE"}, opening) == [200, 200]


async def test_a_body_is_read_whole_and_bounded() -> None:
    seen: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"])
        await OK(scope, receive, send)

    memory: Any = Memory(10_000, 10_000)
    whole = WholeBody(app, 4000, 1.0, memory, None)  # pyright: ignore[reportArgumentType] - for large ones
    post = {"method": "POST"}
    assert await statuses(whole, {**post, "body": b"{}"}, {**post, "body": b"x" * 4001}) == [200, 413]
    assert await statuses(whole, {**post, "content_length": "4001"}, {**post, "body": b"x" * 3000}) == [
        413,
        429,
    ]
    assert seen == [b"{}"] and memory.held == 0
