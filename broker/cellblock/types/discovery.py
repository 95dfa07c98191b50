"""Answers `@codemode/discovery` from one catalog (Code Mode specification, section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Literal

from cellblock.base.errors import ScriptError, ServerNotFound, ToolNotFound, shorten
from cellblock.base.json import is_array, is_object
from cellblock.base.kept import KeptByIdentity
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.tools.catalog.model import (
    Catalog,
    JsonSchema,
    OutputLookup,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    stated_output,
)
from cellblock.types.search import SearchHit, SearchIndex
from cellblock.types.typescript import ServerText, signature

Detail = Literal["name", "description", "full"]
DETAILS: Final = ("name", "description", "full")
DEFAULT_DETAIL: Final = "description"

Operation = Literal["listServers", "describeServer", "listTools", "getTool", "searchTools", "describe"]

DEFAULT_SEARCH_LIMIT: Final = 10
MAX_SEARCH_LIMIT: Final = 100

RESOURCES_ALONE: Final = "It has resources and no tools: readResource(serverId, uri) reads one."

KEPT_CATALOGS: Final = 8
"""Bounds the catalogs whose search index and encoded definitions are kept."""

SIGNATURE_CHARS: Final = 240
"""Caps a function's line of TypeScript in the results of a search."""

STEP_TOOLS: Final = 10
"""Bounds the functions that are declared at a time: some milliseconds."""

STEP_BYTES: Final = 64 * 1024
"""Bounds the bytes of definitions that are encoded at a time: a millisecond or two."""


