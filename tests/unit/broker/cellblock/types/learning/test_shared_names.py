"""Names of fields that few principals have shown stay with them."""

import msgspec
import pytest

from cellblock.types.learning import shape
from cellblock.types.learning.shape import shape_of


@pytest.mark.parametrize("enough", [2, 3])
def test_a_name_is_shared_when_enough_have_shown_it_each_for_itself(
    enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape, "ENOUGH", enough)
    kept = shape.NOTHING
    for number, by in enumerate("abc", 1):
        # Each shows its own name, too, twice; what is known is stored between them.
        for _ in range(2):
            row = msgspec.to_builtins(shape.join(kept, shape_of([{"common": 1, by: 1}], by=by)))
            kept = msgspec.convert(row, shape.Shape)
        for own in ("a", "x"):
            known = shape.shared(kept, (own,)).objects
            assert known is not None
            common = {"common"} if number >= enough or own == "a" else set[str]()
            assert set(known.properties) == (common | {"a"} if own == "a" else common)
