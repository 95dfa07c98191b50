"""Runs whose host, worker or broker is lost go on elsewhere: nothing is lost, and nothing is done twice."""

import asyncio
import contextlib
import json
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from cellblock import Broker, RunResponse
from cellblock.base.database import SqliteDatabase
from cellblock.base.settings.sections import MIB
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import prepare_state_dir
from cellblock.record.rows import OneRunFailed
from cellblock.record.store import JournalStore
from support.brokers import begun, host_of, ready
from support.cellblock_zygote import forked_python, started
from support.entries import ledger, plain_server, settings
from support.params import mostly
from support.processes import kill_family, workers_of
from support.responses import error_of
from support.waits import until, until_found, within

PLAIN = 'import { echo, give, never } from "@codemode/servers/plain";\n'
DRAWS = f"""{PLAIN}
const first = await echo({{ n: 1 }});
const drawn = Math.random();
console.log("drawn", drawn);
let rounds = 0;
while (rounds < 5) {{
    await new Promise((resume) => setTimeout(resume, 20));
    rounds += 1;
    if (rounds === 1) console.log("waits");
    // The death may come in the midst of it.
    try {{ await echo({{ go: rounds }}); }} catch (error) {{ if (error.certainty !== "may_have_run") throw error; }}
}}
globalThis.__codemode_result__ = {{ drawn, first }};
"""


def made_of(folder: Path, state: Path | None = None, **section: Any) -> Settings:
    """Settings with a server whose ledger is in the folder; the state directory is there, too, where none is given."""
    servers = {"plain": plain_server("--ledger", folder / "ledger.jsonl")}
    return settings(
        state or folder / "s", servers, **{"auth": {"keyring": "off"}, "typecheck": "off", **section}
    )


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with ready(made_of(tmp_path)) as started:
        yield started


def assert_once(folder: Path, response: RunResponse) -> None:
    """Each call was made once; one that was under way at the death may not have come so far."""
    made = Counter(
        json.dumps(event["arguments"])
        for event in ledger(folder / "ledger.jsonl")
        if event.get("tool") == "echo"
    )
    known = sum(entry.ok for entry in response.tool_trace)
    assert set(made.values()) == {1} and known <= made.total() <= len(response.tool_trace), (made, response)


@pytest.mark.parametrize("who", mostly(["host"], ["host", "worker"]))
async def test_a_durable_run_goes_on_where_it_was(broker: Broker, tmp_path: Path, who: str) -> None:
    run = await begun(broker, DRAWS, "waits", durable=True)
    host = host_of(broker)
    if who == "host":
        host.kill()
    else:
        # The one that runs, and the warm ones beside it.
        for worker in workers_of(host.pid):
            worker.send_signal(signal.SIGKILL)
    response = await within(run, 60)
    assert response.ok, [entry.message for entry in response.diagnostics]
    # More than once where a warm worker that was killed, too, was taken.
    assert response.usage.resumed in (1, 2)
    told = [entry.message for entry in response.diagnostics if entry.code == "RUN_RESUMED"]
    assert len(told) == response.usage.resumed and all("not made again" in said for said in told)
    drawn = [entry.message for entry in response.logs if entry.message.startswith("drawn")]
    assert drawn == [f"drawn {response.result['drawn']}"]
    assert_once(tmp_path, response)


@pytest.mark.thorough
async def test_a_loss_is_told_when_the_run_was_parked_since(tmp_path: Path) -> None:
    code = f"""{PLAIN}
await echo({{}});
console.log("waits");
await new Promise((resume) => setTimeout(resume, 500));
globalThis.__codemode_result__ = await give({{ n: 1 }});
"""
    policy = {"default": {"approve": ["plain.give"]}}
    async with ready(made_of(tmp_path, policy=policy)) as broker:
        run = await begun(broker, code, "waits", durable=True)
        host_of(broker).kill()
        waits = await within(run, 60)
        assert waits.parked and waits.usage.run_id is not None, waits
        ended = await within(broker.resume(waits.usage.run_id, "accepted"))
    assert ended.ok, ended
    for response in (waits, ended):
        (told,) = (entry for entry in response.diagnostics if entry.code == "RUN_RESUMED")
        assert "host" in told.message and "1 calls are not made again" in told.message
    assert ended.usage.resumed == 2