class Discovery:
    """Answers requests over one catalog; the search index is built at its first search."""

    def __init__(self, catalog: Catalog, outputs: OutputLookup = stated_output) -> None:
        self._catalog = catalog
        self._outputs = outputs
        self._index = list[SearchIndex]()
        self._encoded: dict[tuple[str, str, Detail], tuple[ToolOutput | None, bytes]] = {}

    def shown(self, outputs: OutputLookup) -> Discovery:
        """Gives the same to someone who knows these outputs; index and encoded definitions are shared."""
        made = Discovery(self._catalog, outputs)
        made._index, made._encoded = self._index, self._encoded
        return made

    def encoded(
        self, operation: Operation, arguments: list[Any], encode: Callable[[Any], bytes]
    ) -> Generator[None, None, bytes]:
        """Gives the JSON of the answer to one request of a script, in steps between which others may have their turn.

        Args:
            operation: What is asked.
            arguments: What the script passed, as JSON.
            encode: Writes JSON.

        Raises:
            ScriptError: An argument is wrong.
            ServerNotFound: No such server is connected.
            ToolNotFound: The server has no such tool.
        """
        answer: Any
        match operation:
            case "listServers":
                answer = [server_info(server) for server in self._catalog.servers.values()]
            case "describeServer":
                answer = describe_server(self._server(_text(arguments, 0, "serverId")))
            case "listTools":
                return (yield from self._listed(arguments, encode))
            case "getTool":
                server = self._server(_text(arguments, 0, "serverId"))
                answer = self._definition(server, self._tool(server, _text(arguments, 1, "toolName")), "full")
            case "describe":
                texts: list[str] = []
                for text in self._described(arguments):
                    texts.append(text)
                    yield
                answer = "\n".join(texts)
            case "searchTools":
                if not self._index:
                    self._index.append((yield from SearchIndex.in_steps(self._catalog)))
                answer = self.search(_text(arguments, 0, "query"), _options(arguments, 1))
        return encode(answer)

    def _listed(self, arguments: list[Any], encode: Callable[[Any], bytes]) -> Generator[None, None, bytes]:
        """Gives a list of tools, put together from definitions that were encoded once for this catalog and what is
        known of their outputs."""
        server, detail = self._server(_text(arguments, 0, "serverId")), _detail(_options(arguments, 1))
        definitions: list[bytes] = []
        fresh = 0
        for tool in server.tools:
            output = self._outputs(server, tool) if detail == "full" else None
            key = (server.server_id, tool.export_name, detail)
            held = self._encoded.get(key)
            if held is None or held[0] != output:
                held = self._encoded[key] = (output, encode(tool_definition(tool, detail, output)))
                fresh += len(held[1])
            definitions.append(held[1])
            if fresh > STEP_BYTES:
                fresh = 0
                yield
        return b"[" + b",".join(definitions) + b"]"

    def search(self, query: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Answers `searchTools` (sections 4.2.5 and 4.2.7). Raises as `encoded`."""
        detail = _detail(options)
        server_id: object = options.get("serverId")
        if server_id is not None:
            if not isinstance(server_id, str):
                raise ScriptError("options.serverId is no string.", hint="Give a server id of listServers().")
            self._server(server_id)
        limit: object = options.get("limit", DEFAULT_SEARCH_LIMIT)
        if isinstance(limit, float) and limit.is_integer():
            limit = int(limit)
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ScriptError("options.limit is no positive integer.", hint="Give a limit of 1 or more.")
        results = [
            {"serverId": hit.server.server_id, **self._definition(hit.server, hit.tool, detail)}
            | ({} if detail == "name" else {"signature": self._signature(hit)})
            for hit in self.hits(query, server_id, limit)
        ]
        return {"query": query, "results": results}

    def hits(self, query: str, server_id: str | None, limit: int) -> Sequence[SearchHit]:
        """Finds the tools for a query, best first; of one server alone, if it is named."""
        if not self._index:
            self._index.append(SearchIndex(self._catalog))
        return self._index[0].search(query, server_id=server_id, limit=min(limit, MAX_SEARCH_LIMIT))

    def _signature(self, hit: SearchHit) -> str:
        return signature(hit.tool, self._outputs(hit.server, hit.tool), SIGNATURE_CHARS)

    def _described(self, arguments: list[Any]) -> Generator[str]:
        """Gives the declarations of a server's functions, some at a time. Raises as `encoded`."""
        server = self._server(_text(arguments, 0, "serverId"))
        given: object = arguments[1] if len(arguments) > 1 else None
        names = [given] if isinstance(given, str) else given
        if names is None:
            tools = list(server.tools)
        elif is_array(names) and all(isinstance(name, str) for name in names):
            tools = [self._tool(server, name) for name in names]
        else:
            raise ScriptError("functions is no array of names.", hint='Pass names as ["one", "other"].')
        for start in range(0, max(1, len(tools)), STEP_TOOLS):
            some = tools[start : start + STEP_TOOLS]
            yield ServerText(server, some, self._outputs, meta=names is None and start == 0).whole()

    def _definition(self, server: ServerEntry, tool: ToolEntry, detail: Detail) -> dict[str, Any]:
        return tool_definition(tool, detail, self._outputs(server, tool) if detail == "full" else None)

    def _server(self, server_id: str) -> ServerEntry:
        server = self._catalog.servers.get(server_id)
        if server is not None:
            return server
        named = shorten(server_id)
        reason = self._catalog.unavailable.get(server_id)
        if reason is not None:
            raise ServerNotFound(
                f"Server {server_id} is not connected: {reason}.",
                hint=self._catalog.may_come(server_id),
                serverId=server_id,
            )
        if server_id in self._catalog.denied:
            raise ServerNotFound(
                f"Server {server_id} is not granted to this client.",
                hint=self._catalog.denied[server_id],
                serverId=server_id,
            )
        known = self._catalog
        near = nearest_names(server_id, known.servers, 1)
        others = known.who_is_connected() if known.starting else "Use a server id of listServers()."
        raise ServerNotFound(f"There is no server {named}.", hint=did_you_mean(near, others), serverId=named)

    def _tool(self, server: ServerEntry, name: str) -> ToolEntry:
        for tool in server.tools:
            if tool.tool_name == name:
                return tool
        if name in server.by_export:
            return server.by_export[name]
        withheld = server.withheld_as(name)
        if withheld is not None:
            raise ToolNotFound(
                f"The tool {withheld.name} of {server.server_id} is left out: {withheld.why}.",
                hint=withheld.hint,
                serverId=server.server_id,
                toolName=name,
            )
        near = nearest_names(name, [tool.tool_name for tool in server.tools], 1)
        raise ToolNotFound(
            f"Server {server.server_id} has no tool {shorten(name)}.",
            hint=did_you_mean(near, "Use a tool name of listTools()."),
            serverId=server.server_id,
            toolName=shorten(name),
        )


class DiscoveryCache(KeptByIdentity[Catalog, Discovery]):
    """Keeps the `Discovery` of the catalogs used last, so that their indexes are built once.

    There is one of all tools, and one for each set of tools that a client is granted.
    """

    def __init__(self) -> None:
        super().__init__(Discovery, KEPT_CATALOGS)


def server_info(server: ServerEntry) -> dict[str, Any]:
    """Makes a `ServerInfo` (section 4.2.1)."""
    info: dict[str, Any] = {"serverId": server.server_id, "serverName": server.server_name}
    if server.capabilities:
        info["capabilities"] = list(server.capabilities)
    return info


def describe_server(server: ServerEntry) -> dict[str, Any]:
    """Makes a `ServerDescription` (section 4.2.2)."""
    description = server_info(server)
    about = [server.description] if server.description else []
    if server.has_resources_alone:
        about.append(RESOURCES_ALONE)
    if about:
        description["description"] = "\n".join(about)
    if server.version:
        description["version"] = server.version
    return description


def tool_definition(tool: ToolEntry, detail: Detail, output: ToolOutput | None = None) -> dict[str, Any]:
    """Makes a `ToolDefinition` with the fields of a detail level (section 4.3); an output schema that is not the
    server's own says so in its description."""
    definition: dict[str, Any] = {"toolName": tool.tool_name, "exportName": tool.export_name}
    if detail == "name":
        return definition
    if tool.description is not None:
        definition["description"] = tool.description
    if tool.annotations:
        definition["annotations"] = dict(tool.annotations)
    if detail == "full":
        if tool.input_schema is not None:
            definition["inputSchema"] = tool.input_schema
        if output is not None:
            definition["outputSchema"] = _with_examples(output.as_schema(), tool)
    return definition


def _with_examples(schema: JsonSchema, tool: ToolEntry) -> JsonSchema:
    """Gives the schema with the outputs that the user has given as examples, where JSON Schema has them."""
    given = tool.given.examples if tool.given is not None else ()
    outputs = [example.output for example in given if example.output is not None]
    if not outputs or isinstance(schema, bool):
        return schema
    return {**schema, "examples": outputs}


def _text(arguments: list[Any], index: int, name: str) -> str:
    value: object = arguments[index] if index < len(arguments) else None
    if not isinstance(value, str):
        raise ScriptError(f"{name} is missing or no string.", hint=f"Pass {name} as a string.")
    return value


def _options(arguments: list[Any], index: int) -> Mapping[str, Any]:
    value: object = arguments[index] if index < len(arguments) else None
    if value is None:
        return {}
    if not is_object(value):
        raise ScriptError("The options are no object.", hint='Pass options as { detail: "name" }.')
    return value


def _detail(options: Mapping[str, Any]) -> Detail:
    detail: object = options.get("detail", DEFAULT_DETAIL)
    if detail not in DETAILS:
        given = (
            json.dumps(shorten(detail, 50), ensure_ascii=False) if isinstance(detail, str) else "no string"
        )
        raise ScriptError(
            f"options.detail is {'null' if detail is None else given}.",
            hint='Use "name", "description" or "full" as detail.',
        )
    return detail
