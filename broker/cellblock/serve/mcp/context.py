"""Context writes what goes into the context of an agent: the description of `codemode.run`, with declarations within a
budget (Code Mode specification, section 4.4).

The text depends on the catalog, the budget and what the client has used before alone, byte for byte, so that a model's
prompt cache holds. Servers come in the order of the configuration. Functions that do not fit are named, and their
declarations are an MCP resource, a discovery call or a first reference away (see `first_reference`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cellblock.base.errors import first_few
from cellblock.serve.mcp.manual import manual, opening
from cellblock.serve.service import RunService
from cellblock.tools.catalog.model import Catalog, ServerEntry
from cellblock.types.typescript import ServerText, declare_shared

RESOURCE_PREFIX: Final = "codemode://servers/"
RESOURCE_SUFFIX: Final = ".d.ts"

MAX_NAMES: Final = 100
"""Bounds the function names listed for a server beyond the budget."""

KEPT_TEXTS: Final = 8
"""Bounds the declarations kept of one server: by what clients are granted of it, and as it was before it changed."""

KEPT_SERVERS: Final = 1_024
"""Bounds the servers whose declarations are kept."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Holds declarations as a client is given them. `whole` has the ids of the servers that are declared whole."""

    text: str
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """Holds what there is room for of one server: declarations, empty where there are none, and the functions left
    out."""

    text: str
    rest: Sequence[str] = ()


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


_texts: Final[dict[str, list[_Texts]]] = {}


def _kept_texts(server: ServerEntry) -> _Texts | None:
    """Finds what was made for a server with these definitions; one that has only reconnected is the same."""
    held = _texts.get(server.server_id, [])
    for place, one in enumerate(held):
        if one.server is not server and one.server == server:
            # The newer one is asked for from now on, and the other is not held.
            held[place] = replace(one, server=server)
        if held[place].server is server:
            return held[place]
    return None


def _make(server: ServerEntry) -> _Texts:
    text = ServerText(server)
    made = _Texts(server, text, text.whole(shared=False), text.whole(shared=True))
    if server.server_id not in _texts and len(_texts) >= KEPT_SERVERS:
        del _texts[next(iter(_texts))]
    _texts[server.server_id] = [made, *_texts.get(server.server_id, [])[: KEPT_TEXTS - 1]]
    return made


async def made_beside(catalog: Catalog) -> None:
    """Makes the declarations of servers that have none yet, in a thread: large ones would hold the loop."""
    if missing := [server for server in catalog.servers.values() if _kept_texts(server) is None]:
        await asyncio.to_thread(lambda: [_make(server) for server in missing])


def text_of(server: ServerEntry) -> str:
    """Returns the declarations of a server by what is stated, made once for the same definitions."""
    return (_kept_texts(server) or _make(server)).whole


def shared_out(
    needs: Mapping[str, int], room: int, some: Callable[[str, int], Part], used: Sequence[str] = ()
) -> dict[str, Part | None]:
    """Shares a budget out among servers: what was used is whole, as far as it goes, the latest first; the others share
    what is left: whole where that is less than an equal share, else as much as the share has room for.

    Args:
        needs: Characters of each server's whole declarations, by id.
        room: Characters for all.
        some: A part of a server, within so many characters.
        used: Ids of servers, those that matter most first.

    Returns:
        For each server its part; None: all of it.
    """
    parts: dict[str, Part | None] = {}
    for server_id in used:
        if needs.get(server_id, room + 1) <= room:
            parts[server_id] = None
            room -= needs[server_id]
    rest = sorted((one for one in needs if one not in parts), key=lambda one: needs[one])
    for place, server_id in enumerate(rest):
        share = room // (len(rest) - place)
        part = None if needs[server_id] <= share else some(server_id, share)
        parts[server_id] = part
        room -= needs[server_id] if part is None else len(part.text)
    # A share that was too small for one function is left over.
    for server_id in rest:
        part = parts[server_id]
        if part is not None and needs[server_id] <= room + len(part.text):
            room -= needs[server_id] - len(part.text)
            parts[server_id] = None
    return parts


def declarations_in_budget(catalog: Catalog, budget: int, used: Sequence[str] = ()) -> Declared:
    """Returns declarations of the servers within a budget; functions that have no room by name.

    Args:
        catalog: The servers to declare.
        budget: Characters that the declarations may take; the names of the rest come on top.
        used: Ids of servers that the client has used, those that matter most first.
    """
    if not catalog.servers:
        return Declared(catalog.who_is_connected() if catalog.starting else "No server is connected.")

    made = {server_id: _kept_texts(server) or _make(server) for server_id, server in catalog.servers.items()}

    def some(server_id: str, room: int) -> Part:
        return Part(*made[server_id].text.within(room, shared=True))

    needs = {server_id: len(one.whole_shared) for server_id, one in made.items()}
    shares = shared_out(needs, budget, some, used)
    texts: list[str] = []
    named: list[str] = []
    for server_id, server in catalog.servers.items():
        part = shares[server_id]
        text = made[server_id].whole_shared if part is None else part.text
        if text:
            texts.append(text)
        if part is not None:
            named.append(_summary(server, part.rest))
    lines: list[str] = []
    if texts:
        lines += ["```ts", declare_shared() + "\n" + "\n".join(texts).rstrip(), "```"]
    if named:
        lines += ["More functions; getTool(id, name) or searchTools give a declaration:", *named]
    return Declared("\n".join(lines), frozenset(one for one, part in shares.items() if part is None))


def _summary(server: ServerEntry, names: Sequence[str]) -> str:
    shown = first_few(names, MAX_NAMES)
    return f"- @codemode/servers/{server.server_id} ({resource_uri(server.server_id)}): {shown}"


def description(
    service: RunService, catalog: Catalog, principal: str, used: Sequence[str] = (), budget: int | None = None
) -> Declared:
    """Returns the description for a client that is shown a catalog, and which servers it declares whole.

    Args:
        service: The broker.
        catalog: What the client is granted.
        principal: Whose grants these are.
        used: Ids of servers that the client has used, those that matter most first.
        budget: Characters for declarations; None: as configured.
    """
    config = service.front_config
    room = config.shown.declaration_chars if budget is None else budget
    declared = declarations_in_budget(catalog, room, used)
    # Not by the catalog: that of a client without restrictions may be an older one, or a copy.
    named = None if service.policy.grants_of(principal) is None else catalog
    details = manual(config, named)
    return Declared("\n\n".join([opening(catalog), details, declared.text]), declared.whole)
