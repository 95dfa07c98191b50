"""Decides which tools a run has: the grant of its client, and the request's own, which can only take away from it.

A run's grants are layers, and a tool must be granted by each of them. So one more layer never widens anything, whatever
is in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from cellblock.base.errors import InvalidRequest, shorten
from cellblock.base.settings.policy import EXACTLY, Grant
from cellblock.base.visible import visible
from cellblock.tools.catalog.model import (
    READ,
    REQUESTS,
    Catalog,
    Effect,
    ServerEntry,
    ToolEntry,
    Withheld,
)

if TYPE_CHECKING:
    from cellblock.tools.schemas.validation import Allowance, InputValidator


def effect_of(tool: ToolEntry) -> Effect | None:
    """Returns the class that the user gives a tool, else what its server's annotations say; None when neither says
    anything.

    Where annotations contradict each other the worse one counts. A tool that says it is not read-only, and no more,
    is destructive: that is MCP's default for `destructiveHint`.
    """
    if tool.given is not None and tool.given.effect is not None:
        return tool.given.effect
    hints = tool.annotations or {}
    destroys, reads = hints.get("destructiveHint"), hints.get("readOnlyHint")
    if destroys is True:
        return "destructive"
    if reads is True:
        return "read"
    if destroys is False:
        return "write"
    return "destructive" if reads is False else None


def fits(pattern: str, server_id: str, tool: ToolEntry) -> bool:
    """Says whether a pattern fits this tool. A server's id has no dot, so the first one ends it."""
    if pattern == "*":
        return True
    if pattern.startswith(EXACTLY):
        return pattern[1:] == f"{server_id}.{tool.tool_name}"
    server, _, name = pattern.partition(".")
    return glob(server, server_id) and (glob(name, tool.tool_name) or glob(name, tool.export_name))


def may_fit_server(pattern: str, server_id: str) -> bool:
    """Says whether a pattern could be of a tool of this server, whichever tools it has."""
    server = pattern.partition(".")[0]
    if server.startswith(EXACTLY):
        return server[1:] == server_id
    return pattern == "*" or glob(server, server_id)


def any_fits(patterns: Iterable[str], server_id: str, tool: ToolEntry) -> bool:
    return any(fits(pattern, server_id, tool) for pattern in patterns)


