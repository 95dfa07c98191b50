"""How often a client may ask, also where a balancer brings it to several brokers."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from cellblock.base.store import LocalStore
from cellblock.run.policy import counts as counts_module
from cellblock.run.policy.counts import Counts
from cellblock.serve.http.guards import MAX_CLIENTS, Guarded, RateLimit
from cellblock.serve.http.refusal import Refusals
from support.asgi import ADA, ask
from support.waits import until


def limited(counts: Counts | None = None) -> Refusals:
    return Refusals(Guarded(PlainTextResponse("ok"), RateLimit(0.001, 20, counts, lambda: 0.0).check))


async def test_clients_and_strangers_have_a_bucket_each() -> None:
    app = limited()
    assert [(await ask(app)).status_code for _ in range(21)] == [200] * 20 + [429]
    assert (await ask(app)).headers["retry-after"] == "1000"
    assert (await ask(app, caller=replace(ADA, client="http session x"))).status_code == 200
    assert (await ask(app, caller=None)).status_code == 200


async def test_a_client_of_two_brokers_has_one_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "SYNC_SECONDS", 0.02)

    both = [Counts(LocalStore(tmp_path)) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        for counts in both:
            counts.start()
            stack.push_async_callback(counts.close)
        here, there = (limited(counts) for counts in both)

        def seen(counts: Counts) -> tuple[int, bool]:
            """What a broker knows that was asked, and whether it has told of all that it was asked."""
            known = list(counts._known.values())
            return sum(count.used for count in known), not any(count.added for count in known)

        # A session is at one broker, and counts for itself.
        assert (await ask(here, caller=replace(ADA, client="s", has_session=True))).status_code == 200
        asked = 0
        for times in (1, 7):
            # What was asked before a broker has seen the client is not held against it there.
            for one in (here, there):
                assert [(await ask(one)).status_code for _ in range(times)] == [200] * times
            asked += 2 * times
            await until(
                lambda told=asked: all(seen(counts) == (told, True) for counts in both), "each has seen it"
            )
        # Eight here, and seven or eight there.
        answers = [(await ask(here)).status_code for _ in range(6)]
        assert answers in ([200] * 4 + [429] * 2, [200] * 5 + [429])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_and_then_the_rate() -> None:
    clock = Clock()
    rates = RateLimit(10, 3, clock=clock)
    assert [rates.take("a") for _ in range(4)] == [0, 0, 0, 1]
    clock.now = 0.1
    assert [rates.take("a"), rates.take("a")] == [0, 1]
    # A refused request takes nothing.
    clock.now = 0.2
    assert rates.take("a") == 0


def test_a_pause_fills_the_bucket_to_the_brim_and_no_more() -> None:
    clock = Clock()
    rates = RateLimit(100, 2, clock=clock)
    for _ in range(3):
        rates.take("a")
    clock.now = 1000.0
    assert [bool(rates.take("a")) for _ in range(3)] == [False, False, True]


def test_the_number_of_clients_remembered_is_bounded() -> None:
    rates = RateLimit(0.001, 1, clock=Clock())
    for number in range(MAX_CLIENTS):
        rates.take(str(number))
    assert rates.take("0") > 0, "it is remembered, and now the newest"
    rates.take("one more")
    assert rates.take("0") > 0
    assert rates.take("1") == 0, "it was the oldest and is forgotten"
