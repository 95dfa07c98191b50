"""Large results and logs with the SDK's real client: over stdio, over HTTP and through `cellblock connect`, in both
generations of the protocol."""

import base64
import contextlib
import json
import signal
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from support.asking_client import connect, stdio
from support.cellblock_zygote import with_constants
from support.commands import cellblock
from support.entries import plain_server, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.params import mostly
from support.waits import until, within

KIB = 1024
MIB = 1024 * KIB

INLINE = 20_000

TOTAL = 12 * MIB

SMALL = {"cellblock.app.assembly.TOTAL_BYTES": TOTAL}

SOON = {"cellblock.app.assembly.EXPIRE_MS": 1_500}

LOOKS_OFTEN = {"cellblock.serve.kept_outputs.TIDY_SECONDS": 0.5}

SECTION: dict[str, Any] = {
    "frontend": {"inline_bytes": INLINE},
    "limits": {"max_log_bytes": [100_000, 100_000]},
    "max_message_bytes": MIB,
    "pool": {"warm": 2},
}

FRONTS = mostly(
    [("stdio", "auto"), ("http", "legacy"), ("connect", "auto")],
    [(front, mode) for front in ("stdio", "http", "connect") for mode in ("auto", "legacy")],
)

ROWS = 4_000

LARGE = f"""
const name = "Zoë \\u202e𝄞".repeat(4);
globalThis.__codemode_result__ = Array.from({{ length: {ROWS} }}, (_, id) => ({{ id, name }}));
"""

CHATTY = """
for (let i = 0; i < 1500; i++) console.log(`line ${i} \\u001b[31m${"x".repeat(30)}`);
globalThis.__codemode_result__ = "small";
"""


def sized(size: int) -> str:
    return f"globalThis.__codemode_result__ = 'x'.repeat({size});"


