"""Bounds how much of one run's calls is held in memory, decodes the input of a tool call, and holds it against the
tool's schema.

A worker's own cap does not hold here: what it has sent is no longer in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, cast

from cellblock.base import payload
from cellblock.base.budget import Account, Metered, OverBudget
from cellblock.base.errors import Certainty, SchemaValidationError, ToolCallError
from cellblock.base.json import is_array
from cellblock.base.raw_json import LIGHT_BYTES, MOST_VALUES, is_light, next_step, values_in
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.schemas.cost import NotCheckable
from cellblock.tools.schemas.example import CheckedSchema, ValidatorCache
from cellblock.tools.schemas.violations import Violation, corrective_hint

MOST_ESCAPES: Final = 1_500_000
"""Bounds the escaped characters of an input: they take most of the time of its texts."""

MOST_LONG: Final = 150_000
"""Bounds the groups of 16 digits in an input's numbers: writing integers of many digits takes the most time of all."""

_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 16

UNMETERED_BYTES: Final = 1024
"""Bounds an input whose check counts for nothing, if it fits at once: metering would take longer."""

MAX_TEXTS: Final = 8
"""Bounds the texts in one input that are read as JSON."""

WAITING_FACTOR: Final = 4
"""Says how many times as many bytes of inputs may wait undecoded as may be decoded at once."""


class CallInputs:
    """Reads the inputs of one run's calls.

    Args:
        schemas: The tools' validators.
        account: Of the run.
    """

    def __init__(self, schemas: ValidatorCache, account: Account) -> None:
        self._schemas = schemas
        self._account = account

    async def read(self, server: ServerEntry, tool: ToolEntry, body: bytes) -> Any:
        """Decodes and checks the input of a call (Code Mode specification, sections 5.3.1 and 7.2); no input is
        `{}`.

        Raises:
            SchemaValidationError: It is no JSON, too deep, or does not fit.
            ToolCallError: It is too much to be decoded or checked; the tool was not called.
        """
        label = f"{server.server_id}.{tool.export_name}"
        schema = self._schemas.get_or_make(tool.input_schema, label)
        if is_light(body):
            value = _decoded(tool, body)
            if len(body) <= UNMETERED_BYTES and schema.validator.takes_at_once(value, len(body)):
                return value
            return await self._checked(tool, schema, value)
        if (much := _too_much(body)) is not None:
            raise _not_read(tool, f"has over {much}")
        # Between the steps, others have their turn.
        await next_step()
        with Metered(self._account):
            value = _decoded(tool, body)
        await next_step()
        value = await self._checked(tool, schema, value)
        await next_step()
        return value

    async def _checked(self, tool: ToolEntry, schema: CheckedSchema, value: Any) -> Any:
        whole: list[Any] = [value]
        try:
            with Metered(self._account):
                violation = schema.validator.judge(value)
            for _ in range(MAX_TEXTS):
                if violation is None or not _read_text(whole, violation.path):
                    break
                await next_step()
                with Metered(self._account):
                    violation = schema.validator.judge(whole[0])
        except NotCheckable as error:
            raise _not_read(tool, f"cannot be checked against its schema: {error}") from None
        if violation is not None:
            raise _misfit(tool, schema, violation)
        if not isinstance(whole[0], dict) and not tool.input_schema:
            raise _no_object(tool, payload.kind_of(whole[0]))
        return cast("Any", whole[0])


def _decoded(tool: ToolEntry, body: bytes) -> Any:
    try:
        return payload.decode(body) if body else {}
    except payload.PayloadError as error:
        raise _unreadable(tool, str(error)) from None


def _too_much(body: bytes) -> str | None:
    """Says what an input has too much of. What looks like a value within a text counts too."""
    if values_in(body) > MOST_VALUES:
        return f"{MOST_VALUES} values"
    if body.count(b"\\") > MOST_ESCAPES:
        return f"{MOST_ESCAPES} escaped characters"
    return f"{MOST_LONG} groups of 16 digits" if _long_numbers(body) > MOST_LONG else None


def _long_numbers(body: bytes) -> int:
    """Counts groups of 16 digits outside of texts, where there may be many."""
    zeros = body.translate(_ZEROS) if len(body) > 16 * MOST_LONG else b""
    if zeros.count(_LONG) <= MOST_LONG:
        return 0
    # Without escapes, each quote is the beginning or the end of a text.
    bare = zeros.replace(b"\\\\", b"").replace(b'\\"', b"")
    return sum(part.count(_LONG) for part in bare.split(b'"')[::2])


