"""What an agent is told before it writes code (3.2.1, 3.2.3, 3.2.4, 3.5, 4.4, 5.3.2), as an MCP client sees it."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cellblock.base.settings.sections import ANSWER_BYTES
from cellblock.tools.catalog.modules import ERROR_CLASSES
from conformance.world import Agent, agent_with
from support.entries import plain_server


async def the_tool(agent: Agent) -> Any:
    [tool] = (await agent.client.list_tools()).tools
    return tool


async def told(agent: Agent) -> str:
    """Instructions and the tool's description: what clients put before their models."""
    return f"{agent.client.instructions or ''}\n{(await the_tool(agent)).description or ''}"


async def exports_of(agent: Agent, server: str) -> list[str]:
    return (
        await agent.run(f"""import {{ __meta__ }} from "@codemode/servers/{server}";
        globalThis.__codemode_result__ = __meta__.tools.map((tool) => tool.exportName);""")
    )["result"]


def lacking(text: str, names: list[str]) -> list[str]:
    """Those that are no words of a text."""
    return [name for name in names if not re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text)]


@pytest.mark.clause("3.2.3.e", "4.4.a")
async def test_what_a_client_that_cuts_at_2048_characters_passes_on_is_enough(agent: Agent) -> None:
    """Claude Code cuts descriptions and instructions there: a first script needs nothing of what stands behind."""
    tool = await the_tool(agent)
    start = tool.description[:2048]
    assert len(agent.client.instructions or "") < 1000
    assert "__codemode_result__" in start and "getTool" in start and "await" in start
    for server in ("contract", "plain"):
        names = await exports_of(agent, server)
        [row] = [line for line in start.splitlines() if line.startswith(f"- {server}")]
        left_out = lacking(row, names)
        assert left_out != names and (not left_out or f"({len(names)})" in row)
    assert tool.meta["anthropic/alwaysLoad"] is True


@pytest.mark.clause("3.2.4.c")
async def test_the_limits_are_told(agent: Agent) -> None:
    """Each key, and those that the schema names are the same."""
    text = await told(agent)
    in_schema = (await the_tool(agent)).input_schema["properties"]["limits"].get("properties", {})
    keys = ["timeoutMs", "maxMemoryBytes", "maxLogBytes", "maxToolCalls", *in_schema]
    assert [key for key in keys if key not in text] == []
    maximum = re.search(r"timeoutMs\D+(\d+)\D+(\d+)", text)
    assert maximum, "default and maximum of timeoutMs are told"
    for more, codes in ((0, []), (1, ["LIMIT_CLAMPED"])):
        limits = {"timeoutMs": int(maximum[2]) + more}
        found = (await agent.run("globalThis.__codemode_result__ = 1", limits=limits))["diagnostics"]
        assert [one["code"] for one in found] == codes


@pytest.mark.clause("3.3.a")
async def test_the_form_of_a_response_is_told(agent: Agent) -> None:
    """By the tool's output schema, which every response fits, and by the names of diagnostics and error classes."""
    text = await told(agent)
    assert "`diagnostics`" in text and [name for name in ERROR_CLASSES if name not in text] == []
    tool = await the_tool(agent)
    assert set(tool.output_schema["required"]) == {"logs", "result", "diagnostics"}
    for code in ("console.log(1); export default { a: [1] };", "throw 1;"):
        jsonschema.validate(await agent.run(code), tool.output_schema)
    # Claude Code cuts what is longer.
    assert tool.meta["anthropic/maxResultSizeChars"] > 2 * ANSWER_BYTES


@pytest.mark.clause("3.2.3.e")
async def test_capability_identifiers_are_told(agent: Agent) -> None:
    """What may stand in `requestedCapabilities`: the ids of the servers, each of which is named."""
    text = await told(agent)
    assert "requestedCapabilities" in text
    assert lacking(text, ["contract", "plain", "broken"]) == []
    assert '"@codemode/servers/<id>"' in text


@pytest.mark.clause("5.3.2.5", "5.3.1.a")
async def test_the_unwrapping_rules_are_told(agent: Agent) -> None:
    """All of them, in their order; the case of an input that is no object as well."""
    text = await told(agent)
    places = [text.find(word) for word in ("structuredContent", "single text", "full MCP result", "base64")]
    assert min(places) >= 0 and places[0] < places[1] < places[2]
    assert re.search(r"not an object|no object|non-object", text)


