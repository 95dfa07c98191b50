"""Requests of MCP 2026-07-28, each on a connection of its own: those of a client without sessions."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.http_daemon import MCP_HEADERS, TOOL, Daemon, said

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
TASKS: dict[str, Any] = {**FORMS, "extensions": {f"{PREFIX}tasks": {}}}


def message(method: str, request_id: int | None = None, **params: Any) -> bytes:
    """A request, or a notification."""
    whole: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(whole if request_id is None else {**whole, "id": request_id}).encode()


def request(
    served: Daemon, method: str, about: str | None, able: Mapping[str, Any], **params: Any
) -> tuple[dict[str, str], bytes]:
    """The headers and the body of one request; `about` is the tool, or the task, that it is about."""
    meta = {f"{PREFIX}protocolVersion": VERSION, f"{PREFIX}clientCapabilities": able}
    routing = {"MCP-Protocol-Version": VERSION, "Mcp-Method": method}
    if about is not None:
        routing["Mcp-Name"] = about
    return {**MCP_HEADERS, **served.auth, **routing}, message(method, 1, **params, _meta=meta)


async def ask(
    served: Daemon, method: str, about: str | None, able: Mapping[str, Any] = FORMS, **params: Any
) -> dict[str, Any]:
    """The answer to one request; see `request`."""
    headers, body = request(served, method, about, able, **params)
    return (await said(served, served.request("POST", "/mcp", headers=headers, body=body)))[1]


def allowing(asked: dict[str, Any]) -> dict[str, Any]:
    """What a client comes back with that allows everything it was asked."""
    allowed = {key: {"action": "accept", "content": {}} for key in asked.get("inputRequests", {})}
    return {"requestState": asked["requestState"], "inputResponses": allowed}


PAUSE_SECONDS = 0.2
"""Passes between two looks at a task: who asks all the time is refused for that."""


@dataclass
class ModernClient:
    """A client that is at no time connected, and what it is able to do."""

    served: Daemon
    able: Mapping[str, Any] = field(default_factory=lambda: FORMS)

    async def ask(self, method: str, about: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer to one request."""
        return await ask(self.served, method, about, self.able, **params)

    async def run(self, code: str, **more: Any) -> dict[str, Any]:
        """The answer to a run."""
        return await self.ask("tools/call", TOOL, name=TOOL, arguments={"code": code}, **more)

    async def asked(self, code: str) -> tuple[str, dict[str, Any]]:
        """The word to come back with, and the questions, of a run that asks."""
        found = (await self.run(code))["result"]
        assert found["resultType"] == "input_required", found
        return found["requestState"], found["inputRequests"]

    async def back(self, word: str, given: Mapping[str, Any], code: str) -> dict[str, Any]:
        """The answer to one that comes back."""
        return await self.run(code, requestState=word, inputResponses=given)

    async def task(self, code: str) -> dict[str, Any]:
        """The task of a run that asks."""
        task = (await self.run(code))["result"]
        assert task["resultType"] == "task", task
        return task

    async def about(self, task: str, what: str = "get", **params: Any) -> dict[str, Any]:
        """The answer to `tasks/get`, or to another request of that kind."""
        return await self.ask(f"tasks/{what}", task, taskId=task, **params)

    async def told(self, task: str, what: str = "get", **params: Any) -> dict[str, Any]:
        """The same, which is no error."""
        answer = await self.about(task, what, **params)
        assert "result" in answer and answer["result"]["resultType"] == "complete", answer
        return answer["result"]

    async def until(self, task: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """A task of which something holds."""
        async with asyncio.timeout(60):
            while not holds(found := await self.told(task)):
                assert found["status"] in ("working", "input_required"), found
                await asyncio.sleep(PAUSE_SECONDS)
        return found

    async def until_status(self, task: str, status: str) -> dict[str, Any]:
        """A task that is in a state."""
        return await self.until(task, lambda found: found["status"] == status)
