"""What tools return is learnt from real runs, reaches the agent by discovery, and outlives the broker.

`cellblock schemas`: from a new overlay file to what agents are told, and forgetting what was observed.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from cellblock import Broker, Grantee, InvalidRequest, tool
from cellblock.serve.mcp.context import declarations_in_budget
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.mcp.tool_name import TOOL_NAME
from cellblock.serve.service import Owner
from cellblock.types.lookup import inspect_tool, show_types
from support.brokers import ready
from support.commands import in_this_process
from support.entries import Entry, entry, forked_server, plain_server, settings, write_config
from support.responses import succeeded
from support.waits import within


def contract() -> dict[str, Entry]:
    return {"contract": entry(forked_server("contract_server.py"))}


@tool()
def rows(count: int):  # no annotation: nothing is declared
    """Gives rows."""
    return {"rows": [{"id": number, "name": f"row {number}"} for number in range(count)]}


def known(broker: Broker, name: str) -> Any:
    return inspect_tool(broker.catalog, name, broker.output_of, broker.observed_of)


async def test_the_second_script_knows_what_the_first_has_seen(tmp_path: Path) -> None:
    config = settings(tmp_path, contract())
    async with ready(config, tools=[rows]) as broker:
        cached = declarations_in_budget(broker.known_catalog, 100_000).text
        value = succeeded(
            await broker.run(
                'import { rows } from "@codemode/servers/local";\n'
                'import { json_text, one_text } from "@codemode/servers/contract";\n'
                "await one_text({});\n"
                "globalThis.__codemode_result__ = [await rows({ count: 3 }), await json_text({})];"
            )
        )
        assert value == [rows(3), '{"a": [1, 2]}'], "a text stays a text by default"
        await broker.learnt(30.0)
        of_rows, of_text, searched = succeeded(
            await broker.run(
                'import { getTool, searchTools } from "@codemode/discovery";\n'
                'const found = [await getTool("local", "rows"), await getTool("contract", "json_text"),'
                ' (await searchTools("rows", { detail: "full" })).results[0]];'
                "globalThis.__codemode_result__ = found.map((tool) => tool.outputSchema);"
            )
        )
        assert of_rows == searched and of_rows["properties"]["rows"]["items"]["required"] == ["id", "name"]
        assert of_text["contentSchema"]["properties"]["a"]["items"] == {"type": "integer"}
        assert known(broker, "contract.one_text")["observedOutputSchema"]["type"] == "string"
        assert declarations_in_budget(broker.known_catalog, 100_000).text == cached
    async with ready(config, tools=[rows]) as broker:
        assert known(broker, "local.rows")["output"]["samples"] == 1
        assert "Observed from 1 result" in show_types(broker.catalog, ["local"], broker.output_of)
        assert "Observed" not in show_types(broker.catalog, ["local"])


async def test_scripts_get_parsed_texts_where_the_configuration_says_so(tmp_path: Path) -> None:
    async with ready(
        settings(tmp_path, contract(), schemas={"servers": {"contract": {"unwrap": "json"}}})
    ) as broker:
        value = succeeded(
            await broker.run(
                'import * as s from "@codemode/servers/contract";\n'
                "const calls = [s.json_text({}), s.one_text({}), s.annotated_text({})];\n"
                "globalThis.__codemode_result__ = await Promise.all(calls);"
            )
        )
        assert value == [{"a": [1, 2]}, "just this", "for the user"]
        await broker.learnt(30.0)
        assert known(broker, "contract.json_text")["observedOutputSchema"]["required"] == ["a"]


async def test_errors_teach_nothing_and_a_store_that_cannot_be_opened_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "schemas.sqlite3").mkdir()

    @tool()
    def fails() -> Any:
        raise ValueError("no")

    async with Broker(settings(tmp_path), tools=[rows, fails]) as broker:
        value = succeeded(
            await broker.run(
                'import { rows, fails } from "@codemode/servers/local";\n'
                "await fails({}).catch(() => 0);\n"
                "globalThis.__codemode_result__ = (await rows({ count: 2 })).rows.length;"
            )
        )
        assert value == 2
        await broker.learnt(30.0)
        assert (
            known(broker, "local.fails")["output"] is None
            or known(broker, "local.fails")["output"]["source"] == "declared"
        )
        assert known(broker, "local.rows")["output"]["samples"] == 1


async def test_a_run_counts_as_work_until_its_response(tmp_path: Path) -> None:
    held: list[Broker] = []

    def executor() -> Any:
        return held[0]._executor  # pyright: ignore[reportPrivateUsage]

    @tool()
    def busy() -> bool:
        return executor().busy

    async with Broker(settings(tmp_path), tools=[busy]) as broker:
        held.append(broker)
        code = (
            'import { busy } from "@codemode/servers/local"; globalThis.__codemode_result__ = await busy({});'
        )
        assert succeeded(await broker.run(code)) == {"result": True}
        assert not executor().busy
        with pytest.raises(InvalidRequest):
            await broker.run(7)  # type: ignore[arg-type]
        assert not executor().busy


@tool()
def give(value: Any):  # no annotation: nothing is declared
    """Gives its input back."""
    return value


GIVE = 'import { give } from "@codemode/servers/local";\n'

NAMES = re.compile(r"common|of_[abc]")

ASKS = """
import { describe, getTool, searchTools } from "@codemode/discovery";
export default [
  await describe("local", "give"),
  await getTool("local", "give"),
  await searchTools("gives its input back", { detail: "full" }),
];
"""


async def gives(broker: Broker, who: str, given: str) -> None:
    succeeded(
        await within(broker.run(f"{GIVE}await give({{ value: {given} }});", grantee=Grantee(f"oauth:{who}")))
    )
    await broker.learnt(30.0)


def client_of(broker: Broker, principal: str) -> Client:
    return Client(FrontServer(broker, version="1", owner_of=lambda _: Owner(principal, principal)).open())


async def test_names_that_one_principal_alone_has_shown_are_shown_to_that_one(tmp_path: Path) -> None:
    shown = {"a": {"common", "of_a"}, "b": {"common", "of_b"}, "c": {"common"}}
    extended, proxy = (
        settings(tmp_path, {}, frontend={"profile": profile}) for profile in ("extended", "proxy")
    )
    async with ready(extended, tools=[give]) as broker:
        (server,) = broker.catalog.servers.values()
        for who in "aab":
            await gives(broker, who, f"{{ common: 1, of_{who}: {{ common: 1 }} }}")
        for who, names in shown.items():
            principal = f"oauth:{who}"
            script = await within(broker.run(ASKS, grantee=Grantee(principal)))
            told = [*map(json.dumps, succeeded(script))]
            call = {"code": f"{GIVE}give;"}
            answer = await broker.handle_tool_call(
                "codemode_run", call, client=who, grantee=Grantee(principal)
            )
            told += [answer.text, str(broker.output_of(server, server.by_export["give"], principal))]
            async with client_of(broker, principal) as client:
                asked = {
                    "inspect_tool": {"tool_name": "give"},
                    "search_tools": {"query": "give"},
                    TOOL_NAME: call,
                }
                told += [str(await within(client.call_tool(*one))) for one in asked.items()]
            assert [set(NAMES.findall(text)) for text in told] == [names] * 8, who
    async with ready(proxy, tools=[give]) as broker:
        for who, names in shown.items():
            async with client_of(broker, f"oauth:{who}") as client:
                assert set(NAMES.findall(str(await within(client.list_tools())))) == names


OVERLAY = """\
[tools.echo]
output = '{"type": "object"}'
examples = '''
[
  {"input": {"id": 1}},
  {"input": 7}
]
'''

