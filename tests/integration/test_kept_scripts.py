"""Kept scripts as a script meets them: child runs of a real broker, within their caller's grants and caps.

Where two brokers share a PostgreSQL, what one lets in runs at both, and nothing else does.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given as given_values, settings as settings_of_hypothesis, strategies as some

from cellblock import Broker, Diagnostic, Grant, RunResponse, tool
from cellblock.app.assembly import library_of
from cellblock.app.config.load import parse_settings
from cellblock.app.replay import replay
from cellblock.record.journal import Journal
from cellblock.record.recording import Recording
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.script_file import BadScript, Header, KeptScript, format_script
from support.entries import for_tests, settings
from support.haproxy import KEY
from support.params import mostly
from support.responses import succeeded
from support.waits import until, until_found, within

CALLS: list[str] = []


@tool(annotations={"readOnlyHint": True})
def issues(since: str) -> dict[str, list[str]]:
    "Issues since a day."
    CALLS.append(f"issues {since}")
    return {"issues": [f"{since} one", f"{since} two"]}


@tool()
def close(name: str) -> dict[str, str]:
    "Closes one."
    CALLS.append(f"close {name}")
    return {"closed": name}


MET: set[str] = set()


@tool()
async def meet(who: str) -> None:
    "Returns when the other one is there, too."
    MET.add(who)
    await until(lambda: {"caller", "child"} == MET, "both are here", 20)


@tool()
async def child_holds() -> None:
    "Returns when the child has its memory."
    await until(lambda: "child" in MET, "the child is there", 20)


REPORT = """import { issues } from "@codemode/servers/local";
const { issues: found } = await issues({ since: input.since });
console.log("found " + found.length);
globalThis.__codemode_result__ = { count: found.length, since: input.since };
"""

INPUT = {
    "type": "object",
    "properties": {"since": {"type": "string"}},
    "required": ["since"],
    "additionalProperties": False,
}

CALL = """import { weekly_report } from "@codemode/scripts";
globalThis.__codemode_result__ = await weekly_report({ since: "2026-11-02" });
"""


def kept(name: str, code: str, tools: tuple[str, ...] = ("local.issues",), **header: Any) -> KeptScript:
    """A kept script."""
    made = Header(description="What it does.", input=INPUT, tools=dict.fromkeys(tools, ""))
    return format_script(name, made.model_copy(update=header), code)


OUTSIDE = [
    'import { close } from "@codemode/servers/local"; await close({ name: input.since });',
    'const { close } = await import("@codemode/servers/" + input.since); await close({ name: "x" });',
    'const local = await import("@codemode/servers/local"); await local[input.since]({ name: "x" });',
    'import { weekly_report } from "@codemode/scripts"; await weekly_report({ since: "x" });',
    'const scripts = await import("@codemode/servers/scripts"); await scripts.weekly_report({ since: "x" });',
]

BOTH = """import { close, issues } from "@codemode/servers/local";
await issues({ since: "a" });
await close({ name: "a" });
globalThis.__codemode_result__ = 1;"""

HOLD = """const hold = (mib) => Array.from({ length: mib }, () => new Uint8Array(2 ** 20).fill(1));
"""
HOLDS = f"""import {{ meet }} from "@codemode/servers/local";
{HOLD}const held = hold(Number(input.since));
await meet({{ who: "child" }});
globalThis.__codemode_result__ = held.length;"""

HOLDING = kept("holds", HOLDS, ("local.meet",))
BURNS = kept("burns", "const end = performance.now() + 60000; while (performance.now() < end);")
SCRIPTS = [
    kept(
        "weekly_report",
        REPORT,
        output={"type": "object", "properties": {"count": {"type": "number"}}, "required": ["count"]},
    ),
    kept("odd", REPORT, output={"type": "array"}),
    kept("both", BOTH, ("local.issues", "local.close")),
    BURNS,
    kept("waits", "await new Promise((done) => setTimeout(done, 60000));"),
    HOLDING,
    kept("talks", 'for (let n = 0; n < 400; n++) console.log("c".repeat(100));'),
    kept("nests", CALL, ("scripts.weekly_report",)),
    *(kept(f"outside_{number}", code) for number, code in enumerate(OUTSIDE)),
]


@asynccontextmanager
async def serving(folder: Path, *scripts: KeptScript, **section: Any) -> AsyncIterator[Broker]:
    """A broker that knows these scripts; nothing was called yet."""
    CALLS.clear()
    given = settings(folder, **section)
    for script in scripts:
        library_of(given, Broker(given).store).approvals.approve(script)
    async with Broker(given, tools=[issues, close, meet, child_holds]) as broker:
        yield broker


@pytest.fixture(scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with serving(tmp_path_factory.mktemp("state"), *SCRIPTS) as broker:
        yield broker


@pytest.fixture
async def broker(made: Broker) -> Broker:
    CALLS.clear()
    MET.clear()
    library(made).approvals.approve(SCRIPTS[0])
    return made


def library(broker: Broker) -> Library:
    return library_of(broker.settings, broker.store)


def failure(response: RunResponse) -> Diagnostic:
    """The first error."""
    return next(one for one in response.diagnostics if one.severity == "error")


async def test_a_script_calls_a_kept_one(broker: Broker) -> None:
    response = await broker.run(CALL)
    assert succeeded(response) == {"count": 2, "since": "2026-11-02"}
    assert CALLS == ["issues 2026-11-02"]
    told = [(one.server_id, one.tool_name, one.ok, one.within) for one in response.tool_trace]
    assert told == [("scripts", "weekly_report", True, None), ("local", "issues", True, "weekly_report")]
    assert response.usage.tool_calls == 2


@pytest.mark.parametrize(
    "importing",
    [
        'const { weekly_report } = await import("@codemode/scripts");',
        'import { weekly_report } from "@codemode/servers/scripts";',
        'const name = "scripts"; const { weekly_report } = await import("@codemode/" + name);',
    ],
)
async def test_it_can_be_imported_in_each_way(broker: Broker, importing: str) -> None:
    code = f'{importing} globalThis.__codemode_result__ = (await weekly_report({{ since: "x" }})).count;'
    assert succeeded(await broker.run(code)) == 2


async def test_it_is_known_where_tools_are(broker: Broker) -> None:
    code = """import { describe, searchTools } from "@codemode/discovery";
    const found = await searchTools("weekly report");
    globalThis.__codemode_result__ = { said: await describe("scripts"), found: found.results[0].toolName };"""
    found = succeeded(await broker.run(code))
    assert "weekly_report(" in found["said"] and "since: string" in found["said"]
    assert found["found"] == "weekly_report"
    wrong = CALL.replace("2026-11-02", "x").replace('since: "x"', "since: 3")
    assert "string" in failure(await broker.run(wrong, typecheck="before")).message
    assert CALLS == []


@pytest.mark.parametrize(
    ("before", "after", "limits", "said"),
    [
        ("since:", "until:", {}, "error_class='SchemaValidationError'"),
        # Whatever its header says.
        (
            "weekly_report",
            "nests",
            {},
            "was not started: a kept script that another script calls can call no other",
        ),
        ("", "", {"maxMemoryBytes": 12 << 20}, "its caller has too little left: limits.maxMemoryBytes"),
    ],
    ids=["its input is wrong", "it calls another one", "too little memory is left"],
)
async def test_it_is_refused_before_it_calls_anything(
    broker: Broker, before: str, after: str, limits: dict[str, int], said: str
) -> None:
    assert said in str(failure(await broker.run(CALL.replace(before, after), limits=limits)))
    assert CALLS == []


async def test_its_result_must_fit_its_schema(broker: Broker) -> None:
    error = failure(await broker.run(CALL.replace("weekly_report", "odd")))
    assert "does not fit its output schema" in error.message
    assert "COMPLETED" in error.message or CALLS == ["issues 2026-11-02"]


@pytest.mark.parametrize("since", ["close", "local", "x"])
@pytest.mark.parametrize("number", mostly([0, 3], range(len(OUTSIDE))))
async def test_tools_outside_its_list_are_refused(broker: Broker, number: int, since: str) -> None:
    code = CALL.replace("weekly_report", f"outside_{number}").replace("2026-11-02", since)
    assert f"outside_{number}" in failure(await broker.run(code)).message
    assert CALLS == []


async def test_it_has_no_more_than_its_caller(broker: Broker) -> None:
    call = CALL.replace("weekly_report", "both")
    assert succeeded(await broker.run(call)) == 1
    CALLS.clear()
    for narrowed in ({"tools": ["scripts.*", "local.issues"]}, {"budgets": {"local.close": 0}}):
        assert not (await broker.run(call, grants=narrowed)).ok
        assert "close a" not in CALLS


async def test_budgets_count_for_caller_and_child(broker: Broker) -> None:
    code = CALL.replace("globalThis", 'await weekly_report({ since: "b" }); globalThis')
    assert "budget" in failure(await broker.run(code, grants={"budgets": {"local.issues": 1}})).message
    assert CALLS == ["issues b"]


async def test_calls_count_for_its_caller(broker: Broker) -> None:
    code = """import { weekly_report } from "@codemode/scripts";
    for (let n = 0; n < 9; n++) await weekly_report({ since: "" + n });"""
    response = await broker.run(code, limits={"maxToolCalls": 5})
    assert "maxToolCalls" in failure(response).message
    assert len(response.tool_trace) == 5
    assert CALLS == ["issues 0", "issues 1"]


async def test_cpu_time_counts_for_its_caller(broker: Broker) -> None:
    code = """import { burns } from "@codemode/scripts";
    for (let n = 0; n < 3; n++) await burns({ since: "" }).catch(() => 0);
    const end = performance.now() + 60000; while (performance.now() < end);"""
    response = await broker.run(code, limits={"maxCpuMs": 600, "timeoutMs": 20000})
    assert failure(response).code == "SANDBOX_LIMIT"
    assert 500 <= response.usage.cpu_ms <= 900


async def test_a_caller_that_has_used_more_than_half_lends_half_of_the_rest(broker: Broker) -> None:
    work = "for (let n = 0, x = 1; n < 15e7; n++) x = (x * 7) % 1000003;\n"
    cost = (await broker.run(work)).usage.cpu_ms
    code = f"""import {{ burns }} from "@codemode/scripts";
    {work}globalThis.__codemode_result__ = await burns({{ since: "" }}).catch((error) => error.message);"""
    response = await broker.run(code, limits={"maxCpuMs": cost * 3 // 2, "timeoutMs": 40_000})
    assert 0 < int(succeeded(response).rpartition(" ")[2].rstrip(".")) < cost // 2
    assert response.usage.cpu_ms <= cost * 3 // 2


async def test_two_children_at_once_have_turns(broker: Broker) -> None:
    code = """import { burns, weekly_report } from "@codemode/scripts";
    const all = [burns, burns, weekly_report, burns].map((one) => one({ since: "x" }).catch(() => "over"));
    globalThis.__codemode_result__ = await Promise.all(all);"""
    response = await broker.run(code, limits={"maxCpuMs": 1000, "timeoutMs": 20000})
    assert succeeded(response)[0] == "over"
    assert response.usage.cpu_ms <= 1000


async def test_logs_count_for_caller_and_child(broker: Broker) -> None:
    code = """import { talks } from "@codemode/scripts";
    for (let n = 0; n < 3; n++) await talks({ since: "" });
    for (let n = 0; n < 400; n++) console.log("o".repeat(100));"""
    response = await broker.run(code, limits={"maxLogBytes": 16_000})
    assert succeeded(response) is None
    own = sum(len(entry.message) for entry in response.logs if entry.message.startswith("o"))
    # Three children have left an eighth of the part that is not for the last entries.
    assert own <= 16_000 // 4 + 16_000 * 3 // 4 // 8 + 100


MIB = 1024 * 1024
CAP = 160


async def tried(broker: Broker, before: int, child: int, during: int) -> RunResponse:
    """A caller that holds memory, then a child's with its own for as long as the caller holds more."""
    MET.clear()
    code = f"""import {{ holds }} from "@codemode/scripts";
    import {{ child_holds, meet }} from "@codemode/servers/local";
    {HOLD}const held = [hold({before})];
    const own = async () => {{
      await child_holds({{}});
      held.push(hold({during}));
      await meet({{ who: "caller" }});
    }};
    await Promise.all([holds({{ since: "{child}" }}), own()]);
    globalThis.__codemode_result__ = held.flat().length;"""
    return await broker.run(code, limits={"maxMemoryBytes": CAP * MIB, "timeoutMs": 20_000})