@asynccontextmanager
async def client_of(front: str, mode: str, running: Daemon, config: Path) -> AsyncGenerator[Client]:
    if front == "http":
        async with running.client(mode) as client:
            yield client
        return
    transport = connect(running) if front == "connect" else stdio(config, config.parent / f"s-{mode}")
    async with Client(transport, mode=mode) as client:
        yield client


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Daemon, Path]]:
    """One daemon, and a configuration for a process at a client's pipes."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "daemon").mkdir()
    config = write_config(folder, {}, **SECTION)
    async with daemon(folder / "daemon", constants=SMALL, **SECTION) as running:
        yield running, config


async def run(client: Client, code: str) -> types.CallToolResult:
    result = await within(client.call_tool(TOOL, {"code": code}))
    assert not result.is_error, result.content
    return result


def links_of(result: types.CallToolResult) -> list[types.ResourceLink]:
    return [block for block in result.content if isinstance(block, types.ResourceLink)]


def response_of(result: types.CallToolResult) -> dict[str, Any]:
    """The structured content."""
    assert isinstance(result.content[0], types.TextContent) and result.structured_content is not None
    return result.structured_content


async def pages_of(client: Client, uri: str) -> list[str]:
    """All pages, by the address of the next that each one has."""
    texts: list[str] = []
    following: str | None = uri
    while following is not None:
        (contents,) = (await within(client.read_resource(following))).contents
        assert contents.uri == following
        texts.append(contents.text)
        following = contents.meta["cellblock/page"].get("next")
    return texts


async def listed(client: Client) -> dict[str, int | None]:
    """The sizes of what a client is told of, by URI."""
    return {str(one.uri): one.size for one in (await within(client.list_resources())).resources}


async def gone(client: Client, uri: str) -> str:
    with pytest.raises(MCPError) as raised:
        await within(client.read_resource(uri))
    assert raised.value.error.code == types.INVALID_PARAMS
    return raised.value.error.message


def on_disk(state_dir: Path) -> list[int]:
    """The sizes of outputs in the file."""
    with contextlib.closing(sqlite3.connect(state_dir / "outputs.sqlite3")) as file:
        return [size for (size,) in file.execute("SELECT size FROM outputs")]


@pytest.mark.parametrize(("front", "mode"), FRONTS)
async def test_a_large_result_is_a_preview_and_pages(
    served: tuple[Daemon, Path], front: str, mode: str
) -> None:
    async with client_of(front, mode, *served) as client:
        result = await run(client, LARGE)
        response = response_of(result)
        shown = response["result"]
        assert shown.startswith('[{"id":0,"name":"Zoë \\u202e𝄞') and shown.endswith("…")
        assert len(shown.encode()) <= 2_000 + len("…".encode())
        (link,) = links_of(result)
        assert (link.name, link.mime_type) == ("result.json", "application/json")
        (note,) = response["diagnostics"]
        assert (note["severity"], note["code"]) == ("info", "OUTPUT_KEPT")
        assert f"over {INLINE:,} bytes" in note["message"] and link.uri in note["hint"]
        pages = await pages_of(client, link.uri)
        whole = "".join(pages)
        (facts,) = response["outputs"]
        assert (facts["uri"], facts["bytes"], facts["pages"]) == (link.uri, link.size, len(pages))
        assert len(pages) > 1 and len(whole.encode()) == link.size
        assert json.loads(whole) == [{"id": number, "name": "Zoë \u202e𝄞" * 4} for number in range(ROWS)]
        assert (await listed(client))[link.uri] == link.size
        (template,) = (await within(client.list_resource_templates())).resource_templates
        assert template.uri_template == "cellblock://outputs/{id}{?page}"
        assert f"?page=1 to ?page={len(pages)}" in await gone(client, f"{link.uri}?page={len(pages) + 1}")
        assert "run the script again" in await gone(client, "cellblock://outputs/" + "A" * 32)
        for bad in (
            "cellblock://outputs/../../token",
            f"{link.uri}?page=0",
            f"{link.uri}?page=1&x",
            f"{link.uri}/lock",
        ):
            assert "no URI of an output" in await gone(client, bad)


@pytest.mark.parametrize(("front", "mode"), [("stdio", "auto"), ("http", "legacy")])
async def test_large_logs_end_with_what_is_left_out(
    served: tuple[Daemon, Path], front: str, mode: str
) -> None:
    async with client_of(front, mode, *served) as client:
        result = await run(client, CHATTY)
        response = response_of(result)
        assert response["result"] == "small"
        (link,) = links_of(result)
        *shown, last = response["logs"]
        assert last["level"] == "warn"
        assert link.uri in last["message"] and "1,500 entries" in last["message"]
        assert shown[0]["message"].startswith("line 0 ")
        assert shown[-1]["message"].startswith("line 1499 \\u001b[31mxxx")
        assert len(json.dumps(shown)) < 3_000
        assert (link.name, link.mime_type) == ("logs.jsonl", "application/x-ndjson")
        lines = "".join(await pages_of(client, link.uri)).splitlines()
        assert [json.loads(line)["message"] for line in lines] == [
            f"line {i} \u001b[31m{'x' * 30}" for i in range(1500)
        ]


async def test_other_sessions_and_principals_cannot_read(served: tuple[Daemon, Path]) -> None:
    """A session's outputs are its own, although the others show the same token."""
    running, config = served
    async with running.client("legacy") as one, running.client("legacy") as other, running.client() as modern:
        (link,) = links_of(await run(one, LARGE))
        for stranger in (other, modern):
            assert "not kept for this connection" in await gone(stranger, link.uri)
            assert link.uri not in await listed(stranger)
        assert "".join(await pages_of(one, link.uri)).startswith('[{"id":0')
        async with client_of("connect", "legacy", running, config) as relayed:
            assert "not kept for this connection" in await gone(relayed, link.uri)


async def test_processes_with_one_state_folder_share_the_cap(tmp_path: Path) -> None:
    """Two editors that each start `serve --stdio` share one cap, and the oldest output has gone."""
    config = write_config(tmp_path, {}, **SECTION)
    state = tmp_path / "s"
    env = with_constants(SMALL)
    async with Client(stdio(config, state, env=env)) as one, Client(stdio(config, state, env=env)) as other:
        made = [
            links_of(await run(client, sized(900 * KIB)))[0].uri
            for client in (one, other, one, other, one, other)
        ]
        sizes = on_disk(state)
        # To policies both are one client.
        assert len(sizes) == 3 and sum(sizes) <= TOTAL // 4
        for client, uri in ((one, made[0]), (other, made[1])):
            assert "is not kept" in await gone(client, uri)
        assert len("".join(await pages_of(other, made[-1]))) == 900 * KIB + 2


