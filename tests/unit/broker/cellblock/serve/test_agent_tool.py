"""The tool for agents that are no MCP clients: its definitions, its declarations, and what calls of models get."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, ConfigError, Grantee, InvalidRequest, Media, ToolAnswer, tool
from cellblock.app.config.load import parse_settings
from support.entries import settings
from support.waits import within

READERS = "team:readers"


@tool(annotations={"readOnlyHint": True})
def price(fruit: str) -> int:
    "The price of one fruit."
    return {"pear": 55}[fruit]


@tool
def buy(fruit: str) -> str:
    "Buys one."
    return f"bought {fruit}"


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    policy = {"clients": {READERS: {"readOnly": True}, "token": {"readOnly": True}, "embedding": {}}}
    given = settings(tmp_path_factory.mktemp("state"), {}, policy=policy)
    async with Broker(given, tools=[price, buy]) as broker:
        yield broker


def calling(name: str) -> dict[str, Any]:
    return {
        "code": f"import * as s from '@codemode/servers/local'; export default await s.{name}({{ fruit: 'pear' }})"
    }


async def test_each_api_gets_the_same_tool_in_its_own_form(broker: Broker) -> None:
    mcp = await broker.tool_definition("mcp")
    text, schema = mcp["description"], mcp["inputSchema"]
    assert "function price(" in text and "function buy(" in text and "globalThis.__codemode_result__" in text
    assert (mcp["name"], schema["required"]) == ("codemode.run", ["code"])
    assert await broker.tool_definition("openai") == {
        "type": "function",
        "name": "codemode_run",
        "description": text,
        "parameters": schema,
        "strict": False,
    }
    assert await broker.tool_definition("anthropic") == {
        "name": "codemode_run",
        "description": text,
        "input_schema": schema,
    }
    schema["properties"].clear()
    assert (await broker.tool_definition("mcp"))["inputSchema"]["properties"], "what is given is a copy"
    with pytest.raises(InvalidRequest, match="mcp, openai, anthropic"):
        await broker.tool_definition("gemini")  # pyright: ignore[reportArgumentType]


async def test_declarations_may_stand_elsewhere_than_in_the_definition(broker: Broker) -> None:
    short = (await broker.tool_definition("openai", budget=0))["description"]
    assert "function price(" not in short and "price" in short
    for whole in (await broker.declarations(), await broker.declarations(servers=["local"], budget=10_000)):
        assert "function price(" in whole and "function buy(" in whole
    assert "function price(" not in await broker.declarations(budget=10)
    with pytest.raises(InvalidRequest, match=r"'lokal' are not known: there is none.* local"):
        await broker.declarations(servers=["lokal"])


async def test_a_call_of_a_model_gets_the_response_as_text(broker: Broker) -> None:
    given = calling("price")
    for arguments in (given, json.dumps(given), {**given, "limits": None}):
        answer = await within(broker.handle_tool_call("codemode_run", arguments))
        assert answer.response is not None and not answer.is_error, answer
        assert answer.response.result == {"result": 55} and answer.text.startswith('{"result":55}')
    failed = await within(broker.handle_tool_call("codemode.run", {"code": "throw new Error('no pears')"}))
    assert (
        failed.is_error and failed.text.startswith("error UNCAUGHT_EXCEPTION") and "no pears" in failed.text
    )


def test_each_api_gets_images_in_its_own_form() -> None:
    answer = ToolAnswer(
        "a", False, media=(Media("image", "image/png", "AA=="), Media("audio", "audio/wav", "BB=="))
    )
    assert {api: answer.content(api) for api in ("anthropic", "openai", "mcp")} == {
        "anthropic": [
            {"type": "text", "text": "a"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        ],
        "openai": [
            {"type": "input_text", "text": "a"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        ],
        "mcp": [
            {"type": "text", "text": "a"},
            {"type": "image", "data": "AA==", "mimeType": "image/png"},
            {"type": "audio", "data": "BB==", "mimeType": "audio/wav"},
        ],
    }
    with pytest.raises(InvalidRequest, match="mcp, openai, anthropic"):
        answer.content("gemini")  # pyright: ignore[reportArgumentType]


async def test_an_image_of_a_result_is_beside_the_text(broker: Broker) -> None:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 22).decode()
    block = {"type": "image", "data": data, "mimeType": "image/png"}
    answer = await within(
        broker.handle_tool_call("codemode_run", {"code": f"export default {json.dumps(block)};"})
    )
    assert answer.media == (Media("image", "image/png", data),)
    assert json.loads(answer.text)["data"] == "[image/png, 30 bytes: image block 1 of this response]"
    assert answer.response is not None and answer.response.result == block


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "[1]",
        pytest.param("[" * 200_000, id="deep"),
        "{}",
        {},
        None,
        {"code": 1},
        '{"code": "1", "limits": 3}',
    ],
)
async def test_a_malformed_call_is_told_to_the_model(broker: Broker, arguments: Any) -> None:
    answer = await within(broker.handle_tool_call("codemode_run", arguments))
    assert answer.is_error and answer.response is None
    assert "code" in answer.text or "limits" in answer.text


async def test_a_call_of_another_tool_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="'price' is no tool of Cellblock"):
        await broker.handle_tool_call("price", {})


async def test_a_client_that_the_policy_names_has_its_grant_everywhere(broker: Broker) -> None:
    """The run, the call of a model, the definition and the declarations agree."""
    refused = await within(broker.run(**calling("buy"), client=READERS))
    assert not refused.ok and "grant it in cellblock.policy" in (refused.diagnostics[0].hint or "")
    assert (await within(broker.run(**calling("price"), client=READERS))).ok
    assert (await within(broker.handle_tool_call("codemode_run", calling("buy"), client=READERS))).is_error
    assert "buy" not in (await broker.tool_definition("openai", client=READERS))["description"]
    assert "buy" not in await broker.declarations(client=READERS)
    asked = Grantee("embedding")
    assert (await within(broker.run(**calling("buy"), client=READERS, grantee=asked))).ok


@pytest.mark.parametrize("client", ["token", "ann", "team:writers", "oauth:ann", "cli"])
async def test_any_other_name_is_for_fairness_alone(broker: Broker, client: str) -> None:
    """What a caller chooses must not become the grant of somebody whom Cellblock itself knows."""
    assert (await within(broker.run(**calling("buy"), client=client))).ok


@pytest.mark.parametrize(
    "name", ["embeding", "claude-code", "oauht:ann", "OAuth:ann", "tokens:x", "oauth:", ":x", "x:"]
)
def test_a_name_that_may_be_a_slip_is_no_client(name: str) -> None:
    with pytest.raises(ConfigError, match="is no client"):
        parse_settings({"cellblock": {"policy": {"clients": {name: {"readOnly": True}}}}})


def test_names_of_a_programs_own_are(tmp_path: Path) -> None:
    names = [READERS, "tenant:42:ann", "user:ann@example.com"]
    read = settings(tmp_path, {}, policy={"clients": {name: {"readOnly": True} for name in names}})
    assert list(read.cellblock.policy.clients) == names


async def test_declarations_that_were_deferred_come_with_the_first_script_that_names_the_server(
    tmp_path: Path,
) -> None:
    """001, 4.4: once for each client, and not to who was given them before."""

    async def brought(client: str, name: str = "price") -> str:
        answer = await within(broker.handle_tool_call("codemode_run", calling(name), client=client))
        text = answer.declarations.get("local", "")
        assert text in answer.text and ("declarations:" in answer.text) == bool(text)
        return text

    async with Broker(settings(tmp_path, {}), tools=[price, buy]) as broker:
        assert "function price(" not in (await broker.tool_definition("openai", budget=0))["description"]
        await broker.tool_definition("openai", budget=0, client="team:a")
        first = await brought("embedding")
        assert "function price(input: {" in first and "function buy(" in first and "declare module" in first
        second = await brought("embedding", "buy")
        assert "function buy(" in second and "price" not in second, "whole where it is first used"
        assert await brought("embedding", "buy") == "", "once"
        assert "function price(" in await brought("team:a"), "of its own"
        await broker.tool_definition("anthropic", client="team:c")
        assert await brought("team:c") == "", "the description had them"
        await broker.declarations(client="team:d")
        assert await brought("team:d") == "", "so had the declarations"
