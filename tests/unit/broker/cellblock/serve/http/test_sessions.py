"""Whose sessions are open, and what their ids say of their broker."""

from typing import Any

import pytest

from cellblock.serve.http.caller import Caller
from cellblock.serve.http.sessions import NOT_HERE, SessionNames, Sessions


def caller(principal: str, program: str = "editor") -> Caller:
    return Caller(principal, program, principal, principal)


ADA = caller("ada")


def opened(sessions: Sessions, opener: Caller, key: bytes, now: float = 0.0) -> bool:
    place = sessions.reserve(opener, now)
    if place is None:
        return False
    sessions.forget(place)
    sessions.opened(key, opener, now)
    return True


def test_requests_that_are_opening_count() -> None:
    sessions = Sessions(2, 60)
    places = [sessions.reserve(ADA, 0), sessions.reserve(ADA, 0)]
    assert None not in places
    assert sessions.reserve(ADA, 0) is None
    sessions.forget(places[0])
    assert sessions.reserve(ADA, 1000) is not None
    assert sessions.reserve(ADA, 1000) is None, "a place does not get too old"


def test_an_idle_session_ends_as_the_sdks_does() -> None:
    sessions = Sessions(1, 60)
    opened(sessions, ADA, b"key", 0)
    sessions.begin(b"key", ADA)
    assert not sessions.reserve(ADA, 100), "a request is under way"
    sessions.end(b"key", 100)
    assert not sessions.reserve(ADA, 150)
    assert sessions.reserve(ADA, 161)
    assert sessions.begin(b"key", ADA) is None


HEADER = b"mcp-session-id"


async def asked(session: bytes | None) -> tuple[list[bytes], list[bytes]]:
    """The ids of a request as the SDK sees them, and those of its answer as the client does."""
    inside: list[bytes] = []
    outside: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.extend(value for key, value in scope["headers"] if key == HEADER)
        headers = [(b"Mcp-Session-Id", inside[0] if inside else b"new"), (b"x-other", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"new"})

    async def send(message: Any) -> None:
        outside.extend(value for key, value in message.get("headers", ()) if key.lower() == HEADER)

    headers = [(b"host", b"b-1.abc"), *([(HEADER, session)] if session is not None else [])]
    await SessionNames(app, "b-1")({"type": "http", "headers": headers}, app, send)
    return inside, outside


async def test_a_new_session_gets_the_name_and_loses_it_on_its_way_in() -> None:
    assert await asked(None) == ([], [b"b-1.new"])
    assert await asked(b"b-1.abc") == ([b"abc"], [b"b-1.abc"])
    assert await asked(b"b-1.b-1.abc") == ([b"b-1.abc"], [b"b-1.b-1.abc"]), "the SDK makes no such id"


@pytest.mark.parametrize(
    "session", [b"abc", b"b-2.abc", b"B-1.abc", b"b-11.abc", b"b-1", b"", b".abc", b"b-1:abc"]
)
async def test_any_other_id_is_one_that_the_sdk_does_not_know(session: bytes) -> None:
    assert (await asked(session))[0] == [NOT_HERE]
