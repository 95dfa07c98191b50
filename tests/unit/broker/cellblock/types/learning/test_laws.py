"""Merging is a semilattice, and what was seen fits what is said: random values, hostile keys among them."""

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.types.learning.render import changes, to_schema
from cellblock.types.learning.shape import ANYTHING, NOTHING, Shape, bounded, join, refreshed, shape_of

KEYS = st.sampled_from(
    [
        "id",
        "name",
        "type",
        "kind",
        "status",
        "k1",
        "k2",
        "k3",
        "k4",
        "x-1",
        "__proto__",
        "*/",
        "\u2028",
        "a b",
        "n" * 70,
    ]
) | st.text(max_size=3)
TEXTS = st.sampled_from(
    ["", "open", "closed", "2026-11-01", "2026-11-01T10:00:00Z", "a@b.cd", "https://a.b/c", "\ud800"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)
TAGGED = st.fixed_dictionaries(
    {"type": st.sampled_from(["a", "b", "c", "no tag!"])},
    optional={"id": st.integers(), "name": VALUES, "kind": TEXTS},
)
SAMPLES = st.lists(VALUES | TAGGED | st.lists(TAGGED, max_size=4), min_size=1, max_size=6)


def well_formed(value: Any) -> bool:
    """Whether the native validator can read it: no lone surrogate, no number it has no room for."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(SAMPLES)
def test_every_sample_fits_the_schema_of_all(samples: list[Any]) -> None:
    shape = NOTHING
    for sample in samples:
        shape = join(shape, shape_of([sample]))
    validator = jsonschema_rs.validator_for(to_schema(shape))
    cut = jsonschema_rs.validator_for(to_schema(bounded(shape, 5)))
    for sample in filter(well_formed, samples):
        assert validator.is_valid(sample), (sample, to_schema(shape))
        assert cut.is_valid(sample)


@given(SAMPLES, SAMPLES, SAMPLES)
def test_joining_is_a_semilattice(one: list[Any], two: list[Any], three: list[Any]) -> None:
    a, b, c = shape_of(one), shape_of(two), shape_of(three)
    assert join(a, join(b, c)) == join(join(a, b), c)
    assert join(a, b) == join(b, a)
    assert join(a, a) == a == join(a, NOTHING) == join(NOTHING, a)
    assert join(a, ANYTHING) == ANYTHING == join(ANYTHING, a)
    assert shape_of([*one, *two]) == join(a, b), "a column is the join of its values"
    assert join(join(a, b), b) == join(a, b), "what is known already changes nothing"


@given(SAMPLES)
def test_a_stored_shape_comes_back_the_same(samples: list[Any]) -> None:
    shape = shape_of(samples)
    row = json.dumps(msgspec.to_builtins(shape))
    assert msgspec.convert(json.loads(row), Shape) == shape
    assert changes(shape, shape) == []
    wider = join(shape, shape_of([{"new_one": [1]}]))
    assert bool(changes(shape, wider)) == (shape != wider)


@pytest.mark.slow
@given(SAMPLES, SAMPLES)
def test_what_is_refreshed_lies_between_all_and_the_newer(old: list[Any], newer: list[Any]) -> None:
    recent = shape_of(newer)
    known = join(shape_of(old), recent)
    left = refreshed(known, recent)
    assert join(left, recent) == left and join(known, left) == known
    assert refreshed(known, known) == known == refreshed(known, NOTHING)
    assert refreshed(left, recent) == left
    validator = jsonschema_rs.validator_for(to_schema(left))
    assert all(validator.is_valid(sample) for sample in filter(well_formed, newer))
