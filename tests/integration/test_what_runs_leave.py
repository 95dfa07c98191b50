"""A run's parts go when it is over: what waits for the garbage collector stays long, and holds the loop when it goes.
The frames of a call that was cancelled wait for it all the same: the exception in them knows them."""

import gc
from pathlib import Path

import pytest

from cellblock import Broker, tool
from cellblock.record.journal import Journal
from cellblock.run.context import RunContext
from cellblock.run.run import Run
from cellblock.run.side_checks import SideCheck
from support.entries import settings
from support.params import mostly
from support.waits import until

IMPORTS = "import { echo, fail } from '@codemode/servers/local';\n"
ENDINGS = {
    "finished": "console.log(1); await Promise.all([echo({ text: 'a' }), echo({ text: 'b' })]);",
    "failed": "await fail({});",
    "killed": "while (true);",
    "refused": "import '@codemode/servers/none';",
}


@tool
async def echo(text: str) -> str:
    """Gives a text back."""
    return text


@tool
async def fail() -> None:
    """Fails."""
    raise ValueError("no")


def left() -> set[int]:
    return {id(one) for one in gc.get_objects() if isinstance(one, Run | RunContext | SideCheck | Journal)}


@pytest.mark.parametrize("durable", mostly([True], [False, True]))
async def test_no_run_waits_for_the_collector(tmp_path: Path, durable: bool) -> None:
    async with Broker(settings(tmp_path), tools=[echo, fail]) as broker:
        await broker.run(IMPORTS + ENDINGS["finished"], durable=durable)
        gc.collect()
        before = left()
        gc.disable()
        try:
            for code in ENDINGS.values():
                await broker.run(IMPORTS + code, limits={"timeoutMs": 700}, durable=durable)
            # The last check of types, and the last write, may take a moment.
            await until(lambda: not left() - before, "no run is left")
        finally:
            gc.enable()
