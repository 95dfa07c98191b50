"""Who uses the fleet: clients of both generations, a person who approves, and somebody who tries what is another's."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client

from cellblock.record.rows import Head
from soak.clients import AGAIN, ANSWER_SECONDS, LATER, LOST, ModernClients
from soak.fleet import shared
from soak.run_books import RunBooks
from support.asking_client import always, asking
from support.fleet.fleet import Fleet
from support.http_daemon import MCP_HEADERS, TOOL, Daemon
from support.modern_client import FORMS, TASKS, message

LARGE: Final = 'globalThis.__codemode_result__ = "x".repeat(5000);'
INLINE_BYTES: Final = 2048
KEPT: Final = 30
"""Of each thing of the first principal's, the newest that the other one tries."""


class Clients(ModernClients):
    """All who ask.

    Args:
        fleet: Whom they ask, through its balancer.
        books: Told of each answer.
        chance: Decides who does what.
        other: The token of another principal.
    """

    def __init__(self, fleet: Fleet, books: RunBooks, chance: random.Random, other: str = "") -> None:
        super().__init__(fleet.behind, books, chance)
        self._fleet = fleet
        self._other = other
        self._sessions: deque[str] = deque(maxlen=KEPT)
        self._words: deque[tuple[dict[str, Any], dict[str, Any]]] = deque(maxlen=KEPT)
        self._runs: deque[str] = deque(maxlen=KEPT)
        self._outputs: deque[str] = deque(maxlen=KEPT)

    # ---- 2026-07-28 --------------------------------------------------------------------------------------

    async def _next(self) -> None:
        await (self._large() if self._chance.random() < 0.1 else self._modern_request())

    def _comes_back(self, given: dict[str, Any], back: dict[str, Any]) -> None:
        self._words.append((given, back))

    def _came(self, answer: Any) -> None:
        run_id = answer.get("result", {}).get("structuredContent", {}).get("usage", {}).get("runId")
        if run_id:
            self._runs.append(run_id)

    async def _large(self) -> None:
        given: dict[str, Any] = {"name": TOOL, "arguments": {"code": LARGE}}
        _, answer = await self._post(self._behind(), "tools/call", TOOL, {}, **given)
        response = (answer or {}).get("result", {}).get("structuredContent", {})
        for output in response.get("outputs", []):
            self._counts["outputs"] += 1
            uri = output["uri"]
            self._outputs.append(uri)
            _, read = await self._post(self._behind(), "resources/read", uri, {}, uri=uri)
            if read is not None and "result" in read:
                self._counts["outputs_read"] += 1
                if not read["result"]["contents"][0]["text"].strip('"').startswith("xxx"):
                    self._books.wrong.append(f"an output of another: {read}")

    # ---- what brokers have together ----------------------------------------------------------------------

    async def sharing(self) -> None:
        """Calls what is counted, in one run after the other."""
        while time.monotonic() < self.until:
            await self._pause()
            await self.share(self._behind())

    async def share(self, served: Daemon, *, times: int = 1) -> dict[str, Any]:
        """Makes one such run, and gives what it came to; nothing where it did not come to its end."""
        self._number += 1
        number = self._number
        self._counts["shared_requests"] += 1
        given: dict[str, Any] = {"name": TOOL, "arguments": {"code": shared.script(number, times=times)}}
        status, answer = await self._post(served, "tools/call", TOOL, {}, **given)
        if answer is None:
            self._counts["told_later" if status in LATER else "cut_off"] += 1
            return {}
        if any(words in answer.get("error", {}).get("message", "") for words in AGAIN):
            self._counts["told_to_try_again"] += 1
            return {}
        response = answer.get("result", {}).get("structuredContent")
        self._books.take(answer)
        result = (response or {}).get("result") or {}
        for code in result.get("codes", {}).values():
            self._counts[f"shared: {code}"] += 1
        return result

    # ---- 2025-06-18 --------------------------------------------------------------------------------------

    async def legacy(self) -> None:
        """Has one session after the other, by the SDK's client: a new one when the last has ended with its broker."""
        while time.monotonic() < self.until:
            self._counts["sessions"] += 1
            try:
                await self._session()
            except Exception as error:  # noqa: BLE001 - the SDK's, of many kinds: a new session is begun
                self._lost(error)
            await self._pause()

    async def _session(self) -> None:
        served = self._behind()
        hooks: Any = {"response": [self._see]}
        http = httpx2.AsyncClient(
            headers=served.auth,
            timeout=ANSWER_SECONDS,
            verify=served.tls or True,
            trust_env=False,
            event_hooks=hooks,
        )
        async with http, asking(streamable_http_client(served.url, http_client=http), "legacy") as client:
            client.answer = always("accept")
            while time.monotonic() < self.until:
                arguments = {"code": self._script(), "durable": self._chance.random() < 0.5}
                self._counts["cut_off"] += 1
                async with asyncio.timeout(ANSWER_SECONDS):
                    result = await client.client.call_tool(TOOL, arguments)
                self._counts["cut_off"] -= 1
                response: Any = result.structured_content
                if response is None:
                    self._books.wrong.append(f"an answer without a response: {result.content}")
                    return
                self._books.answered(response)
                await self._pause()

    async def _see(self, response: httpx2.Response) -> None:
        if (session := response.headers.get("mcp-session-id")) and session not in self._sessions:
            self._sessions.append(session)

    def _lost(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._counts[f"session lost: {type(error).__name__}: {str(error)[:60]}"] += 1

    # ---- others ------------------------------------------------------------------------------------------

    async def approve(self, waiting: Sequence[Head]) -> None:
        """Allows what one of the runs waits for, at any broker, as the dashboard does."""
        head, broker = self._chance.choice(waiting), self._chance.choice(self._fleet.brokers)
        served = broker.served
        headers = {**served.auth, "Content-Type": "application/json"}
        path = f"/dashboard/parked/{head.id}/approve"
        with suppress(httpx2.HTTPError):
            async with self._http(served) as http:
                answer = await http.post(
                    served.url.removesuffix("/mcp") + path, content=b"{}", headers=headers
                )
            # 404 and 409: somebody else was faster; 503: it stops, or PostgreSQL is away.
            if answer.status_code not in (200, 204, 404, 409, 503):
                self._books.wrong.append(f"approving {head} got {answer.status_code}: {answer.text}")
            if answer.is_success:
                self._counts["approved"] += 1
                # One that is only seen to wait may be taken back by its broker: its park came late.
                self._books.written.add(head.id)

    async def intrude(self) -> None:
        """Tries, as another principal, the sessions, words, runs and outputs of the first."""
        other = replace(self._behind(), token=self._other)
        if self._sessions:
            headers = {**MCP_HEADERS, **other.auth, "Mcp-Session-Id": self._chance.choice(self._sessions)}
            with suppress(httpx2.HTTPError):
                async with self._http(other) as http:
                    answer = await http.post(other.url, content=message("ping", 1), headers=headers)
                self._tried("session", answer.status_code in (404, *LATER, *LOST), answer.text)
        if self._words:
            given, back = self._chance.choice(self._words)
            _, answer = await self._post(other, "tools/call", TOOL, FORMS, **given, **back)
            self._tried("word", "result" not in (answer or {}), answer)
        if self._runs:
            run_id = self._chance.choice(self._runs)
            for method in ("tasks/get", "tasks/cancel"):
                _, answer = await self._post(other, method, run_id, TASKS, taskId=run_id)
                self._tried("run", "result" not in (answer or {}), answer)
        if self._outputs:
            uri = self._chance.choice(self._outputs)
            _, answer = await self._post(other, "resources/read", uri, {}, uri=uri)
            self._tried("output", "result" not in (answer or {}), answer)

    def _tried(self, what: str, was_refused: bool, answer: Any) -> None:
        self._counts[f"tries_of_a_{what}"] += 1
        if not was_refused:
            self._books.wrong.append(f"another principal's {what} has answered: {answer}")
