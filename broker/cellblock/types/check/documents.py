"""Keeps the documents of a warm compiler: a script and its declarations, in a project for each of the two
languages."""

from __future__ import annotations

from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.types.check.session import CompilerSession, SessionLost
from cellblock.types.check.verdict import Complaint

_MAX_MEMBERS: Final = 500
_FIELD_KINDS: Final = (5, 10)
"""Holds `Field` and `Property` of the protocol's CompletionItemKind; data, not methods."""


class WarmSession:
    """Holds a session, and which text each of its documents has."""

    def __init__(self, session: CompilerSession) -> None:
        self.session = session
        self.checks = 0
        self._open: dict[str, str] = {}
        self._version = 0

    async def diagnostics(self, code: str, declarations: str, typescript: bool) -> list[Any]:
        """Gives the compiler's report on a script. Raises SessionLost."""
        self.checks += 1
        project = _project(typescript)
        self._put(f"{project}/types.d.ts", declarations)
        script = f"{project}/script.{project}"
        self._put(script, code)
        params = {"textDocument": {"uri": self._uri(script)}}
        report: object = await self.session.request("textDocument/diagnostic", params)
        items = report.get("items") if is_object(report) else None
        if not is_array(items):
            raise SessionLost("it gave no diagnostic report")
        return items

    async def members(self, complaint: Complaint, typescript: bool) -> list[str]:
        """Gives the names of what could stand where a member is that is not there, data before methods."""
        return [
            name for name in await self.names_at(complaint.position, typescript) if name != complaint.name
        ]

    async def names_at(self, position: tuple[int, int], typescript: bool) -> list[str]:
        """Gives the names of what could stand at a place, data before methods."""
        answer = await self._ask_at("textDocument/completion", position, typescript)
        items = answer.get("items") if is_object(answer) else None
        known = items[:_MAX_MEMBERS] if is_array(items) else []
        known.sort(key=lambda item: item.get("kind") not in _FIELD_KINDS)
        labels: list[object] = [item.get("label") for item in known]
        return [label.removesuffix("?")[:100] for label in labels if isinstance(label, str)]

    async def described_at(self, position: tuple[int, int], typescript: bool) -> str:
        """Gives what the compiler says of the name at a place, with its type."""
        return str(await self._ask_at("textDocument/hover", position, typescript))

    async def _ask_at(self, method: str, position: tuple[int, int], typescript: bool) -> object:
        project, (line, character) = _project(typescript), position
        document = {"uri": self._uri(f"{project}/script.{project}")}
        place = {"line": line, "character": character}
        return await self.session.request(method, {"textDocument": document, "position": place})

    def _put(self, name: str, text: str) -> None:
        """Opens a document, or replaces its text when that is another one."""
        held = self._open.get(name)
        if held == text:
            return
        self._open[name] = text
        self._version += 1
        document = {"uri": self._uri(name), "version": self._version}
        if held is None:
            document |= {
                "languageId": "javascript" if name.endswith(".js") else "typescript",
                "text": text,
            }
            self.session.notify("textDocument/didOpen", {"textDocument": document})
        else:
            changes = {"textDocument": document, "contentChanges": [{"text": text}]}
            self.session.notify("textDocument/didChange", changes)

    def _uri(self, name: str) -> str:
        return f"{self.session.workspace_uri}/{name}"


def _project(typescript: bool) -> str:
    return "ts" if typescript else "js"
