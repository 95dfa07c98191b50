"""Known says what is known of servers that many use, by their packages and addresses, and of tools by their names.

A server chooses its tools' names and annotations itself: of those, only what makes a rule stricter counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal
from urllib.parse import urlsplit

from cellblock.base.settings.server import ServerConfig
from cellblock.run.flows.labels import EVERYBODY, THE_PERSON, Audience
from cellblock.run.policy.grants import effect_of
from cellblock.tools.catalog.model import RequestEntry, ToolEntry

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
