"""The turns of a server that exists once, with claims on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator

import httpx2
import pytest

from cellblock.base.claims import KIND, MIGRATIONS, Claim, Claims
from cellblock.base.postgresql import PostgresServer
from cellblock.base.presence import Presence
from cellblock.upstream import single as module
from cellblock.upstream.single import (
    HANDED_ON,
    MOVED,
    NOBODY,
    UNSURE,
    Moved,
    Single,
    Singles,
    Way,
    WayTransport,
)
from support.postgresql import Postgres
from support.waits import until, within

NAME = "browser"

Make = Callable[[], Singles]


def way_to(server: str, claim: Claim) -> Way:
    return Way(claim.broker, claim.url, {"x-epoch": str(claim.epoch)})


@pytest.fixture
def make(postgres_server: PostgresServer) -> Generator[Make]:
    """Makes what one broker more knows."""
    made: list[Presence] = []

    def one() -> Singles:
        presence = Presence(postgres_server, {KIND: MIGRATIONS})
        made.append(presence)
        singles = Singles(Claims(presence, [NAME]), way_to)
        presence.start()
        presence.hold()
        return singles

    yield one
    for presence in made:
        presence.close()


def of(singles: Singles) -> Single:
    found = singles.of(NAME)
    assert found is not None and singles.of("another") is None
    return found


class Turn:
    """A session's turn, whose end takes a while."""

    def __init__(self, single: Single) -> None:
        self.ended, self.left, self.busy = False, False, False
        self.way: Way | None = None
        self.begun = asyncio.Event()
        self.ends_while: Callable[[], bool] = lambda: True
        self.task = asyncio.create_task(self._have(single))

    async def _have(self, single: Single) -> str:
        try:
            async with single.turn(self._leave, lambda: self.busy) as place:
                self.way = place.way
                self.begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    assert self.ends_while()
                    self.ended = True
        except Moved as moved:
            return str(moved)
        return ""

    def _leave(self) -> None:
        self.left = True


async def test_one_has_it_here_and_the_other_one_goes_its_way(make: Make) -> None:
    first, second = make(), make()
    first.claims.take("http://first")
    mine = Turn(of(first))
    await within(mine.begun.wait(), 60)
    assert mine.way is None
    through = Turn(of(second))
    await within(through.begun.wait(), 60)
    assert through.way == Way(first.claims.broker, "http://first", {"x-epoch": "1"})
    # It is handed on when its calls are over, and has ended before the other one begins.
    second.claims.take("http://second")
    mine.busy = True
    mine.ends_while = lambda: first.claims.epoch(NAME) == 1
    given_up = asyncio.create_task(first.given_up())
    await until(lambda: mine.left, "no call is to begin")
    assert not mine.ended
    mine.busy = False
    assert await within(mine.task, 60) == HANDED_ON
    await within(given_up, 60)
    assert await within(through.task, 60) == MOVED
    again = Turn(of(second))
    await within(again.begun.wait(), 60)
    assert again.way is None
    last = Turn(of(first))
    await within(last.begun.wait(), 60)
    assert last.way is not None and last.way.url == "http://second"
    for turn in (again, last):
        turn.task.cancel()
        await asyncio.wait([turn.task])


async def test_calls_that_last_are_not_waited_for_without_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HAND_ON_SECONDS", 0.5)
    singles = make()
    singles.claims.take("http://first")
    turn = Turn(of(singles))
    await within(turn.begun.wait(), 60)
    turn.busy = True
    await within(singles.given_up(), 60)
    assert await within(turn.task, 60) == HANDED_ON


async def test_what_is_between_two_turns_is_given_up_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HAND_ON_SECONDS", 600.0)
    singles = make()
    singles.claims.take("http://first")
    singles.claims.want(NAME)
    await until(lambda: singles.claims.epoch(NAME) == 1, "it has it")
    await within(singles.given_up(), 60)
    assert not singles.claims.held


async def test_a_turn_is_cut_off_when_nobody_can_be_sure(make: Make, postgres: Postgres) -> None:
    singles = make()
    singles.claims.take("http://first")
    turn = Turn(of(singles))
    await within(turn.begun.wait(), 60)
    postgres.stop()
    try:
        assert await within(turn.task, 60) == UNSURE and turn.ended
        with pytest.raises(Moved, match="cannot be known now: PostgreSQL"):
            async with of(singles).turn(lambda: None, lambda: False):
                pass
    finally:
        postgres.start()
    again = Turn(of(singles))
    await until(lambda: again.begun.is_set() or again.task.done(), "it has looked")
    again.task.cancel()
    await asyncio.wait([again.task])


async def test_two_sessions_of_one_broker_have_it_one_after_the_other(make: Make) -> None:
    singles = make()
    singles.claims.take("http://first")
    first = Turn(of(singles))
    await within(first.begun.wait(), 60)
    second = Turn(of(singles))
    await asyncio.sleep(2 * module.LOOK_SECONDS)
    assert not second.begun.is_set()
    first.task.cancel()
    await asyncio.wait([first.task])
    # The epoch that it waited with is over: it looks again.
    assert await within(second.task, 60) == UNSURE
    third = Turn(of(singles))
    await within(third.begun.wait(), 60)
    assert third.way is None
    third.task.cancel()
    await asyncio.wait([third.task])


async def test_a_server_that_fails_here_is_not_tried_again_for_its_new_epoch(make: Make) -> None:
    singles = make()
    singles.claims.take("http://first")
    single = of(singles)
    async with single.turn(lambda: None, lambda: False):
        pass
    changed = asyncio.create_task(single.changed(60, str))
    await until(lambda: singles.claims.epoch(NAME) == 2, "it has it in another epoch")
    await asyncio.sleep(2 * module.LOOK_SECONDS)
    assert not changed.done()
    changed.cancel()


async def test_what_nobody_has_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIND_SECONDS", 0.1)
    with pytest.raises(Moved, match=NOBODY):
        async with of(make()).turn(lambda: None, lambda: False):
            pass


async def test_a_broker_that_is_not_there_has_no_such_session() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    transport = WayTransport(None)
    answer = await transport.handle_async_request(httpx2.Request("POST", f"http://127.0.0.1:{port}/"))
    assert answer.status_code == 404
    await transport.aclose()


@pytest.mark.parametrize(("challenge", "status"), [("\r\nwww-authenticate: Bearer", 404), ("", 401)])
async def test_a_broker_that_does_not_know_the_way_has_no_such_session(challenge: str, status: int) -> None:
    """A 401 without a challenge is the server's own, which that broker passes on."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 401 Unauthorized{challenge}\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()

    transport = WayTransport(None)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await transport.handle_async_request(httpx2.Request("POST", f"http://127.0.0.1:{port}/"))
        assert answer.status_code == status
        await answer.aclose()
        await transport.aclose()
