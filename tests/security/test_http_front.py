"""Hostile pages, programs and networks against `cellblock serve --http`; who fills its front door: connections without
a token, heads of requests that can be read in two ways, and one principal among several; and what clients can make it
hold: bodies full of what no run needs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from cellblock.app.cli.main import main
from cellblock.serve.http.address import CONFIG_HEADER
from cellblock.serve.http.refusal import NO_TOKEN
from support.http_daemon import MCP_HEADERS, TOOL, Answer, Daemon, daemon, opened, read_answer, said
from support.waits import until, until_found, within
from support.worker_owner import MIB

MAX_BODY_BYTES = 65536


PING = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "ping"}).encode()

BOUNDS = {
    f"cellblock.serve.http.server.{name}": value
    for name, value in {
        "MAX_BODY_BYTES": MAX_BODY_BYTES,
        "HEADER_SECONDS": 0.7,
        "BODY_SECONDS": 0.7,
        "LEAST_CONNECTIONS": 40,
        "STALL_MS": 500,
    }.items()
}


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """One daemon with tight bounds for all tests."""
    async with daemon(
        tmp_path_factory.mktemp("hostile"), http={"max_sessions": 3}, constants=BOUNDS
    ) as running:
        yield running


def bare(answer: Answer | None, status: int, told: str = "") -> None:
    """The refusal has this status and tells nothing: no body but the one that all get, or what whoever shows a token is
    told, no session, no permission to read it."""
    assert answer is not None and answer.status == status
    wanted = {"content-length", "connection", "www-authenticate", "allow", "retry-after"}
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert json.loads(answer.body)["error"]["message"] == NO_TOKEN
        wanted |= {"content-type"}
    elif told:
        assert told in json.loads(answer.body)["error"]["message"]
        wanted |= {"content-type"}
    else:
        assert answer.body == b""
        wanted |= {CONFIG_HEADER} if status == 405 else set()
    assert set(answer.headers) <= wanted


async def test_a_browser_without_the_token_gets_a_page(served: Daemon) -> None:
    answer = await served.ask("GET", "/mcp", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (answer.status, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert b"cellblock dashboard" in answer.body and b"<script" not in answer.body


OTHER = "is not in cellblock.http.allowed_hosts."
NOWHERE = "the MCP endpoint is at /mcp."

PATHS = ("/mcp", "/", "/livez", "/readyz", "/../mcp", "/.well-known/oauth-protected-resource/mcp")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:PORT", "http://127.0.0.1", ""]
)
async def test_a_page_of_another_origin_gets_403(served: Daemon, origin: str) -> None:
    """Even with the token, and whatever it asks for."""
    hostile = {**MCP_HEADERS, **served.auth, "Origin": origin.replace("PORT", str(served.port))}
    for path in PATHS:
        for method in ("POST", "GET", "OPTIONS", "DELETE"):
            bare(await served.ask(method, path, headers=hostile), 403, OTHER)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example:PORT", "evil.example", "127.0.0.1:PORT.evil.example", "evil@127.0.0.1:PORT", ""),
        *("127.0.0.1", "127.0.0.1:0", "127.0.0.1:1", "localhost.:PORT"),
        *("[::2]:PORT", "[::1%25lo]:PORT", "[::ffff:127.0.0.1]:PORT", "::1"),
    ],
)
async def test_a_rebound_name_gets_403(served: Daemon, host: str) -> None:
    hostile = {**MCP_HEADERS, **served.auth, "Host": host.replace("PORT", str(served.port))}
    for path in PATHS:
        bare(await served.ask("POST", path, headers=hostile), 403, OTHER)
        bare(await served.ask("GET", path, headers=hostile), 403, OTHER)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none, none", ""])
async def test_an_image_or_a_script_of_a_page_gets_403(served: Daemon, site: str) -> None:
    """Browsers send no Origin for them. A page must not even learn that a daemon is here."""
    for path in PATHS:
        bare(await served.ask("GET", path, headers={**served.auth, "Sec-Fetch-Site": site}), 403)


async def test_what_a_person_or_our_own_page_opens_is_answered(served: Daemon) -> None:
    for site in ("none", "same-origin"):
        assert (await served.ask("GET", "/livez", headers={"Sec-Fetch-Site": site})).status == 200


async def test_a_page_that_the_configuration_allows_is_answered(tmp_path: Path) -> None:
    """Browsers say of it that it is another site, which it is."""
    async with daemon(tmp_path, http={"allowed_hosts": ["https://ours.example"]}) as running:
        ours = {"Origin": "https://ours.example", "Sec-Fetch-Site": "cross-site"}
        assert (await running.ask(headers={**MCP_HEADERS, **running.auth, **ours})).status == 200
        bare(await running.ask("GET", "/dashboard", headers={**running.auth, **ours}), 403)
        for theirs in (
            {"Origin": "http://ours.example"},
            {"Host": "ours.example"},
            {"Host": "https://ours.example"},
        ):
            bare(await running.ask(headers={**MCP_HEADERS, **running.auth, **theirs}), 403, OTHER)


@pytest.mark.parametrize(
    "target",
    ["http://evil.example/mcp", "http://evil.example/livez", "evil.example:80", "*", "//mcp", "/MCP"],
)
async def test_targets_in_other_forms_reach_nothing(served: Daemon, target: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "CONNECT", "TRACE"):
        bare(await served.ask(method, target, headers=served.auth), 404, NOWHERE)
        bare(await served.ask(method, target), 401)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer TOKENx",
        "Basic TOKEN",
        "TOKEN",
        "Bearer TOKEN, Bearer TOKEN",
        "Bearer \xff\xfe",
    ],
)
async def test_without_the_token_everything_is_401(served: Daemon, shown: str | None) -> None:
    assert served.token
    shows = {} if shown is None else {"Authorization": shown.replace("TOKEN", served.token)}
    for path in ("/mcp", "/", "/admin", "/../mcp", f"/mcp?access_token={served.token}"):
        for method in ("POST", "GET", "OPTIONS", "PUT"):
            bare(await served.ask(method, path, headers={**MCP_HEADERS, **shows}), 401)


async def test_own_pages_and_names_are_accepted(served: Daemon) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        own = {"Host": f"{name}:{served.port}", "Origin": f"http://{name}:{served.port}"}
        bare(await served.ask("HEAD", headers={**served.auth, **own}), 405)


async def test_two_origins_or_two_hosts_are_no_one(served: Daemon) -> None:
    own = f"127.0.0.1:{served.port}"
    twice = f"POST /mcp HTTP/1.1\r\nHost: {own}\r\nOrigin: http://{own}\r\nOrigin: http://{own}\r\n\r\n"
    bare(await served.raw(twice.encode()), 403)
    for second in (own, "evil.example"):
        two = f"POST /mcp HTTP/1.1\r\nHost: {own}\r\nHost: {second}\r\n\r\n"
        assert (await served.raw(two.encode())).status == 400


async def test_other_paths_and_methods_are_refused(served: Daemon) -> None:
    bare(await served.ask("GET", "/admin", headers=served.auth), 404, NOWHERE)
    bare(await served.ask("PUT", headers=served.auth), 405)


def posting(
    served: Daemon, body: bytes = b"", *, chunks: bool = False, auth: bool = True, **more: str
) -> bytes:
    """A request whose body has this length, unless another one is given, or comes in chunks."""
    headers = {**MCP_HEADERS, **(served.auth if auth else {}), **more}
    if not chunks:
        return served.request("POST", "/mcp", headers=headers, body=body)
    head = served.request("POST", "/mcp", headers=headers)
    return head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + body


LARGE = 9 * 1024 * 1024
TOO_MANY_CHUNKS = b"8000\r\n" + b" " * 0x8000 + b"\r\n" + (b"8001\r\n" + b" " * 0x8001)
ONE_CHUNK = b"5\r\nhello\r\n"

BODIES: dict[str, tuple[int, Callable[[Daemon], bytes]]] = {
    "a huge length": (413, lambda served: posting(served, b"{", **{"Content-Length": str(10**12)})),
    "a length of 19 digits": (413, lambda served: posting(served, b"{", **{"Content-Length": "9" * 19})),
    "huge in chunks": (413, lambda served: posting(served, TOO_MANY_CHUNKS, chunks=True)),
    # Many clients read nothing until they have sent everything; others ask first, and are told before they send.
    "sends too much": (413, lambda served: posting(served, b" " * LARGE)),
    "asks first": (
        413,
        lambda served: posting(served, **{"Content-Length": str(LARGE), "Expect": "100-continue"}),
    ),
    "slow": (408, lambda served: posting(served, b"{", **{"Content-Length": "1000"})),
    "chunks without an end": (408, lambda served: posting(served, ONE_CHUNK, chunks=True)),
    "the same of a stranger": (401, lambda served: posting(served, ONE_CHUNK, chunks=True, auth=False)),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_is_too_large_or_does_not_end_is_refused(served: Daemon, name: str) -> None:
    status, request = BODIES[name]
    bare(await served.raw(request(served)), status)


async def drips(served: Daemon, head: bytes) -> None:
    """Sends headers a byte at a time, without end, until the daemon hangs up."""
    async with holding(served) as [(reader, writer)]:
        writer.write(head)

        async def drip() -> None:
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert await within(_rest(reader)) == b""
        await within(dripping)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            found += piece
    return found


async def test_slow_headers_are_hung_up_on(served: Daemon) -> None:
    await asyncio.gather(drips(served, b""), drips(served, b"POST /mcp HTTP/1.1\r\nX-Slow: "))


async def test_slow_headers_of_a_second_request_are_hung_up_on(served: Daemon) -> None:
    async with holding(served) as [(reader, writer)]:
        writer.write(served.request("GET", "/livez"))
        assert (await within(read_answer(reader))).status == 200
        writer.write(b"GET /livez HTTP/1.1\r\n")
        assert await within(_rest(reader)) == b""


async def test_silent_connections_are_bounded_in_number_and_time(served: Daemon) -> None:
    """A flood of half-open connections is cut off, and the daemon answers again."""
    async with holding(served, 120) as flood:
        await within(asyncio.gather(*(_rest(reader) for reader, _ in flood)))
    assert (await served.ask("GET", "/livez")).status == 200


async def test_oversized_headers_and_garbage_tell_nothing(served: Daemon) -> None:
    own = f"Host: 127.0.0.1:{served.port}\r\n"
    bearer = f"Authorization: Bearer {served.token}\r\n"
    for data in (
        served.request("GET", "/livez", headers={"X-Long": "x" * 1_000_000}),
        served.request("GET", "/livez", headers={f"X-{number}": "x" for number in range(50_000)}),
        served.request("GET", "/" + "x" * 1_000_000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        f"GET /livez HTTP/1.1\r\n{own}no colon\r\n\r\n".encode(),
        f"POST /mcp HTTP/1.1\r\n{own}{bearer}Content-Length: -3\r\n\r\n".encode(),
        f"POST /mcp HTTP/1.1\r\n{own}{bearer}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc".encode(),
        f"POST /mcp HTTP/1.1\r\n{own}{bearer}Transfer-Encoding: gzip, chunked\r\n\r\n".encode(),
    ):
        answer = await served.raw(data)
        # Who is still sending may be cut off before it gets to read.
        if answer is not None or len(data) < 1000:
            assert answer is not None and answer.status == (403 if b"HTTP/9.9" in data else 400)
            assert answer.body in (b"", b"Invalid HTTP request received.")


async def test_sessions_are_bounded(served: Daemon) -> None:
    headers = {**MCP_HEADERS, **served.auth}
    answers = [await served.ask(headers=headers) for _ in range(5)]
    assert [answer.status for answer in answers] == [200] * 5
    # Those that were idle for longest have made room.
    for answer, status in zip(answers, [404, 404, 200, 200, 200], strict=True):
        session = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert (await served.ask(method="DELETE", headers={**headers, **session})).status == status
    assert (await served.ask("DELETE", headers=await opened(served))).status == 200


async def test_a_client_that_takes_nothing_of_its_answer_is_hung_up_on(served: Daemon) -> None:
    code = "globalThis.__codemode_result__ = 'x'.repeat(12 * 1024 * 1024);"
    call = {"name": "codemode.run", "arguments": {"code": code}}
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}).encode()
    request = served.request("POST", "/mcp", headers=await opened(served), body=body)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    try:
        writer.write(request)
        ours, process = writer.get_extra_info("sockname"), served.family()[0]

        def is_connected() -> bool:
            connections = process.net_connections("tcp")
            return any(one.raddr == ours and one.status == "ESTABLISHED" for one in connections)

        await until(is_connected, "the connection is there")
        await until(lambda: not is_connected(), "the daemon hangs up", 110)
    finally:
        writer.transport.abort()
        del reader


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http", "0.0.0.0:0"], "TLS"),
        (["--http", "0.0.0.0:0", "--no-auth"], "--no-auth"),
        (["--http", "0.0.0.0:0", "--tls-cert", "c"], "--tls-key"),
        (["--http", "127.0.0.1:0", "--tls-cert", "absent", "--tls-key", "absent"], "certificate"),
        (["--http", "nowhere"], "HOST:PORT"),
        (["--no-auth"], "--http"),
        (["--http", "127.0.0.1:0", "--stdio"], "--stdio"),
    ],
)
def test_an_unsafe_or_wrong_command_line_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["serve", "--state-dir", str(tmp_path / "s"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "s").exists(), "not even a token"


async def test_without_a_token_the_rest_still_holds(tmp_path: Path) -> None:
    """Origin and Host; and a flood of one client is told to wait."""
    rate = {"cellblock.serve.http.server.REQUESTS_PER_SECOND": 0.1, "cellblock.serve.http.server.BURST": 5}
    async with daemon(tmp_path, "--no-auth", constants=rate) as running:
        assert not (tmp_path / "s" / "token").exists()
        for _ in range(6):
            bare(await running.ask(headers={**MCP_HEADERS, "Origin": "http://evil.example"}), 403)
            bare(await running.ask(headers={**MCP_HEADERS, "Host": f"evil.example:{running.port}"}), 403)
        first = await running.ask(headers=MCP_HEADERS)
        session = {**MCP_HEADERS, "Mcp-Session-Id": first.headers["mcp-session-id"]}
        statuses = [(await running.ask(headers=MCP_HEADERS, body=PING)).status for _ in range(8)]
        assert statuses[-3:] == [429] * 3
        refused = await running.ask(headers=MCP_HEADERS)
        bare(refused, 429)
        assert int(refused.headers["retry-after"]) > 0
        # Another client is not held up; and session ids that are made up are no clients.
        assert (await running.ask(headers=session, body=PING)).status == 200
        bare(await running.ask(headers={**MCP_HEADERS, "Mcp-Session-Id": "a" * 32}), 429)


@pytest.fixture(scope="module")
async def metered(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """A daemon with its default bounds on connections, and with a rate that a test can reach."""
    async with daemon(
        tmp_path_factory.mktemp("door"),
        constants={
            "cellblock.serve.http.server.REQUESTS_PER_SECOND": 5,
            "cellblock.serve.http.server.BURST": 60,
        },
    ) as running:
        yield running


Held = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""A connection that stays open."""


