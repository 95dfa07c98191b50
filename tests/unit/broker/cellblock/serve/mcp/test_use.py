"""What a client is told first: the reference of the tools, and how they are used."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mcp import Client
from mcp_types import Implementation

from cellblock.run.policy.asking import Caller
from cellblock.run.response import RunResponse
from cellblock.serve.mcp import first_reference, use
from cellblock.serve.mcp.first_reference import FirstReferences
from cellblock.serve.mcp.manual import (
    OPENING_CHARS,
    PURPOSE,
    RULES,
    by_use,
    left_out,
    listed_within,
    opening,
    rows_within,
)
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.mcp.use import (
    MAX_NAME_CHARS,
    MAX_PRINCIPALS,
    MAX_SERVERS,
    USES_FILE,
    UseLog,
    add_uses,
    read_uses,
)
from cellblock.serve.service import Owner
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.typescript import declare_server
from support.entries import settings
from support.params import mostly
from support.standing_service import StandingService, server
from support.waits import until


async def noted(folder: Path, *servers: str, principal: str = "editor") -> None:
    log = UseLog(folder)
    log.note(principal, servers)
    log.note(principal, servers)
    await until(lambda: log._writing is None or log._writing.done(), "it is written")  # pyright: ignore[reportPrivateUsage]


async def test_the_most_used_of_late_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = 20_000
    monkeypatch.setattr(use, "_today", lambda: day)
    for _ in range(3):
        await noted(tmp_path, "old")
    day += 60
    await noted(tmp_path, "often", "once")
    await noted(tmp_path, "often")
    await noted(tmp_path, "other", principal="another")
    assert UseLog(tmp_path).ranked("editor") == ["often", "once", "old"]
    assert UseLog(tmp_path).ranked("another") == ["other"]
    assert UseLog(tmp_path).ranked("nobody") == []


async def test_what_a_client_is_shown_does_not_change_while_it_works(tmp_path: Path) -> None:
    log = UseLog(tmp_path)
    assert log.ranked("editor") == []
    await noted(tmp_path, "files")
    assert log.ranked("editor") == [] and UseLog(tmp_path).ranked("editor") == ["files"]


@pytest.mark.parametrize(
    "text",
    [
        '{"mine": 1}',
        "no JSON",
        '{"usesOfServers": [1]}',
        "[]",
        '"x"',
        '{"usesOfServers": {"editor": {"files": [1, 1e400]}}}',
        '{"usesOfServers": {"editor": {"files": [1e400, 1]}}}',
        f'{{"usesOfServers": {{"editor": {{"files": [1, -1{"0" * 400}]}}}}}}',
        f'{{"usesOfServers": {{"editor": {{"files": [1{"0" * 400}, 1]}}}}}}',
    ],
)
async def test_a_file_of_somebody_else_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / USES_FILE).write_text(text, "utf-8")
    await noted(tmp_path, "files")
    assert (tmp_path / USES_FILE).read_text("utf-8") == text
    assert UseLog(tmp_path).ranked("editor") == []


def test_the_file_is_bounded_and_private(tmp_path: Path) -> None:
    add_uses(tmp_path, [(f"p{number}", "s") for number in range(MAX_PRINCIPALS + 5)])
    add_uses(tmp_path, [("last", f"s{number}") for number in range(MAX_SERVERS + 5)])
    kept = read_uses(tmp_path)
    assert kept is not None and len(kept) == MAX_PRINCIPALS and "p0" not in kept
    assert len(kept["last"]) == MAX_SERVERS and f"s{MAX_SERVERS + 4}" in kept["last"]
    assert (tmp_path / USES_FILE).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [USES_FILE]
    longest = [(f"{number}{'𝄞' * MAX_NAME_CHARS}"[:MAX_NAME_CHARS], "") for number in range(MAX_PRINCIPALS)]
    add_uses(tmp_path, [(one, two) for one, _ in longest for two, _ in longest])
    assert len(read_uses(tmp_path) or {}) == MAX_PRINCIPALS
    assert "usesOfServers" in json.loads((tmp_path / USES_FILE).read_text("utf-8"))


async def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    await noted(tmp_path / "missing", "files")
    assert UseLog(tmp_path / "missing").ranked("editor") == []


class Naming(StandingService):
    """The script is the ids of the servers that it imports, apart by commas."""

    async def run_request(self, request: dict[str, Any], _: Caller, **__: Any) -> RunResponse:
        names = request["code"].split("//")[0].split(",")
        return RunResponse(logs=[], diagnostics=[], servers=tuple(name.strip() for name in names))


async def brought(client: Client, code: str) -> dict[str, str]:
    result = await client.call_tool("codemode.run", {"code": code})
    assert result.structured_content is not None
    return result.structured_content.get("declarations", {})


async def test_once_for_each_state_of_a_servers_tools(tmp_path: Path) -> None:
    made = settings(tmp_path, frontend={"declaration_chars": 0})
    service = Naming(made, server("a", "one"), server("b", "two"))
    async with Client(FrontServer(service, version="1").open()) as client:  # type: ignore[arg-type]
        assert list(await brought(client, "a")) == ["a"]
        assert await brought(client, "a") == {}
        # Connected anew with the same tools, then with others.
        service.show(server("a", "one"), server("b", "two"))
        assert list(await brought(client, "a,b,gone")) == ["b"]
        service.show(server("a", "one", "more"), server("b", "two"))
        assert "function more(" in (await brought(client, "a,b"))["a"]


@pytest.mark.parametrize(
    ("name", "version", "chars", "typed"),
    [
        ("claude-code", "2.1.329", 2_048, False),
        ("claude-code", "2.1.330 (beta)", 4_096, True),
        ("claude-code", "3.0", 4_096, True),
        ("some-other", "1", 20_000, True),
    ],
)
async def test_a_description_is_as_long_as_its_client_shows_and_what_it_has_is_not_sent_again(
    tmp_path: Path, name: str, version: str, chars: int, typed: bool
) -> None:
    few, many = server("a", "write_one", "get_one"), server("b", *(f"get_{n}" for n in range(99)))
    service = Naming(settings(tmp_path), few, many)
    about = Implementation(name=name, version=version)
    async with Client(FrontServer(service, version="1").open(), mode="legacy", client_info=about) as client:  # type: ignore[arg-type]
        [tool] = (await client.list_tools()).tools
        text = tool.description or ""
        assert len(text) <= chars and 'import { get_one } from "@codemode/servers/a"' in text
        assert "- a: get_one, write_one" in text and ("function get_one(" in text) is typed
        assert ("at the end of this description" in text) is (name == "some-other")
        assert list(await brought(client, "a//get_one()")) == ([] if typed else ["a"])
        # What had no room comes at its first reference.
        if name == "claude-code":
            assert "function get_98(" in (await brought(client, "b//get_98()"))["b"]


async def test_what_a_client_has_used_is_declared_first_at_its_next_start(tmp_path: Path) -> None:
    servers = [server(name, *(f"tool_{number}" for number in range(20))) for name in "ab"]
    budget = len(declare_server(servers[1], shared=True)) + 100
    service = Naming(settings(tmp_path, frontend={"declaration_chars": budget}), *servers)
    service.front_config.state_dir.mkdir(parents=True, exist_ok=True)

    async def told(name: str) -> str:
        about = Implementation(name=name, version="1")
        front = FrontServer(service, version="1").open()  # type: ignore[arg-type]
        async with Client(front, mode="legacy", client_info=about) as client:
            before = await client.list_tools()
            await brought(client, "b" if name == "editor" else "")
            assert (await client.list_tools()).tools == before.tools
            return before.tools[0].description or ""

    assert "function tool_19(" not in await told("editor")
    await until((service.front_config.state_dir / USES_FILE).exists, "the use is kept")
    assert "function tool_19(" in (await told("editor")).partition("servers/b")[2]
    assert "function tool_19(" not in await told("another")


async def test_the_memory_of_clients_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_reference, "MAX_KEPT", 3)
    service = Naming(settings(tmp_path), server("a", "one"))
    references = FirstReferences(service)  # type: ignore[arg-type]

    async def shown(client: str) -> bool:
        response = RunResponse(logs=[], diagnostics=[], servers=("a",))
        return bool(await references.declarations_for(Owner(client, client), service.catalog, response, ""))

    assert [await shown(client) for client in "1234"] == [True] * 4
    assert [await shown(client) for client in "2341"] == [False, False, False, True]
    # Of two runs at once one brings them.
    service.show(server("a", "two"))
    both = await asyncio.gather(shown("4"), shown("4"))
    assert sorted(both) == [False, True]


def catalog_of(functions: dict[str, list[str]], *absent: str) -> Catalog:
    servers = {
        name: ServerEntry(name, name, name, tools=tuple(ToolEntry(tool, tool) for tool in tools))
        for name, tools in functions.items()
    }
    return Catalog(1, servers, dict.fromkeys(absent, "HTTP 401"))


def test_a_usual_catalog_is_told_whole() -> None:
    functions = {"time": ["now", "convert"], "files": [f"file_{number}" for number in range(14)], "empty": []}
    text = opening(catalog_of(functions, "wiki"))
    assert text.startswith(PURPOSE) and all(rule in text for rule in RULES)
    assert 'import { now } from "@codemode/servers/time";' in text
    rows = ["- time: now, convert", f"- files: {', '.join(functions['files'])}", "- empty: none"]
    assert text.splitlines()[-4:] == [*rows, "Not connected: wiki."]
    assert len(text) <= OPENING_CHARS


def test_how_to_log_in_is_told_where_nothing_else_is_known() -> None:
    catalog = replace(
        catalog_of({"time": ["now"]}, "wiki", "gone"), logins={"wiki": "log in at https://c/wiki"}
    )
    text = opening(catalog)
    told = ["Need a login of your user's own: wiki (log in at https://c/wiki).", "Not connected: gone."]
    assert text.splitlines()[-2:] == told and left_out(catalog) == []
    # With many of them their ids are worth more.
    names = [f"s{number}" for number in range(9)]
    catalog = replace(
        catalog_of({}, *names), logins=dict.fromkeys(names, "log in at https://cellblock.example/")
    )
    assert opening(catalog).splitlines()[-1] == f"Need a login of your user's own: {', '.join(names)}."
    assert left_out(catalog) == []


@pytest.mark.parametrize("seed", mostly(range(8), range(24)))
def test_it_fits_for_any_catalog_and_names_every_server_that_it_can(seed: int) -> None:
    """However many servers and functions there are, and however long their names."""
    random = Random(seed)
    longest = random.choice([5, 30, 300, 1000])
    functions = {
        f"{'s' * random.randint(1, longest)}{number}": [
            f"{'f' * random.randint(1, longest)}{place}" for place in range(random.choice([0, 1, 9, 90]))
        ]
        for number in range(random.choice([1, 2, 8, 50, 300]))
    }
    absent = ["a" * random.randint(1, longest) for _ in range(random.choice([0, 1, 40]))]
    text = opening(catalog_of(functions, *absent))
    assert len(text) <= OPENING_CHARS
    assert all(rule in text for rule in RULES)
    if sum(len(name) + 9 for name in functions) < 500 and not absent:
        assert all(f"- {name}" in text for name in functions)
    assert text == opening(catalog_of(functions, *absent))


def test_room_is_shared_by_need_and_what_is_left_out_is_counted() -> None:
    """A short list is whole; two long ones get as much as each other, though the first alone could fill the room."""
    functions = {"long": ["name"] * 900, "short": ["one", "two"], "other": ["name"] * 500}
    long, short, other = rows_within(functions, 600)
    assert short == "- short: one, two"
    assert long.startswith("- long (900): name, name") and long.endswith(", …")
    assert other.startswith("- other (500): name, name") and other.endswith(", …")
    assert abs(len(long) - len(other)) <= 10
    assert 560 <= sum(map(len, (long, short, other))) <= 600


def test_without_room_for_functions_the_servers_are_named_and_with_less_counted() -> None:
    functions = {f"server-{number}": ["name"] * 10 for number in range(100)}
    listed, where = rows_within(functions, 400)
    assert listed.startswith("server-0, server-1") and listed.endswith(" more") and "listTools" in where
    assert listed_within(["x" * 50] * 3, 10) == "3 in all"
    assert listed_within(["a", "b", "c"], 10) == "a, b, c"


def test_the_example_calls_what_there_is() -> None:
    assert 'import { b } from "@codemode/servers/two";' in opening(
        catalog_of({"one": ["x" * 99], "two": ["b"]})
    )
    assert "No server is connected." in opening(catalog_of({}))


def test_reads_come_before_writes_and_one_of_each_noun_before_two_of_the_same() -> None:
    names = "create_issue get_issue list_issues listUsers drop look_at find_projects"
    tools = [ToolEntry(name, name) for name in names.split()]
    tools += [
        ToolEntry("audit", "audit", annotations={"readOnlyHint": True}),
        ToolEntry("get_rid", "get_rid"),
    ]
    tools[-1] = replace(tools[-1], annotations={"readOnlyHint": False})
    order = "get_issue listUsers find_projects audit list_issues create_issue drop look_at get_rid"
    assert [tool.export_name for tool in by_use(tools)] == order.split()
    many = catalog_of({"a": ["write_one"], "b": ["write_two", "get_two"]})
    assert 'import { get_two } from "@codemode/servers/b";' in opening(many)


@pytest.mark.parametrize("chars", [1_000, 1_500, OPENING_CHARS])
def test_a_short_one_names_every_server_and_ends_where_its_client_cuts(chars: int) -> None:
    text = opening(catalog_of({f"s{n}": [f"get_{m}" for m in range(20)] for n in range(6)}, "wiki"), chars)
    assert len(text) <= chars and RULES[0] in text and "describe(" in text
    assert all(f"- s{n} (20): get_0" in text for n in range(6)) and "Not connected: wiki." in text
