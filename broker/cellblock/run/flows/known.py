"""Known says what tools are: by the policy and overlays, else by what is known of servers that many use, by their
packages and addresses, and of tools by their names.

A server chooses its tools' names and annotations itself: of those, only what makes a rule stricter counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from cellblock.base.settings.policy import FlowLabel, PolicySettings, Secrecy
from cellblock.base.settings.server import ServerConfig
from cellblock.run.flows.labels import (
    EVERYBODY,
    NOTHING,
    THE_PERSON,
    UNSAID,
    Audience,
    Label,
    Stated,
    audience_of,
)
from cellblock.run.policy.grants import effect_of, fits
from cellblock.tools.catalog.model import RequestEntry, ServerEntry, ToolEntry
from cellblock.tools.upstream.definitions import shown

Kind = Literal["mail", "issues", "chat", "web", "files", "database"]


@dataclass(frozen=True, slots=True)
class Known:
    """Says what servers of one kind are; all their results are untrusted.

    Args:
        secrecy: Who may know their results.
        reads: Who sees the arguments of calls that read.
        writes: Who sees those of all other calls.
    """

    secrecy: Audience
    reads: Audience
    writes: Audience


KINDS: Final[Mapping[Kind, Known]] = {
    "mail": Known(THE_PERSON, THE_PERSON, EVERYBODY),
    "issues": Known(THE_PERSON, THE_PERSON, EVERYBODY),
    "chat": Known(THE_PERSON, THE_PERSON, EVERYBODY),
    "web": Known(EVERYBODY, EVERYBODY, EVERYBODY),
    "files": Known(THE_PERSON, THE_PERSON, THE_PERSON),
    "database": Known(THE_PERSON, THE_PERSON, THE_PERSON),
}

UNKNOWN: Final = Known(THE_PERSON, EVERYBODY, EVERYBODY)

_PACKAGES: Final[Mapping[Kind, str]] = {
    "mail": "@gongrzhe/server-gmail-autoauth-mcp mcp-email-server @softeria/ms-365-mcp-server workspace-mcp",
    "issues": "@modelcontextprotocol/server-github github-mcp-server ghcr.io/github/github-mcp-server "
    "@modelcontextprotocol/server-gitlab mcp-atlassian api.githubcopilot.com mcp.linear.app mcp.atlassian.com "
    "mcp.asana.com mcp.notion.com",
    "chat": "@modelcontextprotocol/server-slack slack-mcp-server mcp.slack.com",
    "web": "mcp-server-fetch @modelcontextprotocol/server-brave-search @brave/brave-search-mcp-server tavily-mcp "
    "exa-mcp-server firecrawl-mcp mcp.exa.ai mcp.tavily.com",
    "files": "@modelcontextprotocol/server-filesystem rust-mcp-filesystem",
    "database": "@modelcontextprotocol/server-postgres mcp-server-sqlite postgres-mcp @benborla29/mcp-server-mysql",
}
"""Names packages, images and hosts. A name in the configuration is no sign: anybody's server may be called `files`."""

_BY_NAME: Final[Mapping[str, Kind]] = {
    name: kind for kind, names in _PACKAGES.items() for name in names.split()
}

_VERSION: Final = re.compile(r"(?<=.)(?:@[^/@]*|[=~<>]=.*|:[\w.-]+)$")

_READS: Final = re.compile(
    r"(?:get|list|read|search|find|query|count|show|describe|view|lookup|fetch)(?![a-z])"
)
_DESTROYS: Final = re.compile(
    r"(?<![a-z])(?:delete|remove|drop|destroy|purge|wipe|erase|truncate|overwrite|revoke|uninstall|kill|rm|unlink"
    r"|shred|clear|trash|reset|terminate)(?![a-z])"
)
_MAY: Final = re.compile(
    r"(?<![a-z])(?:run|exec|execute|eval|shell|bash|command|pay|transfer|purchase|buy)(?![a-z])"
)
"""Matches names of tools that do whatever they are told, or what cannot be undone."""

_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def kind_of(config: ServerConfig | None) -> Kind | None:
    """Returns the kind of a server, by its package, image or host; None where that is not known."""
    if config is None:
        return None
    if config.url is not None:
        return _BY_NAME.get(urlsplit(config.url).hostname or "")
    words = [config.command or "", *config.args]
    for word in words:
        name = PurePath(word).name if word[:1] == "/" else word
        if (kind := _BY_NAME.get(_VERSION.sub("", name))) is not None:
            return kind
    return None


