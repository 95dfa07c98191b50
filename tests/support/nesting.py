"""Values that nest as deeply as is asked."""

from collections.abc import Callable
from typing import Any


def listed(inner: Any) -> list[Any]:
    """One more list around a value."""
    return [inner]


def nested(levels: int, around: Callable[[Any], Any], innermost: Any = 1) -> Any:
    """What `around` makes of `innermost`, of that, and so on."""
    for _ in range(levels):
        innermost = around(innermost)
    return innermost
