"""Large or slow scripts are parsed in a process: the same answer, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys

import psutil
import pytest

from cellblock.execution import source_apart
from cellblock.execution.imports import TooComplex, TooSlow, find_imports
from cellblock.execution.source_apart import INLINE_BYTES, Analyst
from support import gone, until, within

MIXED = (
    'import { a } from "@codemode/servers/é";\nconst s = "\U0001f4a5"; await import("@codemode/x"); '
    "await import(s);\n"
).encode()


@pytest.fixture
def parsed_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is parsed in this process."""
    sizes: list[int] = []

    def recording(source: bytes, bound: float) -> object:
        sizes.append(len(source))
        return find_imports(source, bound)

    monkeypatch.setattr(source_apart, "find_imports", recording)
    return sizes


async def test_a_small_script_is_parsed_here(parsed_here: list[int]) -> None:
    found = await Analyst().find(MIXED)
    assert parsed_here == [len(MIXED)]
    assert (len(found.statics), [span.is_string for span in found.dynamics]) == (1, [True, False])


@pytest.mark.parametrize("ending", [b"", b"let a: number = 1;"])
async def test_a_large_script_is_parsed_apart_with_the_same_answer(
    ending: bytes, parsed_here: list[int]
) -> None:
    source = MIXED + b"f(1);\n" * (INLINE_BYTES // 6) + ending
    found = await within(Analyst().find(source))
    assert parsed_here == []
    assert found == find_imports(source, 20)


async def test_a_small_script_that_is_slow_goes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_apart, "INLINE_SECONDS", 0.0)
    source = MIXED * 100
    assert await within(Analyst().find(source)) == find_imports(source, 20)


async def test_a_refusal_comes_from_apart(parsed_here: list[int]) -> None:
    with pytest.raises(TooComplex, match="nested too deeply"):
        await within(Analyst().find(b"[" * 200_000))
    assert parsed_here == []


async def test_the_loop_goes_on_while_a_large_script_is_parsed() -> None:
    work = asyncio.ensure_future(Analyst().find(b"function f(a) { return a.map((x) => x + 1); }\n" * 10_000))
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0.005)
    await work
    # Parsed here, it would have taken all of the time in one turn.
    assert turns > 5


async def test_a_parser_that_dies_or_hangs_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"f();\n" * INLINE_BYTES
    with monkeypatch.context() as patch:
        patch.setattr(source_apart, "PROCESS_BOUND_SECONDS", 0.0)
        with pytest.raises(TooSlow):
            await within(Analyst().find(large))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TooComplex, match="ran out"):
        await within(Analyst().find(large))


async def test_a_cancelled_caller_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children()}
    work = asyncio.ensure_future(Analyst().find(b"1 + " * 250_000 + b"1"))

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process(os.getpid()).children() if child.pid not in before]

    await until(started, "a process")
    children = started()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await gone(children)
