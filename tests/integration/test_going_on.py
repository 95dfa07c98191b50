"""Runs whose host, worker or broker is lost go on elsewhere: nothing is lost, and nothing is done twice.

Parked runs are taken: at the second try, for nobody who waits any more, and not without their tools.
"""

import asyncio
import contextlib
import json
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from cellblock import Broker, CellblockError, Grantee, RunResponse, Settings
from cellblock.base.database import Away, SqliteDatabase
from cellblock.base.settings.sections import MIB
from cellblock.base.state_dir import prepare_state_dir
from cellblock.base.store import LocalStore
from cellblock.record.journal import NotYet
from cellblock.record.journals import open_store
from cellblock.record.kept import Keeper
from cellblock.record.rows import OneRunFailed
from cellblock.record.store import JournalStore
from cellblock.run.policy.asking import Caller
from support.brokers import begun, host_of, ready
from support.cellblock_zygote import forked_python, started
from support.entries import ledger, plain_server, recorded, settings
from support.local_tools import LIGHT, MADE, broker_on, read
from support.params import mostly
from support.parked_runs import response_of
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
    return settings(state or folder / "s", servers, **LIGHT, **section)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with ready(made_of(tmp_path)) as made:
        yield made


def kill(broker: Broker, who: str) -> None:
    """Its host, or all workers: the one that runs, and the warm ones beside it."""
    host = host_of(broker)
    for process in [host] if who == "host" else workers_of(host.pid):
        process.kill()


async def cancelled(run: asyncio.Task[RunResponse]) -> None:
    run.cancel()
    await asyncio.wait([run])


def inputs_of(folder: Path, tool: str) -> list[Any]:
    """What each call of a tool was sent."""
    return [event["arguments"] for event in ledger(folder / "ledger.jsonl") if event.get("tool") == tool]


def assert_once(folder: Path, response: RunResponse) -> None:
    """Each call was made once; one that was under way at the death may not have come so far."""
    made = Counter(map(json.dumps, inputs_of(folder, "echo")))
    known = sum(entry.ok for entry in response.tool_trace)
    assert set(made.values()) == {1} and known <= made.total() <= len(response.tool_trace), (made, response)


@pytest.mark.parametrize("who", mostly(["host"], ["host", "worker"]))
async def test_a_durable_run_goes_on_where_it_was(broker: Broker, tmp_path: Path, who: str) -> None:
    run = await begun(broker, DRAWS, "waits", durable=True)
    kill(broker, who)
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
    async with ready(made_of(tmp_path, policy={"default": {"approve": ["plain.give"]}})) as broker:
        run = await begun(broker, code, "waits", durable=True)
        host_of(broker).kill()
        waits = await within(run, 60)
        ended = await within(broker.resume(str(waits.usage.run_id), "accepted"))
    assert waits.parked and ended.ok and ended.usage.resumed == 2, ended
    for response in (waits, ended):
        (told,) = (entry for entry in response.diagnostics if entry.code == "RUN_RESUMED")
        assert "host" in told.message and "1 calls are not made again" in told.message


async def test_a_call_that_may_be_made_again_is(tmp_path: Path) -> None:
    """By the user's overlay."""
    overlays = tmp_path / "s" / "overlays"
    overlays.mkdir(parents=True, mode=0o700)
    for name in ("plain", "other"):
        (overlays / f"{name}.toml").write_text("[tools.never]\nretry = true\n")
    entries = {name: plain_server("--ledger", tmp_path / f"{name}.jsonl") for name in ("plain", "other")}
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

    async with ready(settings(tmp_path / "s", entries, **LIGHT)) as broker:
        run = await begun(broker, code, "asks", durable=True)
        await until(lambda: called() == [1, 1], "both are called")
        host_of(broker).kill()
        await until(lambda: called() == [2, 2], "both are called again")
        await cancelled(run)


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
    assert (await within(run, 60)).result == "may_have_run"
    assert calls_of(tmp_path, "never") == 1


async def test_one_that_has_made_calls_and_is_not_durable_ends(broker: Broker, tmp_path: Path) -> None:
    code = f'{PLAIN}await echo({{}}); console.log("called"); await never({{}});'
    run = await begun(broker, code, "called")
    await until(lambda: calls_of(tmp_path, "never") == 1, "it is in its call")
    host_of(broker).kill()
    found = error_of(await within(run, 60), "HOST_LOST")
    assert found.message.endswith("Completed: plain.echo. May have run: plain.never.")
    assert "sent again" not in (found.hint or "")


