"""Says what to use in place of a global or module that the sandbox does not have, and how to import a name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Final

from cellblock.tools.catalog.model import Catalog
from cellblock.tools.catalog.modules import (
    DISCOVERY_EXPORTS,
    DISCOVERY_SPECIFIER,
    ERROR_CLASSES,
    ERRORS_SPECIFIER,
    SERVERS_PREFIX,
)
from cellblock_worker.confinement.confinement import BUNDLE_DIR

_BYTES: Final = (
    "Uint8Array: `new TextEncoder().encode(text)`, `bytes.toBase64()`, `Uint8Array.fromBase64(text)`"
)
_WAIT: Final = "the global setTimeout; to wait: `await new Promise((done) => setTimeout(done, 100))`"
_RESULT: Final = "an assignment to `globalThis.__codemode_result__`"
_VARIABLE: Final = "a variable; nothing is kept from one run to the next"
_THROW: Final = "what the script is given; `throw new Error(…)` ends it"

_STANDS_IN: Final[Mapping[str, str]] = {
    "Buffer": _BYTES,
    "process": _THROW,
    "setImmediate": "`queueMicrotask(f)` or `setTimeout(f, 0)`",
    "module": _RESULT,
    "exports": _RESULT,
    "global": "globalThis",
    "window": "globalThis",
    "self": "globalThis",
    "localStorage": _VARIABLE,
    "sessionStorage": _VARIABLE,
    "navigator": "nothing: a script runs in no browser",
    "document": "nothing: a script runs in no browser; text is taken apart with RegExp",
    "alert": "console.log",
}
"""Maps the name of a global to what stands in for it."""

_MODULES: Final[Mapping[str, str]] = {
    "assert": "`if (…) throw new Error(…)`",
    "buffer": _BYTES,
    "crypto": "the globals crypto.randomUUID and crypto.getRandomValues",
    "events": "the global EventTarget",
    "path": "template strings and `path.split('/')`",
    "perf_hooks": "the global performance.now",
    "process": _THROW,
    "querystring": "the global URLSearchParams",
    "timers": _WAIT,
    "url": "the globals URL and URLSearchParams",
    "util": "the globals TextEncoder, TextDecoder and structuredClone; console.log shows any value",
    "uuid": "the global crypto.randomUUID",
    "lodash": "the methods of Array and Object, such as Object.groupBy",
    "dayjs": "the globals Date, Intl and Temporal",
    "moment": "the globals Date, Intl and Temporal",
    "date-fns": "the globals Date, Intl and Temporal",
}
"""Maps the name of a module to what stands in for it, without `node:` and what comes behind a slash."""

_NETWORK_NAMES: Final = """
EventSource FormData Headers Request Response WebSocket XMLHttpRequest axios fetch got http http2 https net node-fetch
undici
"""
_NETWORK: Final = frozenset(_NETWORK_NAMES.split())
_FILES: Final = frozenset(["Bun", "Deno", "fs", "fs-extra"])
_NOTHING: Final = frozenset(["__dirname", "__filename", "child_process", "os", "require", "stream", "zlib"])

_TOOLS: Final[Mapping[str, re.Pattern[str]]] = {
    "network": re.compile(r"(?:^|_)(?:fetch|http|download|browse|crawl|scrape|web)(?:_|$)", re.IGNORECASE),
    "files": re.compile(r"(?:^|_)(?:read|write)_(?:text_)?file(?:_|$)", re.IGNORECASE),
}

_TAKES_URL: Final = re.compile(r"(?<![a-z])ur[il]s?(?![a-z])", re.IGNORECASE)

_FOREIGN: Final = re.compile(
    r"tools?|codemode|mcp|servers?|functions|(?:call|execute|invoke|use)_?[tT]ool(?:_?[mM]cp)?|client"
)
"""Matches what other systems' scripts call tools by."""

_WORDS: Final = re.compile(r"[\w-]+")

MAX_WORDS: Final = 4
"""Bounds the words behind such a name that may name a server and a tool."""

MAX_SEARCHED: Final = 2_000
"""Bounds the tools that are looked at for one that does the work of an absent global."""


def absent_hint(name: str, module: str, catalog: Catalog) -> str | None:
    """Gives one corrective action for a global that is not there; None for a name that is nobody's global.

    Args:
        name: The global.
        module: Of `require`, what it asks for, if that is known; else empty.
        catalog: Where a tool is looked for that does what it would do.
    """
    if name == "require" and module.startswith("@codemode/"):
        return f'The sandbox has no require: write `import {{ … }} from "{module}"`.'
    if name == "require" and not module:
        return "The sandbox has no require: write `import`, of @codemode/* modules only."
    if name == "require" and (instead := absent_module_hint(module, catalog)) is not None:
        return f"The sandbox has no require. {instead}"
    deviation = deviations().get(name, "")
    if deviation.startswith("absent"):
        return f"In the sandbox, {name} is {deviation}."
    if name in _STANDS_IN:
        return f"The sandbox has no {name}: use {_STANDS_IN[name]}."
    return _tools_hint(name, catalog)


