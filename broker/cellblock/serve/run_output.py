"""Makes the response of a run as the client of the front-end gets it: whole, or with previews of what is kept."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import mcp_types as types

from cellblock.base.budget import Budget, OverBudget
from cellblock.base.errors import CellblockError
from cellblock.base.settings.sections import OutputSettings
from cellblock.base.visible import is_visible, json_escape
from cellblock.run.large_results import LargeResult, document, not_read
from cellblock.run.media import MARK, Media, taken_out
from cellblock.run.response import RunResponse
from cellblock.serve.kept_outputs import Kept, KeptOutputs, Output
from cellblock.serve.kept_resources import output_uri, resource_link
from cellblock.serve.service import Owner
from cellblock.serve.splices import Splices

logger = logging.getLogger("cellblock.serve")

KEPT_CODE: Final = "OUTPUT_KEPT"

ENTRY_BYTES: Final = 48
"""Estimates a log entry's JSON beside its message."""

_LINES: Final = frozenset("\n\t")

WAITING_BYTES: Final = 128 * 1024 * 1024
"""Bounds the results that wait to be written, twice their size each; a further one is not sent."""

WAITING_SECONDS: Final = 120.0
"""Bounds the time from a response to its writing; what has not been written by then has lost its client."""

_waiting: Final = Budget(WAITING_BYTES, WAITING_BYTES, "all clients")


async def tool_result(
    response: RunResponse,
    kept: KeptOutputs | None,
    owner: Owner,
    splices: Splices | None = None,
    declarations: Mapping[str, str] | None = None,
    *,
    with_media: bool = True,
) -> types.CallToolResult:
    """Returns the result of `codemode.run`: the response as text and as structured content, and links to what is kept.

    Args:
        response: Of the run.
        kept: Where large outputs go; None: nowhere, and the response is whole.
        owner: For whom they are kept.
        splices: Puts large results into what is written; None where nothing does, and they are decoded here.
        declarations: What the client has not been shown of the servers that the script names, by their ids.
        with_media: Whether images and sounds in the result are content blocks, with words in their place in the text.
            Structured content has the result as it is.
    """
    # In both: clients show their models the one or the other. They do not count as output, which may be kept away.
    more = {"declarations": dict(declarations)} if declarations else {}
    if isinstance(response.result, LargeResult) and splices is not None:
        return await _large_result(
            response, response.result, kept, owner, splices, more, with_media=with_media
        )
    data = _error_first(response.decoded().as_json())
    text = json.dumps(data, ensure_ascii=False)
    links: list[Kept] = []
    # Without `json.dumps` for the parts where the whole is small, which is nearly always.
    if kept is not None and _bytes_in(text) > (kept.settings.inline_bytes or 0):
        links = await _keep_large(data, kept, owner)
    if links or more:
        data |= more
        text = json.dumps(data, ensure_ascii=False)
    media: list[Media] = []
    if with_media and f'"{MARK}"' in text:
        shown, media = taken_out(data["result"])
        text = json.dumps({**data, "result": shown}, ensure_ascii=False) if media else text
    content: list[types.ContentBlock] = [
        types.TextContent(text=text),
        *(_block(one, one.data) for one in media),
        *map(resource_link, links),
    ]
    return types.CallToolResult(content=content, structured_content=data)


def has_error(data: Mapping[str, Any] | None) -> bool:
    """Says whether a response, as it is sent, has an error among its diagnostics."""
    return data is not None and any(one["severity"] == "error" for one in data["diagnostics"])


