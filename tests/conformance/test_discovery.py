"""Sections 4.1 to 4.3 and 12.1: `@codemode/discovery`."""

import re
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT_TOOLS, evaluated, value

DISCOVERY = 'import * as discovery from "@codemode/discovery";\n'

SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


async def asked(broker: Broker, call: str) -> Any:
    """What one discovery function answers."""
    return await evaluated(broker, f"await discovery.{call}", DISCOVERY)


@pytest.mark.clause("4.1.a", "12.1.a")
async def test_the_exports(broker: Broker) -> None:
    """Six, of which five are functions that give promises, and two of our own; the version is semver."""
    version, names, promises = await evaluated(
        broker,
        """[discovery.specVersion, Object.keys(discovery).sort(), [discovery.listServers(),
            discovery.describeServer("contract"), discovery.listTools("contract"),
            discovery.getTool("contract", "echo"), discovery.searchTools("echo")]
            .map((answer) => answer instanceof Promise)]""",
        DISCOVERY,
    )
    assert SEMVER.fullmatch(version)
    assert names == [
        "describe",
        "describeServer",
        "getTool",
        "listServers",
        "listTools",
        "readResource",
        "searchTools",
        "specVersion",
    ]
    assert promises == [True] * 5


def stated(tool: dict[str, Any]) -> dict[str, Any]:
    """The definition without what was only observed, which depends on the calls that other tests have made."""
    if str(tool.get("outputSchema", {}).get("description", "")).startswith("Observed from"):
        del tool["outputSchema"]
    return tool


@pytest.mark.clause("4.2.a")
async def test_servers(broker: Broker) -> None:
    """ServerInfo and ServerDescription: ids in the order of the configuration, names as servers give them."""
    servers = await asked(broker, "listServers()")
    assert [(server["serverId"], server["serverName"]) for server in servers] == [
        ("contract", "contract-server"),
        ("plain", "plain"),
        ("local", "local"),
    ]
    for server in servers:
        assert set(server) <= {"serverId", "serverName", "capabilities"}
        assert all(isinstance(name, str) for name in server.get("capabilities", []))
        described = await asked(broker, f"describeServer({server['serverId']!r})")
        assert set(described) <= {"serverId", "serverName", "capabilities", "description", "version"}
        assert {key: described[key] for key in server} == server
    contract = await asked(broker, "describeServer('contract')")
    assert contract["version"] == "1.2.3"
    assert contract["description"] == "Hard cases, served as contract-server."
    assert "tools" in contract["capabilities"]


@pytest.mark.clause("4.3.a", "4.3.b", "4.2.a", "4.2.b", "6.3.a")
async def test_detail_levels_of_list_tools(broker: Broker) -> None:
    """Every tool at every level has the fields of that level, and no other."""
    levels = await evaluated(
        broker,
        """{ name: await discovery.listTools("contract", { detail: "name" }),
            description: await discovery.listTools("contract", { detail: "description" }),
            full: await discovery.listTools("contract", { detail: "full" }),
            none: await discovery.listTools("contract"),
            empty: await discovery.listTools("contract", {}),
            undef: await discovery.listTools("contract", { detail: undefined }),
            nothing: await discovery.listTools("contract", null),
            unknown: await discovery.listTools("contract", { unknown: 1 }) }""",
        DISCOVERY,
    )
    defined = {name: row["tool"] for name, row in CONTRACT_TOOLS.items()}
    for default in ("none", "empty", "undef", "nothing", "unknown"):
        assert levels[default] == levels["description"], default
    for level, extra in (
        ("name", ()),
        ("description", ("description", "annotations")),
        ("full", ("description", "annotations", "inputSchema", "outputSchema")),
    ):
        found = {tool["toolName"]: tool for tool in levels[level]}
        assert set(found) == set(defined)
        for name, tool in found.items():
            stated(tool)
            wanted = {key: defined[name][key] for key in extra if key in defined[name]}
            if "outputSchema" not in tool and wanted.get("outputSchema") == {"type": "object"}:
                # What was observed, which `stated` takes away, says more than an open one.
                del wanted["outputSchema"]
            assert {key: tool[key] for key in tool if key not in ("toolName", "exportName")} == wanted, name
            assert isinstance(tool["exportName"], str)


@pytest.mark.clause("4.2.a", "4.3.b", "6.3.a")
async def test_get_tool_gives_everything(broker: Broker) -> None:
    """One ToolDefinition, by its canonical name."""
    for name in ("annotated", "a.b", "checked-with.example", "quote\"'`name", "delete"):
        tool = await evaluated(broker, f"await discovery.getTool('contract', {name!r})", DISCOVERY)
        defined = {key: part for key, part in CONTRACT_TOOLS[name]["tool"].items() if key != "name"}
        assert stated(tool).pop("toolName") == name
        assert re.fullmatch(r"[A-Za-z_$][\w$]*", tool.pop("exportName"))
        assert tool == defined


async def test_describe_gives_typescript(broker: Broker) -> None:
    """Of all functions, or of some; what there is none of is told."""
    whole, one, two, wrong = await evaluated(
        broker,
        """[await discovery.describe("contract"), await discovery.describe("contract", "echo"),
            await discovery.describe("contract", ["echo", "slow"]),
            await discovery.describe("contract", "ecko").catch((error) => error.hint)]""",
        DISCOVERY,
    )
    assert 'declare module "@codemode/servers/contract"' in one and "function echo(" in one
    assert "slow" not in one and "function slow(" in two and "function echo(" in whole
    missing = [name for name, row in CONTRACT_TOOLS.items() if name.isidentifier() and name not in whole]
    assert missing == [] and "echo" in wrong


