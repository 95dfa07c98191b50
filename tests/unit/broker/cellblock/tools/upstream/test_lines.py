"""What comes from servers: lines, events, answers over the cap; read, mended, or the failure of what they answer;
and no long step of the loop, however many parts something has."""

import asyncio
import functools
import json
import random
import sys
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from hypothesis import given, strategies as st

from cellblock.base.budget import Budget
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import end_tasks
from cellblock.run.call_results import unwrap
from cellblock.tools.upstream.dispatcher import Connection
from cellblock.tools.upstream.failures import AnswerUnreadable
from cellblock.tools.upstream.http import HttpWire
from cellblock.tools.upstream.http_requests import FREE_BYTES, MOST_RATIO, PIECE_BYTES, unpacked, words_of
from cellblock.tools.upstream.pace import MESSAGES_IN_STEP, Holding
from cellblock.tools.upstream.stdio import stdio_wire
from cellblock.tools.upstream.wire.framing import (
    ENDLESS,
    Cut,
    Event,
    EventSplitter,
    LineSplitter,
    TooLong,
)
from cellblock.tools.upstream.wire.messages import (
    ENDS_BYTES,
    MENDED_BYTES,
    MOST_ITEMS,
    Failure,
    Message,
    Notification,
    Request,
    Result,
    Unreadable,
    parts,
    quoted,
    read,
)
from cellblock.tools.upstream.wire.repair import page
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult
from support.http_server import Answering, serving
from support.loop_steps import longest_step
from support.waits import until


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60)), cap=st.integers(8, 40))
def test_lines_are_those_of_the_whole_however_it_is_cut(data: bytes, cuts: list[int], cap: int) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    splitter = LineSplitter(cap)
    got = [line for start, end in pairwise(places) for line in told(splitter.feed(data[start:end]))]
    assert got == [line if len(line) <= cap else len(line) for line in data.split(b"\n")[:-1]]


def told(lines: list[bytes | TooLong]) -> list[bytes | int]:
    return [line.size if isinstance(line, TooLong) else line for line in lines]


@pytest.mark.parametrize(
    "answer",
    [
        '{"jsonrpc":"2.0","id":41,"result":{"text":"FILL"}}',
        '{"jsonrpc": "2.0", "id": 41, "result": {"text": "FILL"}}',
        '{"result":{"text":"FILL"},"jsonrpc":"2.0","id":41}',
        '{"result":{"text":"FILL"},"id":41,"jsonrpc":"2.0"}',
        ' { "result" : {"text":"FILL"}, "jsonrpc" : "2.0", "id" : 41 } ',
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 600, 65536])
def test_the_request_that_a_too_long_line_answers_is_found(answer: str, chunk: int) -> None:
    text = answer.replace("FILL", "x" * 3_000)
    data = text.encode() + b"\nnext\n"
    splitter = LineSplitter(1_000)
    lines = [line for at in range(0, len(data), chunk) for line in splitter.feed(data[at : at + chunk])]
    assert told(lines) == [len(text), b"next"]
    assert isinstance(lines[0], TooLong) and lines[0].unread.id == 41
    assert "over the maximum of 1000" in lines[0].unread.why


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
    (line_of,) = LineSplitter(1_000).feed(line.replace("FILL", "x" * 3_000).encode() + b"\n")
    assert isinstance(line_of, TooLong) and line_of.unread.id is None


