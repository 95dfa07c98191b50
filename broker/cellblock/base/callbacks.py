"""Calls into code that is not the caller's own: what it raises is logged, and the caller goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

logger = logging.getLogger("cellblock")

P = ParamSpec("P")


def tell(callback: Callable[P, object] | None, *args: P.args, **kwargs: P.kwargs) -> None:
    """Calls `callback`, if there is one; an exception of it is logged with its traceback and goes no further."""
    if callback is None:
        return
    try:
        callback(*args, **kwargs)
    except Exception:
        logger.exception("a callback raised: %r", callback)


class Listeners:
    """Holds whoever wants to know that something has changed."""

    def __init__(self) -> None:
        self._all: dict[object, Callable[[], object]] = {}

    def add(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called from now on, on the event loop; the function that is returned ends that."""
        key = object()
        self._all[key] = listener

        def remove() -> None:
            self._all.pop(key, None)

        return remove

    def tell(self) -> None:
        for listener in list(self._all.values()):
            tell(listener)
