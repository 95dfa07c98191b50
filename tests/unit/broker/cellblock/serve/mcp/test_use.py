"""What agents are told first: the manual, the instructions, and which servers and functions there are. What clients
are told, each by its name: what the tool is called, how long its description is, what they have used; and what a
failed run looks like, with the SDK's client in memory."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from cellblock.app.cli.importing.known import CLIENTS
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.sections import LimitRange
from cellblock.base.settings.settings import FrontendSettings, LimitSettings, Profile, Settings
from cellblock.run.policy.asking import Caller
from cellblock.run.request import KEYS
from cellblock.run.response import Diagnostic, RunResponse, TraceEntry
from cellblock.serve.mcp import use
from cellblock.serve.mcp.manual import (
    INSTRUCTIONS_CHARS,
    OPENING_CHARS,
    PURPOSE,
    RULES,
    by_use,
    deviations,
    instructions,
    left_out,
    listed_within,
    manual,
    opening,
    rows_within,
)
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.mcp.tool_name import PLAIN_NAME, TOOL_NAME, WITHOUT_DOTS, tool_name_for
from cellblock.serve.mcp.use import (
    MAX_NAME_CHARS,
    MAX_NAMES,
    MAX_PRINCIPALS,
    USES_FILE,
    UseLog,
    add_uses,
    read_uses,
)
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput
from cellblock.tools.catalog.modules import ERROR_CLASSES
from cellblock.types.typescript import declare_server
from support.documents import ROOT
from support.entries import settings
from support.params import mostly
from support.standing_service import StandingService, server
from support.waits import until, within


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
    ranked = {name: UseLog(tmp_path).ranked(name) for name in ("editor", "another", "nobody")}
    assert ranked == {"editor": ["often", "once", "old"], "another": ["other"], "nobody": []}


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
    add_uses(tmp_path, [("last", f"s{number}") for number in range(MAX_NAMES + 5)])
    kept = read_uses(tmp_path) or {}
    assert [*kept] == [*(f"p{number}" for number in range(6, MAX_PRINCIPALS + 5)), "last"]
    assert [*kept["last"]] == [f"s{number}" for number in range(5, MAX_NAMES + 5)]
    assert (tmp_path / USES_FILE).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [USES_FILE]
    longest = [(f"{number}{'𝄞' * MAX_NAME_CHARS}"[:MAX_NAME_CHARS], "") for number in range(MAX_PRINCIPALS)]
    add_uses(tmp_path, [(one, two) for one, _ in longest for two, _ in longest])
    assert len(read_uses(tmp_path) or {}) == MAX_PRINCIPALS
    assert "usesOfServers" in json.loads((tmp_path / USES_FILE).read_text("utf-8"))


async def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    await noted(tmp_path / "missing", "files")
    assert UseLog(tmp_path / "missing").ranked("editor") == []


def client(service: Any, name: str = "someone", mode: Any = "legacy", version: str = "1") -> Client:
    return Client(
        FrontServer(service, version="1").open(),
        mode=mode,
        client_info=types.Implementation(name=name, version=version),
    )


class Naming(StandingService):
    """The script is the ids of the servers that it imports, apart by commas."""

    async def run_request(self, request: dict[str, Any], _: Caller, **__: Any) -> RunResponse:
        names = request["code"].split("//")[0].split(",")
        return RunResponse(logs=[], diagnostics=[], servers=tuple(name.strip() for name in names))


async def brought(asking: Client, code: str) -> dict[str, str]:
    result: Any = await asking.call_tool("codemode.run", {"code": code})
    return result.structured_content.get("declarations", {})


async def test_once_for_each_state_of_a_servers_tools(tmp_path: Path) -> None:
    made = settings(tmp_path, frontend={"declaration_chars": 0})
    service = Naming(made, server("a", "one"), server("b", "two"))
    async with client(service, mode="auto") as one:
        assert list(await brought(one, "a")) == ["a"]
        assert await brought(one, "a") == {}
        # Connected anew with the same tools, then with others.
        service.show(server("a", "one"), server("b", "two"))
        assert list(await brought(one, "a,b,gone")) == ["b"]
        service.show(server("a", "one", "more"), server("b", "two"))
        assert "function more(" in (await brought(one, "a,b"))["a"]


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
    async with client(Naming(settings(tmp_path), few, many), name, version=version) as one:
        [tool] = (await one.list_tools()).tools
        text = tool.description or ""
        assert len(text) <= chars and 'import { get_one } from "@codemode/servers/a"' in text
        assert "- a: get_one, write_one" in text and ("function get_one(" in text) is typed
        assert ("at the end of this description" in text) is (name == "some-other")
        assert list(await brought(one, "a//get_one()")) == ([] if typed else ["a"])
        # What had no room comes at its first reference.
        if name == "claude-code":
            assert "function get_98(" in (await brought(one, "b//get_98()"))["b"]


async def test_what_a_client_has_used_is_declared_first_at_its_next_start(tmp_path: Path) -> None:
    servers = [server(name, *(f"tool_{number}" for number in range(20))) for name in "ab"]
    budget = len(declare_server(servers[1], shared=True)) + 100
    service = Naming(settings(tmp_path, frontend={"declaration_chars": budget}), *servers)
    service.settings.state_dir.mkdir(parents=True, exist_ok=True)

    async def told(name: str) -> str:
        async with client(service, name) as one:
            before = await one.list_tools()
            await brought(one, "b" if name == "editor" else "")
            assert (await one.list_tools()).tools == before.tools
            return before.tools[0].description or ""

    assert "function tool_19(" not in await told("editor")
    await until((service.settings.state_dir / USES_FILE).exists, "the use is kept")
    assert "function tool_19(" in (await told("editor")).partition("servers/b")[2]
    assert "function tool_19(" not in await told("another")


class Calling(Naming):
    """The script has called `put_98` of the server `b`."""

    async def wait_until_learnt(self, bound: float) -> None:
        pass

    async def run_request(self, request: dict[str, Any], _: Caller, **__: Any) -> RunResponse:
        called = TraceEntry(server_id="b", tool_name="put_98", duration_ms=1, ok=True)
        return RunResponse(logs=[], diagnostics=[], tool_trace=[called], servers=("b",))


async def test_a_tool_that_a_client_has_called_is_described_first_at_its_next_start(tmp_path: Path) -> None:
    service = Calling(settings(tmp_path), server("a", "put"), server("b", *(f"put_{n}" for n in range(99))))
    service.settings.state_dir.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for _ in range(2):
        async with client(service, "claude-code", version="3.0") as one:
            texts.append((await one.list_tools()).tools[0].description or "")
            await one.call_tool("codemode.run", {"code": ""})
        await until((service.settings.state_dir / USES_FILE).exists, "the use is kept")
    assert [("function put_98(" in text, ": put_98, put_0," in text) for text in texts] == [
        (False, False),
        (True, True),
    ]
    assert all(
        len(text) <= 4_096 and ", ".join(ERROR_CLASSES) in text and "`diagnostics`" in text for text in texts
    )


class Learning(Calling):
    """Has seen as many fields of what `put_98` gives as it has run scripts."""

    seen = 0

    async def run_request(self, request: dict[str, Any], _: Caller, **more: Any) -> RunResponse:
        self.seen += 1
        return await super().run_request(request, _, **more)

    def output_of(self, server: ServerEntry, tool: ToolEntry, principal: str) -> ToolOutput | None:
        fields = {f"f{number}": {"type": "integer"} for number in range(self.seen)}
        is_known = self.seen and tool.tool_name == "put_98"
        return (
            ToolOutput("observed", "seen", schema={"type": "object", "properties": fields})
            if is_known
            else None
        )


@pytest.mark.parametrize("name", ["claude-code", "some-other"])
async def test_what_a_called_tool_gave_is_described_at_the_next_start_and_sent_where_it_is_known_better(
    tmp_path: Path, name: str
) -> None:
    service = Learning(settings(tmp_path), server("a", "put"), server("b", *(f"put_{n}" for n in range(99))))
    service.settings.state_dir.mkdir(parents=True, exist_ok=True)
    for start in range(2):
        async with client(service, name, version="3.0") as one:
            told = (await one.list_tools()).tools[0].description or ""
            assert ("b.put_98(…): Promise<{ f0?: number }>" in told) == (start == 1), told
            brought_now = await brought(one, "b.put_98()")
            assert ("{ f0?: number; f1?: number }" in brought_now.get("b", "")) == (start == 1)
            assert (await one.list_tools()).tools[0].description == told
        await until((service.settings.state_dir / USES_FILE).exists, "the use is kept")


class Answering(StandingService):
    """Fails at every script but `fine`."""

    async def run_request(self, raw: Mapping[str, Any], _: Caller, **__: Any) -> RunResponse:
        warning = Diagnostic(severity="warning", code="CALLS_NOT_AWAITED", message="w")
        failed = Diagnostic(severity="error", code="UNCAUGHT_EXCEPTION", message="no")
        found = [warning] if raw["code"] == "fine" else [warning, failed]
        return RunResponse(logs=[], diagnostics=found)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize(
    ("frontend", "name", "shown"),
    [
        ({}, "someone", TOOL_NAME),
        ({}, "mcp", TOOL_NAME),
        ({}, "claude-ai", PLAIN_NAME),
        ({}, "Visual Studio Code", PLAIN_NAME),
        ({}, "JetBrains-IU/copilot-intellij", PLAIN_NAME),
        ({"tool_name": "codemode.run"}, "claude-ai", TOOL_NAME),
        ({"tool_name": "codemode_run"}, "someone", PLAIN_NAME),
        ({"profile": "strict", "tool_name": "codemode_run"}, "claude-ai", TOOL_NAME),
    ],
)
async def test_the_name_is_the_clients_and_both_are_taken(
    tmp_path: Path, frontend: dict[str, Any], name: str, shown: str, mode: str
) -> None:
    async with client(Answering(settings(tmp_path, frontend=frontend)), name, mode) as one:
        (tool,) = (await within(one.list_tools())).tools
        assert tool.name == shown
        assert (await within(one.call_tool(TOOL_NAME, {"code": "fine"}))).structured_content is not None
        if frontend.get("profile") == "strict":
            with pytest.raises(MCPError, match=r"only tool is codemode\.run"):
                await within(one.session.call_tool(PLAIN_NAME, {"code": "fine"}))
        else:
            assert (await within(one.call_tool(PLAIN_NAME, {"code": "fine"}))).structured_content is not None
        with pytest.raises(MCPError):
            await within(one.session.call_tool("run", {"code": "fine"}))


INSTALLED = {
    "claude-code": ["claude-code"],
    "claude-desktop": ["claude-ai"],
    "cursor": ["cursor-vscode", "Cursor"],
    "vscode": [
        *("Visual Studio Code", "Visual Studio Code - Insiders", "Visual-Studio-Code"),
        *("VSCodium", "VSCodium - Insiders", "Code - OSS", "code-server"),
    ],
    "codex": ["codex-mcp-client"],
    "gemini": ["gemini-cli-mcp-client"],
    "windsurf": ["windsurf-client", "Windsurf"],
    "zed": ["Zed"],
    "opencode": ["opencode"],
    "goose": ["goose", "goose-cli", "goose-desktop"],
}
"""Maps the clients that `install` knows to what they call themselves."""

WITH_DOTS = ["gemini-cli-mcp-client"]
"""Names clients that were looked at and take a dot."""


def test_a_name_is_decided_for_each_client_that_can_be_installed() -> None:
    assert INSTALLED.keys() == CLIENTS.keys()
    for client_names in INSTALLED.values():
        for name in client_names:
            assert (name.lower() in WITHOUT_DOTS) != (name.lower() in WITH_DOTS), name
            assert tool_name_for(name, FrontendSettings()) == (
                TOOL_NAME if name.lower() in WITH_DOTS else PLAIN_NAME
            )


def test_the_table_is_documented_with_sources() -> None:
    page = (ROOT / "docs" / "clients.md").read_text("utf-8")
    section = page.partition("### What the tool is called")[2].partition("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    documented = {name.lower(): row for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    assert set(documented) == {*WITHOUT_DOTS, *WITH_DOTS, "…/copilot-intellij"}
    assert all("](https://" in row for row in documented.values())
    assert tool_name_for("", FrontendSettings()) == TOOL_NAME


@pytest.mark.parametrize(("setting", "marked"), [("never", False), ("diagnostics", True)])
async def test_a_failed_run_begins_with_its_error(tmp_path: Path, setting: str, marked: bool) -> None:
    async with client(Answering(settings(tmp_path, frontend={"is_error": setting}))) as one:
        failed: Any = await within(one.call_tool(TOOL_NAME, {"code": "fails"}))
        (text,) = failed.content
        assert text.text.startswith("error UNCAUGHT_EXCEPTION")
        assert next(iter(failed.structured_content or {})) == "diagnostics"
        assert failed.is_error is marked
        fine = await within(one.call_tool(TOOL_NAME, {"code": "fine"}))
        assert next(iter(fine.structured_content or {})) == "logs" and not fine.is_error


MAX_CHARS = 5_000
"""About 1,250 tokens: what an agent is asked to read before its first script."""

DEFAULTS = Settings()


def catalog_of(functions: dict[str, list[str]], *absent: str) -> Catalog:
    servers = {
        name: ServerEntry(name, name, name, tools=tuple(ToolEntry(tool, tool) for tool in tools))
        for name, tools in functions.items()
    }
    return Catalog(1, servers, dict.fromkeys(absent, "HTTP 401"))


def numbered(servers: int, absent: int) -> Catalog:
    functions = [f"tool_{number}" for number in range(5)]
    known = {f"server-{number}": functions for number in range(servers)}
    return catalog_of(known, *(f"absent-{number}" for number in range(absent)))


def words_of(text: str) -> list[str]:
    return re.findall(r"[\w-]+", text)


def phrases(text: str) -> set[tuple[str, ...]]:
    """Each five words in a row."""
    words = [word.lower() for word in words_of(text)]
    return set(zip(*(words[at:] for at in range(5)), strict=False))


@pytest.mark.parametrize("profile", ["default", "extended"])
@pytest.mark.parametrize(("servers", "absent"), [(0, 0), (3, 1), (60, 0), (400, 0), (3, 400), (400, 400)])
def test_the_instructions_are_short_and_repeat_nothing_of_the_description(
    servers: int, absent: int, profile: Profile
) -> None:
    catalog = numbered(servers, absent)
    text = instructions(catalog, profile)
    assert len(text) <= INSTRUCTIONS_CHARS and text == instructions(catalog, profile)
    told = opening(catalog)
    assert not phrases(f"{told}\n{manual(DEFAULTS)}") & phrases(text)
    ids = {*catalog.servers, *catalog.unavailable}
    shown, named = ids & set(words_of(told)), ids & set(words_of(text))
    assert not shown & named, "each server is named by one of the two"
    assert (shown == ids) == (max(servers, absent) <= 3 or (servers, absent) == (60, 0))
    # What neither has room for is counted.
    assert shown | named == ids or "more." in text
    assert bool(named) == (shown != ids)


def test_in_the_profile_proxy_the_names_of_tools_say_which_servers_there_are() -> None:
    assert words_of(instructions(numbered(3, 2), "proxy"))[-4:] == [
        "Not",
        "connected",
        "absent-0",
        "absent-1",
    ]


def test_every_limit_is_told_with_the_settings_own_figures() -> None:
    text = manual(
        DEFAULTS.with_section(limits=LimitSettings(timeout_ms=LimitRange(default=1234, maximum=5678)))
    )
    assert "timeoutMs 1234 (at most 5678) ms" in text
    assert all(key in text for key in KEYS)
    assert len(manual(DEFAULTS)) < MAX_CHARS


SERVERS = {name: {"command": "x"} for name in ("My Files", "mail", "wiki")}


@pytest.mark.parametrize(
    ("schemas", "told"),
    [
        ({}, []),
        ({"unwrap": "json"}, ["parsed from all servers: no JSON.parse"]),
        (
            {"unwrap": {"*": "json", "mail": "bigint"}},
            ["beyond 2^53 come as BigInt from mail", "parsed from all servers: no JSON.parse"],
        ),
        ({"servers": {"My Files": {"unwrap": "json"}, "mail": {}}}, ["parsed from my-files: no JSON.parse"]),
        (
            {
                "unwrap": "json",
                "unbox": True,
                "servers": {"mail": {"unwrap": "spec"}},
            },
            ["parsed from all servers (but not mail)", "comes bare"],
        ),
        ({"unbox": True}, ["comes bare"]),
    ],
)
def test_servers_that_give_results_otherwise_are_named(schemas: dict[str, Any], told: list[str]) -> None:
    config = parse_settings({"mcpServers": SERVERS, "cellblock": {"schemas": schemas}})
    for line, part in zip(deviations(config), told, strict=True):
        assert part in line
        assert line in manual(config)


def test_the_extended_profile_is_told_of() -> None:
    told = ["search_tools" in instructions(Catalog(), profile) for profile in ("default", "extended")]
    assert told == [False, True]


def test_agents_are_told_of_the_budget_where_there_is_one() -> None:
    off, on = (
        parse_settings({"cellblock": {"frontend": frontend}}) for frontend in ({}, {"inline_bytes": 12_345})
    )
    assert manual(off) == manual(DEFAULTS)
    assert "result and logs over 12345 bytes" in manual(on)


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
    listed, where = rows_within({f"server-{number}": ["name"] * 10 for number in range(100)}, 400)
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
    tools = [
        *(ToolEntry(name, name) for name in names.split()),
        ToolEntry("audit", "audit", annotations={"readOnlyHint": True}),
        ToolEntry("get_rid", "get_rid", annotations={"readOnlyHint": False}),
    ]
    order = "get_issue listUsers find_projects audit list_issues create_issue drop look_at get_rid"
    assert [tool.export_name for tool in by_use(tools)] == order.split()
    many = catalog_of({"a": ["write_one"], "b": ["write_two", "get_two"]})
    assert 'import { get_two } from "@codemode/servers/b";' in opening(many)


@pytest.mark.parametrize("chars", [1_000, 1_500, OPENING_CHARS])
def test_a_short_one_names_every_server_and_ends_where_its_client_cuts(chars: int) -> None:
    text = opening(catalog_of({f"s{n}": [f"get_{m}" for m in range(20)] for n in range(6)}, "wiki"), chars)
    assert len(text) <= chars and RULES[0] in text and "describe(" in text
    assert all(f"- s{n} (20): get_0" in text for n in range(6)) and "Not connected: wiki." in text
