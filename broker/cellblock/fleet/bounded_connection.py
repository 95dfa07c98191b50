"""A bounded connection gives up a PostgreSQL that says nothing for too long.

Its machine may live while its processes stand still, or its disk does: then TCP has all acknowledged, and no timeout of
the server comes.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Final

import psycopg

SILENT_SECONDS: Final = 30.0
"""Bounds a silence while an answer is due: more than the server's own bound on a statement."""


class BoundedConnection(psycopg.Connection[Any]):
    """A bounded connection is closed when the server is silent for too long.

    Attributes:
        silence: So many seconds are too long; who asks for what takes longer says so before.
    """

    silence: float = SILENT_SECONDS

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Waits for PostgreSQL as psycopg does. Raises psycopg.OperationalError: The server was silent for too
        long."""
        return super().wait(self._heard(gen), *args, **options)

    def _heard(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        since = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                # Nothing is ready a few times a second, too: psycopg looks for signals.
                if ready := (yield wanted):
                    since = time.monotonic()
                elif time.monotonic() - since > self.silence:
                    self.close()
                    raise psycopg.OperationalError(f"it has been silent for {self.silence:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
