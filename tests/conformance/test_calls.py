"""Section 5.3: what a binding takes, and what it gives back."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, CONTRACT_TOOLS, broker_with, evaluated, value
from support.entries import ledger, plain_server

STRUCTURED = ["structured", "structured_only", "structured_empty", "structured_with_image"]
TEXTS = ["one_text", "empty_text", "json_text", "annotated_text", "hostile_text"]
MEDIA = ["image", "audio", "text_and_image"]
OTHERS = ["two_texts", "no_content", "resource_text", "resource_blob", "resource_link", "with_meta"]


ODD = [
    {"name": "schema_absent"},
    {"name": "schema_empty", "inputSchema": {}},
    {"name": "schema_array", "inputSchema": {"type": "array", "items": {"type": "integer"}}},
    {"name": "schema_string", "inputSchema": {"type": "string"}},
]
"""Tools that the SDK can neither list nor call."""


@pytest.fixture(scope="module")
async def odd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with the server whose input schemas are none of type object: each tool gives its input as JSON text."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "tools.json").write_text(json.dumps({"pages": [ODD]}))
    servers = {"odd": plain_server("--definitions", folder / "tools.json")}
    async with broker_with(folder, servers) as made:
        yield made


async def answered(broker: Broker, name: str) -> Any:
    """What the binding of an answering tool gives."""
    return await evaluated(broker, f"await contract[{name!r}]()", CONTRACT)


@pytest.mark.clause("5.3.2.1")
@pytest.mark.parametrize("name", STRUCTURED)
async def test_structured_content_wins(broker: Broker, name: str) -> None:
    """Whatever the content beside it is, an empty object too."""
    assert await answered(broker, name) == CONTRACT_TOOLS[name]["answer"]["structuredContent"]


@pytest.mark.clause("5.3.2.1")
@pytest.mark.parametrize("name", ["structured_zero", "structured_false", "structured_list"])
async def test_structured_content_may_be_any_value(broker: Broker, name: str) -> None:
    """Rule 1 asks whether it is there, not whether it is true or an object (newer MCP allows any value)."""
    assert await answered(broker, name) == CONTRACT_TOOLS[name]["answer"]["structuredContent"]


@pytest.mark.clause("5.3.2.2")
@pytest.mark.parametrize("name", TEXTS)
async def test_a_single_text_gives_its_string(broker: Broker, name: str) -> None:
    """The very string: empty or hostile, and not parsed when it looks like JSON."""
    assert await answered(broker, name) == CONTRACT_TOOLS[name]["answer"]["content"][0]["text"]


@pytest.mark.clause("5.3.2.3")
@pytest.mark.parametrize("name", MEDIA)
async def test_images_and_audio_give_the_full_result(broker: Broker, name: str) -> None:
    """With the payload as the base64 string that the server sent."""
    found = await answered(broker, name)
    assert found["content"] == CONTRACT_TOOLS[name]["answer"]["content"]
    payload = found["content"][-1]["data"]
    decoded = await evaluated(broker, f"(await contract[{name!r}]()).content.at(-1)", CONTRACT)
    assert isinstance(payload, str) and decoded["data"] == payload


@pytest.mark.clause("5.3.2.4")
@pytest.mark.parametrize("name", OTHERS)
async def test_anything_else_gives_the_full_result(broker: Broker, name: str) -> None:
    """Several blocks, none, or resources: the result object as MCP defines it."""
    found = await answered(broker, name)
    answer = CONTRACT_TOOLS[name]["answer"]
    assert found["content"] == answer["content"]
    # The SDK's server adds to `_meta`.
    assert answer.get("_meta", {}).items() <= found.get("_meta", {}).items()
    assert set(found) <= {"content", "isError", "_meta"}


@pytest.mark.clause("5.3.1.a", "5.1.a")
async def test_an_object_schema_takes_one_argument(broker: Broker, ledgers: Path) -> None:
    """What the script passes is what the tool gets: nested data, unicode, numbers, empty keys; no more arguments."""
    sent: dict[str, Any] = {
        "text": "ä\u2028😀\u0000",
        "": "empty key",
        "__proto__": {"x": 1},
        "numbers": [0, -1, 1.5, 1e300, 2**53 - 1, -0.5],
        "deep": {"a": [{"b": [[], {}]}]},
        "null": None,
        "flags": [True, False],
    }
    code = f"""{CONTRACT}
        const sent = JSON.parse({json.dumps(json.dumps(sent))});
        const one = await contract.echo(sent);
        const more = await contract.echo({{ a: 1 }}, {{ b: 2 }}, 3);
        globalThis.__codemode_result__ = [one.arguments, more.arguments, contract.echo.length];
    """
    one, more, length = await value(broker, code)
    assert one == sent and more == {"a": 1} and length == 1
    calls = [
        event["arguments"] for event in ledger(ledgers / "contract.jsonl") if event.get("tool") == "echo"
    ]
    assert calls[-2:] == [sent, {"a": 1}]


@pytest.mark.clause("5.3.1.a")
async def test_javascript_values_are_sent_as_json_has_them(broker: Broker) -> None:
    """`undefined` members are left out, dates are strings; what has no JSON form is refused, not mangled."""
    code = f"""{CONTRACT}{CAUGHT}
        const sent = await contract.echo({{ a: undefined, date: new Date(0), list: [1, undefined] }});
        const refused = [await caught(() => contract.echo({{ no: NaN }})), await caught(() => contract.echo(() => 1)),
            await caught(() => {{ const loop = {{}}; loop.loop = loop; return contract.echo(loop); }})];
        globalThis.__codemode_result__ = [sent.arguments, refused];
    """
    sent, refused = await value(broker, code)
    assert sent == {"date": "1970-01-01T00:00:00.000Z", "list": [1, None]}
    assert [one["name"] for one in refused] == ["SchemaValidationError"] * 3
    assert all(one["hint"] for one in refused)


@pytest.mark.clause("5.3.1.a")
@pytest.mark.parametrize("name", ["schema_no_properties", "echo", "one_text"])
async def test_no_argument_and_an_empty_object_are_the_same(broker: Broker, name: str) -> None:
    """For tools that need nothing."""
    first, second = await evaluated(
        broker, f"[await contract.{name}(), await contract.{name}({{}})]", CONTRACT
    )
    assert first == second


@pytest.mark.clause("5.3.1.a")
@pytest.mark.parametrize("name", ["schema_absent", "schema_empty"])
async def test_an_absent_or_empty_schema_takes_nothing_or_an_empty_object(odd: Broker, name: str) -> None:
    """The server is connected, and both calls reach the tool."""
    odd_import = 'import * as odd from "@codemode/servers/odd";'
    found = await evaluated(
        odd, f"[await odd.{name}(), await odd.{name}({{}}), odd.{name}.length]", odd_import
    )
    assert found == ["{}", "{}", 0]


@pytest.mark.clause("5.3.1.a")
@pytest.mark.parametrize(("name", "sent"), [("schema_array", [1, 2, 3]), ("schema_string", "just text")])
async def test_another_root_type_takes_a_value_of_that_type(odd: Broker, name: str, sent: Any) -> None:
    """The value is passed to the tool as it is."""
    found = await evaluated(
        odd, f"await odd.{name}({json.dumps(sent)})", 'import * as odd from "@codemode/servers/odd";'
    )
    assert json.loads(found) == sent


@pytest.mark.clause("5.3.1.a", "11.c")
async def test_one_odd_tool_does_not_cost_a_server_the_others(odd: Broker) -> None:
    """A tool whose schema is unusual is no reason to have none of the server's tools."""
    assert "odd" in odd.catalog.servers, odd.catalog.unavailable
