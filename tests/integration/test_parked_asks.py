"""What parked runs wait for beside approvals: answers that servers ask for, and logins.

They are asked by a program, a client of an older revision, or a server of the newer one. A run goes on when what it
waits for is there, whichever broker is.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import mcp_types as types
import psutil
import pytest
from mcp import Client

from cellblock import Broker, InvalidRequest, QuestionId, Settings
from cellblock.base.database import StoreError
from cellblock.record.store import JournalStore
from cellblock.run.questions import MAX_QUESTIONS
from cellblock.serve.mcp.mcp_server import FrontServer
from support.brokers import no_process, ready
from support.cellblock_zygote import forked_python, started
from support.entries import entry, forked_server, ledger, settings
from support.oauth_world import World, world
from support.params import mostly
from support.parked_runs import response_of
from support.processes import kill_family
from support.responses import succeeded
from support.waits import until, until_found, within

SECTION: dict[str, Any] = {"auth": {"keyring": "off"}, "typecheck": "off"}


def made_of(folder: Path, *options: str) -> Settings:
    command = forked_server("asking_server.py", "stdio", *options, "--ledger", folder / "ledger.jsonl")
    return settings(folder / "s", {"asking": entry(command)}, **SECTION)


def serving(folder: Path, *options: str) -> AbstractAsyncContextManager[Broker]:
    return ready(made_of(folder, *options))


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
        response = await within(broker.resume(run_id, {first: accept("Ann")}), 60)
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


async def run_of_client(broker: Broker, script: str, elicits: Any, mode: str = "legacy") -> Any:
    """What a client that can be asked is told of a durable run."""
    async with Client(
        FrontServer(broker, version="1").open(), mode=mode, elicitation_callback=elicits
    ) as client:
        run = await within(client.call_tool("codemode.run", {"code": script, "durable": True}), 60)
    return run.structured_content


async def test_a_client_that_waits_is_asked_where_it_waits(tmp_path: Path) -> None:
    """Of an older revision: for longer than others wait before their run is parked."""

    async def slow(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        await asyncio.sleep(0.5)
        assert await broker.parked() == []
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    async with serving(tmp_path, "--older") as broker:
        run = await run_of_client(broker, code("elicit"), slow)
    assert run["result"] == "accept Ann" and "resumed" not in run["usage"], run


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
        run = await run_of_client(broker, script, answers)
    assert json.loads(run["result"]) == {"accept Ann": MAX_QUESTIONS + 2}


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
    monkeypatch.setattr("cellblock.record.held_calls.AGAIN_SECONDS", 0.05)

    def full(store: JournalStore, *args: Any, **more: Any) -> bool:
        tries.append("x")
        if len(tries) < 3:
            raise StoreError("the disk is full")
        return work(store, *args, **more)

    async with serving(tmp_path, "--older") as broker:
        run_id = await parked(broker, code("elicit"))
        monkeypatch.setattr(JournalStore, step, full)
        response = await within(broker.resume(run_id, {await id_of(broker, run_id): accept("Ann")}), 60)
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
    async with Broker(made_of(tmp_path)) as broker:

        async def asked() -> list[Any]:
            return [one for one in await broker.parked() if one.questions]

        (waiting,) = await until_found(asked, "it asks", 60)
        (question,) = waiting.questions
        assert calls() == 1
        if is_answered:
            # Either broker goes on with it.
            assert await broker.parked_runs.answer(waiting.id, {question.id: accept("Ann")}) is not None
            await until(lambda: calls() == 2, "the call goes on with its answer")
        await broker.parked_runs.going_on.stop_looking()
        kill_family(process.pid)
        await within(process.wait())
    async with Broker(made_of(tmp_path)) as broker:
        if not is_answered:
            await within(broker.settled())
            assert calls() == 1
            (waiting,) = await broker.parked()
            assert waiting.questions == (question,)
            assert await broker.parked_runs.answer(waiting.id, {question.id: accept("Ann")}) is not None
        response = await response_of(broker, waiting.id)
    assert response.result == ("may_have_run" if is_answered else "accept Ann"), response
    assert calls() == 2


SCRIPT = """
import { whoami } from "@codemode/servers/notes";
console.log("drawn", Math.random());
const name = await whoami({}).catch((error) => [error.name, error.certainty, error.message]);
globalThis.__codemode_result__ = name;
"""

OF_LOGINS: dict[str, Any] = {
    "typecheck": "off",
    "policy": {"default": {"approve": ["notes.write"]}},
}


@asynccontextmanager
async def shut_out(place: World) -> AsyncGenerator[Broker]:
    """A broker whose login was good for it, and has ended at the authorization server since."""
    await place.log_in()
    async with ready(place.settings) as broker:
        assert succeeded(await within(broker.run(SCRIPT))) == "ada"
        await place.end_logins()
        yield broker


async def parked_for_login(broker: Broker, **options: Any) -> str:
    """The id of a run that waits for a login."""
    response = await within(broker.run(SCRIPT, durable=True, **options), 60)
    assert response.parked and response.usage.run_id is not None, response
    (told,) = response.diagnostics
    assert "login" in told.message and "cellblock auth login notes" in told.message, told
    return response.usage.run_id


async def test_a_run_waits_for_a_login_and_goes_on_when_it_is_there(tmp_path: Path) -> None:
    async with world(tmp_path, **OF_LOGINS) as place, shut_out(place) as broker:
        # Who has not said that the run may wait is told at once.
        name, certainty, _ = succeeded(await within(broker.run(SCRIPT)))
        assert (name, certainty) == ("AuthenticationError", "not_started")
        run_id = await parked_for_login(broker)
        await no_process(broker)
        (waiting,) = await broker.parked()
        (question,) = waiting.questions
        assert question.kind == "login" and "cellblock auth login notes" in question.said
        await place.log_in()
        done = await response_of(broker, run_id)
        assert succeeded(done) == "ada" and done.usage.resumed == 1
        assert len(done.logs) == 1 and [entry.ok for entry in done.tool_trace] == [True]


async def test_it_goes_on_in_another_broker_and_who_says_no_has_the_call_refused(tmp_path: Path) -> None:
    """The call was refused, so it was certainly not made, whatever becomes of its broker."""
    async with world(tmp_path, **OF_LOGINS) as place:
        async with shut_out(place) as broker:
            run_id, refused, early = [await parked_for_login(broker) for _ in range(3)]
            response = await within(broker.resume(refused, "declined"), 60)
            name, certainty, message = succeeded(response)
            assert (name, certainty) == ("AuthenticationError", "not_started") and "not called" in message
            # Who says yes too early is asked again.
            response = await within(broker.resume(early, "accepted"), 60)
            assert response.parked and len(await broker.parked()) == 2
        await place.log_in()
        async with Broker(place.settings) as broker:
            assert [(await response_of(broker, one)).result for one in (run_id, early)] == ["ada"] * 2


@pytest.mark.thorough
async def test_what_the_user_has_allowed_is_not_asked_again_and_a_yes_to_a_login_allows_nothing(
    tmp_path: Path,
) -> None:
    section = {**OF_LOGINS, "policy": {"default": {"approve": ["notes.whoami"]}}}
    async with world(tmp_path, **section) as place:
        await place.log_in()
        async with ready(place.settings) as broker:
            await place.end_logins()
            response = await within(broker.run(SCRIPT, durable=True))
            (waiting,) = await broker.parked()
            assert [one.kind for one in waiting.questions] == ["approval"]
            response = await within(broker.resume(waiting.id, "accepted"), 60)
            assert response.parked, response
            (waiting,) = await broker.parked()
            assert [one.kind for one in waiting.questions] == ["login"]
            await place.log_in()
            assert succeeded(await response_of(broker, waiting.id)) == "ada"
            # A call that nobody has allowed is asked about, whatever was said of its login.
            await place.end_logins()
        place.cellblock.update(OF_LOGINS)
        async with shut_out(place) as broker:
            run_id = await parked_for_login(broker)
        await place.log_in()
        place.cellblock.update(section)
        async with Broker(place.settings) as broker:

            async def is_asked() -> bool:
                return [question.kind for one in await broker.parked() for question in one.questions] == [
                    "approval"
                ]

            await until_found(is_asked, "the call is asked about")
            assert succeeded(await within(broker.resume(run_id, "accepted"), 60)) == "ada"


async def test_a_client_is_asked_to_log_in_and_its_run_goes_on(tmp_path: Path) -> None:
    asked: list[str] = []

    async def logs_in(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        await place.log_in()
        return types.ElicitResult(action="accept", content={})

    async with world(tmp_path, **OF_LOGINS) as place, shut_out(place) as broker:
        server = FrontServer(broker, version="1").open()
        async with Client(server, mode="auto", elicitation_callback=logs_in) as client:
            run = await within(client.call_tool("codemode.run", {"code": SCRIPT}), 60)
        assert run.structured_content["result"] == "ada", run.structured_content
        (question,) = asked
        assert "needs a login" in question and "cellblock auth login notes" in question
