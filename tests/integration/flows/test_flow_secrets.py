"""Secrets of the configuration stay with their servers: `policy.secrets`."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cellblock import tool
from cellblock.base.redaction import SecretForms, redacted
from cellblock.run.flows.secrets import Secrets
from cellblock.run.policy.asking import Caller, Grantee
from cellblock.tools.upstream.wire.results import ToolResult
from support.brokers import ready
from support.entries import ledger, plain_server, settings
from support.oauth_world import World, world
from support.waits import until, within

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


@pytest.mark.parametrize("mode", ["mask", "deny"])
async def test_a_login_s_tokens_stay_with_its_server(mode: str, tmp_path: Path) -> None:
    """Also those that a renewal has brought; those before it may still be good."""
    tokens: list[str] = []

    @tool()
    def found() -> list[str]:
        "Gives what somebody has found."
        return [f"Bearer {token}" for token in tokens]

    script = """
import { whoami } from "@codemode/servers/notes";
import { echo } from "@codemode/servers/other";
import { found } from "@codemode/servers/local";
const said = [await whoami({}), await found()];
for (const token of TOKENS) {
  try { said.push(await echo({ [token]: `Bearer ${token}` })); } catch (error) { said.push(error.code); }
}
globalThis.__codemode_result__ = said;
"""
    other = {"other": plain_server("--ledger", tmp_path / "other.log")}
    async with world(tmp_path, "--life", "2", policy={"secrets": mode}) as place:
        await place.log_in()
        made = settings(place.state, {**place.servers, **other}, **place.cellblock)
        async with ready(made, tools=[found]) as broker:
            for _ in range(2):
                # Those that the run begins with; a renewal comes while it waits for nobody.
                granted = len(place.tokens())
                assert (await within(broker.run(script.replace("TOKENS", "[]")))).ok
                tokens[:] = place.tokens()
                assert len(tokens) == 2 or len(tokens) > granted
                response = await within(broker.run(script.replace("TOKENS", json.dumps(tokens))))
                result: Any = response.result
                assert response.ok and result[0] == "ada", response
                assert result[1] == {"result": ["Bearer [redacted]"] * len(tokens)}
                assert not any(token in json.dumps(result) for token in place.tokens())
                if mode == "deny":
                    assert result[2:] == ["SECRET_DENIED"] * len(tokens)
                await until(lambda: time.time() > granted_at(place) + 2.2, "the token has expired")
    every = json.dumps(sent(tmp_path, "other"))
    assert not any(token in every for token in place.tokens())
    assert (every.count("Bearer [redacted]") >= 6) == (mode == "mask")


def granted_at(place: World) -> float:
    """When the last token was granted, or used."""
    return (place.folder / "ledger.jsonl").stat().st_mtime


def test_a_secret_is_found_however_json_writes_it() -> None:
    later = SecretForms()
    secrets = Secrets("mask", {}, ["abc/def+ghi"], later)
    later.add(["tok/en+123456", "short"], "notes")
    for text in (r'"abc\/def+ghi"', r'"\u0061bc/def+ghi"', r'"tok\/en+123456"', '"tok%2Fen%2B123456"'):
        masked = asyncio.run(
            secrets.incoming(ToolResult(b'{"content":[{"type":"text","text":%s}]}' % text.encode()))
        )
        assert b"[redacted]" in masked.body and b"123456" not in masked.body, text
    body = b'{"content":[{"type":"text","text":"short \\/ of it"}]}'
    assert asyncio.run(secrets.incoming(ToolResult(body))).body == body
    assert redacted("tok/en+123456", [later], "notes") == "tok/en+123456"
