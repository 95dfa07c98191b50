"""Holds what a server answered to `tools/call`, field by field, as the bytes that came."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw
from pydantic_core import to_json

from cellblock.tools.upstream.wire.messages import SMALL_BYTES, decoded, fields_of, items_of

NULL = b"null"

_OF_PROTOCOL = frozenset(("resultType", "ttlMs", "cacheScope", "_meta"))

MOST_BLOCKS = 64
"""Bounds the blocks beside a value that are looked at."""


@dataclass(frozen=True, eq=False)
class ToolResult:
    """A tool's result, of a server or of a Python tool that gives MCP content.

    Attributes:
        body: The result object as JSON.
        notes: What was no JSON in it and is replaced, as sentences.
        null_is_value: Whether `structuredContent: null` is a value (MCP 2026-07-28) or as if absent.
    """

    body: bytes
    notes: tuple[str, ...] = ()
    null_is_value: bool = False

    @classmethod
    def of(cls, plain: dict[str, Any]) -> ToolResult:
        """Makes one of plain data, by the names of MCP."""
        return cls(to_json(plain))

    @cached_property
    def fields(self) -> dict[str, Raw]:
        """Gives the members of the result, undecoded."""
        return fields_of(self.body)

    def field(self, name: str) -> bytes | None:
        """Returns a member as JSON; None where it is absent or null."""
        raw = bytes(self.fields.get(name, b""))
        return None if raw in (b"", NULL) else raw

    @property
    def asks_for_input(self) -> bool:
        """Says whether it is no result yet (MCP 2026-07-28)."""
        return self.field("resultType") == b'"input_required"'

    @property
    def is_error(self) -> bool:
        """Says whether the tool answered with an error."""
        return self.field("isError") in (b"true", b'"true"', b"1")

    @property
    def structured(self) -> bytes | None:
        """Gives the structured content as JSON; None where there is none."""
        found = self.field("structuredContent")
        if found is None and self.null_is_value and "structuredContent" in self.fields:
            return NULL
        return found

    @cached_property
    def blocks(self) -> list[bytes]:
        """Gives the first blocks of content; a text or an object alone in the place of the list is one block."""
        content = self.field("content")
        if content is None:
            return []
        if content.startswith(b"["):
            return items_of(content)
        if content.startswith(b'"'):
            return [b'{"type":"text","text":%s}' % content]
        return [content]

    @property
    def only_text(self) -> bytes | None:
        """Gives the text of content that is one text block, as a JSON string; None where there is no such thing."""
        if len(self.blocks) != 1:
            return None
        return text_of(self.blocks[0])

    def said(self) -> str:
        """Gives what a result says that is an error: its texts, else its structured content; may be empty."""
        texts = [decoded(text) for block in self.blocks if (text := text_of(block)) is not None]
        text = "\n".join(texts).strip()
        structured = self.structured
        if text or structured is None:
            return text
        if len(structured) > SMALL_BYTES:
            return structured[:SMALL_BYTES].decode("utf-8", "ignore")
        return json.dumps(decoded(structured), ensure_ascii=False)

    def remarks(self) -> list[str]:
        """Says what a script that gets the value is not told by it: what was mended, and what stands beside it."""
        said = [*self.notes]
        if self.structured is not None:
            types = {
                bytes(fields_of(block).get("type", b'""'))
                for block in self.blocks[:MOST_BLOCKS]
                if block[:1] == b"{"
            }
            kinds = sorted(
                name for name in ("image", "audio", "resource") if b'"%s"' % name.encode() in types
            )
            if kinds:
                what = f"Beside its value the tool gave what scripts do not get: {', '.join(kinds)}."
                said.append(f'{what} The whole comes with `frontend.profile` at "proxy".')
        return said

    def whole(self) -> bytes:
        """Gives the result as its server sent it, as JSON, without what is of the protocol alone."""
        kept = {
            key: value for key, value in self.fields.items() if key != "resultType" and bytes(value) != NULL
        }
        if self.structured == NULL:
            kept["structuredContent"] = Raw(NULL)
        kept = {"content": Raw(b"[]"), "isError": Raw(b"false")} | kept
        return msgspec.json.encode(kept)

    def plain(self) -> dict[str, Any]:
        """Gives the result as data."""
        return msgspec.json.decode(self.whole())


@dataclass(frozen=True, slots=True)
class ResourceResult:
    """Holds what a server answered to `resources/read`, as JSON."""

    body: bytes

    def for_script(self) -> tuple[bytes, bool]:
        """Gives, as JSON, the text of a resource that is one text, and else the result with its contents as a list;
        and whether it is that text."""
        fields = {key: value for key, value in fields_of(self.body).items() if key not in _OF_PROTOCOL}
        found = bytes(fields.get("contents", b"[]"))
        if found.startswith(b"{"):
            found = b"[%s]" % found
        contents = items_of(found) if found.startswith(b"[") else []
        if len(contents) == 1 and contents[0].startswith(b"{"):
            text = bytes(fields_of(contents[0]).get("text", NULL))
            if text.startswith(b'"'):
                return text, True
        return msgspec.json.encode({**fields, "contents": [Raw(item) for item in contents]}), False


def text_of(block: bytes) -> bytes | None:
    """Returns the text of a text block as a JSON string; None of another block."""
    if not block.startswith(b"{"):
        return None
    fields = fields_of(block)
    text = bytes(fields.get("text", b""))
    if bytes(fields.get("type", b"")) != b'"text"' or not text:
        return None
    return b'""' if text == NULL else text if text.startswith(b'"') else to_json(text.decode())