def glob(pattern: str, text: str) -> bool:
    """Says whether a whole text fits a pattern. Takes time linear in the text, for each `*` that it reaches at most:
    requests bring patterns of their own."""
    parts = _parts(pattern)
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first == text
    if not text.startswith(first):
        return False
    at = len(first)
    for part in parts[1:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - at >= len(last) and text.endswith(last)


@lru_cache(maxsize=2_000)
def _parts(pattern: str) -> tuple[str, ...]:
    """Returns what stands before, between and behind the stars of a pattern; stars in a row are one."""
    first, *rest = pattern.split("*")
    return (first, *(part for part in rest[:-1] if part), rest[-1]) if rest else (first,)


PREPARE_SECONDS: Final = 0.1
"""Bounds the CPU time for compiling the schemas of one request; the last of them may take as long again. Ordinary ones
take less than a millisecond each."""


class Refusal(NamedTuple):
    """Says why a tool is not there: a sentence without its full stop, and what can be done."""

    why: str
    hint: str


_OF_CLIENT: Final = "Do without it, or let whoever runs Cellblock grant it in cellblock.policy."
_OF_REQUEST: Final = "Widen `grants` in the request, if the script needs it."


_DOES: Final = {"write": "write", "destructive": "destroy data"}


class Layer:
    """A layer is one grant, ready to be asked.

    Args:
        grant: What is granted.
        of_request: Whether a request has brought it; else it is in the configuration.

    Raises:
        InvalidRequest: A JSON Schema of it cannot be checked against, or a request's take too long to compile.
    """

    def __init__(self, grant: Grant, *, of_request: bool) -> None:
        until = time.thread_time() + PREPARE_SECONDS if of_request else math.inf
        self.grant = grant
        self._whose, self._allows = (
            ("the request's own grants do", "the request's own grants allow")
            if of_request
            else ("the policy for this client does", "the policy for this client allows")
        )
        self.hint = _OF_REQUEST if of_request else _OF_CLIENT
        self._schemas: list[tuple[str, InputValidator]] = []
        for pattern, schema in grant.arguments.items():
            if time.thread_time() > until:
                raise InvalidRequest(
                    "The schemas in `grants.arguments` take too long to compile.",
                    hint="Give fewer or simpler schemas, above all fewer patterns with counts or Unicode classes.",
                )
            # A client is greeted before there is need of it, and it takes a while to import.
            from cellblock.tools.schemas.document import why_unrestricting
            from cellblock.tools.schemas.validation import InputValidator

            validator = InputValidator(schema, label=f"the policy for {pattern}", strict=True)
            why_not = "" if validator.is_checking else validator.why_not
            if why_not := why_not or why_unrestricting(schema):
                raise InvalidRequest(
                    f"The schema that the policy has for the arguments of {pattern} cannot be used: {why_not}.",
                    hint="Correct it; it must be a JSON Schema without remote references.",
                )
            self._schemas.append((pattern, validator))

    def may_reach(self, server_id: str) -> bool:
        """Says whether any tool of a server could be granted."""
        tools = self.grant.tools
        return tools is None or any(may_fit_server(pattern, server_id) for pattern in tools)

    def refusal(self, server_id: str, tool: ToolEntry) -> Refusal | None:
        """Says why a tool is not granted; None when it is."""
        grant = self.grant
        if grant.tools is not None and not any_fits(grant.tools, server_id, tool):
            return Refusal(f"{self._whose} not grant it", self.hint)
        effect = effect_of(tool)
        if grant.read_only and effect != "read":
            what = "not known to be one" if effect is None else f"known to {_DOES[effect]}"
            return Refusal(f"{self._allows} only read-only tools, and this one is {what}", self.hint)
        if grant.destructive == "deny" and effect == "destructive":
            return Refusal(f"{self._whose} not grant tools that destroy data", self.hint)
        return None

    def asks_about(self, server_id: str, tool: ToolEntry) -> bool:
        if self.grant.destructive == "approve" and effect_of(tool) == "destructive":
            return True
        return any_fits(self.grant.approve, server_id, tool)

    def budgets(self, server_id: str, tool: ToolEntry) -> Iterator[tuple[str, int]]:
        """Yields the budgets that a call of a tool counts for: pattern and number of calls."""
        return (
            (pattern, most) for pattern, most in self.grant.budgets.items() if fits(pattern, server_id, tool)
        )

    def violation(self, server_id: str, tool: ToolEntry, arguments: Any, allowance: Allowance) -> str | None:
        """Says what is wrong with an input; None when it is granted. All layers of a call share one `allowance`."""
        for pattern, validator in self._schemas:
            if (
                fits(pattern, server_id, tool)
                and (found := validator.check(arguments, allowance)) is not None
            ):
                return found.sentence
        return None


class Grants:
    """Holds all layers of one client, or of one request of it; `asks` says that tools may want a question by
    themselves."""

    def __init__(self, layers: tuple[Layer, ...], *, asks: bool = False) -> None:
        self.layers = layers
        self._asks = asks
        # As long as somebody has the catalog: each person may have one.
        self._catalogs: dict[int, tuple[ref[Catalog], Catalog]] = {}
        self._entries: dict[str, tuple[ServerEntry, ServerEntry | str]] = {}
        self._whole: dict[str, tuple[ServerEntry, bool]] = {}

    @property
    def may_ask(self) -> bool:
        return self._asks or any(
            layer.grant.approve or layer.grant.destructive == "approve" for layer in self.layers
        )

    def refusal(self, server_id: str, tool: ToolEntry) -> Refusal | None:
        """Says why a tool is not granted; None when it is."""
        refusals = (layer.refusal(server_id, tool) for layer in self.layers)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def narrowed(self, catalog: Catalog) -> Catalog:
        """Returns the catalog without what is not granted: those tools are withheld, and servers without any are
        denied."""
        held = self._catalogs.get(id(catalog))
        if held is not None and held[0]() is catalog:
            return held[1]
        servers: dict[str, ServerEntry] = {}
        denied: dict[str, str] = {}
        for server_id, server in catalog.servers.items():
            entry = self._entry(server)
            if isinstance(entry, str):
                denied[server_id] = entry
            else:
                servers[server_id] = entry
        unavailable: dict[str, str] = {}
        for server_id, reason in catalog.unavailable.items():
            blocking = next((layer for layer in self.layers if not layer.may_reach(server_id)), None)
            if blocking is None:
                unavailable[server_id] = reason
            else:
                denied[server_id] = blocking.hint
        made = Catalog(
            catalog.version,
            servers,
            unavailable,
            {**catalog.denied, **denied},
            catalog.ids,
            catalog.starting & {*servers, *unavailable},
            {one: what for one, what in catalog.wants.items() if one in unavailable},
            catalog.changing & unavailable.keys(),
            {one: how for one, how in catalog.logins.items() if one in unavailable},
        )
        self._catalogs[id(catalog)] = ref(catalog, partial(_gone, self._catalogs, id(catalog))), made
        return made

    def narrowed_by(self, grant: Grant) -> Grants:
        """Returns these grants with one more layer, which a script brings. Raises InvalidRequest as `Layer`."""
        return Grants((*self.layers, Layer(grant, of_request=True)), asks=self._asks)

    def gives_whole(self, server: ServerEntry) -> bool:
        """Says whether nothing of a server is withheld, asked about, or restricted in its inputs: only then what it has
        beside tools goes by no rule.

        Args:
            server: As it is in the catalog, not narrowed.
        """
        held = self._whole.get(server.server_id)
        if held is None or held[0] is not server:
            held = self._whole[server.server_id] = server, self._is_whole(server)
        return held[1]

    # ---- inside --------------------------------------------------------------------------------------

    def _gives_resources(self, server: ServerEntry) -> bool:
        has = server.reads is not None and "resources" in server.capabilities
        return has and self.refusal(server.server_id, READ) is None

    def _is_whole(self, server: ServerEntry) -> bool:
        server_id, everything = server.server_id, (*server.tools, *REQUESTS)
        return not any(
            layer.refusal(server_id, one)
            or layer.asks_about(server_id, one)
            or any_fits(layer.grant.arguments, server_id, one)
            for layer in self.layers
            for one in everything
        )

    def _entry(self, server: ServerEntry) -> ServerEntry | str:
        """Returns what is granted of a server, or what can be done where that is nothing."""
        held = self._entries.get(server.server_id)
        if held is not None and held[0] is server:
            return held[1]
        made = self._made(server)
        self._entries[server.server_id] = (server, made)
        return made

    def _made(self, server: ServerEntry) -> ServerEntry | str:
        refused = {
            tool.tool_name: refusal
            for tool in server.tools
            if (refusal := self.refusal(server.server_id, tool)) is not None
        }
        if not refused and (server.tools or all(layer.may_reach(server.server_id) for layer in self.layers)):
            return server
        if len(refused) == len(server.tools) and not self._gives_resources(server):
            # The request's own grants are what its sender can change.
            of_request = any(refusal.hint == _OF_REQUEST for refusal in refused.values())
            return _OF_REQUEST if of_request else _OF_CLIENT
        tools = tuple(tool for tool in server.tools if tool.tool_name not in refused)
        withheld = tuple(
            Withheld(_shown(tool.tool_name), tool.export_name, *refused[tool.tool_name], granted=False)
            for tool in server.tools
            if tool.tool_name in refused
        )
        return replace(
            server,
            tools=tools,
            by_export={tool.export_name: tool for tool in tools},
            withheld=(*server.withheld, *withheld),
        )


UNRESTRICTED: Final = Grants(())
"""Takes nothing away from what a run may call."""


def _gone(catalogs: dict[int, Any], key: int, _catalog: object) -> None:
    catalogs.pop(key, None)


def _shown(name: str) -> str:
    """Returns a tool's name as it may be shown: an upstream chose it."""
    return shorten(visible(name))
