"""Intake takes messages of clients before the SDK decodes them: what is too large for the loop is looked at in a
process apart, and what nobody needs of a message is cut off before anything waits with it."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import mcp_types as types

from cellblock.base.errors import CellblockError
from cellblock.base.offload.light import LIGHT_BYTES, containers_in
from cellblock.base.offload.task import ApartFailed, Task
from cellblock.serve.mcp.cut import cut

if TYPE_CHECKING:
    from cellblock.base.offload.pool import Apart

logger = logging.getLogger("cellblock.serve")

AS_IT_IS_BYTES: Final = 16 * 1024
"""Bounds the messages that are taken as they are, as nearly all are."""

EASY_VALUES: Final = 10_000
"""Bounds commas and brackets, about as many as values, with which a message is cut on the loop: in at most 5 ms. A
script of 200 KiB has some thousands."""

CONTAINER_BYTES: Final = 256
"""Estimates what an object or an array takes beside its text: an object with one key has 184 to 232 bytes in Python."""

COPIES: Final = 3
"""Counts the copies of a message's text, in the web server, the SDK and the run."""

CUT: Final = Task(
    work="cellblock.serve.mcp.cut:cut_apart",
    subject="This message",
    cpu_seconds=5,
    # 8 MiB of empty arrays take 250 MiB.
    memory_bytes=1024 * 1024 * 1024,
)


class Taken(NamedTuple):
    """Holds a message that the loop may decode."""

    body: bytes
    weight: int
    """Estimates how many bytes the message takes with what it is decoded to."""


class NotTaken(Exception):
    """Tells that a message is not decoded.

    Args:
        why: What its sender is told.
        code: Of JSON-RPC.
        request_id: What it answers, if that is known.
        later: Whether the same message may be taken another time.
    """

    def __init__(
        self,
        why: str,
        *,
        code: int = types.INVALID_REQUEST,
        request_id: types.RequestId | None = None,
        later: bool = False,
    ) -> None:
        super().__init__(why)
        self.code = code
        self.request_id = request_id
        self.later = later


async def take(raw: bytes, apart: Apart, client: str) -> Taken:
    """Returns what is to be decoded of a client's message. Clients share the processes that read large ones fairly.

    Raises:
        NotTaken: It is too large or no JSON, or there is no room to read it.
    """
    if len(raw) > LIGHT_BYTES or (
        len(raw) > AS_IT_IS_BYTES and raw.count(b",") + containers_in(raw) > EASY_VALUES
    ):
        return await _take_apart(raw, apart, client)
    if len(raw) > AS_IT_IS_BYTES:
        # What is no JSON is not cut: whoever decodes it says what is wrong.
        with contextlib.suppress(ValueError, RecursionError):
            raw, _ = cut(raw)
    return Taken(raw, _weight(raw, containers_in(raw)))


async def _take_apart(raw: bytes, apart: Apart, client: str) -> Taken:
    try:
        answer = await apart.do(CUT, {}, raw, key=client)
    except ApartFailed as error:
        raise NotTaken(str(error)) from None
    except CellblockError as error:
        raise NotTaken(str(error), code=types.INTERNAL_ERROR, later=True) from None
    except OSError as error:
        logger.warning("a large message could not be read: %s", error)
        raise NotTaken(
            "This message is large, and the machine has no process left to read it. Try again in a moment.",
            code=types.INTERNAL_ERROR,
            later=True,
        ) from None
    facts, parts = answer.facts, answer.parts
    if "wrong" in facts:
        raise NotTaken(f"This message is no JSON that can be read: {facts['wrong']}.", code=types.PARSE_ERROR)
    if not parts:
        raise NotTaken(
            f"This message has {facts['much']}. Send less: let the script get its data through tools.",
            request_id=facts["id"],
        )
    return Taken(parts[0], _weight(parts[0], facts["values"]))


def _weight(body: bytes, containers: int) -> int:
    return COPIES * len(body) + CONTAINER_BYTES * containers
