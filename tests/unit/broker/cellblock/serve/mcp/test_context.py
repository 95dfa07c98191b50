"""What a request's context gives to its run, and how it asks for an approval."""

import re
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import deno
import pytest

from cellblock.run.policy.asking import Question
from cellblock.serve.mcp.approvals import MAX_INPUT_CHARS, question_text
from cellblock.serve.mcp.context import (
    MAX_NAMES,
    declarations_in_budget,
    rendered_in_thread,
    resource_uri,
    server_of_uri,
    text_of,
    types_in_budget,
)
from cellblock.tools.catalog.model import SCRIPTS, Catalog, ServerEntry
from cellblock.types.typescript import ServerText, declare_server, declare_shared
from support.recorded_catalogs import recorded_catalog
from support.standing_service import server


def catalog_of(*servers: ServerEntry) -> Catalog:
    return Catalog(1, {entry.server_id: entry for entry in servers})


def test_without_servers_it_says_so() -> None:
    assert declarations_in_budget(Catalog(), 1_000).text == "No server is connected."


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


@pytest.mark.parametrize("budget", [0, 16_000, 1_000_000])
def test_equal_catalogs_give_equal_bytes(budget: int) -> None:
    assert (
        declarations_in_budget(recorded_catalog(), budget).text
        == declarations_in_budget(recorded_catalog(), budget).text
    )


def test_the_budget_holds_for_real_servers() -> None:
    text = declarations_in_budget(recorded_catalog(), 16_000).text
    declared = text.partition("```ts\n")[2].partition("```")[0]
    assert 0 < len(declared) <= 16_000 + len(declare_shared()) + len(recorded_catalog().servers)
    assert all(f"@codemode/servers/{server_id}" in text for server_id in recorded_catalog().servers)


@pytest.mark.parametrize("server_id", ["a", "files--2", "with-dash"])
def test_a_resource_uri_gives_its_server_back(server_id: str) -> None:
    assert server_of_uri(resource_uri(server_id)) == server_id


@pytest.mark.parametrize("uri", ["", "file:///etc/passwd", "codemode://servers/a", "codemode://other/a.d.ts"])
def test_other_uris_have_no_server(uri: str) -> None:
    assert server_of_uri(uri) is None


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
