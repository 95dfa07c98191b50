"""What `serve` sets for its whole process, and an embedded broker must not."""

from __future__ import annotations

import sys

import pytest

from cellblock.app.cli.serve import SWITCH_SECONDS, own_process
from cellblock.app.first_collection import FirstCollection


def test_a_process_of_the_brokers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.getswitchinterval()
    monkeypatch.setattr(FirstCollection, "freezes", False)
    try:
        # Commands that other tests run in this process may have set it.
        sys.setswitchinterval(5 * SWITCH_SECONDS)
        own_process()
        assert FirstCollection.freezes
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(before)