def calls_of(folder: Path, tool: str) -> int:
    return len(inputs_of(folder, tool))


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
    await cancelled(run)
    async with Broker(made_of(tmp_path, left)) as other:
        (head,) = await other.keeper.recent()
        response = await within(other.parked_runs.outcome(head["id"]))
    assert response.result == [200_000, {"n": 2}], response
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
        await cancelled(run)
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

    await until(lambda: calls_of(tmp_path, "echo") == 1, "two calls are made, and their answers are written")
    kill_family(process.pid)
    await within(process.wait())
    async with Broker(made_of(tmp_path)) as broker:
        await until(lambda: calls_of(tmp_path, "give") == 3, "it goes on")
        (head,) = await broker.keeper.recent()
        response = await within(broker.parked_runs.outcome(head["id"]))
    assert response is not None and response.ok, response
    assert [one["n"] for one in response.result] == [1, 2, 3]
    assert json.loads(json.dumps(response.result)) == inputs_of(tmp_path, "give")
    (told,) = response.diagnostics
    assert (told.code, response.usage.resumed) == ("RUN_RESUMED", 1) and "broker was lost" in told.message


async def test_a_broker_that_stops_leaves_its_durable_runs_to_the_next(tmp_path: Path) -> None:
    async with ready(made_of(tmp_path)) as broker:
        run = await begun(broker, DRAWS.replace("rounds < 5", "rounds < 30"), "waits", durable=True)
    await within(asyncio.wait([run]))
    async with Broker(made_of(tmp_path)) as broker:
        (head,) = await broker.keeper.recent()
        response = await response_of(broker, head["id"])
    assert response.ok, response.diagnostics
    assert_once(tmp_path, response)


