"""Reads what servers list and say of themselves, field by field: what is odd is mended, dropped or passed on as it is,
alone, with a note. What the SDK is handed is small and fits its models. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from cellblock.base.json import is_array, is_object
from cellblock.tools.schemas.document import BELOW_ONE, IN_PLACE_LIST, IN_PLACE_ONE, MAPS
from cellblock.tools.upstream.wire.messages import MOST_ITEMS, decoded, fields_of, items_of

OLD_REVISION: Final = "2025-03-26"
"""Is taken where a server does not say its revision, or one that nobody knows, as MCP does for requests over HTTP."""

PASSED_ON: Final = {"resources/read": "contents", "prompts/get": "messages"}
"""Maps the requests whose results may be large, and reach a client as they are, to what is large in them."""

CARRIED: Final = "cellblock/carried"
"""Names, in the `_meta` of what the SDK is handed, what belongs to it; a server's own `_meta` is not handed on."""


@dataclass(slots=True)
class Page:
    """Holds one page of a list.

    Attributes:
        items: As JSON.
        cursor: Of the page that follows; None for the last.
        notes: What was odd, as sentences.
    """

    items: list[bytes]
    cursor: str | None = None
    notes: list[str] = field(default_factory=list[str])


def page(fields: Mapping[str, Raw], key: str) -> Page:
    """Reads one page of a list, from a result's members; what is no list of it is an empty page."""
    raw = bytes(fields.get(key, b""))
    made = Page([])
    if raw.startswith(b"["):
        made.items = items_of(raw)
    elif raw.startswith(b"{"):
        # PHP writes a list that has lost an item as an object; others have the names as keys.
        members = [*fields_of(raw).items()][:MOST_ITEMS]
        made.items = [_named(name, bytes(item)) for name, item in members]
        if made.items:
            made.notes.append(f"Its list of {key} is an object; its members were taken.")
    elif raw:
        made.notes.append(f"Its list of {key} is no list.")
    said = bytes(fields.get("nextCursor", b"null"))
    cursor: object = decoded(said)
    if isinstance(cursor, int | float) and not isinstance(cursor, bool):
        cursor = said.decode()
        made.notes.append(f"Its cursor {cursor} is a number; it is sent back as a text.")
    if isinstance(cursor, str):
        made.cursor = cursor or None
    elif cursor not in (None, False, [], {}):
        made.notes.append("Its cursor is no text; what may follow is not read.")
    return made


def _named(name: str, item: bytes) -> bytes:
    return msgspec.json.encode({"name": name} | fields_of(item)) if item.startswith(b"{") else item


def member(body: bytes, name: str) -> Any:
    """Returns a small member of an object; None where there is no such thing."""
    try:
        raw = bytes(fields_of(body).get(name, b""))
    except (msgspec.DecodeError, RecursionError):
        return None
    return msgspec.json.decode(raw) if 0 < len(raw) <= 4_096 else None


def carried(meta: object) -> bytes | None:
    """Returns the result that is passed on as it came; None where nothing is."""
    # A server may use the name, and send no bytes.
    found = meta.get(CARRIED) if is_object(meta) else None
    return found if isinstance(found, bytes) else None


