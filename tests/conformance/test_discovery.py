"""Sections 4.1 to 4.3 and 12.1: `@codemode/discovery`."""

import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import deno
import pytest

from cellblock import Broker
from cellblock.tools.catalog.model import Catalog, ServerEntry
from cellblock.types.typescript import declare_all, declare_server
from conformance.world import CAUGHT, CONTRACT_TOOLS, broker_with, contract_server, evaluated, value
from support.entries import plain_server
from support.params import mostly
from support.public_servers import NODE_SERVERS, PYTHON_SERVERS, node_entry, python_entry
from support.recorded_catalogs import recorded_catalog
from support.waits import until

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
    assert contract["version"] == "1.2.3" and "tools" in contract["capabilities"]
    assert contract["description"] == "Hard cases, served as contract-server."


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
    names = (first["serverId"], first["toolName"], first["exportName"])
    assert names == ("contract", "destructive", "destructive")
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
    for arguments, count in {
        "'named', { limit: 3, detail: 'name' }": 3,
        "'named', { limit: 1 }": 1,
        "'named', { limit: 25 }": 25,
        "'qqzzxxyy'": 0,
    }.items():
        assert len((await asked(broker, f"searchTools({arguments})"))["results"]) == count, arguments


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
        assert answer["hint"] and answer["message"] and extend[call] is True, call
        assert near in answer["hint"], f"{call}: {answer['hint']}"
        assert answer["name"] == name or not name, call


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


CONFIG = {"compilerOptions": {"strict": True, "lib": ["es2023"], "types": ["./declarations.d.ts"]}}

GOOD = """import * as contract from "@codemode/servers/contract";
const base = {
  enumerated: "a" as const, fixed: "only" as const, one: 1, any: null, nullable: null,
  referred: { x: 1, y: 2 }, tree: { value: "r", children: [{ value: "c", children: [] }] },
  open: { known: "k", other: "o" }, patterned: { "x-a": 1 }, tuple: ["a", 1] as [string, number],
};
await contract.featured(base);
await contract.featured({ ...base, enumerated: 3, one: "s", any: true, nullable: "s" });
await contract.checked({ name: "xy", count: 1, kind: "pear", tags: ["t"], "a/b~c": { x: 1 } });
await contract.one_text();
await contract.one_text({});
await contract._123tool({});
await contract.delete_({});
const read = await contract.annotated({});
const tool: string = read.tool;
const meta: string = contract.__meta__.tools[0].toolName;
export { meta, tool };
"""

BAD = {
    "enum": 'await contract.featured({ ...base, enumerated: "c" });',
    "const": 'await contract.featured({ ...base, fixed: "other" });',
    "oneOf": "await contract.featured({ ...base, one: true });",
    "anyOf": 'await contract.featured({ ...base, any: "s" });',
    "nullable": "await contract.featured({ ...base, nullable: 1 });",
    "$ref": "await contract.featured({ ...base, referred: { x: 1 } });",
    "recursion": 'await contract.featured({ ...base, tree: { value: "r", children: [{ value: 1 }] } });',
    "additionalProperties schema": 'await contract.featured({ ...base, open: { known: "k", other: 1 } });',
    "patternProperties": 'await contract.featured({ ...base, patterned: { "x-a": "s" } });',
    "tuple length": 'await contract.featured({ ...base, tuple: ["a"] });',
    "tuple order": 'await contract.featured({ ...base, tuple: [1, "a"] });',
    "missing property": 'await contract.checked({ name: "xy" });',
    "additionalProperties false": 'await contract.checked({ name: "xy", count: 1, tgas: [] });',
    "unknown tool": "await contract.one_txet();",
    "unknown output": "export const n: number = (await contract.annotated({})).tool;",
}


