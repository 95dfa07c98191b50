"""In the profile `proxy` a call asks its client, in both generations of the protocol: for approval, and what its server
asks. Its client's answer finds it at its broker, once."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from support.asking_client import Asked, always, asking, over_http
from support.entries import entry, forked_server, ledger
from support.http_daemon import Daemon, daemon
from support.waits import within

GIVE, ELICIT, INPUT = "mcp__plain__give", "mcp__older__elicit", "mcp__newer__input"
NAMED = types.ElicitResult(action="accept", content={"name": "Ann"})
YES = types.ElicitResult(action="accept", content={})


@asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[Daemon]:
    servers = {
        name: entry(
            forked_server("asking_server.py", "stdio", *options, "--ledger", folder / f"{name}.jsonl")
        )
        for name, options in (("older", ["--older"]), ("newer", []))
    }
    policy = {"default": {"approve": ["plain.give"]}}
    async with daemon(folder, "--profile", "proxy", servers=servers, policy=policy) as served:
        yield served


@asynccontextmanager
async def connected(served: Daemon, mode: str = "auto") -> AsyncGenerator[Asked]:
    async with over_http(served) as transport, asking(transport, mode) as asked:
        yield asked


def calls(folder: Path, name: str) -> int:
    return sum(one["event"] == "call" for one in ledger(folder / f"{name}.jsonl"))


async def called(asked: Asked, tool: str, **more: Any) -> tuple[str, bool | None]:
    result = await within(asked.client.call_tool(tool, {"a": 1}, **more))
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    return "".join(texts) or json.dumps(result.structured_content), result.is_error


async def left(asked: Asked, tool: str) -> tuple[str, str]:
    """Makes a call that asks: the question's name, and the word to come back with."""
    found = await within(asked.client.session.call_tool(tool, {"a": 1}, allow_input_required=True))
    assert isinstance(found, types.InputRequiredResult) and found.request_state is not None
    (key,) = found.input_requests or {}
    return key, found.request_state


async def refused(asked: Asked, tool: str, given: Mapping[str, Any], word: str) -> str:
    with pytest.raises(MCPError) as error:
        await called(asked, tool, input_responses=dict(given), request_state=word)
    assert error.value.code == types.INVALID_PARAMS
    return error.value.message


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_call_that_asks_goes_on_with_the_answer(tmp_path: Path, mode: str) -> None:
    async with serving(tmp_path) as served, connected(served, mode) as asked:
        asked.answer = always("accept")
        text, failed = await called(asked, GIVE)
        assert json.loads(text) == {"a": 1} and not failed
        for action in ("decline", "cancel"):
            asked.answer = always(action)
            assert (await called(asked, GIVE))[1]
        assert served.recorded(tool="give") == 1
        assert len(asked.questions) == 3 and all("plain.give" in question for question in asked.questions)

        async def named(_: str) -> Any:
            return NAMED

        asked.answer = named
        assert await called(asked, ELICIT) == ("accept Ann", False)
        assert await called(asked, INPUT) == ("accept Ann", False)
        assert asked.questions[3:] == ["older: Who are you?", "newer: Who are you?"]
    assert calls(tmp_path, "older") == 1


async def test_an_answer_is_good_once_and_for_its_form(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, connected(served) as asked:
        key, word = await left(asked, ELICIT)
        wrong = await refused(asked, ELICIT, {key: YES}, word)
        assert "does not fit its form" in wrong and "answer it again" in wrong
        back = {"input_responses": {key: NAMED}, "request_state": word}
        assert await called(asked, ELICIT, **back) == ("accept Ann", False)
        assert "may have run" in await refused(asked, ELICIT, {key: NAMED}, word)
        # Who comes back without an answer has not chosen.
        _, word = await left(asked, GIVE)
        text, failed = await called(asked, GIVE, request_state=word)
        assert failed and "not called" in text
    assert calls(tmp_path, "older") == 1 and served.recorded(tool="give") == 0


async def test_an_answer_after_a_restart_is_told_what_became_of_the_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, connected(served) as asked:
        approval, elicitation = await left(asked, GIVE), await left(asked, ELICIT)
    async with serving(tmp_path) as served, connected(served) as asked:
        key, word = approval
        said = await refused(asked, GIVE, {key: YES}, word)
        assert "broker that held the call has ended" in said and "was not made" in said
        key, word = elicitation
        said = await refused(asked, ELICIT, {key: NAMED}, word)
        assert "broker that held the call has ended" in said and "may have run" in said
        assert served.recorded(tool="give") == 0 and calls(tmp_path, "older") == 1
