"""Runs that wait for a tool that is at work for long have no process; their broker goes on with the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, Grantee, Observer, Question, RunResponse, Verdict, tool
from cellblock.base.database import StoreError
from cellblock.config.settings import parse_settings
from cellblock.durable.parked_runs import ParkedRuns
from cellblock.durable.views import ParkedRun
from cellblock.execution.caller import Caller
from cellblock.execution.keeping import KeptRun
from cellblock.journal import at_work
from cellblock.journal.store import JournalStore
from support.cellblock_zygote import forked_python, started
from support.entries import for_tests, ledger, plain_server, settings
from support.local_tools import MADE, write
from support.processes import kill_family, workers_of
from support.waits import until, until_found, within

GOES: dict[str, asyncio.Event] = {}
"""Lets each call of `slow` answer, by its word."""


@tool()
async def slow(word: str) -> str:
    "Takes its time."
    MADE[word] += 1
    await GOES.setdefault(word, asyncio.Event()).wait()
    if word.startswith("bad"):
        raise ValueError(word)
    return word.upper()


IMPORTS = 'import { slow, write } from "@codemode/servers/local";\n'
SECTION: dict[str, Any] = {
    "journal": {"park_tools_after_ms": 50, "park_after_ms": 50},
    "policy": {"default": {"approve": ["local.write"]}},
    "pool": {"warm": 1},
    "auth": {"keyring": "off"},
    "typecheck": "off",
}


def broker_on(folder: Path, **section: Any) -> Broker:
    raw = {"cellblock": for_tests({**SECTION, **section})}
    return Broker(parse_settings(raw), tools=[slow, write], state_dir=folder)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    MADE.clear()
    GOES.clear()
    async with broker_on(tmp_path) as made:
        yield made


def go(word: str) -> None:
    GOES.setdefault(word, asyncio.Event()).set()


def has_process(broker: Broker) -> bool:
    assert broker.host_pid is not None
    # The warm one is none of a run.
    return len(workers_of(broker.host_pid)) > 1 or broker.running > 0


async def parked(broker: Broker, run: asyncio.Task[RunResponse], *words: str) -> str:
    """The id of a run that waits for these calls, without a process."""
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(0.02)
            for one in await broker.parked():
                if len(one.working) == len(words):
                    await until(lambda: not has_process(broker), "its process is gone")
                    assert not run.done()
                    return one.id
            assert not run.done(), run.result()


async def test_a_run_has_no_process_while_its_tools_are_at_work(broker: Broker) -> None:
    code = """
console.log("drawn", Math.random());
const both = await Promise.all([slow({ word: "one" }), slow({ word: "two" })]);
console.log("then");
globalThis.__codemode_result__ = both.map((one) => one.result);
"""
    ended: list[tuple[str, bool]] = []
    observer = Observer(on_call=lambda entry: ended.append((entry.tool_name, entry.ok)))
    run = asyncio.create_task(broker.run(IMPORTS + code, observer=observer, limits={"timeoutMs": 3_000}))
    run_id = await parked(broker, run, "one", "two")
    (waiting,) = await broker.parked()
    assert waiting.questions == () and [call.tool for call in waiting.working] == ["slow", "slow"]
    go("two")
    await until(lambda: ended == [("slow", True)], "the first answer is there")
    # Longer than it may run: that time is not the run's.
    await asyncio.sleep(3.1)
    assert not run.done()
    go("one")
    response = await within(run, 60)
    assert response.result == ["ONE", "TWO"], response
    assert MADE == {"one": 1, "two": 1} and ended == [("slow", True)] * 2
    assert [entry.message.split()[0] for entry in response.logs] == ["drawn", "then"]
    assert [entry.ok for entry in response.tool_trace] == [True, True]
    assert response.usage.run_id == run_id and response.usage.resumed == 1
    assert await broker.parked() == []


async def test_a_tool_that_fails_fails_in_the_run_that_goes_on(broker: Broker) -> None:
    code = """