def absent_module_hint(specifier: str, catalog: Catalog) -> str | None:
    """Gives one corrective action for a module of Node or of a package registry."""
    name = specifier.removeprefix("node:").removeprefix("npm:").split("/")[0]
    if name in _MODULES:
        return f"In place of {name}, use {_MODULES[name]}."
    return _tools_hint(name, catalog)


def import_hint(name: str, catalog: Catalog, line: str = "") -> str | None:
    """Says how to import what a script names and has not imported: a connected server, the only tool of that name, or
    what stands behind the name in a call as other systems write it, in this line."""
    for server_id in catalog.servers:
        if name in (_plain(server_id), _camel(server_id)):
            return f'Import it: `import * as {name} from "{SERVERS_PREFIX}{server_id}";`'
    owners = [
        server.server_id
        for server in catalog.servers.values()
        if any(name == tool.export_name for tool in server.tools)
    ]
    if len(owners) == 1:
        return f'Import it: `import {{ {name} }} from "{SERVERS_PREFIX}{owners[0]}";`'
    modules = ((ERRORS_SPECIFIER, ERROR_CLASSES), (DISCOVERY_SPECIFIER, DISCOVERY_EXPORTS))
    for specifier, exports in modules if not owners else ():
        if name in exports:
            return f'Import it: `import {{ {name} }} from "{specifier}";`'
    if owners:
        return f"Import it from one of its servers: {', '.join(owners[:5])}."
    return _foreign_hint(name, catalog, line)


def _foreign_hint(name: str, catalog: Catalog, line: str) -> str | None:
    """Says what to write for `tools.SERVER.TOOL()`, `codemode.TOOL()`, `callTool("TOOL")`, `mcp__SERVER__TOOL()`,
    `SERVER_TOOL()`."""
    is_foreign, words = name.startswith("mcp__"), [name]
    if _FOREIGN.fullmatch(name):
        # Not the word in `__codemode_result__`.
        behind = re.split(rf"\b{name}\b", line, maxsplit=1)[-1]
        is_foreign, words = True, _WORDS.findall(behind)[:MAX_WORDS]
    parts = {_plain(word) for word in words}
    joined = {part.removeprefix("mcp_") for part in parts}
    tools = [
        (server.server_id, tool.export_name)
        for server in catalog.servers.values()
        for tool in server.tools
        if tool.tool_name in words
        or _plain(tool.export_name) in parts
        or _plain(f"{server.server_id}_{tool.export_name}") in joined
    ]
    named = [tool for tool in tools if _plain(tool[0]) in parts] or tools
    if not named and not is_foreign:
        return None
    if not named or len({server for server, _ in named}) > 1:
        how = f'import {{ TOOL }} from "{SERVERS_PREFIX}SERVER";'
        return f"Tools are imported: `{how}` {catalog.who_is_connected()}"
    server_id, export = max(named, key=lambda tool: len(tool[1]))
    how = f'import {{ {export} }} from "{SERVERS_PREFIX}{server_id}";'
    return f"Import the tool: `{how}`, and call `await {export}({{ … }})`."


def _plain(name: str) -> str:
    """Gives a name with one `_` for what cannot be in an identifier, and for several `_`."""
    return re.sub(r"[\W_]+", "_", name)


def _camel(server_id: str) -> str:
    first, *others = re.split(r"\W+", server_id)
    return first + "".join(word.capitalize() for word in others)


def _tools_hint(name: str, catalog: Catalog) -> str | None:
    if name in _NOTHING:
        return f"The sandbox has no {name}: use tools of {SERVERS_PREFIX}*."
    kind = "network" if name in _NETWORK else "files" if name in _FILES else None
    if kind is None:
        return None
    tool = _tool_for(_TOOLS[kind], catalog)
    return f"The sandbox has no {name} and no {kind}: use {tool or f'tools of {SERVERS_PREFIX}*'}."


def _tool_for(pattern: re.Pattern[str], catalog: Catalog) -> str | None:
    """Gives a connected server's tool that does the work of an absent global, the first by name: the same whatever the
    order of servers."""
    names = (
        (tool.export_name, server.server_id)
        for server in catalog.servers.values()
        for tool in server.tools
        if pattern is not _TOOLS["network"] or _TAKES_URL.search(f"{tool.description} {tool.input_schema}")
    )
    found = min((one for one in islice(names, MAX_SEARCHED) if pattern.search(one[0])), default=None)
    return f'a tool, such as `import {{ {found[0]} }} from "{SERVERS_PREFIX}{found[1]}";`' if found else None


@lru_cache(maxsize=1)
def deviations() -> dict[str, str]:
    """Says of globals how they differ from what scripts may expect."""
    table: dict[str, str] = json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))[
        "deviations"
    ]
    return table