@contextlib.asynccontextmanager
async def holding(metered: Daemon, number: int = 1) -> AsyncIterator[list[Held]]:
    opening = (asyncio.open_connection("127.0.0.1", metered.port) for _ in range(number))
    held = await asyncio.gather(*opening)
    try:
        yield held
    finally:
        for _, writer in held:
            writer.transport.abort()


async def asked(held: Held, request: bytes) -> bytes:
    """What comes back on a request, as far as one piece goes; empty: it is closed."""
    reader, writer = held
    writer.write(request)
    try:
        return await within(reader.read(65536))
    except ConnectionError:
        return b""


async def everything_of(metered: Daemon, request: bytes) -> bytes:
    """All that comes back on a request until the connection is closed."""
    async with holding(metered) as [held]:
        return await asked(held, request) + await within(_rest(held[0]))


def is_open(held: Held) -> bool:
    return not held[0].at_eof() and held[0].exception() is None


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_idle_strangers_shut_nobody_out(metered: Daemon) -> None:
    """As many silent connections as there are places, and more; who has the token is still let in, and the connection
    on which it was shown is not the one that is closed."""
    state = metered.request("GET", "/dashboard/state", headers=metered.auth)
    async with holding(metered) as [mine]:
        assert status_of(await asked(mine, state)) == 200
        async with holding(metered, 256) as silent, holding(metered, 20) as talking:
            for one in talking:
                assert status_of(await asked(one, metered.request("GET", "/livez"))) == 200
            for _ in range(3):
                assert (await metered.raw(state)).status == 200
            assert status_of(await asked(mine, state)) == 200
            assert not is_open(silent[0]), "the oldest stranger has made room"
            assert is_open(talking[-1])


