"""Who uses the fleet: clients of both generations, a person who approves, and somebody who tries what is another's."""

import asyncio
import json
import math
import random
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INTERNAL_ERROR

from benchmarks.client import message_in
from cellblock.record.rows import Head
from soak.fleet import shared
from soak.run_books import ASKED, NO_RUN_WAITS, RunBooks, script
from soak.written import questions_of, store_of
from support.asking_client import always, asking
from support.fleet.fleet import Fleet
from support.http_daemon import MCP_HEADERS, TOOL, Daemon
from support.modern_client import FORMS, TASKS, allowing, message, request
from support.waits import within

T = TypeVar("T")

PAUSE_SECONDS: Final = 0.7
"""Passes before a client's next request, or its return with answers, on average."""

ANSWER_SECONDS: Final = 90.0
LATER: Final = (429, 503)
"""With these nothing has begun: the same request is sent again."""

LOST: Final = (0, 502, 504)
"""With these nobody knows what became of the request."""

AGAIN: Final = ("PostgreSQL is away", "Try again.", "Call again in a few seconds.")
"""Stand in the errors of requests that want the truth while it is not to be had, and may be sent again."""

AGAIN_SHARE: Final = 0.2
"""Of the answers that are sent once more."""

LARGE: Final = 'globalThis.__codemode_result__ = "x".repeat(5000);'
INLINE_BYTES: Final = 2048
KEPT: Final = 30
"""Of each thing of the first principal's, the newest that the other one tries."""


