"""Type checking through a whole broker: what a response says, and what is not called.

Scripts are checked against what was observed of outputs that no one declared, too. Wrong scripts are told, also when
they succeed.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import BaseModel, ConfigDict

from cellblock import Broker, Grantee, InvalidRequest, RunResponse, TypecheckMode, tool
from cellblock.base.database import SqliteDatabase
from cellblock.types.check import compiler
from cellblock.types.check.checker import TypeChecker
from cellblock.types.learning.store import TABLES, Observations
from support.brokers import ready
from support.entries import plain_server, recorded, settings, tracker, write_config
from support.params import mostly
from support.processes import descendants, gone, name_of, stopped
from support.responses import error_of, succeeded
from support.waits import WAIT_BOUND_SECONDS, until, within

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
WARM_MS = 60_000
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
        store = Observations(SqliteDatabase(tmp_path / TABLES.file, TABLES))
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


OPEN = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ANSWERS: dict[str, Any] = {
    name: {"content": [], "structuredContent": value}
    for name, value in (
        ("ticket", {"status": "open"}),
        ("other_ticket", {"status": "Done"}),
        ("member", {"name": "Ada"}),
    )
}
TEXT_TOOLS = [
    *(
        {
            "name": name,
            "inputSchema": {"type": "object"},
            "outputSchema": {
                "type": "object",
                "properties": {"status": {"enum": ["open", "closed"]}},
                "required": ["status"],
            },
        }
        for name in ("ticket", "other_ticket")
    ),
    {
        "name": "declared",
        "inputSchema": {"type": "object"},
        "outputSchema": {
            "type": "object",
            "properties": {"issues": {"type": "array", "items": {"type": "object"}}},
        },
    },
    {"name": "undeclared", "inputSchema": {"type": "object"}},
    {
        "name": "tag",
        "inputSchema": {
            "type": "object",
            "properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
            "required": ["tags"],
        },
    },
    {
        "name": "member",
        "inputSchema": {"type": "object"},
        "outputSchema": {**OPEN, "additionalProperties": False},
    },
]


@tool(output_schema=OPEN)
def person(more: bool = False) -> Any:
    """A person, sometimes with what the schema does not declare."""
    return {"name": "Ada", "nickname": "A"} if more else {"name": "Ada"}


def importing(code: str) -> str:
    """With the imports of all these tools, each on a line of its own."""
    modules = {"tracker": "tracker", "plain": "texts", "local": "local"}
    imports = [f'import * as {name} from "@codemode/servers/{module}";' for module, name in modules.items()]
    return "\n".join([*imports, code])


def result(value: str) -> str:
    return importing(f"globalThis.__codemode_result__ = {value};")


def told(response: RunResponse) -> list[tuple[str, str]]:
    """Message and hint of each type error that is no more than a warning."""
    return [
        (found.message, found.hint or "")
        for found in response.diagnostics
        if found.code == "TYPE_ERROR" and found.severity == "warning"
    ]


async def told_once(tracked: Broker, code: str) -> tuple[Any, str]:
    """The result of a script that succeeds, and the one thing that it is told."""
    response = await within(tracked.run(code))
    ((message, hint),) = told(response)
    return succeeded(response), f"{message} {hint}"


def config(folder: Path, **more: Any) -> Any:
    definitions = folder / "definitions.json"
    definitions.write_text(json.dumps({"pages": [TEXT_TOOLS], "answers": ANSWERS}))
    servers = {
        "tracker": tracker(),
        "plain": plain_server("--definitions", definitions),
    }
    return settings(folder, servers, **{"typecheck_timeout_ms": WARM_MS, **more})


@pytest.fixture(scope="module")
async def tracked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with ready(config(tmp_path_factory.mktemp("warned")), tools=[person]) as started:
        yield started


async def test_undeclared_keys_and_fields_are_told_though_the_script_succeeds(tracked: Broker) -> None:
    response = await within(
        tracked.run(result('(await tracker.list_issues({ state: "open", lable: "bug" })).issues.length'))
    )
    assert succeeded(response) == 42, "which is what made it silent"
    (state, of_state), (label, of_label) = told(response)
    assert "no 'state'" in state and "Did you mean `status`?" in of_state
    assert "no 'lable'" in label and "Did you mean `label`?" in of_label
    assert response.diagnostics[0].path == "script.js:4:63"

    read = "(await tracker.list_issues({})).issues.filter((i) => i.asignee === 'mira').length"
    found, said = await told_once(tracked, result(read))
    assert found == 0 and "'asignee'" in said and "Did you mean `assignee`?" in said

    guarded = "(await tracker.list_issues({})).issues.filter((i) => i.done ?? i.due?.soon).length"
    assert told(await within(tracked.run(result(guarded)))) == []


async def test_a_field_that_a_result_has_is_not_told(tracked: Broker) -> None:
    """The schema is open, and the result has it: only a run in which no result had it says that it is wrong."""
    assert told(await within(tracked.run(result("(await local.person({ more: true })).nickname")))) == []
    assert "'nickname'" in (await told_once(tracked, result("[(await local.person()).nickname]")))[1]


async def test_a_comparison_in_vain_is_told_though_the_script_succeeds(tracked: Broker) -> None:
    found, said = await told_once(tracked, result("(await texts.ticket({})).status === 'Closed' ? 1 : 0"))
    assert found == 0 and '"Closed" is in vain' in said
    assert said.endswith(
        'No result of this run had it there. Did you mean "closed"? Declared: "closed", "open".'
    )
    # The declaration is wrong where a result has the value after all.
    for name, count in (("ticket", 1), ("other_ticket", 0)):
        compared = await within(tracked.run(result(f"(await texts.{name}({{}})).status === 'Done'")))
        assert compared.ok and len(told(compared)) == count


async def test_before_it_runs_a_slip_refuses_the_script_and_nothing_else_of_this(tracked: Broker) -> None:
    slip = result('await tracker.list_issues({ state: "open", lable: "bug" })')
    refused = await within(tracked.run(slip, typecheck="before"))
    found = error_of(refused, "TYPE_ERROR")
    assert "no 'lable'" in found.message and "no tool was called" in found.message
    assert [message for message, _ in told(refused)] == ["The input of `list_issues` declares no 'state'."]
    assert refused.tool_trace == []
    for code in ('await tracker.list_issues({ state: "open" })', "(await local.person({})).nick"):
        response = await within(tracked.run(result(code), typecheck="before"))
        assert response.ok and len(told(response)) == 1


async def test_json_text_that_is_used_as_a_value_is_told_on_the_first_run_already(tracked: Broker) -> None:
    data = "{ issues: [{ id: 1 }] }"
    for name in ("declared", "undeclared"):
        failed = await within(
            tracked.run(result(f"(await texts.{name}({data})).issues.map((one) => one.id)"))
        )
        assert "?." not in (error_of(failed, "UNCAUGHT_EXCEPTION").hint or "")
        ((_, hint),) = told(failed)
        assert "JSON.parse(…).issues" in hint
        silent = result(f"[(await texts.{name}({data})).issues]")
        assert "JSON.parse" in (await told_once(tracked, silent))[1]
        right = await within(tracked.run(result(f"JSON.parse(await texts.{name}({data})).issues.length")))
        assert succeeded(right) == 1 and told(right) == []
    characters = f"const all = await texts.undeclared({data}); for (const one of all) console.log(one);"
    _, said = await told_once(tracked, importing(characters))
    assert "single characters" in said and "JSON.parse(all)" in said


@pytest.mark.parametrize(
    "reached",
    [
        "const { list_issues } = tracker; const found = await list_issues(INPUT);",
        "const list = tracker.list_issues; const found = await list(INPUT);",
        "const found = await tracker['list_issues'](INPUT);",
        "const { list_issues: list } = await import('@codemode/servers/tracker'); const found = await list(INPUT);",
        "let t; t = await import('@codemode/servers/tracker'); const found = await t.list_issues(INPUT);",
    ],
)
async def test_a_misspelt_key_is_told_however_the_tool_is_reached(tracked: Broker, reached: str) -> None:
    code = importing(reached.replace("INPUT", '{ lable: "bug" }') + "globalThis.__codemode_result__ = found;")
    assert "Did you mean `label`?" in (await told_once(tracked, code))[1]
    assert "no 'lable'" in error_of(await within(tracked.run(code, typecheck="before")), "TYPE_ERROR").message


async def test_a_declaration_says_what_scripts_really_get_with_both_facts(tracked: Broker) -> None:
    for _ in range(2):
        await within(tracked.run(result("JSON.parse(await texts.declared({ issues: [] })).issues")))
    await tracked.learnt(30.0)
    server = tracked.catalog.servers["plain"]
    output = tracked.output_of(server, server.by_export["declared"])
    assert output is not None and output.document is not None and output.schema is None
    assert "Declared by the server as an object, but" in output.note and "JSON text" in output.note
    refused = await within(tracked.run(result("(await texts.declared({})).issues"), typecheck="before"))
    assert "JSON.parse" in (error_of(refused, "TYPE_ERROR").hint or "")


async def test_a_repeated_script_is_not_checked_again(
    tracked: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        # What a tool gives is of another certainty after its first result and its second.
        assert (await within(tracked.run(result("await local.person({})")))).ok
        await tracked.learnt(WAIT_BOUND_SECONDS)
    checked: list[str] = []
    check = TypeChecker.check

    async def counted(self: TypeChecker, code: str, **more: Any) -> Any:
        checked.append(code)
        return await check(self, code, **more)

    monkeypatch.setattr(TypeChecker, "check", counted)
    wrong = result("[(await local.person({})).nmae]")
    for mode in (None, "after", "before", None):
        assert len(told(await within(tracked.run(wrong, typecheck=mode)))) == 1
    assert checked == [wrong, wrong], "once beside a run, once more by open types for `before`"
    await within(tracked.run(result("1 + 1").partition("\n")[0] + "const unused = 1;"))
    assert len(checked) == 3
    await within(tracked.run("globalThis.__codemode_result__ = 1;"))
    assert len(checked) == 3, "a script that can call no tool has nothing to be told of"


async def test_a_compiler_that_hangs_holds_no_response_and_tells_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.run.type_errors.CHECK_SECONDS", WARM_MS / 1000)
    wrong = result("[(await local.person({})).nmae]")
    before = {process.pid for process in compilers()}
    async with ready(config(tmp_path, typecheck_timeout_ms=None), tools=[person]) as tracked:
        assert (await within(tracked.run(result("await local.person()"), client="one"))).ok

        def own() -> list[psutil.Process]:
            return [process for process in compilers() if process.pid not in before]

        await until(
            lambda: own() and _checked(tracked), "the compiler is at work, and has checked the first script"
        )
        for process in own():
            await stopped(process)
        # That it was held for 30 ms behind another's and no longer, tests/unit shows in virtual time.
        ahead = asyncio.create_task(tracked.run(result("await local.person({ })"), client="another"))
        await until(lambda: not _checked(tracked), "the check of another script has begun")
        response = await within(tracked.run(wrong, client="one"))
        assert response.ok and told(response) == []
        for process in own():
            process.resume()
        assert (await within(ahead)).ok
        await until(lambda: _waiting(tracked), "what was found waits for its client")
        plain = "globalThis.__codemode_result__ = 1;"
        assert told(await within(tracked.run(plain, client="other"))) == []
        # Behind what is said of the script itself.
        last = await within(tracked.run(plain, client="one", limits={"maxLogBytes": 1 << 30}))
        assert [found.code for found in last.diagnostics] == ["LIMIT_CLAMPED", "TYPE_ERROR"]
        ((message, hint),) = told(last)
        begins = "In an earlier script of yours, at `globalThis.__codemode_result__ = [(await"
        assert message.startswith(begins) and "'nmae'" in message and "`name`" in hint
        assert told(await within(tracked.run(plain, client="one"))) == [], "once"


def _checked(tracked: Broker) -> bool:
    sides = tracked._executor._sides  # pyright: ignore
    return bool(sides._kept) and not sides._tasks  # pyright: ignore


def _waiting(tracked: Broker) -> bool:
    return bool(tracked._executor._sides._late)  # pyright: ignore


RIGHT = [
    # A list whose length nobody knows, for an input of at least one.
    "const tags = ['a', 'b'].map((tag) => tag.trim()); console.log(await texts.tag({ tags }));",
    "const tags = []; tags.push('a'); console.log(await texts.tag({ tags }));",
    "const { issues } = await tracker.list_issues({}); await texts.tag({ tags: issues.map((i) => i.title) });",
    "const input = { tags: ['a'] }; console.log(await texts.tag(input), await texts.tag({ ...input }));",
    # Guards on an output that is closed by its schema.
    "const r = await texts.member(); if (r.title) console.log(r.title); console.log(r.a && r.a.b, r.c ? r.c : 1);",
    "const r = await texts.member(); console.log(r.d ?? null, r.e?.f, r.g || null, r.h === undefined, r.i != null);",
    "const r = await texts.member(); console.log('j' in r ? r.j : 1, Object.hasOwn(r, 'k') ? r.k : 2);",
    "const r = await texts.member(); console.log(typeof r.f === 'function' ? r.f() : 1, typeof r.l);",
    "const r = await texts.member(); Object.assign(r, { seen: true }); console.log(r.seen);",
    "const r = Object.assign(await texts.member(), { seen: true }); console.log(r.seen, r.name);",
    "const r = Object.assign({}, await texts.member(), { rank: 1 }); console.log(r.rank, r.name);",
    "const { title = null, due: until = '', note: { text } = {} } = await texts.member(); console.log(text);",
    "for (const { mark = null } of [await texts.member()]) console.log(mark);",
    "const show = ({ name, mail = 'none' }) => console.log(name, mail); show(await texts.member());",
]
"""What was refused once under `before`, each by one of the compiler's rules that says nothing of scripts."""


@pytest.mark.parametrize("mode", ["after", "before"])
@pytest.mark.parametrize("code", RIGHT)
async def test_what_is_right_is_not_told_anything_and_not_refused_before_it_runs(
    tracked: Broker, code: str, mode: TypecheckMode
) -> None:
    response = await within(tracked.run(importing(f"{code}\nexport default 1;"), typecheck=mode))
    assert (response.result, response.diagnostics) == (1, [])
