"""What requests hold of the broker's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from cellblock.serve.http.bodies import Memory


def test_a_client_a_principal_and_all_together_have_bounds() -> None:
    memory = Memory(1000, 500)
    with contextlib.ExitStack() as stack:

        def charge(client: str, principal: str) -> Callable[[int], bool]:
            return stack.enter_context(memory.charge(client, principal))

        first, second, third = (charge(f"c{number}", "ada") for number in range(3))
        assert first(250)
        assert not first(251), "a quarter for a client"
        assert not charge("c0", "ada")(1)
        assert second(250)
        assert not third(1), "half for a principal"
        assert all(charge(f"e{number}", "eve")(250) for number in range(2))
        assert memory.held == 1000
        assert not charge("z", "zoe")(1)
        assert first(10) and memory.held == 760
    assert memory.held == 0


def test_a_client_named_like_a_principal_is_not_one() -> None:
    memory = Memory(1000, 500)
    with memory.charge("same", "same") as held:
        assert held(250)
        assert memory.held == 250
