"""Gives `codemode.run` to agents that are no MCP clients: its definition for the APIs of models, and what a call of a
model gets.

The names, texts and bounds are those that MCP clients get.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from mcp_types import AudioContent, ImageContent

from cellblock.base.errors import InvalidRequest
from cellblock.run.policy.asking import Caller
from cellblock.run.response import RunResponse
from cellblock.run.results import Media
from cellblock.serve.mcp.context import declarations_in_budget, description, rendered_in_thread
from cellblock.serve.mcp.first_reference import FirstReferences
from cellblock.serve.mcp.surface import INPUT_SCHEMA
from cellblock.serve.mcp.tool_name import PLAIN_NAME, TOOL_NAME
from cellblock.serve.run_output import form_for, tool_result
from cellblock.serve.service import Owner, RunService
from cellblock.tools.catalog.model import Catalog

Api = Literal["mcp", "openai", "anthropic"]
"""Names whose tool definitions are meant: MCP's, OpenAI's Responses API, Anthropic's Messages API."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """Holds what a model's call of the tool gets.

    Attributes:
        text: For the model: the result and what it needs to know of the run, or what is wrong with the call. Words
            stand for images and sounds.
        is_error: Whether the call was malformed, or the script has failed.
        response: Of the run; None where the call was malformed and nothing ran.
        declarations: What the client had not been given of the servers that the script names, by their ids; it is in
            the text, too.
        media: The images and sounds of the result, in the order of the words.
    """

    text: str
    is_error: bool
    response: RunResponse | None = None
    declarations: Mapping[str, str] = field(default_factory=dict[str, str])
    media: tuple[Media, ...] = ()

    def content(self, api: Api) -> list[dict[str, Any]]:
        """Returns text and images as an API takes them for a call's result: `output` of OpenAI's
        `function_call_output`, `content` of Anthropic's `tool_result`, or of MCP's result, which has sounds, too.

        Raises:
            InvalidRequest: There is no such API.
        """
        _check(api)
        if api == "mcp":
            blocks = [{"type": one.type, "data": one.data, "mimeType": one.mime_type} for one in self.media]
            return [{"type": "text", "text": self.text}, *blocks]
        images = [one for one in self.media if one.type == "image"]
        if api == "openai":
            urls = [{"type": "input_image", "image_url": one.url} for one in images]
            return [{"type": "input_text", "text": self.text}, *urls]
        sources = [{"type": "base64", "media_type": one.mime_type, "data": one.data} for one in images]
        return [{"type": "text", "text": self.text}, *({"type": "image", "source": one} for one in sources)]


class AgentTool:
    """Gives the tool to the agents of one program.

    Args:
        service: Runs the scripts.
    """

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._references = FirstReferences(service)

    async def definition(
        self, api: Api, client: str, budget: int | None, chars: int | None = None
    ) -> dict[str, Any]:
        """Returns the tool's definition as an API takes it. Raises InvalidRequest for one that is not known."""
        _check(api)
        principal = self._service.policy.principal_of(client)
        catalog = await self._granted(principal)
        declared = description(self._service, catalog, principal, budget=budget, chars=chars)
        self._references.show(client, catalog, declared)
        schema = json.loads(json.dumps(INPUT_SCHEMA))
        if api == "openai":
            # Not strict: the limits and grants of a request are objects with keys that may be left out.
            return {
                "type": "function",
                "name": PLAIN_NAME,
                "description": declared.text,
                "parameters": schema,
                "strict": False,
            }
        if api == "anthropic":
            return {"name": PLAIN_NAME, "description": declared.text, "input_schema": schema}
        return {"name": TOOL_NAME, "description": declared.text, "inputSchema": schema}

    async def declarations(self, client: str, servers: Sequence[str] | None, budget: int | None) -> str:
        """Returns TypeScript declarations of what scripts can call, within a budget of characters.

        Raises:
            InvalidRequest: There is no such server, or its tools are not known.
        """
        catalog = await self._granted(self._service.policy.principal_of(client))
        if servers is not None:
            ids = [catalog.id_of(name) for name in servers]
            for server_id in ids:
                if server_id not in catalog.servers:
                    why = (
                        catalog.unavailable.get(server_id) or catalog.denied.get(server_id) or "there is none"
                    )
                    hint = catalog.who_is_connected()
                    raise InvalidRequest(
                        f"The tools of server {server_id!r} are not known: {why}.", hint=hint
                    )
            catalog = replace(catalog, servers={server_id: catalog.servers[server_id] for server_id in ids})
        chars = self._service.settings.cellblock.frontend.declaration_chars if budget is None else budget
        declared = declarations_in_budget(catalog, chars)
        self._references.show(client, catalog, declared)
        return declared.text

    async def answer(
        self, name: str, arguments: Mapping[str, Any] | str | None, caller: Caller
    ) -> ToolAnswer:
        """Carries a model's call to its answer: a malformed one gets the words for it, as MCP clients do.

        Raises:
            InvalidRequest: The tool is another one's.
        """
        if name not in (TOOL_NAME, PLAIN_NAME):
            raise InvalidRequest(
                f"{name!r} is no tool of Cellblock.", hint=f"Hand on only calls of {PLAIN_NAME}."
            )
        try:
            given: Any = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
        except (ValueError, RecursionError) as error:
            return ToolAnswer(
                f"The arguments are no JSON: {error}. Give an object with the script as `code`.", True
            )
        if isinstance(given, Mapping):
            # Models write null for what they leave out.
            given = {key: value for key, value in given.items() if value is not None}  # pyright: ignore[reportUnknownVariableType]
        try:
            response = await self._service.run_request(given, caller)
        except InvalidRequest as error:
            return ToolAnswer(str(error), True)
        request = cast("Mapping[str, object]", given)
        principal = caller.grantee.principal
        owner = Owner(principal, caller.client)
        declared = await self._references.declarations_for(
            owner, self._catalog(principal), response, request.get("code")
        )
        result = await tool_result(
            response,
            None,
            owner,
            declarations=declared,
            form=form_for(self._service.settings.cellblock.frontend, "", request.get("trace")),
        )
        texts = [block.text for block in result.content if block.type == "text"]
        media = [
            Media(block.type, block.mime_type, block.data)
            for block in result.content
            if isinstance(block, (ImageContent, AudioContent))
        ]
        return ToolAnswer("\n".join(texts), not response.ok, response.decoded(), declared, tuple(media))

    def _catalog(self, principal: str) -> Catalog:
        grants, known = self._service.policy.grants_of(principal), self._service.catalogs_of(principal)[1]
        return known if grants is None else grants.narrowed(known)

    async def _granted(self, principal: str) -> Catalog:
        await self._service.about_to_answer(principal)
        catalog = self._catalog(principal)
        await rendered_in_thread(catalog)
        return catalog


def _check(api: str) -> None:
    if api not in get_args(Api):
        hint = f"There are: {', '.join(get_args(Api))}."
        raise InvalidRequest(f"There is no API {api!r} here.", hint=hint)