@pytest.mark.parametrize(("before", "child", "during"), [(10, 50, 20), (90, 20, 20), (10, 10, 50)])
async def test_memory_that_is_left_may_be_used(broker: Broker, before: int, child: int, during: int) -> None:
    assert succeeded(await tried(broker, before, child, during)) == before + during


@pytest.mark.parametrize(
    ("before", "child", "during"), [(10, 90, 0), (10, 70, 90), (100, 40, 0), (80, 0, 60)]
)
async def test_the_sum_of_memory_is_its_callers_cap(
    broker: Broker, before: int, child: int, during: int
) -> None:
    assert "maxMemoryBytes" in failure(await tried(broker, before, child, during)).message


async def test_lent_memory_comes_back(broker: Broker) -> None:
    code = f"""import {{ weekly_report }} from "@codemode/scripts";
    {HOLD}for (let n = 0; n < 3; n++) await weekly_report({{ since: "x" }});
    globalThis.__codemode_result__ = hold(130).length;"""
    assert succeeded(await broker.run(code, limits={"maxMemoryBytes": CAP * MIB})) == 130


@pytest.mark.thorough
@settings_of_hypothesis(max_examples=25, deadline=None)
@given_values(before=some.integers(0, CAP), child=some.integers(0, CAP), during=some.integers(0, CAP))
def test_no_child_and_caller_hold_more_than_the_cap_together(
    tmp_path_factory: pytest.TempPathFactory, before: int, child: int, during: int
) -> None:
    async def one() -> RunResponse:
        async with serving(tmp_path_factory.mktemp("state"), HOLDING) as broker:
            return await tried(broker, before, child, during)

    # Both stood in `meet` at once.
    assert not asyncio.run(one()).ok or before + child + during <= CAP


