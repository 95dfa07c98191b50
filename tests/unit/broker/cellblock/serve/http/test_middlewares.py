"""Where the front-end listens, what stands in front of MCP, each by itself, and what the web server logs of it."""

import asyncio
import contextlib
import itertools
import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from mcp import MCPError
from mcp.server.auth.provider import AccessToken
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp
from uvicorn import server

from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.settings.policy import NAMED
from cellblock.base.store import LocalStore
from cellblock.observe.logs import tame_libraries
from cellblock.run.policy import counts as counts_module
from cellblock.run.policy.counts import Counts
from cellblock.serve.http.address import Address
from cellblock.serve.http.caller import Authenticator, Caller
from cellblock.serve.http.guards import (
    MAX_CLIENTS,
    Guarded,
    RateLimit,
    mcp_methods,
    no_named_tokens,
    uncoded,
)
from cellblock.serve.http.in_flight import Activity, Drained, InFlight, Seen
from cellblock.serve.http.refusal import NO_TOKEN, Refusals
from cellblock.serve.http.server import BURST, REQUESTS_PER_SECOND, cancellations_unsaid
from cellblock.serve.http.sessions import NOT_HERE, SessionLimit, SessionNames, Sessions
from support.asgi import ADA, ask
from support.waits import until

OK = PlainTextResponse("ok")
OLDER = "2025-06-18"


async def statuses(app: ASGIApp, *requests: dict[str, Any]) -> list[int]:
    return [(await ask(Refusals(app), **one)).status_code for one in requests]


async def test_a_compressed_body_is_refused() -> None:
    requests = [{"content_encoding": coding} for coding in ("gzip", "br", "zstd", "gzip, gzip", "identity")]
    assert await statuses(Guarded(OK, uncoded), *requests, {}) == [415, 415, 415, 415, 200, 200]


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
        known = Refusals(Guarded(app, Authenticator(Anns(), "Bearer x", behind_balancer=behind).authenticate))
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
    ended, in_flight = AsyncMock(), InFlight()
    assert await in_flight.drain(1, asyncio.Event())
    of_session = {"method": method, "mcp_session_id": "s", "mcp_protocol_version": OLDER}
    assert await statuses(Drained(ended, in_flight), of_session, {"method": method}) == [404, 503]
    ended.assert_not_called()


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
    of_eve = {**within, "caller": Caller("eve", "editor", "http eve", "eve")}
    ending = {**within, "method": "DELETE"}
    assert await statuses(app, of_eve, {"mcp_session_id": "s1, s2"}, ending, opening) == [404, 400, 200, 200]


def test_requests_that_are_opening_count() -> None:
    sessions = Sessions(2, 60)
    places = [sessions.reserve(ADA, 0), sessions.reserve(ADA, 0)]
    assert None not in places
    assert sessions.reserve(ADA, 0) is None
    sessions.forget(places[0])
    assert sessions.reserve(ADA, 1000) is not None
    assert sessions.reserve(ADA, 1000) is None, "a place does not get too old"


def test_an_idle_session_ends_as_the_sdks_does() -> None:
    sessions = Sessions(1, 60)
    sessions.opened(b"key", ADA, 0)
    sessions.begin(b"key", ADA)
    assert not sessions.reserve(ADA, 100), "a request is under way"
    sessions.end(b"key", 100)
    assert not sessions.reserve(ADA, 150)
    assert sessions.reserve(ADA, 161)
    assert sessions.begin(b"key", ADA) is None


HEADER = b"mcp-session-id"


async def session_ids(session: bytes | None) -> tuple[list[bytes], list[bytes]]:
    """The ids of a request as the SDK sees them, and those of its answer as the client does."""
    inside: list[bytes] = []
    outside: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.extend(value for key, value in scope["headers"] if key == HEADER)
        headers = [(b"Mcp-Session-Id", inside[0] if inside else b"new"), (b"x-other", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"new"})

    async def send(message: Any) -> None:
        outside.extend(value for key, value in message.get("headers", ()) if key.lower() == HEADER)

    headers = [(b"host", b"b-1.abc"), *([(HEADER, session)] if session is not None else [])]
    await SessionNames(app, "b-1")({"type": "http", "headers": headers}, app, send)
    return inside, outside


async def test_a_new_session_gets_the_name_and_loses_it_on_its_way_in() -> None:
    # The SDK makes no such id as the last one's.
    assert [await session_ids(session) for session in (None, b"b-1.abc", b"b-1.b-1.abc")] == [
        ([], [b"b-1.new"]),
        ([b"abc"], [b"b-1.abc"]),
        ([b"b-1.abc"], [b"b-1.b-1.abc"]),
    ]


@pytest.mark.parametrize(
    "session", [b"abc", b"b-2.abc", b"B-1.abc", b"b-11.abc", b"b-1", b"", b".abc", b"b-1:abc"]
)
async def test_any_other_id_is_one_that_the_sdk_does_not_know(session: bytes) -> None:
    assert (await session_ids(session))[0] == [NOT_HERE]


def limited(counts: Counts | None = None) -> ASGIApp:
    return Guarded(OK, RateLimit(0.001, 20, counts, lambda: 0.0).check)


