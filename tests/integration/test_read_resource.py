"""`readResource` of `@codemode/discovery`: what a `resource_link` names, read as a tool call."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.serve.mcp.manual import opening
from support.brokers import ready
from support.entries import ledger, plain_server, settings
from support.responses import error_of, succeeded
from support.waits import within

LINK = {"type": "resource_link", "uri": "note://1", "name": "one"}
BLOB = base64.b64encode(bytes(range(256))).decode()
LARGE = "é" * 400_000

CODE = """import { readResource } from "@codemode/discovery";
globalThis.__codemode_result__ = await readResource(%s, %s);
"""

CAUGHT = """import { readResource } from "@codemode/discovery";
import * as errors from "@codemode/errors";
let caught = {};
try { await readResource(%s, %s); } catch (error) {
  const { name, message, hint, serverId, toolName, code, certainty } = error;
  caught = { name, message, hint, serverId, toolName, code, certainty, is: error instanceof errors.CodemodeError };
}
globalThis.__codemode_result__ = caught;
"""


def shelf(folder: Path, name: str, contents: Any, *, tools: bool = True) -> dict[str, Any]:
    """A server that answers `resources/read` with these contents, and whose tool `link`, if any, gives a link."""
    file, definitions = folder / f"{name}.json", folder / f"{name}-tools.json"
    answers = {} if contents is None else {"resources/read": {"contents": contents}}
    file.write_text(json.dumps({"capabilities": {"resources": {}}, "answers": answers}))
    tool = {"name": "link", "inputSchema": {"type": "object"}}
    given = {"pages": [[tool] if tools else []], "answers": {"link": {"content": [LINK, LINK]}}}
    definitions.write_text(json.dumps(given))
    return plain_server("--beside", file, "--definitions", definitions, "--ledger", folder / f"{name}.jsonl")


@pytest.fixture(scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resources")


@pytest.fixture(scope="module")
async def broker(folder: Path) -> AsyncIterator[Broker]:
    text = {"uri": "note://1", "mimeType": "text/plain", "text": "the note"}
    servers = {
        "notes": shelf(folder, "notes", [text]),
        "blobs": shelf(folder, "blobs", [{"uri": "note://1", "blob": BLOB}]),
        "many": shelf(folder, "many", [text, {"uri": "note://2", "text": "other"}]),
        "large": shelf(folder, "large", [{**text, "text": LARGE}]),
        "php": shelf(folder, "php", {"uri": 7, "text": "odd", "mimeType": None}),
        "nulls": shelf(folder, "nulls", [{"text": None}]),
        "alone": shelf(folder, "alone", [text], tools=False),
        "none": shelf(folder, "none", None),
        "narrow": {**shelf(folder, "narrow", [text]), "enabledTools": ["link"]},
    }
    async with ready(settings(folder, servers)) as started:
        yield started


async def read(broker: Broker, server: object, uri: object = "note://1", **more: Any) -> Any:
    return succeeded(await within(broker.run(CODE % (json.dumps(server), json.dumps(uri)), **more)))


async def refused(broker: Broker, server: object, uri: object = "note://1", **more: Any) -> dict[str, Any]:
    caught = succeeded(await within(broker.run(CAUGHT % (json.dumps(server), json.dumps(uri)), **more)))
    assert caught["is"] and caught["hint"], caught
    return caught


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("notes", "the note"),
        ("alone", "the note"),
        ("blobs", {"contents": [{"uri": "note://1", "blob": BLOB}]}),
        ("large", LARGE),
        ("php", "odd"),
        ("nulls", {"contents": [{"text": None}]}),
    ],
)
async def test_what_a_server_answers_reaches_the_script(
    broker: Broker, server: str, expected: object
) -> None:
    assert await read(broker, server) == expected


async def test_several_contents_come_as_they_are(broker: Broker) -> None:
    found = await read(broker, "many")
    assert [one["text"] for one in found["contents"]] == ["the note", "other"]


async def test_a_link_that_a_tool_gives_is_read_and_both_are_tool_calls(broker: Broker) -> None:
    code = """import { readResource } from "@codemode/discovery";
import { link } from "@codemode/servers/notes";
const { content } = await link({});
globalThis.__codemode_result__ = await readResource("notes", content[0].uri);
"""
    response = await within(broker.run(code))
    assert succeeded(response) == "the note"
    trace: list[dict[str, Any]] = response.as_json()["toolTrace"]
    assert [(one["serverId"], one["toolName"], one["ok"]) for one in trace] == [
        ("notes", "link", True),
        ("notes", "resources/read", True),
    ]
    assert "note://1" not in json.dumps(trace) and "the note" not in json.dumps(trace)


async def test_it_counts_toward_the_most_calls(broker: Broker, folder: Path) -> None:
    before = len(ledger(folder / "notes.jsonl"))
    code = CODE % ('"notes"', '"note://1"') + 'await readResource("notes", "note://2");'
    assert error_of(await within(broker.run(code, limits={"maxToolCalls": 1})), "SANDBOX_LIMIT")
    assert len(ledger(folder / "notes.jsonl")) == before + 1


@pytest.mark.parametrize(
    ("server", "uri", "name", "said"),
    [
        ("nots", "note://1", "ServerNotFoundError", "There is no server nots."),
        ("", "note://1", "ServerNotFoundError", "serverId is no id of a server."),
        (None, "note://1", "ServerNotFoundError", "serverId is no id of a server."),
        ("x" * 300_000, "note://1", "ServerNotFoundError", "serverId is no id of a server."),
        ("notes", 7, "SchemaValidationError", "does not fit its schema"),
        ("notes", None, "SchemaValidationError", "does not fit its schema"),
        ("none", "note://1", "ToolCallError", "no method resources/read"),
        ("narrow", "note://1", "ToolNotFoundError", "has no resources that scripts may read"),
    ],
)
async def test_what_cannot_be_read_is_an_error_with_a_hint(
    broker: Broker, server: object, uri: object, name: str, said: str
) -> None:
    caught = await refused(broker, server, uri)
    assert (caught["name"], said in caught["message"]) == (name, True), caught


async def test_the_policy_knows_it_by_the_name_of_its_request(broker: Broker) -> None:
    assert (await refused(broker, "notes", grants={"tools": ["notes.link"]}))["code"] == "NOT_GRANTED"
    assert await read(broker, "notes", grants={"tools": ["notes.resources/read"]}) == "the note"
    assert await read(broker, "notes", grants={"readOnly": True}) == "the note"
    code = 'await readResource("notes", "note://2");' + CAUGHT % ('"notes"', '"note://1"')
    caught = succeeded(await within(broker.run(code, grants={"budgets": {"notes.resources/*": 1}})))
    assert caught["code"] == "BUDGET_USED_UP"


async def test_a_server_with_resources_alone_says_so(broker: Broker) -> None:
    code = """import { describeServer } from "@codemode/discovery";
globalThis.__codemode_result__ = await describeServer("alone");
"""
    described = succeeded(await within(broker.run(code)))
    assert "resources and no tools" in described["description"] and "readResource" in described["description"]
    assert "With resources and no functions (readResource of @codemode/discovery): alone." in opening(
        broker.catalog
    )
