"""What a request's context gives to its run, how it asks for an approval, and what a response brings of the
declarations of servers that its script names (001, 4.4)."""

import asyncio
import re
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import deno
import pytest

from cellblock.run.policy.asking import Question
from cellblock.run.response import RunResponse, TraceEntry, error_diagnostic
from cellblock.serve.mcp import first_reference
from cellblock.serve.mcp.approvals import MAX_INPUT_CHARS, question_text
from cellblock.serve.mcp.context import (
    MAX_NAMES,
    Declared,
    declarations_in_budget,
    rendered_in_thread,
    resource_uri,
    server_of_uri,
    text_of,
    types_in_budget,
)
from cellblock.serve.mcp.first_reference import MAX_CHARS, MAX_LINES_CHARS, FirstReferences
from cellblock.serve.service import Owner, RunService
from cellblock.tools.catalog.model import SCRIPTS, Catalog, ServerEntry, ToolEntry, ToolOutput
from cellblock.types.typescript import HOW_TO_PARSE, ServerText, declare_server, declare_shared
from support.recorded_catalogs import recorded_catalog, server_of
from support.standing_service import server


def catalog_of(*servers: ServerEntry) -> Catalog:
    return Catalog(1, {entry.server_id: entry for entry in servers})


LARGE, SMALL = server("large", *(f"tool_{number}" for number in range(50))), server("small", "one")


@pytest.mark.parametrize(
    ("budget", "declared", "told"),
    [
        (100_000, ["large", "small"], []),
        (2 * len(declare_server(SMALL, shared=True)), ["small"], ["tool_49", resource_uri("large")]),
        (0, [], ["@codemode/servers/large", "@codemode/servers/small"]),
    ],
    ids=["all fit", "one fits", "none fits"],
)
def test_a_server_beyond_the_budget_is_named_with_its_functions_and_its_resource(
    budget: int, declared: list[str], told: list[str]
) -> None:
    text = declarations_in_budget(catalog_of(LARGE, SMALL), budget).text
    assert re.findall('declare module "@codemode/servers/(.*)"', text) == declared
    assert all(one in text for one in told)
    assert ("More functions" in text) == bool(told)


@pytest.mark.parametrize(
    ("described", "line"),
    [
        ("Does weekly. More of it.", "Promise<McpToolOutput>; // Does weekly"),
        ("Two\nlines \u202eand */", "Promise<McpToolOutput>; // Two lines \ufffdand *\\/"),
        (None, "Promise<McpToolOutput>;"),
    ],
)
def test_what_a_kept_script_does_stands_beside_its_types(described: str | None, line: str) -> None:
    (tool,) = server("x", "weekly").tools
    kept = ServerEntry("scripts", "scripts", SCRIPTS, tools=(replace(tool, description=described),))
    text = types_in_budget(catalog_of(kept, server("other", "one")), 10_000).text
    assert text.splitlines()[1].endswith(line)
    assert text.splitlines()[-1].endswith("Promise<McpToolOutput>;")


async def test_declarations_are_made_once_for_the_same_definitions() -> None:
    """A server that floods its clients with reconnections, or a hundred clients, cost nobody a rendering."""
    first, again = server("same", "one"), replace(server("same", "one"), session=2)
    assert text_of(first) is text_of(again)
    beside = server("beside", "one")
    loop = threading.get_ident()
    made_in: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        whole = ServerText.whole

        def noted(self: ServerText, *, shared: bool) -> str:
            made_in.append(threading.get_ident())
            return whole(self, shared=shared)

        patch.setattr(ServerText, "whole", noted)
        await rendered_in_thread(catalog_of(first, again, beside))
        declarations_in_budget(catalog_of(first, beside), 1_000)
        text_of(replace(beside, session=7))
    assert made_in and loop not in made_in


def test_what_a_server_lists_for_each_of_many_people_is_declared_once() -> None:
    people = [server("each", "one", f"only_{number}") for number in range(50)]
    assert [*map(id, map(text_of, people))] == [*map(id, map(text_of, people))]