def test_a_line_without_end_is_given_up_and_never_held() -> None:
    cap = 1024 * 1024
    splitter = LineSplitter(cap)
    chunk = b"e" * 65536
    tracemalloc.start()
    with pytest.raises(Cut):
        for _ in range(ENDLESS * cap // len(chunk) + 1):
            splitter.feed(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * cap + ENDS_BYTES


def message(line: bytes) -> Message:
    (part,) = parts(line) or [b""]
    return read(part)


def failed(line: bytes) -> object:
    """The id of the request that a line fails."""
    item = message(line)
    assert isinstance(item, Unreadable | Failure), item
    return item.id


BODY = b'{"a":[1,"\\u00e9"],"n":12345678901234567890123}'
NO_ERRORS = (b"[]", b"{}", b"false", b'""')
PING = b'{"jsonrpc":"2.0","id":"x","method":"ping","params":[]}'


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":%s}' % BODY, Result(7, BODY)),
        (b'\xef\xbb\xbf {"result":%s,"id":7.0} \r' % BODY, Result(7, BODY)),
        (PING, Request("x", "ping", None)),
        (b'{"method":"notifications/x","params":{"a":1}}', Notification("notifications/x", {"a": 1})),
        # An error of any form is told.
        (b'{"id":7,"result":null,"error":{"code":-3,"message":"no"}}', Failure(7, -3, "no")),
        (b'{"id":7,"result":null,"error":"broken"}', Failure(7, -32603, "broken")),
        (
            b'{"id":7,"result":null,"error":{"code":"E_QUOTA","message":"no"}}',
            Failure(7, -32603, "no (E_QUOTA)"),
        ),
        (b'{"id":7,"result":null,"error":{"code":"-5","message":{"a":1}}}', Failure(7, -5, '{"a": 1}')),
        (b'{"id":7,"result":null,"error":[1]}', Failure(7, -32603, "[1]")),
        # What no JSON is and most parsers take is mended.
        (
            json.dumps({"id": 7, "result": {"a\ud83d": ["\ude00x", "\U0001f600"]}}).encode(),
            Result(7, '{"a\ufffd": ["\ufffdx", "\U0001f600"]}'.encode(), ("Half characters became U+FFFD.",)),
        ),
        (
            b'{"id":7,"result":{"a":NaN,"b":[-Infinity]}}',
            Result(
                7,
                b'{"a":null,"b":[null]}',
                ("-Infinity and NaN has no JSON form: null stands in its place.",),
            ),
        ),
        *(
            (
                b'{"id":7,"result":{"a":[1e308,-1.5E+309],%s}}' % odd,
                Result(
                    7,
                    b'{"a":%s,%s}' % (numbers, mended),
                    (f"{told} has no JSON form: null stands in its place.",),
                ),
            )
            for odd, numbers, mended, told in [
                (b'"b":NaN', b"[1e+308,null]", b'"b":null', "-1.5E+309 and NaN"),
                (b'"b":"\t"', b" [1e+308, null]", b' "b": "\\t"', "-1.5E+309"),
            ]
        ),
        (
            b'{"id":7,"result":{"a":"caf\xe9","b":1}}',
            Result(7, '{"a":"caf\ufffd","b":1}'.encode(), ("Bytes that are no UTF-8 became U+FFFD.",)),
        ),
        (
            b'{"id":7,"result":{"a":"1\t2\x1b[0m"}}',
            Result(7, b'{"a": "1\\t2\\u001b[0m"}', ("Bare control characters were escaped.",)),
        ),
        # Some write each member that there may be.
        (b'{"id":7,"method":null,"params":null,"result":%s,"error":null}' % BODY, Result(7, BODY)),
        *((b'{"id":7,"result":%s,"error":%s}' % (BODY, none), Result(7, BODY)) for none in NO_ERRORS),
    ],
)
def test_a_message_is_read(line: bytes, meant: Message) -> None:
    assert message(line) == meant


def test_a_batch_is_the_messages_in_it() -> None:
    assert parts(b" [%s , %s]\r" % (PING, PING)) == [PING] * 2
    assert parts(b" \r") == []
    # Some end no line, or write lines where one message belongs.
    whole = b'{"jsonrpc":"2.0","id":7,"result":{"a":["}{"],"b":[{"jsonrpc":"2.0"},{"jsonrpc":{}}]}}'
    assert parts(PING + PING + b"\n" + whole) == [PING, PING, whole]


