"""Type checking through a whole broker: what a response says, and what is not called.

Scripts are checked against what was observed of outputs that no one declared, too.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import BaseModel, ConfigDict

from cellblock import Broker, Grantee, InvalidRequest, RunResponse, tool
from cellblock.base.store import opened_file
from cellblock.types.check import compiler
from cellblock.types.learning.store import TABLES, Observations
from support.brokers import ready
from support.entries import plain_server, recorded, settings, write_config
from support.params import mostly
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


CALLS: list[str] = []
"""Each call of these tools in a test."""


@tool()
def list_tasks() -> Tasks:
    """All tasks."""
    CALLS.append("list_tasks")
    return Tasks(tasks=[Task(name="a", due="2026-01-01"), Task(name="b", due="2026-02-01")])


@tool()
def close_task(name: str) -> str:
    """Closes one."""
    CALLS.append(f"close {name}")
    return "closed"


TOOLS = [list_tasks, close_task]


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    config = settings(tmp_path_factory.mktemp("types"), typecheck_timeout_ms=WARM_MS)
    async with ready(config, tools=TOOLS) as started:
        yield started


def compilers() -> list[psutil.Process]:
    """The compilers that this process has started."""
    return [process for process in descendants(psutil.Process().pid) if name_of(process) == "tsc"]


def codes(response: RunResponse) -> list[str]:
    return [found.code for found in response.diagnostics]


async def test_a_run_that_can_call_no_tool_starts_no_compiler(broker: Broker) -> None:
    assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1
    assert compilers() == []


async def test_before_it_runs_a_script_with_type_errors_is_refused(broker: Broker) -> None:
    response = await within(broker.run(TITLE, typecheck="before"))
    found = error_of(response, "TYPE_ERROR")
    assert "'title'" in found.message and "no tool was called" in found.message
    assert "`name`" in found.hint and found.path == "script.js:4:33"
    assert (CALLS, response.tool_trace, response.usage.wall_ms) == ([], [], 0)


async def test_before_it_runs_a_right_script_is_let_through(broker: Broker) -> None:
    assert succeeded(await within(broker.run(TITLE.replace("title", "name"), typecheck="before"))) == 2
    assert CALLS == ["list_tasks", "close a", "close b"]


async def test_after_a_failure_the_type_errors_are_added(broker: Broker) -> None:
    response = await within(broker.run(FAILS))
    error_of(response, "UNCAUGHT_EXCEPTION")
    added = response.diagnostics[1]
    assert (added.severity, added.code, added.path) == ("warning", "TYPE_ERROR", "script.js:3:59")
    assert "`name`" in (added.hint or "")
    assert CALLS == ["list_tasks"]
    json.dumps(response.as_json())


@pytest.mark.parametrize(
    ("code", "more", "told"),
    [
        ("throw new Error('mine');", {}, "UNCAUGHT_EXCEPTION"),
        ("for (;;) {}", {"limits": {"timeoutMs": 300}}, "SANDBOX_LIMIT"),
        (FAILS, {"typecheck": "off"}, "UNCAUGHT_EXCEPTION"),
    ],
    ids=["its own exception", "a limit", "switched off by the request"],
)
async def test_a_failure_that_is_none_of_the_types_stays_as_it_was(
    broker: Broker, code: str, more: dict[str, Any], told: str
) -> None:
    assert codes(await within(broker.run(code, **more))) == [told]


async def test_another_mode_is_refused_with_what_is_wanted(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="`typecheck`") as raised:
        await broker.run_request({"code": "1", "typecheck": "sometimes"})
    assert "before" in raised.value.hint


async def test_what_is_not_checked_is_said_to_who_asked(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, typecheck="off"), tools=TOOLS) as broker:
        _, told = (await within(broker.run(FAILS, typecheck="before"))).diagnostics
        assert (told.severity, told.code) == ("info", "TYPECHECK_UNAVAILABLE")
        assert "switched off" in told.message
        assert codes(await within(broker.run(FAILS))) == ["UNCAUGHT_EXCEPTION"]


async def test_the_configuration_asks_for_it_and_the_broker_takes_the_compiler_along(tmp_path: Path) -> None:
    file = write_config(tmp_path, {}, typecheck="before", state_dir=str(tmp_path / "state"))
    before = {process.pid for process in compilers()}
    async with Broker.from_config(file, tools=TOOLS) as broker:
        await broker.settled()
        await until(lambda: {process.pid for process in compilers()} - before, "the compiler is warmed up")
        own = [process for process in compilers() if process.pid not in before]
        error_of(await within(broker.run(TITLE)), "TYPE_ERROR")
        assert CALLS == []
    await gone(own)


TASK = '{ name: "Buy milk", due: "2026-12-01" }'

AS_TEXT = ("echo", "JSON.parse(await echo({input}))")
STRUCTURED = ("give", "(await give({input}))")


def script(how: tuple[str, str], use: str, given: str = TASK) -> str:
    """A script that calls the tool and reads from its result what `use` says."""
    function, call = how
    value = call.replace("{input}", given)
    return (
        f'import {{ {function} }} from "@codemode/servers/plain";\n'
        f"const task = {value};\nglobalThis.__codemode_result__ = {use};\n"
    )


def checking(folder: Path, *options: object, **section: Any) -> AbstractAsyncContextManager[Broker]:
    """A broker with a plain server, and time for checks."""
    return ready(settings(folder, {"plain": plain_server(*options)}, typecheck_timeout_ms=WARM_MS, **section))


@pytest.mark.parametrize(
    ("how", "schemas"),
    mostly(
        [(AS_TEXT, {})],
        [(AS_TEXT, {}), (("echo", "(await echo({input}))"), {"unwrap": "json"}), (STRUCTURED, {})],
    ),
    ids=["text", "unwrapped text", "structured content"],
)
async def test_a_member_that_no_result_had_is_refused_before_any_call(
    tmp_path: Path, how: tuple[str, str], schemas: dict[str, Any]
) -> None:
    record = tmp_path / "ledger.jsonl"
    wrong = script(how, "task.title.toUpperCase()")
    async with checking(tmp_path, "--ledger", record, schemas=schemas) as broker:
        # Nothing is known, and so nothing is refused.
        unknown = await within(broker.run(script(how, "task.title ?? task.name"), typecheck="before"))
        assert succeeded(unknown) == "Buy milk"
        await broker.learnt(30.0)
        # One result refuses nothing.
        once = await within(broker.run(script(how, "String(task.title)"), typecheck="before"))
        assert succeeded(once) == "undefined"
        await broker.learnt(30.0)
        before = recorded(record, event="call")

        refused = await within(broker.run(wrong, typecheck="before"))
        found = error_of(refused, "TYPE_ERROR")
        assert "'title'" in found.message and "no tool was called" in found.message
        assert "Did you mean `name`?" in str(found.hint) and f"{how[0]} (2 results)" in str(found.hint)
        assert recorded(record, event="call") == before and not refused.tool_trace

        right = await within(broker.run(script(how, "[task.name, task.due]"), typecheck="before"))
        assert succeeded(right) == ["Buy milk", "2026-12-01"]
        guarded = await within(broker.run(script(how, "task.title ?? null"), typecheck="before"))
        assert succeeded(guarded) is None, "who looks before reading is let through, as the hint says"

        # A result with the member, and the same script is right.
        taught = '{ name: "Buy milk", title: "now there", due: "2026-12-01" }'
        await within(broker.run(script(how, "1", taught)))
        await broker.learnt(30.0)
        assert (
            succeeded(await within(broker.run(wrong.replace(TASK, taught), typecheck="before")))
            == "NOW THERE"
        )


async def test_a_member_that_came_this_time_is_told_of_no_other_place(tmp_path: Path) -> None:
    known = '{ order: { sum: 1 }, buyer: { name: "A" } }'
    async with checking(tmp_path) as broker:
        for _ in range(2):
            await within(broker.run(script(STRUCTURED, "1", known)))
        await broker.learnt(30.0)
        for use, given, hint in (
            ("String(task.sum)", known, "`sum` is in `order`: read `task.order.sum`."),
            ("String(task.sum)", '{ sum: 2, order: { sum: 1 }, buyer: { name: "A" } }', None),
            ("String(task.order.name)", known, "It has: sum."),
            ("String(task.order.name)", '{ order: { sum: 1, name: "x" }, buyer: { name: "A" } }', None),
            ("String(task.error)", '{ error: "none" }', None),
        ):
            response = await within(broker.run(script(STRUCTURED, use, given)))
            told = [found.hint or "" for found in response.diagnostics if found.code == "TYPE_ERROR"]
            assert [hint in one for one in told] == [True] * (hint is not None), (use, given, told)


async def test_what_is_forgotten_is_no_longer_checked(tmp_path: Path) -> None:
    wrong = script(STRUCTURED, "String(task.title)")
    async with checking(tmp_path) as broker:
        for _ in range(2):
            await within(broker.run(script(STRUCTURED, "task.name")))
        await broker.learnt(30.0)
        error_of(await within(broker.run(wrong, typecheck="before")), "TYPE_ERROR")
        store = Observations(opened_file(tmp_path / TABLES.file, TABLES))
        assert store.clear("plain") == 1
        store.close()
        (server,) = broker.catalog.servers.values()
        give = server.by_export["give"]
        await until(lambda: broker.output_of(server, give) is None, "the running broker forgets, too")
        assert succeeded(await within(broker.run(wrong, typecheck="before"))) == "undefined"


async def test_an_error_names_what_its_principal_alone_has_shown_to_nobody_else(tmp_path: Path) -> None:
    wrong = script(STRUCTURED, "String(task.alic)", "{}")
    one, other = Grantee("oauth:a"), Grantee("oauth:b")
    async with checking(tmp_path) as broker:
        for _ in range(2):
            await within(broker.run(script(STRUCTURED, "1", '{ ["ali" + "ce"]: "x" }'), grantee=one))
            await broker.learnt(30.0)
        for _ in range(2):
            # The same script: what is kept of the one's check is not told to the other.
            refused = await within(broker.run(wrong, grantee=one, typecheck="before"))
            assert "alice" in (error_of(refused, "TYPE_ERROR").hint or "")
            others = await within(broker.run(wrong, grantee=other, typecheck="before"))
            assert succeeded(others) == "undefined" and "alice" not in str(others)
