"""Some declarations come with a response: of what a script names and its client has not been shown.

The Code Mode specification (section 4.4) lets declarations wait until a server is first imported or requested; then
they must reach the agent. A client is shown a server's functions in a line each, once; the types of one that a script
names, when it first does so; what it gives, when that is known better; and its whole declaration when a script had its
types wrong. What stands in the description of its tool, or in a resource that it has read, it has been shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cellblock.base.errors import first_few
from cellblock.base.kept import Newest
from cellblock.run.response import RunResponse
from cellblock.serve.mcp.context import MAX_NAMES, Declared
from cellblock.serve.mcp.manual import by_use
from cellblock.serve.service import Owner, RunService
from cellblock.tools.catalog.model import (
    Catalog,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    stated_output,
    types_of,
)
from cellblock.types.typescript import (
    HOW_TO_PARSE,
    JSON_TEXT,
    bare,
    declare_tool,
    gives,
    module_start,
    signature,
)

MAX_KEPT: Final = 4_096
"""Bounds the pairs of a client and a server that are remembered; a client that is forgotten is shown a server once
more."""

MAX_CHARS: Final = 12_000
"""Caps the declarations of named functions in one response, about 3,000 tokens; the shorter ones come first. One that
is larger by itself is cut."""

MAX_NAMED_CHARS: Final = 2_000
"""Caps the types of a function without their comments."""

MAX_LINE_CHARS: Final = 160
"""Caps the line of a function that no script has named."""

MAX_LINES_CHARS: Final = 3_000
"""Caps such lines in one response; functions beyond them are named."""

WRONG_TYPES: Final = frozenset({"TYPE_ERROR", "SchemaValidationError"})
"""Holds codes and classes of errors of scripts that did not know what a function takes or gives."""

LOOKED_BOUND_SECONDS: Final = 0.25
"""Bounds the wait for the results of the run to be looked at: then their types come with this response."""

_WORD: Final = re.compile(r"[\w$]+")
_SERVER: Final = re.compile(r"@codemode/servers/([a-z0-9-]+)")


class Known(NamedTuple):
    """Holds a function as a client knows it: the tool, the types of its output, and whether it knows the comments."""

    tool: ToolEntry
    types: object
    is_whole: bool


@dataclass(slots=True)
class _Shown:
    """Holds what a client has been shown of a server; `server` is None until it has had all functions."""

    server: ServerEntry | None
    functions: dict[str, Known] = field(default_factory=dict[str, Known])


@dataclass(frozen=True, slots=True)
class _New:
    """Holds what a client is shown of a server: functions with their outputs that a script names, those names of which
    all but the output is known, and the other functions."""

    server: ServerEntry
    named: dict[str, tuple[ToolEntry, ToolOutput | None]]
    known: Collection[str]
    listed: dict[str, tuple[ToolEntry, ToolOutput | None]]
    is_first: bool
    is_whole: bool

    def text(self, name: str) -> str:
        """Returns the declaration of a named function: its output alone, whole, without comments, or cut."""
        tool, output = self.named[name]
        if self.is_whole and name not in self.known and len(whole := declare_tool(tool, output)) <= MAX_CHARS:
            return whole.removeprefix(f"{HOW_TO_PARSE}\n").rstrip()
        text = gives(self.server, tool, output) if name in self.known else "\n".join(bare(tool, output))
        return text if len(text) <= MAX_NAMED_CHARS else signature(tool, output, MAX_NAMED_CHARS)


class FirstReferences:
    """Remembers which declarations each client has been shown."""

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._shown = Newest[tuple[str, str], _Shown](MAX_KEPT)

    def show(self, client: str, catalog: Catalog, declared: Declared) -> None:
        """Notes that a client has been shown declarations."""
        for server_id, tools in {**declared.typed, **declared.whole}.items():
            server, is_whole = catalog.servers[server_id], server_id in declared.whole
            shown = self._shown.get((client, server_id)) or _Shown(None)
            known = dict(shown.functions)
            for tool in tools:
                old = known.get(tool.export_name)
                # What it has been shown since stays: types that are known better, above all.
                if old is None or old.tool != tool or is_whole > old.is_whole:
                    output = declared.outputs.get((server_id, tool.tool_name)) or stated_output(server, tool)
                    known[tool.export_name] = Known(tool, types_of(output), is_whole)
            self._shown[client, server_id] = _Shown(
                server if is_whole and len(tools) == len(server.tools) else shown.server, known
            )

    async def declarations_for(
        self, owner: Owner, catalog: Catalog, response: RunResponse, code: object
    ) -> dict[str, str]:
        """Returns the declarations that a response brings, by server; from then on the client has been shown them.

        Args:
            owner: Whose response it is.
            catalog: What the client is granted.
            response: Of the run.
            code: The script.
        """
        text = str(code or "")
        failed = _servers_of_failed_imports(response, text)
        # Of a task, its trace alone is known here; calls of kept scripts are not the script's own.
        called = [call for call in response.tool_trace if call.within is None]
        of_run = response.servers or list(dict.fromkeys(call.server_id for call in called))
        names = of_run if failed is None else failed
        servers = [catalog.servers[name] for name in names if name in catalog.servers]
        if response.tool_trace:
            await self._service.wait_until_learnt(LOOKED_BOUND_SECONDS)
        words = frozenset([*_WORD.findall(text), *(call.tool_name for call in called)])
        is_whole = any(
            one.code in WRONG_TYPES or one.error_class in WRONG_TYPES for one in response.diagnostics
        )
        # Nothing is waited for until it is noted: of two runs at once, one brings them.
        new = [one for server in servers if (one := self._new(owner, server, words, is_whole)) is not None]
        if not new:
            return {}
        texts, left = await asyncio.to_thread(_written, new)
        for server_id, name in left:
            if (shown := self._shown.get((owner.client, server_id))) is not None:
                shown.functions.pop(name, None)
        return texts

    def _new(self, owner: Owner, server: ServerEntry, words: frozenset[str], is_whole: bool) -> _New | None:
        key = owner.client, server.server_id
        before = self._shown.get(key)
        known = {} if before is None else before.functions
        is_first = before is None or (before.server is not server and before.server != server)
        named: dict[str, tuple[ToolEntry, ToolOutput | None]] = {}
        listed: dict[str, tuple[ToolEntry, ToolOutput | None]] = {}
        now = dict(known)
        for tool in by_use(server.tools) if is_first else server.tools:
            name, shown = tool.export_name, known.get(tool.export_name)
            # One that has changed since is a new one.
            shown = shown if shown is not None and shown.tool == tool else None
            output = self._service.output_of(server, tool, owner.principal)
            if name in words or tool.tool_name in words:
                new = Known(tool, types_of(output), is_whole or (shown is not None and shown.is_whole))
                if shown != new:
                    named[name], now[name] = (tool, output), new
            elif is_first and shown is None:
                listed[name] = tool, output
        self._shown[key] = _Shown(server, now)
        of_output = [
            name
            for name in named
            if name in known and known[name] == now[name]._replace(types=known[name].types)
        ]
        return _New(server, named, of_output, listed, is_first, is_whole) if named or listed else None


def _servers_of_failed_imports(response: RunResponse, code: str) -> list[str] | None:
    """Returns the servers in the lines of a script whose imports have failed; None where none has."""
    failed = [one for one in response.diagnostics if one.code == "IMPORT_FAILURE"]
    if not failed:
        return None
    lines = code.splitlines()
    places = [int(place[1]) for one in failed if (place := re.search(r":(\d+):\d+$", one.path or ""))]
    return [name for place in places if place <= len(lines) for name in _SERVER.findall(lines[place - 1])]


def _written(new: Iterable[_New]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Returns the texts by server, and the named functions that had no room."""
    texts = {(one.server.server_id, name): one.text(name) for one in new for name in one.named}
    room, lines_room = MAX_CHARS, MAX_LINES_CHARS
    left: list[tuple[str, str]] = []
    for key in sorted(texts, key=lambda key: (len(texts[key]), key)):
        room -= len(texts[key])
        if room < 0:
            left.append(key)
    modules: dict[str, str] = {}
    for one in new:
        server_id = one.server.server_id
        named = [name for name in one.named if (server_id, name) not in left]
        shown = [texts[server_id, name] for name in named if name in one.known]
        lines = ["const __meta__: ServerMeta;"] * one.is_first + [
            texts[server_id, name] for name in named if name not in one.known
        ]
        listed = one.listed | {name: one.named[name] for of, name in left if of == server_id}
        rest: list[str] = []
        for name, (tool, output) in listed.items():
            line = signature(tool, output, MAX_LINE_CHARS)
            lines_room -= len(line)
            if lines_room < 0:
                rest.append(name)
            else:
                lines.append(line)
        if rest:
            lines.append(f"// and {first_few(rest, MAX_NAMES)}")
        if lines:
            shown += [module_start(one.server, about=one.is_first).rstrip(), *lines, "}"]
        if any(f"{JSON_TEXT}<" in line for line in shown):
            shown.append(HOW_TO_PARSE)
        if one.is_first or one.is_whole or listed or any(line.endswith("…") for line in shown):
            shown.append(f'// Whole: describe("{server_id}", name) of @codemode/discovery')
        modules[server_id] = "\n".join(shown)
    return modules, left
