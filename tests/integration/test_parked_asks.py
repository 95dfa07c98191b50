"""What servers ask of runs that can wait: by a program, a client of an older revision, a server of the newer one."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import mcp_types as types
import psutil
import pytest
from mcp import Client

from cellblock import Broker, InvalidRequest, RunResponse
from cellblock.base.database import StoreError
from cellblock.base.questions import QuestionId
from cellblock.record import held_calls
from cellblock.record.store import JournalStore
from cellblock.run.questions import MAX_QUESTIONS
from cellblock.serve.mcp.mcp_server import FrontServer
from support.brokers import no_process, ready
from support.cellblock_zygote import forked_python, started
from support.entries import entry, forked_server, ledger, settings
from support.params import mostly
from support.parked_runs import response_of
from support.processes import kill_family
from support.waits import until, until_found, within

SECTION: dict[str, Any] = {
    "auth": {"keyring": "off"},
    "typecheck": "off",
}


@asynccontextmanager
async def serving(folder: Path, *options: str, **more: Any) -> AsyncGenerator[Broker]:
    command = forked_server("asking_server.py", "stdio", *options, "--ledger", folder / "ledger.jsonl")
    made = settings(folder / "s", {"asking": entry(command)}, **{**SECTION, **more})
    async with ready(made) as broker:
        yield broker


def code(tool: str, arguments: str = "{}") -> str:
    return f"""
        import {{ {tool} }} from "@codemode/servers/asking";
        globalThis.__codemode_result__ = await {tool}({arguments}).catch((error) => error.certainty);
    """


def accept(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


async def parked(broker: Broker, script: str) -> str:
    response = await within(broker.run(script, durable=True), 60)
    assert response.parked and response.usage.run_id is not None, response
    (told,) = response.diagnostics
    assert told.code == "RUN_PARKED" and "what servers ask during calls: asking." in told.message, told
    await no_process(broker)
    return response.usage.run_id


async def id_of(broker: Broker, run_id: str) -> QuestionId:
    (waiting,) = [one for one in await broker.parked() if one.id == run_id]
    (question,) = waiting.questions
    assert question.said == "asking: Who are you?" and question.kind == "elicitation"
    return question.id


@pytest.mark.parametrize("options", [("--older",), pytest.param((), marks=pytest.mark.thorough)])
async def test_a_program_answers_a_server_again_and_again(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Also one of the newer revision, which asks in rounds."""
    async with serving(tmp_path, *options) as broker:
        script = code("many", "{ times: 2 }") if options else code("input")
        run_id = await parked(broker, script)
        first = await id_of(broker, run_id)
        for wrong in (
            "accepted",
            {first: {"action": "accept", "content": {"name": 5}}},
            {first: {"roots": []}},
        ):
            with pytest.raises(InvalidRequest, match="does not fit"):
                await broker.resume(run_id, wrong)
        assert await id_of(broker, run_id) == first
        response: RunResponse = await within(broker.resume(run_id, {first: accept("Ann")}), 60)
        if options:
            assert response.parked, response
            second = await id_of(broker, run_id)
            assert second != first
            response = await within(broker.resume(run_id, {first: accept("Eve"), second: accept("Bob")}), 60)
            assert response.result == '{"accept Ann": 1, "accept Bob": 1}', response
        else:
            assert response.result == "accept Ann", response
        assert response.usage.resumed == 1
        assert [one["event"] for one in ledger(tmp_path / "ledger.jsonl")].count("answer") == 1


