"""Sections 5.0.1 to 5.2 and 6.1: where servers are imported from, and what their modules export."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CONTRACT, CONTRACT_TOOLS, broker_with, evaluated, value, words
from support.entries import plain_server
from support.waits import until

PATHS = {
    "Google Drive": "google-drive",
    "google-drive": "google-drive--2",
    "google_drive!!": "google-drive--3",
    "--A..B--": "a-b",
    "a b": "a-b--2",
    "UPPER": "upper",
    "x---y": "x-y",
    "v1.2/three": "v1-2-three",
    "ünïcode": "n-code",
    "ÉTÉ": "t",
    "7": "7",
    "constructor": "constructor",
    "__proto__": "proto",
}
"""Names in a configuration, in its order, and the paths that section 5.0.1 gives them."""

EXPORTS = {
    "123tool": "_123tool",
    "9": "_9",
    "a-b": "a_b",
    "a.b": "a_b__2",
    "a_b": "a_b__3",
    "delete": "delete_",
    "delete_": "delete___2",
    "default": "default_",
    "await": "await_",
    "static": "static_",
    "let": "let_",
    "yield": "yield_",
    "null": "null_",
    "with space": "with_space",
    "$dollar": "$dollar",
    "_under": "_under",
    "slash/name": "slash_name",
    "new\nline": "new_line",
    "*/ tool": "___tool",
    "quote\"'`name": "quote___name",
    "eval": "eval",
    "arguments": "arguments",
    "enum": "enum",
    "async": "async",
    "of": "of",
    "Object": "Object",
    "globalThis": "globalThis",
    "constructor": "constructor",
    "toString": "toString",
    "hasOwnProperty": "hasOwnProperty",
    "prototype": "prototype",
    "__proto__": "__proto__",
    "__meta__": "__meta____2",
    "echo": "echo",
}
"""Canonical tool names of the contract server, and the exports that section 6.1 gives them."""

RESERVED = words("""break case class const continue debugger default delete do else export extends false finally for
    function if import in instanceof new null return super switch this throw true try typeof var void while with yield
    let static await""")


@pytest.fixture(scope="module")
async def paths(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker whose servers have difficult names; each is the plain server."""
    servers = {name: plain_server() for name in PATHS}
    async with broker_with(tmp_path_factory.mktemp("paths"), servers) as made:
        yield made


def tools_of(broker: Broker, server: str) -> set[str]:
    """The tools of a server that the broker knows now."""
    return {tool.tool_name for tool in broker.catalog.servers[server].tools}


@pytest.mark.clause("5.0.1.a", "5.0.1.b", "5.a")
async def test_names_become_paths(paths: Broker) -> None:
    """Every server can be imported at its path, and reports that path everywhere."""
    assert list(paths.catalog.servers) == list(PATHS.values()), paths.catalog.unavailable
    imports = "".join(
        f'import * as s{number} from "@codemode/servers/{path}";\n'
        for number, path in enumerate(PATHS.values())
    )
    metas = ", ".join(
        f"[s{number}.__meta__.serverId, await s{number}.echo({{}})]" for number in range(len(PATHS))
    )
    code = f"""{imports}
        import {{ listServers, describeServer, searchTools }} from "@codemode/discovery";
        const listed = (await listServers()).map((server) => server.serverId);
        const described = [];
        for (const id of listed) described.push((await describeServer(id)).serverId);
        const found = (await searchTools("echo", {{ limit: 100 }})).results.map((tool) => tool.serverId);
        globalThis.__codemode_result__ = [[{metas}], listed, described, [...new Set(found)].sort()];
    """
    metas_found, listed, described, found = await value(paths, code)
    assert metas_found == [[path, "{}"] for path in PATHS.values()]
    assert listed == described == list(PATHS.values())
    assert found == sorted(PATHS.values())