@pytest.mark.parametrize(
    "line",
    [b"[" + b"1," * MOST_ITEMS + b"1]", b"[1,", b"[" * 100_000 + b"]" * 100_000],
    ids=["too many", "cut", "deep"],
)
def test_what_is_no_batch_is_one_thing(line: bytes) -> None:
    """A server that says more at once than anybody reads has said nothing, and fails nobody's calls."""
    assert parts(line) == [line]
    assert failed(line) is None


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":null}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":"x"}', 7),
        (b'{"result":3,"id":"seven","jsonrpc":"2.0"}', "seven"),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"\xff%s"}}' % (b"x" * MENDED_BYTES), 7),
        (b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 7),
        (b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b',"id":8}', 8),
        (b'{"result":[' + b"[]," * 1_500_000 + b'[]],"id":8}', 8),
        # What answers nothing is no message.
        (b"Server is ready", None),
        (b"", None),
        (b"{}", None),
        (b'"\xff"', None),
        (b'{"jsonrpc":"2.0","id":true,"result":1}', None),
        (b'{"jsonrpc":"2.0","id":null,"result":1}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":3}', None),
    ],
    ids=[
        *("null", "text", "string id", "cut", "no UTF-8", "deep", "deep, id at its end", "many"),
        *("prose", "nothing", "empty", "a text that is no UTF-8", "true as id", "null as id", "no method"),
    ],
)
def test_what_cannot_be_read_fails_what_it_answers(line: bytes, answers: int | str | None) -> None:
    assert failed(line) == answers


@pytest.mark.parametrize(
    "data", [b'"%s"' % (b"x" * 300_000), b"[" + b"{}," * 10_000 + b"1]"], ids=["text", "objects"]
)
def test_what_is_large_and_was_not_asked_for_is_not_decoded(data: bytes) -> None:
    params = b'{"data":%s}' % data
    assert message(b'{"method":"notifications/message","params":%s}' % params) == Notification("", None)
    assert message(b'{"id":3,"method":"sampling/createMessage","params":%s}' % params) == Request(
        3, "sampling/createMessage", None, too_large=True
    )


STREAM = (
    b': hello\n\nevent: message\r\nid: 7\r\ndata: {"a":1}\r\n\r\ndata:x\rdata: y\r\r\n\ndata\n\nretry: 5\n\n'
    b"data: last\n\nnever: ends"
)


def test_events_at_any_cut() -> None:
    source = random.Random(7)
    for _ in range(500):
        splitter, found, at = EventSplitter(), list[bytes | None](), 0
        while at < len(STREAM):
            step = source.choice([1, 2, 3, 10, 100])
            found += [event.data for event in splitter.feed(STREAM[at : at + step]) if event.data]
            at += step
        assert found == [b'{"a":1}', b"x\ny", b"last"]
        assert splitter.held == len(b"never: ends")


def test_an_event_is_taken_early_where_it_is_a_message_and_then_no_more() -> None:
    splitter, data = EventSplitter(), b'{"id":7,"result":{"a":"}"}}'
    assert splitter.feed(b"id: 3\ndata: " + data[:-2]) == splitter.early() == []
    assert splitter.feed(data[-2:]) == []
    assert splitter.early() == [Event(data, "3")]
    assert splitter.feed(b"\n\ndata: x\n\n") == [Event(b"x")]


def test_no_half_of_a_word_is_quoted() -> None:
    said = "word " * 59 + "a-secret-of-17-letters"
    assert words_of(said.encode(), "text/plain") == "word " * 58 + "word"
    assert quoted(said[190:].encode()) == "word " * 20 + "word"
    assert words_of(b"a  short\none", "") == quoted(b"a short one") == "a short one"


def test_of_events_without_data_the_last_position_is_left() -> None:
    assert EventSplitter().feed(
        b": x\n\nid: 7\ndata:\n\nid: 8\n\n\n\nretry: 500\n\n" * 100 + b"data: a\n\n"
    ) == [Event(b"a", "8", 500)]


@pytest.mark.parametrize(
    ("said", "meant"), [(b"0", 100), (b"-5", 100), (b"", 100), (b"500", 500), (b"9" * 5000, 30_000)]
)
def test_a_stream_is_asked_for_again_within_bounds(said: bytes, meant: int) -> None:
    (event,) = EventSplitter().feed(b"retry: " + said + b"\ndata: a\n\n")
    assert event == Event(b"a", None, meant)


CAP = 200_000


def packed(*pieces: bytes, bits: int = 31) -> bytes:
    """These pieces in one stream: of gzip with 31 bits, of zlib with 15."""
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    return b"".join(map(packer.compress, pieces)) + packer.flush()


