"""What is said to somebody without a login who is not at this machine: the page at which they log in."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from support.http_daemon import TOOL
from support.oauth_world import Site, site
from support.waits import until_found, within

WHOAMI = 'import { whoami } from "@codemode/servers/notes"; export default await whoami({});'


async def ran(made: Site, token: str, code: str = WHOAMI) -> dict[str, Any]:
    async with replace(made.daemon, token=token).client() as client:
        result = await within(client.call_tool(TOOL, {"code": code}))
    return result.structured_content


async def logged_in(made: Site, token: str) -> None:
    browser = made.browser()
    done = await browser.followed(await browser.post(made.page, {"token": token}))
    assert "is logged in" in done.text, done.text


async def test_each_is_told_the_way_that_is_theirs(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        eve, mine = await made.token("eve"), made.daemon.token
        (told,) = (await ran(made, eve))["diagnostics"]
        assert f"log in at {made.page}" in told["hint"] and "cellblock auth" not in told["hint"], told
        (told,) = (await ran(made, mine))["diagnostics"]
        assert "run: cellblock auth login notes" in told["hint"], told
        await logged_in(made, eve)

        async def is_used() -> bool:
            return (await ran(made, eve)).get("result") == "ada"

        await until_found(is_used, "the new login is used")
        (told,) = (await ran(made, mine))["diagnostics"]
        assert "cellblock auth login notes" in told["hint"], "it is not his"


async def test_a_client_that_can_leads_its_user_to_the_page_and_the_call_waits_for_the_login(
    tmp_path: Path,
) -> None:
    asked: list[types.ElicitRequestParams] = []
    visits: list[asyncio.Task[None]] = []

    async with site(tmp_path, login="each-public-tools") as made:
        eve, mine = await made.token("eve"), made.daemon.token
        await logged_in(made, mine)

        async def is_listed() -> bool:
            return (await ran(made, mine)).get("result") == "ada"

        await until_found(is_listed, "its tools are known")

        async def opens(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
            # Its user agrees to open the page, and has not logged in yet.
            asked.append(params)
            visits.append(asyncio.create_task(logged_in(made, eve)))
            return types.ElicitResult(action="accept")

        for mode in ("legacy", "auto"):
            headers = {"Authorization": f"Bearer {eve}"}
            http = httpx2.AsyncClient(headers=headers, timeout=120, trust_env=False, verify=False)
            transport = streamable_http_client(made.daemon.url, http_client=http)
            async with http, Client(transport, mode=mode, elicitation_callback=opens) as client:
                run = await within(client.call_tool(TOOL, {"code": WHOAMI, "durable": True}))
            assert run.structured_content["result"] == "ada", (
                mode,
                asked,
                run.structured_content["diagnostics"],
            )
            await asyncio.gather(*visits)
            (params, *more) = asked
            # A client that is away meanwhile comes back, and is asked again until the login is there.
            assert mode == "auto" or not more
            assert isinstance(params, types.ElicitRequestURLParams) and params.url == made.page
            assert "needs a login" in params.message
            asked.clear()
            visits.clear()
            await made.place.end_logins()
            await logged_in(made, mine)
