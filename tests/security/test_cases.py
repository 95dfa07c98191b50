"""Every hostile script of the case files, with a neighbour at the same time and, where it could have the same process,
one right after.

Cellblock's goal 4: nothing a script does reaches past its run.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from cellblock import Broker, RunResponse
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
