"""The word with which a client comes back: whose it is, until when, and that nobody else can make one."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Sequence

import pytest

from cellblock.base.database import StoreError
from cellblock.serve.mcp.request_state import RequestStates, digest_of, text_of

RUN, ANN, BOB = "0123456789abcdef", "token:ann", "token:bob"


def states(key: bytes = b"k" * 32, now: float = 1_000.0, *others: bytes) -> RequestStates:
    async def give() -> Sequence[bytes]:
        return (key, *others)

    return RequestStates(give, lambda: now)


async def test_a_word_names_its_run_and_round_for_its_principal_until_its_time() -> None:
    word = await states().signed(RUN, ANN, 3, 60)
    assert await states().read(word, ANN) == (RUN, 3)
    assert await states(now=1_061.0).read(word, ANN) == (RUN, 3)
    assert await states(now=1_062.0).read(word, ANN) is None
    assert await states().read(word, BOB) is None
    assert await states(key=b"x" * 32).read(word, ANN) is None
    assert ANN not in base64.urlsafe_b64decode(word.split(".")[1] + "==").decode()


async def test_a_word_of_an_earlier_release_names_its_broker_too() -> None:
    payload = [RUN, 3, digest_of(ANN), 1_061, "broker-a"]
    data = json.dumps(payload, separators=(",", ":")).encode()
    word = f"v1.{text_of(data)}.{text_of(hmac.digest(b'k' * 32, data, 'sha256'))}"
    assert await states().read(word, ANN) == (RUN, 3)


async def test_while_keys_change_two_are_accepted() -> None:
    both = states(b"n" * 32, 1_000.0, b"k" * 32)
    assert await both.read(await states().signed(RUN, ANN, 3, 60), ANN) == (RUN, 3)
    new = await both.signed(RUN, ANN, 3, 60)
    assert await states(b"n" * 32).read(new, ANN) == (RUN, 3)
    assert await states().read(new, ANN) is None


async def test_nothing_but_the_word_itself_is_taken() -> None:
    word = await states().signed(RUN, ANN, 1, 60)
    version, body, tag = word.split(".")
    payload = json.loads(base64.urlsafe_b64decode(body + "=="))
    other = (
        base64.urlsafe_b64encode(json.dumps([*payload[:1], 2, *payload[2:]]).encode()).decode().rstrip("=")
    )
    wrong = [
        "",
        ".",
        "..",
        "v1",
        "v1..",
        f"v2.{body}.{tag}",
        f"{version}.{other}.{tag}",
        f"{word}=",
        f" {word}",
        word * 9,
    ]
    wrong += [word[:at] + ("A" if word[at] != "A" else "B") + word[at + 1 :] for at in range(3, len(word))]
    wrong += [f"{version}.{body}.{tag[:-1]}", f"{version}.{body}.\u00e9", f"{version}.{tag}.{tag}"]
    for one in wrong:
        assert await states().read(one, ANN) is None, one


async def test_without_a_key_words_are_good_in_this_process() -> None:
    async def none() -> Sequence[bytes]:
        raise StoreError("there is no disk")

    here, there = RequestStates(none), RequestStates(none)
    word = await here.signed(RUN, ANN, 1, 60)
    assert await here.read(word, ANN) == (RUN, 1)
    assert await there.read(word, ANN) is None


@pytest.mark.parametrize("name", ["stdio:\ud800", "oauth:" + "x" * 4_000])
async def test_any_principal_has_words(name: str) -> None:
    word = await states().signed(RUN, name, 1, 60)
    assert len(word) < 512 and await states().read(word, name) == (RUN, 1)
