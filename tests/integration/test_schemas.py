"""What tools return is learnt from real runs, reaches the agent by discovery, and outlives the broker."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from cellblock import Broker, tool
from cellblock.base.errors import InvalidRequest
from cellblock.run.policy.asking import Grantee
from cellblock.serve.mcp.context import declarations_in_budget
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.mcp.tool_name import TOOL_NAME
from cellblock.serve.service import Owner
from cellblock.types.lookup import inspect_tool, show_types
from support.brokers import ready
from support.entries import Entry, entry, forked_server, settings
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
        answers = succeeded(
            await broker.run(
                'import { getTool, searchTools } from "@codemode/discovery";\n'
                'globalThis.__codemode_result__ = [await getTool("local", "rows"),'
                ' await getTool("contract", "json_text"), (await searchTools("rows", { detail: "full" })).results[0]];'
            )
        )
        assert answers[0]["outputSchema"]["properties"]["rows"]["items"]["required"] == ["id", "name"]
        assert answers[1]["outputSchema"]["contentSchema"]["properties"]["a"]["items"] == {"type": "integer"}
        assert answers[2]["outputSchema"] == answers[0]["outputSchema"]
        assert known(broker, "contract.one_text")["observedOutputSchema"]["type"] == "string"
        assert declarations_in_budget(broker.known_catalog, 100_000).text == cached
    async with ready(config, tools=[rows]) as broker:
        assert known(broker, "local.rows")["output"]["samples"] == 1
        assert "Observed from 1 result" in show_types(broker.catalog, ["local"], broker.output_of)
        assert "Observed" not in show_types(broker.catalog, ["local"])


async def test_scripts_get_parsed_texts_where_the_configuration_says_so(tmp_path: Path) -> None:
    schemas = {"servers": {"contract": {"unwrap": "json"}}}
    async with ready(settings(tmp_path, contract(), schemas=schemas)) as broker:
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


async def test_a_wrong_server_name_in_the_settings_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"contrakt: no such server"):
        settings(tmp_path, contract(), schemas={"learn": {"contrakt": False}})


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


@asynccontextmanager
async def client_of(broker: Broker, principal: str) -> AsyncGenerator[Client]:
    front = FrontServer(broker, version="1", owner_of=lambda _: Owner(principal, principal))
    async with Client(front.open()) as client:
        yield client


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
                for tool_name, asked in (
                    ("inspect_tool", {"tool_name": "give"}),
                    ("search_tools", {"query": "give"}),
                    (TOOL_NAME, call),
                ):
                    told.append(str(await within(client.call_tool(tool_name, asked))))
            assert [set(NAMES.findall(text)) for text in told] == [names] * 8, who
    async with ready(proxy, tools=[give]) as broker:
        for who, names in shown.items():
            async with client_of(broker, f"oauth:{who}") as client:
                assert set(NAMES.findall(str(await within(client.list_tools())))) == names