async def test_clients_and_strangers_have_a_bucket_each() -> None:
    app = limited()
    assert await statuses(app, *[{}] * 21) == [200] * 20 + [429]
    assert (await ask(Refusals(app))).headers["retry-after"] == "1000"
    assert await statuses(app, {"caller": replace(ADA, client="http session x")}, {"caller": None}) == [
        200,
        200,
    ]


async def test_a_client_of_two_brokers_has_one_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "SYNC_SECONDS", 0.02)
    both = [Counts(LocalStore(tmp_path)) for _ in range(2)]

    def seen(counts: Counts) -> tuple[int, bool]:
        """What a broker knows that was asked, and whether it has told of all that it was asked."""
        known = counts._known.values()
        return sum(count.used for count in known), not any(count.added for count in known)

    async with contextlib.AsyncExitStack() as stack:
        for counts in both:
            counts.start()
            stack.push_async_callback(counts.close)
        here, there = (limited(counts) for counts in both)
        # A session is at one broker, and counts for itself.
        assert await statuses(here, {"caller": replace(ADA, client="s", has_session=True)}) == [200]
        for times, asked in ((1, 2), (7, 16)):
            # What was asked before a broker has seen the client is not held against it there.
            for one in (here, there):
                assert await statuses(one, *[{}] * times) == [200] * times
            await until(
                lambda told=asked: [seen(counts) for counts in both] == [(told, True)] * 2, "each has seen it"
            )
        # Eight here, and seven or eight there.
        assert await statuses(here, *[{}] * 6) in ([200] * 4 + [429] * 2, [200] * 5 + [429])


def test_a_burst_and_then_the_rate() -> None:
    """A refused request takes nothing, and a pause fills the bucket to the brim and no more."""
    times = [0.0] * 4 + [0.1] * 2 + [0.2] + [1000.0] * 4
    rates = RateLimit(10, 3, clock=iter(times).__next__)
    assert [rates.take("a") for _ in times] == [*(0, 0, 0, 1), *(0, 1), 0, *(0, 0, 0, 1)]


def test_a_client_may_ask_as_often_as_runs_are_served_with_reuse() -> None:
    """That is over a thousand times a second on two cores, here for ten seconds."""
    ticks = itertools.count()
    rates = RateLimit(REQUESTS_PER_SECOND, BURST, clock=lambda: next(ticks) / 1500)
    assert not any(rates.take("a") for _ in range(15_000))


def test_the_number_of_clients_remembered_is_bounded() -> None:
    rates = RateLimit(0.001, 1, clock=lambda: 0.0)
    for number in range(MAX_CLIENTS):
        rates.take(str(number))
    assert rates.take("0") > 0, "it is remembered, and now the newest"
    rates.take("one more")
    assert rates.take("0") > 0
    assert rates.take("1") == 0, "it was the oldest and is forgotten"


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
    before = [*logger.filters]
    with cancellations_unsaid():
        logger.error(text, *([1] if "%" in text else []), exc_info=error)
    assert bool(caplog.records) == said
    assert logger.filters == before


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
    ("text", "said"),
    [
        *((text, "HOST:PORT") for text in ("", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:80")),
        ("name.example:80", "HOST:PORT"),
        ("127.0.0.1:65536", r"there is no port 65536\. Give one up to 65535"),
        ("localhost:99999", r"there is no port 99999\. Give one up to 65535"),
        ("[::1]:" + "9" * 5_000, r"there is no port 9{5,10}\. Give one up to 65535"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Address.parse(text)


OPEN = "open to other machines"


@pytest.mark.parametrize(
    ("text", "has", "refused"),
    [
        *((text, set[str](), None) for text in ("127.0.0.1:1", "127.8.9.1:1", "[::1]:1")),
        *((text, {"named"}, OPEN) for text in ("0.0.0.0:1", "192.0.2.1:1", "[::]:1")),
        *((text, {"named", "encrypted"}, OPEN) for text in ("0.0.0.0:1", "192.0.2.1:1", "[::]:1")),
        *((text, {"named", "authenticated"}, OPEN) for text in ("0.0.0.0:1", "192.0.2.1:1", "[::]:1")),
        ("0.0.0.0:1", {"authenticated", "encrypted"}, "allowed_hosts"),
        ("0.0.0.0:1", {"authenticated", "encrypted", "named"}, None),
        ("192.0.2.1:1", {"authenticated", "encrypted"}, None),
    ],
    ids=lambda one: " and ".join(sorted(one)) if isinstance(one, set) else str(one),
)
def test_what_protection_an_address_needs(text: str, has: set[str], refused: str | None) -> None:
    """None on the loopback; elsewhere a token and TLS, and names where it is every address."""
    with pytest.raises(ConfigError, match=refused) if refused else contextlib.nullcontext():
        Address.parse(text).check_safe(
            authenticated="authenticated" in has, encrypted="encrypted" in has, named="named" in has
        )


def test_host_headers_are_of_the_loopback_only_for_the_loopback() -> None:
    assert {*Address.parse("127.0.0.1:0").hosts(99)} == {"127.0.0.1:99", "localhost:99", "[::1]:99"}
    assert Address.parse("192.0.2.1:0").hosts(99) == ["192.0.2.1:99"]
    assert "localhost" in Address.parse("127.0.0.1:0").hosts(80)


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CellblockError, match=text):
            Address.parse(text).bind()