async def test_a_call_that_may_be_made_again_is(tmp_path: Path) -> None:
    """By the user's overlay."""
    overlays = tmp_path / "s" / "overlays"
    overlays.mkdir(parents=True, mode=0o700)
    for name in ("plain", "other"):
        (overlays / f"{name}.toml").write_text("[tools.never]\nretry = true\n")
    entries = {name: plain_server("--ledger", tmp_path / f"{name}.jsonl") for name in ("plain", "other")}
    made = settings(tmp_path / "s", entries, auth={"keyring": "off"}, typecheck="off")
    code = """
import * as plain from "@codemode/servers/plain";
import * as other from "@codemode/servers/other";
console.log("asks");
await Promise.all([plain.never({ n: 1 }), other.never({ n: 2 })]);
"""

    def called() -> list[int]:
        return [
            sum(event.get("tool") == "never" for event in ledger(tmp_path / f"{name}.jsonl"))
            for name in entries
        ]

    async with ready(made) as broker:
        run = await begun(broker, code, "asks", durable=True)
        await until(lambda: called() == [1, 1], "both are called")
        host_of(broker).kill()
        await until(lambda: called() == [2, 2], "both are called again")
        run.cancel()
        await asyncio.wait([run])


async def test_a_call_whose_fate_is_unknown_is_told_as_such(broker: Broker, tmp_path: Path) -> None:
    """The server annotates its tool as read-only and idempotent: its word alone causes no repetition."""
    code = f"""{PLAIN}
let said;
console.log("asks");
try {{ await never({{ n: 1 }}); }} catch (error) {{ said = error.certainty; }}
globalThis.__codemode_result__ = said;
"""
    (hints,) = [
        tool.annotations for tool in broker.catalog.servers["plain"].tools if tool.tool_name == "never"
    ]
    assert hints == {"readOnlyHint": True, "idempotentHint": True}
    run = await begun(broker, code, "asks", durable=True)
    await until(lambda: calls_of(tmp_path, "never") == 1, "it is called")
    host_of(broker).kill()
    response = await within(run, 60)
    assert response.result == "may_have_run", response
    assert calls_of(tmp_path, "never") == 1


@pytest.mark.parametrize("who", mostly(["worker"], ["host", "worker"]))
async def test_a_run_that_has_made_no_call_ends_and_can_be_sent_again(tmp_path: Path, who: str) -> None:
    code = 'console.log("begun"); for (;;) {}'
    # The only worker is the run's: a warm one that was killed, too, would be taken, and lost.
    section = {"auth": {"keyring": "off"}, "typecheck": "off", "pool": {"warm": 0}}
    made = settings(tmp_path / "s", {}, **section)
    async with Broker(made) as broker:
        run = await begun(broker, code, "begun")
        if who == "host":
            host_of(broker).kill()
        else:
            for worker in workers_of(host_of(broker).pid):
                worker.send_signal(signal.SIGKILL)
        response = await within(run, 60)
    found = error_of(response, "HOST_LOST" if who == "host" else "WORKER_CRASHED")
    assert "can be sent again as it is" in (found.hint or "") and response.usage.resumed is None


async def test_one_that_has_made_calls_and_is_not_durable_ends(broker: Broker, tmp_path: Path) -> None:
    code = f'{PLAIN}await echo({{}}); console.log("called"); await never({{}});'
    run = await begun(broker, code, "called")
    await until(lambda: calls_of(tmp_path, "never") == 1, "it is in its call")
    host_of(broker).kill()
    found = error_of(await within(run, 60), "HOST_LOST")
    assert found.message.endswith("Completed: plain.echo. May have run: plain.never.")
    assert "sent again" not in (found.hint or "")


