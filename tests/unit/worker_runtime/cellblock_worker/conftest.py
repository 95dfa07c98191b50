"""Fixtures of the worker host's tests."""

from typing import Any

import pytest

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
