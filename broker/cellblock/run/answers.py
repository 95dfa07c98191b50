"""Notes what the tools of one run have answered, to tell afterwards whether the types that its script was checked
against are true."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.catalog.outputs import ResultKind, ToolOutput

MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Bounds the bytes of answers that one run keeps until its end, to look for fields in them; they are not copied."""


_NUMBER: Final = re.compile(rb"-?\d{1,30}(?:\.\d{1,30})?")

What = Literal["json text", "text", "value"]
"""Names what a script has got; a value is anything that is no text."""


class Answers:
    """Keeps notes of one run's answers.

    Args:
        keeps: Whether fields will be looked for in them.
        on_text: Is called when a tool has answered with a text for the first time.
    """

    def __init__(self, keeps: bool, on_text: Callable[[], None] = lambda: None) -> None:
        self._on_text = on_text
        self._kinds: dict[tuple[str, str], set[What]] = {}
        self._bodies: list[bytes] | None = [] if keeps else None
        self._bytes = 0

    def add(self, server_id: str, tool: str, kind: ResultKind, body: bytes) -> None:
        """Notes one successful answer, as the script got it."""
        kinds, what = self._kinds.setdefault((server_id, tool), set()), _what(kind, body)
        is_new = what not in kinds
        kinds.add(what)
        if self._bodies is not None:
            self._bytes += len(body)
            if self._bytes > MAX_KEPT_BYTES:
                self._bodies = None
            else:
                self._bodies.append(body)
        if is_new and what != "value":
            self._on_text()

    def may_have(self, field: str) -> bool:
        """Says whether an answer has a field of this name, or may have: they were too large to keep."""
        if self._bodies is None:
            return bool(self._kinds)
        # JSON in a text has its quotes behind backslashes, JSON in that has more of them.
        written = {json.dumps(field, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (True, False)}
        found = re.compile(rb'"(?:%s)\\*"' % b"|".join(re.escape(one) for one in sorted(written)))
        return any(found.search(body) for body in self._bodies)

    def holds_numbers(self, field: str) -> bool:
        """Says whether all texts of the fields of this name are numbers, which are ordered otherwise than texts."""
        name = re.escape(json.dumps(field)[1:-1].encode())
        text = re.compile(rb'"%s\\*"\s*:\s*\\*"([^"\\]*)' % name)
        found = [number for body in self._bodies or () for number in text.findall(body)]
        wholes = {len(number.partition(b".")[0]) for number in found}
        are_alike = len(wholes) < 2 and not any(b"." in number for number in found)
        return not are_alike and all(map(_NUMBER.fullmatch, found))

    def may_say(self, text: str) -> bool:
        """Says whether an answer has such characters, or may have."""
        return self._bodies is None or any(text.encode() in body for body in self._bodies)

    def may_be_text(self, tool: tuple[str, str] | None) -> bool:
        """Says whether a tool may have answered JSON in a text, as far as this run knows: it gave no value. None is any
        tool of those that were called."""
        if tool is None:
            return not self._kinds or any("json text" in kinds for kinds in self._kinds.values())
        return "value" not in self._kinds.get(tool, ())

    def texts(self) -> list[tuple[str, str]]:
        """Gives the tools that have answered JSON in a text each time, by the server's id and the tool's name."""
        return [tool for tool, kinds in self._kinds.items() if kinds == {"json text"}]

    def unlike(
        self, assumed: Iterable[tuple[ServerEntry, ToolEntry, ToolOutput | None]]
    ) -> Mapping[tuple[str, str], ToolOutput]:
        """Gives what tools have given that is a text where something else was assumed, or nothing was known.

        Args:
            assumed: What the script was checked against.
        """
        found: dict[tuple[str, str], ToolOutput] = {}
        for server, tool, output in assumed:
            key = server.server_id, tool.tool_name
            kinds = self._kinds.get(key)
            known_as_text = output is not None and (output.document is not None or output.text)
            if kinds and "value" not in kinds and not known_as_text:
                found[key] = as_text(output, is_json=kinds == {"json text"})
        return found


def _what(kind: ResultKind, body: bytes) -> What:
    if kind != "text":
        return "value"
    # A JSON string that is an object or an array by its ends; who learns of results parses it.
    return "json text" if (body[1:2], body[-2:-1]) in ((b"{", b"}"), (b"[", b"]")) else "text"


def as_text(output: ToolOutput | None, *, is_json: bool) -> ToolOutput:
    """Describes what a tool gives that was thought to give a value, or of which nothing was known."""
    if not is_json:
        return ToolOutput("observed", "A text, in this run.", text=True)
    inner = output.schema if output is not None and output.schema is not None else True
    return ToolOutput("observed", "JSON text, in this run.", document=inner)
