"""Fixtures of the worker host's tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from cellblock_worker.confinement import confinement
from support.fake_worker import FakeWorkers
from support.scripted_broker import StartHost


@pytest.fixture
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    """Puts small Python programs in the place of Deno."""
    return FakeWorkers(monkeypatch)


@pytest.fixture
def serve(start_host: StartHost, fake_workers: FakeWorkers) -> StartHost:
    """Starts a host whose workers run a program: the host, and its broker."""

    def start(program: str, **changes: Any) -> Any:
        fake_workers.run(program)
        return start_host(**changes)

    return start


@pytest.fixture
def contexts() -> Iterator[None]:
    """Workers boot so that they can have several runs."""
    if not confinement.use_contexts(True):
        pytest.skip("this system keeps no kernel limits")
    yield
    confinement.use_contexts(False)
