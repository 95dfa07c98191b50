"""Parked runs of an embedded broker: what is asked, what an answer is for, what counts over parks, and what they give
back."""

import asyncio
import gc
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, Grantee, InvalidRequest, Question, RunResponse, Verdict, tool
from cellblock.app.config.load import parse_settings
from cellblock.base.budget import CLIENT_BYTES
from cellblock.base.questions import Given
from cellblock.base.settings.sections import MIB
from cellblock.base.state_dir import JOURNALS
from cellblock.base.store import LocalStore
from cellblock.record.journal import JournalBudget, NotYet
from cellblock.record.journals import Journals, open_store
from cellblock.record.kept import Keeper
from cellblock.record.recording import Recording
from cellblock.record.store import JournalStore
from support.brokers import no_process, ready
from support.entries import entry, for_tests, forked_server
from support.local_tools import IMPORTS, MADE, broker_on as broker_with_tools, read, write
from support.params import mostly
from support.waits import until, until_found, within

WRITES = "globalThis.__codemode_result__ = await write({ n: 1 });"

broker_on = partial(
    broker_with_tools, policy={"default": {"approve": ["local.write"], "budgets": {"local.*": 4}}}
)


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    MADE.clear()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with broker_on(tmp_path) as made:
        yield made


async def parked(broker: Broker, code: str, **options: Any) -> str:
    response = await within(broker.run(IMPORTS + code, durable=True, **options))
    assert response.parked and response.ok, response
    assert [entry.code for entry in response.diagnostics] == ["RUN_PARKED"]
    assert response.usage.run_id is not None
    return response.usage.run_id


async def until_kept(broker: Broker, run_id: str, outcome: str) -> None:
    """Waits until a run is kept with this outcome."""

    async def is_so() -> bool:
        head = await broker.keeper.run(run_id)
        return head is not None and head["outcome"] == outcome

    await until_found(is_so, f"its outcome is {outcome}")


async def to_its_end(broker: Broker, response: RunResponse) -> tuple[RunResponse, int]:
    """Approves what a run asks for until its end; its response then, and how often it was parked."""
    parks = 0
    while response.parked:
        parks += 1
        response = await within(broker.resume(str(response.usage.run_id), "accepted"))
    return response, parks


async def test_answers_are_for_single_calls(broker: Broker) -> None:
    code = """
const got = await Promise.allSettled([1, 2, 3].map((n) => write({ n })));
globalThis.__codemode_result__ = got.map((one) => one.value?.result ?? one.reason.code);
"""
    run_id = await parked(broker, code)
    (waiting,) = await broker.parked()
    assert [question.input for question in waiting.questions] == [f'{{"n":{n}}}' for n in (1, 2, 3)]
    first, second, third = (question.call for question in waiting.questions)
    response = await within(broker.resume(run_id, {first: "accepted", 99: "accepted"}))
    assert response.parked and MADE == {}
    # What is answered stays so.
    response = await within(
        broker.resume(run_id, {first: "declined", second: "declined", third: "cancelled"})
    )
    assert response.result == [10, "APPROVAL_DECLINED", "APPROVAL_CANCELLED"], response
    assert MADE == {"write 1": 1}
    with pytest.raises(InvalidRequest, match="No run 0000000000000000 waits"):
        await broker.resume("0" * 16, "accepted")


@pytest.mark.parametrize("refused", [1, 2])
async def test_what_is_allowed_is_made_though_what_is_refused_beside_it_ends_the_script(
    broker: Broker, refused: int
) -> None:
    code = """
await read({ n: 1 });
await Promise.all([1, 2].map((n) => write({ n })));
"""
    run_id = await parked(broker, code)
    (waiting,) = await broker.parked()
    before = await broker.keeper.run(run_id)
    answers: dict[int, Given] = {
        question.call: "declined" if n == refused else "accepted"
        for n, question in enumerate(waiting.questions, 1)
    }
    response = await within(broker.resume(run_id, answers))
    assert [entry.code for entry in response.diagnostics] == ["UNCAUGHT_EXCEPTION"], response
    said = ["ok", "ok", "ok"]
    said[refused] = "refused by a person"
    assert [entry.error or "ok" for entry in response.tool_trace] == said
    assert {"read 1": 1, f"write {3 - refused}": 1} == MADE
    # It is kept with all of its calls, of both of its processes, and is still the same run.
    kept = await broker.keeper.run(run_id)
    assert before is not None and kept is not None
    assert [(step["tool"], step["error"] or "ok") for step in kept["timeline"]] == list(
        zip(("read", "write", "write"), said, strict=True)
    )
    assert [head["calls"] for head in await broker.keeper.recent()] == [3]
    assert (kept["client"], kept["acceptedAt"]) == (before["client"], before["acceptedAt"])


