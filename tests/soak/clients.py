"""Clients of MCP 2026-07-28 whose runs wait for people: they come back with the answers, or leave a durable run."""

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Any, Final

import httpx2
from mcp_types import INTERNAL_ERROR

from benchmarks.client import message_in
from soak.run_books import ASKED, NO_RUN_WAITS, RunBooks, script
from support.http_daemon import TOOL, Daemon
from support.modern_client import FORMS, allowing, request

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
"""Of the answers that are sent once more, by clients that do."""


class ModernClients:
    """Makes requests without sessions.

    Args:
        behind: Gives whom they ask, at the moment.
        books: Told of each answer.
        chance: Decides who does what.

    Attributes:
        asks: Whether the scripts call a server that asks, too.
        answers_again: Whether some answers are sent twice.
        until: When no new request is begun, by the monotonic clock.
        over: When nobody comes back any more.
    """

    asks = False
    answers_again = False

    def __init__(self, behind: Callable[[], Daemon], books: RunBooks, chance: random.Random) -> None:
        self.until = self.over = math.inf
        self._behind = behind
        self._books = books
        self._counts = books.counts
        self._chance = chance
        self._number = 0

    async def modern(self) -> None:
        """Makes one request after the other, and comes back to each run with what it is asked."""
        while time.monotonic() < self.until:
            await self._pause()
            await self._next()

    def answered_again(self, first: Any, again: Any) -> None:
        """Takes the answer to a word that was answered already."""
        if NO_RUN_WAITS not in again.get("error", {}).get("message", ""):
            self._books.wrong.append(f"a word is good twice: {again}, behind {first}")

    # ---- inside ------------------------------------------------------------------------------------------

    async def _next(self) -> None:
        await self._modern_request()

    def _comes_back(self, given: dict[str, Any], back: dict[str, Any]) -> None:
        """Takes a request and what its client comes back with."""

    def _came(self, answer: Any) -> None:
        """Takes the last answer to a request."""

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
                self._comes_back(given, back)
            elif back and answer.get("error", {}).get("code") == INTERNAL_ERROR:
                # A broker of another version cannot read what is written of the run.
                self._counts["came_back_again"] += 1
            else:
                self._came(answer)
                self._books.take(answer, had_gone=had_gone)
                if back and self.answers_again and self._chance.random() < AGAIN_SHARE:
                    _, again = await self._post(self._behind(), "tools/call", TOOL, able, **given, **back)
                    if again is not None:
                        self.answered_again(answer, again)
                return
            await self._pause()
        self._books.wrong.append(f"no answer in time to {given['arguments']}")

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