def reads(tool: ToolEntry) -> bool:
    """Says whether a tool's name is that of one that reads."""
    return isinstance(tool, RequestEntry) or _READS.match(_lowered(tool)) is not None


def destroys(tool: ToolEntry, *, is_unknown: bool) -> bool:
    """Says whether a call may destroy something, by the user, else by the server's annotations and the tool's name,
    whichever is worse. Of a tool that is unknown, as nobody has said anything of it, every name may that does not
    read."""
    if tool.given is not None and tool.given.effect is not None:
        return tool.given.effect == "destructive"
    effect, name = effect_of(tool), _lowered(tool)
    if isinstance(tool, RequestEntry):
        return False
    return (
        effect == "destructive"
        or bool(_DESTROYS.search(name))
        or (effect is None and (bool(_MAY.search(name)) or (is_unknown and not reads(tool))))
    )


def _lowered(tool: ToolEntry) -> str:
    """Returns a tool's name with its words apart."""
    return _WORDS.sub("_", tool.tool_name).lower()


@dataclass(frozen=True)
class ToolFlow:
    """Says what a tool is.

    Args:
        stated: What the policy and an overlay say of its results.
        otherwise: What results are as far as nobody has said it.
        loosens: Whether its server's own labels count before `otherwise`.
        sink: Who sees what a call's arguments say.
        destructive: Whether a call may destroy something.
        said_by: Where the least certain of it comes from, for people.
        name: The tool's name, for people.
    """

    stated: Stated
    otherwise: Label
    loosens: bool
    sink: Audience
    destructive: bool
    said_by: str
    name: str

    def result(self, by_server: Stated = UNSAID) -> Label:
        """Returns the label of a result, of which its server has said something, too."""
        found = self.stated.or_else(by_server) if self.loosens else self.stated
        label = found.label(self.otherwise)
        return label | by_server.label(label)

    @cached_property
    def plain(self) -> Label:
        """Gives the label of a result of which its server says nothing."""
        return self.result()


def flow_of_tool(
    settings: PolicySettings, servers: Mapping[str, ServerConfig], server: ServerEntry, tool: ToolEntry
) -> ToolFlow:
    """Says what a tool is, of a server that may be one of the configuration's."""
    name = f"{server.server_id}.{shown(tool.tool_name)}"
    if server.is_scripts:
        # A script tells nobody anything but by its own calls, and its label is its run's.
        return ToolFlow(UNSAID, NOTHING, False, THE_PERSON, False, "kept scripts", name)
    # Those that say more of a name first.
    labels = sorted(settings.labels.items(), key=lambda one: -len(one[0].replace("*", "")))
    by_user = [label for pattern, label in labels if fits(pattern, server.server_id, tool)]
    overlay = None if tool.given is None else tool.given.flow
    if overlay is not None:
        by_user.append(overlay)
    kind = kind_of(servers.get(server.config_name))
    known = UNKNOWN if kind is None else KINDS[kind]
    sink: Secrecy | None = _first(by_user, "sink")
    secrecy: Secrecy | None = _first(by_user, "secrecy")
    destructive = _first(by_user, "destructive")
    trust = _first(by_user, "trust")
    source = "unlabelled" if kind is None else f"known as {kind}"
    if None not in (secrecy, trust, sink):
        source = "policy" if overlay is None else "policy or overlay"
    otherwise = known.reads if reads(tool) else known.writes
    is_unknown = not by_user and kind is None
    return ToolFlow(
        Stated(
            None if secrecy is None else (audience_of(secrecy),),
            None if trust is None else trust == "trusted",
        ),
        Label(known.secrecy, trusted=False),
        server.server_id in settings.trust_ifc,
        otherwise if sink is None else audience_of(sink),
        destroys(tool, is_unknown=is_unknown) if destructive is None else destructive,
        source,
        name,
    )


def _first(labels: Iterable[FlowLabel], name: str) -> Any:
    """Returns what the first of them says that says anything of this."""
    return next((value for label in labels if (value := getattr(label, name)) is not None), None)
