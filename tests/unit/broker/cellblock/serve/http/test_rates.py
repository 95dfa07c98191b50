"""Token buckets, on a clock of the test's own."""

from __future__ import annotations

from cellblock.serve.http.rates import MAX_CLIENTS, Rates


def test_a_burst_and_then_the_rate() -> None:
    rates = Rates(rate=10, burst=3)
    assert [rates.take("a", 0.0) for _ in range(4)] == [0, 0, 0, 1]
    assert [rates.take("a", 0.1), rates.take("a", 0.1)] == [0, 1]
    # A refused request takes nothing.
    assert rates.take("a", 0.2) == 0


def test_clients_do_not_share() -> None:
    rates = Rates(rate=1, burst=1)
    assert rates.take("a", 0.0) == 0
    assert rates.take("a", 0.0) == 1
    assert rates.take("b", 0.0) == 0


def test_a_pause_fills_the_bucket_to_the_brim_and_no_more() -> None:
    rates = Rates(rate=100, burst=2)
    for _ in range(3):
        rates.take("a", 0.0)
    assert [bool(rates.take("a", 1000.0)) for _ in range(3)] == [False, False, True]


def test_a_slow_rate_says_how_long_to_wait() -> None:
    rates = Rates(rate=0.1, burst=1)
    assert rates.take("a", 0.0) == 0
    assert rates.take("a", 1.0) == 9


def test_the_number_of_clients_remembered_is_bounded() -> None:
    rates = Rates(rate=0.001, burst=1)
    for number in range(MAX_CLIENTS):
        rates.take(str(number), 0.0)
    assert rates.take("0", 0.0) > 0, "it is remembered, and now the newest"
    rates.take("one more", 0.0)
    assert rates.take("0", 0.0) > 0
    assert rates.take("1", 0.0) == 0, "it was the oldest and is forgotten"