CODE = """import { write } from "@codemode/servers/local";
globalThis.__codemode_result__ = await write({ n: 1 });"""
CLIENT = Caller("test", Grantee("embedding", returns=True))


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    MADE.clear()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the Python tools alone."""
    async with broker_on(tmp_path) as made:
        yield made


def leave(broker: Broker, *runs: str, by_a_broker: bool = False) -> None:
    """Answers runs of a broker that has ended; one that has died since may have taken them."""
    section = broker.settings.cellblock
    state = LocalStore(broker.settings.state_dir)
    with contextlib.closing(open_store(state, section.auth, section.journal)) as store:
        for run_id in runs:
            store.answer(run_id, "accepted")
            assert not by_a_broker or store.take(run_id, "broker-0000dead") is not None


async def parked(broker: Broker, code: str = CODE) -> str:
    response = await within(broker.run(code, plan=True))
    assert response.parked, response
    return str(response.usage.run_id)


async def why_not_here(broker: Broker, run_id: str) -> str:
    """Why a run does not go on in this broker, as soon as that is seen."""
    found = broker.parked_runs.going_on.foreign
    await until(lambda: run_id in found, "it is seen that it does not go on here")
    return found[run_id]


async def test_a_run_that_was_taken_at_the_second_try_is_not_taken_for_lost(
    local: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await parked(local)
    runs = local.parked_runs
    turn, (question,) = await runs.questions(run_id) or (0, ())

    def away(*_: Any, **__: Any) -> None:
        raise Away("PostgreSQL: the connection is lost")

    with monkeypatch.context() as cut:
        cut.setattr(JournalStore, "take", away)
        with pytest.raises(Away):
            await runs.come_back(run_id, turn, {question.id: "accepted"}, CLIENT)
    # It has its answer, and this broker goes on with it at the next look.
    response = await within(runs.outcome(run_id), 60)
    # What may have been taken at the first try, and not been run, is looked for.
    await runs.going_on._adopt()
    await within(runs.going_on.quiet())
    assert (response.result, response.diagnostics) == ({"result": 10}, []) and MADE == {"write 1": 1}


@pytest.mark.parametrize("who", mostly(["client"], ["program", "client"]))
async def test_a_run_is_not_lost_whose_waiter_is_cancelled_while_it_is_taken(
    local: Broker, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    run_id = await parked(local)
    runs, take = local.parked_runs, JournalStore.take
    turn, (question,) = await runs.questions(run_id) or (0, ())
    is_there, goes_on = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        is_there.set()
        goes_on.wait(30)
        return take(*args, **kwargs)

    with monkeypatch.context() as slowed:
        slowed.setattr(JournalStore, "take", slow)
        waits: asyncio.Task[Any] = asyncio.create_task(
            local.resume(run_id, "accepted")
            if who == "program"
            else runs.come_back(run_id, turn, {question.id: "accepted"}, CLIENT)
        )
        await until(is_there.is_set, "the run is taken")
        await cancelled(waits)
        goes_on.set()
        # Behind it.
        await runs.questions(run_id)

    async def over() -> Any:
        status = await runs.status(run_id, "embedding")
        return status if status is not None and status.state == "ended" else None

    status = await until_found(over, "the run has ended")
    if who == "program":
        assert status.response.result == {"result": 10} and MADE == {"write 1": 1}
        assert not status.response.diagnostics, "no broker was lost"
    else:
        # As if it had gone away a moment later.
        assert status.outcome == "CANCELLED" and MADE == {}


@pytest.mark.parametrize("left_by", mostly(["a broker"], ["a person", "a broker"]))
async def test_a_run_waits_for_a_process_that_has_its_tools(tmp_path: Path, left_by: str) -> None:
    async with broker_on(tmp_path) as made:
        run_id = await parked(made)
    leave(made, run_id, by_a_broker=left_by == "a broker")
    for tools, what in (([], "it"), ([read], "its tool write")):
        async with broker_on(tmp_path, tools) as other:
            why = await why_not_here(other, run_id)
            assert why == f"it needs the server local, and this process does not have {what}"
            head = await other.keeper._journals.asked(lambda store: store.head(run_id), None)
            assert head.state == ("parked" if left_by == "a person" else "running")
            if left_by == "a person":
                with pytest.raises(CellblockError, match=r"does not go on here: it needs the server local"):
                    await within(other.resume(run_id, "accepted"))
    async with broker_on(tmp_path) as made:
        response = await response_of(made, run_id)
    assert response.result == {"result": 10} and MADE == {"write 1": 1}


IMPORTS = {
    "server": 'import { give } from "@codemode/servers/plain";',
    "computed": 'const { give } = await import("@codemode/servers/" + ["pl", "ain"].join(""));',
}
"""A script that computes its imports may reach any server."""


@pytest.mark.parametrize("left_by", ["a person", "a broker", "0.1.0"])
@pytest.mark.parametrize("how", IMPORTS)
async def test_a_run_waits_for_a_process_whose_server_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_by: str, how: str
) -> None:
    code = f'{IMPORTS[how]} globalThis.__codemode_result__ = await give({{ text: "one" }});'

    def with_ledger(name: str, *idle: str) -> Broker:
        servers = {"plain": plain_server("--ledger", tmp_path / name), "idle": plain_server(*idle)}
        return Broker(settings(tmp_path / "s", servers, **LIGHT))

    with monkeypatch.context() as early:
        if left_by == "0.1.0":
            early.setattr("cellblock.tools.upstream.server_entries.fingerprint", lambda _: "")
        async with with_ledger("one") as made:
            run_id = await parked(made, code)
    leave(made, run_id, by_a_broker=left_by == "a broker")
    async with with_ledger("other") as other:
        if left_by == "0.1.0":
            assert (await response_of(other, run_id)).result == {"text": "one"}
            return
        assert (
            await why_not_here(other, run_id) == "its server plain has another command or URL in this process"
        )
    # A server that the script cannot use may be another one.
    async with with_ledger("one", *(("--start-delay", "0") if how == "server" else ())) as again:
        assert (await response_of(again, run_id)).result == {"text": "one"}
    assert recorded(tmp_path / "one", tool="give") == 1 and recorded(tmp_path / "other", tool="give") == 0


@pytest.mark.thorough
async def test_runs_without_room_leave_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_on(tmp_path) as made:
        first, second = await parked(made), await parked(made)
    leave(made, first, second)
    taken, refused = Keeper.taken, 0

    def has_no_room(self: Keeper, store: JournalStore, run_id: str, take: Any) -> Any:
        nonlocal refused
        if run_id == first:
            refused += 1
            raise NotYet("its client holds too much")
        return taken(self, store, run_id, take)

    monkeypatch.setattr(Keeper, "taken", has_no_room)
    monkeypatch.setattr("cellblock.record.store.MAX_DUE", 1)
    monkeypatch.setattr("cellblock.record.going_on.POLL_SECONDS", 0.05)
    async with broker_on(tmp_path) as made:
        assert (await response_of(made, second)).result == {"result": 10}
        seen = refused
        await until(lambda: refused > seen, "the first is tried again")
