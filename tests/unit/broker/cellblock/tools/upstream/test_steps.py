"""What a server sends holds the loop for no long step, however many parts it has."""

import asyncio
import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.budget import Budget
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import end_tasks
from cellblock.run.call_results import unwrap
from cellblock.tools.upstream.dispatcher import Connection, sdk_result
from cellblock.tools.upstream.pace import MESSAGES_IN_STEP, Holding
from cellblock.tools.upstream.stdio import stdio_wire
from cellblock.tools.upstream.wire.messages import MOST_ITEMS, Result
from cellblock.tools.upstream.wire.repair import Page, carried
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult
from support.loop_steps import longest_step
from support.waits import until

SIZE = 16_000_000


def filled(start: bytes, part: bytes, end: bytes) -> bytes:
    """About `SIZE` bytes of one part."""
    return start + part * (SIZE // len(part)) + end


@functools.cache
def members() -> bytes:
    """The same of an object; not made by each process that collects tests."""
    return b"{%s}" % b",".join(b'"%d":1' % number for number in range(SIZE // 11))


Body = Callable[[], bytes]


def script_gets(body: bytes) -> object:
    """The first bytes of what a script gets of a result."""
    result: ToolResult = carried(sdk_result("tools/call", Result(1, body), None)["_meta"])
    assert not result.remarks()
    return unwrap(result, server="s", tool="t", box="only").body[:30]


def listed(body: bytes) -> int:
    """How many items are taken of a page of tools."""
    page: Page = carried(sdk_result("tools/list", Result(1, body), None)["_meta"])
    return len(page.items)


def contents(body: bytes) -> int:
    """How many contents a script gets of a resource."""
    return ResourceResult(body).for_script()[0].count(b"1")


@pytest.mark.parametrize(
    ("taken", "body", "gets"),
    [
        (script_gets, lambda: filled(b'{"content":[', b"1,", b"1]}"), b'{"content":[1,1,1,1,1,1,1,1,1,'),
        (script_gets, lambda: b'{"content":[%s]}' % members(), b'{"content":[{"0":1,"1":1,"2":1'),
        (script_gets, lambda: b'{"structuredContent":%s}' % members(), b'{"0":1,"1":1,"2":1,"3":1,"4":1'),
        (
            script_gets,
            lambda: filled(b'{"structuredContent":{"only":[', b"1,", b"1]}}"),
            b"[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
        ),
        (script_gets, lambda: members()[:-1] + b',"content":[{"type":"text","text":"said"}]}', b'"said"'),
        (listed, lambda: filled(b'{"tools":[', b"1,", b"1]}"), MOST_ITEMS),
        (listed, lambda: b'{"tools":%s}' % members(), 0),
        (contents, lambda: filled(b'{"contents":[', b"1,", b"1]}"), MOST_ITEMS),
    ],
    ids=[
        *("items", "members of a block", "members of a value", "one member", "members beside"),
        *("list", "list as an object", "contents"),
    ],
)
async def test_a_result_of_very_many_parts_holds_the_loop_for_no_long_step(
    taken: Callable[[bytes], object], body: Body, gets: object
) -> None:
    """In CPU time of this thread, which no other process adds to; the bound is 60 ms on a machine that is quiet."""
    made = body()
    with longest_step() as longest:
        await asyncio.sleep(0)
        found = taken(made)
        await asyncio.sleep(0)
    assert found == gets
    assert longest[0] < 0.3


class NoWire:
    """A wire on which nothing is sent."""

    where = "nowhere"

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize("part", [b"1,", b'{"method":"a"},', b"{},"], ids=["numbers", "notices", "objects"])
async def test_a_batch_of_very_many_messages_is_none(part: bytes) -> None:
    noted: list[str] = []
    nowhere: Any = NoWire()
    connection = Connection(nowhere, asyncio.Event(), noted.append)
    with longest_step() as longest:
        assert await connection.received(filled(b"[", part, b"1]")) == 1
    assert len(noted) <= 1
    assert longest[0] < 0.3


CHATTERS = "import sys; sys.stdout.write('1\\n' * 100_000); sys.stdout.flush(); sys.stdin.read()"


async def test_of_many_lines_few_are_read_before_others_have_their_turn(tmp_path: Path) -> None:
    passes, noted = 0, Counter[int]()

    async def ticking() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    config = ServerConfig(command=sys.executable, args=["-I", "-c", CHATTERS])
    with (tmp_path / "log").open("w") as log:
        holding = Holding(Budget.of_servers(), "chatters")
        async with stdio_wire(config, stderr=log, cap=1 << 20, holding=holding) as wire:
            connection = Connection(wire, asyncio.Event(), lambda _: noted.update([passes]))
            tasks = [asyncio.create_task(ticking()), asyncio.create_task(wire.run(connection))]
            await until(lambda: noted.total() > 800, "some have come")
            await end_tasks(*tasks)
    assert max(noted.values()) <= MESSAGES_IN_STEP + 1