@pytest.mark.clause("3.5.f", "3.2.1.c")
async def test_deviations_and_restrictions_are_told(agent: Agent) -> None:
    """Every deviation of the code's own table is in the text, as is what a module may not do."""
    from cellblock_worker.confinement.confinement import BUNDLE_DIR

    text = await told(agent)
    table = json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))["deviations"]
    words = ("eval", "Function", "setInterval", "import", "TypeScript", "await", "__codemode_result__")
    network = "fetch" if "fetch" in table else "network"
    assert [name for name in (*table, *words, network) if name not in text] == []


@pytest.mark.clause("3.5.f", "3.2.1.c")
@pytest.mark.parametrize("name", ["eval", "setInterval", "WebAssembly", "SharedArrayBuffer", "Atomics"])
async def test_what_is_told_to_be_absent_is_absent(agent: Agent, name: str) -> None:
    """The manual does not say what is not so."""
    assert name in await told(agent)
    response = await agent.run(f"globalThis.__codemode_result__ = [typeof {name}, {name!r} in globalThis];")
    assert response["result"] == ["undefined", False]


@pytest.mark.clause("4.4.a", "6.3.a")
async def test_declarations_of_all_bindings_are_told(agent: Agent) -> None:
    """Each connected server is declared as a module with every one of its exports."""
    text = await told(agent)
    for server in ("contract", "plain"):
        names = await exports_of(agent, server)
        uris = [str(one.uri) for one in (await agent.client.list_resources()).resources]
        [uri] = [uri for uri in uris if f"/{server}" in uri]
        [contents] = (await agent.client.read_resource(uri)).contents
        declared = contents.text  # type: ignore[union-attr]
        assert f'declare module "@codemode/servers/{server}"' in declared
        assert lacking(text, names) == [] and [name for name in names if name not in declared] == []
    assert 'declare module "@codemode/servers/plain"' in text


@pytest.mark.clause("4.4.a")
async def test_deferred_declarations_come_with_the_first_reference(tmp_path: Path) -> None:
    """Imported or requested, on success as on failure, once; and not what the client has been shown already."""
    servers = {name: plain_server() for name in ("one", "two", "three", "shown")}
    async with agent_with(tmp_path, servers, frontend={"declaration_chars": 0}) as agent:
        assert "declare module" not in await told(agent)
        await agent.client.read_resource("codemode://servers/shown.d.ts")
        script = """import * as one from "@codemode/servers/one"; import "@codemode/servers/shown";
            globalThis.__codemode_result__ = Object.keys(one);"""
        result = await agent.call({"code": script})
        response = result.structured_content
        assert response is not None and list(response["declarations"]) == ["one"]
        assert [name for name in response["result"] if name not in response["declarations"]["one"]] == []
        assert 'declare module "@codemode/servers/one"' in response["declarations"]["one"]
        [content] = result.content
        assert content.type == "text" and response["declarations"]["one"] in content.text
        assert "declarations" not in await agent.run(script)
        # A failed import brings those of no other server.
        for code, names in (
            ('import "@codemode/servers/none";\nimport "@codemode/servers/two";', []),
            ('import { no } from "@codemode/servers/two";', ["two"]),
        ):
            failed = await agent.run(code)
            assert failed["diagnostics"][0]["code"] == "IMPORT_FAILURE"
            assert list(failed.get("declarations", {})) == names
        thrown = await agent.run("throw new Error();", requestedCapabilities=["three", "one", "none"])
        assert thrown["result"] is None and list(thrown["declarations"]) == ["three"]
    async with agent_with(tmp_path, servers) as agent:
        assert 'declare module "@codemode/servers/one"' in await told(agent)
        assert "declarations" not in await agent.run(script)


@pytest.mark.clause("4.4.a")
async def test_the_context_is_the_same_each_time(tmp_path: Path) -> None:
    """Byte for byte in two processes, so that a model's prompt cache holds; the order is the configuration's."""
    servers = {"zeta": plain_server(), "Mid Dle": plain_server(), "alpha": plain_server()}
    texts: list[str] = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with agent_with(folder, servers) as agent:
            texts.append(await told(agent))
    assert texts[0] == texts[1]
    places = [texts[0].find(f"@codemode/servers/{name}") for name in ("zeta", "mid-dle", "alpha")]
    assert sorted(places) == places and places[0] >= 0


@pytest.mark.clause("4.4.a", "2.1")
async def test_without_servers_the_agent_is_told_so(tmp_path: Path) -> None:
    """The one tool is there and works."""
    async with agent_with(tmp_path, {}) as agent:
        text = await told(agent)
        assert "No server" in text or "no server" in text
        assert (await agent.run("globalThis.__codemode_result__ = 1"))["result"] == 1