def test_the_budget_is_shared_by_need_and_not_in_the_order_of_the_file() -> None:
    small = [server(f"small_{number}", "one", "two") for number in range(4)]
    budget = len(declare_server(LARGE, shared=True)) + 100
    declared = declarations_in_budget(catalog_of(LARGE, *small), budget)
    assert {one: len(tools) for one, tools in declared.whole.items() if one != "large"} == {
        entry.server_id: len(entry.tools) for entry in small
    }
    # The large one has what the small ones leave: its first functions, in the place that the configuration gives it.
    assert "function tool_0(" in declared.text and "function tool_49(" not in declared.text
    assert [one.export_name for one in declared.whole["large"]] == re.findall(
        r"function (tool_\d+)", declared.text
    )
    assert declared.text.index("servers/large") < declared.text.index("servers/small_0")
    rest = declared.text.partition("More functions")[2]
    assert "tool_49" in rest and " tool_0," not in rest
    assert (
        len(declared.text.partition("```ts\n")[2].partition("\n```")[0]) <= budget + len(declare_shared()) + 8
    )


def test_what_the_client_has_used_comes_first() -> None:
    servers = [server(name, *(f"tool_{number}" for number in range(20))) for name in "abcd"]
    budget = int(len(declare_server(servers[0], shared=True)) * 2.5)
    declared = declarations_in_budget(catalog_of(*servers), budget, ["d", "gone", "b"])
    assert {one for one, tools in declared.whole.items() if len(tools) == 20} == {"d", "b"}
    shared = declarations_in_budget(catalog_of(*servers), budget).whole
    assert all(len(tools) < 20 for tools in shared.values())
    assert "function tool_0(" in declared.text.partition("servers/a")[2].partition("servers/b")[0]


def test_of_a_server_without_room_for_all_reads_are_declared() -> None:
    crm = server("crm", *(f"archive_{number}" for number in range(30)), "list_deals", "get_deal")
    for text in (declarations_in_budget(catalog_of(crm), 1_500).text, text_of(crm)):
        declared = re.findall(r"^function (\w+)", text, re.MULTILINE)
        assert declared[:3] == ["list_deals", "get_deal", "archive_0"]


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "is_all"), [(40_000, False), (1_000_000, True)], ids=["a part", "all"])
def test_what_is_shown_compiles(tmp_path: Path, budget: int, is_all: bool) -> None:
    declared = declarations_in_budget(recorded_catalog(), budget)
    assert declared.whole and (len(declared.whole) == len(recorded_catalog().servers)) is is_all
    file = tmp_path / "context.d.ts"
    file.write_text(declared.text.partition("```ts\n")[2].partition("\n```")[0], encoding="utf-8")
    command = [deno.find_deno_bin(), "check", "--no-config", "--quiet", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_names_of_one_server_are_capped() -> None:
    many = server("many", *(f"tool_{number}" for number in range(MAX_NAMES + 7)))
    assert "and 7 more" in declarations_in_budget(catalog_of(many), 0).text


def test_the_budget_holds_for_real_servers() -> None:
    text = declarations_in_budget(recorded_catalog(), 16_000).text
    declared = text.partition("```ts\n")[2].partition("```")[0]
    assert 0 < len(declared) <= 16_000 + len(declare_shared()) + len(recorded_catalog().servers)
    assert all(f"@codemode/servers/{server_id}" in text for server_id in recorded_catalog().servers)


@pytest.mark.parametrize(
    ("uri", "server_id"),
    [
        *((resource_uri(server_id), server_id) for server_id in ("a", "files--2", "with-dash")),
        *(
            (uri, None)
            for uri in ("", "file:///etc/passwd", "codemode://servers/a", "codemode://other/a.d.ts")
        ),
    ],
)
def test_a_resource_uri_gives_its_server_back(uri: str, server_id: str | None) -> None:
    assert server_of_uri(uri) == server_id


def question(arguments: Any = None, tool: str = "write", **changes: Any) -> Question:
    values: dict[str, Any] = {"destructive": False, "arguments": arguments or {}, "timeout": 5.0}
    return Question("files", tool, **{**values, **changes})


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        ({"path": "ü/✓"}, '{"path":"ü/✓"}', ""),
        ({"a": "x\nAllow this call?"}, r"x\nAllow", "x\nAllow"),
        ({"a": "\u202egnp.exe"}, r"\u202e", "\u202e"),
        ({"a": "\u2028\u00a0\u200b\x1b[2J"}, r"\u2028\xa0\u200b", "\x1b"),
        ({"a": "\U000e0041"}, r"\U000e0041", "\U000e0041"),
        *(
            ({"path": f"/tmp/a{unseen * 400}/../b"}, unseen.encode("unicode_escape").decode(), unseen)
            for unseen in "\u2800\u3164\u115f\u1160\uffa0\u034f\u17b4\u17b5\ufe0f\U000e0100"
        ),
        ({"path": f"/tmp/a{' ' * 400}/../b"}, r"/tmp/a\x20{400}/../b", " " * 17),
        ({"code": "if a:\n        b"}, r"if a:\n        b", ""),
    ],
)
def test_nothing_in_a_question_hides_a_part_of_it(arguments: Any, shown: str, hidden: str) -> None:
    text = question_text(question(arguments))
    assert shown in text
    assert not hidden or hidden not in text
    assert text.count("\n") == 1


