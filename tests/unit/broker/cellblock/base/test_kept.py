"""What was made of an object is kept for that very object, and of those used last; values, of those set last."""

from __future__ import annotations

from cellblock.base.kept import KeptByIdentity, Newest


def test_each_object_has_its_own_and_the_one_unused_for_longest_goes() -> None:
    made: list[list[int]] = []

    def make(item: list[int], more: int = 0) -> tuple[int, int]:
        made.append(item)
        return len(item), more

    kept = KeptByIdentity(make, 2)
    one, alike, third = [1], [1], [1, 2]
    assert kept.get_or_make(one, 5) == (1, 5)
    assert kept.get_or_make(alike) == (1, 0)
    assert kept.get_or_make(one) is kept.get_or_make(one, 7)
    assert kept.get_or_make(third) == (2, 0) and kept.size == 2
    assert kept.get_or_make(one) == (1, 5) and len(made) == 3
    assert kept.get_or_make(alike) == (1, 0) and made[3] is alike


def test_the_value_that_was_set_before_all_others_goes() -> None:
    kept = Newest[str, int](2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}
    assert kept.pop("a") == 3 and kept.get("b") is None
    kept["d"] = 5
    assert list(kept) == ["c", "d"]
