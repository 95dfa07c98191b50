"""What stands between a client and its daemons: which requests wait, and what becomes of them when a daemon ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.frontend.stdio.in_flight import (
    AGAIN,
    UNREAD,
    WHOLE_BYTES,
    InFlight,
    Piece,
    Pieces,
    Refused,
    needs_daemon,
)

INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
GREETED = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-06-18"}}
BIG = "x" * (2 * WHOLE_BYTES)


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def asking(key: int | str, method: str = "tools/call") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method}


def pieces(data: bytes, size: int = 10_000) -> list[Piece]:
    """As they are cut of data that is read in such steps."""
    cut = Pieces()
    found = [piece for at in range(0, len(data), size) for piece in cut.of(data[at : at + size])]
    return [*found, *cut.last()]


def client(flight: InFlight, *messages: Any) -> None:
    for message in messages:
        assert flight.from_client(Piece(line(message))) == (line(message), b"")


def server(flight: InFlight, *messages: Any) -> None:
    for message in messages:
        assert flight.from_daemon(Piece(line(message))) == line(message)


def messages(data: bytes) -> list[Any]:
    return [json.loads(one) for one in data.splitlines()]


def test_pieces_are_the_lines_and_all_that_is_read() -> None:
    data = b"a\n\n" + b"b" * (3 * WHOLE_BYTES) + b"\nc\nd"
    for size in (1, 7, 1000, WHOLE_BYTES, len(data)):
        found = pieces(data, size)
        assert b"".join(piece.data for piece in found) == data + b"\n"
        for before, piece in zip([Piece(b""), *found], found, strict=False):
            assert piece.begins == before.ends
            assert piece.ends == piece.data.endswith(b"\n")
        assert len(found) < 5 or all(len(piece.data) <= WHOLE_BYTES + size for piece in found)
    assert pieces(b"") == []


def test_what_may_be_sent_twice_is_and_all_else_gets_an_error() -> None:
    flight = InFlight()
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
    told = messages(flight.lost("it went"))
    assert [(one["id"], one["error"]["code"], one["error"]["message"]) for one in told] == [
        (key, -32000, "it went") for key in ("20", 20, 21)
    ]
    again = messages(flight.again())
    assert again[:2] == [{**INITIALIZE, "id": AGAIN}, INITIALIZED]
    assert [one["id"] for one in again[2:]] == list(range(10, 17))
    assert flight.from_daemon(Piece(line({**GREETED, "id": AGAIN}))) == b""
    server(flight, *({"jsonrpc": "2.0", "id": key, "result": {}} for key in range(10, 17)))
    assert not flight.waits


def test_a_client_that_was_not_greeted_yet_is_greeted_by_the_next() -> None:
    flight = InFlight()
    client(flight, INITIALIZE, INITIALIZED, asking(2, "tools/list"))
    assert flight.lost("") == b"" and not flight.answered
    assert messages(flight.again()) == [INITIALIZE, INITIALIZED, asking(2, "tools/list")]
    server(flight, GREETED)
    assert flight.answered


def test_a_client_without_a_session_has_no_greeting() -> None:
    flight = InFlight()
    client(flight, asking(1, "server/discover"))
    assert messages(flight.again()) == [asking(1, "server/discover")]


@pytest.mark.parametrize("said", [{"error": {"code": 1, "message": "not this version"}}, {"result": None}])
def test_a_daemon_that_does_not_greet_again_is_refused(said: dict[str, Any]) -> None:
    flight = InFlight()
    client(flight, INITIALIZE)
    server(flight, GREETED)
    flight.lost("")
    with pytest.raises(Refused, match="it answers initialize with"):
        flight.from_daemon(Piece(line({"jsonrpc": "2.0", "id": AGAIN, **said})))


def test_what_is_cancelled_waits_no_more_and_a_question_of_one_that_ended_is_withdrawn() -> None:
    flight = InFlight()
    client(flight, asking(2), asking(3))
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
    client(flight, cancel)
    for key in (7, 8, 9):
        server(flight, asking(key, "elicitation/create"))
    server(flight, {**cancel, "params": {"requestId": 7}})
    client(flight, {"jsonrpc": "2.0", "id": 8, "result": {"action": "accept"}})
    first, second = messages(flight.lost("gone"))
    assert first["method"] == "notifications/cancelled" and first["params"]["requestId"] == 9
    assert second["id"] == 2
    assert flight.lost("gone") == b""


def test_all_that_waits_ends_when_no_daemon_comes() -> None:
    flight = InFlight()
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
@pytest.mark.parametrize("step", [1000, 100_000])
def test_a_long_message_is_known_by_its_ends_and_is_not_changed(text: bytes, step: int) -> None:
    flight = InFlight()
    data = text % BIG.encode()
    assert b"".join(flight.from_client(piece)[0] for piece in pieces(data, step)) == data
    assert [one["id"] for one in messages(flight.lost("gone"))] == [5]
    answer = line({"jsonrpc": "2.0", "id": 6, "result": BIG})
    client(flight, asking(6))
    assert b"".join(flight.from_daemon(piece) for piece in pieces(answer, step)) == answer
    assert not flight.waits


@pytest.mark.parametrize("known_at", ["start", "end"])
def test_of_a_line_that_is_half_sent_the_rest_is_dropped_and_its_request_told(known_at: str) -> None:
    flight = InFlight()
    key, rest = '"id":5,', ""
    if known_at == "end":
        key, rest = "", ',"id":5'
    data = f'{{{key}"method":"tools/call","params":"{BIG}"{rest}}}\n'.encode()
    cut = pieces(data)
    half = len(cut) // 2
    for piece in cut[:half]:
        assert flight.from_client(piece) == (piece.data, b"")
    told = flight.lost("gone")
    for piece in cut[half:]:
        sent, more = flight.from_client(piece, connected=piece is not cut[-1])
        assert sent == b""
        told += more
    (error,) = messages(told)
    assert (error["id"], error["error"]["message"]) == (5, "gone" if known_at == "start" else UNREAD)
    client(flight, asking(6))
    assert not InFlight().waits and flight.waits


def test_a_line_that_began_without_a_daemon_is_not_sent_from_its_middle() -> None:
    flight = InFlight()
    note = f'{{"method":"notifications/x","params":"{BIG}"}}\n'.encode()
    first, *others = pieces(note)
    assert flight.from_client(first, connected=False) == (b"", b"")
    assert all(flight.from_client(piece) == (b"", b"") for piece in others)


def test_an_answer_that_is_half_written_ends_and_its_request_gets_an_error() -> None:
    flight = InFlight()
    client(flight, asking(5))
    first, *_ = pieces(line({"jsonrpc": "2.0", "id": 5, "result": BIG}))
    written = flight.from_daemon(first) + flight.lost("gone")
    half, error = written.splitlines()
    assert half == first.data
    assert json.loads(error)["id"] == 5


def test_nothing_is_told_in_the_middle_of_an_answer() -> None:
    flight = InFlight()
    up = pieces(f'{{"method":"tools/call","params":"{BIG}","id":5}}\n'.encode())
    flight.from_client(up[0])
    flight.lost("gone")
    down = pieces(line({"jsonrpc": "2.0", "id": 9, "result": BIG}))
    written = flight.from_daemon(down[0])
    for piece in up[1:]:
        assert flight.from_client(piece) == (b"", b"")
    written += b"".join(flight.from_daemon(piece) for piece in down[1:])
    assert [one["id"] for one in messages(written)] == [9, 5]


@pytest.mark.parametrize(
    "data", [b"no json\n", b"\xff\n", b"[" * 5000 + b"\n", b"[]\n", b'{"id":1e999}\n', b"\n"]
)
def test_what_is_no_message_is_copied(data: bytes) -> None:
    flight = InFlight()
    assert flight.from_client(Piece(data)) == (data, b"")
    assert flight.from_daemon(Piece(data)) == data
    assert flight.lost("") == flight.again() == b""


@pytest.mark.parametrize(
    ("message", "needs"),
    [(asking(1), True), (INITIALIZED, False), (GREETED, False), ("no message", True)],
)
def test_only_what_is_answered_needs_a_daemon(message: Any, needs: bool) -> None:
    assert needs_daemon(Piece(line(message))) is needs
    assert not needs_daemon(Piece(b" \n"))
    assert not needs_daemon(Piece(line(message), begins=False))