const said = await slow({ word: "bad" }).catch((error) => [error.name, error.certainty, error.message]);
globalThis.__codemode_result__ = [said, (await slow({ word: "next" })).result];
"""
    run = asyncio.create_task(broker.run(IMPORTS + code))
    await parked(broker, run, "bad")
    go("bad")
    # It is parked again for the next call.
    await until(lambda: MADE["next"] == 1, "it goes on")
    await parked(broker, run, "next")
    go("next")
    response = await within(run, 60)
    said, then = response.result
    assert said[:2] == ["ToolCallError", "may_have_run"] and "bad" in said[2] and then == "NEXT", response
    assert response.usage.resumed == 2 and MADE == {"bad": 1, "next": 1}


async def test_a_run_whose_tool_answers_in_time_or_that_parks_no_tools_keeps_its_process(
    tmp_path: Path,
) -> None:
    MADE.clear()
    GOES.clear()
    code = "globalThis.__codemode_result__ = (await slow({ word: 'one' })).result;"
    for journal in ({"park_tools_after_ms": 60_000}, {"park_after_ms": 0}):
        async with broker_on(tmp_path, journal=journal) as made:
            run = asyncio.create_task(made.run(IMPORTS + code))
            await until(lambda: MADE["one"] >= 1, "it is called")
            assert await made.parked() == []
            go("one")
            response = await within(run, 60)
            assert response.result == "ONE" and response.usage.resumed is None
            GOES.clear()


async def test_a_run_waits_for_a_person_and_a_tool_and_goes_on_when_it_has_both(broker: Broker) -> None:
    code = """
const [one, two] = await Promise.all([slow({ word: "one" }), write({ n: 2 })]);
globalThis.__codemode_result__ = [one.result, two.result];
"""
    response = await within(broker.run(IMPORTS + code, durable=True))
    assert response.parked, response
    (told,) = response.diagnostics
    assert "local.write. They were not made." in told.message and "at work, too: local.slow" in told.message
    (waiting,) = await broker.parked()
    assert [one.tool for one in waiting.questions] == ["write"] and [one.tool for one in waiting.working] == [
        "slow"
    ]
    # The person first: the tool is still at work, and the call that is allowed not made.
    left = await broker.parked_runs.answer(waiting.id, "accepted")
    assert left is not None and left.questions == ()
    outcome = asyncio.create_task(broker.parked_runs.outcome(waiting.id))
    assert MADE == {"one": 1}
    go("one")
    done = await within(outcome, 60)
    assert done is not None and done.result == ["ONE", 20] and MADE == {"one": 1, "write 2": 1}


async def test_a_client_that_can_be_asked_now_is_asked_in_the_run_that_goes_on(broker: Broker) -> None:
    asked: list[Question] = []

    async def yes(question: Question) -> Verdict:
        asked.append(question)
        return Verdict.ACCEPTED

    code = "await slow({ word: 'one' }); globalThis.__codemode_result__ = (await write({ n: 1 })).result;"
    run = asyncio.create_task(broker.run(IMPORTS + code, grantee=Grantee("embedding", yes)))
    await parked(broker, run, "one")
    go("one")
    assert (await within(run, 60)).result == 10 and len(asked) == 1


async def test_who_cancels_the_run_cancels_the_call(tmp_path: Path) -> None:
    """By going away, by `runs cancel` here, and in another process."""
    made = settings(
        tmp_path / "s",
        {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")},
        journal={"park_tools_after_ms": 50},
        pool=SECTION["pool"],
        auth={"keyring": "off"},
        typecheck="off",
    )

    def noted(event: str) -> int:
        return sum(one["event"] == event for one in ledger(tmp_path / "ledger.jsonl"))

    code = 'import { never } from "@codemode/servers/plain"; await never({ n: 1 });'
    async with Broker(made) as broker, Broker(made) as other:
        await broker.settled()
        for count, how in enumerate(("goes away", "here", "elsewhere"), 1):
            run = asyncio.create_task(broker.run(code))
            await until(lambda wanted=count: noted("call") == wanted, "it is called")
            run_id = await parked(broker, run, "never")
            if how == "goes away":
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
            else:
                assert await (broker if how == "here" else other).parked_runs.cancel(run_id)
                response = await within(run, 60)
                assert [entry.code for entry in response.diagnostics] == ["CANCELLED"], response
            await until(lambda wanted=count: noted("cancelled") == wanted, f"the server is told: {how}")
            # A run whose client goes away while it is being written down is taken back a moment later.
            await until_found(lambda: nobody_parked(broker), "no run is parked")
    assert noted("call") == 3


async def nobody_parked(broker: Broker) -> bool:
    return await broker.parked() == []


async def test_an_answer_that_cannot_be_written_at_once_is_not_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, tries = JournalStore.add_answers, list[str]()
    monkeypatch.setattr(at_work, "AGAIN_SECONDS", 0.05)

    def full(store: JournalStore, *args: Any) -> bool:
        tries.append("x")
        if len(tries) < 3:
            raise StoreError("the disk is full")
        return add(store, *args)

    monkeypatch.setattr(JournalStore, "add_answers", full)
    run = asyncio.create_task(
        broker.run(IMPORTS + "globalThis.__codemode_result__ = (await slow({ word: 'one' })).result;")
    )
    await parked(broker, run, "one")
    go("one")
    assert (await within(run, 60)).result == "ONE" and len(tries) == 3 and MADE == {"one": 1}


async def test_a_run_that_cannot_be_let_go_at_once_goes_on_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client waits for it, and this broker lives: nobody else does it."""
    release, tries = JournalStore.release, list[str]()
    monkeypatch.setattr(at_work, "AGAIN_SECONDS", 0.05)

    def full(store: JournalStore, *args: Any) -> bool:
        tries.append("x")
        if len(tries) < 3:
            raise StoreError("the disk is full")
        return release(store, *args)

    monkeypatch.setattr(JournalStore, "release", full)
    code = "globalThis.__codemode_result__ = (await slow({ word: 'one' })).result;"
    response = await within(broker.run(IMPORTS + code, grantee=Grantee("embedding", leaves=True)), 60)
    assert response.parked and response.usage.run_id is not None, response
    go("one")
    done = await within(broker.parked_runs.outcome(response.usage.run_id), 60)
    assert done is not None and done.result == "ONE" and len(tries) == 3 and MADE == {"one": 1}


