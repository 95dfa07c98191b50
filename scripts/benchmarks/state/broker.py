"""Broker is the process that writes to a shared PostgreSQL, as a broker does, and says what is certain."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from benchmarks.state.kinds import AGAIN_SECONDS, KINDS
from benchmarks.state.stores import opened
from cellblock.base.database import StoreError
from cellblock.base.errors import CellblockError


class Line(NamedTuple):
    """Says how much of an item is certain.

    Args:
        kind: Its kind.
        item: Its name.
        steps: How many of its steps are certain; none when it is begun.
        text: What the last step has given.
        seconds: How long that took.
        refused: Why it does not go on; empty where it does.
    """

    kind: str
    item: str
    steps: int = 0
    text: str = ""
    seconds: float = 0.0
    refused: str = ""


REFUSALS: Final = (StoreError, CellblockError, OSError)


def write(url: str, group: str, name: str, parent: Connection) -> None:
    """Writes items of all kinds, and tells the parent of each step, until that says something or has gone."""
    asyncio.run(_write(url, group, name, parent))


async def _write(url: str, group: str, name: str, parent: Connection) -> None:
    chance = random.Random(name)
    async with opened(url, lives=True) as stores:
        for number in itertools.count():
            if parent.poll():
                return
            line = Line(chance.choice(list(KINDS)), f"{name}-{number}")
            parent.send(line)
            began = time.perf_counter()
            try:
                async for text in KINDS[line.kind].write(stores, group, line.item):
                    now = time.perf_counter()
                    line, began = Line(line.kind, line.item, line.steps + 1, text, now - began), now
                    parent.send(line)
            except REFUSALS as error:
                refused = str(error) or repr(error)
                parent.send(line._replace(seconds=0.0, refused=refused))
                await asyncio.sleep(AGAIN_SECONDS)
