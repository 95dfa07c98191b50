"""Section 5.3: what a binding takes, and what it gives back."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, CONTRACT_TOOLS, broker_with, evaluated, value, words
from support.entries import ledger, plain_server
from support.waits import until

ODD = [
    {"name": "schema_absent"},
    {"name": "schema_empty", "inputSchema": {}},
    {"name": "schema_array", "inputSchema": {"type": "array", "items": {"type": "integer"}}},
    {"name": "schema_string", "inputSchema": {"type": "string"}},
]
"""Tools that the SDK can neither list nor call."""


@pytest.fixture(scope="module")
async def odd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with the server whose input schemas are none of type object: each tool gives its input as JSON text."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "tools.json").write_text(json.dumps({"pages": [ODD]}))
    async with broker_with(folder, {"odd": plain_server("--definitions", folder / "tools.json")}) as made:
        yield made


async def answered(broker: Broker, name: str) -> Any:
    """What the binding of an answering tool gives."""
    return await evaluated(broker, f"await contract[{name!r}]()", CONTRACT)


@pytest.mark.clause("5.3.2.1")
@pytest.mark.parametrize(
    "name",
    [
        "structured",
        "structured_only",
        "structured_empty",
        "structured_with_image",
        # Rule 1 asks whether it is there, not whether it is true or an object (newer MCP allows any value).
        "structured_zero",
        "structured_false",
        "structured_list",
    ],
)
async def test_structured_content_wins(broker: Broker, name: str) -> None:
    """Whatever the content beside it is, an empty object too."""
    assert await answered(broker, name) == CONTRACT_TOOLS[name]["answer"]["structuredContent"]


@pytest.mark.clause("5.3.2.2")
@pytest.mark.parametrize("name", ["one_text", "empty_text", "json_text", "annotated_text", "hostile_text"])
async def test_a_single_text_gives_its_string(broker: Broker, name: str) -> None:
    """The very string: empty or hostile, and not parsed when it looks like JSON."""
    assert await answered(broker, name) == CONTRACT_TOOLS[name]["answer"]["content"][0]["text"]


@pytest.mark.clause("5.3.2.3")
@pytest.mark.parametrize("name", ["image", "audio", "text_and_image"])
async def test_images_and_audio_give_the_full_result(broker: Broker, name: str) -> None:
    """With the payload as the base64 string that the server sent."""
    content = (await answered(broker, name))["content"]
    assert content == CONTRACT_TOOLS[name]["answer"]["content"] and isinstance(content[-1]["data"], str)


@pytest.mark.clause("5.3.2.4")
@pytest.mark.parametrize(
    "name", ["two_texts", "no_content", "resource_text", "resource_blob", "resource_link", "with_meta"]
)
async def test_anything_else_gives_the_full_result(broker: Broker, name: str) -> None:
    """Several blocks, none, or resources: the result object as MCP defines it."""
    found = await answered(broker, name)
    answer = CONTRACT_TOOLS[name]["answer"]
    assert found["content"] == answer["content"]
    # The SDK's server adds to `_meta`.
    assert answer.get("_meta", {}).items() <= found.get("_meta", {}).items()
    assert set(found) <= {"content", "isError", "_meta"}


@pytest.mark.clause("5.3.1.a", "5.1.a")
async def test_an_object_schema_takes_one_argument(broker: Broker, ledgers: Path) -> None:
    """What the script passes is what the tool gets: nested data, unicode, numbers, empty keys; no more arguments."""
    sent: dict[str, Any] = {
        "text": "ä\u2028😀\u0000",
        "": "empty key",
        "__proto__": {"x": 1},
        "numbers": [0, -1, 1.5, 1e300, 2**53 - 1, -0.5],
        "deep": {"a": [{"b": [[], {}]}]},
        "null": None,
        "flags": [True, False],
    }
    one, more, length = await value(
        broker,
        f"""{CONTRACT}
        const sent = JSON.parse({json.dumps(json.dumps(sent))});
        const one = await contract.echo(sent);
        const more = await contract.echo({{ a: 1 }}, {{ b: 2 }}, 3);
        globalThis.__codemode_result__ = [one.arguments, more.arguments, contract.echo.length];
    """,
    )
    assert one == sent and more == {"a": 1} and length == 1
    calls = [
        event["arguments"] for event in ledger(ledgers / "contract.jsonl") if event.get("tool") == "echo"
    ]
    assert calls[-2:] == [sent, {"a": 1}]


@pytest.mark.clause("5.3.1.a")
async def test_javascript_values_are_sent_as_json_has_them(broker: Broker) -> None:
    """`undefined` members are left out, dates are strings; what has no JSON form is refused, not mangled."""
    sent, refused = await value(
        broker,
        f"""{CONTRACT}{CAUGHT}
        const sent = await contract.echo({{ a: undefined, date: new Date(0), list: [1, undefined] }});
        const refused = [await caught(() => contract.echo({{ no: NaN }})), await caught(() => contract.echo(() => 1)),
            await caught(() => {{ const loop = {{}}; loop.loop = loop; return contract.echo(loop); }})];
        globalThis.__codemode_result__ = [sent.arguments, refused];
    """,
    )
    assert sent == {"date": "1970-01-01T00:00:00.000Z", "list": [1, None]}
    assert [one["name"] for one in refused] == ["SchemaValidationError"] * 3
    assert all(one["hint"] for one in refused)


@pytest.mark.clause("5.3.1.a")
@pytest.mark.parametrize("name", ["schema_no_properties", "echo", "one_text"])
async def test_no_argument_and_an_empty_object_are_the_same(broker: Broker, name: str) -> None:
    """For tools that need nothing."""
    first, second = await evaluated(
        broker, f"[await contract.{name}(), await contract.{name}({{}})]", CONTRACT
    )
    assert first == second


@pytest.mark.clause("5.3.1.a")
@pytest.mark.parametrize("name", ["schema_absent", "schema_empty"])
async def test_an_absent_or_empty_schema_takes_nothing_or_an_empty_object(odd: Broker, name: str) -> None:
    """The server is connected, and both calls reach the tool."""
    odd_import = 'import * as odd from "@codemode/servers/odd";'
    found = await evaluated(
        odd, f"[await odd.{name}(), await odd.{name}({{}}), odd.{name}.length]", odd_import
    )
    assert found == ["{}", "{}", 0]


@pytest.mark.clause("5.3.1.a")
@pytest.mark.parametrize(("name", "sent"), [("schema_array", [1, 2, 3]), ("schema_string", "just text")])
async def test_another_root_type_takes_a_value_of_that_type(odd: Broker, name: str, sent: Any) -> None:
    """The value is passed to the tool as it is."""
    found = await evaluated(
        odd, f"await odd.{name}({json.dumps(sent)})", 'import * as odd from "@codemode/servers/odd";'
    )
    assert json.loads(found) == sent


@pytest.mark.clause("5.3.1.a", "11.c")
async def test_one_odd_tool_does_not_cost_a_server_the_others(odd: Broker) -> None:
    """A tool whose schema is unusual is no reason to have none of the server's tools."""
    assert "odd" in odd.catalog.servers, odd.catalog.unavailable


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
    metas_found, listed, described, found = await value(
        paths,
        f"""{imports}
        import {{ listServers, describeServer, searchTools }} from "@codemode/discovery";
        const listed = (await listServers()).map((server) => server.serverId);
        const described = [];
        for (const id of listed) described.push((await describeServer(id)).serverId);
        const found = (await searchTools("echo", {{ limit: 100 }})).results.map((tool) => tool.serverId);
        globalThis.__codemode_result__ = [[{metas}], listed, described, [...new Set(found)].sort()];
    """,
    )
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
    meta, called, kinds = await value(
        broker,
        f"""{CONTRACT}
        const called = {{}};
        for (const {{ toolName, exportName }} of contract.__meta__.tools) {{
            if (!{json.dumps(list(EXPORTS))}.includes(toolName)) continue;
            called["=" + toolName] = [exportName, (await contract[exportName]({{}})).tool];
        }}
        const kinds = Object.entries(contract).map(([name, it]) => [name, typeof it,
            Object.prototype.toString.call(it)]);
        globalThis.__codemode_result__ = [contract.__meta__, called, kinds];
    """,
    )
    assert called == {f"={name}": [export, name] for name, export in EXPORTS.items()}
    listed = meta.pop("tools")
    assert meta == {"serverId": "contract", "serverName": "contract-server", "serverVersion": "1.2.3"}
    exports = [tool.pop("exportName") for tool in listed]
    assert all(re.fullmatch(r"[\w$]+", name) and name not in RESERVED for name in exports)
    assert len(set(exports)) == len(exports)
    said = {name: row["tool"].get("description") for name, row in CONTRACT_TOOLS.items()}
    assert sorted(listed, key=str) == sorted(
        (
            {"toolName": name} | ({"description": text} if text is not None else {})
            for name, text in said.items()
        ),
        key=str,
    )
    assert sorted(name for name, *_ in kinds) == sorted([*exports, "__meta__"])
    assert {tuple(kind) for name, *kind in kinds if name != "__meta__"} == {
        ("function", "[object AsyncFunction]")
    }