def test_a_long_input_says_how_much_is_not_shown() -> None:
    text = question_text(question({"a": "x" * 100_000, "b": "end"}))
    assert len(text) < MAX_INPUT_CHARS + 300
    assert "98518 more characters are not shown" in text


def test_the_name_of_a_tool_is_its_servers_own_text() -> None:
    text = question_text(question(tool="harmless\nAllow this call? Yes.\u202e", destructive=True))
    assert "files.harmless\\nAllow" in text and "\u202e" not in text and "can destroy" in text
    assert len(question_text(question(tool="x" * 5_000))) < 500


TEXT = {"type": "string", "description": "What it is about. " * 20}


def tool(name: str, properties: int = 2) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"p{number}": TEXT for number in range(properties)}}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema}


class Client:
    """A client of a service that knows outputs, as a broker that learns does."""

    def __init__(self, tools: Mapping[str, list[dict[str, Any]]]) -> None:
        self.outputs: dict[str, ToolOutput] = {}
        self.looks = 0
        self.know(tools)
        self.references = FirstReferences(cast("RunService", self))

    def output_of(self, server: ServerEntry, tool: ToolEntry, principal: str) -> ToolOutput | None:
        return self.outputs.get(tool.tool_name)

    async def wait_until_learnt(self, bound: float) -> None:
        self.looks += 1

    def know(self, tools: Mapping[str, list[dict[str, Any]]]) -> None:
        self.catalog = Catalog(1, {name: server_of(name, given, name) for name, given in tools.items()})

    async def given(
        self,
        code: str,
        *servers: str,
        fails_as: str = "",
        by: str = "me",
        calls: str = "b",
    ) -> dict[str, str]:
        diagnostics = [error_diagnostic(fails_as, "no", "none", error_class=fails_as)] if fails_as else []
        trace = [TraceEntry(server_id="crm", tool_name=calls, duration_ms=1, ok=True)]
        response = RunResponse(logs=[], diagnostics=diagnostics, tool_trace=trace, servers=servers)
        return await self.references.declarations_for(Owner(by, by), self.catalog, response, code)


async def test_what_a_script_names_has_its_types_and_the_others_are_a_line_each() -> None:
    client = Client({"crm": [tool("find", 20), tool("huge", 200), tool("keep")], "desk": [tool("close")]})
    brought = await client.given("await crm.find({})", "crm")
    assert list(brought) == ["crm"]
    text = brought["crm"]
    assert "p19?: string }): Promise<McpToolOutput>;\n" in text and "p199" not in text and "\n}\n" in text
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


def seen(**properties: str) -> ToolOutput:
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}
    return ToolOutput("observed", "seen", schema=schema)


async def test_a_type_that_is_known_better_is_sent_again_by_itself() -> None:
    client = Client({"crm": [tool("find"), tool("keep"), tool("late")]})
    await client.given("crm.find()", "crm")
    client.outputs = {"find": seen(id="integer"), "keep": seen(id="string"), "late": seen(on="boolean")}
    better = {"crm": "crm.find(…): Promise<{ id?: number }>"}
    assert await client.given("crm.find()", "crm") == better and client.looks == 2
    assert await client.given("crm.find()", "crm") == {}
    # What is first used has its declaration, beside a type that is known better.
    client.outputs["find"] = seen(id="integer", by="string")
    text = (await client.given("crm.find(), crm.late()", "crm"))["crm"]
    line, module = text.split("\n", 1)
    assert line == "crm.find(…): Promise<{ id?: number; by?: string }>"
    assert module == (
        'declare module "@codemode/servers/crm" {\n'
        "function late(input?: { p0?: string; p1?: string }): Promise<{ on?: boolean }>;\n}"
    )


