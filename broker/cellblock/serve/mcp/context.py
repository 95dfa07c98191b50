"""Context writes what goes into the context of an agent: the description of `codemode.run`, with declarations within a
budget (Code Mode specification, section 4.4).

The text depends on the catalog, the budget and what the client has used before alone, byte for byte, so that a model's
prompt cache holds: what those tools gave is part of it, and taken once a day. Servers come in the order of the
configuration. Functions that do not fit are named, and their declarations are an MCP resource, a discovery call or a
first reference away (see `first_reference`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from cellblock.base.errors import first_few
from cellblock.serve.mcp.manual import IN_SCRIPTS, OPENING_CHARS, by_use, manual, opening, shares, tools_used
from cellblock.serve.service import RunService
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput, stated_output
from cellblock.types.typescript import HOW_TO_PARSE, JSON_TEXT, ServerText, bare, declare_shared, gives
from cellblock.types.typescript.text import one_line

RESOURCE_PREFIX: Final = "codemode://servers/"
RESOURCE_SUFFIX: Final = ".d.ts"

MAX_NAMES: Final = 100
"""Bounds the function names listed for a server beyond a budget."""

KEPT_TEXTS: Final = 128
"""Bounds the declarations kept of one server: by what clients are granted of it, and what it lists for each person."""

KEPT_SERVERS: Final = 64
"""Bounds the servers whose declarations are kept."""


SHOWN_CHARS: Final = {"claude-code": (((2, 1, 330), 4_096), ((0,), 2_048))}
"""Maps names of clients that cut a tool's description to the characters that they show since a version
(docs/clients.md)."""

SCRIPT_CHARS: Final = 100
"""Caps what is said of a kept script beside its types."""

LEARNT: Final = "What functions that you have used gave so far:"
"""Begins the lines of what servers have not declared, or left open."""

LEARNT_CHARS: Final = 1_500
"""Caps these lines."""

CUT_CHARS: Final = 48
"""Allows for the mark that a client puts where it cuts."""


Outputs = Mapping[tuple[str, str], ToolOutput]
"""Maps a server's id and a tool's name to what is known of the tool's output."""

NO_OUTPUTS: Final[Outputs] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Declared:
    """Holds what a client is told before it runs anything.

    Attributes:
        text: With declarations.
        whole: The functions that are declared whole, by the server's id.
        typed: The functions of other servers whose types are shown.
        outputs: What is shown of outputs that is not stated, by the server's id and the tool's name.
    """

    text: str
    whole: Mapping[str, Sequence[ToolEntry]] = field(default_factory=dict[str, Sequence[ToolEntry]])
    typed: Mapping[str, Sequence[ToolEntry]] = field(default_factory=dict[str, Sequence[ToolEntry]])
    outputs: Outputs = field(default_factory=dict[tuple[str, str], ToolOutput])


def shown_chars(name: str, version: str) -> int | None:
    """Returns the characters of a tool's description that a client shows its model; None: all, as far as is known."""
    own = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    return next((chars for since, chars in SHOWN_CHARS.get(name, ()) if own >= since), None)


def resource_uri(server_id: str) -> str:
    """Returns the URI of the resource with one server's whole declarations."""
    return f"{RESOURCE_PREFIX}{server_id}{RESOURCE_SUFFIX}"


def server_of_uri(uri: str) -> str | None:
    """Returns the server id in a resource URI, or None when it is no URI of ours."""
    if not uri.startswith(RESOURCE_PREFIX) or not uri.endswith(RESOURCE_SUFFIX):
        return None
    return uri[len(RESOURCE_PREFIX) : -len(RESOURCE_SUFFIX)]


@dataclass(frozen=True, slots=True)
class _Texts:
    server: ServerEntry
    text: ServerText
    whole: str
    whole_shared: str
    lines: Sequence[tuple[ToolEntry, str]]
    """Has the types of each function without comments, those first that a first script needs."""