async def test_outputs_expire_and_go_with_the_daemon(tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    async with daemon(tmp_path, constants=SOON, **SECTION) as running, running.client() as client:
        (link,) = links_of(await run(client, LARGE))
        await until(lambda: not on_disk(state_dir), "it is removed when it has expired")
        assert "kept for 1.5 s" in await gone(client, link.uri)
        assert link.uri not in await listed(client)
        assert links_of(await run(client, LARGE))
    assert on_disk(state_dir) == []


async def test_what_a_killed_daemon_leaves_expires_in_the_next(tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    async with daemon(tmp_path, constants=SOON, **SECTION) as running, running.client("legacy") as client:
        (link,) = links_of(await run(client, LARGE))
        assert on_disk(state_dir) == [link.size]
        # The client's own farewell fails; that is its affair.
        running.process.send_signal(signal.SIGKILL)
        await within(running.process.wait())
    assert on_disk(state_dir) == [link.size]
    # Also when nothing is kept any more.
    async with daemon(tmp_path, constants=LOOKS_OFTEN) as running:
        await until(lambda: not on_disk(state_dir), "it is removed")
        async with running.client() as client:
            result = await run(client, LARGE)
            # Whole for a program; its model is shown a beginning, and where the rest is.
            assert len(response_of(result)["result"]) == ROWS
            (link,) = links_of(result)
            text = result.content[0]
            assert isinstance(text, types.TextContent) and link.uri in text.text
            assert 10_000 < len(text.text) < 15_000
            assert len(json.loads("".join(await pages_of(client, link.uri)))) == ROWS


async def test_what_cannot_be_written_is_not_lost(tmp_path: Path) -> None:
    """Where its file cannot be written, the daemon gives whole responses."""
    async with daemon(tmp_path, **SECTION) as running:
        with contextlib.closing(sqlite3.connect(tmp_path / "s" / "outputs.sqlite3")) as file:
            file.execute("DROP TABLE output_pages")
        async with running.client() as client:
            result = await run(client, LARGE)
            assert len(response_of(result)["result"]) == ROWS
            assert not links_of(result)
    assert any("sent whole" in line for line in running.said)


async def test_the_command_line_prints_whole_results(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, **SECTION)
    script = tmp_path / "large.js"
    script.write_text(LARGE, encoding="utf-8")
    done = await cellblock("run", script, "--config", config, "--state-dir", tmp_path / "s")
    assert json.loads(done.out)["result"][-1]["id"] == ROWS - 1
    assert not (tmp_path / "s" / "outputs.sqlite3").exists()


def png(size: int) -> str:
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * (size - 8)).decode()


def script(size: int) -> str:
    """Of which a tool's result is the result: two blocks of content, one of them an image of so many bytes."""
    image = {"type": "image", "data": png(8), "mimeType": "image/png"}
    answer = json.dumps({"result": {"content": [{"type": "text", "text": "a view"}, image]}})[1:-1]
    return f"""
        import {{ raw }} from "@codemode/servers/plain";
        const answer = {json.dumps(answer)}.replace({json.dumps(png(8))}, {json.dumps(png(size)[:16])}
          + "A".repeat({len(png(size)) - 16}));
        globalThis.__codemode_result__ = {{ views: [await raw({{ text: answer }})] }};
    """


@pytest.mark.parametrize("strict", [False, True])
async def test_an_image_is_a_block_of_the_response(strict: bool, tmp_path: Path) -> None:
    config = write_config(
        tmp_path, {"plain": plain_server()}, frontend={"profile": "strict" if strict else "default"}
    )
    async with Client(stdio(config, tmp_path / "s")) as client:
        for size in (30, 600 * KIB):
            result: Any = await within(client.call_tool(TOOL, {"code": script(size)}))
            data = png(size)[:16] + "A" * (len(png(size)) - 16)
            assert result.structured_content["diagnostics"] == []
            assert result.structured_content["result"]["views"][0]["content"][1]["data"] == data
            text, *blocks = result.content
            answer = json.loads(text.text)["result"] if strict else json.loads(text.text.partition("\n")[0])
            (shown,) = answer["views"]
            if strict:
                assert blocks == [] and shown["content"][1]["data"] == data
            else:
                assert blocks == [types.ImageContent(data=data, mime_type="image/png")]
                assert shown["content"] == [
                    {"type": "text", "text": "a view"},
                    {
                        "type": "image",
                        "data": f"[image/png, {size:,} bytes: image block 1 of this response]",
                        "mimeType": "image/png",
                    },
                ]
