"""Bytes held for others have a bound for each of them and one for all."""

from __future__ import annotations

import pytest

from cellblock.base.offload.budget import ByteBudget, OverBudget


def test_each_and_all_together_are_bounded() -> None:
    budget = ByteBudget(each=10, whole=15, of="this client")
    budget.take("a", 10)
    with pytest.raises(OverBudget, match="this client have over 10 bytes"):
        budget.take("a", 1)
    with pytest.raises(OverBudget, match="all together have over 15 bytes"):
        budget.take("b", 6)
    with budget.holding("b", 5), pytest.raises(OverBudget):
        budget.take("c", 1)
    budget.give_back("a", 10)
    assert (budget.total, budget.held_for("a"), budget.held_for("b")) == (0, 0, 0)
    budget.take("b", 10)
