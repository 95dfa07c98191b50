"""Parked runs that are taken: at the second try, for nobody who waits any more, and not without their tools."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, Grantee
from cellblock.base.database import Away
from cellblock.base.errors import CellblockError
from cellblock.base.questions import QuestionId
from cellblock.base.store import LocalStore
from cellblock.record import going_on
from cellblock.record import store as store_module
from cellblock.record.journal import NotYet
from cellblock.record.journals import open_store
from cellblock.record.kept import Keeper
from cellblock.record.store import JournalStore
from cellblock.run.policy.asking import Caller
from cellblock.tools.upstream import registry, server_entries
from support.entries import plain_server, recorded, settings
from support.local_tools import LIGHT, MADE, broker_on, read
from support.params import mostly
from support.parked_runs import response_of
from support.waits import until, until_found, within

CODE = """import { write } from "@codemode/servers/local";
globalThis.__codemode_result__ = await write({ n: 1 });"""
CLIENT = Caller("test", Grantee("embedding", returns=True))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    MADE.clear()
    async with broker_on(tmp_path) as made:
        yield made


def store_of(broker: Broker) -> JournalStore:
    """Its store, opened once more."""
    section = broker.settings.cellblock
    return open_store(LocalStore(broker.settings.state_dir), section.auth, section.journal)


async def parked(broker: Broker) -> str:
    response = await within(broker.run(CODE, plan=True))
    assert response.parked, response
    return str(response.usage.run_id)


async def test_a_run_that_was_taken_at_the_second_try_is_not_taken_for_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await parked(broker)
    runs = broker.parked_runs
    turn, (question,) = await runs.questions(run_id) or (0, ())
    given: dict[QuestionId, Any] = {question.id: "accepted"}

    def away(*_: Any, **__: Any) -> None:
        raise Away("PostgreSQL: the connection is lost")

    with monkeypatch.context() as cut:
        cut.setattr(JournalStore, "take", away)
        with pytest.raises(Away):
            await runs.come_back(run_id, turn, given, CLIENT)
    # It has its answer, and this broker goes on with it at the next look.
    response = await within(runs.outcome(run_id), 60)
    # What may have been taken at the first try, and not been run, is looked for.
    await runs.going_on._adopt()
    await within(runs.going_on.quiet())
    assert response is not None and response.result == {"result": 10} and MADE == {"write 1": 1}
    assert not response.diagnostics


@pytest.mark.parametrize("who", mostly(["client"], ["program", "client"]))
async def test_a_run_is_not_lost_whose_waiter_is_cancelled_while_it_is_taken(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    run_id = await parked(broker)
    runs, take = broker.parked_runs, JournalStore.take
    turn, (question,) = await runs.questions(run_id) or (0, ())
    is_there, goes_on = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        is_there.set()
        goes_on.wait(30)
        return take(*args, **kwargs)

    with monkeypatch.context() as slowed:
        slowed.setattr(JournalStore, "take", slow)
        waits: asyncio.Task[Any] = asyncio.create_task(
            broker.resume(run_id, "accepted")
            if who == "program"
            else runs.come_back(run_id, turn, {question.id: "accepted"}, CLIENT)
        )
        await until(is_there.is_set, "the run is taken")
        waits.cancel()
        await asyncio.wait([waits])
        goes_on.set()
        # Behind it.
        await runs.questions(run_id)

    async def over() -> Any:
        status = await runs.status(run_id, "embedding")
        return status if status is not None and status.state == "ended" else None

    await until_found(over, "the run has ended")
    status = await over()
    if who == "program":
        assert status.response.result == {"result": 10} and MADE == {"write 1": 1}
        assert not status.response.diagnostics, "no broker was lost"
    else:
        # As if it had gone away a moment later.
        assert status.outcome == "CANCELLED" and MADE == {}


@pytest.mark.parametrize("left_by", mostly(["a broker"], ["a person", "a broker"]))
async def test_a_run_waits_for_a_process_that_has_its_tools(tmp_path: Path, left_by: str) -> None:
    MADE.clear()
    async with broker_on(tmp_path) as made:
        run_id = await parked(made)
    with contextlib.closing(store_of(made)) as store:
        store.answer(run_id, "accepted")
        if left_by == "a broker":
            assert store.take(run_id, "broker-0000dead") is not None
    others: list[list[Any]] = [[], [read]]
    for tools in others:
        async with broker_on(tmp_path, tools) as other:
            found = other.parked_runs.going_on.foreign
            await until(lambda found=found: run_id in found, "it is seen that it does not go on here")
            what = "its tool write" if tools else "it"
            assert found[run_id] == f"it needs the server local, and this process does not have {what}"
            head = await other.keeper._journals.asked(lambda store: store.head(run_id), None)
            assert head is not None and head.state == ("parked" if left_by == "a person" else "running")
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

    def unknown(_: object) -> str:
        return ""

    def with_ledger(name: str, *idle: str) -> Broker:
        servers = {"plain": plain_server("--ledger", tmp_path / name), "idle": plain_server(*idle)}
        return Broker(settings(tmp_path / "s", servers, **LIGHT))

    with monkeypatch.context() as early:
        if left_by == "0.1.0":
            early.setattr(server_entries, "fingerprint", unknown)
        async with with_ledger("one") as made:
            response = await within(made.run(code, plan=True))
            run_id = str(response.usage.run_id)
    with contextlib.closing(store_of(made)) as store:
        store.answer(run_id, "accepted")
        if left_by == "a broker":
            assert store.take(run_id, "broker-0000dead") is not None
    async with with_ledger("other") as other:
        if left_by == "0.1.0":
            assert (await response_of(other, run_id)).result == {"text": "one"}
            return
        found = other.parked_runs.going_on.foreign
        await until(lambda: run_id in found, "it is seen that it does not go on here")
        assert found[run_id] == "its server plain has another command or URL in this process"
    # A server that the script cannot use may be another one.
    async with with_ledger("one", *(("--start-delay", "0") if how == "server" else ())) as again:
        assert (await response_of(again, run_id)).result == {"text": "one"}
    assert recorded(tmp_path / "one", tool="give") == 1 and recorded(tmp_path / "other", tool="give") == 0


@pytest.mark.parametrize("left_by", ["a person", "a broker"])
async def test_a_run_waits_until_its_server_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_by: str
) -> None:
    is_there = tmp_path / "is-there"
    is_there.touch()
    plain = plain_server("--ledger", tmp_path / "ledger", "--start-when", is_there)
    made_of = settings(tmp_path / "s", {"plain": plain}, **LIGHT, upstream={"connect_timeout_ms": 2000})
    async with Broker(made_of) as made:
        response = await within(made.run(f'{IMPORTS["server"]} await give({{ text: "one" }});', plan=True))
        run_id = str(response.usage.run_id)
    with contextlib.closing(store_of(made)) as store:
        store.answer(run_id, "accepted")
        if left_by == "a broker":
            assert store.take(run_id, "broker-0000dead") is not None
    is_there.unlink()
    monkeypatch.setattr(registry, "STARTUP_WAIT_SECONDS", 0.0)
    async with Broker(made_of) as other:
        found = other.parked_runs.going_on.foreign
        await until(lambda: run_id in found, "it is seen that its server is not there")
        assert found[run_id].startswith(
            "it needs the server plain, which is not connected here: it did not answer"
        )
        is_there.touch()
        assert (await response_of(other, run_id)).ok
    assert recorded(tmp_path / "ledger", tool="give") == 1


@pytest.mark.thorough
async def test_runs_without_room_leave_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MADE.clear()
    async with broker_on(tmp_path) as made:
        first, second = await parked(made), await parked(made)
    with contextlib.closing(store_of(made)) as store:
        for run_id in (first, second):
            store.answer(run_id, "accepted")
    taken, refused = Keeper.taken, 0

    def has_no_room(self: Keeper, store: JournalStore, run_id: str, take: Any) -> Any:
        nonlocal refused
        if run_id == first:
            refused += 1
            raise NotYet("its client holds too much")
        return taken(self, store, run_id, take)

    monkeypatch.setattr(Keeper, "taken", has_no_room)
    monkeypatch.setattr(store_module, "MAX_DUE", 1)
    monkeypatch.setattr(going_on, "POLL_SECONDS", 0.05)
    async with broker_on(tmp_path) as made:
        assert (await response_of(made, second)).result == {"result": 10}
        seen = refused
        await until(lambda: refused > seen, "the first is tried again")