async def test_it_ends_with_its_caller(broker: Broker) -> None:
    response = await broker.run(CALL.replace("weekly_report", "waits"), limits={"timeoutMs": 700})
    assert failure(response).code == "SANDBOX_LIMIT"
    await until(lambda: not broker.running, "both have ended")


async def test_a_recording_with_a_child_replays_without_it(broker: Broker) -> None:
    journal = Journal()
    await broker.run_request({"code": CALL}, journal=journal)
    recording = journal.snapshot()
    assert [call.inner for call in recording.calls] == [1]
    CALLS.clear()
    assert (await replay(recording)).same
    assert CALLS == []


async def test_only_what_is_approved_runs(broker: Broker) -> None:
    library(broker).approvals.remove("weekly_report")
    assert "No version of weekly_report is approved" in failure(await broker.run(CALL)).message
    await until(
        lambda: "weekly_report" not in broker.catalog.servers["scripts"].by_export,
        "it is not offered any more",
    )
    assert "weekly_report" in failure(await broker.run(CALL)).message
    assert CALLS == []


async def test_callers_leave_their_children_a_place(tmp_path: Path) -> None:
    async with serving(tmp_path, SCRIPTS[0], pool={"capacity": 2, "queue_wait_ms": 20_000}) as broker:
        runs = [broker.run(CALL, client=f"client {number % 3}") for number in range(6)]
        responses = await asyncio.wait_for(asyncio.gather(*runs), 40)
    assert [succeeded(response)["count"] for response in responses] == [2] * 6