@pytest.mark.clause("5.0.1.a")
async def test_the_first_of_equal_paths_stays_clean(tmp_path: Path) -> None:
    """By the order of the configuration, not of the alphabet or of who connects first."""
    servers = {"z.z": plain_server("--start-delay", 0.3), "Z Z": plain_server(), "z-z": plain_server()}
    async with broker_with(tmp_path, servers) as broker:
        assert {path: server.config_name for path, server in broker.catalog.servers.items()} == {
            "z-z": "z.z",
            "z-z--2": "Z Z",
            "z-z--3": "z-z",
        }


@pytest.mark.clause("5.a", "5.0.1.a")
async def test_a_name_without_any_letter_still_has_a_path(tmp_path: Path) -> None:
    """The rule leaves nothing of it; it can be imported all the same."""
    async with broker_with(tmp_path, {"日本": plain_server(), "!!!": plain_server()}) as broker:
        ids = await evaluated(
            broker,
            "(await listServers()).map((server) => server.serverId)",
            'import { listServers } from "@codemode/discovery";',
        )
        assert len(set(ids)) == 2
        for path in ids:
            assert re.fullmatch(r"[a-z0-9]+(-+[a-z0-9]+)*", path)
            module = f'import * as it from "@codemode/servers/{path}";'
            assert await evaluated(broker, "it.__meta__.serverId", module) == path


@pytest.mark.clause("5.1.a", "5.2.a", "6.1.a", "6.1.b", "6.1.c")
async def test_tool_names_become_exports(broker: Broker) -> None:
    """`__meta__` tells the mapping, the module has exactly those exports, and each reaches its own tool."""
    code = f"""{CONTRACT}
        const called = {{}};
        for (const {{ toolName, exportName }} of contract.__meta__.tools) {{
            if (!{json.dumps(list(EXPORTS))}.includes(toolName)) continue;
            called["=" + toolName] = [exportName, (await contract[exportName]({{}})).tool];
        }}
        const kinds = Object.entries(contract).map(([name, it]) => [name, typeof it,
            Object.prototype.toString.call(it)]);
        globalThis.__codemode_result__ = [contract.__meta__, called, kinds];
    """
    meta, called, kinds = await value(broker, code)
    assert called == {f"={name}": [export, name] for name, export in EXPORTS.items()}

    assert {key: meta[key] for key in ("serverId", "serverName", "serverVersion")} == {
        "serverId": "contract",
        "serverName": "contract-server",
        "serverVersion": "1.2.3",
    }
    assert set(meta) == {"serverId", "serverName", "serverVersion", "tools"}
    tools = {tool["toolName"]: tool for tool in meta["tools"]}
    defined = {name: row["tool"] for name, row in CONTRACT_TOOLS.items()}
    assert set(tools) == set(defined) and len(meta["tools"]) == len(defined)
    for name, tool in tools.items():
        assert set(tool) == {"toolName", "exportName"} | ({"description"} & set(defined[name]))
        assert tool.get("description") == defined[name].get("description")
        assert re.fullmatch(r"[\w$]+", tool["exportName"]) and tool["exportName"] not in RESERVED

    exports = [tool["exportName"] for tool in meta["tools"]]
    assert len(set(exports)) == len(exports)
    assert sorted(name for name, *_ in kinds) == sorted([*exports, "__meta__"])
    assert {tuple(kind) for name, *kind in kinds if name != "__meta__"} == {
        ("function", "[object AsyncFunction]")
    }


@pytest.mark.clause("5.2.a")
async def test_meta_without_a_version(broker: Broker) -> None:
    """`serverVersion` is left out where nobody has given one."""
    meta = await evaluated(broker, "__meta__", 'import { __meta__ } from "@codemode/servers/local";')
    assert set(meta) == {"serverId", "serverName", "tools"}
    assert [tool["toolName"] for tool in meta["tools"]] == ["add", "explode", "shout"]
    assert meta["tools"][0]["description"] == "Adds two numbers."


