"""Decides which client gets what an upstream server asks: the one whose call has caused it, or nobody.

Several clients share one session. Over streamable HTTP a request comes on the stream of the call that caused it, whose
number is its id in the SDK's context. Elsewhere nothing says so: then it must be the only client with a call under way,
with none given up of late that could still be asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import mcp_types as types
from pydantic import BaseModel

from cellblock.base.callbacks import tell
from cellblock.base.redaction import Redactor
from cellblock.base.visible import visible_schema, visible_tree
from cellblock.tools.upstream.requester import CallOrigin, Requester

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext

NO_URL: Final = "Only plain URLs of http and https are opened."

HIDDEN_CHOICE: Final = "A field or a choice of the form has characters that nobody sees."

DOUBT_SECONDS: Final = 60.0
"""Sets for how long after a call was given up its server may still ask something for it."""

ANSWER_BOUND_SECONDS: Final = 300.0
"""Bounds the time for a person or a model to answer; the clocks of the call and of its run stand still meanwhile."""

PROGRESS_FACTOR: Final = 10
"""Sets how many times its bound a call may take that reports progress."""

MAX_ASKING: Final = 8
"""Bounds the requests of one server that wait for an answer at the same time."""

CALL_META: Final = "cellblock/call"
"""Names, in the `_meta` of what the SDK passes on, the number of the call that it belongs to."""

NO_CLIENT: Final = (
    "There is no client that this could be asked: no call of one is under way, or it does not say."
)
AMBIGUOUS: Final = "Calls of several clients are under way, and nothing says which of them this is for."
NOT_TO_KNOW: Final = "The policy does not let what the client's model may know go to this server."
BUSY: Final = f"More than {MAX_ASKING} requests wait for an answer."
LATER: Final = types.ErrorData(
    code=types.INVALID_REQUEST,
    message="The client can be asked only where its run can be written down meanwhile.",
)
"""Is the answer of a client that cannot be asked now, and answers when its run is parked; servers get it where that
cannot be."""

LATE: Final = f"The client has not answered within {ANSWER_BOUND_SECONDS:g} s."

T = TypeVar("T", bound=BaseModel)


@dataclass(eq=False, slots=True)
class Outstanding:
    """An outstanding call is with the server.

    Args:
        number: Tells it from the other calls of its session.
        server: The server's name.
        name: Of the tool, or the method of another request.
        value: Its input.
        origin: Whom the server may ask meanwhile.
        clock: Its bound; `most` is when its progress extends that no further.
        redactor: Keeps the server's secrets out of what it says.
    """

    number: int
    server: str
    name: str
    value: Any
    origin: CallOrigin
    clock: asyncio.Timeout
    redactor: Redactor
    asking: int = 0
    left: float = 0.0
    bound: float = 0.0
    most: float = 0.0

    def __post_init__(self) -> None:
        now = asyncio.get_running_loop().time()
        self.bound = (self.clock.when() or now) - now
        self.most = now + max(self.bound, PROGRESS_FACTOR * self.bound)

    @property
    def by(self) -> Requester | None:
        """Gives the client that has caused the call; None where there is none."""
        return self.origin.requester

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Hears the server's reports of progress: each gives the call its whole time again."""
        now, until = asyncio.get_running_loop().time(), self.clock.when()
        if until is not None and not self.clock.expired():
            self.clock.reschedule(max(until, min(now + self.bound, self.most)))
        if self.by is not None and self.by.wants_progress:
            said = message and self.redactor.text(message)
            tell(self.by.progress, self.server, self.name, progress, total, said)


