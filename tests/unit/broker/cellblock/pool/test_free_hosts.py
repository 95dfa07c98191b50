"""Whatever hosts say and do, what is known of them is what a look at each would find."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from cellblock.pool.free_hosts import FreeHosts


class Host(NamedTuple):
    places: int
    runs: int
    is_usable: bool


USABLE = st.builds(Host, st.integers(2, 4), st.integers(0, 3), st.just(True))
HOSTS = st.none() | USABLE | st.builds(Host, st.integers(0, 3), st.integers(0, 4), st.booleans())
CHANGES = st.lists(st.tuples(st.integers(0, 2), HOSTS), min_size=6, max_size=40)


def by_a_look_at_each(hosts: dict[int, Host]) -> int | None:
    """The fewest runs, and of several the one that came first."""
    best: int | None = None
    for name, host in hosts.items():
        if host.is_usable and host.runs < host.places and (best is None or host.runs < hosts[best].runs):
            best = name
    return best


@given(CHANGES)
def test_what_is_known_is_what_a_look_at_each_finds(changes: list[tuple[int, Host | None]]) -> None:
    known, hosts = FreeHosts[int](), dict[int, Host]()
    for name, host in changes:
        if host is None:
            hosts.pop(name, None)
            known.drop(name)
        else:
            hosts[name] = host
            known.put(name, places=host.places, runs=host.runs, is_usable=host.is_usable)
        assert known.places == sum(one.places for one in hosts.values())
        assert known.free == sum(max(0, one.places - one.runs) for one in hosts.values())
        assert known.least_busy() == by_a_look_at_each(hosts)


def test_what_is_out_of_date_does_not_pile_up() -> None:
    known = FreeHosts[str]()
    known.put("idle", places=1, runs=0, is_usable=True)
    for _ in range(1000):
        for runs in (1, 2):
            known.put("busy", places=3, runs=runs, is_usable=True)
            assert known.least_busy() == "idle"
    assert len(known._order) <= 3  # pyright: ignore[reportPrivateUsage]
