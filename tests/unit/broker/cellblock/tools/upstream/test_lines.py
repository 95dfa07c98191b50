"""What comes from servers: lines, events, answers over the cap; read, mended, or the failure of what they answer."""

from __future__ import annotations

import json
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import pairwise

import httpx2
import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage

from cellblock.tools.upstream.events import EventSplitter
from cellblock.tools.upstream.heavy import LargeMessages
from cellblock.tools.upstream.incoming import NO_ANSWER, read_message
from cellblock.tools.upstream.lines import ENDLESS, KEPT_BYTES, EndlessLine, LineSplitter, TooLong
from cellblock.tools.upstream.message_cap import MessageTooLarge, cap_response, is_too_large, too_large_error
from support.http_server import serving


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60)), cap=st.integers(8, 40))
def test_lines_are_those_of_the_whole_however_it_is_cut(data: bytes, cuts: list[int], cap: int) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    splitter = LineSplitter(cap)
    got: list[bytes | TooLong] = []
    for start, end in pairwise(places):
        got += splitter.feed(data[start:end])
    wanted = [line if len(line) <= cap else TooLong(len(line), None) for line in data.split(b"\n")[:-1]]
    assert got == wanted


ANSWERS = [
    '{"jsonrpc":"2.0","id":41,"result":{"text":"FILL"}}',
    '{"jsonrpc": "2.0", "id": 41, "result": {"text": "FILL"}}',
    '{"result":{"text":"FILL"},"jsonrpc":"2.0","id":41}',
    '{"result":{"text":"FILL"},"id":41,"jsonrpc":"2.0"}',
    ' { "result" : {"text":"FILL"}, "jsonrpc" : "2.0", "id" : 41 } ',
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("chunk", [1, 7, 600, 65536])
def test_the_request_that_a_too_long_line_answers_is_found(answer: str, chunk: int) -> None:
    text = answer.replace("FILL", "x" * 3_000)
    assert json.loads(text)["id"] == 41
    data = text.encode() + b"\nnext\n"
    splitter = LineSplitter(1_000)
    lines = [line for at in range(0, len(data), chunk) for line in splitter.feed(data[at : at + chunk])]
    assert lines == [TooLong(len(text), 41), b"next"]


@pytest.mark.parametrize(
    "line",
    [
        '{"method":"notifications/message","params":{"id":41,"x":"FILL"}}',
        '{"jsonrpc":"2.0","id":"41","result":"FILL"}',
        '{"jsonrpc":"2.0","id":true,"result":"FILL"}',
        "FILL",
    ],
)
def test_a_line_that_names_no_request_answers_none(line: str) -> None:
    text = line.replace("FILL", "x" * 3_000)
    assert LineSplitter(1_000).feed(text.encode() + b"\n") == [TooLong(len(text), None)]


def test_a_line_without_end_is_given_up_and_never_held() -> None:
    cap = 1024 * 1024
    splitter = LineSplitter(cap)
    chunk = b"e" * 65536
    tracemalloc.start()
    with pytest.raises(EndlessLine):
        for _ in range(ENDLESS * cap // len(chunk) + 1):
            splitter.feed(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * cap + KEPT_BYTES


def failed(line: bytes) -> object:
    """The id of the request that a line fails."""
    item = read_message(line)
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCError), item
    assert item.message.error.message == NO_ANSWER
    return item.message.id


def test_a_message_is_read() -> None:
    item = read_message(b'{"jsonrpc":"2.0","id":7,"result":{"a":[1,"\\u00e9"]}}')
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse)
    assert (item.message.id, item.message.result) == (7, {"a": [1, "é"]})


def test_lone_surrogates_become_replacement_characters() -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"a\ud83d": ["\ude00x", "\U0001f600"]}}).encode()
    item = read_message(line)
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse)
    assert item.message.result == {"a\ufffd": ["\ufffdx", "\U0001f600"]}


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":null}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":"x"}', 7),
        (b'{"result":3,"id":"seven","jsonrpc":"2.0"}', "seven"),
        (b'{"jsonrpc":"2.0","id":7,"error":"broken"}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 7),
        (b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b',"id":8}', 8),
    ],
    ids=["null", "text", "string id", "error", "cut", "deep", "deep, id at its end"],
)
def test_what_cannot_be_read_fails_what_it_answers(line: bytes, answers: int | str) -> None:
    assert failed(line) == answers


