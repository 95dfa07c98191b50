"""How many connections: strangers go first, and who holds most makes room."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cellblock.serve.http.caller import network_of
from cellblock.serve.http.connections import Connections


@dataclass(eq=False)
class Connection:
    address: str
    idle: bool = True
    gone: bool = False

    def abort(self) -> None:
        self.gone = True


class World:
    def __init__(self, total: int, share: int) -> None:
        self.places = Connections(total, share)
        self.made: list[Connection] = []

    def enter(self, address: str = "10.0.0.1") -> Connection:
        made = Connection(address)
        self.made.append(made)
        self.places.enter(made)
        return made

    def holder(self, name: str, *, idle: bool = True) -> tuple[Connection, bool]:
        made = self.enter()
        made.idle = idle
        return made, self.places.prove(made, name)

    def open(self) -> int:
        return sum(not one.gone for one in self.made)


def test_the_oldest_stranger_of_the_address_with_most_makes_room() -> None:
    world = World(8, 8)
    quiet = world.enter("10.0.0.2")
    noisy = [world.enter() for _ in range(7)]
    for _ in range(20):
        newest = world.enter()
        assert not newest.gone
    assert world.open() == 8
    assert not quiet.gone
    assert all(one.gone for one in noisy)


def test_a_newcomer_lives_while_as_many_come_after_it_as_strangers_have_places() -> None:
    world = World(16, 16)
    for _ in range(16):
        world.holder("ada")
    for _ in range(30):
        newcomer = world.enter()
        for _ in range(3):
            world.enter()
        assert not newcomer.gone
        assert world.places.prove(newcomer, "ada")


def test_strangers_never_push_out_a_holder() -> None:
    world = World(8, 8)
    held = [world.holder("ada")[0] for _ in range(6)]
    for number in range(100):
        world.enter(f"10.0.{number}.1")
    assert not any(one.gone for one in held)
    assert world.open() == 8


def test_a_holder_has_its_share_and_closes_its_own_idle_ones_for_more() -> None:
    world = World(16, 4)
    held = [world.holder("ada") for _ in range(4)]
    newest, stays = world.holder("ada")
    assert stays
    assert held[0][0].gone and not newest.gone
    for one, _ in held:
        one.idle = False
    newest.idle = False
    assert world.holder("ada", idle=False)[1] is False
    assert world.holder("eve")[1] is True


def test_who_has_most_makes_room_when_all_places_are_taken() -> None:
    world = World(8, 8)
    mine = [world.holder("ada")[0] for _ in range(6)]
    assert world.holder("eve")[1]
    assert mine[0].gone and not mine[1].gone
    assert world.holder("eve")[1]
    assert world.holder("eve")[1]
    assert sum(one.gone for one in mine) == 3
    # Half and half: eve's next one costs eve.
    eves = [one for one in world.made if one not in mine and not one.gone]
    assert world.holder("eve")[1]
    assert sum(one.gone for one in mine) == 3
    assert sum(one.gone for one in eves) == 1


def test_who_comes_late_is_refused_where_all_are_busy() -> None:
    world = World(8, 8)
    for _ in range(6):
        assert world.holder("ada", idle=False)[1]
    assert not world.holder("eve", idle=False)[1]


def test_places_come_back() -> None:
    world = World(4, 4)
    for _ in range(50):
        one = world.enter()
        world.places.prove(one, "ada")
        world.places.prove(one, "ada")
        world.places.leave(one)
        world.places.leave(one)
    assert world.open() == 50, "nobody was sent away"


def test_a_proxy_may_carry_several_holders_on_one_connection() -> None:
    world = World(4, 1)
    one, _ = world.holder("ada")
    assert world.places.prove(one, "eve")
    assert world.holder("ada", idle=False)[1]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
    ],
)
def test_an_ipv6_network_is_one_stranger(address: str, network: str) -> None:
    assert network_of(address) == network
