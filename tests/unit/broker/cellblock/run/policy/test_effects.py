"""What is known of what a tool does."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.run.policy.effects import effect_of
from cellblock.tools.catalog.model import Effect, Given, ToolEntry


@pytest.mark.parametrize(
    ("annotations", "given", "expected"),
    [
        (None, None, None),
        ({}, None, None),
        ({"title": "Read"}, None, None),
        ({"readOnlyHint": True}, None, "read"),
        ({"readOnlyHint": False}, None, "destructive"),
        ({"readOnlyHint": False, "destructiveHint": False}, None, "write"),
        ({"destructiveHint": False}, None, "write"),
        ({"destructiveHint": True}, None, "destructive"),
        # Contradictory: the worse one.
        ({"readOnlyHint": True, "destructiveHint": True}, None, "destructive"),
        # What is no boolean says nothing.
        ({"readOnlyHint": "true"}, None, None),
        ({"readOnlyHint": 1, "destructiveHint": 0}, None, None),
        # The user's word wins, in both directions.
        ({"destructiveHint": True}, "read", "read"),
        ({"readOnlyHint": True}, "destructive", "destructive"),
        (None, "write", "write"),
    ],
)
def test_effect(annotations: dict[str, Any] | None, given: Effect | None, expected: Effect | None) -> None:
    tool = ToolEntry("t", "t", annotations=annotations, given=Given(effect=given) if given else None)
    assert effect_of(tool) == expected
