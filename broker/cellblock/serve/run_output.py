"""Makes the response of a run as the client of the front-end gets it: whole, or with previews of what is kept.

For a model the result comes first, then what needs a reader's eye, in few tokens. The whole response, with times and
the trace, is for programs: it stays in the structured content of clients that do not show that to their models.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import mcp_types as types

from cellblock.base.budget import Budget, OverBudget
from cellblock.base.errors import shorten
from cellblock.base.settings.sections import ANSWER_BYTES, OutputSettings
from cellblock.base.settings.settings import FrontendSettings
from cellblock.base.visible import is_visible, json_escape
from cellblock.run.events import WAITS
from cellblock.run.response import RunResponse
from cellblock.run.results import (
    MARK,
    LargeResult,
    Media,
    compact,
    document,
    not_read,
    result_text,
    taken_out,
)
from cellblock.serve.kept_outputs import KeptOutput, KeptOutputs, Output, output_uri, resource_link
from cellblock.serve.mcp.tool_name import COPILOT_OF_JETBRAINS, VS_CODE
from cellblock.serve.service import Owner
from cellblock.serve.splices import Splices

logger = logging.getLogger("cellblock.serve")

BESIDE_BYTES: Final = 10_000
"""Allows for diagnostics, calls and declarations in what a model is shown, over `ANSWER_BYTES`."""

ENTRY_BYTES: Final = 48
"""Estimates a log entry's JSON beside its message."""

WAITING_BYTES: Final = 128 * 1024 * 1024
"""Bounds the results that wait to be written, twice their size each; a further one is not sent."""

WAITING_SECONDS: Final = 120.0
"""Bounds the time from a response to its writing; what has not been written by then has lost its client."""

_waiting: Final = Budget(WAITING_BYTES, WAITING_BYTES, "all clients")


KEPT_CODE: Final = "OUTPUT_KEPT"

SHOWN_TO_MODELS: Final = frozenset(
    [
        *VS_CODE,
        "claude-code",
        "codex-mcp-client",
        "github-copilot-developer",
        "opencode",
    ]
)
"""Names clients, in lower case, that show structured content to their models, or may (docs/clients.md)."""

MAX_DIAGNOSTICS: Final = 20
"""Bounds the diagnostics in a text, errors first, and the failed calls beside it; structured content has all."""

MAX_SAID_CHARS: Final = 4_000
"""Bounds one message in a text, such as a server's error with a whole page in it."""

MAX_TOLD_CHARS: Final = 10_000
"""Bounds the messages of diagnostics together, their hints, and the words of failures, each of these."""

MAX_TOOLS: Final = 50
"""Bounds the tools whose calls are counted one by one."""


class Form(NamedTuple):
    """Says in which form a client gets a response.

    Attributes:
        is_whole: The text is the whole response as JSON, as the specification alone has it.
        is_shown: The client shows structured content to its model: the short form stands there, too.
        with_media: Images and sounds in the result are content blocks, with words in their place in what is shown.
    """

    is_whole: bool = False
    is_shown: bool = False
    with_media: bool = True


SHORT: Final = Form()


def form_for(shown: FrontendSettings, client: str, trace: object = None) -> Form:
    """Returns the form for a client, by its name, and by what its request says of the trace."""
    name = client.lower()
    is_shown = name in SHOWN_TO_MODELS or name.endswith(COPILOT_OF_JETBRAINS)
    return Form(shown.strict or trace == "full", is_shown, not shown.strict)


