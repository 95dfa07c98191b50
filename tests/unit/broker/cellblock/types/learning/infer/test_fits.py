"""The native test of what is known: it passes what adds nothing, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.types.learning.infer import ANYTHING, NOTHING, shape_of
from cellblock.types.learning.infer.fits import Fits
from cellblock.types.learning.infer.shape import MAX_NAMES

KNOWN: list[dict[str, Any]] = [
    {"id": 1, "at": "2026-11-01T10:00:00Z", "tags": [], "owner": {"mail": "a@b.de"}, "score": 0.5},
    {"id": 2, "at": "2026-11-02T10:00:00Z", "tags": ["x"], "owner": None, "note": "n"},
]


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"id": 10**30}, True),
        ({"note": "another"}, True),
        ({"owner": None}, True),
        ({"score": 1}, True),
        ({"tags": []}, True),
        ({"id": 1.5}, False),
        ({"id": None}, False),
        ({"at": "tomorrow"}, False),
        ({"at": "2026-11-01T10:00:00Z\n"}, False),
        ({"owner": {}}, False),
        ({"owner": {"mail": "none"}}, False),
        ({"tags": [1]}, False),
        ({"tags": [["x"]]}, False),
        ({"new": 1}, False),
        ({"a name": 1}, False),
        ({"__proto__": 1}, False),
        ({"note": "\ud800"}, True),
        ({"at": "\ud800"}, False),
        ({"score": float("nan")}, False),
    ],
)
def test_one_change_in_many_rows(change: dict[str, Any], fits: bool) -> None:
    rows = [*KNOWN, {**KNOWN[0], **change}]
    assert Fits(shape_of([KNOWN]))(rows) is fits


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [[]],
        "text",
        None,
        ["2026-11-01", "a@b.de"],
        [{"type": "a", "x": 1}, {"type": "b", "y": [2]}, 3],
        {"a-b": 1, "c": "x"},
        {f"k{number}": {"n": number} for number in range(MAX_NAMES + 1)},
        "https://a.example/x?y=1",
        "6f1b2c3d-0000-4000-8000-000000000000",
    ],
)
def test_a_value_fits_its_own_shape(value: Any) -> None:
    assert Fits(shape_of([value]))(value)


def test_another_tag_is_told_from_a_known_one() -> None:
    fits = Fits(shape_of([{"type": "a", "x": 1}, {"type": "b", "y": 2}]))
    assert fits({"type": "b", "y": 3})
    for value in ({"type": "b", "x": 1}, {"type": "c", "x": 1}, {"x": 1}, {"type": "not a tag", "x": 1}):
        assert not fits(value)


def test_a_name_that_could_be_the_tag_is_left_to_the_full_look() -> None:
    shape = shape_of([{"type": "not a tag", "kind": "a"}, {"type": "nor this", "kind": "b"}])
    assert not Fits(shape)({"type": "is_a_tag", "kind": "a"})


def test_the_ends_of_the_lattice() -> None:
    assert not Fits(NOTHING)(None)
    assert Fits(ANYTHING)({"a": [1]})
