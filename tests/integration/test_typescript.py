"""TypeScript through a whole broker: its results, and the exact places of its errors."""

from collections.abc import AsyncIterator

import pytest

from cellblock import Broker
from cellblock.script.parsing import INLINE_BYTES
from support.entries import plain_server, settings
from support.responses import error_of, succeeded
from support.waits import within


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with Broker(
        settings(tmp_path_factory.mktemp("typescript"), {"plain": plain_server()}, typecheck="off")
    ) as running:
        yield running


SCRIPT = """import { echo, type EchoOutput } from "@codemode/servers/plain";
import { NoSuchType } from "@codemode/servers/plain";
import type { Other } from "@codemode/servers/plain";
interface Item<T> { value: T; [key: string]: unknown }
const items = ([1, 2] as number[]).map((value): Item<number> => ({ value }));
const typed: EchoOutput | NoSuchType | undefined = undefined;
await echo({} as any);
const errors = (await import("@codemode/errors")) as Record<string, unknown>;
globalThis.__codemode_result__ = [items.map((item: Item<number>) => item.value!), typeof errors];
"""


@pytest.mark.parametrize("padding", ["", "// filler é💥\n" * (INLINE_BYTES // 10)])
async def test_a_script_with_types_gives_its_result(broker: Broker, padding: str) -> None:
    """A large one is parsed in a process; both ways take out the same."""
    assert succeeded(await within(broker.run(SCRIPT + padding))) == [[1, 2], "object"]


FAILING = [
    "const é: '💥' = '💥' as '💥'; const s: number = 1; throw new Error('here') as unknown;",
    "type A = {\r\n  b: 1;\r\n};\r\nconst f = (a: A): {\r\n  c: 2\r\n} => { throw new Error(`${a!}` as string) };\r\n"
    "f(1 as any);",
    'import { echo } from "@codemode/servers/plain"; const a: any = 1; await echo({} as any); throw new Error("x");',
]


@pytest.mark.parametrize("code", FAILING)
async def test_an_error_has_its_place_in_the_agents_source(broker: Broker, code: str) -> None:
    found = error_of(await within(broker.run(code)), "UNCAUGHT_EXCEPTION")
    before = code[: code.index("new Error")]
    line = before.count("\n") + 1
    column = len(before.rpartition("\n")[2].encode("utf-16-le")) // 2 + 1
    assert found.path == f"script.js:{line}:{column}"


async def test_what_blanks_cannot_express_is_compiled(broker: Broker) -> None:
    code = "enum E { A, B } globalThis.__codemode_result__ = E.B as number;"
    assert succeeded(await within(broker.run(code))) == 1
