"""Python tools of the server `local` for runs that are parked, brokers with them, and how often each was called."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellblock import Broker, tool
from support.entries import settings

MADE: Counter[str] = Counter()
"""Counts calls by tool and number, such as `write 1`; a test clears it before it counts."""

IMPORTS = 'import { read, write } from "@codemode/servers/local";\n'


@tool()
def write(n: int) -> int:
    "Writes."
    MADE[f"write {n}"] += 1
    return n * 10


@tool()
def read(n: int) -> int:
    "Reads."
    MADE[f"read {n}"] += 1
    return n


LIGHT: dict[str, Any] = {"auth": {"keyring": "off"}, "typecheck": "off"}


def broker_on(folder: Path, tools: Sequence[Any] = (read, write), **section: Any) -> Broker:
    """A broker with this state directory."""
    return Broker(settings(folder, **LIGHT, **section), tools=tools)
