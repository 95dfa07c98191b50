"""Scripts that fail: the place in the agent's source, whatever ends the lines before it, and which calls ran.

All through a whole broker and a real Deno.
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given, strategies as st

from cellblock import Broker, Grantee, Question, Verdict, tool
from cellblock.types.check import compiler
from support.brokers import ready
from support.entries import plain_server, recorded, settings
from support.responses import error_of
from support.script_places import ENDS, fillers, path_of, spaces, starts
from support.waits import until, within


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with Broker(
        settings(tmp_path_factory.mktemp("positions"), {"plain": plain_server()}, typecheck="off")
    ) as running:
        yield running


IMPORTS = [
    'import "@codemode/discovery";',
    "export * from '@codemode/errors';",
    'await import("@codemode/servers/plain");',
    'await import("@codemode/" + "errors");',
    "await import((await import('@codemode/errors'), '@codemode/discovery'));",
]
MARK = "console.log(new Error('mark'));"
TYPES = "const typed: number = 1 as number;"
"""Leaves blanks."""
COMPILED = "enum E { A }"
"""Is left to Deno's compiler."""

statements = st.sampled_from([*IMPORTS, MARK, MARK])


async def _check(broker: Broker, code: str) -> None:
    code += "throw new TypeError('end');"
    response = await within(broker.run(code))
    assert error_of(response, "UNCAUGHT_EXCEPTION").path == path_of(code, code.rindex("new TypeError")), repr(
        code
    )
    logged = [entry.message.rpartition("at ")[2] for entry in response.logs]
    assert logged == [path_of(code, found.start()) for found in re.finditer("new Error", code)], repr(code)


@hypothesis.settings(max_examples=20)
@given(starts, st.sampled_from(["", TYPES]), st.lists(st.tuples(fillers, statements), max_size=8), fillers)
async def test_logs_and_exceptions_name_their_places(
    broker: Broker, start: str, types: str, body: list[tuple[str, str]], filler: str
) -> None:
    await _check(broker, start + types + "".join(before + statement for before, statement in body) + filler)


@hypothesis.settings(max_examples=10)
@given(starts, st.lists(st.tuples(spaces, statements), max_size=8), spaces)
async def test_so_they_do_in_compiled_typescript(
    broker: Broker, start: str, body: list[tuple[str, str]], filler: str
) -> None:
    await _check(
        broker, start + COMPILED + "".join(before + statement for before, statement in body) + filler
    )


@hypothesis.settings(max_examples=10)
@given(
    starts, fillers, st.sampled_from(IMPORTS), fillers, st.sampled_from(["let a = ", "break", "import 'fs'"])
)
async def test_what_keeps_a_script_from_starting_has_its_place(
    broker: Broker, start: str, before: str, statement: str, filler: str, wrong: str
) -> None:
    """Syntax errors of Deno's parser and of the engine, and imports that the broker refuses."""
    code = f"{start}{before}{statement}{filler}{wrong};"
    kind, word = {
        "let a = ": ("SYNTAX_ERROR", ";"),
        "break": ("SYNTAX_ERROR", "break"),
        "import 'fs'": ("IMPORT_FAILURE", "'fs'"),
    }[wrong]
    assert error_of(await within(broker.run(code)), kind).path == path_of(code, code.rindex(word)), repr(code)


@pytest.mark.parametrize("end", ENDS)
async def test_a_stack_in_the_result_names_its_place(broker: Broker, end: str) -> None:
    code = (
        f"'💥';{end}\timport {{ echo }} from '@codemode/servers/plain'; const e = new Error('x');{end}"
        "globalThis.__codemode_result__ = [e.stack, typeof echo];"
    )
    stack, kind = (await within(broker.run(code))).result
    assert (stack.rpartition("at ")[2], kind) == (path_of(code, code.index("new Error")), "function")


