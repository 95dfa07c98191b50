"""Reads a large input of a tool call, in a process apart, as `call_inputs` reads a small one on the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from cellblock.run import payload
from cellblock.tools.schemas.validation import InputValidator

Facts = dict[str, Any]


def read(facts: Facts, body: bytes, schema: bytes, *further: bytes) -> tuple[Facts, Sequence[bytes]]:
    """Does the work of `call_inputs.READ_INPUT`.

    Args:
        facts: `label` names the tool in logs.
        body: What the worker sent.
        schema: The tool's, as JSON.
        further: Those of the policy.
    """
    try:
        value: Any = payload.decode(body) if body else {}
    except payload.PayloadError as error:
        return {"unreadable": str(error)}, []
    violation = _validator(schema, facts["label"], strict=False).check(value)
    if violation is not None:
        return {"violation": asdict(violation)}, []
    refusals = (_validator(rule, facts["label"], strict=True).check(value) for rule in further)
    refusal = next((found.sentence for found in refusals if found is not None), None)
    return {"violation": None, "refusal": refusal, "kind": payload.kind_of(value)}, [to_json(value)]


@lru_cache(maxsize=32)
def _validator(schema: bytes, label: str, *, strict: bool) -> InputValidator:
    return InputValidator(from_json(schema), label=label, strict=strict, apart=True)