@pytest.mark.parametrize(
    "line",
    [
        b"Server is ready",
        b"",
        b"[]",
        b"{}",
        b'"\xff"',
        b'{"jsonrpc":"2.0","id":true,"result":1}',
        b'{"jsonrpc":"2.0","id":null,"result":1}',
        b'{"jsonrpc":"2.0","id":7,"method":3}',
        b'{"jsonrpc":"2.0","method":"x","params":7}',
    ],
)
def test_what_answers_nothing_is_no_message(line: bytes) -> None:
    assert isinstance(read_message(line), Exception)


STREAM = (
    b': hello\n\nevent: message\r\nid: 7\r\ndata: {"a":1}\r\n\r\ndata:x\rdata: y\r\r\n\ndata\n\nretry: 5\n\n'
    b"data: last\n\nnever: ends"
)
DATA = [b'{"a":1}', b"x\ny", b"last"]


def test_events_at_any_cut() -> None:
    source = random.Random(7)
    for _ in range(500):
        splitter, found, at = EventSplitter(), list[bytes | None](), 0
        while at < len(STREAM):
            step = source.choice([1, 2, 3, 10, 100])
            found += [event.data for event in splitter.feed(STREAM[at : at + step]) if event.data]
            at += step
        assert found == DATA
        assert splitter.held == len(b"never: ends")


def test_other_data_keeps_the_rest_of_an_event() -> None:
    (event,) = EventSplitter().feed(b"event: message\nid: 7\ndata: a\ndata: b\n\n")
    assert event.raw == b"event: message\nid: 7\ndata: a\ndata: b\n\n"
    assert event.with_data(b"[]") == b"event: message\nid: 7\ndata: []\n\n"


def test_of_events_without_data_the_last_position_is_left() -> None:
    found = EventSplitter().feed(b": x\n\nid: 7\ndata:\n\nid: 8\n\n\n\nretry: 500\n\n" * 100 + b"data: a\n\n")
    assert [event.raw for event in found] == [b"id: 8\nretry: 500\ndata:\n\n", b"data: a\n\n"]


@pytest.mark.parametrize(
    ("said", "meant"), [(b"0", 100), (b"-5", 100), (b"", 100), (b"500", 500), (b"9" * 5000, 30_000)]
)
def test_a_stream_is_asked_for_again_within_bounds(said: bytes, meant: int) -> None:
    (event,) = EventSplitter().feed(b"retry: " + said + b"\ndata: a\n\n")
    assert event.raw == b"retry: %d\ndata: a\n\n" % meant


CAP = 200_000


def bomb(size: int) -> bytes:
    """So many zeros in gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1_000_000)) for _ in range(size // 1_000_000)) + packer.flush()


class Sending(BaseHTTPRequestHandler):
    """/N sends N bytes; /gzip sends 100 MB in 100 KB; /chunked sends chunks without end."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/chunked":
            self.start(("transfer-encoding", "chunked"))
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            try:
                while True:
                    self.wfile.write(chunk)
            except OSError:
                self.close_connection = True
            return
        body = bomb(100_000_000) if self.path == "/gzip" else b"x" * int(self.path[1:])
        packed = [("content-encoding", "gzip")] if self.path == "/gzip" else []
        self.start(("content-length", str(len(body))), *packed)
        self.wfile.write(body)

    def start(self, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where `Sending` answers."""
    with serving(Sending) as address:
        yield f"http://{address}"


async def body_of(url: str) -> bytes:
    """What the SDK would read, by a client with the cap."""

    async def capped(response: httpx2.Response) -> None:
        cap_response(response, CAP, LargeMessages().for_server("test"))

    async with (
        httpx2.AsyncClient(event_hooks={"response": [capped]}, trust_env=False, timeout=60) as client,
        client.stream("GET", url) as response,
    ):
        return await response.aread()


@pytest.mark.parametrize("size", [0, 1, CAP])
async def test_what_is_within_the_cap_arrives(url: str, size: int) -> None:
    assert len(await body_of(f"{url}/{size}")) == size


@pytest.mark.parametrize("path", [str(CAP + 1), "5000000", "gzip", "chunked"])
async def test_what_is_over_the_cap_is_an_error_and_is_not_held(url: str, path: str) -> None:
    tracemalloc.start()
    with pytest.raises(MessageTooLarge) as caught:
        await body_of(f"{url}/{path}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert is_too_large(str(caught.value))
    # The server's side of these 5 MB is in this process too.
    assert peak < 20_000_000


def test_only_a_line_that_names_its_request_fails_one() -> None:
    assert isinstance(too_large_error(TooLong(9, None), 5), MessageTooLarge)
    named = too_large_error(TooLong(9, 3), 5)
    assert not isinstance(named, Exception)
    assert is_too_large(str(named.message))
