"""Every hostile script of the case files, with a neighbour at the same time and, where it could have the same process,
one right after.

Cellblock's goal 4: nothing a script does reaches past its run. And oversized and malformed `codemode.run` requests,
which are refused with a hint before a worker is used (section 3.2); each is a function, so that the large ones are made
only when they are sent.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

from cellblock import Broker, InvalidRequest, RunResponse
from conformance.world import contract_server
from security.cases import DEFAULT, Case, shown
from security.cases_naming import TOOLS
from security.families import ALL, FAMILIES
from support.brokers import ready
from support.entries import REUSE, plain_server, settings
from support.reused import reusing
from support.waits import within

NEIGHBOUR = """
    import { echo } from "@codemode/servers/plain";
    console.log("neighbour");
    globalThis.__codemode_result__ = {
        said: await echo({ n: 7 }),
        clean: !("planted" in globalThis) && !("planted" in {}) && !("planted" in echo) && !("planted" in console),
        code: typeof globalThis.Deno,
        sum: [1, 2, 3].map((n) => n * 2).reduce((a, b) => a + b),
    };
"""

USED = 0.2
"""Of all runs with `--reuse`, at least so many have a used process: most hostile scripts end theirs."""

COSTLY = {
    "exhaustion/memory: promise flood with payload",
    "exhaustion/memory: pending promises",
    "exhaustion/memory: errors with stacks",
    "exhaustion/memory: symbols",
    "exhaustion/memory: regular expression results",
    "exhaustion/memory: timers",
    "exhaustion/memory: map",
    "exhaustion/memory: set of strings",
    "exhaustion/memory: sparse arrays",
    "exhaustion/memory: typed arrays of doubles",
    "exhaustion/memory: structured clones",
    "exhaustion/memory: search parameters",
    "exhaustion/result: a million keys",
    "exhaustion/result: grows by sharing",
    "exhaustion/discovery: one after the other",
}
"""Take seconds of CPU each and reach a limit that others reach in a fraction of one."""

LIGHT = ("escape/", "exfiltration/", "naming/")
"""Families of scripts that end by themselves, so that several at once take nothing from each other."""

TOGETHER = 8

CALL_BOUND_MS = 3000
"""Shortens the upstream answers that never come."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory."""
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
async def broker(folder: Path) -> AsyncIterator[Broker]:
    """A broker with an honest server, a hostile one, and Python tools with hostile names."""
    servers = {"plain": plain_server(), "hostile": plain_server(), "contract": contract_server()}
    config = settings(folder, servers, upstream={"call_timeout_ms": CALL_BOUND_MS})
    async with ready(config, tools=TOOLS) as started:
        assert list(started.catalog.servers) == ["plain", "hostile", "contract", "local"]
        with reusing(USED, started):
            yield started
        undisturbed(await within(started.run(NEIGHBOUR)))


def undisturbed(response: RunResponse) -> None:
    """What the neighbour must always see."""
    wanted = {"said": '{"n": 7}', "clean": True, "code": "undefined", "sum": 12}
    # The hostile scripts are the same client's, which is told late what is wrong with them.
    own = [one for one in response.diagnostics if not one.message.startswith("In an earlier script of yours")]
    assert (response.result, own) == (wanted, []), shown(response)
    assert [entry.message for entry in response.logs] == ["neighbour"], shown(response)
    assert [(entry.tool_name, entry.ok) for entry in response.tool_trace] == [("echo", True)]


def decent(response: RunResponse, folder: Path) -> None:
    """What holds for every response: it is JSON in UTF-8, of bounded size, and names no path of this machine."""
    whole = response.as_json()
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    whole.pop("result")
    assert len(json.dumps(whole)) < 1_000_000
    for private in (str(folder), str(Path(__file__).parents[2]), "ext:core/0", "ext:deno", "file:///tmp"):
        assert private not in text, f"{private} in {shown(response)}"


def groups() -> Iterator[ParameterSet]:
    """All cases: what costs nothing in groups that have one neighbour, every other case alone."""
    light = [case for case in ALL if case.name.startswith(LIGHT) and case.limits is DEFAULT]
    for first in range(0, len(light), TOGETHER):
        group = light[first : first + TOGETHER]
        yield pytest.param(group, id=f"{group[0].name} and {len(group) - 1} more")
    for case in ALL:
        if case not in light:
            yield pytest.param(
                [case], id=case.name, marks=[pytest.mark.thorough] if case.name in COSTLY else []
            )


@pytest.mark.parametrize("cases", [*groups()])
async def test_hostile_scripts_are_contained_and_their_neighbours_do_not_notice(
    broker: Broker, folder: Path, cases: list[Case]
) -> None:
    beside, *hostile = await asyncio.gather(
        within(broker.run(NEIGHBOUR), 90),
        *(within(broker.run(case.code, limits=case.limits), 90) for case in cases),
    )
    after = await within(broker.run(NEIGHBOUR)) if REUSE else beside
    for case, response in zip(cases, hostile, strict=True):
        try:
            case.expect(response)
            decent(response, folder)
        except AssertionError as error:
            error.add_note(f"the case is: {case.name}")
            raise
    undisturbed(beside)
    undisturbed(after)


def test_there_are_at_least_120_distinct_cases_with_unique_names() -> None:
    assert len({case.name for case in ALL}) == len(ALL) >= 120
    assert len({(case.code, tuple(case.limits.items())) for case in ALL}) == len(ALL)


def test_each_family_has_its_name_and_more_than_a_token_case() -> None:
    assert set(FAMILIES) == {"escape", "exfiltration", "exhaustion", "naming", "upstream"}
    for family, cases in FAMILIES.items():
        assert all(case.name.startswith(f"{family}/") for case in cases)
        assert len(cases) >= 20, family


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
async def bare_broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker without servers."""
    async with Broker(settings(tmp_path_factory.mktemp("requests"))) as started:
        yield started
        await runs(started)


async def runs(broker: Broker) -> None:
    """What must work whatever was asked before."""
    response = await within(broker.run("globalThis.__codemode_result__ = 6 * 7"))
    assert (response.result, response.diagnostics) == (42, [])


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused(bare_broker: Broker, name: str) -> None:
    request: Any = MALFORMED[name]()
    with pytest.raises(InvalidRequest) as caught:
        await within(bare_broker.run_request(request))
    assert caught.value.hint and len(str(caught.value).encode()) < 1000


@pytest.mark.parametrize("name", ODD_BUT_FINE)
async def test_an_odd_request_is_answered_and_its_neighbour_runs(bare_broker: Broker, name: str) -> None:
    """A response in any case: never an exception from inside, never silence."""
    make, codes = ODD_BUT_FINE[name]
    response, _ = await asyncio.gather(within(bare_broker.run_request(make())), runs(bare_broker))
    said = {found.code for found in response.diagnostics}
    assert said <= set(codes) and bool(said) == bool(codes), response.as_json()


def test_there_are_at_least_40() -> None:
    assert len(MALFORMED) + len(ODD_BUT_FINE) >= 40
    assert not set(MALFORMED) & set(ODD_BUT_FINE)
