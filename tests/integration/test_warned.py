"""Wrong scripts are told, also when they succeed: through a whole broker, with real servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker, RunResponse, TypecheckMode, tool
from cellblock.types.check import compiler
from cellblock.types.check.checker import TypeChecker
from support.brokers import ready
from support.entries import plain_server, settings, tracker
from support.processes import descendants, name_of
from support.responses import error_of, succeeded
from support.waits import WAIT_BOUND_SECONDS, until, within

if compiler.why_absent() is not None:
    pytest.skip(f"{compiler.why_absent()}; {compiler.FIX}", allow_module_level=True)

WARM_MS = 60_000
"""Bounds of checks: for what takes milliseconds on a quiet machine."""

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


def script(code: str) -> str:
    """With the imports of all these tools, each on a line of its own."""
    modules = {"tracker": "tracker", "plain": "texts", "local": "local"}
    imports = [f'import * as {name} from "@codemode/servers/{module}";' for module, name in modules.items()]
    return "\n".join([*imports, code])


def result(value: str) -> str:
    return script(f"globalThis.__codemode_result__ = {value};")


def told(response: RunResponse) -> list[tuple[str, str]]:
    """Message and hint of each type error that is no more than a warning."""
    return [
        (found.message, found.hint or "")
        for found in response.diagnostics
        if found.code == "TYPE_ERROR" and found.severity == "warning"
    ]


async def told_once(broker: Broker, code: str) -> tuple[Any, str]:
    """The result of a script that succeeds, and the one thing that it is told."""
    response = await within(broker.run(code))
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
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with ready(config(tmp_path_factory.mktemp("warned")), tools=[person]) as started:
        yield started


async def test_undeclared_keys_and_fields_are_told_though_the_script_succeeds(broker: Broker) -> None:
    response = await within(
        broker.run(result('(await tracker.list_issues({ state: "open", lable: "bug" })).issues.length'))
    )
    assert succeeded(response) == 42, "which is what made it silent"
    (state, of_state), (label, of_label) = told(response)
    assert "no 'state'" in state and "Did you mean `status`?" in of_state
    assert "no 'lable'" in label and "Did you mean `label`?" in of_label
    assert response.diagnostics[0].path == "script.js:4:63"

    read = "(await tracker.list_issues({})).issues.filter((i) => i.asignee === 'mira').length"
    found, said = await told_once(broker, result(read))
    assert found == 0 and "'asignee'" in said and "Did you mean `assignee`?" in said

    guarded = "(await tracker.list_issues({})).issues.filter((i) => i.done ?? i.due?.soon).length"
    assert told(await within(broker.run(result(guarded)))) == []


async def test_a_field_that_a_result_has_is_not_told(broker: Broker) -> None:
    """The schema is open, and the result has it: only a run in which no result had it says that it is wrong."""
    assert told(await within(broker.run(result("(await local.person({ more: true })).nickname")))) == []
    assert "'nickname'" in (await told_once(broker, result("[(await local.person()).nickname]")))[1]


async def test_a_comparison_in_vain_is_told_though_the_script_succeeds(broker: Broker) -> None:
    found, said = await told_once(broker, result("(await texts.ticket({})).status === 'Closed' ? 1 : 0"))
    assert found == 0 and '"Closed" is in vain' in said
    assert said.endswith(
        'No result of this run had it there. Did you mean "closed"? Declared: "closed", "open".'
    )
    # The declaration is wrong where a result has the value after all.
    for name, count in (("ticket", 1), ("other_ticket", 0)):
        compared = await within(broker.run(result(f"(await texts.{name}({{}})).status === 'Done'")))
        assert compared.ok and len(told(compared)) == count


async def test_before_it_runs_a_slip_refuses_the_script_and_nothing_else_of_this(broker: Broker) -> None:
    slip = result('await tracker.list_issues({ state: "open", lable: "bug" })')
    refused = await within(broker.run(slip, typecheck="before"))
    found = error_of(refused, "TYPE_ERROR")
    assert "no 'lable'" in found.message and "no tool was called" in found.message
    assert [message for message, _ in told(refused)] == ["The input of `list_issues` declares no 'state'."]
    assert refused.tool_trace == []
    for code in ('await tracker.list_issues({ state: "open" })', "(await local.person({})).nick"):
        response = await within(broker.run(result(code), typecheck="before"))
        assert response.ok and len(told(response)) == 1


async def test_json_text_that_is_used_as_a_value_is_told_on_the_first_run_already(broker: Broker) -> None:
    data = "{ issues: [{ id: 1 }] }"
    for name in ("declared", "undeclared"):
        failed = await within(broker.run(result(f"(await texts.{name}({data})).issues.map((one) => one.id)")))
        assert "JSON.parse" in (error_of(failed, "UNCAUGHT_EXCEPTION").hint or "")
        ((_, hint),) = told(failed)
        assert "JSON.parse(…).issues" in hint
        silent = result(f"[(await texts.{name}({data})).issues]")
        assert "JSON.parse" in (await told_once(broker, silent))[1]
        right = await within(broker.run(result(f"JSON.parse(await texts.{name}({data})).issues.length")))
        assert succeeded(right) == 1 and told(right) == []
    characters = f"const all = await texts.undeclared({data}); for (const one of all) console.log(one);"
    _, said = await told_once(broker, script(characters))
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
async def test_a_misspelt_key_is_told_however_the_tool_is_reached(broker: Broker, reached: str) -> None:
    code = script(reached.replace("INPUT", '{ lable: "bug" }') + "globalThis.__codemode_result__ = found;")
    assert "Did you mean `label`?" in (await told_once(broker, code))[1]
    assert "no 'lable'" in error_of(await within(broker.run(code, typecheck="before")), "TYPE_ERROR").message


async def test_a_declaration_says_what_scripts_really_get_with_both_facts(broker: Broker) -> None:
    for _ in range(2):
        await within(broker.run(result("JSON.parse(await texts.declared({ issues: [] })).issues")))
    await broker.learnt(30.0)
    server = broker.catalog.servers["plain"]
    output = broker.output_of(server, server.by_export["declared"])
    assert output is not None and output.document is not None and output.schema is None
    assert "Declared by the server as an object, but" in output.note and "JSON text" in output.note
    refused = await within(broker.run(result("(await texts.declared({})).issues"), typecheck="before"))
    assert "JSON.parse" in (error_of(refused, "TYPE_ERROR").hint or "")


async def test_a_repeated_script_is_not_checked_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        # What a tool gives is of another certainty after its first result and its second.
        assert (await within(broker.run(result("await local.person({})")))).ok
        await broker.learnt(WAIT_BOUND_SECONDS)
    checked: list[str] = []
    check = TypeChecker.check

    async def counted(self: TypeChecker, code: str, **more: Any) -> Any:
        checked.append(code)
        return await check(self, code, **more)

    monkeypatch.setattr(TypeChecker, "check", counted)
    wrong = result("[(await local.person({})).nmae]")
    for mode in (None, "after", "before", None):
        assert len(told(await within(broker.run(wrong, typecheck=mode)))) == 1
    assert checked == [wrong, wrong], "once beside a run, once more by open types for `before`"
    await within(broker.run(result("1 + 1").partition("\n")[0] + "const unused = 1;"))
    assert len(checked) == 3
    await within(broker.run("globalThis.__codemode_result__ = 1;"))
    assert len(checked) == 3, "a script that can call no tool has nothing to be told of"


async def test_a_compiler_that_hangs_holds_no_response_and_tells_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.run.type_errors.CHECK_SECONDS", WARM_MS / 1000)
    wrong = result("[(await local.person({})).nmae]")
    before = {process.pid for process in descendants(psutil.Process().pid)}
    async with ready(config(tmp_path, typecheck_timeout_ms=None), tools=[person]) as broker:
        assert (await within(broker.run(result("await local.person()"), client="one"))).ok

        def own() -> list[psutil.Process]:
            return [
                process
                for process in descendants(psutil.Process().pid)
                if name_of(process) == "tsc" and process.pid not in before
            ]

        await until(
            lambda: own() and _checked(broker), "the compiler is at work, and has checked the first script"
        )
        for process in own():
            process.suspend()
        # That it was held for 30 ms behind another's and no longer, tests/unit shows in virtual time.
        ahead = asyncio.create_task(broker.run(result("await local.person({ })"), client="another"))
        await until(lambda: not _checked(broker), "the check of another script has begun")
        response = await within(broker.run(wrong, client="one"))
        assert response.ok and told(response) == []
        for process in own():
            process.resume()
        assert (await within(ahead)).ok
        await until(lambda: _waiting(broker), "what was found waits for its client")
        plain = "globalThis.__codemode_result__ = 1;"
        assert told(await within(broker.run(plain, client="other"))) == []
        # Behind what is said of the script itself.
        last = await within(broker.run(plain, client="one", limits={"maxLogBytes": 1 << 30}))
        assert [found.code for found in last.diagnostics] == ["LIMIT_CLAMPED", "TYPE_ERROR"]
        ((message, hint),) = told(last)
        begins = "In an earlier script of yours, at `globalThis.__codemode_result__ = [(await"
        assert message.startswith(begins) and "'nmae'" in message and "`name`" in hint
        assert told(await within(broker.run(plain, client="one"))) == [], "once"


def _checked(broker: Broker) -> bool:
    sides = broker._executor._sides  # pyright: ignore
    return bool(sides._kept) and not sides._tasks  # pyright: ignore


def _waiting(broker: Broker) -> bool:
    return bool(broker._executor._sides._late)  # pyright: ignore


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
    broker: Broker, code: str, mode: TypecheckMode
) -> None:
    response = await within(broker.run(script(f"{code}\nexport default 1;"), typecheck=mode))
    assert (response.result, response.diagnostics) == (1, [])