async def test_a_client_that_waits_is_asked_where_it_waits(tmp_path: Path) -> None:
    """Of an older revision: for longer than others wait before their run is parked."""

    async def slow(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        await asyncio.sleep(0.5)
        assert await broker.parked() == []
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    async with serving(tmp_path, "--older") as broker:
        server = FrontServer(broker, version="1").open()
        async with Client(server, mode="legacy", elicitation_callback=slow) as client:
            work = client.call_tool("codemode.run", {"code": code("elicit"), "durable": True})
            run = await within(work, 60)
        assert run.structured_content["result"] == "accept Ann", run.structured_content
        assert "resumed" not in run.structured_content["usage"]


@pytest.mark.thorough
async def test_a_call_asks_64_questions_when_its_run_is_parked_and_as_many_as_it_likes_before(
    tmp_path: Path,
) -> None:
    """The 65th is refused, and the server is told why; the client of a run that has its process answers them all."""

    async def answers(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    script = code("many", f"{{ times: {MAX_QUESTIONS + 2} }}")
    async with serving(tmp_path, "--older") as broker:
        run_id = await parked(broker, script)
        seen: set[QuestionId] = set()

        async def asks_again() -> bool:
            waiting = await broker.parked_runs.questions(run_id)
            return waiting is not None and bool({one.id for one in waiting[1]} - seen)

        for _ in range(MAX_QUESTIONS):
            await until_found(asks_again, "it asks", 60, pause=0.002)
            seen.add(await id_of(broker, run_id))
            await broker.parked_runs.answer(run_id, {max(seen): accept("Ann")})
        counts = json.loads((await response_of(broker, run_id)).result)
        assert counts.pop("accept Ann") == MAX_QUESTIONS
        (said,) = counts
        assert counts[said] == 2 and f"may ask {MAX_QUESTIONS} questions" in said
        server = FrontServer(broker, version="1").open()
        async with Client(server, mode="legacy", elicitation_callback=answers) as client:
            run = await within(client.call_tool("codemode.run", {"code": script, "durable": True}), 60)
        assert json.loads(run.structured_content["result"]) == {"accept Ann": MAX_QUESTIONS + 2}


async def test_a_server_that_dies_takes_its_question_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path, "--older") as broker:
        run_id = await parked(broker, code("elicit"))
        question = await id_of(broker, run_id)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "asking_server.py" in str(child.cmdline()):
                    child.kill()
        response = await response_of(broker, run_id)
        assert response.result == "may_have_run", response
        with pytest.raises(InvalidRequest, match="waits for an answer"):
            await broker.resume(run_id, {question: accept("Ann")})


@pytest.mark.parametrize("step", mostly(["add_answers"], ["add_answers", "release"]))
async def test_what_a_held_call_comes_to_is_written_as_often_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Nobody else lets the run go on while this broker lives."""
    work, tries = getattr(JournalStore, step), list[str]()
    monkeypatch.setattr(held_calls, "AGAIN_SECONDS", 0.05)

    def full(store: JournalStore, *args: Any, **more: Any) -> bool:
        tries.append("x")
        if len(tries) < 3:
            raise StoreError("the disk is full")
        return work(store, *args, **more)

    async with serving(tmp_path, "--older") as broker:
        run_id = await parked(broker, code("elicit"))
        monkeypatch.setattr(JournalStore, step, full)
        question = await id_of(broker, run_id)
        response = await within(broker.resume(run_id, {question: accept("Ann")}), 60)
    assert response.result == "accept Ann" and len(tries) == 3, response


async def test_what_cannot_be_answered_by_others_is_refused(tmp_path: Path) -> None:
    """A durable run whose client has no model, and no roots, does not wait for them."""
    async with serving(tmp_path, "--older") as broker:
        for tool, wanted in (("sample", "refused"), ("roots", "")):
            response = await within(broker.run(code(tool), durable=True), 60)
            assert str(response.result).startswith(wanted) and not response.parked, response
        # One that is not durable has nobody to wait for.
        response = await within(broker.run(code("elicit")), 60)
        assert "refused" in str(response.result), response


BROKER = """
import asyncio, json, sys
from pathlib import Path
from cellblock import Broker
from support.cellblock_zygote import forked_python, started
from support.entries import entry, forked_server, settings

async def main():
    folder, section = Path(sys.argv[1]), json.loads(sys.argv[3])
    command = forked_server("asking_server.py", "stdio", "--ledger", folder / "ledger.jsonl")
    async with Broker(settings(folder / "s", {"asking": entry(command)}, **section)) as broker:
        await broker.settled()
        await broker.run(Path(sys.argv[2]).read_text(), durable=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("is_answered", mostly([False], [False, True]))
async def test_a_call_that_asks_in_rounds_goes_on_in_another_broker_unless_it_has_its_answers(
    tmp_path: Path, *, is_answered: bool
) -> None:
    """Its server keeps nothing of it between two rounds; when it has the answers, it may have done all."""
    script, never = tmp_path / "script.js", tmp_path / "never"
    script.write_text(code("input", json.dumps({"file": str(never)} if is_answered else {})))

    def calls() -> int:
        return sum(one["event"] == "call" for one in ledger(tmp_path / "ledger.jsonl"))

    words = ("-c", BROKER, tmp_path, script, json.dumps(SECTION))
    process = await started(*words, program=forked_python(), cwd=Path(__file__).parents[1])
    made = settings(
        tmp_path / "s",
        {"asking": entry(forked_server("asking_server.py", "stdio", "--ledger", tmp_path / "ledger.jsonl"))},
        **SECTION,
    )
    async with Broker(made) as broker:

        async def is_parked() -> bool:
            return any(one.questions for one in await broker.parked())

        await until_found(is_parked, "it asks", 60)
        (waiting,) = await broker.parked()
        (question,) = waiting.questions
        assert calls() == 1
        if is_answered:
            # Either broker goes on with it.
            assert await broker.parked_runs.answer(waiting.id, {question.id: accept("Ann")}) is not None
            await until(lambda: calls() == 2, "the call goes on with its answer")
        await broker.parked_runs.going_on.stop_looking()
        kill_family(process.pid)
        await within(process.wait())
    async with Broker(made) as broker:
        if not is_answered:
            await within(broker.settled())
            assert calls() == 1
            (waiting,) = await broker.parked()
            assert waiting.questions == (question,)
            assert await broker.parked_runs.answer(waiting.id, {question.id: accept("Ann")}) is not None
        response = await response_of(broker, waiting.id)
    assert response.result == ("may_have_run" if is_answered else "accept Ann"), response
    assert calls() == 2
