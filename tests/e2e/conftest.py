"""One daemon for all tests of a process that leave it as it was."""

from collections.abc import AsyncIterator

import pytest

from support.http_daemon import Daemon, daemon


@pytest.fixture(scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Daemon]:
    # `anyio_backend` is named for the sake of tests that are not async.
    async with daemon(tmp_path_factory.mktemp("served")) as running:
        yield running
