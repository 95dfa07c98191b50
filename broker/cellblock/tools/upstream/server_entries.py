"""Makes the catalog's entries of servers: what the review of their pins, their entry in the configuration and the caps
leave of their tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.catalog.model import CAPABILITIES, READ, ServerEntry, ToolEntry, Withheld
from cellblock.tools.catalog.naming import LOCAL_SERVER, export_names
from cellblock.tools.python.python_tools import PythonTool
from cellblock.tools.upstream.definitions import left_out
from cellblock.tools.upstream.pins import Reviewer, fingerprint

if TYPE_CHECKING:
    from cellblock.tools.upstream.listing import ServerFacts

Refine = Callable[[str, ToolEntry], ToolEntry]
"""Adds to a tool's entry what the configuration says of it; takes the server's name there."""


class ServerEntries:
    """Makes the entries of servers.

    Args:
        reviewer: Holds tools against their pins.
        refine: As above.
    """

    def __init__(self, reviewer: Reviewer, refine: Refine) -> None:
        self._reviewer, self._refine = reviewer, refine

    def of(self, name: str, config: ServerConfig, facts: ServerFacts, path: str) -> ServerEntry:
        """Makes the entry of a server, of no session.

        Args:
            name: Its name in the configuration.
            config: Its entry there.
            facts: What it is and lists.
            path: Its module path.
        """
        review = self._reviewer.review(name, config, facts.reviewed)
        # A new tool that is left out must not take the export name of one that a script knows.
        named = {tool.name for tool in review.offered if tool.name} | {
            tool.name for tool in facts.tools if tool.name in review.known
        }
        exports = export_names(named)
        offered = {tool.name: tool for tool in review.offered}
        is_known = "" in offered
        refused = {
            tool_name: key
            for tool_name, export in exports.items()
            if tool_name in offered and (key := config.refusal(tool_name, export)) is not None
        }
        tools = tuple(
            replace(
                self._refine(name, offered[tool_name].as_entry(export)),
                asked=config.asks_about(tool_name, export),
            )
            for tool_name, export in exports.items()
            if tool_name in offered and tool_name not in refused
        )
        # What a person's server has beside tools is none of the profile `proxy`'s.
        is_narrowed = bool(refused) or config.asks or config.is_personal
        return ServerEntry(
            server_id=path,
            server_name=(facts.name if is_known else None) or name,
            config_name=name,
            version=facts.version,
            description=facts.instructions if is_known else None,
            capabilities=facts.capabilities,
            tools=tools,
            by_export={tool.export_name: tool for tool in tools},
            withheld=(*review.withheld, *facts.left_out, *_switched_off(refused)),
            warnings=(*review.warnings, *facts.all_notes(), *_idle(config, facts, exports)),
            unpinned=review.differing,
            unapproved=review.warnings,
            other_kinds=() if is_narrowed else self._other_kinds(name, config, facts),
            reads=self._reads(name, config),
            origin=fingerprint(config),
        )

    def of_python(self, tools: Mapping[str, PythonTool], path: str) -> ServerEntry:
        """Makes the entry of the Python tools."""
        entries = tuple(
            self._refine(LOCAL_SERVER, tools[name].as_entry(export))
            for name, export in export_names(tools).items()
        )
        return ServerEntry(
            server_id=path,
            server_name=LOCAL_SERVER,
            config_name=LOCAL_SERVER,
            capabilities=("tools",),
            tools=entries,
            by_export={tool.export_name: tool for tool in entries},
        )

    def _other_kinds(self, name: str, config: ServerConfig, facts: ServerFacts) -> tuple[str, ...]:
        """Returns what a server has beside tools, where neither its entry nor a quarantine narrows it."""
        narrowed = config.enabled_tools not in (None, ["*"]) or config.disabled_tools
        if narrowed or self._reviewer.quarantines(name):
            return ()
        return tuple(one for one in facts.capabilities if one in CAPABILITIES.values())

    def _reads(self, name: str, config: ServerConfig) -> ToolEntry | None:
        """Returns what a script calls to read a resource, to which the entry's lists of tools apply as to a tool; with
        a quarantine none, as resources have no pins."""
        names = READ.tool_name, READ.export_name
        if self._reviewer.quarantines(name) or config.refusal(*names) is not None:
            return None
        return replace(READ, asked=config.asks_about(*names), by_script=True)


def _switched_off(refused: Mapping[str, str]) -> Iterator[Withheld]:
    """Yields what is said of tools that the server's entry leaves out."""
    for name, key in refused.items():
        hint = "Do without it, or let whoever runs Cellblock change the server's entry."
        yield replace(
            left_out(name, f"the server's entry in the configuration leaves it out ({key})", hint),
            granted=False,
        )


def _idle(config: ServerConfig, facts: ServerFacts, exports: Mapping[str, str]) -> list[str]:
    """Returns a warning for each name in the entry that is of no tool: a slip of the pen would restrict nothing."""
    tools = [(tool.name, exports.get(tool.name, tool.name)) for tool in facts.tools]
    tools += [(tool.name, tool.export_name) for tool in facts.left_out]
    if not tools:
        return []
    tools.append((READ.tool_name, READ.export_name))
    return [f"{text}, which is no tool of the server" for text in config.idle_names(tools)]
