"""Looks at large results of tools, for what is learnt of them, in a process apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, Final

from pydantic_core import from_json, to_json

from cellblock.base.errors import CellblockError
from cellblock.base.offload.light import is_light
from cellblock.base.offload.pool import WALL_SECONDS, Apart
from cellblock.base.offload.task import Task
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.upstream.heavy import key_of
from cellblock.types.learning.observation import Observation, fingerprint
from cellblock.types.learning.offers import Offer
from cellblock.types.learning.record import decoded, encoded
from cellblock.types.learning.sample import MAX_SAMPLE_BYTES, GivenOutput, observe

LOOK: Final = Task(
    work="cellblock.run.looks_apart:look",
    subject="A result",
)

BOUND_SECONDS: Final = 2 * WALL_SECONDS
"""Bounds the learner's wait: for its turn, and for the work itself."""


_PLAIN: Final = ("texts", "results", "samples", "skipped", "disagreements", "disagreement")
"""Names the parts of an observation that are plain JSON."""


class LargeLooks:
    """Has a `learner.ObserveApart` as `observe`. Made in the event loop, asked in the learner's thread.

    Args:
        apart: Does the work.
    """

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self._loop = asyncio.get_running_loop()

    def observe(self, offer: Offer) -> Observation | None:
        """Gives what is seen of a large result; None for a small one."""
        if is_light(offer.body):
            return None
        now = time.time()
        skipped = Observation(skipped=1, first_seen=now, last_seen=now)
        if len(offer.body) > MAX_SAMPLE_BYTES:
            return skipped
        given = offer.tool.given
        facts = {"kind": offer.kind, "now": now, "json_text": given is not None and given.json_text}
        schemas = (offer.tool.output_schema, None if given is None else given.output_schema)
        work = self._apart.do(LOOK, facts, offer.body, *map(to_json, schemas), key=key_of(offer.server))
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # The loop is closed.
            work.close()
            return skipped
        try:
            seen = future.result(BOUND_SECONDS).facts
            return replace(decoded(seen["body"]), samples=seen["samples"], first_seen=now, last_seen=now)
        except (CellblockError, OSError, CancelledError, TimeoutError, ValueError):
            future.cancel()
            return skipped


def look(
    facts: dict[str, Any], body: bytes, declared: bytes, given: bytes
) -> tuple[dict[str, Any], Sequence[bytes]]:
    """Does the work of `LOOK`."""
    schema, output = from_json(declared), from_json(given)
    validator = None if schema is None else InputValidator(schema, subject="a result")
    by_user = None
    if output is not None:
        of = fingerprint(output, facts["json_text"])
        by_user = GivenOutput(of, InputValidator(output, subject="a result"), facts["json_text"])
    seen = observe(facts["kind"], body, facts["now"], declared=validator, given=by_user)
    return {"body": encoded(seen), "samples": seen.samples}, []
