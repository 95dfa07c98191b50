"""Where brokers under test keep things: files of a folder, or a PostgreSQL of a test."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from cellblock.base.store import LocalStore
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState

KEY = bytes(range(32))
OTHER_KEY = bytes(range(32, 64))

AnyStore = LocalStore | SharedState


def state_of(server: PostgresServer, *keys: bytes) -> SharedState:
    """What one more broker has of a PostgreSQL, which has just looked."""
    state = SharedState(server, keys or (KEY,))
    state.rows.read()
    return state


@pytest.fixture
def shared_state(postgres_url: str) -> Generator[SharedState]:
    """What one broker has of an empty database."""
    shared = SharedState(PostgresServer(postgres_url), (KEY,))
    yield shared
    shared.close()


@pytest.fixture(params=["files", pytest.param("postgresql", marks=pytest.mark.slow)])
def store_of_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Callable[[], AnyStore]]:
    """Gives the store as another broker has it each time, which has just looked."""
    made: list[SharedState] = []
    # Not in `store`, which threads call.
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""

    def store() -> AnyStore:
        if request.param == "files":
            return LocalStore(tmp_path)
        made.append(state_of(PostgresServer(url)))
        return made[-1]

    yield store
    for shared in made:
        shared.close()
