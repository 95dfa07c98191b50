"""Fixtures for tests of Python tools."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cellblock.tools.python.python_calls import PythonCalls
from cellblock.tools.python.python_tools import read_tool
from support.tool_schemas import MOST, data_of
from support.waits import within

BOUND = 120.0
Call = Callable[..., Awaitable[Any]]


@pytest.fixture
async def calls() -> AsyncIterator[PythonCalls]:
    """Runs functions of Python tools."""
    made = PythonCalls(bound=BOUND, threads=4, most=MOST)
    yield made
    await made.close()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, also of what is no more than good to know."""
    caplog.set_level(logging.DEBUG, "cellblock")
    return caplog


@pytest.fixture
def call(calls: PythonCalls) -> Call:
    """Calls a function as a script would."""

    async def make(function: Callable[..., Any], /, **arguments: Any) -> Any:
        return data_of(await within(calls.call(read_tool(function), arguments)))

    return make
