"""What a block writes to a pipe goes out in one piece; what the pipe does not take waits, within a cap."""

import os
from collections.abc import Iterator

import pytest

from cellblock_worker.wire.outflow import GATHERING, Outflow
from support.waits import until

MOST = 1 << 20


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for end in ends:
        os.close(end)


def taken(end: int) -> bytes:
    try:
        return os.read(end, MOST)
    except BlockingIOError:
        return b""


async def test_what_a_block_writes_goes_out_at_its_end(pipe: tuple[int, int]) -> None:
    out = Outflow(pipe[1], MOST)
    with pytest.raises(KeyError), GATHERING:
        assert out.write(b"a") and out.write(b"b") and taken(pipe[0]) == b""
        raise KeyError
    assert taken(pipe[0]) == b"ab"
    assert out.write(b"c") and taken(pipe[0]) == b"c"


async def test_what_is_closed_in_a_block_sends_nothing(pipe: tuple[int, int]) -> None:
    out = Outflow(pipe[1], MOST)
    with GATHERING:
        out.write(b"a")
        out.close()
    assert taken(pipe[0]) == b""


async def test_what_the_pipe_does_not_take_waits_in_order_within_the_cap(pipe: tuple[int, int]) -> None:
    out, sent = Outflow(pipe[1], MOST), b""
    while out.write(part := bytes([len(sent) % 251]) * 70_000):
        sent += part
    assert len(sent) >= MOST - 70_000
    got = bytearray()

    def all_is_there() -> bool:
        got.extend(taken(pipe[0]))
        return len(got) == len(sent)

    await until(all_is_there, "all that waits is written")
    assert bytes(got) == sent and out.write(b"more")


async def test_a_reader_that_has_gone_costs_nothing() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(reader)
    out = Outflow(writer, 4)
    assert all(out.write(b"lost") for _ in range(3))
    os.close(writer)