CLOSES = (
    'import { close } from "@codemode/servers/local";\nexport default await close({ name: input.since });'
)
GREEDY = """import * as local from "@codemode/servers/local";
const done = [];
for (const name of ["issues", "close", "issues", "close", "issues"]) {
  try { await local[name]({ since: "p", name: "p" }); done.push(name); } catch (error) { done.push(error.name); }
}
globalThis.__codemode_result__ = done;"""


@pytest.mark.thorough
@settings_of_hypothesis(max_examples=20, deadline=None)
@given_values(
    calls=some.integers(0, 8),
    tools=some.sets(some.sampled_from(["local.issues", "local.close"])),
    own=some.sets(some.sampled_from(["local.issues", "local.close"])),
    budget=some.integers(0, 3),
    read_only=some.booleans(),
)
def test_a_child_never_passes_its_callers_grants_and_caps(
    tmp_path_factory: pytest.TempPathFactory,
    calls: int,
    tools: set[str],
    own: set[str],
    budget: int,
    read_only: bool,
) -> None:
    async def tried() -> None:
        script = kept(
            "greedy", GREEDY, tuple(own), grants=Grant(read_only=read_only), input={"type": "object"}
        )
        code = (
            'import { greedy } from "@codemode/scripts"; await greedy({}).catch(() => 0); await greedy({});'
        )
        grants = {"tools": ["scripts.*", *sorted(tools)], "budgets": {"local.*": budget}}
        async with serving(tmp_path_factory.mktemp("state"), script) as broker:
            response = await broker.run(code, grants=grants, limits={"maxToolCalls": calls})
        allowed = {one.partition(".")[2] for one in tools & own} - ({"close"} if read_only else set())
        assert {one.partition(" ")[0] for one in CALLS} <= allowed
        assert len(CALLS) <= min(budget, calls) and len(response.tool_trace) <= calls

    asyncio.run(tried())