async def tool_result(
    response: RunResponse,
    kept: KeptOutputs | None,
    owner: Owner,
    splices: Splices | None = None,
    declarations: Mapping[str, str] | None = None,
    form: Form = SHORT,
) -> types.CallToolResult:
    """Returns the result of `codemode.run`: the response as text and as structured content, and links to what is kept.

    Args:
        response: Of the run.
        kept: Where large outputs go; None: nowhere, and the response is whole.
        owner: For whom they are kept.
        splices: Puts large results into what is written; None where nothing does, and they are decoded here.
        declarations: What the client has not been shown of the servers that the script names, by their ids.
        form: Of the response. Structured content that is not shown to a model has the result as it is.
    """
    # In both: clients show their models the one or the other. They do not count as output, which may be kept away.
    more = {"declarations": dict(declarations)} if declarations else {}
    if isinstance(response.result, LargeResult) and splices is not None:
        return await _large_result(response, response.result, kept, owner, splices, more, form)
    data = _error_first(response.decoded().as_json())
    media: list[Media] = []
    shown, spelled = dict(data), compact(data["result"])
    if form.with_media and f'"{MARK}"' in spelled:
        shown["result"], media = taken_out(data["result"])
        spelled = compact(shown["result"]) if media else spelled
    links: list[KeptOutput] = []
    if kept is not None and (most := _most_bytes(kept.settings, form, response, shown | more)) is not None:
        size = _bytes_in(spelled) + sum(_bytes_in(one["message"]) + ENTRY_BYTES for one in data["logs"])
        if size > most:
            links = await _keep_large(shown, kept, owner, most, data["result"])
        if links and size > (kept.settings.inline_bytes or size):
            data = shown
    text = _text(response, shown | more, form, result_text(shown["result"]))
    structured = _structured(response, data, shown, form) | more
    return _result(text, structured, [_block(one, one.data) for one in media], links)