async def test_probes_without_a_token_are_metered(metered: Daemon) -> None:
    """They cost as much as other requests, and 60 at once are more than a monitor asks."""
    live = metered.request("GET", "/livez")
    async with holding(metered) as [stranger]:
        statuses = [status_of(await asked(stranger, live))]
        while statuses[-1] == 200 and len(statuses) < 300:
            statuses.append(status_of(await asked(stranger, live)))
        assert statuses[-1] == 429
        assert await within(_rest(stranger[0])) == b"", "and the connection is closed"
    # Who has the token does not pay for that.
    assert (await metered.ask("GET", "/dashboard/state", headers=metered.auth)).status == 200


HEADS = {
    "length and chunks": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "in other letters": "CONTENT-length: 4\r\ntransfer-ENCODING: Chunked\r\n",
    "two lengths": "Content-Length: 4\r\nContent-Length: 5\r\n",
    "no number": "Content-Length: 4x\r\n",
    "signed": "Content-Length: +4\r\n",
    "hexadecimal": "Content-Length: 0x4\r\n",
    "chunks twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "chunks twice in one": "Transfer-Encoding: chunked, chunked\r\n",
    "another coding": "Transfer-Encoding: identity\r\n",
    "a word like it": "Transfer-Encoding: xchunked\r\n",
    "a space before the colon": "Transfer-Encoding : chunked\r\n",
    "chunks folded": "Content-Length: 4\r\nTransfer-Encoding:\r\n chunked\r\n",
    "a tab in the value": "Transfer-Encoding: \x0bchunked\r\n",
}