def greeting(result: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Mends the result of `initialize`."""
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS  # as `definitions` has its icons

    said: object = result.get("protocolVersion")
    if said not in HANDSHAKE_PROTOCOL_VERSIONS:
        notes.append(f"Its revision of MCP is none that is known; {OLD_REVISION} is taken.")
        said = OLD_REVISION
    return {
        "protocolVersion": said,
        "capabilities": capabilities(result.get("capabilities"), notes),
        "serverInfo": _info(result.get("serverInfo"), notes),
        **_instructions(result.get("instructions"), notes),
    }


def older_revision(message: str, data: object) -> str | None:
    """Returns the newest revision that a server names where it refuses its greeting: some refuse what they do not know
    in the place of saying what they do."""
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS  # as above

    said = f"{message} {data}"
    return max((one for one in HANDSHAKE_PROTOCOL_VERSIONS[:-1] if one in said), default=None)


def discovery(result: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Mends the result of `server/discover`; what says no versions is left as it is."""
    from mcp_types import SERVER_INFO_META_KEY  # as `definitions` has its icons

    versions: object = result.get("supportedVersions")
    if not is_array(versions):
        return result
    meta: object = result.get("_meta")
    info: object = meta.get(SERVER_INFO_META_KEY) if is_object(meta) else None
    ttl: object = result.get("ttlMs")
    scope: object = result.get("cacheScope")
    return {
        "resultType": "complete",
        "supportedVersions": [one for one in versions if isinstance(one, str)],
        "capabilities": capabilities(result.get("capabilities"), notes),
        "ttlMs": max(0, int(ttl)) if isinstance(ttl, int | float) else 0,
        "cacheScope": scope if scope in ("public", "private") else "private",
        **({"_meta": {SERVER_INFO_META_KEY: _info(info, notes)}} if info is not None else {}),
        **_instructions(result.get("instructions"), notes),
    }


def capabilities(said: object, notes: list[str]) -> dict[str, Any]:
    """Mends a server's capabilities: one that is no object is there where it is true, or PHP's empty object."""
    given = said if is_object(said) else {}
    known = {
        name: _features(value) if is_object(value) else {}
        for name, value in given.items()
        if is_object(value) or value is True or value == []
    }
    odd = [name for name, value in given.items() if not is_object(value) and value not in (None, False)]
    if odd:
        named = ", ".join(name[:_MOST_NAME] for name in odd[:_MOST_ODD])
        notes.append(f"Of its capabilities some are no objects: {named}.")
    known.pop("tasks", None)
    if not known.keys() & _LISTED:
        known["tools"] = {}
        notes.append("It says nothing of what it lists; tools are asked for.")
    return known


def _features(said: dict[str, Any]) -> dict[str, Any]:
    """Returns what a capability says of itself, as far as it is something."""
    return {
        key: one if is_object(one) else bool(one)
        for key, one in said.items()
        if is_object(one) or (one is not None and key in ("listChanged", "subscribe"))
    }


_MOST_NAME: Final = 60
_MOST_ODD: Final = 5
"""Bound what a note names of a server's capabilities."""

_LISTED: Final = frozenset({"tools", "resources", "prompts"})


def _info(said: object, notes: list[str]) -> dict[str, Any]:
    known = said if is_object(said) else {}
    made = {"name": _text(known.get("name")) or "", "version": _text(known.get("version")) or ""}
    if not isinstance(known.get("name"), str) or not isinstance(known.get("version"), str):
        notes.append("It does not say its name and version as texts.")
    title = known.get("title")
    return made | ({"title": title} if isinstance(title, str) else {})


def _instructions(said: object, notes: list[str]) -> dict[str, Any]:
    if said is None or isinstance(said, str):
        return {"instructions": said} if said else {}
    notes.append("Its instructions are no text.")
    if is_array(said) and (lines := [line for line in said if isinstance(line, str)]):
        return {"instructions": "\n".join(lines)}
    return {}


def log_message(params: Mapping[str, Any]) -> dict[str, Any]:
    """Mends a log message: a level that MCP does not know is the one that it begins like."""
    level = str(params.get("level", "")).lower()
    logger = params.get("logger")
    return {
        "level": next((one for one in _LEVELS if level and one.startswith(level[:4])), "info"),
        "data": params.get("data", params.get("message")),
        **({"logger": logger} if isinstance(logger, str) else {}),
    }


_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def asked(params: Mapping[str, Any]) -> dict[str, Any]:
    """Mends the parameters of a server's request: what is null is as if absent, and a form has fields."""
    made = _there(params)
    if is_object(form := made.get("requestedSchema")):
        fields = form.get("properties")
        given = fields if is_object(fields) else {}
        known = {name: _there(one) for name, one in given.items() if is_object(one)}
        made["requestedSchema"] = {**_there(schema(form)), "type": "object", "properties": known}
    return made


def _there(members: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}


def calls_tasks(said: object) -> bool:
    """Says whether a server with these capabilities runs a tool as a task (MCP 2025-11-25)."""
    for name in ("tasks", "requests", "tools", "call"):
        said = said.get(name) if is_object(said) else None
    return said is not None and said is not False


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# ---- schemas -----------------------------------------------------------------------------------------

_OF_SCHEMAS: Final = MAPS.keys() - {"dependencies"}
_SCHEMAS: Final = IN_PLACE_LIST | {"prefixItems"}
_SCHEMA: Final = IN_PLACE_ONE | BELOW_ONE
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def schema(given: Any) -> Any:
    """Mends a schema: what no schema may be (`properties: []`, `required: {}`, a text where a schema belongs) is mended
    alone. Returns an equal one where nothing was odd. Recursive: cap the depth first."""
    if not is_object(given):
        return given
    made: dict[str, Any] = {}
    for key, value in given.items():
        if key in _OF_SCHEMAS:
            made[key] = {name: _one(item) for name, item in value.items()} if is_object(value) else {}
        elif key in _SCHEMAS:
            if is_array(value) and value:
                made[key] = [_one(item) for item in value]
        elif key in _SCHEMA:
            made[key] = _one(value)
        elif key == "required":
            names = [name for name in value if isinstance(name, str)] if is_array(value) else []
            if names or value == []:
                made[key] = names
        elif key != "$schema" or isinstance(value, str):
            made[key] = value
    return made


def _one(value: Any) -> Any:
    """Mends what stands where a schema belongs: a type's name is that type, anything else is any value."""
    if is_object(value):
        return schema(value)
    # A list of schemas is what `items` had before 2020-12.
    is_list = is_array(value) and value and all(isinstance(item, dict | bool) for item in value)
    if isinstance(value, bool) or is_list:
        return value
    return {"type": value} if isinstance(value, str) and value in _TYPES else {}
