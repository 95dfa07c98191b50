"""Images of tools reach clients as content blocks, small and large; structured content has the result as it is."""

import base64
import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from support.asking_client import stdio
from support.entries import plain_server, write_config
from support.http_daemon import TOOL
from support.waits import within

KIB = 1024


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
