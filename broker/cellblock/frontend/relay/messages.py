"""Knows what the relay needs of a message: its kind, its id, and what HTTP wants beside it as headers."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from cellblock.base.json import is_object
from cellblock.frontend.misread import NO_UTF8, Misread, id_of, misread_line, misread_message

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"

NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Maps methods to the parameter that is sent as a header too."""

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_SAFE: Final = re.compile(r"(?!=\?base64\?.*\?=$)(?:[!-~](?:[ -~]*[!-~])?)?")


class Kind(Enum):
    """Names the kinds of messages."""

    REQUEST = auto()
    NOTIFICATION = auto()
    ANSWER = auto()


class Message(NamedTuple):
    """Holds a message, and the JSON that it came as."""

    kind: Kind
    body: dict[str, Any]
    raw: bytes

    @property
    def id(self) -> int | str | None:
        """Gives the message's id; None for a notification."""
        return None if self.kind is Kind.NOTIFICATION else id_of(self.body)

    @property
    def method(self) -> str:
        """Gives the message's method; empty for an answer."""
        return "" if self.kind is Kind.ANSWER else self.body["method"]

    @property
    def params(self) -> dict[str, Any]:
        """Gives the message's parameters; none of an answer."""
        return {} if self.kind is Kind.ANSWER else self.body.get("params") or {}

    @property
    def version(self) -> str | None:
        """Gives the protocol version that a message says itself, as modern requests do."""
        meta: Any = self.params.get("_meta")
        found = meta.get(_VERSION_KEY) if is_object(meta) else None
        return found if isinstance(found, str) else None

    def headers(self) -> dict[str, str]:
        """Returns the headers that a modern message wants beside it; none for others."""
        version = self.version
        if version is None:
            return {}
        headers = {VERSION_HEADER: _as_header(version), METHOD_HEADER: _as_header(self.method)}
        name = self.params.get(NAMED_BY.get(self.method, ""))
        if isinstance(name, str):
            headers[NAME_HEADER] = _as_header(name)
        return headers

    def as_line(self) -> bytes:
        """Returns the message as one line."""
        # JSON has line ends between its parts only.
        return self.raw if b"\n" not in self.raw and b"\r" not in self.raw else encoded(self.body)

    def answering(self, request_id: int | str) -> bytes:
        """Returns the message with this id, as one line."""
        return self.as_line() if self.id == request_id else encoded({**self.body, "id": request_id})


def message_of_line(line: bytes) -> Message | Misread | None:
    """Returns the message that a client's line is, or what it is to be told instead; None for nothing."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return misread_line(line.decode("utf-8", "replace"), NO_UTF8)
    if not text.strip():
        return None
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        return misread_line(text, str(error))
    return _of_data(data, line.strip()) or misread_message(data)


def message_of(raw: bytes) -> Message | None:
    """Reads a message of the daemon; None for what is none."""
    try:
        return _of_data(json.loads(raw.decode()), raw)
    except (ValueError, RecursionError):
        return None


def encoded(body: Mapping[str, Any]) -> bytes:
    """Returns a message as one line."""
    # With escapes, since half an emoji has no UTF-8.
    return json.dumps(body, separators=(",", ":")).encode()


# ---- inside ------------------------------------------------------------------------------------------


def _of_data(data: object, raw: bytes) -> Message | None:
    if not is_object(data):
        return None
    kind = _kind_of(data) if data.get("jsonrpc") == "2.0" else None
    return None if kind is None else Message(kind, data, raw)


def _kind_of(body: dict[str, Any]) -> Kind | None:
    if isinstance(body.get("method"), str):
        if not isinstance(body.get("params"), dict | None):
            return None
        return Kind.NOTIFICATION if id_of(body) is None else Kind.REQUEST
    if is_object(body.get("result")):
        return None if id_of(body) is None else Kind.ANSWER
    error: Any = body.get("error")
    known = "id" in body and (body["id"] is None or id_of(body) is not None)
    if not known or not is_object(error):
        return None
    worded = isinstance(error.get("code"), int) and isinstance(error.get("message"), str)
    return Kind.ANSWER if worded else None


def _as_header(value: str) -> str:
    """Returns a header's value, in the protocol's way for what headers cannot have."""
    if _SAFE.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="