_texts: Final[dict[str, list[_Texts]]] = {}


def _kept_texts(server: ServerEntry) -> _Texts | None:
    """Finds what was made for a server with these definitions; one that has only reconnected is the same."""
    held = _texts.get(server.server_id, [])
    known = next((one for one in held if one.server is server), None)
    for place, one in enumerate(held):
        if known is None and one.server == server:
            # The newer one is asked for from now on, and the other is not held.
            known = held[place] = replace(one, server=server)
    return known


def _make(server: ServerEntry) -> _Texts:
    tools = by_use(server.tools)
    text = ServerText(server, tools)
    lines = [(tool, _line(server, tool)) for tool in tools]
    made = _Texts(server, text, text.whole(shared=False), text.whole(shared=True), lines)
    if server.server_id not in _texts and len(_texts) >= KEPT_SERVERS:
        del _texts[next(iter(_texts))]
    _texts[server.server_id] = [made, *_texts.get(server.server_id, [])[: KEPT_TEXTS - 1]]
    return made


def _line(server: ServerEntry, tool: ToolEntry) -> str:
    text = "\n".join(bare(tool, stated_output(server, tool)))
    # The types of a kept script say little of what it does.
    said = one_line((tool.description or "").split(".")[0], SCRIPT_CHARS) if server.is_scripts else ""
    return f"{text} // {said}" if said else text


async def rendered_in_thread(catalog: Catalog) -> None:
    """Makes the declarations of servers that have none yet, in a thread: large ones would hold the loop."""
    if missing := [server for server in catalog.servers.values() if _kept_texts(server) is None]:
        await asyncio.to_thread(lambda: [_make(server) for server in missing])


def text_of(server: ServerEntry) -> str:
    """Returns the declarations of a server by what is stated, made once for the same definitions."""
    return (_kept_texts(server) or _make(server)).whole


def declarations_in_budget(catalog: Catalog, budget: int, used: Sequence[str] = ()) -> Declared:
    """Returns declarations of the servers within a budget; functions that have no room by name.

    Args:
        catalog: The servers to declare.
        budget: Characters that the declarations may take; the names of the rest come on top.
        used: What the client has used, see `UseLog.ranked`.
    """
    if not catalog.servers:
        return Declared(catalog.who_is_connected() if catalog.starting else "No server is connected.")

    made = {server_id: _kept_texts(server) or _make(server) for server_id, server in catalog.servers.items()}

    needs = {server_id: len(one.whole_shared) for server_id, one in made.items()}
    rooms = shares(needs, budget, used)
    whole: dict[str, Sequence[ToolEntry]] = {}
    texts: list[str] = []
    named: list[str] = []
    for server_id, server in catalog.servers.items():
        one = made[server_id]
        if rooms[server_id] == needs[server_id]:
            text, rest = one.whole_shared, list[str]()
        else:
            text, rest = one.text.within(rooms[server_id], shared=True)
            shown = first_few(rest, MAX_NAMES)
            named.append(f"- @codemode/servers/{server_id} ({resource_uri(server_id)}): {shown}")
        if text:
            texts.append(text)
            whole[server_id] = [tool for tool in server.tools if tool.export_name not in rest]
    lines: list[str] = []
    if texts:
        lines += ["```ts", declare_shared() + "\n" + "\n".join(texts).rstrip(), "```"]
    if named:
        lines += ["More functions; getTool(id, name) or searchTools give a declaration:", *named]
    return Declared("\n".join(lines), whole)