async def test_what_the_description_had_is_told_by_its_output_alone_until_the_function_changes() -> None:
    client = Client({"crm": [tool("find")]})
    client.references.show("me", client.catalog, Declared("", {"crm": client.catalog.servers["crm"].tools}))
    client.outputs = {"find": seen(id="integer")}
    for fails_as in ("", "TYPE_ERROR"):
        brought = await client.given("crm.find()", "crm", fails_as=fails_as)
        assert brought == ({} if fails_as else {"crm": "crm.find(…): Promise<{ id?: number }>"})
    client.outputs = {"find": seen(id="string")}
    text = (await client.given("crm.find()", "crm", fails_as="TYPE_ERROR"))["crm"]
    assert text.startswith("crm.find(…): Promise<{ id?: string }>\n// Whole: ")
    client.know({"crm": [tool("find", 3)]})
    assert "function find(input?: { p0" in (await client.given("crm.find()", "crm"))["crm"]
    # Of this one its client has not had the comments.
    assert "Does find." in (await client.given("crm.find()", "crm", fails_as="TYPE_ERROR"))["crm"]


@pytest.mark.parametrize(
    ("name", "output", "text"),
    [
        ("find", ToolOutput("observed", "seen", schema={"type": "integer"}), "crm.find(…): Promise<number>"),
        ("from", ToolOutput("observed", "seen", schema={"type": "integer"}), "crm.from(…): Promise<number>"),
        (
            "find",
            ToolOutput("observed", "seen", document={"type": "object", "properties": {"a": {"const": 1}}}),
            f"crm.find(…): Promise<JsonText<{{ a?: 1 }}>>\n{HOW_TO_PARSE}",
        ),
        (
            "find",
            ToolOutput(
                "given",
                "said",
                schema={
                    "$ref": "#/$defs/Node",
                    "$defs": {"Node": {"properties": {"of": {"$ref": "#/$defs/Node"}}}},
                },
            ),
            "crm.find(…): Promise<Node>",
        ),
    ],
)
async def test_an_output_by_itself_has_all_that_it_names(name: str, output: ToolOutput, text: str) -> None:
    client = Client({"crm": [tool(name)]})
    await client.given(f"crm.{name}()", "crm")
    client.outputs = {name: output}
    brought = (await client.given(f"crm.{name}()", "crm"))["crm"]
    assert brought.endswith(text) and ("type Node = " in brought) == ("Node" in text)
    assert brought == text or brought.startswith("type ")


async def test_that_a_tool_gives_text_as_all_do_is_not_sent_for_itself() -> None:
    client = Client({"crm": [tool("find")]})
    await client.given("crm.find()", "crm")
    client.outputs = {"find": ToolOutput("observed", "seen", text=True)}
    assert await client.given("crm.find()", "crm") == {}


async def test_a_long_output_by_itself_is_cut_and_says_where_the_whole_is() -> None:
    client = Client({"crm": [tool("find")]})
    await client.given("crm.find()", "crm")
    client.outputs = {"find": seen(**{f"field_{number}": "string" for number in range(300)})}
    text = (await client.given("crm.find()", "crm"))["crm"]
    assert len(text) < 2_100 and "…\n" in text and 'describe("crm", name)' in text


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
    client.outputs = {"find": ToolOutput("observed", "seen", schema={"type": "object"})}
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
    client.outputs = {"find": ToolOutput("observed", "seen", document={"type": "object"})}
    assert (await client.given("crm.find()", "crm", fails_as="TYPE_ERROR"))["crm"].count(HOW_TO_PARSE) == 1


async def test_the_memory_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_reference, "MAX_KEPT", 3)
    client = Client({"crm": [tool("find")]})
    shown = [bool(await client.given("crm.find", "crm", by=name)) for name in "12342341"]
    assert shown == [True] * 4 + [False, False, False, True]
    # Of two runs at once one brings them.
    client.know({"crm": [tool("keep")]})
    both = await asyncio.gather(*(client.given("crm.keep", "crm", by="4") for _ in range(2)))
    assert sorted(map(bool, both)) == [False, True]
