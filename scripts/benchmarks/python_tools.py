"""What a Python tool costs: at registration, and in each call over the function itself.

Medians; the yardsticks (a bare call, pydantic alone, `asyncio.to_thread`) are of the same run, so read the ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from benchmarks.harness import median_of, parser, seconds_of
from cellblock.python_tools.python_calls import PythonCalls
from cellblock.python_tools.python_tools import read_tool

ROUNDS = 300
REGISTRATIONS = 40


@dataclass
class Address:
    """A part of a profile."""

    street: str
    city: str


class Profile(BaseModel):
    """A result of some size."""

    name: str = Field(min_length=1)
    addresses: list[Address]
    tags: dict[str, int] = {}


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


async def add_later(a: int, b: int = 1) -> int:
    """Adds on the event loop."""
    return a + b


_PROFILE = Profile(name="Ada", addresses=[Address(f"{n} Main", "SF") for n in range(100)])


async def profile(name: str) -> Profile:
    """Gives a hundred dataclasses."""
    return _PROFILE


async def unannotated(name: Any):
    """The same without a word about it: no schema to check."""
    return _PROFILE


async def timed_async(work: Callable[[], Awaitable[Any]]) -> float:
    """Median seconds of an awaited call."""
    return statistics.median([await seconds_of(work()) for _ in range(ROUNDS)])


def row(what: str, value: float, yard: float) -> None:
    """One line of the table."""
    print(f"  {what:<46} {value * 1e6:>9.1f} µs   × {value / yard:.1f}")


def registration() -> None:
    """Schemas are made once, here."""
    print("registration, CPU time (yardstick: pydantic's TypeAdapter and JSON Schema of a small dataclass)")
    cpu = time.process_time
    yard = median_of(lambda: TypeAdapter(Address).json_schema(mode="serialization"), REGISTRATIONS, cpu)
    row("yardstick", yard, yard)
    functions: list[Callable[..., Any]] = [add, profile, unannotated]
    for function in functions:
        row(
            f"read_tool({function.__name__})",
            median_of(lambda f=function: read_tool(f), REGISTRATIONS, cpu),
            yard,
        )


async def calling() -> None:
    """What a call adds to the function."""
    calls = PythonCalls(bound=30, threads=4)

    def through(function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
        python_tool = read_tool(function)
        return lambda: calls.call(python_tool, arguments)

    print("call of a plain function (yardstick: asyncio.to_thread of the bare function)")
    yard = await timed_async(lambda: asyncio.to_thread(add, 1))
    row("yardstick", yard, yard)
    row("add", await timed_async(through(add, {"a": 1})), yard)
    print("call of an async function (yardstick: awaiting a task of the bare function)")
    yard = await timed_async(lambda: asyncio.create_task(add_later(1)))
    row("yardstick", yard, yard)
    row("add_later", await timed_async(through(add_later, {"a": 1})), yard)
    print("a result of 100 dataclasses (yardstick: pydantic's dump alone)")
    adapter = TypeAdapter(Profile)
    yard = median_of(lambda: adapter.dump_python(_PROFILE, mode="json"), ROUNDS)
    row("yardstick", yard, yard)
    row("profile", await timed_async(through(profile, {"name": "a"})), yard)
    row("unannotated (not checked)", await timed_async(through(unannotated, {"name": "a"})), yard)
    await calls.close()


def main(arguments: Sequence[str]) -> int:
    """Prints both tables; returns 0."""
    parser("python_tools", __doc__).parse_args(arguments)
    registration()
    asyncio.run(calling())
    return 0
