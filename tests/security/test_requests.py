"""Oversized and malformed `codemode.run` requests: refused with a hint before a worker is used (section 3.2).

Each request is a function, so that the large ones are made only when they are sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from cellblock import Broker, InvalidRequest
from support.entries import settings
from support.waits import within

Make = Callable[[], dict[str, Any]]

FINE: Final = "globalThis.__codemode_result__ = 1"

TOO_DEEP: Final = ("SCRIPT_TOO_COMPLEX",)
"""Nesting would use up the native stack of the worker's parser, so no worker gets the script."""


def _limits(**limits: Any) -> Make:
    return lambda: {"code": FINE, "limits": limits}


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


MALFORMED: Final[dict[str, Make]] = {
    "nothing": dict,
    "code is missing": lambda: {"limits": {}},
    "code is null": lambda: {"code": None},
    "code is a number": lambda: {"code": 1},
    "code is a list": lambda: {"code": ["1"]},
    "code is bytes": lambda: {"code": b"1"},
    "code of 20 MB": lambda: {"code": "//" + "x" * 20_000_000},
    "code of 8 MB of letters of four bytes": lambda: {"code": "//" + "\U0001f4a5" * 2_000_000},
    "unknown field": lambda: {"code": FINE, "env": {"A": "B"}},
    "unknown field with a long name": lambda: {"code": FINE, "x" * 1_000_000: 1},
    "unknown field with a prototype's name": lambda: {"code": FINE, "__proto__": {"code": "2"}},
    "unknown field that is half a surrogate": lambda: {"code": FINE, "\ud800": 1},
    "limits is a list": lambda: {"code": FINE, "limits": []},
    "limits is a string": lambda: {"code": FINE, "limits": "timeoutMs=1"},
    "timeoutMs is zero": _limits(timeoutMs=0),
    "timeoutMs is negative": _limits(timeoutMs=-1),
    "timeoutMs is a string": _limits(timeoutMs="1000"),
    "timeoutMs is true": _limits(timeoutMs=True),
    "timeoutMs is a fraction": _limits(timeoutMs=0.5),
    "timeoutMs is infinite": _limits(timeoutMs=float("inf")),
    "timeoutMs is no number": _limits(timeoutMs=float("nan")),
    "timeoutMs is deeply nested": lambda: {"code": FINE, "limits": {"timeoutMs": _nested(10_000)}},
    "maxMemoryBytes is one": _limits(maxMemoryBytes=1),
    "maxLogBytes is negative": _limits(maxLogBytes=-1),
    "maxToolCalls is an object": _limits(maxToolCalls={}),
    "maxCpuMs is zero": _limits(maxCpuMs=0),
    "capabilities is a string": lambda: {"code": FINE, "requestedCapabilities": "plain"},
    "capabilities holds a number": lambda: {"code": FINE, "requestedCapabilities": ["a", 1]},
    "a thousand capabilities": (
        lambda: {"code": FINE, "requestedCapabilities": [f"none{n}" for n in range(1000)]}
    ),
    "capability of 100,000 characters": lambda: {"code": FINE, "requestedCapabilities": ["x" * 100_000]},
}
"""Each must raise InvalidRequest."""

ODD_BUT_FINE: Final[dict[str, tuple[Make, tuple[str, ...]]]] = {
    "empty code": (lambda: {"code": ""}, ("NO_RESULT",)),
    "only a byte order mark": (lambda: {"code": "\ufeff"}, ("NO_RESULT",)),
    "a nul byte": (lambda: {"code": "\x00"}, ("SYNTAX_ERROR",)),
    "half a surrogate in a string": (lambda: {"code": "globalThis.__codemode_result__ = '\ud800'"}, ()),
    "only line terminators": (lambda: {"code": "\u2028\u2029\r\n" * 1000}, ("NO_RESULT",)),
    "a million open brackets": (lambda: {"code": "[" * 1_000_000}, TOO_DEEP),
    "a hundred thousand open functions": (lambda: {"code": "(()=>{" * 100_000}, TOO_DEEP),
    "ten thousand imports that lead nowhere": (
        lambda: {"code": "\n".join(f'import "node:x{n}";' for n in range(10_000))},
        ("IMPORT_FAILURE", "SCRIPT_TOO_COMPLEX"),
    ),
    "a specifier of a megabyte": (lambda: {"code": f'import "{"x" * 900_000}";'}, ("IMPORT_FAILURE",)),
    "open template": (lambda: {"code": "`${" * 10_000}, TOO_DEEP),
    "open string": (lambda: {"code": "'" + "import(`node:fs`)" * 1000}, ("SYNTAX_ERROR",)),
    "binary rubbish": (
        lambda: {"code": bytes(range(256)).decode("latin-1") * 100},
        ("SYNTAX_ERROR", "SCRIPT_TOO_COMPLEX"),
    ),
    "huge limits": (_limits(timeoutMs=10**30, maxToolCalls=2**63), ("LIMIT_CLAMPED",)),
    "unknown limits": (_limits(__proto__=1, constructor="x", **{"x" * 1000: 1}), ("LIMIT_UNKNOWN",)),
    "as many capabilities as there may be": (
        lambda: {"code": FINE, "requestedCapabilities": [f"none{n}" for n in range(200)]},
        ("CAPABILITY_UNAVAILABLE",),
    ),
    "capability with hostile text": (
        lambda: {"code": FINE, "requestedCapabilities": ["\u202e`${1}`\x00*/", "__proto__", "x" * 200]},
        ("CAPABILITY_UNAVAILABLE",),
    ),
}
"""Each gets a response; the codes are all that its diagnostics may have, at least one of them."""


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker without servers."""
    async with Broker(settings(tmp_path_factory.mktemp("requests"))) as started:
        yield started
        await neighbour(started)


async def neighbour(broker: Broker) -> None:
    """What must work whatever was asked before."""
    response = await within(broker.run("globalThis.__codemode_result__ = 6 * 7"))
    assert (response.result, response.diagnostics) == (42, [])


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused(broker: Broker, name: str) -> None:
    request: Any = MALFORMED[name]()
    with pytest.raises(InvalidRequest) as caught:
        await within(broker.run_request(request))
    assert caught.value.hint and len(str(caught.value).encode()) < 1000


@pytest.mark.parametrize("name", ODD_BUT_FINE)
async def test_an_odd_request_is_answered_and_its_neighbour_runs(broker: Broker, name: str) -> None:
    """A response in any case: never an exception from inside, never silence."""
    make, codes = ODD_BUT_FINE[name]
    response, _ = await asyncio.gather(within(broker.run_request(make())), neighbour(broker))
    said = {found.code for found in response.diagnostics}
    assert said <= set(codes) and bool(said) == bool(codes), response.as_json()


def test_there_are_at_least_40() -> None:
    assert len(MALFORMED) + len(ODD_BUT_FINE) >= 40
    assert not set(MALFORMED) & set(ODD_BUT_FINE)
