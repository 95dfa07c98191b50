"""Lines of a server's stdout: whole ones as they are, too long ones thrown away and their request found."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.tools.upstream.lines import ENDLESS, KEPT_BYTES, EndlessLine, LineSplitter, TooLong


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


def test_a_line_of_exactly_the_cap_passes() -> None:
    assert LineSplitter(10).feed(b"0123456789\n") == [b"0123456789"]
