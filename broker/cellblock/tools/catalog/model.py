"""A catalog is an immutable snapshot of what is known about upstream servers and their tools. An output says what a
script gets from a tool, and who says so: given by the user, declared by the server, or observed.

A run holds one `Catalog` from its start to its end, so a change of an upstream's tool list can never be seen by a run
in flight (Code Mode specification, section 8.2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from cellblock.base.errors import first_few
from cellblock.base.settings.policy import FlowLabel
from cellblock.base.settings.sections import OF_PERSON

JsonSchema = Mapping[str, Any] | bool
"""Describes a JSON Schema document: an object, or one of the boolean schemas `True` and `False`."""


Effect = Literal["read", "write", "destructive"]

SCRIPTS: Final = "@codemode/scripts"
"""Names the kept scripts where servers have their names in a configuration: no path of a server is one of these."""

NO_SERVERS: Final = "No server is connected: the configuration (--config FILE) names them."

MAX_LISTED: Final = 30
"""Bounds the servers that a hint names; they end up in a model's context."""

Source = Literal["given", "declared", "observed"]

ResultKind = Literal["value", "json", "text", "result"]
"""Names what a script got: structured content or a Python value; a text that is a JSON object or array;
another text; the whole MCP result (Code Mode specification, section 5.3.2)."""

MCP_RESULT_SCHEMA: dict[str, Any] = {
    "title": "McpToolResult",
    "type": "object",
    "properties": {"content": {"type": "array", "items": {"type": "object"}}},
    "required": ["content"],
}


@dataclass(frozen=True, slots=True)
class Example:
    """An example is an input and what came of it, as JSON; `output` is None when it was left out."""

    input: Any
    output: Any = None


@dataclass(frozen=True, slots=True)
class Given:
    """Holds what the user has said of a tool in an overlay file.

    `output_schema` is of what a script gets; with `json_text`, of what `JSON.parse` makes of it. `retry`: a call of
    which it is not known whether it has run may be made again. `flow` says where its data may go.
    """

    output_schema: JsonSchema | None = None
    json_text: bool = False
    examples: tuple[Example, ...] = ()
    effect: Effect | None = None
    retry: bool = False
    flow: FlowLabel | None = None


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A tool entry describes one tool of one server, as the script sees it.

    `tool_name` is the canonical MCP name (any text an upstream chose), `export_name` the
    JavaScript identifier it is exported under (section 6.1). Schemas are the upstream's own
    JSON, untrusted and unvalidated.

    `parse_text` and `box` say how scripts get results where the configuration departs from section 5.3.2: a text that
    is a JSON object or array is parsed, and of structured content that is one property of this name its value is
    taken. `output_schema` is then already that of the value. Of an `exact` tool, integers that numbers of JavaScript
    cannot have come as bigints. `given` is what the user has said of the tool. `listed` holds its title, icons and
    `_meta` by the names of MCP, for clients in the profile `proxy`.
    """

    tool_name: str
    export_name: str
    description: str | None = None
    annotations: Mapping[str, Any] | None = None
    input_schema: JsonSchema | None = None
    output_schema: JsonSchema | None = None
    parse_text: bool = False
    box: str | None = None
    exact: bool = False
    given: Given | None = None
    asked: bool = False
    """Says whether the server's entry in the configuration wants the user asked before each call."""
    listed: Mapping[str, Any] = field(default_factory=dict[str, Any])


