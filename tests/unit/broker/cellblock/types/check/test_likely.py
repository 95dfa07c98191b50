"""Which member was probably meant: the same whatever their order, and none where two are as likely."""

from __future__ import annotations

from itertools import permutations

import pytest

from cellblock.tools.catalog.model import Catalog
from cellblock.types.check.faults import hint_of
from cellblock.types.check.likely import likely_member, likely_members
from cellblock.types.check.verdict import Complaint

OF_ARRAYS = [
    "at",
    "concat",
    "entries",
    "filter",
    "find",
    "forEach",
    "indexOf",
    "join",
    "length",
    "map",
    "pop",
    "slice",
]


@pytest.mark.parametrize(
    ("wanted", "members", "likely"),
    [
        ("titel", ["body", "title", "due"], ["title"]),
        ("date", ["id", "created", "due"], ["created", "due"]),
        ("user", ["assignee", "author", "id"], ["assignee", "author"]),
        ("name", ["title", "id"], ["title"]),
        ("item1", ["item2", "item3", "x"], ["item2", "item3"]),
        ("zzz", ["a", "b", "c"], []),
    ],
)
def test_the_order_does_not_matter(wanted: str, members: list[str], likely: list[str]) -> None:
    for order in permutations(members):
        assert likely_members(wanted, order) == likely
        assert likely_member(wanted, order) == (likely[0] if len(likely) == 1 else None)


def hint(receiver: str, wanted: str, members: list[str], suggested: str = "") -> str:
    message = f"Property '{wanted}' does not exist on type '{receiver}'."
    message += f" Did you mean '{suggested}'?" if suggested else ""
    complaint = Complaint(2551 if suggested else 2339, message, 1, 1, wanted, receiver)
    return hint_of(complaint, members, Catalog(), ()) or ""


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("rows", "It is the array itself: leave out `.rows`."),
        ("count", "Did you mean `length`?"),
        ("lenght", "Did you mean `length`?"),
        ("foreach", "Did you mean `forEach`?"),
        ("contains", "Did you mean `includes`?"),
        ("title", "It is an array: read `title` of its elements."),
        ("enters", "It is an array: read `enters` of its elements."),
    ],
)
def test_what_arrays_have_is_offered_only_where_it_fits(wanted: str, said: str) -> None:
    members = [name for name in OF_ARRAYS if wanted != "enters" or name != "entries"]
    assert hint("Row[]", wanted, members, "entries" if wanted == "rows" else "") == said


def test_of_texts_and_objects() -> None:
    assert hint("string", "rows", ["at", "length"]) == "It is text: if it holds JSON, use JSON.parse first."
    assert hint("string", "size", ["at", "length"]).startswith("Did you mean `length`? It is text")
    assert hint("Issue", "date", ["due", "created", "id"]) == (
        "Did you mean `created` or `due`? Issue has: created, due, id."
    )
    # The compiler takes the first of equals.
    assert "`item2` or `item3`" in hint("Issue", "item1", ["item3", "item2"], "item3")