def _read_text(whole: list[Any], path: str) -> bool:
    """Puts an object or array in the place of the text that is its JSON, and says whether there was one.

    Args:
        whole: The input, alone in a list.
        path: The place in the input, as a JSON Pointer.
    """
    around: Any = whole
    last: Any = 0
    try:
        for key in path.split("/")[1:]:
            around = around[last]
            last = int(key) if is_array(around) else key.replace("~1", "/").replace("~0", "~")
        text = around[last]
        if not isinstance(text, str) or text.strip()[:1] not in ("[", "{"):
            return False
        around[last] = payload.decode(text.encode())
    except (LookupError, TypeError, ValueError, payload.PayloadError):
        return False
    return True


def _unreadable(tool: ToolEntry, why: str) -> SchemaValidationError:
    said = f"The input of {tool.export_name} is {why}."
    return _refused(tool, said, "Pass plain, shallow JSON data.", "", "JSON of a moderate depth", why)


def _misfit(tool: ToolEntry, schema: CheckedSchema, violation: Violation) -> SchemaValidationError:
    said = f"The input of {tool.export_name} does not fit its schema: {violation.message}"
    details = {"example": schema.example} if schema.example is not None else {}
    hint = corrective_hint(violation)
    where = violation.path, violation.expected, violation.received
    return _refused(tool, said, hint, *where, **details)


def _no_object(tool: ToolEntry, kind: str) -> SchemaValidationError:
    said = f"The input of {tool.export_name} must be an object."
    hint = f"Call {tool.export_name}({{ … }}) with one object."
    return _refused(tool, said, hint, "", "object", kind)


def _refused(
    tool: ToolEntry, said: str, hint: str, path: str, expected: str, received: str, **details: object
) -> SchemaValidationError:
    return SchemaValidationError(
        said,
        hint=hint,
        toolName=tool.tool_name,
        exportName=tool.export_name,
        path=path,
        expected=expected,
        received=received,
        **details,
    )


def _not_read(tool: ToolEntry, why: str) -> ToolCallError:
    return ToolCallError(
        f"{tool.export_name} was not called: its input {why}.",
        hint="Send less at a time.",
        certainty=Certainty.NOT_STARTED,
        summary="the input could not be read",
    )


class Turns:
    """Lets in as much as may be there at once, first come, first served; one may always be, whatever its size.

    Args:
        most: What all together may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enters(self, size: int) -> bool:
        """Enters what may be there at once; if it may not, says so, and `enter` waits for it."""
        if self._waiting or 0 < self._inside > self._most - size:
            return False
        self._inside += size
        return True

    async def enter(self, size: int) -> None:
        """Waits until it may be there; `leave` must follow a wait that has ended well."""
        if self.enters(size):
            return
        place = (size, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            # Not whether it still waits: one that was cancelled may have been passed over before its turn came.
            if not place[1].cancelled():
                self.leave(size)
            elif place in self._waiting:
                self._waiting.remove(place)
                self._let_in()
            raise

    def leave(self, size: int) -> None:
        """Lets in what waits: something has gone."""
        self._inside -= size
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (not self._inside or self._inside + self._waiting[0][0] <= self._most):
            size, future = self._waiting.popleft()
            if not future.done():
                self._inside += size
                future.set_result(None)


class CallLoads(Turns):
    """Bounds the memory that one run's unanswered tool calls hold: what is inside is decoded.

    Args:
        most: Bytes of JSON whose calls may be decoded and unanswered at the same time; one call may always be.
        account: Of the run, whose client may have so many bytes of large inputs; None for no such bound.
    """

    def __init__(self, most: int, account: Account | None = None) -> None:
        super().__init__(most)
        self._account = account
        self._held = 0

    def hold(self, size: int) -> bool:
        """Takes an input in, undecoded; False: with those that are held already it would be too much."""
        if self._held and self._held + size > WAITING_FACTOR * self._most:
            return False
        if size > LIGHT_BYTES and self._account is not None:
            try:
                self._account.take(size)
            except OverBudget:
                return False
        self._held += size
        return True

    def drop(self, size: int) -> None:
        """Lets go of an input that `hold` has taken in."""
        self._held -= size
        if size > LIGHT_BYTES and self._account is not None:
            self._account.give_back(size)