def calls_of(folder: Path, tool: str) -> int:
    return sum(event.get("tool") == tool for event in ledger(folder / "ledger.jsonl"))


async def test_a_call_that_cannot_be_written_down_is_not_made(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full from the second call on: whoever goes on with the run would make that call again."""
    write, full = JournalStore.write, asyncio.Event()

    def fails(store: JournalStore, *args: Any) -> None:
        if full.is_set():
            raise OneRunFailed("the disk is full")
        write(store, *args)

    monkeypatch.setattr(JournalStore, "write", fails)
    code = f"""{PLAIN}
await echo({{ n: 1 }});
console.log("called");
await new Promise((resume) => setTimeout(resume, 500));
globalThis.__codemode_result__ = await give({{ n: 2 }}).catch((error) => [error.certainty, error.message]);
"""
    run = await begun(broker, code, "called", durable=True)
    full.set()
    response = await within(run, 60)
    certainty, message = response.result
    assert certainty == "not_started" and "could not be written down" in message
    # Another broker would make it: what is written has no end.
    assert [entry.code for entry in response.diagnostics] == ["END_NOT_WRITTEN"]
    assert response.usage.run_id is None
    assert (calls_of(tmp_path, "echo"), calls_of(tmp_path, "give")) == (1, 0)


@pytest.mark.thorough
async def test_a_step_that_could_not_be_written_comes_before_what_is_written_later(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when an answer comes, and has room again before the next call: who goes on has both."""
    monkeypatch.setattr("cellblock.record.journals.RETRY_SECONDS", 0.0)
    journals = broker.keeper._journals  # pyright: ignore[reportPrivateUsage]
    held, holds = tmp_path / "held", tmp_path / "holds"
    code = f"""import {{ flood, give, hold }} from "@codemode/servers/plain";
await hold({{ path: {json.dumps(str(held))} }});
const text = await flood({{ bytes: 200_000 }});
try {{ await hold({{ path: {json.dumps(str(holds))} }}); }}
catch (error) {{ if (error.certainty !== "may_have_run") throw error; }}
globalThis.__codemode_result__ = [text.length, await give({{ n: 2 }})];
"""
    run = asyncio.create_task(broker.run(code, durable=True))
    await until(lambda: calls_of(tmp_path, "hold") == 1, "it has begun")

    def fill(store: JournalStore) -> None:
        connection = cast("SqliteDatabase", store.database).connection  # pyright: ignore[reportPrivateUsage]
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        # Room for the call, and not for its answer; as long as the file is open, which it is until that fails.
        connection.execute(f"PRAGMA max_page_count = {pages + 8}")

    await journals.asked(fill, None)
    held.touch()
    await until(lambda: calls_of(tmp_path, "hold") == 2, "the answer is there, and the next call is made")
    left = tmp_path / "left"
    prepare_state_dir(left)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "s" / "journals.sqlite3")) as file,
        contextlib.closing(sqlite3.connect(left / "journals.sqlite3")) as copy,
    ):
        # What a broker leaves that is killed now.
        file.backup(copy)
    shutil.copy(tmp_path / "s" / "journals.key", left)
    run.cancel()
    await asyncio.wait([run])
    async with Broker(made_of(tmp_path, left)) as other:
        (head,) = await other.keeper.recent()
        response = await within(other.parked_runs.outcome(head["id"]))
    assert response is not None and response.ok, response
    assert response.result == [200_000, {"n": 2}]
    assert [calls_of(tmp_path, tool) for tool in ("flood", "hold", "give")] == [1, 2, 1]


