"""Answers go to a worker no faster than it reads; none is lost, and a worker cannot make them come faster.

An error in one: all of it where it fits, and never over the cap nor lost, whatever it quotes.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from cellblock.base.errors import (
    MAX_MESSAGE_CHARS,
    CallDenied,
    Certainty,
    ScriptError,
    ToolCallError,
    ToolNotFound,
)
from cellblock.run.replies import HELD_FACTOR, Replies, encode_error
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
    assert worker.replies.room() is None
    for call_id in range(3):
        worker.replies.reply(call_id, True, b"x" * MOST)
    room = worker.replies.room()
    assert room is not None
    waiting = asyncio.ensure_future(room)
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


LEAST_CAP = 4096
"""The least `max_message_bytes` that the configuration allows."""


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def test_all_of_it_where_it_fits() -> None:
    error = ToolCallError("m", hint="h", certainty=Certainty.COMPLETED, result={"a": [1]}, serverId="s")
    assert json.loads(encode_error(error, LEAST_CAP)) == error.as_json()


@pytest.mark.parametrize("result", [{"text": "x" * 5000}, nested(200)], ids=["long", "deep"])
def test_a_result_that_is_too_much_is_left_out_and_nothing_else(result: Any) -> None:
    error = ToolCallError("m", hint="h", result=result, serverId="s")
    said = json.loads(encode_error(error, LEAST_CAP))
    assert said == {name: value for name, value in error.as_json().items() if name != "result"}


@pytest.mark.parametrize("letter", ["x", "\x00", "é", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("details", [{}, {"example": "x" * 9000}, {"received": nested(300)}])
def test_whatever_it_says_it_is_within_the_least_cap(letter: str, details: dict[str, Any]) -> None:
    error = ToolNotFound(letter * 100_000, hint=letter * 100_000, **details)
    body = encode_error(error, LEAST_CAP)
    assert len(body) <= LEAST_CAP
    said = json.loads(body)
    assert said["errorClass"] == "ToolNotFoundError" and len(said["message"]) >= 100


def test_what_is_certain_is_said_at_any_length() -> None:
    error = CallDenied("x" * 9000, hint="y", code="APPROVAL_DENIED")
    said = json.loads(encode_error(error, LEAST_CAP))
    assert (said["certainty"], said["code"], said["fault"]) == ("not_started", "APPROVAL_DENIED", "script")


def test_a_message_to_a_script_has_a_most() -> None:
    error = ScriptError("x" * 1_000_000, hint="y" * 1_000_000)
    assert (len(error.message), len(error.hint)) == (MAX_MESSAGE_CHARS, MAX_MESSAGE_CHARS)