@pytest.mark.parametrize("name", HEADS)
async def test_a_head_that_can_be_read_in_two_ways_is_400(metered: Daemon, name: str) -> None:
    """With the token, and whatever follows: what a proxy might take for a second request is never read as one."""
    head = metered.request("POST", "/mcp", headers={**MCP_HEADERS, **metered.auth}).decode().split("\r\n")
    kept = [line for line in head[:-2] if not line.startswith("Content-Length")]
    raw = "\r\n".join([*kept, HEADS[name]]) + "\r\n0\r\n\r\n" + metered.request("GET", "/livez").decode()
    everything = await everything_of(metered, raw.encode())
    assert everything.startswith(b"HTTP/1.1 400 ")
    assert everything.count(b"HTTP/1.1") == 1
    assert b"connection: close" in everything.lower()


async def test_chunks_before_http_1_1_are_400(metered: Daemon) -> None:
    head = metered.request("POST", "/mcp", headers={**MCP_HEADERS, **metered.auth}).decode()
    old = head.replace("HTTP/1.1", "HTTP/1.0").replace("Content-Length: 0", "Transfer-Encoding: chunked")
    assert (await metered.raw((old + "0\r\n\r\n").encode())).status == 400


async def test_a_head_without_an_end_is_bounded(metered: Daemon) -> None:
    """Also one behind another request."""
    endless = metered.request("GET", "/livez", headers={"X-Fill": "x" * (32 * 1024)}).removesuffix(b"\r\n")
    everything = await everything_of(metered, endless)
    assert everything.startswith(b"HTTP/1.1 400 ")
    first = metered.request("GET", "/dashboard/state", headers=metered.auth)
    everything = await everything_of(metered, first + endless)
    assert everything.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in everything