async def test_a_program_keeps_the_script_of_a_run(tmp_path: Path) -> None:
    section: dict[str, Any] = {
        "journal": "all",
        "auth": {"keyring": "off"},
        "scripts": {"dir": str(tmp_path / "kept")},
    }
    async with serving(tmp_path / "state", **section) as broker:
        code = REPORT.replace("input.since", '"2026-11-02"')
        run_id = str((await broker.run(code)).usage.run_id)
        digest = await broker.save(run_id, "report", parameters={"since": "2026-11-02"})
        script = library(broker).file("report")
        assert (script.digest, script.code) == (digest, REPORT)
        assert library(broker).approvals.get("report") is None
        # What it imports and did not call is its own, too; what a comment imports is not.
        both = code.replace("{ issues }", "{ close as shut, issues }")
        for name, more in (
            ("both", both),
            ("commented", f'{code}// import {{ close }} from "@codemode/servers/local";'),
        ):
            await broker.save(str((await broker.run(more)).usage.run_id), name)
        assert [*library(broker).file("both").header.tools] == ["local.close", "local.issues"]
        assert [*library(broker).file("commented").header.tools] == ["local.issues"]


async def test_an_approval_in_a_child_is_not_waited_for_and_one_of_the_script_is(tmp_path: Path) -> None:
    script = kept("closes", CLOSES, ("local.close",))
    for asked in ("local.close", "scripts.closes"):
        section = {"policy": {"default": {"approve": [asked]}}, "auth": {"keyring": "off"}}
        async with serving(tmp_path / asked, script, **section) as broker:
            response = await broker.run(CALL.replace("weekly_report", "closes"), durable=True)
            codes = [one.code for one in response.diagnostics]
            if asked == "local.close":
                error = failure(response)
                assert (
                    "closes failed: ToolCallError: close was not called: the user must approve"
                    in error.message
                )
                assert "not parked" in str(error.hint) and "RUN_PARKED" not in codes
                continue
            assert "RUN_PARKED" in codes and CALLS == []
            assert succeeded(await broker.resume(str(response.usage.run_id), "accepted")) == {
                "closed": "2026-11-02"
            }
    assert CALLS == ["close 2026-11-02"]


async def test_cpu_time_of_children_counts_for_a_caller_that_was_parked(tmp_path: Path) -> None:
    code = """import { burns } from "@codemode/scripts";
    import { close } from "@codemode/servers/local";
    const burn = () => burns({ since: "" }).catch((error) => error.message);
    const first = await burn();
    await close({ name: "x" });
    globalThis.__codemode_result__ = [first, await burn()];"""
    section = {"policy": {"default": {"approve": ["local.close"]}}, "auth": {"keyring": "off"}}
    async with serving(tmp_path, BURNS, **section) as broker:
        parked = await broker.run(code, durable=True, limits={"maxCpuMs": 1000, "timeoutMs": 30_000})
        said = succeeded(await broker.resume(str(parked.usage.run_id), "accepted"))
    first, second = (int(one.rpartition(" ")[2].rstrip(".")) for one in said)
    assert 400 < first <= 500
    # Half of what the first has left.
    assert second <= (1000 - first) // 2


CALL_REPORT = (
    'import { report } from "@codemode/scripts";\nglobalThis.__codemode_result__ = await report({});'
)


def version(number: int) -> KeptScript:
    return format_script("report", Header(description="x"), f"globalThis.__codemode_result__ = {number};\n")


