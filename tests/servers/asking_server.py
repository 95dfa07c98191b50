"""An MCP server whose tools ask the client back, made with the SDK's low-level server.

Run as ``python asking_server.py [stdio|http] [--older] [--ledger FILE]``; `--older` speaks only revisions before
2026-07-28. Over HTTP it listens on a free loopback port and writes ``port N`` as its first line on stdout. Tools:
`elicit`, `elicit_url`, `sample`, `roots`, `talk` (log messages and progress), `late` (asks although its call was given
up), `input` (asks in rounds, which only the newer revision has), `many` (asks `times` times, `at_once` or one after the
other, and counts what came of it; its form takes `size` bytes more), `wait`. They wait `ms` or until `file` exists. The
ledger has a line for each call, each refusal of a question, and each answer.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server

sys.path.insert(0, str(Path(__file__).parent))  # this file is run by itself, isolated

from sdk import Context, listed, note, over_http, over_stdio, said

NAMES = ("elicit", "elicit_url", "sample", "roots", "talk", "late", "input", "many", "wait")
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


LEDGER = Path(sys.argv[sys.argv.index("--ledger") + 1]) if "--ledger" in sys.argv else None


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    return listed(*NAMES)


async def ask(context: Context, name: str, size: int = 0) -> str:
    """Sends one request to the client; its answer or its refusal as text."""
    session = context.session
    try:
        if name == "elicit_url":
            asked = session.elicit_url("Agree there.", "https://pay.example/", "e1", context.request_id)
            return str((await asked).action)
        if name == "sample":
            message = types.SamplingMessage(role="user", content=types.TextContent(text="Say hi."))
            sampled = await session.create_message(
                [message], max_tokens=10, related_request_id=context.request_id
            )
            return sampled.content.text
        if name == "roots":
            return ",".join(str(root.uri) for root in (await session.list_roots()).roots)
        form = {**FORM, "description": "x" * size} if size else FORM
        return shown(await session.elicit_form("Who are you?", form, context.request_id))
    except MCPError as error:
        note(LEDGER, "refused")
        return f"refused {error.code}: {error.message}"


def shown(answer: types.ElicitResult) -> str:
    return f"{answer.action} {(answer.content or {}).get('name')}"


async def there(arguments: dict[str, Any]) -> None:
    """Waits for the file that a test makes; at once without one."""
    if "file" in arguments:
        with anyio.fail_after(60):
            while not await anyio.Path(arguments["file"]).exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def answered(context: Context, params: types.CallToolRequestParams, arguments: dict[str, Any]) -> str:
    """What a tool says after it has waited."""
    if params.name == "input":
        assert params.request_state == "s1"
        return shown(params.input_responses["who"])
    if params.name in ("talk", "wait"):
        return f"{params.name}ed"
    if params.name == "many":
        asks = [ask(context, "elicit", arguments.get("size", 0)) for _ in range(arguments["times"])]
        found = await asyncio.gather(*asks) if arguments.get("at_once") else [await one for one in asks]
        return json.dumps({one: found.count(one) for one in found})
    text = await ask(context, "elicit" if params.name == "late" else params.name)
    if params.name == "late":
        Path(f"{arguments['file']}.answer").write_text(text)  # noqa: ASYNC240 - a few bytes in a test server
    return text


async def call_tool(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    arguments = params.arguments or {}
    note(LEDGER, "call", tool=params.name, arguments=arguments)
    if params.name == "input" and params.input_responses is None:
        form = types.ElicitRequestFormParams(message="Who are you?", requested_schema=FORM)
        return types.InputRequiredResult(
            input_requests={"who": types.ElicitRequest(params=form)}, request_state="s1"
        )
    if params.name == "talk":
        said_of_disk = {"said": "the disk is full"}
        await context.session.send_log_message("error", said_of_disk, "disk\x1b[2J", context.request_id)
        await context.session.send_log_message("debug", "x" * 10_000, None, context.request_id)
        await context.session.report_progress(1, 2, "half")
    with anyio.CancelScope(shield=params.name == "late"):
        await asyncio.sleep(float(arguments.get("ms", 0)) / 1000)
        await there(arguments)
        text = await answered(context, params, arguments)
    note(LEDGER, "answer", tool=params.name, arguments=arguments, text=text)
    return said(text)


async def no_discovery(context: Context, params: types.RequestParams) -> types.EmptyResult:
    raise MCPError(types.METHOD_NOT_FOUND, "Method not found")


async def older_input(output: TextIO) -> AsyncIterator[str]:
    """Standard input without the newer revision's probe, which is refused as an older server would."""
    async for line in anyio.wrap_file(sys.stdin):
        if '"server/discover"' not in line:
            yield line
            continue
        error = {"code": types.METHOD_NOT_FOUND, "message": "Method not found"}
        answer = {"jsonrpc": "2.0", "id": json.loads(line)["id"], "error": error}
        print(json.dumps(answer), file=output, flush=True)


async def main() -> None:
    """Serves until told to stop."""
    server = Server("asking", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    is_older = "--older" in sys.argv
    if "http" in sys.argv:
        if is_older:
            server.add_request_handler("server/discover", types.RequestParams, no_discovery)
        await over_http(server.streamable_http_app())
    else:
        # The SDK takes the descriptor of standard output for itself.
        await over_stdio(server, older_input(os.fdopen(os.dup(1), "w")) if is_older else None)


asyncio.run(main())