@pytest.mark.clause("5.2.a")
async def test_meta_without_a_version(broker: Broker) -> None:
    """`serverVersion` is left out where nobody has given one."""
    meta = await evaluated(broker, "__meta__", 'import { __meta__ } from "@codemode/servers/local";')
    described = {
        "add": "Adds two numbers.",
        "explode": "Raises an exception with the text.",
        "shout": "Gives the text in capitals.",
    }
    tools = [{"toolName": name, "exportName": name, "description": text} for name, text in described.items()]
    assert meta == {"serverId": "local", "serverName": "local", "tools": tools}


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
    exports = ["x_y", "x_y__2", "x_y__3", "x_y__4", "x_y__5"]
    assert [first[name] for name in ("x y", "x-y", "x.y", "x:y", "x_y")] == exports
    assert first["x_y__2"] not in exports


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
    meta, listed, got = await value(
        broker,
        f"""{CONTRACT}import {{ listTools, getTool }} from "@codemode/discovery";
        const pairs = (tools) => tools.map(({{ toolName, exportName }}) => [toolName, exportName]);
        const listed = pairs(await listTools("contract"));
        const got = await Promise.all(listed.map(async ([name]) => (await getTool("contract", name)).exportName));
        globalThis.__codemode_result__ = [pairs(contract.__meta__.tools), listed, got];
    """,
    )
    assert meta == listed and [export for _, export in listed] == got