INTRODUCTION: Final = "its introduction"
"""Names what is pinned beside the tools: what a server says of itself."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """A withheld tool is one that a server lists and that scripts are not given.

    `name` is safe to show (an upstream's own text, shortened, without control characters), `export_name` what it
    would be exported under, `why` and `hint` whole sentences without a full stop and with one. One that is not
    `granted` is not counted either where tools are listed.
    """

    name: str
    export_name: str
    why: str
    hint: str
    granted: bool = True


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server entry describes one connected server: `server_id` is the normalised module path (section 5.0.1).

    `withheld` are tools that scripts are not given, `warnings` sentences for whoever runs Cellblock, and `unpinned`
    maps the names of offered tools that are not as pinned to what is different; `unapproved` says for a run what is not
    as pinned. `session` tells apart the sessions
    that servers of one name have had: a run in flight keeps the one that it began with. `other_kinds` names what it has
    beside tools and may give (`resources`, `prompts`), of which `revision` counts the changes that were noticed.
    `reads` is what a script's `readResource` calls; None where the server's entry leaves that out, or it has none.
    `learnt_as` names what its results teach: its `config_name`, and whose session it is where each person has one.
    `origin` is the fingerprint of its command or URL (`pins`).
    """

    server_id: str
    server_name: str
    config_name: str
    version: str | None = None
    description: str | None = None
    capabilities: tuple[str, ...] = ()
    tools: tuple[ToolEntry, ...] = ()
    by_export: Mapping[str, ToolEntry] = field(default_factory=dict[str, ToolEntry], compare=False)
    withheld: tuple[Withheld, ...] = ()
    warnings: tuple[str, ...] = ()
    unpinned: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    unapproved: tuple[str, ...] = field(default=(), compare=False)
    session: int = field(default=0, compare=False)
    other_kinds: tuple[str, ...] = ()
    revision: int = field(default=0, compare=False)
    reads: ToolEntry | None = None
    learnt_as: str = field(default="", compare=False)
    origin: str = field(default="", compare=False)
    _by_name: Mapping[str, ToolEntry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {tool.tool_name: tool for tool in reversed(self.callable)}
        object.__setattr__(self, "_by_name", by_name)
        if not self.learnt_as:
            object.__setattr__(self, "learnt_as", self.config_name)

    @property
    def is_scripts(self) -> bool:
        """Says whether it is the kept scripts."""
        return self.config_name == SCRIPTS

    @property
    def has_resources_alone(self) -> bool:
        """Says whether it has resources, and no tool at all."""
        return "resources" in self.capabilities and not self.tools and not self.withheld

    @property
    def left_out(self) -> int:
        """Counts the tools that are withheld."""
        return sum(one.name != INTRODUCTION for one in self.withheld)

    @property
    def callable(self) -> tuple[ToolEntry, ...]:
        """Lists what scripts may call: its tools, and what reads its resources."""
        return self.tools if self.reads is None else (*self.tools, self.reads)

    def tool(self, name: str) -> ToolEntry | None:
        """Gives what scripts may call by this name of the server's own."""
        return self._by_name.get(name)

    def withheld_as(self, name: str) -> Withheld | None:
        """Gives the tool of this name, or with this export name, that scripts are not given."""
        return next((tool for tool in self.withheld if name in (tool.name, tool.export_name)), None)


def learnt_as(name: str, person: str) -> str:
    """Names what results of a person's own server teach; of the user of this machine as of a shared one."""
    if not person:
        return name
    return f"{name}{OF_PERSON}{hashlib.sha256(person.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Catalog:
    """A catalog holds all connected servers at one moment, by `server_id`, in the order of the configuration.

    `unavailable` maps the `server_id` of a configured server that is not connected to a
    one-line reason that is safe to show to an agent. `denied` maps the `server_id` of a server that this run or client
    is granted no tool of to what can be done about it. `ids` maps the names in the configuration, those of servers
    that are not connected or not granted too, to the `server_id`. `starting` are the ids of servers whose first attempt
    to connect is not over: what `servers` has of one is as it was last known, which may be nothing. `wants` says of
    unavailable servers that whoever runs Cellblock must do something about what that is.
    `changing` are the ids of unavailable servers that are connected, and whose tools have changed. `logins` says of
    unavailable servers that want a login of whom the catalog is for, how to log in. `shut_out` are the ids of
    unavailable servers that did not take the credentials.
    """

    version: int = 0
    servers: Mapping[str, ServerEntry] = field(default_factory=dict[str, ServerEntry])
    unavailable: Mapping[str, str] = field(default_factory=dict[str, str])
    denied: Mapping[str, str] = field(default_factory=dict[str, str])
    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    starting: frozenset[str] = frozenset()
    wants: Mapping[str, str] = field(default_factory=dict[str, str])
    changing: frozenset[str] = frozenset()
    logins: Mapping[str, str] = field(default_factory=dict[str, str])
    shut_out: frozenset[str] = frozenset()

    @property
    def who_starts(self) -> list[str]:
        """Lists the ids of the servers that still start, in the order of the configuration."""
        return [server_id for server_id in self.ids.values() if server_id in self.starting]

    def who_is_connected(self) -> str:
        """Says which servers are connected, and which still start, for a hint; names `MAX_LISTED` of each."""
        connected = first_few([one for one in self.servers if one not in self.starting], MAX_LISTED)
        starting = first_few(self.who_starts, MAX_LISTED)
        if not starting:
            return f"Connected servers: {connected}." if connected else NO_SERVERS
        said = f"Connected servers: {connected}" if connected else "No server is connected yet"
        return f"{said}; still starting: {starting}."

    def who_is_lost(self) -> str:
        """Says which servers are not connected, and why, as a sentence that follows others; empty where all are."""
        lost = [f"{server_id} ({reason})" for server_id, reason in self.unavailable.items()]
        return f" Not connected: {first_few(lost, MAX_LISTED)}." if lost else ""

    def may_come(self, server_id: str) -> str:
        """Says whether an unavailable server may be there later, and what to do, for a hint."""
        if server_id in self.logins:
            return f"Do without it, or log in ({self.logins[server_id]}) and run the script again."
        if server_id in self.starting:
            return "Send the same script again: the server is still starting."
        if server_id in self.wants:
            return f"Do without it, or ask the user ({self.wants[server_id]})."
        if server_id in self.changing:
            return "Do without it, or run the script again in a moment."
        return "Do without it, or try again later; Cellblock reconnects by itself."

    def without(self, changing: frozenset[str], why: str) -> Catalog:
        """Gives the same catalog without servers that have not listed their changed tools in time."""
        if not changing:
            return self
        servers = {server_id: one for server_id, one in self.servers.items() if server_id not in changing}
        unavailable = {**self.unavailable, **dict.fromkeys(changing, why)}
        return replace(self, servers=servers, unavailable=unavailable, changing=changing)

    def as_starting(self, ids: frozenset[str]) -> Catalog:
        """Gives the same catalog with servers as they would be shown while they start, if these were their
        definitions."""
        unheard = {
            server_id: replace(server, version=None, capabilities=())
            for server_id, server in self.servers.items()
            if server_id in ids
        }
        return replace(self, servers={**self.servers, **unheard}, starting=self.starting | ids)

    def id_of(self, name: str) -> str:
        """Gives the `server_id` of a server by that or by its name in the configuration; an unknown name as it is."""
        if name in self.servers or name in self.unavailable or name in self.denied:
            return name
        named = (server.server_id for server in self.servers.values() if server.config_name == name)
        return next(named, self.ids.get(name, name))


Kind = Literal["resources", "resourceTemplates", "prompts"]
"""Names what a server lists beside tools, as the results of MCP's lists do."""

CAPABILITIES: Final[Mapping[Kind, str]] = {
    "resources": "resources",
    "resourceTemplates": "resources",
    "prompts": "prompts",
}


@dataclass(frozen=True, slots=True)
class RequestEntry(ToolEntry):
    """A request entry is called by its method: no tool can be one, whatever its name is.

    The result of one that is called `by_script` comes as the bytes that its server sent.
    """

    by_script: bool = False


READ: Final = RequestEntry(
    "resources/read",
    "resources/read",
    annotations={"readOnlyHint": True},
    input_schema={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
)
SUBSCRIBE: Final = RequestEntry("resources/subscribe", "resources/subscribe")
GET_PROMPT: Final = RequestEntry("prompts/get", "prompts/get")
COMPLETE: Final = RequestEntry("completion/complete", "completion/complete")

REQUESTS: Final = (READ, SUBSCRIBE, GET_PROMPT, COMPLETE)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Describes what a script gets from a tool: any of the parts that are there.

    Attributes:
        source: Who says so; the sources are never mixed.
        note: The same as one sentence for agents and people; safe text.
        schema: Of a plain value.
        document: Of what `JSON.parse` makes of a text that is always JSON.
        text: Whether it can be a text that is no JSON.
        result: Whether it can be a whole MCP result.
        samples: Results that were looked at, whatever the source of the schema.
        first_seen: Day of the first of them, as `2026-11-01`; None without any.
        last_seen: Day of the last.
        version: Counts the changes of what was observed.
        disagreement: How results did not fit what is declared or given, or None.
        sample: JSON of a result, where keeping it was asked for.
    """

    source: Source
    note: str
    schema: JsonSchema | None = None
    document: JsonSchema | None = None
    text: bool = False
    result: bool = False
    samples: int = 0
    first_seen: str | None = None
    last_seen: str | None = None
    version: int = 1
    disagreement: str | None = None
    sample: str | None = None

    def as_schema(self) -> JsonSchema:
        """Gives one JSON Schema for all parts. JSON in a text is said by `contentSchema`.

        A schema that the server declares stays as it is, with a `$comment` where results did not fit it; another has
        its provenance as its description.
        """
        if self.source == "declared" and self.schema is not None:
            if self.disagreement is None or isinstance(self.schema, bool):
                return self.schema
            return {**self.schema, "$comment": self.note}
        members: list[JsonSchema] = []
        if self.schema is not None:
            members.append(self.schema)
        if self.document is not None:
            members.append(
                {"type": "string", "contentMediaType": "application/json", "contentSchema": self.document}
            )
        if self.text:
            members.append({"type": "string"})
        if self.result:
            members.append(MCP_RESULT_SCHEMA)
        whole = members[0] if len(members) == 1 else {"anyOf": members}
        if isinstance(whole, bool):
            return {"description": self.note} if whole else {"description": self.note, "not": True}
        return {"description": self.note, **whole}

    def as_json(self) -> dict[str, Any]:
        """Gives the provenance as JSON, for discovery and `cellblock inspect`."""
        data: dict[str, Any] = {"source": self.source, "note": self.note}
        if self.samples:
            data |= {
                "samples": self.samples,
                "firstSeen": self.first_seen,
                "lastSeen": self.last_seen,
                "version": self.version,
            }
        if self.disagreement is not None:
            data["disagreement"] = self.disagreement
        if self.sample is not None:
            data["sample"] = self.sample
        return data


OutputLookup = Callable[[ServerEntry, ToolEntry], ToolOutput | None]
"""Gives what is known of a tool's output at the moment."""

OutputsOf = Callable[[str], OutputLookup]
"""Gives what a principal looks outputs up with: what one alone has shown is shown to that one."""


def nothing_observed(_server: ServerEntry, _tool: ToolEntry) -> None:
    """Looks up observations where there are none."""


def stated_of(_principal: str) -> OutputLookup:
    """Gives what is stated, to everybody."""
    return stated_output


def stated_output(_server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
    """Gives what is given or declared of a tool's output, and nothing that was observed: for text that must not change
    with use."""
    given = tool.given
    if given is not None and given.output_schema is not None:
        if given.json_text and not tool.parse_text:
            return ToolOutput("given", "Given by the user.", document=given.output_schema)
        return ToolOutput("given", "Given by the user.", schema=given.output_schema)
    if tool.output_schema is not None:
        return ToolOutput("declared", "Declared by the server.", schema=tool.output_schema)
    return None


def types_of(output: ToolOutput | None) -> object:
    """Returns what the types of an output depend on, not how often it was seen; None where nothing is known beyond what
    holds of all tools, which give texts."""
    if output is None:
        return None
    types = output.schema, output.document, output.result
    return (*types, output.text) if any(types) else None
