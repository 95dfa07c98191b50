"""The manual stands in the instructions, names every limit, and is the same text for the same settings."""

from __future__ import annotations

from cellblock.catalog.model import Catalog, ServerEntry
from cellblock.config import LimitRange, LimitSettings
from cellblock.execution.limits import KEYS
from cellblock.frontend.manual import instructions, manual

MAX_CHARS = 5_000
"""About 1,250 tokens: what an agent is asked to read before its first script."""


def test_the_instructions_are_the_manual_and_the_servers() -> None:
    limits = LimitSettings()
    catalog = Catalog(1, {"files": ServerEntry("files", "Files", "files")}, {"wiki": "HTTP 401"})
    text = instructions(limits, catalog)
    assert manual(limits) in text
    assert "@codemode/servers/files: 0 tools" in text
    assert "@codemode/servers/wiki: not connected" in text
    assert text == instructions(limits, catalog)


def test_every_limit_is_told_with_the_settings_own_figures() -> None:
    text = manual(LimitSettings(timeout_ms=LimitRange(default=1234, maximum=5678)))
    assert "timeoutMs 1234 (at most 5678) ms" in text
    assert all(key in text for key in KEYS)


def test_it_is_short_enough_to_be_read() -> None:
    assert len(manual(LimitSettings())) < MAX_CHARS
