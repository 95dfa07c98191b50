"""Writes observations as the JSON that the store keeps; nothing is believed when it is read back.

Keys are only ever added: a row of an older Cellblock lacks the newer ones, and an older Cellblock passes them by.
"""

from __future__ import annotations

import json
import math
from typing import Any

from cellblock.base.json import is_array
from cellblock.learning.fading import MAX_NEWS, MAX_PATIENCE, NOT_FADING, PATIENCE, Fading, Forms
from cellblock.learning.infer import decode_shape, encode_shape
from cellblock.learning.infer.codec import as_object
from cellblock.learning.observation import NOT_GIVEN, GivenCheck, Observation


def encoded(seen: Observation) -> str:
    """Writes all of an observation but the columns of the store."""
    body: dict[str, Any] = {
        **_forms(seen.shape),
        "skipped": seen.skipped,
        "disagreements": seen.disagreements,
        "disagreement": seen.disagreement,
    }
    if seen.given.of:
        body["given"] = [seen.given.of, seen.given.checked, seen.given.misfits, seen.given.newest]
    if seen.sample is not None:
        body["sample"] = seen.sample
    fading = seen.fading
    if fading != NOT_FADING:
        body["fading"] = {
            # Most often what is known.
            "recent": 1 if fading.recent == seen.shape else _forms(fading.recent),
            "weight": fading.weight,
            "since": fading.since,
            "news": fading.news,
            "patience": fading.patience,
        }
        if fading.faded:
            body["fading"] |= {"ever": _forms(fading.ever), "faded": fading.faded}
    return json.dumps(body, separators=(",", ":"))


def decoded(body: str) -> Observation:
    """Reads the observation, without what is in the columns of the store.

    Raises:
        ValueError: It is no such data: the store was changed by something else.
    """
    data = as_object(json.loads(body))
    forms = _formed(data)
    sample = data.get("sample")
    return Observation(
        value=forms.value,
        document=forms.document,
        texts=forms.texts,
        results=forms.results,
        skipped=int(data.get("skipped", 0)),
        disagreements=int(data.get("disagreements", 0)),
        disagreement=str(data.get("disagreement", "")),
        sample=sample if isinstance(sample, str) else None,
        given=_given(data.get("given")),
        fading=_fading(as_object(data["fading"]), forms) if "fading" in data else NOT_FADING,
    )


def _forms(forms: Forms) -> dict[str, Any]:
    return {
        "value": encode_shape(forms.value),
        "json": encode_shape(forms.document),
        "texts": forms.texts,
        "results": forms.results,
    }


def _formed(data: dict[str, Any]) -> Forms:
    value, document = (decode_shape(data.get(name, {})) for name in ("value", "json"))
    return Forms(value, document, bool(data.get("texts")), bool(data.get("results")))


def _fading(data: dict[str, Any], known: Forms) -> Fading:
    recent: object = data.get("recent", {})
    return Fading(
        recent=known if recent == 1 else _formed(as_object(recent)),
        weight=_number(data.get("weight")),
        since=_number(data.get("since")),
        news=min(max(int(data.get("news", 0)), 0), MAX_NEWS),
        patience=min(max(int(data.get("patience", PATIENCE)), PATIENCE), MAX_PATIENCE),
        ever=_formed(as_object(data.get("ever", {}))),
        faded=_number(data.get("faded")),
    )


def _given(data: object) -> GivenCheck:
    if data is None:
        return NOT_GIVEN
    if not is_array(data):
        raise ValueError("no list")
    of, checked, misfits, newest = data
    return GivenCheck(str(of), int(checked), int(misfits), str(newest))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