def types_in_budget(catalog: Catalog, budget: int, used: Sequence[str] = ()) -> Declared:
    """Returns types of functions in a line each within a budget, those that a first script needs first; the arguments
    are as for `declarations_in_budget`."""
    lines = {one: (_kept_texts(server) or _make(server)).lines for one, server in catalog.servers.items()}
    heads = {server_id: f"// @codemode/servers/{server_id}" for server_id in lines}
    needs = {
        server_id: len(heads[server_id]) + sum(len(line) + 1 for _, line in own) + 1
        for server_id, own in lines.items()
    }
    typed: dict[str, list[ToolEntry]] = {}
    parts: list[str] = []
    rooms = shares(needs, budget, used)
    for server_id, own in lines.items():
        left, texts = rooms[server_id] - len(heads[server_id]) - 1, list[str]()
        before = tools_used(used, server_id)
        for tool, line in sorted(own, key=lambda one: one[0].tool_name not in before):
            if len(line) + 1 <= left:
                left -= len(line) + 1
                texts.append(line)
                typed.setdefault(server_id, []).append(tool)
        parts += [heads[server_id], *texts] if texts else []
    return Declared("\n".join(parts), typed=typed)


def outputs_in_budget(catalog: Catalog, budget: int, outputs: Outputs) -> Declared:
    """Returns a line on what each function gives, after the types that it names; the first that have room."""
    budget -= len(LEARNT)
    lines: list[str] = []
    shown: dict[tuple[str, str], ToolOutput] = {}
    for (server_id, name), output in outputs.items():
        server = catalog.servers[server_id]
        line = gives(server, next(tool for tool in server.tools if tool.tool_name == name), output)
        if f"{JSON_TEXT}<" in line and HOW_TO_PARSE not in lines:
            line = f"{HOW_TO_PARSE}\n{line}"
        if len(line) + 1 <= budget:
            budget -= len(line) + 1
            lines += line.splitlines()
            shown[server_id, name] = output
    return Declared("\n".join([LEARNT, *lines]) if lines else "", outputs=shown)


def description(
    service: RunService,
    catalog: Catalog,
    principal: str,
    used: Sequence[str] = (),
    outputs: Outputs = NO_OUTPUTS,
    budget: int | None = None,
    chars: int | None = None,
) -> Declared:
    """Returns the description for a client that is shown a catalog, and what it declares.

    Args:
        service: The broker.
        catalog: What the client is granted.
        principal: Whose grants these are.
        used: What the client has used, see `UseLog.ranked`.
        outputs: What is known of outputs and not stated, in the order in which they have room.
        budget: Characters for declarations; None: as configured.
        chars: Characters of the description that the client shows; None: all. Of fewer than what is said, what a first
            script needs least is left out, and nothing is said of that.
    """
    settings = service.settings
    # Not by the catalog: that of a client without restrictions may be an older one, or a copy.
    named = None if service.policy.grants_of(principal) is None else catalog
    details = manual(settings, named)
    if chars is None:
        room = settings.cellblock.frontend.declaration_chars if budget is None else budget
        known = outputs_in_budget(catalog, min(LEARNT_CHARS, room), outputs)
        declared = declarations_in_budget(catalog, room - len(known.text), used)
        return _together(declared, known, opening(catalog, used=used), details, declared.text, known.text)
    room = chars - CUT_CHARS
    start = opening(catalog, min(room, OPENING_CHARS), IN_SCRIPTS, used)
    first, *rest = details.splitlines()
    room -= len(start) + 2
    kept = _that_fit([first], room)
    room -= len("\n".join(kept)) + 2
    known = outputs_in_budget(catalog, min(LEARNT_CHARS, room // 3), outputs)
    room -= len(known.text) + 2
    declared = types_in_budget(catalog, room, used)
    kept += _that_fit(rest, room - len(declared.text) - 2)
    return _together(declared, known, start, declared.text, known.text, "\n".join(kept))


def _together(declared: Declared, known: Declared, *texts: str) -> Declared:
    return replace(declared, text="\n\n".join(filter(None, texts)), outputs=known.outputs)


def _that_fit(lines: Sequence[str], room: int) -> list[str]:
    """Returns the lines that have room, whatever they are followed by."""
    kept: list[str] = []
    for line in lines:
        if len(line) + 1 <= room:
            room -= len(line) + 1
            kept.append(line)
    return kept
