"""Whose sessions are open, as the gate follows the SDK."""

from __future__ import annotations

import pytest

from cellblock.serve.http.caller import Caller
from cellblock.serve.http.refusal import Refused
from cellblock.serve.http.sessions import Sessions


def caller(principal: str, program: str = "editor") -> Caller:
    return Caller(principal, program, principal, principal)


ADA = caller("ada")
EVE = caller("eve")


def opened(sessions: Sessions, opener: Caller, key: bytes, now: float = 0.0) -> bool:
    place = sessions.reserve(opener, now)
    if place is None:
        return False
    sessions.forget(place)
    sessions.opened(key, opener, now)
    return True


def test_a_principal_has_its_share_and_others_have_theirs() -> None:
    sessions = Sessions(2, 8, 60)
    assert [opened(sessions, ADA, b"%d" % number) for number in range(3)] == [True, True, False]
    assert not opened(sessions, caller("ada", "another"), b"x"), "another program is the same principal"
    assert opened(sessions, EVE, b"e")
    sessions.forget(b"0")
    assert opened(sessions, ADA, b"9")


def test_requests_that_are_opening_count() -> None:
    sessions = Sessions(2, 8, 60)
    places = [sessions.reserve(ADA, 0), sessions.reserve(ADA, 0)]
    assert None not in places
    assert sessions.reserve(ADA, 0) is None
    sessions.forget(places[0])
    assert sessions.reserve(ADA, 1000) is not None
    assert sessions.reserve(ADA, 1000) is None, "a place does not get too old"


def test_a_session_is_its_owners() -> None:
    sessions = Sessions(2, 8, 60)
    opened(sessions, ADA, b"key")
    name = sessions.begin(b"key", ADA)
    assert name is not None and "key" not in name
    for other in (EVE, caller("ada", "another")):
        with pytest.raises(Refused, match="404"):
            sessions.begin(b"key", other)
    assert sessions.begin(b"unknown", ADA) is None


def test_an_idle_session_ends_as_the_sdks_does() -> None:
    sessions = Sessions(1, 8, 60)
    opened(sessions, ADA, b"key", 0)
    sessions.begin(b"key", ADA)
    assert not sessions.reserve(ADA, 100), "a request is under way"
    sessions.end(b"key", 100)
    assert not sessions.reserve(ADA, 150)
    assert sessions.reserve(ADA, 161)
    assert sessions.begin(b"key", ADA) is None
