"""Secrets of the configuration stay with their servers: `policy.secrets`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cellblock.run.policy.asking import Caller, Grantee
from support.brokers import ready
from support.entries import ledger, plain_server, settings
from support.waits import within

KEY = 'sk-7f"3a91c2-Ünïque'


def entries(folder: Path) -> dict[str, Any]:
    return {
        "owner": plain_server("--ledger", folder / "owner.log", env={"API_KEY": KEY}),
        "other": plain_server("--ledger", folder / "other.log"),
    }


def sent(folder: Path, name: str) -> list[Any]:
    return [event["arguments"] for event in ledger(folder / f"{name}.log") if event["event"] == "call"]


CODE = f"""
import * as owner from "@codemode/servers/owner";
import * as other from "@codemode/servers/other";
const key = {json.dumps(KEY)}, said = [];
for (const call of [
  () => owner.echo({{ key }}), () => other.echo({{ deep: [{{ [key]: `Bearer ${{key}}` }}] }}),
  () => other.give({{ safe: 1 }}),
  () => owner.fail({{ text: `no: ${{key}}` }}), () => owner.environment({{}}),
]) {{
  try {{ said.push(await call()); }} catch (error) {{ said.push(`${{error.code}} ${{error.message}}`); }}
}}
globalThis.__codemode_result__ = said;
"""


@pytest.mark.parametrize("mode", ["mask", "deny", "off"])
async def test_a_secret_goes_to_its_server_alone_and_into_no_result(mode: str, tmp_path: Path) -> None:
    used = Counter[tuple[int, str]]()
    async with ready(settings(tmp_path / "state", entries(tmp_path), policy={"secrets": mode})) as broker:
        response = await within(broker.run(CODE, grantee=Grantee("token")))
        tool = broker.catalog.servers["owner"].by_export["echo"]
        caller_result = await within(
            broker.call_tool(
                broker.catalog.servers["owner"], tool, {"key": KEY}, Caller(grantee=Grantee("token")), used
            )
        )
    result: Any = response.result
    text = json.dumps(result) + caller_result.body.decode()
    if mode == "off":
        assert text.count("3a91c2") >= 4
        return
    assert "3a91c2" not in text and text.count("[redacted]") >= 3, text
    assert sent(tmp_path, "owner")[0] == {"key": KEY} and result[2] == {"safe": 1}
    others = sent(tmp_path, "other")
    if mode == "mask":
        assert others == [{"deep": [{"[redacted]": "Bearer [redacted]"}]}, {"safe": 1}]
    else:
        assert others == [{"safe": 1}] and result[1].startswith("SECRET_DENIED ")