def text_result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    """Returns the result of a tool that has nothing but a text."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)


def _text(response: RunResponse, shown: dict[str, Any], form: Form, result: str) -> str:
    if form.is_whole:
        return json.dumps(shown, ensure_ascii=False)
    return answer_text(short_form(shown, response), result)


def _structured(
    response: RunResponse, data: dict[str, Any], shown: dict[str, Any], form: Form
) -> dict[str, Any]:
    return short_form(shown, response) if form.is_shown and not form.is_whole else data


def _result(
    text: str, structured: dict[str, Any], blocks: Sequence[types.ContentBlock], links: Sequence[KeptOutput]
) -> types.CallToolResult:
    content = [types.TextContent(text=text), *blocks, *map(resource_link, links)]
    return types.CallToolResult(content=content, structured_content=structured)


def _most_bytes(
    settings: OutputSettings, form: Form, response: RunResponse, shown: dict[str, Any]
) -> int | None:
    """Returns what result and logs may take together in what a model is shown; None: any size. Where all that stands
    beside them is long, they have less."""
    if form.is_whole:
        return settings.inline_bytes
    beside = _bytes_in(_text(response, {**shown, "result": None, "logs": []}, form, ""))
    most = min(settings.inline_bytes or ANSWER_BYTES, ANSWER_BYTES)
    return max(settings.shown_bytes, most - max(0, beside - BESIDE_BYTES))


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
    more: dict[str, Any],
    form: Form,
) -> types.CallToolResult:
    """Returns the result of `codemode.run` where its value is not decoded here: tokens stand for it until the response
    is written."""
    data = _error_first(response.as_json())
    shown = dict(data)
    links: list[KeptOutput] = []
    blocks: list[types.ContentBlock] = []
    in_text = ""
    try:
        most = room = None if kept is None else _most_bytes(kept.settings, form, response, data | more)
        if most is not None:
            room = max(0, most - _bytes_in(compact({**data, "result": None})))
        spelled = await result.spelled(room, with_media=form.with_media, as_json=form.is_whole)
        if spelled.document is not None and kept is not None and most is not None:
            links = await _keep_large(shown, kept, owner, most, spelled.document)
            if shown["result"] is result:
                spelled = await result.spelled(None, with_media=form.with_media, as_json=form.is_whole)
            elif kept.settings.inline_bytes is not None:
                data = shown
        structured = _structured(response, data, shown, form)
        texts = [(f'"{one.data}"'.encode("ascii"), b'"') for one in spelled.media]
        if spelled.text is not None:
            texts.append((spelled.text, b'\\"' if form.is_whole else b""))
        if structured["result"] is result:
            texts.append((result.raw if structured is data else spelled.shown or result.raw, b'"'))
        tokens = tokens_for(splices, *texts)
        blocks = [_block(one, token) for one, token in zip(spelled.media, tokens, strict=False)]
        if structured["result"] is result:
            structured["result"] = tokens.pop()
        if spelled.text is not None:
            in_text = tokens.pop()
    except OverBudget as error:
        said = f"The result could not be sent: {error}."
        hint = "Return less, or run fewer scripts with large results at a time."
        failed = not_read(said, hint).as_json()
        shown = _error_first({**data, "result": None, "diagnostics": [*data["diagnostics"], failed]})
        structured = _structured(response, shown, shown, form)
    if in_text:
        shown["result"] = in_text
    text = _text(response, shown | more, form, in_text or result_text(shown["result"]))
    return _result(text, structured | more, blocks, links)


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
    data: dict[str, Any], kept: KeptOutputs, owner: Owner, most: int, result: Any
) -> list[KeptOutput]:
    """Keeps the larger of result and logs, and the other one too where that does not do; puts previews in `data`.

    Args:
        data: The response, as it is shown.
        kept: Where they go.
        owner: For whom.
        most: How many bytes both may take.
        result: What is kept of the result: its value, or its JSON as bytes.
    """
    settings = kept.settings
    outputs = await asyncio.to_thread(_encoded, data, result)
    inline = sum(len(output.data) for output in outputs)
    chosen: list[Output] = []
    for output in sorted(outputs, key=lambda output: -len(output.data)):
        if inline > most:
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
            data["logs"] = _shortened(data["logs"], one, settings.shown_bytes, most)
    data["diagnostics"] = [*data["diagnostics"], *(_diagnostic(one, most) for one in made)]
    data["outputs"] = [_facts(one, settings) for one in made]
    return made


def _encoded(data: dict[str, Any], result: Any) -> list[Output]:
    spelled = result if isinstance(result, bytes) else document(result)
    return [
        Output("result", "application/json", spelled),
        Output("logs", "application/x-ndjson", b"".join(document(entry) + b"\n" for entry in data["logs"])),
    ]


def _facts(kept: KeptOutput, settings: OutputSettings) -> dict[str, Any]:
    return {
        "part": kept.part,
        "uri": output_uri(kept),
        "mimeType": kept.mime_type,
        "bytes": kept.size,
        "pages": kept.pages,
        "keptMs": settings.expire_ms,
    }


def _diagnostic(kept: KeptOutput, most: int) -> dict[str, Any]:
    pages = "" if kept.pages == 1 else f", with ?page=2 to ?page={kept.pages} for the rest"
    are, shows = (
        ("The result is", "`result` is the beginning of its JSON, as a string")
        if kept.part == "result"
        else ("The logs are", "`logs` has errors and both ends of them")
    )
    return {
        "severity": "info",
        "code": KEPT_CODE,
        "message": f"{are} {kept.size:,} bytes, too large to be here (over {most:,} bytes); {shows}.",
        "hint": f"Read the MCP resource {output_uri(kept)}{pages}, or run a script that returns less.",
    }


def _shortened(logs: list[dict[str, Any]], kept: KeptOutput, left: int, most: int) -> list[dict[str, Any]]:
    """Returns errors, the first and the last entries, in the order in which they came, and one that says so (Code Mode
    specification, section 3.3.1)."""
    errors = [number for number, entry in enumerate(logs) if entry["level"] == "error"]
    # From both ends: the first, the last, the second and so on.
    ends = [end for pair in zip(range(len(logs)), reversed(range(len(logs))), strict=True) for end in pair]
    shown: dict[int, dict[str, Any]] = {}
    for number in (*errors, *ends):
        entry = logs[number]
        if number in shown:
            continue
        if shown and _bytes_in(entry["message"]) + ENTRY_BYTES > left:
            break
        message = preview(entry["message"], left, keep="\n\t")
        shown[number] = {**entry, "message": message}
        left -= _bytes_in(message) + ENTRY_BYTES
    note = (
        f"[logs shortened: {len(shown):,} of {len(logs):,} entries are here, errors and those at both ends first; all "
        f"are in {output_uri(kept)}; result and logs are over {most:,} bytes]"
    )
    entries = [shown[number] for number in sorted(shown)]
    return [*entries, {"level": "warn", "message": note, "timeMs": logs[-1]["timeMs"]}]


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


def short_form(data: Mapping[str, Any], response: RunResponse) -> dict[str, Any]:
    """Returns a response without times, and of the trace the calls that have failed; with calls counted by tool, of
    those where one has, or of all where there is no result. What the tools said of failed ones is output, which no
    trace holds."""
    trace = [call for call in data["toolTrace"] if not call["ok"] and call.get("error") != WAITS]
    called, failed = (Counter(map(_name, calls)) for calls in (data["toolTrace"], trace))
    calls = {
        tool: f"{count}{f' ({failed[tool]} failed)' if tool in failed else ''}"
        for tool, count in called.items()
        if tool in failed or data["result"] in (None, "")
    }
    if len(calls) > MAX_TOOLS:
        calls = dict(list(calls.items())[:MAX_TOOLS]) | {"of other tools": f"{len(calls) - MAX_TOOLS}"}
    said = [one["message"] for one in data["diagnostics"]]
    failures = {
        tool: words for tool, words in response.failures.items() if not any(words in one for one in said)
    }
    failures = dict(list(failures.items())[:MAX_DIAGNOSTICS])
    return {
        **{key: part for key, part in data.items() if key not in ("usage", "toolTrace")},
        "diagnostics": _bounded(data["diagnostics"]),
        # Where nothing failed, an empty trace would say that nothing was called.
        **({"toolTrace": trace[:MAX_DIAGNOSTICS]} if trace else {}),
        **({"calls": calls} if calls else {}),
        **(
            {"failures": {tool: _within(words, len(failures)) for tool, words in failures.items()}}
            if failures
            else {}
        ),
    }


def _bounded(diagnostics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns as many diagnostics as a model is shown: errors first, then what says where the rest of an output is."""
    order = sorted(diagnostics, key=lambda one: (one["severity"] != "error", one["code"] != KEPT_CODE))
    shown = order if len(order) <= MAX_DIAGNOSTICS else order[: MAX_DIAGNOSTICS - 1]
    bounded = [
        {key: _within(part, len(shown)) if key in ("message", "hint") else part for key, part in one.items()}
        for one in shown
    ]
    if len(order) > len(shown):
        more = {
            "severity": "info",
            "code": "MORE_DIAGNOSTICS",
            "message": f"{len(order) - len(shown)} more diagnostics",
        }
        bounded.append(more)
    return bounded