[tools.ecko]
class = "read"

[tools.give]
json_text = true
output = '{"type": "array"}'
"""


def said(folder: Path, *words: str, code: int = 0) -> str:
    """What a command says of a configuration with one server."""
    config = write_config(folder, {"plain": plain_server()})
    done = in_this_process(*words, "--config", config, "--state-dir", folder / "state")
    assert done.code == code, done
    return done.err if code == 2 else done.out


@pytest.fixture
def cellblock(tmp_path: Path) -> Callable[..., str]:
    return partial(said, tmp_path)


def ran(folder: Path, calls: str) -> None:
    """Runs a script by the command."""
    script = folder / "script.js"
    script.write_text(f'import {{ echo, give }} from "@codemode/servers/plain"; {calls}', "utf-8")
    said(folder, "run", str(script))


def test_what_an_overlay_says_that_is_not_so_is_told(tmp_path: Path, cellblock: Callable[..., str]) -> None:
    state = tmp_path / "state"
    folder = state / "overlays"
    folder.mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    file = folder / "plain.toml"
    file.write_text(OVERLAY, "utf-8")
    (folder / "plane.toml").write_text("", "utf-8")
    assert "ecko" not in cellblock("config", "check"), "no server was ever connected: nothing is known"
    ran(tmp_path, "await echo({ id: 1 }); await echo({ id: 2 }); await give({ id: 1 });")
    of_echo = [
        f"{file}:3:1: warning: example 2 does not fit the input of echo: The input must be object, but is number 7. "
        "Correct the example.",
        f"{file}:2:1: warning: 2 of 2 results of echo did not fit the output that is given; the newest: at the root: "
        "given object. Correct output, or take it out.",
    ]
    faults = [
        *of_echo,
        f"{file}:10:8: warning: plain has no tool ecko. Did you mean echo?",
        f"{file}:15:1: warning: 1 of 1 results of give did not fit the output that is given; the newest: the result is "
        "no JSON text. Correct output, or take it out.",
        f"{folder / 'plane.toml'}:1:1: warning: no server of this configuration has the name plane. "
        "Did you mean plain.toml?",
    ]
    told = cellblock("config", "check").splitlines()
    assert [re.sub("warning: tools.[a-z]+: ", "warning: ", line) for line in told[:-1]] == faults
    problems = json.loads(cellblock("config", "check", "--json"))["problems"]
    assert [(one["line"], one["column"], one["path"]) for one in problems][:3] == [
        (3, 1, "tools.echo"),
        (2, 1, "tools.echo"),
        (10, 8, "tools.ecko"),
    ]
    assert cellblock("schemas", "diff", "plain", "echo").splitlines() == [
        "It has not changed.",
        *(re.sub(r"^(\S+): warning: ", r"warning: \1: tools.echo: ", one) for one in of_echo),
    ]
    assert "Did you mean echo?" in cellblock("schemas", "diff", "plain", "ecko")
    report = json.loads(cellblock("doctor", "--json"))
    warnings = [re.sub(": tools.[a-z]+: ", ": ", one) for one in report["warnings"] if ".toml" in one]
    assert warnings == [warning.replace(": warning", "", 1) for warning in faults]
    assert (
        "2 of 2 results did not fit what is given"
        in json.loads(cellblock("inspect", "plain.echo"))["output"]["note"]
    )
    file.write_text(OVERLAY.replace('{"type": "object"}', '{"type": "string"}'), "utf-8")
    assert "results of echo" not in cellblock("config", "check"), "counted anew for another schema"
    file.write_text("[tools.echo]\n clas = 1\n", "utf-8")
    assert f"{file}:2:2: error: tools.echo.clas: unknown key" in cellblock("config", "check", code=1)


def test_overlay_and_store_from_the_command_line(tmp_path: Path, cellblock: Callable[..., str]) -> None:
    assert "Nothing was observed yet" in cellblock("schemas", "clear", code=2)
    ran(tmp_path, "await echo({ id: 1 });")
    exported: Any = json.loads(cellblock("schemas", "export"))["plain"]["echo"]
    assert (exported["source"], exported["samples"]) == ("observed", 1)
    assert cellblock("schemas", "diff", "plain", "echo") == "It has not changed.\n"

    file = Path(cellblock("schemas", "init", "plain").strip())
    assert "Observed from 1 result" in file.read_text("utf-8")
    assert "is there already" in cellblock("schemas", "init", "plain", code=2)
    overlay = '[tools.echo]\nclass = "read"\noutput = \'{"type": "object", "title": "Mine"}\'\n'
    file.write_text(overlay + 'examples = \'[{"input": {"id": 7}}]\'\n', "utf-8")
    told = json.loads(cellblock("inspect", "plain.echo"))
    assert (told["output"]["source"], told["output"]["samples"]) == ("given", 1)
    assert told["givenOutputSchema"]["title"] == "Mine" and told["outputSchema"] is None
    assert told["annotations"]["readOnlyHint"] and told["inputSchema"]["examples"] == [{"id": 7}]
    assert '@example {"id": 7}' in told["declaration"]

    file.write_text("[tools.echo]\nclas = 1\n", "utf-8")
    assert f"{file}:2:1: tools.echo.clas: unknown key" in cellblock("types", code=2)
    file.unlink()
    assert cellblock("schemas", "clear", "plain", "echo") == "forgot 1 tool\n"
    assert json.loads(cellblock("schemas", "export", "plain"))["plain"] == {}


def test_what_was_observed_goes_out_in_every_format(tmp_path: Path, cellblock: Callable[..., str]) -> None:
    ran(tmp_path, "await echo({ id: 1 });")
    plain = json.loads(cellblock("schemas", "export"))["plain"]["echo"]
    assert plain["source"] == "observed" and set(plain["schema"]) >= {"contentSchema"}
    schema = {**plain["schema"]["contentSchema"], "description": plain["note"]}

    def echo(form: str) -> Any:
        made = json.loads(cellblock("schemas", "export", "plain", "--format", form))
        name = "mcp__plain__echo"
        assert made["outputs"][name]["source"] == "observed"
        return next(one for one in made["tools"] if one["name"] == name)

    assert echo("openai")["output_schema"] == schema
    assert echo("mcp")["outputSchema"]["anyOf"] == [schema, {}]
    assert "type Output = {" in echo("anthropic")["description"]
    document = json.loads(cellblock("schemas", "export", "--format", "json-schema"))["$defs"]
    assert document["mcp__plain__echo.output"]["contentSchema"] == plain["schema"]["contentSchema"]
    types = cellblock("schemas", "export", "--format", "typescript")
    assert (
        '// "plain.echo": observed. Observed from 1 result' in types
        and "echo(input?: {}): Promise<JsonText<" in types
    )
