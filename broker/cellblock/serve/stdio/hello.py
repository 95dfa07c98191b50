"""The first line that each end of a daemon's socket writes."""

from __future__ import annotations

import json
from typing import Any, Final

KEY: Final = "cellblock"

HELLO_SECONDS: Final = 5.0
"""Bounds the wait for the other's first line."""

REFUSES_TOKEN: Final = "token"
STOPPING: Final = "stopping"
TOO_MANY: Final = "too many"


def hello(**facts: Any) -> bytes:
    """Returns the line that says these facts."""
    return json.dumps({KEY: facts}).encode() + b"\n"
