"""The agent's manual: one text, made from the code's own tables (Code Mode specification: documented to the agent).

It is sent as the server's instructions, and as the description of the one tool, because some clients show their model
only one of the two. The declarations follow it in the description alone: they are what costs tokens.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

from cellblock.catalog.model import Catalog
from cellblock.config import LimitSettings
from cellblock.execution.limits import KEYS
from cellblock_worker.confinement import BUNDLE_DIR

TOOL_NAME: Final = "codemode.run"

UNWRAPPING: Final = (
    "structuredContent, if the result has it",
    "else the string of a single text block",
    "else the full MCP result (images and audio are in its content as base64 strings)",
)
"""What a tool function returns (section 5.3.2), in the order in which the rules are tried."""

_UNITS: Final = {"Ms": "ms", "Bytes": "bytes", "Calls": "calls"}


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[str, str]]:
    return json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))


def manual(limits: LimitSettings) -> str:
    """How a script is written and what it may do; the same text for the same configuration."""
    return "\n".join(
        [
            "Runs one JavaScript or TypeScript ES module in a fresh sandbox where MCP servers are modules. Write one "
            "script that makes all the tool calls and returns what matters, instead of calling tools one by one.",
            "",
            'import * as files from "@codemode/servers/files";        // a connected server',
            'const text = await files.read_file({ path: "a.txt" });   // a tool: one input object, a promise',
            "globalThis.__codemode_result__ = { length: text.length }; // the result: any JSON value, else null",
            "",
            "- Top-level await works. Promise.all runs calls concurrently. The run ends when the top level settles: "
            "await every call.",
            f"- A tool returns {', '.join(UNWRAPPING)}. A tool whose input is not an object takes that value.",
            '- A failed call throws; classes are in "@codemode/errors", and every error has a `hint`.',
            '- "@codemode/discovery": listServers(), describeServer(id), listTools(id, { detail }), getTool(id, name), '
            'searchTools(text, { serverId, limit, detail }); detail is "name", "description" or "full".',
            "- Only @codemode/* can be imported. console output comes back as logs: print summaries, not whole data.",
            f"- {_limits(limits)}",
            "- requestedCapabilities: server ids, as in @codemode/servers/<id>.",
            f"- {_globals()}",
        ]
    )


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


def instructions(limits: LimitSettings, catalog: Catalog) -> str:
    """The server's instructions: the manual, and which servers there are."""
    lines = [
        f"{TOOL_NAME}: {manual(limits)}",
        f"Servers (their declarations are in the description of {TOOL_NAME}, and MCP resources):",
        *(
            f"- @codemode/servers/{server.server_id}: {len(server.tools)} tools"
            for server in catalog.servers.values()
        ),
        *(f"- @codemode/servers/{server_id}: not connected" for server_id in catalog.unavailable),
    ]
    return "\n".join(lines)