@functools.cache
def coded() -> dict[str, tuple[str, bytes]]:
    """Bodies with their codings. Half a megabyte of gzip that is nothing when it is unpacked reaches no cap."""
    nothing = packed(b"")[:10] + b"\x00\x00\x00\xff\xff" * 100_000
    return {
        "gzip": ("gzip", packed(*[bytes(1_000_000)] * 100)),
        "twice": ("gzip, gzip", packed(nothing)),
        "brotli": ("br", b"\x0b\x00\x80x\x03"),
        "zstd": ("zstd", b"\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x"),
        "deflate": ("Deflate", packed(b"x" * CAP, bits=15)),
        "small": ("x-gzip", packed(b"x" * CAP)),
        "identity": ("identity", b"x" * CAP),
        "damaged": ("gzip", b"x" * 100),
        "trailing": ("gzip", packed(b"x") + bytes(1_000_000)),
    }


class Sending(Answering):
    """/N sends N bytes, /gzip 100 MB in 100 KB, other names what `coded` has, and /chunked chunks without end."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            try:
                while True:
                    self.wfile.write(chunk)
            except OSError:
                self.close_connection = True
            return
        name = self.path[1:]
        coding, body = coded()[name] if name in coded() else ("", b"x" * int(name))
        self.answer(200, body, content_type="application/json", content_encoding=coding)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where `Sending` answers."""
    with serving(Sending) as address:
        yield f"http://{address}"


async def body_of(url: str) -> bytes:
    """What is read of an answer over HTTP."""
    holding = Holding(Budget.of_servers(), "test")
    async with (
        httpx2.AsyncClient(trust_env=False, timeout=120) as client,
        client.stream("GET", url) as response,
    ):
        return await HttpWire(url, client, CAP, holding).whole(response)


@pytest.mark.parametrize("size", [0, 1, CAP])
async def test_what_is_within_the_cap_arrives(url: str, size: int) -> None:
    assert len(await body_of(f"{url}/{size}")) == size


@pytest.mark.parametrize("path", [str(CAP + 1), "5000000", "gzip", "chunked"])
async def test_what_is_over_the_cap_is_an_error_and_is_not_held(url: str, path: str) -> None:
    tracemalloc.start()
    with pytest.raises(AnswerUnreadable, match=f"over the maximum of {CAP}"):
        await body_of(f"{url}/{path}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The server's side of these 5 MB is in this process too.
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("twice", "gzip, gzip"),
        ("brotli", "`br`"),
        ("zstd", "`zstd`"),
        ("damaged", "incorrect header check"),
        ("trailing", "goes on after its end"),
    ],
)
async def test_one_coding_that_was_asked_for_is_unpacked_and_no_other(url: str, path: str, why: str) -> None:
    with pytest.raises(AnswerUnreadable, match=why):
        await body_of(f"{url}/{path}")
    for plain in ("small", "deflate", "identity"):
        assert await body_of(f"{url}/{plain}") == b"x" * CAP


async def taking_turns(turns: Counter[str]) -> None:
    """Counts the passes of the loop."""
    while True:
        turns["passes"] += 1
        await asyncio.sleep(0)


async def test_a_bomb_is_unpacked_in_pieces_and_refused_by_its_ratio() -> None:
    """Other tasks have their turn after each piece, and what is unpacked is bounded whatever reads it."""
    _, bomb = coded()["gzip"]
    response = httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=httpx2.ByteStream(bomb))
    pieces: list[bytes] = []
    turns = Counter[str]()
    other = asyncio.create_task(taking_turns(turns))
    with pytest.raises(httpx2.DecodingError, match="times its size"):
        async for piece in unpacked(response):
            pieces.append(piece)  # noqa: PERF401 - an error ends it
    other.cancel()
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert turns.total() >= len(pieces)
    assert sum(map(len, pieces)) <= MOST_RATIO * len(bomb) + FREE_BYTES


# ---- no step of the loop is long, however many parts something has ---------------------------------------


@pytest.mark.parametrize(
    ("cursor", "is_sent"),
    [
        (b"7", "7"),
        (b"1e999", "1e999"),
        (b"1" + b"0" * 40, "1" + "0" * 40),
        (b'"x"', "x"),
        *((one, None) for one in (b"null", b'""', b"[]", b"{}", b"true", b'{"page": 2}')),
    ],
)
def test_the_cursor_of_a_page_is_sent_back_as_it_came(cursor: bytes, is_sent: str | None) -> None:
    made = page(ToolResult(b'{"tools":[],"nextCursor":%s}' % cursor).fields, "tools")
    assert made.cursor == is_sent


