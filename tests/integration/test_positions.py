"""Places in the agent's source, through a whole broker and a real Deno, whatever ends the lines before them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import Broker
from cellblock.types.check import compiler
from support.entries import plain_server, settings
from support.responses import error_of
from support.script_places import ENDS, fillers, path_of, spaces, starts
from support.waits import within


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


def _places(code: str, word: str) -> list[str]:
    return [path_of(code, found.start()) for found in re.finditer(re.escape(word), code)]


async def _check(broker: Broker, code: str) -> None:
    code += "throw new TypeError('end');"
    response = await within(broker.run(code))
    assert error_of(response, "UNCAUGHT_EXCEPTION").path == path_of(code, code.rindex("new TypeError")), repr(
        code
    )
    assert [entry.message.rpartition("at ")[2] for entry in response.logs] == _places(code, "new Error"), (
        repr(code)
    )


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
        "globalThis.__codemode_result__ = { stack: e.stack, echo: typeof echo };"
    )
    response = await within(broker.run(code))
    assert response.result["stack"].rpartition("at ")[2] == path_of(code, code.index("new Error"))
    assert response.result["echo"] == "function"


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
