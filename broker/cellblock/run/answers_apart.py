"""Reads a large message of a server, in a process apart: what a script gets of it, and a small message in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import mcp_types as types
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from cellblock.base.json import is_object
from cellblock.base.offload.light import LIGHT_BYTES, containers_in
from cellblock.run import payload
from cellblock.run.unwrap import encoded, error_text, kind_of, unwrap
from cellblock.tools.catalog.requests import Kind
from cellblock.tools.upstream.incoming import (
    ASKS_TOO_MUCH,
    NO_PLACE,
    PASSED_ON,
    TOO_LARGE_START,
    VALUE_KEY,
    parse_message,
)
from cellblock.tools.upstream.lenience import soften_result, too_large_tool

ERROR_CHARS: Final = 64 * 1024
"""Bounds the characters kept of an error's text: more than a script is shown, since secrets are taken out on
the way."""

PAGE_BYTES: Final = LIGHT_BYTES // 2
PAGE_CONTAINERS: Final = 10_000
"""Bounds the containers of one page of a tool list; its tools are also checked one by one on the loop."""

Facts = dict[str, Any]
Lightened = tuple[Facts, Sequence[bytes]]

_passed_on: Final[dict[str, type[types.Result]]] = {
    "resources/read": types.ReadResourceResult,
    "prompts/get": types.GetPromptResult,
}
_answer: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


def lighten(facts: Facts, raw: bytes) -> Lightened:
    """Does the work of `upstream.heavy.READ_MESSAGE`. Nothing of a message is believed that the loop would not
    believe.

    Args:
        facts: `calls`: by the id of a request, what is set for the tool that it calls; `token`: stands for the value;
            `cursor`: begins the cursors of pages.
        raw: One JSON-RPC message.
    """
    message = parse_message(raw)
    if isinstance(message, types.JSONRPCResponse):
        form = facts["calls"].get(str(message.id))
        listed = ("tools",) if form is not None else ("tools", *get_args(Kind))
        of = next((key for key in listed if isinstance(message.result.get(key), list)), None)
        if of is not None:
            return _pages(message, of, facts["cursor"])
        if form is None:
            return _failed(message.id, NO_PLACE)
        parse_text, box, method = form
        if method is not None:
            return _passed(message, facts["token"], method)
        return _value(message, facts["token"], parse_text, box)
    if isinstance(message, types.JSONRPCError):
        text = message.error.message[:ERROR_CHARS]
        return {"what": "message"}, [_error(message.id, message.error.code, text)]
    if isinstance(message, types.JSONRPCRequest):
        text = "This request is larger than Cellblock takes from a server."
        return {"what": "request"}, [_error(message.id, types.INVALID_REQUEST, text)]
    return {"what": "nothing"}, []


def _value(message: types.JSONRPCResponse, token: str, parse_text: bool, box: str | None) -> Lightened:
    soften_result(message.result)
    try:
        result = _answer.validate_python(message.result, by_name=False)
    except ValidationError:
        # The SDK then says of the small message what it would have said of this.
        return {"what": "message"}, [_response(message.id, {"content": None})]
    if isinstance(result, types.InputRequiredResult):
        return _failed(message.id, ASKS_TOO_MUCH)
    known = {"resultType": message.result["resultType"]} if "resultType" in message.result else {}
    if result.is_error:
        content = [{"type": "text", "text": error_text(result)[:ERROR_CHARS]}]
        return {"what": "message"}, [_response(message.id, {**known, "content": content, "isError": True})]
    small = _response(message.id, {**known, "content": [], "_meta": {VALUE_KEY: token}})
    try:
        value = unwrap(result, server="", tool="", parse_text=parse_text, box=box)
        said, body = {"kind": kind_of(result, value)}, encoded(value)
    except payload.PayloadError as error:
        said, body = {"kind": "value", "no_form": str(error)}, b""
    return {"what": "value", "id": message.id, **said}, [small, body]


def _passed(message: types.JSONRPCResponse, token: str, method: str) -> Lightened:
    """Takes what is large out of a result that reaches a client as it is."""
    key = PASSED_ON[method]
    try:
        result = _passed_on[method].model_validate(message.result, by_name=False)
    except ValidationError:
        return {"what": "message"}, [_response(message.id, {key: None})]
    body = to_json(getattr(result, key), by_alias=True, exclude_none=True)
    rest = {name: message.result[name] for name in ("resultType",) if name in message.result}
    small = _response(message.id, {**rest, key: [], "_meta": {VALUE_KEY: token}})
    return {"what": "value", "id": message.id, "kind": "value"}, [small, body]


def _pages(message: types.JSONRPCResponse, of: str, cursor: str) -> Lightened:
    """Cuts a list into pages that are small enough for the loop."""
    pages: list[list[bytes]] = [[]]
    size = containers = 0
    tools: list[object] = message.result[of]
    for tool in tools:
        spelled = to_json(tool)
        found = containers_in(spelled)
        if len(spelled) > PAGE_BYTES or found > PAGE_CONTAINERS:
            name: object = tool.get("name") if is_object(tool) else None
            # Of other lists, what is no object is told as left out.
            spelled = to_json(too_large_tool(name, len(spelled))) if of == "tools" else b"null"
        if size + len(spelled) > PAGE_BYTES or containers + found > PAGE_CONTAINERS:
            pages.append([])
            size = containers = 0
        pages[-1].append(spelled)
        size += len(spelled)
        containers += found
    rest = {key: item for key, item in message.result.items() if key in ("resultType", "ttlMs", "cacheScope")}
    after: object = message.result.get("nextCursor")
    parts: list[bytes] = []
    for number, page in enumerate(pages, start=1):
        following = f"{cursor}-{number}" if number < len(pages) else after
        more = {**rest, "nextCursor": following} if isinstance(following, str) else rest
        # The tools are spelled already: they take the place of an empty list.
        shell = _response(message.id, {**more, of: []})
        place = b'"%s":[]' % of.encode()
        start, end = shell.rsplit(place, 1)
        parts.append(b"".join((start, place[:-1], b",".join(page), b"]", end)))
    return {"what": "pages", "of": of}, parts


def _failed(answers: int | str | None, why: str) -> Lightened:
    return {"what": "message"}, [_error(answers, types.INTERNAL_ERROR, TOO_LARGE_START + why)]


def _response(answers: int | str, result: dict[str, Any]) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": answers, "result": result})


def _error(answers: int | str | None, code: int, text: str) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": answers, "error": {"code": code, "message": text}})
