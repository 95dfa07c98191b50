"""The language in a worker is the language of bare Deno, save for the documented removals (section 3.5).

The cases are in tests/test262, one behaviour a file, in the format of the suite of that name. Each is run in a
worker of its own, through a broker, and in a bare Deno process of its own; how they end must be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from test262.cases import AREAS, Case, own_cases, sample, suite_cases
from test262.engines import NEVER_SETTLED, PASSED, Compared, compare
from test262.removals import IMPORTS, OWN, documented

from cellblock import Broker
from cellblock.app.assembly import front_config
from cellblock.base.settings.settings import Settings
from cellblock.serve.mcp.manual import manual
from support.entries import settings

pytestmark = pytest.mark.thorough

CASES = [case.name for case in own_cases()]
CASES_PER_AREA = 25


@pytest.fixture(scope="module")
async def outcomes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Compared]]:
    """How every case ended, by its name. All are run at once, two at a time, and reported one by one."""
    async with Broker(settings(tmp_path_factory.mktemp("language"))) as broker:
        yield {each.case.name: each for each in await compare(broker, own_cases())}


@pytest.mark.clause("3.5.a", "3.5.d")
@pytest.mark.parametrize("name", CASES)
async def test_ends_as_in_bare_deno(outcomes: dict[str, Compared], name: str) -> None:
    """Bare Deno passes; the worker passes too, or ends exactly as the table of removals says."""
    found = outcomes[name]
    assert found.bare == PASSED
    assert found.worker == (OWN[name][1] if name in OWN else PASSED)


def test_every_area_has_its_cases() -> None:
    counts = Counter(name.partition("/")[0] for name in CASES)
    assert {area for area, count in counts.items() if count >= CASES_PER_AREA} == set(AREAS)


def test_the_table_of_removals_is_the_agents_manual() -> None:
    """Every removal is about a case that exists, and stands in the manual that the agent gets."""
    text = manual(front_config(Settings()))
    for name, (words, outcome) in OWN.items():
        assert name in CASES
        assert words in text
        assert outcome != PASSED
    assert {name for name in CASES if "/removed_" in name} == set(OWN)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    """A folder laid out as the suite is, with cases of every kind that its format knows."""
    area = tmp_path / "test" / "area"
    area.mkdir(parents=True)
    harness = tmp_path / "harness"
    harness.mkdir()
    (harness / "assert.js").write_text(
        "function assert(holds) { if (!holds) throw new Test262Error('no'); }\n"
    )
    (harness / "extra.js").write_text("const extra = 1;\n")
    for name, text in {
        "async_fails": "/*---\nflags: [async]\n---*/\nsetTimeout(() => $DONE(new RangeError('late')), 1);",
        "async_passes": "/*---\nflags: [generated, async]\n---*/\nsetTimeout($DONE, 1);",
        "fails": "assert(false);",
        "includes": "/*---\nincludes:\n  - extra.js\n---*/\nassert(extra === 1);",
        "loose": "/*---\nflags: [noStrict]\n---*/\nwith ({}) {}",
        "negative_class": "/*---\nnegative:\n  phase: runtime\n  type: TypeError\n---*/\nthrow new RangeError('x');",
        "negative_runs": "/*---\nnegative:\n  phase: parse\n  type: SyntaxError\n---*/\n1;",
        "never": "/*---\nflags: [async]\n---*/\n",
        "other_realm": "$262.createRealm();",
        "relative": "const { one } = await import('./relative_FIXTURE.js'); assert(one === 1);",
        "relative_FIXTURE": "export const one = 1;",
        "rejects": "Promise.reject(new URIError('nobody'));",
    }.items():
        (area / f"{name}.js").write_text(text)
    yield tmp_path


async def test_the_runner_reads_the_suites_format(written: Path, tmp_path: Path) -> None:
    """Flags, includes, negative cases and fixtures; failures are seen as failures, on both sides."""
    cases = {case.path.stem: case for case in suite_cases(written, ["area"])}
    assert {name: case.skip for name, case in cases.items() if case.skip} == {
        "loose": "noStrict",
        "other_realm": "$262",
    }
    async with Broker(settings(tmp_path / "state")) as broker:
        results = await compare(broker, [case for case in cases.values() if case.skip is None])
    found = {each.case.path.stem: each for each in results}
    expected = {
        "async_fails": "RangeError: late",
        "async_passes": PASSED,
        "fails": "Test262Error: no",
        "includes": PASSED,
        "negative_class": "RangeError: x",
        "negative_runs": "did not throw SyntaxError",
        "never": NEVER_SETTLED,
        "rejects": PASSED,
    }
    relative = found.pop("relative")
    assert {name: each.bare for name, each in found.items()} == expected
    assert {name: each.worker for name, each in found.items()} == expected
    assert (relative.bare, documented(relative)) == (PASSED, IMPORTS)
    assert relative.worker.startswith("CodemodeError: Cannot import './relative_FIXTURE.js'")


def test_a_difference_that_no_removal_explains_is_undocumented() -> None:
    case = Case("area/x", Path("x.js"), "assert(true);")
    assert documented(Compared(case, PASSED, "TypeError: x is not a function")) is None
    assert documented(Compared(case, PASSED, "ReferenceError: eval is not defined")) is None
    uses = Case("area/x", Path("x.js"), "eval('1')")
    assert documented(Compared(uses, PASSED, "ReferenceError: eval is not defined")) == "eval"
    assert documented(Compared(uses, PASSED, NEVER_SETTLED)) is None
    data = next(case for case in own_cases() if case.name == "dynamic_import/removed_data_url")
    assert documented(Compared(data, PASSED, PASSED)) is None


def test_a_sample_is_the_same_each_time() -> None:
    cases = own_cases()
    chosen = sample(cases, 20)
    assert chosen == sample(cases, 20)
    assert 15 <= len(chosen) <= 20
    assert chosen[0] == cases[0]
    assert len({case.name.partition("/")[0] for case in chosen}) == len(AREAS)
