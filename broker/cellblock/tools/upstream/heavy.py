"""Heavy reads large messages of one connection: read in a process apart, so that the SDK gets small ones in their
place.

What a script is to get of a result comes back as the bytes that it gets, and passes the loop with the small message.
A long tool list becomes pages of it. What nobody has asked for is dropped unread.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import mcp_types as types
from mcp import Client
from mcp.shared.message import SessionMessage

from cellblock.base.errors import CellblockError
from cellblock.base.json import is_object
from cellblock.base.kept import Newest
from cellblock.base.offload.budget import ByteBudget, OverBudget
from cellblock.base.offload.light import LIGHT_BYTES, is_light
from cellblock.base.offload.pool import Apart, Bill, paying
from cellblock.base.offload.raw import RawJson, Splices
from cellblock.base.offload.task import Task
from cellblock.tools.catalog.outputs import ResultKind
from cellblock.tools.upstream.incoming import PASSED_ON, TOO_LARGE_START, VALUE_KEY, read_message
from cellblock.tools.upstream.lenience import soften
from cellblock.tools.upstream.lines import KEPT_BYTES, answered_id

READ_MESSAGE: Final = Task(
    # By its name: what a script is given is decided above this package.
    work="cellblock.run.answers_apart:lighten",
    subject="A message of the server",
    cpu_seconds=10,
)

PAGE_CURSOR: Final = "cellblock-page-"
"""Begins the cursor of a page that is here, and not with the server."""

MAX_CALLS: Final = 4_096
"""Calls whose tools are known; an answer to an older one is read as if its tool had no settings."""

MAX_VALUES: Final = 64
"""Bounds the values that wait for their message to reach its call; the next turn of the loop, as a rule."""

DROPPED_BYTES_PER_SECOND: Final = 64 * 1024 * 1024
"""Bounds how fast messages of a server are read that answer no call."""

SERVER_BYTES: Final = 64 * 1024 * 1024
ALL_BYTES: Final = 128 * 1024 * 1024
"""Bounds the large messages that are in memory, of one server and of all; what is over it is thrown away while it
comes."""

Listed = TypeVar("Listed", bound=types.PaginatedResult)

_NOTICE: Final = re.compile(
    rb'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:\s*"notifications/[\w/]{1,64}"\s*,'
)


class ResultForm(NamedTuple):
    """Holds what the configuration says of a tool's results, see `execution.unwrap`; `passed_on` is the method of a
    request whose result is passed on."""

    parse_text: bool = False
    box: str | None = None
    passed_on: str | None = None


class HeavyValue(str):
    """Stands in a small result for the large value that it had.

    A text, as the SDK puts results through JSON's types; a server cannot make one, as what it sends are plain texts.

    Attributes:
        body: What the script gets, as JSON.
        kind: Which of the rules gave it.
        no_form: Why it has no JSON form; None where it has one.
    """

    body: bytes
    kind: ResultKind
    no_form: str | None

    @classmethod
    def make(cls, body: bytes, kind: ResultKind, no_form: str | None = None) -> HeavyValue:
        """Makes a text that stands for a large value."""
        made = cls("a large value")
        made.body, made.kind, made.no_form = body, kind, no_form
        return made


def heavy_value(result: types.Result) -> HeavyValue | None:
    """Returns the value that a result stands for, where it was large."""
    value: object = (result.meta or {}).get(VALUE_KEY)
    return value if isinstance(value, HeavyValue) else None


def key_of(server: str) -> str:
    """Returns the key under which the work counts that a server makes; no client has such a name."""
    return f"server:{server}"


class _Call(NamedTuple):
    tool: str
    bill: Bill | None
    passed_on: str | None = None


class HeavyMessages:
    """Reads the large messages of one connection.

    Args:
        server: The server's name: whose work it is.
        apart: Reads them.
        budget: Of bytes that servers have in memory.
        form_of: What is set for the results of a tool, by its name.

    Attributes:
        splices: Large inputs on their way to the server.
        refuse: Sends the server an answer to what it asks; set when there is a way to it.
    """

    def __init__(
        self, server: str, apart: Apart, budget: ByteBudget, form_of: Callable[[str], ResultForm]
    ) -> None:
        self.splices = Splices()
        self.refuse: Callable[[bytes], Awaitable[None]] | None = None
        self._key = key_of(server)
        self._apart = apart
        self._budget = budget
        self._form_of = form_of
        self._calls = Newest[int | str, _Call](MAX_CALLS)
        self._values = Newest[str, HeavyValue](MAX_VALUES)
        self._pages: dict[str, dict[str, bytes]] = {}

    def sent(self, item: SessionMessage) -> None:
        """Notes which tool a request calls, and for whose run: that pays for the reading of the answer."""
        message = item.message
        if not isinstance(message, types.JSONRPCRequest) or not message.params:
            return
        if message.method == "tools/call":
            name: object = message.params.get("name")
            self._calls[message.id] = _Call(name if isinstance(name, str) else "", paying.get())
        elif message.method in PASSED_ON:
            self._calls[message.id] = _Call("", paying.get(), message.method)

    def awaits(self, item: SessionMessage | Exception) -> bool:
        """Says whether a message answers a call."""
        return (
            not isinstance(item, Exception)
            and isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError)
            and item.message.id in self._calls
        )

    @contextmanager
    def counting(self) -> Generator[Callable[[int], None]]:
        """Yields what to call with the bytes of the message under way that are in memory: a large one's are counted
        until the block ends.

        That raises OverBudget where they are too many, and counts none of them then.
        """
        held = 0

        def count(size: int) -> None:
            nonlocal held
            if held:
                self._budget.give_back(self._key, held)
                held = 0
            if size > LIGHT_BYTES:
                self._budget.take(self._key, size)
                held = size

        try:
            yield count
        finally:
            count(0)

    async def lightened(self, raw: bytes) -> bytes | None:
        """Reads a large message, and returns a small one in its place, as JSON; None for what is to be dropped.

        Where it cannot be read, what it answers fails. The caller reads on when this has returned: a server waits for
        what its messages cost.
        """
        if is_light(raw):
            return raw
        if _NOTICE.match(raw[:KEPT_BYTES]):
            await asyncio.sleep(len(raw) / DROPPED_BYTES_PER_SECOND)
            return None
        calls = {
            str(number): ResultForm(passed_on=call.passed_on) if call.passed_on else self._form_of(call.tool)
            for number, call in self._calls.items()
        }
        token = secrets.token_hex(16)
        facts = {"calls": calls, "token": token, "cursor": PAGE_CURSOR + token}
        number, bill = answered_id(raw, raw), Bill()
        try:
            with self._budget.holding(self._key, len(raw)):
                answer = await self._apart.do(READ_MESSAGE, facts, raw, key=self._key, bill=bill)
            number = answer.facts.get("id", number)
        except (CellblockError, OverBudget, OSError) as error:
            return _failure(number, f"could not be read: {error}")
        finally:
            call = self._calls.get(number) if number is not None else None
            if call is not None and call.bill is not None:
                call.bill.add(bill.cpu_ms)
        if answer.facts["what"] == "value":
            facts = answer.facts
            self._values[token] = HeavyValue.make(
                answer.parts[1], cast("ResultKind", facts["kind"]), facts.get("no_form")
            )
        elif answer.facts["what"] == "pages":
            # A newer list: nobody will ask for the rest of the one before.
            self._pages[answer.facts["of"]] = {
                f"{PAGE_CURSOR}{token}-{number}": page
                for number, page in enumerate(answer.parts[1:], start=1)
            }
        elif answer.facts["what"] == "request":
            if self.refuse is not None:
                await self.refuse(answer.parts[0])
            return None
        return answer.parts[0] if answer.parts else None

    def filled(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        """Puts the value that belongs to a small result into it."""
        if isinstance(item, Exception):
            return item
        message = item.message
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            if message.id is not None:
                self._calls.pop(message.id, None)
            if self._values and isinstance(message, types.JSONRPCResponse):
                meta: object = message.result.get("_meta")
                if is_object(meta):
                    token: object = meta.get(VALUE_KEY)
                    if isinstance(token, str) and token in self._values:
                        meta[VALUE_KEY] = self._values.pop(token)
        return item

    @contextmanager
    def placed(self, value: Any) -> Generator[Any]:
        """Yields an input as it is, or what stands for a large one until the block ends."""
        if not isinstance(value, RawJson):
            yield value
            return
        with self.splices.holding(value.raw) as token:
            yield token

    def page(self, cursor: str | None) -> bytes | None:
        """Returns a further page of a list that was large, as the JSON of its message; None for a cursor of the
        server's."""
        pages = (pages.pop(cursor, None) for pages in self._pages.values() if cursor is not None)
        return next((page for page in pages if page is not None), None)