async def test_tools_that_answer_while_it_is_said_that_the_run_waits_for_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, parked_again = ParkedRuns.go_on, list[str]()

    async def goes_on(run_id: str) -> bool:
        status = await broker.parked_runs.status(run_id, "embedding")
        return status is not None and status.state != "parked"

    async def late(runs: ParkedRuns, kept: KeptRun, caller: Caller) -> RunResponse:
        response = await go_on(runs, kept, caller)
        if response.parked:
            go("one")
            await until_found(lambda: goes_on(kept.run_id), "it has its answer")
            parked_again.append(kept.run_id)
        return response

    monkeypatch.setattr(ParkedRuns, "go_on", late)
    code = "await write({ n: 1 }); globalThis.__codemode_result__ = (await slow({ word: 'one' })).result;"
    response = await within(broker.run(IMPORTS + code, durable=True))
    run_id = str(response.usage.run_id)
    assert await broker.parked_runs.answer(run_id, "accepted") is not None
    done = await within(broker.parked_runs.outcome(run_id), 60)
    assert done is not None and done.result == "ONE" and parked_again == [run_id], done
    assert MADE == {"write 1": 1, "one": 1}


async def test_where_a_run_cannot_be_written_it_keeps_its_process(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def full(*_: Any) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise StoreError("the disk is full")

    monkeypatch.setattr(JournalStore, "park", full)
    run = asyncio.create_task(
        broker.run(IMPORTS + "globalThis.__codemode_result__ = (await slow({ word: 'one' })).result;")
    )
    await within(tried.wait())
    go("one")
    response = await within(run, 60)
    assert response.result == "ONE" and response.usage.resumed is None and MADE == {"one": 1}


BROKER = """
import asyncio, json, sys
from pathlib import Path
from cellblock import Broker
from support.entries import plain_server, settings

async def main():
    folder, section = Path(sys.argv[1]), json.loads(sys.argv[3])
    made = settings(folder / "s", {"plain": plain_server("--ledger", folder / "ledger.jsonl")}, **section)
    async with Broker(made) as broker:
        await broker.settled()
        await broker.run(Path(sys.argv[2]).read_text())

asyncio.run(main())
"""


@pytest.mark.parametrize("may_repeat", [False, True])
async def test_a_broker_that_is_killed_while_a_tool_is_at_work(tmp_path: Path, *, may_repeat: bool) -> None:
    """The call may have run: whoever goes on is told so, and it is made again only where the user has said that it may
    be."""
    released = tmp_path / "released"
    script = tmp_path / "script.js"
    script.write_text(
        f"""import {{ give, hold }} from "@codemode/servers/plain";
const first = await give({{ n: 1 }});
const said = await hold({{ path: {json.dumps(str(released))} }}).catch((error) => error.certainty);
globalThis.__codemode_result__ = [first, said];
"""
    )
    section: dict[str, Any] = {
        "journal": {"park_tools_after_ms": 50},
        "auth": {"keyring": "off"},
        "typecheck": "off",
        # A call can be made again once its server is there, however busy the machine.
        "upstream": {"startup_wait_ms": 60_000},
        "policy": {"retry": ["plain.hold"] if may_repeat else []},
    }

    def called(name: str) -> int:
        return sum(event.get("tool") == name for event in ledger(tmp_path / "ledger.jsonl"))

    words = ("-c", BROKER, tmp_path, script, json.dumps(section))
    process = await started(*words, program=forked_python(), cwd=Path(__file__).parents[1])
    made = settings(tmp_path / "s", {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")}, **section)
    async with Broker(made) as broker:
        waiting: list[ParkedRun] = []
        async with asyncio.timeout(60):
            while not waiting or waiting[0].working[0].tool != "hold":
                await asyncio.sleep(0.02)
                waiting = await broker.parked()
        assert called("hold") == 1
        # It is another broker's, as long as that one lives.
        outcome = asyncio.create_task(broker.parked_runs.outcome(waiting[0].id))
        await asyncio.wait([outcome], timeout=0.5)
        assert not outcome.done() and called("hold") == 1
        outcome.cancel()
        # The next one is to go on with it, and this one may be fast.
        await broker.parked_runs.stop_looking()
        kill_family(process.pid)
        await within(process.wait())
    async with Broker(made) as broker:
        if may_repeat:
            await until(lambda: called("hold") == 2, "it is made again")
            released.touch()
        response = await within(broker.parked_runs.outcome(waiting[0].id), 60)
    assert response is not None and response.ok, response
    first, said = response.result
    assert first == {"n": 1} and said == ("held" if may_repeat else "may_have_run"), response
    assert called("give") == 1 and called("hold") == 1 + may_repeat


async def test_a_broker_that_stops_leaves_the_run_to_the_next(tmp_path: Path) -> None:
    MADE.clear()
    GOES.clear()
    code = "globalThis.__codemode_result__ = await slow({ word: 'one' }).catch((error) => error.certainty);"
    async with broker_on(tmp_path) as made:
        run = asyncio.create_task(made.run(IMPORTS + code))
        run_id = await parked(made, run, "one")
    response = await within(run)
    assert response.parked and [entry.code for entry in response.diagnostics] == ["RUN_PARKED"], response
    async with broker_on(tmp_path) as made:
        done = await within(made.parked_runs.outcome(run_id), 60)
    assert done is not None and done.result == "may_have_run" and MADE == {"one": 1}


async def test_a_run_that_another_broker_goes_on_with_is_ended_there(broker: Broker, tmp_path: Path) -> None:
    code = "await write({ n: 1 }); await slow({ word: 'one' }).finally(() => slow({ word: 'two' }));"
    response = await within(broker.run(IMPORTS + code, durable=True))
    run_id = str(response.usage.run_id)
    async with broker_on(tmp_path, journal={"park_after_ms": 50}) as other:
        # That one goes on with it, without a bound for tools.
        assert await other.parked_runs.answer(run_id, "accepted") is not None
        await until(lambda: MADE["one"] == 1, "it goes on")
        assert not await broker.parked_runs.stop(run_id, "token"), "another principal"
        assert await broker.parked_runs.stop(run_id, "embedding")
        status = None
        async with asyncio.timeout(60):
            while status is None or status.state != "ended":
                await asyncio.sleep(0.02)
                status = await broker.parked_runs.status(run_id, "embedding")
        assert status.outcome == "CANCELLED" and MADE == {"write 1": 1, "one": 1}
