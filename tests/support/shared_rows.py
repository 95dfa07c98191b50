"""What brokers share of small things, in a PostgreSQL of a test."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from cellblock.base.postgresql import PostgresServer
from cellblock.base.shared_rows import SharedRows
from cellblock.base.shared_state import SharedState
from cellblock.base.state_keys import StateKeys

KEY = bytes(range(32))
OTHER_KEY = bytes(range(32, 64))

Where = Path | SharedRows
"""Where small things are kept: a folder, or rows."""


def rows_of(server: PostgresServer, *keys: bytes) -> SharedRows:
    """The rows as one more broker has them, which has just looked."""
    rows = SharedRows(server, StateKeys(keys or (KEY,)))
    rows.read()
    return rows


@pytest.fixture
def shared_state(postgres_url: str) -> Generator[SharedState]:
    """What one broker has of an empty database."""
    shared = SharedState(postgres_url, (KEY,))
    yield shared
    shared.close()


@pytest.fixture
def place_of_broker(kept_in: Path | PostgresServer) -> Callable[[], Where]:
    """Gives the place where things are kept, as another broker sees it each time."""
    return lambda: kept_in if isinstance(kept_in, Path) else rows_of(kept_in)