async def list_page(client: Client, heavy: HeavyMessages, cursor: str | None) -> types.ListToolsResult:
    """Returns a page of a server's tool list: asked for, or, of a list that was large, here already."""
    return await _further(heavy, cursor, types.ListToolsResult) or await client.list_tools(cursor=cursor)


async def other_page(
    client: Client,
    heavy: HeavyMessages,
    request: types.PaginatedRequest[Any],
    result: type[Listed],
) -> Listed:
    """Returns a page of another list than that of tools: asked for, or, of a list that was large, here already."""
    cursor = request.params.cursor if request.params is not None else None
    return await _further(heavy, cursor, result) or await client.session.send_request(request, result)


async def _further(heavy: HeavyMessages, cursor: str | None, result: type[Listed]) -> Listed | None:
    page = heavy.page(cursor)
    if page is None:
        return None
    # The loop goes on between two.
    await asyncio.sleep(0)
    item = soften(read_message(page))
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse)
    return result.model_validate(item.message.result, by_name=False)


@dataclass(frozen=True, slots=True)
class LargeMessages:
    """Holds what all servers share for their large messages.

    Attributes:
        apart: Reads them.
        form_of: What is set for the results of a tool, by the server's name and its own.
        budget: Of bytes that servers have in memory.
    """

    apart: Apart = field(default_factory=Apart)
    form_of: Callable[[str, str], ResultForm] = lambda _server, _tool: ResultForm()
    budget: ByteBudget = field(default_factory=lambda: ByteBudget(SERVER_BYTES, ALL_BYTES, "this server"))

    def for_server(self, server: str) -> HeavyMessages:
        """Makes what reads the large messages of one connection of a server."""
        return HeavyMessages(server, self.apart, self.budget, partial(self.form_of, server))


def _failure(answers: int | None, why: str) -> bytes | None:
    if answers is None:
        return None
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=TOO_LARGE_START + why)
    return types.JSONRPCError(jsonrpc="2.0", id=answers, error=error).model_dump_json().encode()