SIZE = 16_000_000


def filled(start: bytes, part: bytes, end: bytes) -> bytes:
    """About `SIZE` bytes of one part."""
    return start + part * (SIZE // len(part)) + end


@functools.cache
def members() -> bytes:
    """The same of an object; not made by each process that collects tests."""
    return b"{%s}" % b",".join(b'"%d":1' % number for number in range(SIZE // 11))


def script_gets(body: bytes) -> object:
    """The first bytes of what a script gets of a result."""
    result = ToolResult(body)
    assert not result.asks_for_input
    assert not result.remarks()
    return unwrap(result, server="s", tool="t", box="only").body[:30]


def listed(body: bytes) -> int:
    """How many items are taken of a page of tools."""
    return len(page(ToolResult(body).fields, "tools").items)


def contents(body: bytes) -> int:
    """How many contents a script gets of a resource."""
    return ResourceResult(body).for_script()[0].count(b"1")


@pytest.mark.parametrize(
    ("taken", "body", "gets"),
    [
        (script_gets, lambda: filled(b'{"content":[', b"1,", b"1]}"), b'{"content":[1,1,1,1,1,1,1,1,1,'),
        (script_gets, lambda: b'{"content":[%s]}' % members(), b'{"content":[{"0":1,"1":1,"2":1'),
        (script_gets, lambda: b'{"structuredContent":%s}' % members(), b'{"0":1,"1":1,"2":1,"3":1,"4":1'),
        (
            script_gets,
            lambda: filled(b'{"structuredContent":{"only":[', b"1,", b"1]}}"),
            b"[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
        ),
        (script_gets, lambda: members()[:-1] + b',"content":[{"type":"text","text":"said"}]}', b'"said"'),
        (listed, lambda: filled(b'{"tools":[', b"1,", b"1]}"), MOST_ITEMS),
        (listed, lambda: b'{"tools":%s}' % members(), 0),
        (contents, lambda: filled(b'{"contents":[', b"1,", b"1]}"), MOST_ITEMS),
    ],
    ids=[
        *("items", "members of a block", "members of a value", "one member", "members beside"),
        *("list", "list as an object", "contents"),
    ],
)
async def test_a_result_of_very_many_parts_holds_the_loop_for_no_long_step(
    taken: Callable[[bytes], object], body: Callable[[], bytes], gets: object
) -> None:
    """In CPU time of this thread, which no other process adds to; the bound is 60 ms on a machine that is quiet."""
    made = body()
    with longest_step() as longest:
        await asyncio.sleep(0)
        found = taken(made)
        await asyncio.sleep(0)
    assert found == gets
    assert longest[0] < 0.3


@pytest.mark.parametrize("part", [b"1,", b'{"method":"a"},', b"{},"], ids=["numbers", "notices", "objects"])
async def test_a_batch_of_very_many_messages_is_none(part: bytes) -> None:
    noted: list[str] = []
    nowhere: Any = SimpleNamespace(where="a wire on which nothing is sent")
    connection = Connection(nowhere, asyncio.Event(), noted.append)
    with longest_step() as longest:
        assert await connection.received(filled(b"[", part, b"1]")) == 1
    assert len(noted) <= 1
    assert longest[0] < 0.3


CHATTERS = "import sys; sys.stdout.write('1\\n' * 100_000); sys.stdout.flush(); sys.stdin.read()"


async def test_of_many_lines_few_are_read_before_others_have_their_turn(tmp_path: Path) -> None:
    turns, noted = Counter[str](), Counter[int]()
    config = ServerConfig(command=sys.executable, args=["-I", "-c", CHATTERS])
    with (tmp_path / "log").open("w") as log:
        async with stdio_wire(
            config, stderr=log, cap=1 << 20, holding=Holding(Budget.of_servers(), "chatters")
        ) as wire:
            connection = Connection(wire, asyncio.Event(), lambda _: noted.update([turns["passes"]]))
            tasks = [asyncio.create_task(taking_turns(turns)), asyncio.create_task(wire.run(connection))]
            await until(lambda: noted.total() > 800, "some have come")
            await end_tasks(*tasks)
    assert max(noted.values()) <= MESSAGES_IN_STEP + 1
