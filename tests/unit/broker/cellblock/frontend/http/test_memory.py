"""What requests hold of the broker's memory."""

from __future__ import annotations

from cellblock.frontend.http.bodies import Memory


def test_a_client_a_principal_and_all_together_have_bounds() -> None:
    memory = Memory(1000, 500)
    first, second, third = (memory.charge(f"c{number}", "ada") for number in range(3))
    assert first.to(250)
    assert not first.to(251), "a quarter for a client"
    assert not memory.charge("c0", "ada").to(1)
    assert second.to(250)
    assert not third.to(1), "half for a principal"
    eve = [memory.charge(f"e{number}", "eve") for number in range(2)]
    assert all(one.to(250) for one in eve)
    assert memory.held == 1000
    assert not memory.charge("z", "zoe").to(1)
    for one in (first, second, third, *eve):
        one.end()
        one.end()
    assert memory.held == 0
    assert first.to(250) and first.to(10) and memory.held == 10


def test_a_client_named_like_a_principal_is_not_one() -> None:
    memory = Memory(1000, 500)
    assert memory.charge("same", "same").to(250)
    assert memory.held == 250