JUNK_BYTES = 3_000_000
"""Of one body. It was tried with ten of 7.4 MB, too: they took 1,921 MiB before, and 74 MiB since."""

REQUESTS = 5

HELD_BYTES = 20 * MIB
"""What all requests may take here, of which one client may have a quarter."""

BOUND_BYTES = 150 * MIB
"""What the daemon may grow by; on the code before it was over 400 MiB."""

SLEEP = "await new Promise((end) => setTimeout(end, 50_000));"
"""A script that goes on until it is ended."""


@pytest.fixture(scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    server = "cellblock.serve.http.server"
    constants = {f"{server}.LEAST_HELD_BYTES": HELD_BYTES, f"{server}.HELD_BYTES_PER_SESSION": 1}
    async with daemon(tmp_path_factory.mktemp("memory"), constants=constants) as running:
        yield running


def call(code: str, junk: str = "", **arguments: object) -> bytes:
    params = {"name": TOOL, "arguments": {"code": code, **arguments}}
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
    return body.replace('"name"', f'"_meta": {{"junk": {junk}}}, "name"').encode() if junk else body.encode()


async def test_what_a_run_does_not_need_is_not_held(small: Daemon) -> None:
    """Some clients, each with megabytes beside its script: they run, and the daemon has forgotten the rest."""
    process = psutil.Process(small.process.pid)
    before = process.memory_info().rss
    body = call(SLEEP, "[" + "{}," * (JUNK_BYTES // 3) + "0]")
    async with holding(small, REQUESTS) as held:
        for _, writer in held:
            writer.write(small.request("POST", "/mcp", headers=await opened(small), body=body))
            await writer.drain()
        await small.until_live(REQUESTS)
        grown = process.memory_info().rss - before
        assert grown < BOUND_BYTES, f"{grown / MIB:.0f} MiB"
    await small.until_live(0)


async def test_large_requests_are_refused_with_what_to_do(small: Daemon) -> None:
    """A script of the largest size runs; one request of many values, or no JSON, is told so, and the session lives."""
    headers = await opened(small)
    code = "globalThis.__codemode_result__ = 1; /*" + "[{\\" * 250_000 + "*/"
    answer = (await said(small, small.request("POST", "/mcp", headers=headers, body=call(code))))[1]
    assert answer["result"]["structuredContent"]["result"] == 1, answer
    many = call("1", limits=[0] * 1_000_000)
    for body, status, told in ((many, 413, "over 50000 values"), (b"[" * 1_000_000, 400, "no JSON")):
        head, answer = await said(small, small.request("POST", "/mcp", headers=headers, body=body))
        assert (head.status, answer["id"]) == (status, None)
        assert told in answer["error"]["message"]
    assert (await said(small, small.request("POST", "/mcp", headers=headers, body=PING)))[0].status == 200


async def test_one_client_takes_its_part_of_memory_and_no_more(small: Daemon) -> None:
    """What comes slowly is held for one client to its bound; others are served meanwhile, and so is what is small."""
    mine, other = await opened(small), await opened(small)
    part = HELD_BYTES // 4
    slow = small.request("POST", "/mcp", headers={**mine, "Content-Length": str(part)})
    large = small.request("POST", "/mcp", headers=mine, body=PING + b" " * 200_000)
    async with holding(small) as [(_, writer)]:
        writer.write(slow + b" " * (part - 100_000))
        await writer.drain()

        async def refused() -> object:
            head, answer = await said(small, large)
            return answer if head.status == 429 else None

        answer = await until_found(refused, "it is refused")
        assert "Wait for their answers" in answer["error"]["message"]
        for headers in (other, mine):
            request = small.request("POST", "/mcp", headers=headers, body=PING)
            assert (await said(small, request))[0].status == 200