async def test_budgets_calls_and_logs_count_once_over_parks(broker: Broker) -> None:
    code = """
let said = [];
for (let n = 1; n <= 6; n++) {
    console.log(`call ${n}`);
    try { said.push((await write({ n })).result); } catch (error) { said.push(error.code); }
}
globalThis.__codemode_result__ = said;
"""
    response, parks = await to_its_end(broker, await within(broker.run(IMPORTS + code, durable=True)))
    assert parks == 4 and response.usage.resumed == 4
    assert response.result == [10, 20, 30, 40, "BUDGET_USED_UP", "BUDGET_USED_UP"]
    assert [entry.message for entry in response.logs] == [f"call {n}" for n in range(1, 7)]
    assert max(MADE.values()) == 1 and len(response.tool_trace) == 6
    limited = broker.run(IMPORTS + code, durable=True, limits={"maxToolCalls": 2})
    response, parks = await to_its_end(broker, await within(limited))
    assert parks == 2 and [entry.code for entry in response.diagnostics] == ["SANDBOX_LIMIT"], response


async def test_a_call_counts_once_for_a_quota_however_often_its_run_is_parked(tmp_path: Path) -> None:
    code = """
const got = await Promise.allSettled([1, 2, 3].map((n) => write({ n })));
for (const n of [4, 5]) got.push(...await Promise.allSettled([write({ n })]));
globalThis.__codemode_result__ = got.map((one) => one.value?.result ?? one.reason.code);
"""
    quota = {"calls": 4, "per_ms": 31 * 86_400_000, "strict": True}
    policy = {"default": {"approve": ["local.write"]}, "quotas": {"default": {"local.write": quota}}}
    async with broker_on(tmp_path, policy=policy) as broker:
        run_id = await parked(broker, code)
        (waiting,) = await broker.parked()
        for question in waiting.questions:
            # The others wait on.
            response = await within(broker.resume(run_id, {question.call: "accepted"}))
        response, _ = await to_its_end(broker, response)
    assert response.result == [10, 20, 30, 40, "QUOTA_USED_UP"], response


async def test_a_plan_asks_about_what_nobody_says_that_it_only_reads(broker: Broker) -> None:
    code = """
const first = await read({ n: 1 });
await Promise.all([write({ n: first.result }), write({ n: 2 })]);
await write({ n: 3 });
globalThis.__codemode_result__ = "done";
"""
    response = await within(broker.run(IMPORTS + code, plan=True))
    assert response.parked
    (waiting,) = await broker.parked()
    assert [question.tool for question in waiting.questions] == ["read"] and MADE == {}
    response = await within(broker.resume(waiting.id, "accepted"))
    (waiting,) = await broker.parked()
    assert [(one.tool, one.input) for one in waiting.questions] == [
        ("write", '{"n":1}'),
        ("write", '{"n":2}'),
    ]
    response, parks = await to_its_end(broker, response)
    assert (response.result, parks, sum(MADE.values())) == ("done", 2, 4)


async def test_a_plan_runs_what_reads_and_asks_about_the_others_together(tmp_path: Path) -> None:
    (tmp_path / "overlays").mkdir(mode=0o700)
    (tmp_path / "overlays" / "local.toml").write_text('[tools.read]\nclass = "read"\n')
    code = """
const first = await read({ n: 1 });
const got = await Promise.all([write({ n: first.result }), read({ n: 2 }), write({ n: 3 })]);
globalThis.__codemode_result__ = got.map((one) => one.result);
"""
    async with broker_on(tmp_path, policy={}) as broker:
        response = await within(broker.run(IMPORTS + code, plan=True))
        assert response.parked, response
        (waiting,) = await broker.parked()
        assert [(one.tool, one.input) for one in waiting.questions] == [
            ("write", '{"n":1}'),
            ("write", '{"n":3}'),
        ]
        assert MADE == {"read 1": 1, "read 2": 1}
        response = await within(broker.resume(waiting.id, "accepted"))
    assert response.result == [10, 2, 30], response
    assert MADE == {"read 1": 1, "read 2": 1, "write 1": 1, "write 3": 1}


async def test_who_cannot_say_now_says_so_and_a_tool_at_work_holds_the_run(broker: Broker) -> None:
    asked: list[Question] = []

    async def later(question: Question) -> Verdict:
        asked.append(question)
        return Verdict.LATER

    run_id = await parked(broker, WRITES, grantee=Grantee("embedding", later))
    assert [question.arguments for question in asked] == [{"n": 1}]
    assert (await within(broker.resume(run_id, "accepted"))).result == {"result": 10}


