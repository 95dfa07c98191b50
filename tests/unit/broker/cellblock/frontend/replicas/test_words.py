from __future__ import annotations

import json

import pytest

from cellblock.base.claims import Claim
from cellblock.frontend.mcp.request_state import MAX_CHARS
from cellblock.frontend.replicas.replicas import word_in
from cellblock.frontend.replicas.words import Words, way_to

WORDS = Words([b"k" * 32])
OTHERS = Words([b"o" * 32])


def test_a_session_names_its_broker() -> None:
    word = WORDS.session(b"one", "broker-a")
    assert WORDS.read_session(word) == (b"one", "broker-a")
    assert word.isascii() and word.decode().isprintable() and b" " not in word


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b".",
        b"one",
        b"one.broker-a",
        b"one.broker-a.",
        WORDS.session(b"one", "broker-b").replace(b"broker-b", b"broker-a"),
        WORDS.session(b"two", "broker-a").replace(b"two", b"one"),
        WORDS.session(b"one", "broker-a")[:-1],
        WORDS.session(b"one", "broker-a") + b"A",
        OTHERS.session(b"one", "broker-a"),
        WORDS.mark("one", "broker-a"),
        WORDS.session(b"x" * 300, "broker-a"),
        b"\xff" * 40,
    ],
)
def test_forged_sessions(forged: bytes) -> None:
    assert WORDS.read_session(forged) is None


def test_a_way_is_for_one_server_of_one_broker_in_one_epoch() -> None:
    way = ("broker-a", "broker-b", "browser", 7)
    tag = WORDS.way(*way)
    assert WORDS.is_way(tag, *way) and not OTHERS.is_way(tag, *way)
    for other in (
        ("broker-b", "broker-b", "browser", 7),
        ("broker-a", "broker-a", "browser", 7),
        ("broker-a", "broker-b", "browsers", 7),
        ("broker-a", "broker-b", "browser", 8),
    ):
        assert not WORDS.is_way(tag, *other)
    for forged in (b"", b"\xff", WORDS.mark("broker-a", "::1"), tag[:-1]):
        assert not WORDS.is_way(forged, *way)
    written = WORDS.address("broker-a", "https://10.0.0.5:7433")
    led = way_to(WORDS, "broker-b", "cell.example", "bröwser", Claim("broker-a", written, 7, False))
    assert led is not None and (led.broker, led.name) == ("broker-a", "cell.example")
    assert led.url == f"https://10.0.0.5:7433/replica/{'bröwser'.encode().hex()}"
    shown = led.headers["x-cellblock-way"].split()
    assert shown[1:] == ["broker-b", "7"]
    assert WORDS.is_way(shown[0].encode(), "broker-a", "broker-b", "bröwser", 7)
    for foreign in (
        "https://10.0.0.5:7433",
        written.replace("5", "6", 1),
        OTHERS.address("broker-a", "https://a"),
    ):
        assert way_to(WORDS, "broker-b", None, "bröwser", Claim("broker-a", foreign, 7, False)) is None


def test_a_mark_is_for_one_broker_and_one_address() -> None:
    mark = WORDS.mark("broker-a", "::1")
    assert WORDS.read_mark(mark, "broker-a") == "::1"
    assert WORDS.read_mark(mark, "broker-b") is None
    assert WORDS.read_mark(mark.replace(b"::1", b"::2"), "broker-a") is None
    assert OTHERS.read_mark(mark, "broker-a") is None
    for forged in (b"", b" ", b"\xff \xff", WORDS.session(b"broker-a", "::1")):
        assert WORDS.read_mark(forged, "broker-a") is None


def test_an_address_is_one_brokers() -> None:
    written = WORDS.address("broker-a", "https://10.0.0.1:7433")
    assert WORDS.read_address("broker-a", written) == "https://10.0.0.1:7433"
    assert WORDS.read_address("broker-b", written) is None
    assert WORDS.read_address("broker-a", written.replace("10.0.0.1", "10.0.0.2")) is None
    assert OTHERS.read_address("broker-a", written) is None
    for forged in ("", " ", "https://10.0.0.1:7433", "https://10.0.0.1:7433 é", "x y z"):
        assert WORDS.read_address("broker-a", forged) is None


def body(**params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def test_a_word_is_found_in_a_body() -> None:
    for whole in (body(requestState="v1.a_b-c.d"), body(requestState="v1.a_b-c.d").replace(b" ", b"")):
        assert word_in(whole) == "v1.a_b-c.d"


def test_what_a_text_says_is_no_word() -> None:
    said = json.dumps({"requestState": "v1.a.b"})
    for text in (said, json.dumps(said), '"requestState": "v1.a.b"'):
        assert word_in(body(arguments={"code": text})) is None
    assert word_in(body(requestState="x" * (MAX_CHARS + 1))) is None
    assert word_in(body(requestState=None)) is None
    assert word_in(b'"requestState"' + b" " * 1_000_000 + b'"requestState"' * 100_000) is None


def test_of_many_members_that_are_none_a_few_are_looked_at() -> None:
    """Each could be nearly as long as a word: megabytes of them would hold the loop for a quarter of a second."""
    nearly = b'"requestState" : "' + b"a" * MAX_CHARS + b"a"
    word = b'"requestState": "v1.a.b"'
    assert word_in(nearly * 10 + word) == "v1.a.b"
    assert word_in(nearly * 1000 + word) is None


def test_while_keys_change_two_are_accepted() -> None:
    both = Words([b"k" * 32, b"o" * 32])
    for word in (WORDS.session(b"one", "broker-a"), OTHERS.session(b"one", "broker-a")):
        assert both.read_session(word) == (b"one", "broker-a")
    assert both.session(b"one", "broker-a") == WORDS.session(b"one", "broker-a")
    for mark in (WORDS.mark("broker-a", "::1"), OTHERS.mark("broker-a", "::1")):
        assert both.read_mark(mark, "broker-a") == "::1"
        assert both.read_mark(mark, "broker-b") is None