@pytest.mark.clause("6.1.a")
async def test_every_reserved_word_of_the_specification(tmp_path: Path) -> None:
    """Each gets `_` behind, and can be imported and called by that name."""
    async with broker_with(tmp_path, {"plain": plain_server()}) as broker:
        grow = "".join(f"await plain.grow({{ name: {word!r} }});" for word in RESERVED)
        await value(broker, f'import * as plain from "@codemode/servers/plain"; {grow}')
        await until(lambda: "await" in tools_of(broker, "plain"), "all tools are known")
        names = ", ".join(f"{word}_" for word in RESERVED)
        calls = ", ".join(f"await {word}_({{}})" for word in RESERVED)
        code = f'import {{ __meta__, {names} }} from "@codemode/servers/plain"; \
            globalThis.__codemode_result__ = [__meta__.tools, [{calls}]];'
        tools, answers = await value(broker, code)
    mapping = {tool["toolName"]: tool["exportName"] for tool in tools}
    assert {word: mapping[word] for word in RESERVED} == {word: f"{word}_" for word in RESERVED}
    assert answers == ["{}"] * len(RESERVED)


@pytest.mark.clause("6.1.b")
async def test_collisions_do_not_depend_on_the_order_of_the_server(tmp_path: Path) -> None:
    """Two servers announce the same names in opposite orders; the exports are the same."""
    names = ["x y", "x-y", "x.y", "x_y", "x_y__2", "x:y"]
    async with broker_with(tmp_path, {"one": plain_server(), "two": plain_server()}) as broker:
        imports = (
            'import * as one from "@codemode/servers/one"; import * as two from "@codemode/servers/two";'
        )
        one = "".join(f"await one.grow({{ name: {name!r} }});" for name in names)
        two = "".join(f"await two.grow({{ name: {name!r} }});" for name in reversed(names))
        await value(broker, f"{imports} {one} {two}")
        await until(lambda: "x:y" in tools_of(broker, "one") & tools_of(broker, "two"), "all tools are known")
        await until(lambda: "x y" in tools_of(broker, "two"), "all tools are known")
        first, second = await evaluated(
            broker,
            "[one, two].map((module) => Object.fromEntries("
            "module.__meta__.tools.map((tool) => [tool.toolName, tool.exportName])))",
            imports,
        )
    assert first == second
    # Alphabetical by code units: space, hyphen, dot, colon, underscore.
    assert [first[name] for name in ("x y", "x-y", "x.y", "x:y", "x_y")] == [
        "x_y",
        "x_y__2",
        "x_y__3",
        "x_y__4",
        "x_y__5",
    ]
    assert first["x_y__2"] not in ("x_y", "x_y__2", "x_y__3", "x_y__4", "x_y__5")


@pytest.mark.clause("5.a", "6.1.a")
async def test_a_tool_called_then_does_not_break_dynamic_imports(broker: Broker) -> None:
    """`await import(…)` would call an export `then`; the tool is there under the name that `__meta__` tells."""
    code = """
        const module = await import("@codemode/servers/contract");
        const { exportName } = module.__meta__.tools.find((tool) => tool.toolName === "then");
        globalThis.__codemode_result__ = [exportName.startsWith("then"), (await module[exportName]({ a: 1 })).tool];
    """
    assert await value(broker, code) == [True, "then"]


@pytest.mark.clause("5.1.a", "6.1.c")
async def test_discovery_and_meta_agree(broker: Broker) -> None:
    """The same pairs of names from `__meta__`, listTools and getTool."""
    code = f"""{CONTRACT}import {{ listTools, getTool }} from "@codemode/discovery";
        const pairs = (tools) => tools.map(({{ toolName, exportName }}) => [toolName, exportName]);
        const listed = pairs(await listTools("contract"));
        const got = await Promise.all(listed.map(async ([name]) => (await getTool("contract", name)).exportName));
        globalThis.__codemode_result__ = [pairs(contract.__meta__.tools), listed, got];
    """
    meta, listed, got = await value(broker, code)
    assert meta == listed and [export for _, export in listed] == got
