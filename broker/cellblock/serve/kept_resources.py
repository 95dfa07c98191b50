"""Shows kept outputs as MCP resources: their URIs, the list of a client's own, and pages of one."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import mcp_types as types
from mcp import MCPError

from cellblock.serve.kept_outputs import Kept, KeptOutputs, NotKept
from cellblock.serve.service import Owner

PREFIX: Final = "cellblock://outputs/"

_URI: Final = re.compile(r"cellblock://outputs/([A-Za-z0-9_-]{1,64})(?:\?page=([1-9][0-9]{0,8}))?", re.ASCII)

TEMPLATE: Final = types.ResourceTemplate(
    uri_template=PREFIX + "{id}{?page}",
    name="output",
    title="A large result, or the logs, of a script",
    description="Pages are counted from 1; one after the other they are the whole.",
)

_NAMES: Final = {"result": "result.json", "logs": "logs.jsonl"}


def output_uri(kept: Kept) -> str:
    """Returns the URI of an output, which reads its first page; `?page=N` behind it reads the others."""
    return PREFIX + kept.output_id


def resource_link(kept: Kept) -> types.ResourceLink:
    """Returns an output as a block of a tool's result."""
    return types.ResourceLink(**_described(kept))


async def resources_of(kept: KeptOutputs, owner: Owner) -> list[types.Resource]:
    """Returns a client's own outputs as resources, newest first."""
    return [types.Resource(**_described(one)) for one in await kept.listed(owner)]


async def read_resource(kept: KeptOutputs, owner: Owner, uri: str) -> types.ReadResourceResult:
    """Returns one page of an output.

    Raises:
        MCPError: The URI is none of the client's outputs, or the output has gone, or has no such page.
    """
    matched = _URI.fullmatch(uri)
    if matched is None:
        raise MCPError(types.INVALID_PARAMS, f"This is no URI of an output; they are {PREFIX}ID?page=N.")
    page = int(matched[2] or 1)
    try:
        one, text = await kept.read(owner, matched[1], page)
    except NotKept:
        raise MCPError(
            types.INVALID_PARAMS,
            f"{uri} is not kept for this connection (any more). Outputs are kept for "
            f"{kept.settings.expire_ms / 1000:g} s, for the connection that ran the script, and the oldest go first "
            "when there is no room. List the resources to see which are there, or run the script again and return "
            "less.",
        ) from None
    except IndexError as error:
        pages = error.args[0]
        raise MCPError(
            types.INVALID_PARAMS, f"{uri}: there is no page {page}. Read ?page=1 to ?page={pages}."
        ) from None
    except OSError as error:
        raise MCPError(
            types.INTERNAL_ERROR,
            f"{uri} cannot be read at the moment ({error.strerror or 'the disk is slow'}).",
        ) from None
    meta: dict[str, Any] = {"page": page, "pages": one.pages}
    if page < one.pages:
        meta["next"] = f"{output_uri(one)}?page={page + 1}"
    contents = types.TextResourceContents(
        uri=uri,
        # A piece of JSON is no JSON.
        mime_type=one.mime_type if one.pages == 1 else "text/plain",
        text=text,
        _meta={"cellblock/page": meta},
    )
    return types.ReadResourceResult(contents=[contents])


def _described(kept: Kept) -> dict[str, Any]:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(kept.made_at))
    pages = "one page" if kept.pages == 1 else f"{kept.pages} pages: ?page=1 to ?page={kept.pages}"
    whole = "JSON" if kept.part == "result" else "one JSON object a line"
    return {
        "uri": output_uri(kept),
        "name": _NAMES[kept.part],
        "title": f"{'Result' if kept.part == 'result' else 'Logs'} of the script of {made} UTC",
        "description": f"{kept.size:,} bytes ({whole}), {pages}",
        "mime_type": kept.mime_type,
        "size": kept.size,
    }
