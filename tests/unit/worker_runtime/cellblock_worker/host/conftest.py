"""Tests of the host make one process of a key wait for another, however many cores there are."""

import pytest

from cellblock_worker.host import reusable


@pytest.fixture(autouse=True)
def one_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reusable, "CORES", 1)