@pytest.fixture
async def brokers(postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    section: dict[str, Any] = {
        "state": {"url": postgres_url, "key": KEY},
        "auth": {"keyring": "off"},
        "typecheck": "off",
        "scripts": {"dir": str(tmp_path / "kept")},
    }
    given = parse_settings({"cellblock": for_tests(section)})
    async with (
        Broker(given, state_dir=tmp_path / "a") as one,
        Broker(given, state_dir=tmp_path / "b") as other,
    ):
        yield one, other


def running(library: Library) -> int | None:
    """The version that is approved, as it is known here."""
    approval = library.approvals.get("report")
    return None if approval is None else int(approval.script.code.split("=")[1].rstrip(";\n "))


async def results(brokers: tuple[Broker, Broker]) -> list[Any]:
    return [(await within(broker.run(CALL_REPORT))).result for broker in brokers]


async def test_what_one_lets_in_runs_at_both_until_one_takes_it_back(brokers: tuple[Broker, Broker]) -> None:
    one, other = brokers
    await asyncio.to_thread(library(one).approvals.approve, version(1))

    async def both(wanted: list[Any]) -> bool:
        return await results(brokers) == wanted

    await until_found(lambda: both([1, 1]), "both run it", 30)
    await asyncio.to_thread(library(other).approvals.approve, version(2))
    await until_found(lambda: both([2, 2]), "both run the next version", 30)
    await asyncio.to_thread(library(other).approvals.remove, "report")
    await until_found(lambda: both([None, None]), "neither runs it", 30)


async def test_of_approvals_at_once_one_counts_at_both(brokers: tuple[Broker, Broker]) -> None:
    libraries = [library(broker) for broker in brokers]
    said: list[Any] = []
    for number in range(10):
        work = [
            asyncio.to_thread(each.approvals.approve, version(2 * number + at))
            for at, each in enumerate(libraries)
        ]
        said += await asyncio.gather(*work, return_exceptions=True)
        await until(lambda: running(libraries[0]) == running(libraries[1]), "both know the same", 30)
    refused = [one for one in said if isinstance(one, BaseException)]
    assert all(isinstance(one, BadScript) for one in refused), refused
    made = [one for one in said if not isinstance(one, BaseException)]
    # Each came behind the one that it names: none was written over unseen.
    assert len({one.before for one in made}) == len(made)

    async def both() -> bool:
        return await results(brokers) == [running(each) for each in libraries]

    await until_found(both, "both run what is approved", 30)


async def test_saves_at_once_mix_none(brokers: tuple[Broker, Broker]) -> None:
    libraries = [library(broker) for broker in brokers]

    def saved(each: Library, number: int) -> None:
        recording = Recording(
            made_by="",
            deno="",
            started_at=0.0,
            request={"code": str(number)},
            body=b"{}",
            conventions=True,
            limits={},
            message_bytes=1,
            catalog={},
            seed="0" * 64,
        )
        each.write(
            "report", Header(description="x"), str(number), Trial(recording, {"n": number}, {}), replace=True
        )

    await asyncio.gather(*(asyncio.to_thread(saved, libraries[number % 2], number) for number in range(20)))
    file = libraries[0].file("report")
    trials = [trial for each in libraries if (trial := each.trial(file)) is not None]
    assert [trial.input for trial in trials] == [{"n": int(file.code)}]


async def test_a_changed_byte_runs_at_none(brokers: tuple[Broker, Broker], postgres_url: str) -> None:
    await asyncio.to_thread(library(brokers[0]).approvals.approve, version(1))
    await until(lambda: library(brokers[1]).approvals.get("report") is not None, "the other knows it", 30)
    for at in (5, 60):
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            changed = connection.execute(
                "UPDATE cellblock.shared SET version = version + 1000, "
                "body = set_byte(body, %s, get_byte(body, %s) # 1) WHERE kind = 'scripts' AND name = 'report'",
                (at, at),
            )
            assert changed.rowcount == 1
        # By a write of a broker, all see that there is something new.
        other = format_script(f"other_{at}", Header(description="x"), "1")
        await asyncio.to_thread(library(brokers[1]).approvals.approve, other)
        for each in map(library, brokers):
            await until(lambda each=each: each.approvals.get("report") is None, "it is seen", 30)
        assert await results(brokers) == [None, None]