class Clients:
    """All who ask.

    Args:
        fleet: Whom they ask, through its balancer.
        books: Told of each answer.
        chance: Decides who does what.
        other: The token of another principal.

    Attributes:
        asks: Whether the scripts call a server that asks, too.
        until: When no new request is begun, by the monotonic clock.
        over: When nobody comes back any more.
    """

    asks = False

    def __init__(self, fleet: Fleet, books: RunBooks, chance: random.Random, other: str = "") -> None:
        self.until = self.over = math.inf
        self._behind = fleet.behind
        self._books = books
        self._counts = books.counts
        self._chance = chance
        self._number = 0
        self._fleet = fleet
        self._other = other
        self._sessions: deque[str] = deque(maxlen=KEPT)
        self._words: deque[tuple[dict[str, Any], dict[str, Any]]] = deque(maxlen=KEPT)
        self._runs: deque[str] = deque(maxlen=KEPT)
        self._outputs: deque[str] = deque(maxlen=KEPT)

    # ---- 2026-07-28 --------------------------------------------------------------------------------------

    async def modern(self) -> None:
        """Makes one request after the other, and comes back to each run with what it is asked."""
        while time.monotonic() < self.until:
            await self._pause()
            await self._next()

    async def _next(self) -> None:
        await (self._large() if self._chance.random() < 0.1 else self._modern_request())

    def answered_again(self, first: Any, again: Any) -> None:
        """Takes the answer to a word that was answered already."""
        if NO_RUN_WAITS not in again.get("error", {}).get("message", ""):
            self._books.wrong.append(f"a word is good twice: {again}, behind {first}")

    async def _modern_request(self) -> None:
        able = FORMS if self._chance.random() < 0.7 else {}
        durable = not able or self._chance.random() < 0.5
        given: dict[str, Any] = {"name": TOOL, "arguments": {"code": self._script(), "durable": durable}}
        call = f"{self._number}/{ASKED}"
        back: dict[str, Any] = {}
        had_gone = False
        while time.monotonic() < self.over:
            status, answer = await self._post(self._behind(), "tools/call", TOOL, able, **given, **back)
            if status in LATER:
                self._counts["told_later"] += 1
            elif answer is None:
                if status not in LOST:
                    self._books.wrong.append(f"a request of 2026-07-28 got {status}")
                if not back:
                    # Sent again, it is another request: nobody knows that it was this one.
                    self._counts["cut_off"] += 1
                    return
                self._counts["came_back_again"] += 1
                had_gone = True
            elif any(words in answer.get("error", {}).get("message", "") for words in AGAIN):
                self._counts["told_to_try_again"] += 1
            elif answer.get("result", {}).get("resultType") == "input_required":
                back = self._answers(answer["result"], call)
                self._words.append((given, back))
            elif back and answer.get("error", {}).get("code") == INTERNAL_ERROR:
                # A broker of another version cannot read what is written of the run.
                self._counts["came_back_again"] += 1
            else:
                response = answer.get("result", {}).get("structuredContent", {})
                if run_id := response.get("usage", {}).get("runId"):
                    self._runs.append(run_id)
                self._books.take(answer, had_gone=had_gone)
                if back and self._chance.random() < AGAIN_SHARE:
                    _, again = await self._post(self._behind(), "tools/call", TOOL, able, **given, **back)
                    if again is not None:
                        self.answered_again(answer, again)
                return
            await self._pause()
        self._books.wrong.append(f"no answer in time to {given['arguments']}")

    async def _large(self) -> None:
        large = {"code": LARGE}
        _, answer = await self._post(self._behind(), "tools/call", TOOL, {}, name=TOOL, arguments=large)
        for output in (answer or {}).get("result", {}).get("structuredContent", {}).get("outputs", []):
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
        self._counts["shared_requests"] += 1
        arguments = {"code": shared.script(self._number, times=times)}
        status, answer = await self._post(served, "tools/call", TOOL, {}, name=TOOL, arguments=arguments)
        if answer is None:
            self._counts["told_later" if status in LATER else "cut_off"] += 1
            return {}
        if any(words in answer.get("error", {}).get("message", "") for words in AGAIN):
            self._counts["told_to_try_again"] += 1
            return {}
        response = answer.get("result", {}).get("structuredContent")
        self._books.take(answer)
        result = (response or {}).get("result") or {}
        self._counts.update(f"shared: {code}" for code in result.get("codes", {}).values())
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
        http = httpx2.AsyncClient(
            headers=served.auth,
            timeout=ANSWER_SECONDS,
            verify=served.tls or True,
            trust_env=False,
            event_hooks={"response": [self._see]},
        )
        async with http, asking(streamable_http_client(served.url, http_client=http), "legacy") as client:
            client.answer = always("accept")
            while time.monotonic() < self.until:
                arguments = {"code": script(self._next_number()), "durable": self._chance.random() < 0.5}
                self._counts["cut_off"] += 1
                result = await within(client.client.call_tool(TOOL, arguments), ANSWER_SECONDS)
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
        """Allows what one of the runs waits for, or answers its server, at any broker, as the dashboard does."""
        head, broker = self._chance.choice(waiting), self._chance.choice(self._fleet.brokers)
        body = await asyncio.to_thread(self._answer_to, head.id)
        served = broker.served
        url = f"{served.url.removesuffix('/mcp')}/dashboard/parked/{head.id}/approve"
        with suppress(httpx2.HTTPError):
            async with self._http(served) as http:
                answer = await http.post(url, json=body, headers=served.auth)
            # 404 and 409: somebody else was faster; 503: it stops, or PostgreSQL is away. A server's question may have
            # come since, which a yes to all does not answer.
            came_since = answer.status_code == 422 and not body
            if answer.status_code not in (200, 204, 404, 409, 503) and not came_since:
                self._books.wrong.append(f"approving {head} got {answer.status_code}: {answer.text}")
            if answer.is_success:
                self._counts["approved"] += 1
                # One that is only seen to wait may be taken back by its broker: its park came late.
                self._books.written.add(head.id)

    def _answer_to(self, run_id: str) -> dict[str, Any]:
        """A form for the server that asks, else a yes to all calls."""
        with store_of(self._fleet) as store:
            for question in questions_of(store, run_id):
                if question.is_of_server:
                    name = self._books.name(json.loads(question.input)["id"])
                    return {"calls": [str(question.id)], "form": {"name": name}}
        return {}

    async def intrude(self) -> None:
        """Tries, as another principal, the sessions, words, runs and outputs of the first."""
        other = replace(self._behind(), token=self._other)
        if self._sessions:
            headers = {**MCP_HEADERS, **other.auth, "Mcp-Session-Id": self._chance.choice(self._sessions)}
            with suppress(httpx2.HTTPError):
                async with self._http(other) as http:
                    answer = await http.post(other.url, content=message("ping", 1), headers=headers)
                self._tried("session", answer.status_code in (404, *LATER, *LOST), answer.text)
        tries: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
            *(
                ("word", "tools/call", TOOL, FORMS, {**given, **back})
                for given, back in self._one(self._words)
            ),
            *(
                ("run", method, run_id, TASKS, {"taskId": run_id})
                for run_id in self._one(self._runs)
                for method in ("tasks/get", "tasks/cancel")
            ),
            *(("output", "resources/read", uri, {}, {"uri": uri}) for uri in self._one(self._outputs)),
        ]
        for what, method, about, able, params in tries:
            _, answer = await self._post(other, method, about, able, **params)
            self._tried(what, "result" not in (answer or {}), answer)

    def _one(self, kept: Sequence[T]) -> list[T]:
        """One of them, where there are any."""
        return self._chance.sample(kept, min(1, len(kept)))

    def _tried(self, what: str, was_refused: bool, answer: Any) -> None:
        self._counts[f"tries_of_a_{what}"] += 1
        if not was_refused:
            self._books.wrong.append(f"another principal's {what} has answered: {answer}")

    # ---- of all ------------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        self._number += 1
        self._counts["requests"] += 1
        return self._number

    def _script(self) -> str:
        return script(self._next_number(), asks=self.asks)

    def _answers(self, asked: dict[str, Any], call: str) -> dict[str, Any]:
        """Allows everything, and gives a server that asks a name which nobody else is given."""
        back = allowing(asked)
        for key, one in asked.get("inputRequests", {}).items():
            if "name" in one["params"].get("requestedSchema", {}).get("properties", {}):
                back["inputResponses"][key]["content"] = {"name": self._books.name(call)}
        return back

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / PAUSE_SECONDS))

    def _http(self, served: Daemon) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=ANSWER_SECONDS, verify=served.tls or False, trust_env=False)

    async def _post(
        self, served: Daemon, method: str, about: str, able: dict[str, Any], **params: Any
    ) -> tuple[int, Any]:
        """The status, 0 where the connection was lost, and the answer, None where there is none."""
        headers, body = request(served, method, about, able, **params)
        try:
            async with self._http(served) as http:
                answer = await http.post(served.url, content=body, headers=headers)
            if answer.status_code in (*LATER, *LOST):
                return answer.status_code, None
            return answer.status_code, message_in(answer.content)
        except (httpx2.HTTPError, ValueError):
            return 0, None
