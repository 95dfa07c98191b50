"""A call that needs a login parks its run, which goes on when somebody has logged in, whichever broker is there."""

from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from cellblock import Broker
from cellblock.serve.mcp.mcp_server import FrontServer
from support.brokers import no_process, ready
from support.oauth_world import World, world
from support.parked_runs import response_of
from support.responses import succeeded
from support.waits import until_found, within

SCRIPT = """
import { whoami } from "@codemode/servers/notes";
console.log("drawn", Math.random());
const name = await whoami({}).catch((error) => [error.name, error.certainty, error.message]);
globalThis.__codemode_result__ = name;
"""

SECTION: dict[str, Any] = {
    "typecheck": "off",
    "policy": {"default": {"approve": ["notes.write"]}},
}


async def shut_out(place: World, broker: Broker) -> None:
    """Ends the login at the authorization server, when it was good for a broker."""
    await within(broker.settled())
    assert succeeded(await within(broker.run(SCRIPT))) == "ada"
    await place.end_logins()


async def parked(broker: Broker, **options: Any) -> str:
    """The id of a run that waits for a login."""
    response = await within(broker.run(SCRIPT, durable=True, **options), 60)
    assert response.parked and response.usage.run_id is not None, response
    (told,) = response.diagnostics
    assert "login" in told.message and "cellblock auth login notes" in told.message, told
    return response.usage.run_id


async def test_a_run_waits_for_a_login_and_goes_on_when_it_is_there(tmp_path: Path) -> None:
    async with world(tmp_path, **SECTION) as place:
        await place.log_in()
        async with Broker(place.settings) as broker:
            await shut_out(place, broker)
            # Who has not said that the run may wait is told at once.
            name, certainty, _ = succeeded(await within(broker.run(SCRIPT)))
            assert (name, certainty) == ("AuthenticationError", "not_started")
            run_id = await parked(broker)
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
    async with world(tmp_path, **SECTION) as place:
        await place.log_in()
        async with Broker(place.settings) as broker:
            await shut_out(place, broker)
            run_id, refused, early = await parked(broker), await parked(broker), await parked(broker)
            response = await within(broker.resume(refused, "declined"), 60)
            name, certainty, message = succeeded(response)
            assert (name, certainty) == ("AuthenticationError", "not_started") and "not called" in message
            # Who says yes too early is asked again.
            response = await within(broker.resume(early, "accepted"), 60)
            assert response.parked and len(await broker.parked()) == 2
        await place.log_in()
        async with Broker(place.settings) as broker:
            for one in (run_id, early):
                assert succeeded(await response_of(broker, one)) == "ada"


@pytest.mark.thorough
async def test_what_the_user_has_allowed_is_not_asked_again_and_a_yes_to_a_login_allows_nothing(
    tmp_path: Path,
) -> None:
    section = {**SECTION, "policy": {"default": {"approve": ["notes.whoami"]}}}
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
        relaxed = {**section, "policy": {"default": {"approve": ["notes.write"]}}}
        place.cellblock.update(relaxed)
        await place.log_in()
        async with Broker(place.settings) as broker:
            await shut_out(place, broker)
            run_id = await parked(broker)
        await place.log_in()
        place.cellblock.update(section)
        async with Broker(place.settings) as broker:

            async def is_asked() -> bool:
                kinds = [question.kind for one in await broker.parked() for question in one.questions]
                return kinds == ["approval"]

            await until_found(is_asked, "the call is asked about")
            assert succeeded(await within(broker.resume(run_id, "accepted"), 60)) == "ada"


async def test_a_client_is_asked_to_log_in_and_its_run_goes_on(tmp_path: Path) -> None:
    asked: list[str] = []

    async def logs_in(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        await place.log_in()
        return types.ElicitResult(action="accept", content={})

    async with world(tmp_path, **SECTION) as place:
        await place.log_in()
        async with Broker(place.settings) as broker:
            await shut_out(place, broker)
            server = FrontServer(broker, version="1").open()
            async with Client(server, mode="auto", elicitation_callback=logs_in) as client:
                run = await within(client.call_tool("codemode.run", {"code": SCRIPT}), 60)
            assert run.structured_content["result"] == "ada", run.structured_content
            (question,) = asked
            assert "needs a login" in question and "cellblock auth login notes" in question
