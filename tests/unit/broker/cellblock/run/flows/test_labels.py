"""Labels are a lattice: joins lose nothing, and what flows somewhere may be known there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.run.flows.labels import (
    NOTHING,
    STRICTEST,
    Audience,
    Label,
    audience_of,
    may_see,
    secrecy_of,
    stated_by_server,
)

GROUPS = st.sampled_from(["repo:acme", "repo:beta", "team:red"])
AUDIENCES: st.SearchStrategy[Audience] = st.none() | st.frozensets(GROUPS)
LABELS = st.builds(Label, AUDIENCES, st.booleans())


@given(LABELS, LABELS, LABELS)
def test_joins_are_those_of_a_lattice(one: Label, other: Label, third: Label) -> None:
    assert one | other == other | one and (one | other) | third == one | (other | third) and one | one == one
    assert one.within(one | other) and NOTHING.within(one) and one.within(STRICTEST)
    assert one | NOTHING == one and one | STRICTEST == STRICTEST
    assert one.within(other) == (one | other == other)


@given(LABELS, LABELS, AUDIENCES)
def test_what_a_join_may_be_told_to_both_may_be_told_to(one: Label, other: Label, sink: Audience) -> None:
    both = may_see(sink, one.secrecy) and may_see(sink, other.secrecy)
    assert may_see(sink, (one | other).secrecy) == both


@given(LABELS)
def test_labels_are_read_as_they_were_written(label: Label) -> None:
    assert Label.unpack(label.pack()) == label and audience_of(secrecy_of(label.secrecy)) == label.secrecy  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "null", "{}", '["public"]', "[1, 2, 3]", "\ud800"])
def test_what_cannot_be_read_is_the_strictest(text: str) -> None:
    assert Label.unpack(text) == STRICTEST


def test_two_named_sets_are_for_the_person_alone_and_one_set_for_its_group() -> None:
    acme, beta = (audience_of([f"repo:{name}"]) for name in ("acme", "beta"))
    joined = (Label(acme) | Label(beta)).secrecy
    assert [may_see(sink, joined) for sink in (audience_of("private"), acme, audience_of("public"))] == [
        True,
        False,
        False,
    ]
    assert may_see(acme, acme) and not may_see(audience_of(["repo:acme", "repo:beta"]), acme)


@pytest.mark.parametrize(
    ("ifc", "expected"),
    [
        ({"integrity": "trusted", "confidentiality": ["public"]}, Label()),
        ({"integrity": "untrusted", "confidentiality": ["public"]}, Label(None, False)),
        (
            {"integrity": "trusted", "confidentiality": ["ann", "bob"]},
            Label(frozenset({"user:ann", "user:bob"})),
        ),
        ({"integrity": "trusted", "confidentiality": []}, Label(frozenset())),
        ({"integrity": "trusted", "confidentiality": "private"}, Label(frozenset())),
        ({"integrity": "Trusted", "confidentiality": [1]}, STRICTEST),
        ({}, STRICTEST),
        (None, STRICTEST),
        (["public"], STRICTEST),
    ],
)
def test_labels_of_servers_are_read_as_strictly_as_they_can_be(ifc: object, expected: Label) -> None:
    assert stated_by_server({"ifc": ifc}).label(NOTHING) == expected
    assert stated_by_server({}).label(expected) == expected