async def test_a_park_that_a_slow_disk_writes_too_late_is_ended(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Journals.is_written

    async def too_late(journals: Journals, writing: Any, bound: float = 0.0) -> bool:
        await written(journals, writing)
        return False

    monkeypatch.setattr(Journals, "is_written", too_late)
    code = "await read({ n: 1 }); await write({ n: 1 });"
    response = await within(broker.run(IMPORTS + code, grantee=Grantee("embedding", returns=True)))
    assert not response.parked and [entry.code for entry in response.diagnostics] == ["RUN_NOT_PARKED"]
    assert "Completed: local.read." in response.diagnostics[0].message, response
    assert await broker.parked() == [] and MADE == {"read 1": 1}
    assert [head["outcome"] for head in await broker.keeper.recent()] == ["RUN_NOT_PARKED"]


async def test_a_script_that_goes_on_by_itself_is_not_parked(broker: Broker) -> None:
    code = """
const timeout = new Promise((resume) => setTimeout(resume, 10, "gave up"));
globalThis.__codemode_result__ = await Promise.race([write({ n: 1 }), timeout]);
"""
    response = await within(broker.run(IMPORTS + code, durable=True))
    assert response.result == "gave up" and not response.parked
    assert await broker.parked() == [] and MADE == {}


async def test_where_nothing_can_be_written_the_run_ends_and_says_so(tmp_path: Path) -> None:
    (tmp_path / JOURNALS).mkdir()
    code = """
const said = await write({ n: 1 }).catch((error) => [error.code, error.message]);
globalThis.__codemode_result__ = said;
"""
    async with broker_on(tmp_path) as made:
        response = await within(made.run(IMPORTS + code, durable=True))
    (told,) = response.diagnostics
    assert told.code == "RUN_NOT_PARKED" and not response.parked and MADE == {}, response
    assert "local.write" in told.message and "could not be written down" in told.message
    assert "can be sent again as it is" in (told.hint or "")
    async with broker_on(tmp_path / "off", journal="off") as made:
        response = await within(made.run(IMPORTS + code, durable=True))
    assert response.result[0] == "APPROVAL_UNAVAILABLE"
    assert "this client cannot ask" in response.result[1]


async def test_parked_runs_have_no_process_and_end_when_nobody_answers(tmp_path: Path) -> None:
    async with broker_on(tmp_path, journal={"expire_ms": 3_000}) as made:
        runs = [await parked(made, "await write({ n: 1 });") for _ in range(3)]
        await no_process(made)

        for run_id in runs:
            await until_kept(made, run_id, "PARKED_EXPIRED")
            with pytest.raises(InvalidRequest):
                await made.resume(run_id, "accepted")
    assert MADE == {}


@pytest.mark.thorough
async def test_a_run_that_is_not_allowed_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_on(tmp_path) as made:
        run_id = await parked(made, "await write({ n: 1 });")
    monkeypatch.setattr("cellblock.run.request.MAX_CODE_BYTES", 10)
    async with broker_on(tmp_path) as made:
        with pytest.raises(InvalidRequest):
            await within(made.resume(run_id, "accepted"))
        await until_kept(made, run_id, "CANNOT_GO_ON")


@pytest.mark.thorough
async def test_a_run_that_cannot_be_read_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is damaged ends; one of another key, or that is odd in a way that nobody has thought of, is left to
    whoever can read it, until it has waited too long."""
    async with broker_on(tmp_path) as made:
        runs = [await parked(made, f"await write({{ n: {n} }});") for n in range(6)]
    damaged, foreign, late, odd, *others = runs
    section = made.settings.cellblock
    store = open_store(LocalStore(tmp_path), section.auth, section.journal)
    for run_id in runs:
        store.answer(run_id, "accepted")
    for run_id in {"lost": "recording", "good": "x", "old": "x"}:
        # Of brokers that have died: the first is damaged, the last has been left for longer than a run may wait.
        found = store.read(others[0])
        store.write(replace(found[0], id=run_id, state="running"), found[1], "broker-0000dead")
    store.close()
    with sqlite3.connect(tmp_path / JOURNALS) as database:
        database.execute("PRAGMA foreign_keys = ON")
        for run_id in (damaged, "lost"):
            database.execute(
                "UPDATE pieces SET body = zeroblob(40) WHERE run = ? AND kind = 'recording'", (run_id,)
            )
        database.execute("UPDATE runs SET key = 'other' WHERE id IN (?, ?)", (foreign, late))
        database.execute("UPDATE runs SET expires = 1 WHERE id = ?", (late,))
        database.execute("UPDATE runs SET changed = 1 WHERE id = 'old'")
    database.close()

    async def state_of(made: Broker, run_id: str) -> tuple[Any, Any]:
        head = await made.keeper._journals.asked(lambda store: store.head(run_id), None)
        return head.state, head.outcome

    taken = Keeper.taken

    def misread(self: Keeper, store: JournalStore, run_id: str, take: Any) -> Any:
        return {}[run_id] if run_id == odd else taken(self, store, run_id, take)

    monkeypatch.setattr(Keeper, "taken", misread)
    async with broker_on(tmp_path) as made:
        for run_id, state in {
            **dict.fromkeys(others, ("ended", "ok")),
            damaged: ("ended", "CANNOT_GO_ON"),
            foreign: ("parked", None),
            odd: ("parked", None),
            late: ("ended", "PARKED_EXPIRED"),
            "lost": ("ended", "CANNOT_GO_ON"),
            "good": ("ended", "ok"),
            "old": ("ended", "CANNOT_GO_ON"),
        }.items():

            async def is_so(run_id: str = run_id, state: Any = state) -> bool:
                return await state_of(made, run_id) == state

            await until_found(is_so, f"{run_id} is {state}")


BURN = "const burn = () => { let n = 0; for (let i = 0; i < 6e7; i++) n += i % 7; return n; };\n"
KEPT = (True, ["SANDBOX_LIMIT"])
CPU_ATTEMPTS = 5
PARKS = "for (let n = 0; n < 4; n++) await write({ n });"
"""No clock is read: of a run that is parked first here, there is no event."""


async def until_it_ends(broker: Broker, code: str, max_cpu_ms: int = 10_000) -> tuple[RunResponse, int]:
    """Runs a script, and approves what it asks for until its end."""
    return await to_its_end(
        broker, await within(broker.run(IMPORTS + BURN + code, durable=True, limits={"maxCpuMs": max_cpu_ms}))
    )


@pytest.mark.thorough
async def test_parks_neither_give_a_script_cpu_time_nor_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five replays together would come to the cap, with the slack that there is for slower machines. What the same
    work takes differs beside others' work, but not each time."""
    monkeypatch.setattr("cellblock.run.run.REPLAY_CPU_MS", 300)
    ends: list[tuple[bool, list[str]]] = []
    async with broker_on(tmp_path, policy={"default": {"approve": ["local.write"]}}) as made:
        while len(ends) < CPU_ATTEMPTS and ends[-1:] != [KEPT]:
            once = (await until_it_ends(made, "burn();"))[0].usage.cpu_ms
            within_cap, parks = await until_it_ends(made, f"burn(); {PARKS}", 2 * once)
            assert parks == 4 or not within_cap.ok
            over_cap, parks = await until_it_ends(made, f"burn(); {PARKS} burn();", 3 * once // 2)
            assert parks == 4 or not over_cap.ok
            ends.append((within_cap.ok, [entry.code for entry in over_cap.diagnostics]))
    assert ends[-1] == KEPT, ends


async def test_no_recording_is_read_on_the_loop(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that goes on, has ended, is shown, or is waited for: a script says what is in it, and how much."""
    unpack, threads = Recording.unpack, Counter[str]()

    def told(data: bytes) -> Recording:
        threads[threading.current_thread().name] += 1
        return unpack(data)

    monkeypatch.setattr(Recording, "unpack", told)
    run_id = await parked(broker, WRITES)
    runs = broker.parked_runs
    looks = [
        runs._keeper.run(run_id),  # pyright: ignore[reportPrivateUsage]
        broker.resume(run_id, "accepted"),
        runs.outcome(run_id),
        runs.status(run_id, "embedding"),
    ]
    for number, look in enumerate(looks, 1):
        assert await within(look) is not None
        # A run that is taken is read twice: what it needs is looked at before.
        assert threads == {"cellblock-journals": number + (number > 1)}


@pytest.mark.thorough
async def test_a_run_waits_until_there_is_room_for_what_it_holds(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await parked(broker, WRITES)
    budget, refused = JournalBudget(), 0
    for module in ("journal", "kept"):
        monkeypatch.setattr(f"cellblock.record.{module}.BUDGET", budget)
    monkeypatch.setattr("cellblock.record.going_on.POLL_SECONDS", 0.01)
    taken = Keeper.taken

    def told(self: Keeper, *args: Any) -> Any:
        nonlocal refused
        try:
            return taken(self, *args)
        except NotYet:
            refused += 1
            raise

    monkeypatch.setattr(Keeper, "taken", told)
    for client in ("one", "two"):
        budget.take(client, CLIENT_BYTES)
    resumed = asyncio.create_task(broker.resume(run_id, "accepted"))
    await until(lambda: refused > 1, "it was looked at again")
    assert MADE == {}
    budget.give_back("one", CLIENT_BYTES)
    assert (await within(resumed)).result == {"result": 10} and MADE == {"write 1": 1}


@pytest.mark.thorough
async def test_a_run_that_cannot_be_recorded_again_goes_on_only_when_nobody_else_can(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await parked(broker, WRITES)
    monkeypatch.setattr("cellblock.record.journal.MAX_BYTES", 1)
    give_up, made = JournalStore.give_up, list[dict[str, int]]()

    def told(store: JournalStore, *args: str) -> bool:
        made.append(dict(MADE))
        return give_up(store, *args)

    monkeypatch.setattr(JournalStore, "give_up", told)
    assert (await within(broker.resume(run_id, "accepted"))).result == {"result": 10}
    assert made == [{}] and MADE == {"write 1": 1}


@tool()
async def hangs() -> None:
    "Never answers."
    MADE["hangs"] += 1
    await asyncio.Event().wait()


async def test_a_run_that_another_broker_goes_on_with_is_ended_there(tmp_path: Path) -> None:
    code = (
        IMPORTS.replace("read,", "hangs, read,")
        + "await write({ n: 1 }); await hangs({}).finally(() => read({ n: 2 }));"
    )
    tools = (read, write, hangs)
    async with broker_on(tmp_path, tools) as broker, broker_on(tmp_path, tools) as other:
        run_id = str((await within(broker.run(code, durable=True))).usage.run_id)
        assert await other.parked_runs.answer(run_id, "accepted") is not None
        await until(lambda: MADE["hangs"] == 1, "it goes on")
        assert not await broker.parked_runs.stop(run_id, "token"), "another principal"
        assert await broker.parked_runs.stop(run_id, "embedding")
        await until_kept(broker, run_id, "CANCELLED")
        assert MADE == {"write 1": 1, "hangs": 1}


CAPACITY = 2
LARGE = 700 * 1024
"""Bytes of one input: of two such, no journal has both."""

CALLS = {
    "approval": "await write({ n: 1 });",
    "question": "await input({});",
}


@tool()
def length(text: str) -> int:
    "Reads."
    return len(text)


@pytest.mark.parametrize("kind", mostly(["approval"], list(CALLS)))
async def test_others_get_the_place_and_the_memory_of_a_parked_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    budget = JournalBudget(MIB, MIB)
    for module in ("journal", "kept"):
        monkeypatch.setattr(f"cellblock.record.{module}.BUDGET", budget)
    section = {
        "policy": {"default": {"approve": ["local.write"]}},
        "pool": {"capacity": CAPACITY},
        "auth": {"keyring": "off"},
        "typecheck": "off",
    }
    servers = {"asking": entry(forked_server("asking_server.py", "stdio"))}
    settings = parse_settings({"mcpServers": servers, "cellblock": for_tests(section)})
    code = f"""
        import {{ input }} from "@codemode/servers/asking";
        import {{ length, write }} from "@codemode/servers/local";
        globalThis.__codemode_result__ = await length({{ text: "x".repeat({LARGE}) }});
    """
    async with ready(settings, tools=[write, length], state_dir=tmp_path) as broker:
        runs: list[asyncio.Task[object]] = []
        for number in range(CAPACITY):
            runs.append(asyncio.create_task(broker.run(code + CALLS[kind], durable=True, client="one")))

            async def are_parked(count: int = number + 1) -> bool:
                return len(await broker.parked()) == count

            await until_found(are_parked, "it is parked", 60)
            # It is written before this process is done with it.
            await until(lambda: not broker.running, "its memory is given back")
        await no_process(broker)
        # What is in cycles still counts until the collector comes by.
        gc.collect()
        response = await within(broker.run(code, durable=True, client="other"), 60)
        assert response.result == {"result": LARGE} and response.usage.run_id is not None, response
        kept = await broker.keeper._journals.asked(
            lambda store: store.read(response.usage.run_id or ""), None
        )  # pyright: ignore[reportPrivateUsage]
        assert kept is not None and "recording" in [piece.kind for piece in kept[1]]
        assert len(await broker.parked()) == CAPACITY
    await asyncio.wait(runs)
