"""What stands between a client and its daemons: which requests wait, and what becomes of them when a daemon ends."""

import json
from typing import Any

import pytest

from cellblock.serve.stdio.connect import AGAIN, WHOLE_BYTES, InFlight, Refused, needs_daemon

INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
GREETED = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-06-18"}}
BIG = "x" * (2 * WHOLE_BYTES)


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def asking(key: int | str, method: str = "tools/call") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method}


def client(flight: InFlight, *messages: Any) -> None:
    for message in messages:
        flight.from_client(line(message))


def server(flight: InFlight, *messages: Any) -> None:
    for message in messages:
        assert flight.from_daemon(line(message)) == line(message)


def messages(data: bytes) -> list[Any]:
    return [json.loads(one) for one in data.splitlines()]


@pytest.fixture
def flight() -> InFlight:
    return InFlight()


def test_what_may_be_sent_twice_is_and_all_else_gets_an_error(flight: InFlight) -> None:
    client(flight, INITIALIZE)
    server(flight, GREETED)
    client(flight, INITIALIZED)
    twice = (
        "ping",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "prompts/list",
        "resources/read",
    )
    for key, method in enumerate((*twice, "server/discover"), 10):
        client(flight, asking(key, method))
    client(flight, asking("20"), asking(20), asking(21, "subscriptions/listen"))
    assert [
        (one["id"], one["error"]["code"], one["error"]["message"]) for one in messages(flight.lost("it went"))
    ] == [(key, -32000, "it went") for key in ("20", 20, 21)]
    again = messages(flight.again())
    assert again[:2] == [{**INITIALIZE, "id": AGAIN}, INITIALIZED]
    assert [one["id"] for one in again[2:]] == list(range(10, 17))
    assert flight.from_daemon(line({**GREETED, "id": AGAIN})) == b""
    server(flight, *({"jsonrpc": "2.0", "id": key, "result": {}} for key in range(10, 17)))
    assert not flight.waits


def test_a_client_that_was_not_greeted_yet_is_greeted_by_the_next(flight: InFlight) -> None:
    client(flight, INITIALIZE, INITIALIZED, asking(2, "tools/list"))
    assert flight.lost("") == b"" and not flight.answered
    assert messages(flight.again()) == [INITIALIZE, INITIALIZED, asking(2, "tools/list")]
    server(flight, GREETED)
    assert flight.answered


def test_a_client_without_a_session_has_no_greeting(flight: InFlight) -> None:
    client(flight, asking(1, "server/discover"))
    assert messages(flight.again()) == [asking(1, "server/discover")]


@pytest.mark.parametrize("said", [{"error": {"code": 1, "message": "not this version"}}, {"result": None}])
def test_a_daemon_that_does_not_greet_again_is_refused(said: dict[str, Any], flight: InFlight) -> None:
    client(flight, INITIALIZE)
    server(flight, GREETED)
    flight.lost("")
    with pytest.raises(Refused, match="it answers initialize with"):
        flight.from_daemon(line({"jsonrpc": "2.0", "id": AGAIN, **said}))


def test_what_is_cancelled_waits_no_more(flight: InFlight) -> None:
    client(flight, asking(2), asking(3), asking("3"), asking(0))
    for key in (3, 0, "x", None):
        client(flight, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": key}})
    assert [one["id"] for one in messages(flight.lost("gone"))] == [2, "3"]
    assert flight.lost("gone") == b""


def test_a_question_of_the_daemon_with_the_id_of_a_request_is_none_of_its_answers(flight: InFlight) -> None:
    client(flight, asking(2))
    server(flight, asking(2, "elicitation/create"))
    client(flight, {"jsonrpc": "2.0", "id": 2, "result": {"action": "accept"}})
    assert [one["id"] for one in messages(flight.lost("gone"))] == [2]


def test_all_that_waits_ends_when_no_daemon_comes(flight: InFlight) -> None:
    client(flight, asking(1, "ping"), asking(2, "subscriptions/listen"))
    assert not flight.quiet
    assert [one["id"] for one in messages(flight.all_ended("why"))] == [1, 2]
    assert flight.quiet and not flight.waits


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":"%s"}\n',
        b'{"id": 5, "jsonrpc": "2.0", "method": "tools/call", "params": "%s"}\n',
        b'{"method":"tools/call","params":"%s","jsonrpc":"2.0","id":5}\n',
    ],
)
def test_a_long_message_is_known_by_its_ends(text: bytes, flight: InFlight) -> None:
    flight.from_client(text % BIG.encode())
    assert [one["id"] for one in messages(flight.lost("gone"))] == [5]
    client(flight, asking(6))
    server(flight, {"jsonrpc": "2.0", "id": 6, "result": BIG})
    assert not flight.waits


@pytest.mark.parametrize(
    "data", [b"no json\n", b"\xff\n", b"[" * 5000 + b"\n", b"[]\n", b'{"id":1e999}\n', b"\n"]
)
def test_what_is_no_message_is_copied(data: bytes, flight: InFlight) -> None:
    flight.from_client(data)
    assert flight.from_daemon(data) == data
    assert flight.lost("") == flight.again() == b""


@pytest.mark.parametrize(
    ("data", "needs"),
    [
        (line(asking(1)), True),
        (line(INITIALIZED), False),
        (line(GREETED), False),
        (b"no message\n", True),
        (b" \n", False),
        (line({**asking(1), "params": BIG}), True),
        (line({"jsonrpc": "2.0", "id": 6, "result": BIG}), False),
    ],
)
def test_only_what_is_answered_needs_a_daemon(data: bytes, needs: bool) -> None:
    assert needs_daemon(data) is needs
