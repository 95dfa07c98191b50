"""Large results of scripts: what is passed on of them, and that nobody waits for them."""

import json
import random
from typing import Any

import pytest

from cellblock.base.budget import Account
from cellblock.run import results
from cellblock.run.results import LargeResult, UnreadableResult, read_result
from support.loop_steps import longest_step

ODD = [
    b'{"a":1,"a":2}',
    b'{"a":NaN}',
    b'{"a":1e999,"b":-1e999}',
    b'{"a":' + b"9" * 400 + b"}",
    b'{"a":123456789012345678901234567890}',
    b'{"a":"\\ud800","\\udc00b":[]}',
    b"[" * 127 + b"]" * 127,
    b"[" * 129 + b"]" * 129,
    b"[" * 250 + b"]" * 250,
    b'{"a":1.0,"b":1e21,"c":1e-7,"d":-0.0,"e":0.1}',
    b'{"a":"\xff"}',
    b'{"a":',
    b"",
    b'"text"',
    b"null",
]

SCRIPT: Any = None
"""Is asked for places in stacks alone."""


def made(source: random.Random, depth: int = 0) -> Any:
    kind = source.randrange(8 if depth < 4 else 6)
    if kind >= 6:
        return (
            [made(source, depth + 1) for _ in range(source.randrange(5))]
            if kind == 6
            else {source.choice("abnö\u2028"): made(source, depth + 1) for _ in range(source.randrange(4))}
        )
    return source.choice([None, True, 0, -1, 2**70, 1.5, 1e300, "", "x", "é\U0001f600", '"\\\n'])


def bodies() -> list[bytes]:
    source = random.Random(11)
    return [*ODD, *(json.dumps(made(source), ensure_ascii=False).encode() for _ in range(300))]


async def read(body: bytes) -> bytes | None:
    """What is passed on of a result; None where it is refused."""
    try:
        return (await read_result(body, SCRIPT, Account.of_one())).raw
    except UnreadableResult as error:
        assert error.diagnostic.severity == "error" and error.diagnostic.hint
        return None


async def test_a_result_is_passed_on_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded and spelled again where it has few values, and else looked at as bytes: the same is refused."""
    for body in bodies():
        monkeypatch.setattr(results, "MOST_VALUES", 200_000)
        decoded = await read(body)
        monkeypatch.setattr(results, "MOST_VALUES", -1)
        checked = await read(body)
        # Half a character is mended where it is decoded.
        assert (checked is None) is (decoded is None or b"\\ud" in body), body
        if checked is not None:
            assert checked == body and decoded is not None
            spelled = await LargeResult(checked, account=Account.of_one()).spelled(None, as_json=True)
            assert json.loads(b'"%s"' % (spelled.text or b"")).encode() == body


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 1_500_000 + b"1]",
        b'["\n"]',
        b'["' + b"x" * 20 + b"\xff" + b'"]',
        b'["\\udc00"]',
        b"[" * 200 + b"]" * 200,
        b"[1,]",
    ],
    ids=range(6),
)
async def test_what_not_every_reader_reads_is_no_result(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_VALUES", -1)
    assert await read(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 1_300_000 + b"1]",
        b"[" + b"1," * 8_000_000 + b"1]",
        b'["' + b"\\n" * 8_000_000 + b'"]',
        b"[" + b'{"name":"someone","n":[1,2.5]},' * 490_000 + b"1]",
    ],
    ids=["containers", "numbers", "escapes", "rows"],
)
async def test_a_result_holds_the_loop_for_no_long_step(body: bytes) -> None:
    """In CPU time of this thread, which no other process adds to; the bound is 60 ms on a machine that is quiet."""
    with longest_step() as longest:
        found = await read_result(body, SCRIPT, Account.of_one())
        await found.spelled(None)
    assert longest[0] < 0.2