def checked(folder: Path, declarations: str, script: str) -> list[int]:
    """The lines of the script with errors, under `strict` and without the DOM's types."""
    (folder / "deno.json").write_text(json.dumps(CONFIG), "utf-8")
    (folder / "declarations.d.ts").write_text(declarations, "utf-8")
    (folder / "script.ts").write_text(script, "utf-8")
    done = subprocess.run(
        [deno.find_deno_bin(), "check", "--no-lock", "script.ts"],
        cwd=folder,
        env={"NO_COLOR": "1", "DENO_DIR": str(folder / "deno")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    # Indented by four: the place of an error, and not of what an error refers to.
    places = re.findall(r"^    at file://\S*/(\w+)(?:\.d)?\.ts:(\d+):\d+", done.stderr, re.MULTILINE)
    assert done.returncode == 0 or places, done.stderr
    broken = [line for file, line in places if file != "script"]
    assert broken == [], f"the declarations do not compile: {done.stderr[:2000]}"
    return sorted({int(line) for _, line in places})


@pytest.fixture(scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with the own servers and as many public ones as are installed."""
    folder = tmp_path_factory.mktemp("live")
    servers: dict[str, Any] = {"contract": contract_server(), "plain": plain_server()}
    if (NODE_SERVERS / "server-everything").exists():
        servers["everything"] = node_entry("server-everything", "stdio")
        servers["memory"] = node_entry("server-memory", env={"MEMORY_FILE_PATH": str(folder / "m.jsonl")})
        servers["filesystem"] = node_entry("server-filesystem", str(folder))
    if (PYTHON_SERVERS / "mcp-server-time").exists():
        servers["time"] = python_entry("mcp-server-time", "--local-timezone=UTC")
    async with broker_with(folder, servers) as broker:
        # A busy machine takes longer to start them than the broker waits for them.
        await until(lambda: set(broker.catalog.servers) == set(servers), "all servers are there", 120)
        yield broker


@pytest.mark.clause("4.4.a", "6.2.a")
@pytest.mark.parametrize("reading", mostly([True], [True, False]))
async def test_declarations_of_all_servers_compile(live: Broker, tmp_path: Path, reading: bool) -> None:
    """Recorded and live servers together, at least eight, under `strict`; every binding can be named and called."""
    catalog = recorded_catalog()
    merged = Catalog(1, {**{f"recorded-{name}": _moved(server, f"recorded-{name}")
                            for name, server in catalog.servers.items()}, **live.catalog.servers})  # fmt: skip
    assert len(merged.servers) >= 10 and sum(len(server.tools) for server in merged.servers.values()) >= 200
    lines: list[str] = []
    for number, (path, server) in enumerate(merged.servers.items()):
        lines.append(f'import * as s{number} from "@codemode/servers/{path}";')
        lines += [
            f"(s{number}.{tool.export_name} satisfies (...input: never[]) => Promise<unknown>);"
            for tool in server.tools
        ]
    assert checked(tmp_path, declare_all(merged, reading=reading), "\n".join(lines)) == []


@pytest.mark.clause("6.2.a", "6.1.a", "4.4.a")
@pytest.mark.parametrize("reading", [True, False])
async def test_the_listed_features_accept_and_refuse(live: Broker, tmp_path: Path, reading: bool) -> None:
    """For each feature of section 6.2 a value that compiles and one that does not: in what the agent reads, and in what
    its scripts are checked against."""
    declarations = declare_all(live.catalog, reading=reading)
    script = GOOD + "\n".join(BAD.values()) + "\n"
    first = GOOD.count("\n") + 1
    errors = checked(tmp_path, declarations, script)
    assert [line for line in errors if line < first] == [], "valid values are refused"
    assert [name for number, name in enumerate(BAD) if first + number not in errors] == []


@pytest.mark.clause("6.2.b")
async def test_what_cannot_be_said_is_unknown_with_a_warning(live: Broker) -> None:
    """A reference that leaves the document or leads nowhere; nothing is fetched."""
    text = declare_server(live.catalog.servers["contract"])
    start = text.index("function beyond(")
    head = text[
        text.rfind("/**", 0, start) : text.index(";\n\n", start) if ";\n\n" in text[start:] else len(text)
    ]
    for name in ("remote", "missing"):
        assert re.search(rf"{name}\?: unknown", head), head
    assert re.search(r"warning|cannot|not resolved|unresolved", head, re.IGNORECASE), head


@pytest.mark.clause("6.3.a")
async def test_annotations_are_in_doc_comments(live: Broker) -> None:
    """Each hint of the tool, in the comment before its declaration."""
    text = declare_server(live.catalog.servers["contract"])
    for name, hints in (
        ("annotated", ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]),
        ("destructive", ["destructiveHint"]),
    ):
        comment = text[: text.index(f"function {name}(")].rpartition("/**")[2]
        assert [hint for hint in hints if hint not in comment] == [], comment
    assert "export const escaped" not in re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def _moved(server: ServerEntry, path: str) -> ServerEntry:
    """The same server at another path."""
    return ServerEntry(path, server.server_name, path, tools=server.tools)
