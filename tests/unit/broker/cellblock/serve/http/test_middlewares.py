"""Where the front-end listens, what stands in front of MCP, each by itself, and what the web server logs of it."""

import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp.server.auth.provider import AccessToken
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp
from uvicorn import server

from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.settings.policy import NAMED
from cellblock.observe.logs import tame_libraries
from cellblock.serve.http.address import Address
from cellblock.serve.http.caller import Authenticator, Caller
from cellblock.serve.http.guards import (
    Guarded,
    mcp_methods,
    no_named_tokens,
    uncoded,
)
from cellblock.serve.http.in_flight import Activity, Drained, InFlight, Seen
from cellblock.serve.http.refusal import NO_TOKEN, Refusals
from cellblock.serve.http.server import cancellations_unsaid
from cellblock.serve.http.sessions import SessionLimit, Sessions
from support.asgi import ADA, ask
from support.waits import until

OK = PlainTextResponse("ok")
OLDER = "2025-06-18"


async def statuses(app: ASGIApp, *requests: dict[str, Any]) -> list[int]:
    return [(await ask(Refusals(app), **one)).status_code for one in requests]


async def test_a_compressed_body_is_refused() -> None:
    codings = ["gzip", "br", "zstd", "gzip, gzip", "identity", None]
    requests = [{} if coding is None else {"content_encoding": coding} for coding in codings]
    assert await statuses(Guarded(OK, uncoded), *requests) == [415, 415, 415, 415, 200, 200]


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
        authenticator = Authenticator(Anns(), "Bearer x", behind_balancer=behind)
        known = Refusals(Guarded(app, authenticator.authenticate))
        assert (await ask(known, caller=None, authorization="Bearer right")).status_code == 200
        wrong = await ask(known, caller=None, authorization="Bearer wrong")
        assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer x")
        assert NO_TOKEN.encode() in wrong.body and wrong.headers["connection"] == "close"
    assert [one and one.client for one in seen] == ["http token:ann 127.0.0.1", "http token:ann"]
    both = Guarded(OK, Authenticator(Anns()).authenticate, no_named_tokens)
    assert await statuses(both, {"authorization": "Bearer right"}) == [403]
    assert await statuses(Guarded(OK, Authenticator(None).authenticate, no_named_tokens), {}) == [200]


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
    app = Guarded(OK, mcp_methods("mark", in_flight))
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
        async def handled() -> None:
            entered.set()
            await asyncio.Event().wait()

        with pytest.raises(MCPError, match="The daemon is stopping"):
            await scope["cellblock.exchange"].within(handled())

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

    sessions = Sessions(1, 60)
    app = SessionLimit(sdk, sessions)
    opening, within = {"mcp_protocol_version": OLDER}, {"mcp_session_id": "s1"}
    assert await statuses(app, opening, within, opening, {"mcp_protocol_version": "2026-07-28"}) == [
        *(200, 200, 200, 200),
    ]
    assert seen[0] == seen[2] == ADA.client and seen[1].startswith("http session ")
    # The one that was idle was ended, which one with a stream is not.
    assert len(seen) == 5
    sessions.begin(b"s1", ADA)
    assert await statuses(app, opening) == [503]
    sessions.end(b"s1", 0.0)
    eve = Caller("eve", "editor", "http eve", "eve")
    assert await statuses(app, {**within, "caller": eve}, {"mcp_session_id": "s1, s2"}) == [404, 400]
    assert await statuses(app, {**within, "method": "DELETE"}, opening) == [200, 200]


FAILED = "Exception in ASGI application\n"
CANCELLED = "Cancel %s running task(s), timeout graceful shutdown exceeded"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (FAILED, asyncio.CancelledError(), False),
        (FAILED, ValueError("x"), True),
        (FAILED, None, True),
        (CANCELLED, None, False),
    ],
)
def test_only_cancellations_are_left_out(
    text: str, error: BaseException | None, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # As in a daemon: libraries are tamed before there is a front-end.
    tame_libraries()
    logger = logging.getLogger("uvicorn.error")
    values = (1,) if "%" in text else ()
    with cancellations_unsaid():
        try:
            if error is not None:
                raise error
        except (asyncio.CancelledError, ValueError):
            exception = sys.exc_info()
        else:
            exception = None
        logger.handle(
            logger.makeRecord(logger.name, logging.ERROR, server.__file__, 1, text, values, exception)
        )
    assert bool(caplog.records) == said
    before = len(logger.filters)
    with cancellations_unsaid():
        assert len(logger.filters) == before + 1
    assert len(logger.filters) == before


def test_what_is_left_out_is_what_uvicorn_says() -> None:
    assert CANCELLED in Path(server.__file__).read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("localhost:0", "127.0.0.1", 0),
        ("[::1]:7433", "[::1]", 7433),
        ("0.0.0.0:1", "0.0.0.0", 1),
    ],
)
def test_an_address_is_an_ip_and_a_port(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:80", "name.example:80"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:65536", "localhost:99999", "[::1]:" + "9" * 5_000])
def test_a_port_that_does_not_exist_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no port (65536|9{5,10})\. Give one up to 65535"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1"])
def test_the_loopback_needs_no_protection(text: str) -> None:
    Address.parse(text).check_safe(authenticated=False, encrypted=False, named=False)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "192.0.2.1:1", "[::]:1"])
@pytest.mark.parametrize(("authenticated", "encrypted"), [(False, True), (True, False), (False, False)])
def test_other_addresses_need_a_token_and_tls(text: str, authenticated: bool, encrypted: bool) -> None:
    with pytest.raises(ConfigError, match="open to other machines"):
        Address.parse(text).check_safe(authenticated=authenticated, encrypted=encrypted, named=True)


def test_every_address_needs_names() -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        Address.parse("0.0.0.0:1").check_safe(authenticated=True, encrypted=True, named=False)
    Address.parse("0.0.0.0:1").check_safe(authenticated=True, encrypted=True, named=True)
    Address.parse("192.0.2.1:1").check_safe(authenticated=True, encrypted=True, named=False)


def test_host_headers_are_of_the_loopback_only_for_the_loopback() -> None:
    assert set(Address.parse("127.0.0.1:0").hosts(99)) == {"127.0.0.1:99", "localhost:99", "[::1]:99"}
    assert Address.parse("192.0.2.1:0").hosts(99) == ["192.0.2.1:99"]
    assert "localhost" in Address.parse("127.0.0.1:0").hosts(80)


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CellblockError, match=f"127.0.0.1:{port}"):
            Address.parse(f"127.0.0.1:{port}").bind()
