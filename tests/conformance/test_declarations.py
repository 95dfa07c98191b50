"""Sections 4.4, 6.2 and 6.3: TypeScript declarations, proven with the compiler."""

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
from conformance.world import broker_with, contract_server
from support.entries import plain_server
from support.params import mostly
from support.public_servers import NODE_SERVERS, PYTHON_SERVERS, node_entry, python_entry
from support.recorded_catalogs import recorded_catalog
from support.waits import until

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
    assert [name for number, name in enumerate(list(BAD)) if first + number not in errors] == []


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