def _error_first(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the response as it is shown: that of a failed run begins with its error, as clients cut what they
    show."""
    if not has_error(data):
        return data
    first = sorted(data["diagnostics"], key=lambda one: one["severity"] != "error")
    return {"diagnostics": first, **{key: part for key, part in data.items() if key != "diagnostics"}}


async def _large_result(
    response: RunResponse,
    result: LargeResult,
    kept: KeptOutputs | None,
    owner: Owner,
    splices: Splices,
    more: Mapping[str, Any],
    *,
    with_media: bool,
) -> types.CallToolResult:
    """Returns the result of `codemode.run` where its value is not decoded here: tokens stand for it until the response
    is written."""
    data = _error_first(response.as_json())
    links: list[Kept] = []
    in_text = in_data = ""
    blocks: list[types.ContentBlock] = []
    try:
        most = None
        if kept is not None:
            rest = _bytes_in(json.dumps({**data, "result": None}, ensure_ascii=False))
            most = max(0, (kept.settings.inline_bytes or 0) - rest)
        spelled = await result.spelled(most, with_media=with_media)
        if spelled.document is not None and kept is not None:
            links = await _keep_large(data, kept, owner, spelled.document)
            if data["result"] is result:
                spelled = await result.spelled(None, with_media=with_media)
        if data["result"] is result and spelled.inline is not None:
            spelt = [(f'"{one.data}"'.encode("ascii"), b'"') for one in spelled.media]
            in_text, in_data, *media = tokens_for(
                splices, (spelled.inline, b'\\"'), (result.raw, b'"'), *spelt
            )
            blocks = [_block(one, data) for one, data in zip(spelled.media, media, strict=True)]
    except (CellblockError, OverBudget, OSError) as error:
        said = (
            error.message if isinstance(error, CellblockError) else f"The result could not be sent: {error}."
        )
        hint = "Return less, or run fewer scripts with large results at a time."
        data["diagnostics"] = [*data["diagnostics"], not_read(said, hint).as_json()]
        data["result"] = None
        data = _error_first(data)
    data |= more
    shown = data["result"]
    text = json.dumps({**data, "result": in_text if shown is result else shown}, ensure_ascii=False)
    if shown is result:
        data["result"] = in_data
    content: list[types.ContentBlock] = [types.TextContent(text=text), *blocks, *map(resource_link, links)]
    return types.CallToolResult(content=content, structured_content=data)


def tokens_for(splices: Splices, *texts: tuple[bytes, bytes]) -> list[str]:
    """Returns tokens for texts that are large, each with its quote; see `Splices.add`.

    Raises:
        OverBudget: Too much waits already.
    """
    _waiting.take("", sum(len(text) for text, _ in texts))
    tokens = [
        splices.add(text, quote=quote, on_gone=partial(_waiting.give_back, "", len(text)))
        for text, quote in texts
    ]
    for token in tokens:
        asyncio.get_running_loop().call_later(WAITING_SECONDS, splices.drop, token)
    return tokens


def _block(media: Media, data: str) -> types.ImageContent | types.AudioContent:
    made = types.ImageContent if media.type == "image" else types.AudioContent
    return made(data=data, mime_type=media.mime_type)


async def _keep_large(
    data: dict[str, Any], kept: KeptOutputs, owner: Owner, result: bytes | None = None
) -> list[Kept]:
    """Keeps the larger of result and logs, and the other one too where that does not do; puts previews in `data`."""
    settings = kept.settings
    outputs = await asyncio.to_thread(_encoded, data, result)
    inline = sum(len(output.data) for output in outputs)
    chosen: list[Output] = []
    for output in sorted(outputs, key=lambda output: -len(output.data)):
        if inline > (settings.inline_bytes or 0):
            inline -= len(output.data)
            chosen.append(output)
    if not chosen:
        return []
    try:
        made = await kept.keep(owner, chosen)
    except OSError as error:
        # What a script did cannot be undone, so its outcome is not lost for want of a disk.
        logger.error("a large output is sent whole, since it cannot be kept: %s", error)
        return []
    for output, one in zip(chosen, made, strict=True):
        if one.part == "result":
            # One character takes up to four bytes: what is cut in the middle of one here is cut by `preview` before.
            beginning = output.data[: settings.shown_bytes + 8].decode("utf-8", "ignore")
            data["result"] = preview(beginning, settings.shown_bytes)
        else:
            data["logs"] = _shortened(data["logs"], one, settings)
    data["diagnostics"] = [*data["diagnostics"], *(_diagnostic(one, settings) for one in made)]
    data["outputs"] = [_facts(one, settings) for one in made]
    return made


def _encoded(data: dict[str, Any], result: bytes | None) -> list[Output]:
    spelled = document(data["result"]) if result is None else result
    return [
        Output("result", "application/json", spelled),
        Output("logs", "application/x-ndjson", b"".join(document(entry) + b"\n" for entry in data["logs"])),
    ]


def _facts(kept: Kept, settings: OutputSettings) -> dict[str, Any]:
    return {
        "part": kept.part,
        "uri": output_uri(kept),
        "mimeType": kept.mime_type,
        "bytes": kept.size,
        "pages": kept.pages,
        "keptMs": settings.expire_ms,
    }


def _diagnostic(kept: Kept, settings: OutputSettings) -> dict[str, Any]:
    pages = "" if kept.pages == 1 else f", with ?page=2 to ?page={kept.pages} for the rest"
    are, shows = (
        ("The result is", "`result` is the beginning of its JSON, as a string")
        if kept.part == "result"
        else ("The logs are", "`logs` has the last of them")
    )
    return {
        "severity": "info",
        "code": KEPT_CODE,
        "message": f"{are} {kept.size:,} bytes, too large to be here (frontend.inline_bytes = "
        f"{settings.inline_bytes}); {shows}.",
        "hint": f"Read the MCP resource {output_uri(kept)}{pages}, or run a script that returns less.",
    }


def _shortened(logs: list[dict[str, Any]], kept: Kept, settings: OutputSettings) -> list[dict[str, Any]]:
    """Returns the last entries, and one that says so (Code Mode specification, section 3.3.1)."""
    left = settings.shown_bytes
    shown: list[dict[str, Any]] = []
    for entry in reversed(logs):
        if shown and _bytes_in(entry["message"]) + ENTRY_BYTES > left:
            break
        message = preview(entry["message"], left, keep=_LINES)
        shown.insert(0, {**entry, "message": message})
        left -= _bytes_in(message) + ENTRY_BYTES
    note = (
        f"[logs shortened: the last {len(shown):,} of {len(logs):,} entries are here, all are in {output_uri(kept)}; "
        f"frontend.inline_bytes = {settings.inline_bytes}]"
    )
    return [*shown, {"level": "warn", "message": note, "timeMs": logs[-1]["timeMs"]}]


def preview(text: str, max_bytes: int, keep: Iterable[str] = ()) -> str:
    """Returns the beginning of a text, with `…` where it is cut, and what a terminal or a reader would obey made
    visible.

    Args:
        text: What a script has made.
        max_bytes: Of the preview in UTF-8, without the `…`.
        keep: Characters to keep although they are not printable.
    """
    parts: list[str] = []
    for character in text:
        part = character if is_visible(character) or character in keep else json_escape(character)
        max_bytes -= _bytes_in(part)
        if max_bytes < 0:
            return "".join(parts) + "…"
        parts.append(part)
    return "".join(parts)


def _bytes_in(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))
