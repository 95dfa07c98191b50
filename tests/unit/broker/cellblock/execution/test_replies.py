"""Answers go to a worker no faster than it reads; none is lost, and a worker cannot make them come faster."""

from __future__ import annotations

import asyncio
import random

import pytest

from cellblock.execution.replies import HELD_FACTOR, Replies
from support.memory_host import turns

MOST = 800
TOLD_FROM = 100


class Worker:
    """Keeps what it was sent, and reads it when a test says so, as the sandbox does."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, bool, bytes]] = []
        self.read: list[int] = []
        self.replies = Replies(lambda *reply: self.unread.append(reply), MOST)
        self._taken = 0

    @property
    def unread_bytes(self) -> int:
        return sum(len(body) for _, _, body in self.unread)

    def read_one(self) -> None:
        call_id, _, body = self.unread.pop(0)
        self.read.append(call_id)
        self._taken += len(body)
        if self._taken > MOST / 8:
            taken, self._taken = self._taken, 0
            assert self.replies.took(taken)


@pytest.mark.parametrize("seed", range(20))
async def test_all_are_read_in_order_and_few_wait_at_the_host(seed: int) -> None:
    chance = random.Random(seed)
    worker = Worker()
    for call_id in range(100):
        worker.replies.reply(call_id, True, b"x" * chance.choice((0, 1, 50, 99, 100, 101, 500, MOST)))
        assert worker.unread_bytes <= MOST + TOLD_FROM
        if chance.random() < 0.3 and worker.unread:
            worker.read_one()
    while worker.unread:
        worker.read_one()
    assert worker.read == list(range(100)) and worker.replies.has_room


async def test_who_waits_for_room_gets_on_when_the_worker_reads() -> None:
    worker = Worker()
    await worker.replies.room()
    for call_id in range(3):
        worker.replies.reply(call_id, True, b"x" * MOST)
    waiting = asyncio.ensure_future(worker.replies.room())
    worker.read_one()
    await turns()
    assert not waiting.done() and not worker.replies.has_room
    worker.read_one()
    await turns()
    assert waiting.done()


@pytest.mark.parametrize("size", [0, TOLD_FROM, 301, 2**53 - 1])
async def test_what_a_worker_cannot_have_read_is_not_believed(size: int) -> None:
    worker = Worker()
    worker.replies.reply(1, True, b"x" * 300)
    assert not worker.replies.took(size)
    assert worker.replies.took(300) and not worker.replies.took(300)


async def test_an_answer_that_would_be_too_much_is_an_error() -> None:
    worker = Worker()
    for call_id in range(1 + HELD_FACTOR + 2):
        worker.replies.reply(call_id, True, b"x" * MOST)
    while worker.unread:
        call_id, ok, body = worker.unread[0]
        assert ok == (call_id <= HELD_FACTOR) and len(body) <= MOST
        worker.read_one()
    assert worker.read == list(range(HELD_FACTOR + 3)) and worker.replies.has_room


async def test_none_is_sent_after_the_end() -> None:
    worker = Worker()
    for call_id in range(3):
        worker.replies.reply(call_id, True, b"x" * MOST)
    worker.replies.close()
    worker.read_one()
    assert worker.unread == []
