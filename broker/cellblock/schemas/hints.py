"""Finds the one corrective action for a violation (Code Mode specification, section 7.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cellblock.schemas import describe
from cellblock.schemas.explain import Violation

NearMisses = Callable[[str, Sequence[str]], Sequence[str]]
"""Gives the candidates most like a name, the likest first."""


def corrective_hint(violation: Violation, near: NearMisses) -> str:
    """Gives one sentence that says what to change; names the near miss where there is one.

    Args:
        violation: What is wrong.
        near: Finds near misses; gets `violation.name` and `violation.candidates`.
    """
    name, path = violation.name, violation.path
    likely = near(name, violation.candidates) if name is not None and violation.candidates else ()
    if violation.keyword in ("required", "dependentRequired"):
        if likely:
            return f"Rename {describe.literal(likely[0])} to {describe.literal(name or '')}."
        return f"Add {path}: {violation.expected}."
    if likely:
        return f"Did you mean {describe.either(map(describe.literal, likely))}?"
    if violation.keyword in ("additionalProperties", "unevaluatedProperties"):
        return f"Leave {path} out."
    if violation.keyword == "propertyNames":
        return f"Rename {path}: the name must be {violation.expected}."
    if not violation.keyword:
        return "Compare the input with the tool's inputSchema."
    return f"Change {path or 'the input'}: it must be {violation.expected}."
