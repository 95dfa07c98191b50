"""The agent's manual is one text, made from the code's own tables (Code Mode specification: documented to the agent).

It stands in the description of the one tool, behind its opening (see `opening`) and before the declarations. The
server's instructions say when to use the tool, and repeat nothing of it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

from cellblock.base.settings.sections import ALL, LimitSettings, Profile
from cellblock.run.request import KEYS
from cellblock.serve.mcp.opening import left_out, listed_within
from cellblock.serve.service import FrontConfig
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.catalog.naming import module_paths

UNWRAPPING: Final = (
    "structuredContent, if the result has it",
    "else the string of a single text block",
    "else the full MCP result (images and audio are in its content as base64 strings)",
)
"""Says what a tool function returns (section 5.3.2), in the order in which the rules are tried."""

CONVENTIONS: Final = (
    "- In place of the assignment, which wins: a top-level return, `export default` of a value or a function, or a "
    "function alone, which is called.\n"
    "- Image and audio blocks of a tool's result that are in the script's result are shown to you."
)
"""Says how else a script may give its result (see `script/conventions.py`), and what becomes of media in it."""

_UNITS: Final = {"Ms": "ms", "Bytes": "bytes", "Calls": "calls"}


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[str, str]]:
    # Not at the top: a client is greeted without it.
    from cellblock_worker.confinement.confinement import BUNDLE_DIR

    return json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))


def manual(config: FrontConfig, granted: Catalog | None = None) -> str:
    """Says how a script is written and what it may do; the same text for the same configuration.

    Args:
        config: What is said of runs and results.
        granted: The only servers and tools that may be named; None: all.
    """
    return "\n".join(
        [
            "- Top-level await works.",
            *([] if config.shown.strict else [CONVENTIONS]),
            f"- A tool returns {', '.join(UNWRAPPING)}. A tool whose input is not an object takes that value.",
            *deviations(config, granted),
            '- A failed call throws; classes are in "@codemode/errors", and every error has a `hint`.',
            '- "@codemode/discovery": listServers(), describeServer(id), listTools(id, { detail }), getTool(id, name), '
            'searchTools(text, { serverId, limit, detail }); detail is "name", "description" or "full".',
            "- Only @codemode/* can be imported. console output comes back as logs: print summaries, not whole data.",
            *_kept(config.outputs.inline_bytes),
            f"- {_limits(config.limits)}",
            "- requestedCapabilities: ids of servers.",
            f"- {_globals()}",
        ]
    )


def deviations(config: FrontConfig, granted: Catalog | None = None) -> list[str]:
    """Returns a line for each way in which results are given otherwise than by default (section 5.3.2.5), and by
    whom."""
    lines: list[str] = []
    parsed = _where_texts_are_parsed(config, granted)
    if parsed:
        lines.append(f"- A text that is a JSON object or array comes parsed from {parsed}: no JSON.parse.")
    if config.schemas.unbox:
        lines.append('- A value that a declared schema wraps, as in {"result": value}, comes bare.')
    return lines


def _where_texts_are_parsed(config: FrontConfig, granted: Catalog | None) -> str:
    """Returns the servers for which that holds, and the exceptions."""
    rules = config.schemas
    paths = module_paths([*config.servers, "local"])
    everywhere = rules.unwrap[ALL] == "json"
    places: list[str] = []
    exceptions: list[str] = []
    for name, path in paths.items():
        if granted is not None and path not in granted.servers:
            continue
        of_server = rules.unwraps(name)
        if of_server != everywhere:
            (places if of_server else exceptions).append(path)
    text = ", ".join(["all servers", *places] if everywhere else places)
    return f"{text} (but not {', '.join(exceptions)})" if text and exceptions else text


def _kept(inline: int | None) -> list[str]:
    if inline is None:
        return []
    return [
        f"- Of a result and logs over {inline} bytes you get a preview; the whole is an MCP resource for a while "
        "(`outputs` in the response), read in pages."
    ]


def _limits(limits: LimitSettings) -> str:
    shown: list[str] = []
    for key, (name, _) in KEYS.items():
        allowed = getattr(limits, name)
        unit = next(text for ending, text in _UNITS.items() if key.endswith(ending))
        shown.append(f"{key} {allowed.default} (at most {allowed.maximum}) {unit}")
    return f"limits, with defaults: {', '.join(shown)}. Other keys are ignored."


def _globals() -> str:
    deviations = _tables()["deviations"]
    absent = sorted(name for name, text in deviations.items() if text.startswith("absent"))
    others = "; ".join(
        f"{name}: {text}" for name, text in deviations.items() if not text.startswith("absent")
    )
    return (
        "Standard built-ins, URL, TextEncoder, setTimeout, crypto.randomUUID, structuredClone and the like are there. "
        f"Absent: network, files, process, require, Node and Deno, {', '.join(absent)}. {others}."
    )


EXTENDED_HINT: Final = (
    "Where no output is declared, one run of a tool is enough: "
    "search_tools and inspect_tool know then what it gives."
)
"""Describes the tools of the `extended` profile."""


INSTRUCTIONS_CHARS: Final = 1_000
"""Bounds the characters of the instructions: they are in a model's context whether it needs them or not."""

WHEN: Final = (
    "Behind this server's tool for scripts are MCP servers. Use it for whatever they can do, above all for several "
    "calls, for loops and joins over what calls return, and for results that are larger than what you need of them: a "
    "script works on them where they are. Its description says how, and what each server has."
)


PROXY: Final = (
    "The tools are those of several MCP servers, each as mcp__SERVER__TOOL. What is known of their results is in their "
    "output schemas; what no server has declared is only what results looked like so far."
)
"""Describes the tools of the profile `proxy`."""


def instructions(catalog: Catalog, profile: Profile = "default") -> str:
    """Returns the server's instructions: when to use the tool, and the servers that its description has no room for;
    `INSTRUCTIONS_CHARS` at most.

    Args:
        catalog: The servers that may be named.
        profile: The tools that the client sees.
    """
    if profile == "proxy":
        # The names of its tools say which servers are there.
        lines, named = [PROXY], [*catalog.unavailable]
    else:
        lines, named = [WHEN, *([EXTENDED_HINT] if profile == "extended" else [])], left_out(catalog)
    starting = set(catalog.who_starts)
    of: dict[str, list[str]] = {
        "More servers": [one for one in named if one in catalog.servers and one not in starting],
        "Servers, starting now": [one for one in named if one in starting],
        "Not connected": [one for one in named if one not in catalog.servers and one not in starting],
    }
    for said, ids in of.items():
        if ids:
            left = INSTRUCTIONS_CHARS - len("\n".join(lines)) - len(f"\n{said}: .")
            lines.append(f"{said}: {listed_within(ids, left // 2)}.")
    return "\n".join(lines)