@dataclass(slots=True)
class Routing:
    """Keeps the calls of one session, and the answers to what its server asks.

    Args:
        server: The server's name; people are told it.
        redactor: Keeps the server's secrets out of what it says.

    Attributes:
        calls: Those under way, by number.
    """

    server: str
    redactor: Redactor
    calls: dict[int, Outstanding] = field(default_factory=dict[int, Outstanding])
    _last: int = 0
    _given_up: list[tuple[float, object]] = field(default_factory=list[tuple[float, object]])
    _asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_ASKING))

    @contextmanager
    def call(
        self, name: str, value: Any, clock: asyncio.Timeout, origin: CallOrigin
    ) -> Generator[Outstanding]:
        """Surrounds one call, whose bound is `clock`."""
        self._last += 1
        mine = Outstanding(self._last, self.server, name, value, origin, clock, self.redactor)
        self.calls[mine.number] = mine
        try:
            yield mine
        except (TimeoutError, asyncio.CancelledError):
            now = asyncio.get_running_loop().time()
            self._given_up = [(until, who) for until, who in self._given_up if until > now]
            self._given_up.append((now + DOUBT_SECONDS, mine.origin.who))
            raise
        finally:
            del self.calls[mine.number]

    # The signatures are those of the SDK's callbacks; the context's id names the call.

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Passes on an elicitation, with the server's name before its message."""
        asked = self._redacted(params)
        if isinstance(params, types.ElicitRequestURLParams) and not _is_plain_url(params.url):
            return _refusal(types.INVALID_PARAMS, NO_URL)
        if "requestedSchema" in asked:
            form = asked["requestedSchema"] = visible_schema(asked["requestedSchema"])
            if visible_tree(form) != form:
                # An answer has names and choices as they are, so that they are shown so.
                return _refusal(types.INVALID_PARAMS, HIDDEN_CHOICE)
        asked["message"] = f"{self.server}: {visible_tree(asked['message'])}"
        safe = type(params).model_validate(asked, by_name=False)
        return await self._ask(
            context, types.ElicitRequest(params=safe), lambda by, key: by.elicit(safe, key)
        )

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        """Passes on a sampling request, which begins with the server's name."""
        asked = visible_tree(self._redacted(params))
        asked["systemPrompt"] = "\n".join([f"{self.server} asks:", asked.get("systemPrompt", "")]).strip()
        safe = type(params).model_validate(asked, by_name=False)
        return await self._ask(
            context, types.CreateMessageRequest(params=safe), lambda by, key: by.sample(safe, key)
        )

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
        """Returns the roots of the client; none outside a call, when servers ask for them first."""
        answer = await self._ask(context, types.ListRootsRequest(), lambda by, key: by.roots(key))
        return types.ListRootsResult(roots=[]) if isinstance(answer, types.ErrorData) else answer

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        """Passes on a log message to the client whose call it is of, as far as that is known."""
        call = self._cause((params.meta or {}).get(CALL_META, 0))
        if isinstance(call, Outstanding) and call.by is not None:
            plain = self.redactor.tree(params.model_dump(mode="json", by_alias=True, exclude={"meta"}))
            told = visible_tree(plain)
            tell(call.by.logged, types.LoggingMessageNotificationParams.model_validate(told, by_name=False))

    # ---- inside --------------------------------------------------------------------------------------

    def _redacted(
        self, params: types.ElicitRequestParams | types.CreateMessageRequestParams
    ) -> dict[str, Any]:
        plain = params.model_dump(mode="json", by_alias=True, exclude_none=True)
        plain.pop("_meta", None)
        return self.redactor.tree(plain)

    def _cause(self, number: int) -> Outstanding | types.ErrorData:
        call = self.calls.get(number)
        if call is None and self.calls:
            now = asyncio.get_running_loop().time()
            possible = {id(call.origin.who) for call in self.calls.values()}
            possible |= {id(who) for until, who in self._given_up if until > now}
            if len(possible) > 1:
                return _refusal(types.INVALID_REQUEST, AMBIGUOUS)
            # Of several calls of one run it may be any: one that asks nothing yet.
            call = min(self.calls.values(), key=lambda call: call.asking)
        if call is None or not call.origin.can_be_asked:
            return _refusal(types.METHOD_NOT_FOUND, NO_CLIENT)
        return call

    async def _ask(
        self,
        context: ClientRequestContext,
        request: types.InputRequest,
        work: Callable[[Requester, str], Awaitable[T | types.ErrorData]],
    ) -> T | types.ErrorData:
        # With what the call goes on stands behind its number where it asks in rounds.
        number, _, in_round = str(context.request_id).partition(" ")
        call = self._cause(int(number))
        if isinstance(call, types.ErrorData):
            return call
        if isinstance(request, types.CreateMessageRequest) and not call.origin.may_sample():
            return _refusal(types.INVALID_REQUEST, NOT_TO_KNOW)

        async def live(key: str) -> BaseModel | types.ErrorData:
            if call.by is None:
                return _refusal(types.METHOD_NOT_FOUND, NO_CLIENT)
            if self._asking.locked():
                return _refusal(types.INVALID_REQUEST, BUSY)
            try:
                async with self._asking, asyncio.timeout(ANSWER_BOUND_SECONDS):
                    return await work(call.by, key)
            except TimeoutError:
                return _refusal(types.INVALID_REQUEST, LATE)

        with _clock_stopped(call), call.origin.standing_still():
            asked = call.origin.asked
            # What others say later was held against the request.
            return cast("T", await (live("") if asked is None else asked(request, live, in_round)))


def _is_plain_url(url: str) -> bool:
    """Says whether a URL may be opened: it is of the web, nothing in it is hidden, and no user is before its host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    of_web = parts.scheme in ("https", "http") and parts.hostname is not None
    return of_web and "@" not in parts.netloc and url.isascii() and url.isprintable()


def _refusal(code: int, message: str) -> types.ErrorData:
    return types.ErrorData(code=code, message=message)


@contextmanager
def _clock_stopped(call: Outstanding) -> Generator[None]:
    call.asking += 1
    deadline = call.clock.when()
    if call.asking == 1 and deadline is not None and not call.clock.expired():
        call.left = max(0.0, deadline - asyncio.get_running_loop().time())
        call.clock.reschedule(None)
    try:
        yield
    finally:
        call.asking -= 1
        if call.asking == 0 and call.clock.when() is None:
            # The call may be over: its clock cannot be set any more.
            with suppress(RuntimeError):
                call.clock.reschedule(asyncio.get_running_loop().time() + call.left)
