"""What a response brings of the declarations of servers that its script names (001, 4.4)."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, cast

import pytest

from cellblock.run.response import RunResponse, TraceEntry, error_diagnostic
from cellblock.serve.mcp import first_reference
from cellblock.serve.mcp.context import Declared, declarations_in_budget
from cellblock.serve.mcp.first_reference import MAX_CHARS, MAX_LINES_CHARS, FirstReferences
from cellblock.serve.service import Owner, RunService
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput
from cellblock.types.typescript import HOW_TO_PARSE
from support.recorded_catalogs import server_of

TEXT = {"type": "string", "description": "What it is about. " * 20}


def tool(name: str, properties: int = 2) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"p{number}": TEXT for number in range(properties)}}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema}


class Service:
    """Knows outputs, as a broker that learns does."""

    def __init__(self) -> None:
        self.outputs: dict[str, ToolOutput] = {}
        self.looks = 0

    def output_of(self, server: ServerEntry, tool: ToolEntry, principal: str) -> ToolOutput | None:
        return self.outputs.get(tool.tool_name)

    async def wait_until_learnt(self, bound: float) -> None:
        self.looks += 1


class Client:
    def __init__(self, tools: Mapping[str, list[dict[str, Any]]]) -> None:
        self.service = Service()
        self.know(tools)
        self.references = FirstReferences(cast("RunService", self.service))

    def know(self, tools: Mapping[str, list[dict[str, Any]]]) -> None:
        self.catalog = Catalog(1, {name: server_of(name, given, name) for name, given in tools.items()})

    async def given(
        self,
        code: str,
        *servers: str,
        fails_at: str = "",
        fails_as: str = "",
        by: str = "me",
        calls: str = "b",
    ) -> dict[str, str]:
        diagnostics = [error_diagnostic("IMPORT_FAILURE", "no", "none", fails_at)] if fails_at else []
        if fails_as:
            diagnostics = [error_diagnostic(fails_as, "no", "none", error_class=fails_as)]
        trace = [TraceEntry(server_id="crm", tool_name=calls, duration_ms=1, ok=True)]
        response = RunResponse(logs=[], diagnostics=diagnostics, tool_trace=trace, servers=servers)
        return await self.references.declarations_for(Owner(by, by), self.catalog, response, code)


async def test_what_a_script_names_has_its_types_and_the_others_are_a_line_each() -> None:
    client = Client({"crm": [tool("find", 20), tool("huge", 200), tool("keep")], "desk": [tool("close")]})
    brought = await client.given("await crm.find({})", "crm")
    assert list(brought) == ["crm"]
    text = brought["crm"]
    assert "p19?: string }): Promise<McpToolOutput>;\n" in text and "p199" not in text and text.endswith("}")
    assert "function keep(input?: { p0?: string; p1?: string }): Promise<McpToolOutput>;\n" in text
    assert "What it is about." not in text and 'describe("crm", name)' in text
    assert await client.given("await crm.find({})", "crm") == {}
    again = (await client.given("crm.keep(crm.find)", "crm"))["crm"]
    assert "function keep" in again and "function find" not in again and "describe" not in again


@pytest.mark.parametrize("why", ["TYPE_ERROR", "SchemaValidationError"])
async def test_a_script_that_had_types_wrong_brings_whole_declarations_of_what_it_names(why: str) -> None:
    client = Client({"crm": [tool("find"), tool("keep"), tool("huge", 200)]})
    await client.given("crm.find({})", "crm")
    assert await client.given("crm.find({})", "crm", fails_as="ToolCallError") == {}
    text = (await client.given("crm.find({}), crm.huge()", "crm", fails_as=why))["crm"]
    assert "Does find." in text and "What it is about." in text and "keep" not in text
    # One that is too large by itself is cut.
    assert "p20" in text and "p199" not in text and len(text) < MAX_CHARS and 'describe("crm", name)' in text
    assert await client.given("crm.find({}), crm.huge()", "crm", fails_as=why) == {}


async def test_every_function_comes_when_it_is_first_used_and_none_is_crowded_out() -> None:
    names = [f"tool_{number}" for number in range(120)]
    client = Client(
        {"large": [tool("a_huge_one", 60), *(tool(name, 30) for name in names)], "small": [tool("two", 0)]}
    )
    code = f"large.a_huge_one(); {' '.join(f'large.{name}();' for name in names)} small.two();"
    declared: set[str] = set()
    for _ in range(30):
        brought = await client.given(code, "large", "small")
        if not brought:
            break
        assert sum(map(len, brought.values())) < 1.2 * (MAX_CHARS + MAX_LINES_CHARS) + 60 * 500
        declarations = "".join(brought.values())
        found = {*re.findall(r"function (a_huge_one|\w+(?=\(.*Promise<McpToolOutput>))", declarations)}
        assert "two" in declared | found and not declared & found
        declared |= found
    assert declared == {*names, "a_huge_one", "two"}


async def test_a_type_that_is_known_better_is_sent_again() -> None:
    client = Client({"crm": [tool("find"), tool("keep")]})
    await client.given("crm.find()", "crm")
    seen = ToolOutput(
        "observed", "seen", schema={"type": "object", "properties": {"id": {"type": "integer"}}}
    )
    client.service.outputs = {"find": seen, "keep": seen}
    brought = (await client.given("crm.find()", "crm"))["crm"]
    assert "id?: number" in brought and "keep" not in brought and client.service.looks == 2
    assert await client.given("crm.find()", "crm") == {}


@pytest.mark.parametrize(("place", "servers"), [("script.js:1:1", []), ("script.js:2:9", ["crm"])])
async def test_a_failed_import_brings_nothing_of_other_servers(place: str, servers: list[str]) -> None:
    client = Client({"crm": [tool("find")], "desk": [tool("close")]})
    code = 'import "@codemode/servers/none";\nimport { x } from "@codemode/servers/crm"; desk.close'
    assert list(await client.given(code, "crm", "desk", fails_at=place)) == servers


async def test_what_the_description_had_is_not_sent_again() -> None:
    client = Client({"crm": [tool("find")], "desk": [tool("close"), tool("open")]})
    close, _ = client.catalog.servers["desk"].tools
    declared = Declared("", {"crm": client.catalog.servers["crm"].tools}, {"desk": [close]})
    client.references.show("me", client.catalog, declared)
    assert await client.given("crm.find()", "crm", fails_as="TYPE_ERROR") == {}
    assert "close" not in (await client.given("desk.close()", "desk"))["desk"]
    assert "Does close." in (await client.given("desk.close()", "desk", fails_as="TYPE_ERROR"))["desk"]


async def test_what_the_description_had_of_a_large_server_is_not_sent_again() -> None:
    client = Client({"crm": [*(tool(f"tool_{number}", 5) for number in range(40)), tool("list_deals", 5)]})
    declared = declarations_in_budget(client.catalog, 4_000)
    shown = set(re.findall(r"function (\w+)", declared.text))
    client.references.show("me", client.catalog, declared)
    text = (await client.given("crm.tool_0(), crm.tool_39()", "crm"))["crm"]
    sent = re.findall(r"function (\w+)", text)
    assert {"tool_0", "list_deals"} <= shown and sent[0] == "tool_39" and not shown & set(sent)
    assert await client.given("crm.list_deals()", "crm", fails_as="TYPE_ERROR") == {}


async def test_a_list_of_tools_forgets_nothing_that_was_sent_since() -> None:
    client = Client({"crm": [tool("find"), tool("keep")]})
    declared = Declared("", typed={"crm": client.catalog.servers["crm"].tools[:1]})
    client.service.outputs = {"find": ToolOutput("observed", "seen", schema={"type": "object"})}
    client.references.show("me", client.catalog, declared)
    assert "keep" in (await client.given("crm.find()", "crm"))["crm"]
    client.references.show("me", client.catalog, declared)
    assert await client.given("crm.find()", "crm") == {}


async def test_of_a_large_server_those_that_read_have_their_lines() -> None:
    writes = [tool(f"archive_{number}", 9) for number in range(60)]
    client = Client({"crm": [*writes, tool("get_deal"), tool("z")]})
    text = (await client.given("crm.z()", "crm"))["crm"]
    assert "function get_deal(" in text and "// and archive_" in text


async def test_what_was_called_counts_as_named() -> None:
    client = Client({"crm": [tool("find.deal"), tool("keep")]})
    await client.given("crm.keep()", "crm")
    brought = await client.given('await crm["find" + "_deal"]()', "crm", calls="find.deal")
    assert "function find_deal(" in brought["crm"]
    # Of a task, no more is known.
    assert "function keep(" in (await client.given("", calls="keep", by="other"))["crm"]


async def test_what_is_cut_says_where_the_whole_is() -> None:
    client = Client({"crm": [tool("find"), tool("huge", 400)]})
    await client.given("crm.find()", "crm")
    text = (await client.given("crm.huge()", "crm"))["crm"]
    assert "…\n" in text and 'describe("crm", name)' in text


async def test_how_a_text_is_parsed_is_said_once() -> None:
    client = Client({"crm": [tool("find")]})
    client.service.outputs = {"find": ToolOutput("observed", "seen", document={"type": "object"})}
    text = (await client.given("crm.find()", "crm", fails_as="TYPE_ERROR"))["crm"]
    assert text.count(HOW_TO_PARSE) == 1


async def test_the_memory_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_reference, "MAX_KEPT", 3)
    client = Client({"crm": [tool("find")]})
    shown = [bool(await client.given("crm.find", "crm", by=name)) for name in "12342341"]
    assert shown == [True] * 4 + [False, False, False, True]
    # Of two runs at once one brings them.
    client.know({"crm": [tool("keep")]})
    both = await asyncio.gather(*(client.given("crm.keep", "crm", by="4") for _ in range(2)))
    assert sorted(map(bool, both)) == [False, True]
