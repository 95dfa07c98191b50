"""Lines of standard input: one that is too long is dropped whole, and known by its id where that is certain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cellblock.serve.stdio import stdin
from cellblock.serve.stdio.stdin import ClientLines, LineTooLong

LIMIT = 4_096


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdin, "MAX_LINE_BYTES", LIMIT)


async def read(lines: ClientLines) -> list[Any]:
    """All lines; the id in the place of one that is dropped."""
    found: list[Any] = []
    while True:
        try:
            line = await lines.line()
        except LineTooLong as error:
            found.append((error.request_id,))
            continue
        if not line:
            return found
        found.append(line)


def fed(data: bytes) -> ClientLines:
    reader = asyncio.StreamReader(limit=LIMIT)
    reader.feed_data(data)
    reader.feed_eof()
    return ClientLines(reader, None)


LONG = b'"x":"' + b"\\n" * LIMIT + b'"'


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m",' + LONG + b"}", 7),
        (b'{"id": "a b" ,' + LONG + b"}", "a b"),
        (b'{"method":"m",' + LONG + b',"jsonrpc":"2.0","id":-8}', -8),
        (b'{"method":"m","params":{"id":3,' + LONG + b"}}", None),
        (b'{"params":{' + LONG + b',"id":3}}', None),
        (b'{"id":1.5,' + LONG + b"}", None),
        (b'{"id":"\\u0041",' + LONG + b"}", None),
        (b"x" * 20_000_000, None),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
async def test_a_line_that_is_too_long_is_dropped_whole(line: bytes, request_id: Any, end: bytes) -> None:
    if not end:
        assert await read(fed(b"before\n" + line)) == [b"before\n", (request_id,)]
    else:
        assert await read(fed(b"before\n" + line + end + b"behind\nhalf")) == [
            b"before\n",
            (request_id,),
            b"behind\n",
            b"half",
        ]


@pytest.mark.parametrize("over", [-1, 0, 1, 2, LIMIT, LIMIT + 1])
async def test_the_bound_is_the_same_from_a_pipe_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    data = b"x" * (LIMIT + over) + b"\nlast\n"
    wanted = [(None,) if over > 0 else data[: LIMIT + over + 1], b"last\n"]
    assert await read(fed(data)) == wanted
    file = tmp_path / "lines"
    file.write_bytes(data)
    with file.open() as opened:
        monkeypatch.setattr("sys.stdin", opened)
        assert await read(await ClientLines.of_stdin()) == wanted