def _within(words: str, number: int) -> str:
    return shorten(words, min(MAX_SAID_CHARS, MAX_TOLD_CHARS // number))


def _name(call: Mapping[str, Any]) -> str:
    return f"{call['serverId']}.{call['toolName']}"


def answer_text(short: Mapping[str, Any], result: str) -> str:
    """Returns the short form as text.

    Args:
        short: What `short_form` gives, and declarations.
        result: The result as it is shown.
    """
    diagnostics = short["diagnostics"]
    has_failed = bool(diagnostics) and diagnostics[0]["severity"] == "error"
    told = [_line(one) for one in diagnostics]
    logs = [f"[{one['level']}] {one['message']}" for one in short["logs"]]
    parts = [
        "\n".join(told if has_failed else [result]),
        _section("logs", logs),
        _section("diagnostics", [] if has_failed else told),
        _section("calls", _calls(short)),
        _section("declarations", list(short.get("declarations", {}).values())),
    ]
    return "\n\n".join(part for part in parts if part)


def _section(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{name}:", *lines]) if lines else ""


def _line(one: Mapping[str, Any]) -> str:
    kind = f" ({one['errorClass']})" if one.get("errorClass") else ""
    place = f" at {one['path']}" if one.get("path") else ""
    hint = f" Hint: {one['hint']}" if one.get("hint") else ""
    return f"{one['severity']} {one['code']}{kind}{place}: {one['message']}{hint}"


def _calls(short: Mapping[str, Any]) -> list[str]:
    counts, failures = short.get("calls", {}), short.get("failures", {})
    others = ", ".join(f"{tool} {count}" for tool, count in counts.items() if tool not in failures)
    failed = [f"{tool} {counts.get(tool, 'failed')}: {words}" for tool, words in failures.items()]
    return [*filter(None, [others]), *failed]
