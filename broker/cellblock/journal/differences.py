"""Differences tells in what the response of a replay is not the recorded one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cellblock.base.json import is_array, is_object

MAX_DIFFERENCES: Final = 20
"""Bounds what is told: the first ones say enough."""

PARTS: Final = ("logs", "result", "diagnostics", "toolTrace")
"""Names the parts of a response that a replay must give again to the byte; `usage` is of the machine and the moment."""


def differences(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists the first places at which two responses differ: a JSON pointer, and what is there in each."""
    found: list[dict[str, Any]] = []
    for part in PARTS:
        _compare(recorded.get(part), replayed.get(part), f"/{part}", found)
    return found[:MAX_DIFFERENCES]


def _compare(before: Any, after: Any, path: str, found: list[dict[str, Any]]) -> None:
    if len(found) >= MAX_DIFFERENCES:
        return
    already = len(found)
    if is_object(before) and is_object(after):
        for name in [*before, *(name for name in after if name not in before)]:
            _compare(before.get(name), after.get(name), f"{path}/{name}", found)
        if len(found) == already and list(before) != list(after):
            # The same members in another order, or a null in place of none, are other bytes.
            found.append({"path": path, "recorded": list(before), "replayed": list(after)})
    elif is_array(before) and is_array(after):
        for index in range(max(len(before), len(after))):
            one, other = (items[index] if index < len(items) else None for items in (before, after))
            _compare(one, other, f"{path}/{index}", found)
        if len(found) == already and len(before) != len(after):
            found.append({"path": path, "recorded": before, "replayed": after})
    elif repr(before) != repr(after):
        # Equal numbers may have other bytes: 1 and 1.0, 0.0 and -0.0.
        found.append({"path": path, "recorded": before, "replayed": after})