@pytest.mark.clause("4.2.a", "4.2.b", "4.3.a", "4.3.b")
async def test_search(broker: Broker) -> None:
    """The query comes back, each result says its server, and the detail levels are those of listTools."""
    found = await asked(broker, "searchTools('destructive')")
    assert set(found) == {"query", "results"} and found["query"] == "destructive"
    first = found["results"][0]
    assert (first["serverId"], first["toolName"], first["exportName"]) == (
        "contract",
        "destructive",
        "destructive",
    )
    assert first["annotations"] == {"destructiveHint": True} and "inputSchema" not in first

    assert first["signature"].startswith("function destructive(input")

    named = await asked(broker, "searchTools('destructive', { detail: 'name' })")
    assert all(set(result) == {"serverId", "toolName", "exportName"} for result in named["results"])
    annotated = (await asked(broker, "searchTools('annotated', { detail: 'full' })"))["results"][0]
    assert annotated["inputSchema"] == {"type": "object"}
    assert annotated["outputSchema"] == CONTRACT_TOOLS["annotated"]["tool"]["outputSchema"]


@pytest.mark.clause("4.2.b")
async def test_search_options(broker: Broker) -> None:
    """`limit` bounds, `serverId` restricts, and both go together with a detail."""
    everywhere = (await asked(broker, "searchTools('echo input')"))["results"]
    assert {"contract", "plain"} <= {result["serverId"] for result in everywhere}
    for server in ("contract", "plain"):
        results = (await asked(broker, f"searchTools('echo', {{ serverId: '{server}' }})"))["results"]
        assert results and {result["serverId"] for result in results} == {server}
    assert len((await asked(broker, "searchTools('named', { limit: 3, detail: 'name' })"))["results"]) == 3
    assert len((await asked(broker, "searchTools('named', { limit: 1 })"))["results"]) == 1
    assert len((await asked(broker, "searchTools('named', { limit: 25 })"))["results"]) == 25
    assert (await asked(broker, "searchTools('qqzzxxyy')"))["results"] == []


ERRORS = {
    "describeServer('contrakt')": ("ServerNotFoundError", "contract"),
    "describeServer('nothing-like-it')": ("ServerNotFoundError", ""),
    "listTools('contrakt')": ("ServerNotFoundError", "contract"),
    "getTool('contrakt', 'echo')": ("ServerNotFoundError", "contract"),
    "getTool('contract', 'ecko')": ("ToolNotFoundError", "echo"),
    "getTool('contract', 'nothing_like_it_at_all')": ("ToolNotFoundError", ""),
    "searchTools('x', { serverId: 'contrakt' })": ("ServerNotFoundError", "contract"),
    "searchTools('x', { detail: 'everything' })": ("", "full"),
    "searchTools('x', { limit: 0 })": ("", ""),
    "searchTools('x', { limit: -1 })": ("", ""),
    "searchTools('x', { limit: true })": ("", ""),
    "searchTools('x', { limit: '3' })": ("", ""),
    "searchTools('x', { limit: 'many' })": ("", ""),
    "searchTools('x', { limit: 1.5 })": ("", ""),
    "listTools('contract', { detail: 'all' })": ("", "full"),
    "listTools('contract', 'full')": ("", ""),
    "listTools('contract', [])": ("", ""),
    "listTools('contract', { detail: ['name'] })": ("", "full"),
    "listTools('contract', { detail: null })": ("", "full"),
    "listTools()": ("", ""),
    "describeServer()": ("", ""),
    "describeServer(null)": ("", ""),
    "describeServer(['contract'])": ("", ""),
    "describeServer(7)": ("", ""),
    "getTool('contract')": ("", ""),
    "getTool('contract', { a: 1 })": ("", ""),
    "searchTools()": ("", ""),
    "searchTools(null)": ("", ""),
    "searchTools('x', { serverId: 5 })": ("", ""),
    "describeServer('__proto__')": ("ServerNotFoundError", ""),
    "getTool('contract', 'hasOwn')": ("ToolNotFoundError", ""),
}


@pytest.mark.clause("7.3.a", "7.1.a", "4.1.a")
async def test_wrong_questions(broker: Broker) -> None:
    """Each is a CodemodeError with a hint, of the class that fits; near misses are named in the hint."""
    asked_all = ", ".join(f"[{call!r}]: await caught(() => discovery.{call})" for call in ERRORS)
    base = ", ".join(
        f"[{call!r}]: await discovery.{call}.catch((error) => error instanceof CodemodeError)"
        for call in ERRORS
    )
    answers, extend = await evaluated(
        broker,
        f"[{{ {asked_all} }}, {{ {base} }}]",
        f'{DISCOVERY}import {{ CodemodeError }} from "@codemode/errors";{CAUGHT}',
    )
    for call, (name, near) in ERRORS.items():
        answer = answers[call]
        assert "returned" not in answer, f"{call}: {answer}"
        assert answer["hint"] and answer["message"], call
        assert near in answer["hint"], f"{call}: {answer['hint']}"
        assert extend[call] is True, call
        if name:
            assert answer["name"] == name, call


@pytest.mark.clause("11.b", "4.2.a")
async def test_answers_belong_to_the_script(broker: Broker) -> None:
    """Each answer is fresh plain data: what a script does to one does not show in the next."""
    code = f"""{DISCOVERY}
        const first = await discovery.getTool("contract", "checked");
        first.inputSchema.properties.name = "changed"; first.toolName = "changed"; delete first.exportName;
        const second = await discovery.getTool("contract", "checked");
        globalThis.__codemode_result__ = [second.toolName, second.exportName, second.inputSchema.properties.name.type,
            Object.getPrototypeOf(second) === Object.prototype];
    """
    assert await value(broker, code) == ["checked", "checked", "string", True]
