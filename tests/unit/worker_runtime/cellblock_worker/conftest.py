"""Fixtures of the worker host's tests."""

import pytest

from support.fake_worker import FakeWorkers


@pytest.fixture
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    """Puts small Python programs in the place of Deno."""
    return FakeWorkers(monkeypatch)
