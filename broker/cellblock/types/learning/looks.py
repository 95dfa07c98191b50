"""Looks at one result: holds it against what is declared, given and known of its tool."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import msgspec

from cellblock.tools.schemas.cache import ValidatorCache
from cellblock.tools.schemas.validation import InputValidator
from cellblock.types.learning.bounded import LEARNT_BYTES, bounded_part
from cellblock.types.learning.infer.fits import Fits
from cellblock.types.learning.observation import Observation, ToolKey
from cellblock.types.learning.offers import Offer
from cellblock.types.learning.sample import UNREAD, check_given, observe

FITS_FROM_BYTES: Final = 2 * 1024
"""Sets the size from which on a result is first asked whether it adds anything; the shape of a smaller one is made as
fast."""

MAX_FITS: Final = 256
"""Bounds the tools whose test of what is known is kept; one takes some KiB, and 0.4 ms to make."""


class Looks:
    """Makes observations of results; what it asks of native validators is made once."""

    def __init__(self) -> None:
        self._validators = ValidatorCache()
        self._fits: dict[ToolKey, tuple[Fits, Fits]] = {}

    def at(self, offer: Offer, key: ToolKey, held: Observation | None) -> Observation:
        """Gives the observation of one result; `held` is what is known of its tool."""
        declared, given = offer.tool.output_schema, offer.tool.given
        now = time.time()
        is_part = len(offer.body) > LEARNT_BYTES
        if is_part:
            part = _part(offer)
            if part is None:
                return Observation(skipped=1, first_seen=now, last_seen=now)
            offer = replace(offer, body=part, value=UNREAD)
        validator = None
        # A part need not fit what the whole fits.
        if declared is not None and offer.kind == "value" and not is_part:
            validator = self._validator(offer, declared, "output")
        known, known_document = None, None
        if held is not None and len(offer.body) >= FITS_FROM_BYTES:
            known, known_document = self._fitting(key, held)
        seen = observe(
            offer.kind,
            offer.body,
            now,
            declared=declared,
            validator=validator,
            keep_sample=offer.keep_sample,
            value=offer.value,
            known=known,
            known_document=known_document,
        )
        if given is None or given.output_schema is None or not seen.samples or is_part:
            return seen
        schema, validator = given.output_schema, self._validator(offer, given.output_schema, "given output")
        fit = check_given(offer.kind, offer.body, offer.value, schema, validator, json_text=given.json_text)
        return replace(seen, given=fit)

    def _validator(self, offer: Offer, schema: Any, which: str) -> InputValidator:
        return self._validators.get(
            schema, label=f"{offer.server}.{offer.tool.tool_name} ({which})"
        ).validator

    def _fitting(self, key: ToolKey, held: Observation) -> tuple[Fits, Fits]:
        # Of this window, and not of all that is known: what shows nothing else must not keep that from fading.
        recent = held.fading.recent
        made = self._fits.get(key)
        if made is None or made[0].shape != recent.value or made[1].shape != recent.document:
            if len(self._fits) >= MAX_FITS:
                self._fits.clear()
            made = self._fits[key] = (Fits(recent.value), Fits(recent.document))
        return made


def _part(offer: Offer) -> bytes | None:
    """Returns the part of a large result that is looked at; None where there is none."""
    try:
        if offer.kind != "text":
            return bounded_part(offer.body)
        # Of a text it is the JSON in it, if any.
        text: str = msgspec.json.decode(offer.body)
        inner = text.strip().encode()
        if inner[:1] in (b"[", b"{"):
            part = bounded_part(inner)
            return None if part is None else msgspec.json.encode(part.decode())
        return bounded_part(offer.body)
    except (msgspec.DecodeError, RecursionError):
        return None
