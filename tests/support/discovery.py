"""Asks `Discovery` as a run does."""

import json
from typing import Any

from cellblock.types.discovery import Discovery, Operation


def answered(discovery: Discovery, operation: Operation, arguments: list[Any]) -> Any:
    """Gives the answer to one request, as a script has it."""
    steps = discovery.encoded(operation, arguments, lambda value: json.dumps(value).encode())
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return json.loads(end.value)
