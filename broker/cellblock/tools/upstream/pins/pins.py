"""Pins says what a person has approved: what a server's tool definitions were when they were first seen, or last
approved.

A server is its name and the fingerprint of its command or URL: another program under the same name is not compared
with the old one's pins, all its tools count as changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.definitions import ToolDefinition, canonical, digest


class Difference(Enum):
    """Says how a listed tool differs from its pin; the value is the end of a sentence about the tool."""

    CHANGED = "its definition has changed since it was pinned"
    NEW = "it is new since the server's tools were pinned"
    OTHER_SERVER = "it was pinned for another command or URL"


@dataclass(frozen=True, slots=True)
class Pins:
    """Holds all pins of one server.

    Attributes:
        origin: The fingerprint of its command or URL.
        tools: By name; those that it has had at any time, so that none comes back as another.
        gone: Names of those that it did not list any more when it was last seen.
    """

    origin: str
    tools: Mapping[str, ToolDefinition] = field(default_factory=dict[str, ToolDefinition])
    gone: frozenset[str] = frozenset()

    def differences(self, origin: str, tools: Iterable[ToolDefinition]) -> dict[str, Difference]:
        """Returns the listed tools that are not as pinned. A pinned tool that is not listed is no difference."""
        found: dict[str, Difference] = {}
        for tool in tools:
            pin = self.tools.get(tool.name)
            if origin != self.origin:
                found[tool.name] = Difference.OTHER_SERVER
            elif pin is None:
                found[tool.name] = Difference.NEW
            elif pin.digest != tool.digest:
                found[tool.name] = Difference.CHANGED
        return found

    def approving(self, origin: str, tools: Iterable[ToolDefinition]) -> Pins:
        """Returns the pins with these tools as they are now; pins of another command or URL are dropped."""
        kept = dict(self.tools) if origin == self.origin else {}
        pinned = {tool.name: tool for tool in tools}
        return Pins(origin, {**kept, **pinned}, self.gone & kept.keys() - pinned.keys())

    def seen(self, tools: Iterable[ToolDefinition], *, whole: bool = True) -> Pins:
        """Returns the same pins, of a server that lists these tools now; `whole` says whether they are all that it
        lists."""
        may_be_gone = self.tools.keys() if whole else self.gone
        return Pins(self.origin, self.tools, frozenset(may_be_gone - {tool.name for tool in tools}))

    def listed(self) -> dict[str, ToolDefinition]:
        """Returns the pins of tools that the server listed when it was last seen."""
        return {name: pin for name, pin in self.tools.items() if name not in self.gone}


def first_pins(origin: str, tools: Iterable[ToolDefinition]) -> Pins:
    """Pins tools at their first sight (trust on first use)."""
    return Pins(origin, {tool.name: tool for tool in tools})


def fingerprint(config: ServerConfig) -> str:
    """Says which program or address a server's configuration names, as a hash.

    Secrets are no part of it: a new key makes no new server, and the hash tells nobody anything about the old one.
    """
    redactor = Redactor(config)
    if config.url is not None:
        parts = urlsplit(config.url)
        host = parts.netloc.rpartition("@")[2].lower()
        identity: dict[str, Any] = {"url": redactor.text(f"{parts.scheme}://{host}{parts.path}")}
    else:
        arguments = [redactor.text(argument) for argument in config.args]
        identity = {"command": config.command, "args": arguments}
    return digest(canonical(identity))
