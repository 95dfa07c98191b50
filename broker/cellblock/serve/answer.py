"""Writes a response for the model of a client: the result first, then what needs a reader's eye, in few tokens.

The whole response, with times and the trace, is for programs: it stays in the structured content of clients that do not
show that to their models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cellblock.base.errors import shorten
from cellblock.base.settings.settings import FrontendSettings
from cellblock.run.response import RunResponse, TraceEntry
from cellblock.serve.mcp.tool_name import COPILOT_OF_JETBRAINS, VS_CODE

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
"""Bounds the diagnostics in a text, errors first; structured content has all."""

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


def short_form(data: Mapping[str, Any], response: RunResponse) -> dict[str, Any]:
    """Returns a response without times and trace, with calls counted by tool."""
    called = Counter(_name(call) for call in response.tool_trace)
    failed = Counter(_name(call) for call in response.tool_trace if not call.ok)
    calls = {
        tool: f"{count}{f' ({failed[tool]} failed)' if tool in failed else ''}"
        for tool, count in called.items()
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


def _name(call: TraceEntry) -> str:
    return f"{call.server_id}.{call.tool_name}"


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
    counts = ", ".join(f"{tool} {count}" for tool, count in short.get("calls", {}).items())
    failed = [f"{tool} failed: {words}" for tool, words in short.get("failures", {}).items()]
    return [*filter(None, [counts]), *failed]
