"""Type checking through a whole broker: what a response says, and what is not called."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import BaseModel, ConfigDict

from cellblock import Broker, tool
from cellblock.base.errors import InvalidRequest
from cellblock.types.check import compiler
from support.brokers import ready
from support.entries import settings, write_config
from support.processes import descendants, gone, name_of
from support.responses import error_of, succeeded
from support.waits import until, within

if compiler.why_absent() is not None:
    pytest.skip(f"{compiler.why_absent()}; {compiler.FIX}", allow_module_level=True)

TITLE = """import { list_tasks, close_task } from "@codemode/servers/local";
const { tasks } = await list_tasks();
for (const task of tasks) {
  await close_task({ name: task.title });
}
globalThis.__codemode_result__ = tasks.length;
"""
FAILS = """import { list_tasks } from "@codemode/servers/local";
const { tasks } = await list_tasks();
globalThis.__codemode_result__ = tasks.map((task) => task.title.toUpperCase());
"""
WARM_MS = 20_000
"""The bound of a check: for what takes milliseconds on a quiet machine."""


class Task(BaseModel):
    """What was observed of a task: these two, and nothing else."""

    model_config = ConfigDict(extra="forbid")
    name: str
    due: str


class Tasks(BaseModel):
    """The result of `list_tasks`."""

    model_config = ConfigDict(extra="forbid")
    tasks: list[Task]


class Recorder:
    """Tools that write down each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def tools(self) -> list[Any]:
        @tool()
        def list_tasks() -> Tasks:
            """All tasks."""
            self.calls.append("list_tasks")
            return Tasks(tasks=[Task(name="a", due="2026-01-01"), Task(name="b", due="2026-02-01")])

        @tool()
        def close_task(name: str) -> str:
            """Closes one."""
            self.calls.append(f"close {name}")
            return "closed"

        return [list_tasks, close_task]


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory, recorder: Recorder) -> AsyncIterator[Broker]:
    config = settings(tmp_path_factory.mktemp("types"), typecheck_timeout_ms=WARM_MS)
    async with ready(config, tools=recorder.tools()) as started:
        yield started


def compilers() -> list[psutil.Process]:
    """The compilers that this process has started."""
    return [process for process in descendants(psutil.Process().pid) if name_of(process) == "tsc"]


async def test_a_run_that_can_call_no_tool_starts_no_compiler(broker: Broker) -> None:
    assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1
    assert compilers() == []


async def test_before_it_runs_a_script_with_type_errors_is_refused(
    broker: Broker, recorder: Recorder
) -> None:
    response = await within(broker.run(TITLE, typecheck="before"))
    found = error_of(response, "TYPE_ERROR")
    assert "'title'" in found.message
    assert "no tool was called" in found.message
    assert found.hint == "Did you mean `name`? Task has: name, due." or "`name`" in found.hint
    assert found.path == "script.js:4:33"
    assert recorder.calls == []
    assert response.tool_trace == []
    assert response.usage.wall_ms == 0


async def test_before_it_runs_a_right_script_is_let_through(broker: Broker, recorder: Recorder) -> None:
    response = await within(broker.run(TITLE.replace("title", "name"), typecheck="before"))
    assert succeeded(response) == 2
    assert recorder.calls == ["list_tasks", "close a", "close b"]
    recorder.calls.clear()


async def test_after_a_failure_the_type_errors_are_added(broker: Broker, recorder: Recorder) -> None:
    response = await within(broker.run(FAILS))
    error_of(response, "UNCAUGHT_EXCEPTION")
    added = response.diagnostics[1]
    assert (added.severity, added.code, added.path) == ("warning", "TYPE_ERROR", "script.js:3:59")
    assert "`name`" in (added.hint or "")
    assert recorder.calls.pop() == "list_tasks"
    json.dumps(response.as_json())


async def test_a_failure_that_is_none_of_the_types_stays_as_it_was(broker: Broker) -> None:
    response = await within(broker.run("throw new Error('mine');"))
    assert [found.code for found in response.diagnostics] == ["UNCAUGHT_EXCEPTION"]
    response = await within(broker.run("for (;;) {}", limits={"timeoutMs": 300}))
    assert [found.code for found in response.diagnostics] == ["SANDBOX_LIMIT"]


async def test_a_request_may_switch_it_off(broker: Broker, recorder: Recorder) -> None:
    response = await within(broker.run(FAILS, typecheck="off"))
    assert [found.code for found in response.diagnostics] == ["UNCAUGHT_EXCEPTION"]
    recorder.calls.clear()


async def test_another_mode_is_refused_with_what_is_wanted(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="`typecheck`") as raised:
        await broker.run_request({"code": "1", "typecheck": "sometimes"})
    assert "before" in raised.value.hint


async def test_what_is_not_checked_is_said_to_who_asked(tmp_path: Path, recorder: Recorder) -> None:
    async with ready(settings(tmp_path, typecheck="off"), tools=recorder.tools()) as broker:
        response = await within(broker.run(FAILS, typecheck="before"))
        assert [found.code for found in response.diagnostics] == [
            "UNCAUGHT_EXCEPTION",
            "TYPECHECK_UNAVAILABLE",
        ]
        assert response.diagnostics[1].severity == "info"
        assert "switched off" in response.diagnostics[1].message
        response = await within(broker.run(FAILS))
        assert [found.code for found in response.diagnostics] == ["UNCAUGHT_EXCEPTION"]
    recorder.calls.clear()


async def test_the_configuration_asks_for_it_and_the_broker_takes_the_compiler_along(
    tmp_path: Path, recorder: Recorder
) -> None:
    file = write_config(tmp_path, {}, typecheck="before", state_dir=str(tmp_path / "state"))
    before = {process.pid for process in compilers()}
    async with Broker.from_config(file, tools=recorder.tools()) as broker:
        await broker.settled()
        await until(lambda: {process.pid for process in compilers()} - before, "the compiler is warmed up")
        own = [process for process in compilers() if process.pid not in before]
        error_of(await within(broker.run(TITLE)), "TYPE_ERROR")
        assert recorder.calls == []
    await gone(own)