@pytest.mark.skipif(compiler.why_absent() is not None, reason="the build has brought no TypeScript compiler")
async def test_the_exception_and_the_type_error_name_one_place(tmp_path: Path) -> None:
    sections = {"typecheck": "after", "typecheck_timeout_ms": 20_000}
    async with Broker(settings(tmp_path, {"plain": plain_server()}, **sections)) as running:
        for end in ENDS:
            code = f"import '@codemode/servers/plain';{end}const s = '\u2028💥';{end}const n = 1; missing.call();"
            response = await within(running.run(code))
            places = [(found.code, found.path) for found in response.diagnostics]
            path = path_of(code, code.index("missing"))
            assert places == [("UNCAUGHT_EXCEPTION", path), ("TYPE_ERROR", path)], repr(end)


CALLS = 'import { echo, fail, give, never } from "@codemode/servers/plain";\n'
CHECK = "Check what these calls did before you run the script again."


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('await give({ n: 1 }); await fail({ text: "There is no issue 9999" });', "Completed: plain.give."),
        ("await Promise.all([never({}), give({})]);", None),
        ('await fail({ text: "no" });', None),
        (
            'import { die } from "@codemode/servers/plain"; await Promise.all([die({}), give({})]);',
            "May have run: plain.die.",
        ),
    ],
    ids=["one failed", "read alone", "none before", "one denied"],
)
async def test_a_failed_script_says_which_calls_ran(tmp_path: Path, code: str, said: str | None) -> None:
    section = {"policy": {"default": {"approve": ["plain.die", *(["plain.give"] if "all" in code else [])]}}}
    ledger = tmp_path / "ledger"
    made_of = settings(
        tmp_path / "s", {"plain": plain_server("--ledger", ledger)}, typecheck="off", **section
    )

    async def one_alone(question: Question) -> Verdict:
        if question.tool_name == "die":
            return Verdict.ACCEPTED
        other = "never" if "never(" in code else "die"
        await until(lambda: recorded(ledger, tool=other), "the other call is made")
        return Verdict.DECLINED

    async with ready(made_of) as broker:
        response = await within(
            broker.run(CALLS + code, grantee=Grantee("embedding", approver=one_alone)), 60
        )
        assert not response.ok
        hint = response.diagnostics[0].hint or ""
        assert hint.endswith(f" {said} {CHECK}") if said else CHECK not in hint, response.diagnostics


@pytest.mark.parametrize(
    ("code", "limits", "said"),
    [
        ("await give({ n: 1 }); await never({});", {"timeoutMs": 1_500}, "plain.give"),
        ("for (;;) await give({ n: 1 });", {"maxToolCalls": 1}, "plain.give"),
        ("await Promise.all([never({}), never({})]);", {"maxToolCalls": 1}, None),
    ],
    ids=["time", "calls", "read alone"],
)
async def test_a_script_that_reached_a_limit_says_which_calls_ran(
    tmp_path: Path, code: str, limits: dict[str, int], said: str | None
) -> None:
    """A larger limit alone would have them made again."""
    async with ready(settings(tmp_path / "s", {"plain": plain_server()}, typecheck="off")) as broker:
        (limit,) = (await within(broker.run(CALLS + code, limits=limits), 60)).diagnostics
        hint = limit.hint or ""
        assert "ask for a larger limits." in hint
        assert (f"Completed: {said}." in hint and hint.endswith(CHECK)) if said else CHECK not in hint, hint


@tool
def list_issues() -> list[int]:
    """Lists issues."""
    return [1]


@tool
def add_issue() -> int:
    """Adds an issue."""
    return 2


@pytest.mark.parametrize(("name", "is_told"), [("list_issues", False), ("add_issue", True)])
async def test_calls_of_tools_whose_names_read_are_not_told(tmp_path: Path, name: str, is_told: bool) -> None:
    code = f'import {{ {name} }} from "@codemode/servers/local"; await {name}({{}}); JSON.parse("{{");'
    async with Broker(settings(tmp_path / "s", typecheck="off"), tools=[list_issues, add_issue]) as broker:
        response = await within(broker.run(code), 60)
    hint = response.diagnostics[0].hint or ""
    assert (f"Completed: local.{name}. {CHECK}" in hint) is is_told and not hint.startswith(" "), hint