async def test_a_run_of_which_nothing_could_be_written_goes_on_as_any_other(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OneRunFailed("the disk is full")

    monkeypatch.setattr(JournalStore, "write", fails)
    code = f"{PLAIN}globalThis.__codemode_result__ = await give({{ n: 2 }});"
    assert (await within(broker.run(code, durable=True))).result == {"n": 2}
    assert calls_of(tmp_path, "give") == 1


@pytest.mark.parametrize("bound", mostly(["of a recording"], ["of a recording", "of all that is kept"]))
async def test_a_run_that_is_too_large_to_record_is_nobodys_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    most = MIB
    if bound == "of a recording":
        most = 20_000
        monkeypatch.setattr("cellblock.record.journal.MAX_BYTES", most)
    code = f"""{PLAIN}
await give({{ text: "x".repeat({most + 10_000}) }});
await give({{ n: 2 }});
console.log("called");
await never({{}});
"""
    async with ready(made_of(tmp_path, journal={"total_bytes": MIB})) as broker:
        run = await begun(broker, code, "called", durable=True)
        await until(lambda: calls_of(tmp_path, "never") == 1, "the last call is made")
        (head,) = await broker.keeper.recent()
        assert (head["state"], head["outcome"]) == ("ended", "CANNOT_GO_ON")
        run.cancel()
        await asyncio.wait([run])
    assert calls_of(tmp_path, "give") == 2


BROKER = """
import asyncio, sys
from pathlib import Path
from cellblock import Broker
from support.entries import plain_server, settings

async def main():
    folder = Path(sys.argv[1])
    made = settings(folder / "s", {"plain": plain_server("--ledger", folder / "ledger.jsonl")},
                    auth={"keyring": "off"}, typecheck="off")
    async with Broker(made) as broker:
        await broker.settled()
        await broker.run(Path(sys.argv[2]).read_text(), durable=True)

asyncio.run(main())
"""


async def test_a_durable_run_survives_its_broker(tmp_path: Path) -> None:
    """The broker is killed with all below it; the next one on the state directory goes on."""
    script = tmp_path / "script.js"
    script.write_text(
        f"""{PLAIN}
const first = await give({{ n: 1 }});
const drawn = Math.random();
const second = await give({{ n: 2, drawn }});
// What is known of a call is written before the next one is made. The death may come in the midst of this one.
try {{ await echo({{}}); }} catch (error) {{ if (error.certainty !== "may_have_run") throw error; }}
await new Promise((resume) => setTimeout(resume, 3000));
const third = await give({{ n: 3 }});
globalThis.__codemode_result__ = [first, second, third];
"""
    )
    words = ("-c", BROKER, tmp_path, script)
    process = await started(*words, program=forked_python(), cwd=Path(__file__).parents[1])

    def given() -> list[Any]:
        return [
            event["arguments"] for event in ledger(tmp_path / "ledger.jsonl") if event.get("tool") == "give"
        ]

    await until(lambda: calls_of(tmp_path, "echo") == 1, "two calls are made, and their answers are written")
    kill_family(process.pid)
    await within(process.wait())
    async with Broker(made_of(tmp_path)) as broker:
        await until(lambda: len(given()) == 3, "it goes on")
        (head,) = await broker.keeper.recent()
        response = await within(broker.parked_runs.outcome(head["id"]))
    assert response is not None and response.ok, response
    assert [one["n"] for one in given()] == [1, 2, 3]
    assert [one["n"] for one in response.result] == [1, 2, 3]
    assert response.usage.resumed == 1
    assert [entry.code for entry in response.diagnostics] == ["RUN_RESUMED"]
    assert "broker was lost" in response.diagnostics[0].message
    assert json.loads(json.dumps(response.result)) == given()


async def test_a_broker_that_stops_leaves_its_durable_runs_to_the_next(tmp_path: Path) -> None:
    async with ready(made_of(tmp_path)) as broker:
        run = await begun(broker, DRAWS.replace("rounds < 5", "rounds < 30"), "waits", durable=True)
    await within(asyncio.wait([run]))
    async with Broker(made_of(tmp_path)) as broker:

        async def outcome() -> RunResponse | None:
            (head,) = await broker.keeper.recent()
            return await broker.parked_runs.outcome(head["id"])

        response = await until_found(outcome, "it has ended")
    assert response.ok, response.diagnostics
    assert_once(tmp_path, response)
