"""Sections 1.4, 3.2.1 and 3.2.2: modules, top-level await, TypeScript, the result, and a fresh sandbox each run."""

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import pytest

from cellblock import Broker
from cellblock.base.settings.settings import Settings
from cellblock.serve.mcp.manual import manual
from conformance.world import CONTRACT, evaluated, run, value
from support.waits import within


@pytest.mark.clause("3.2.1.a")
async def test_every_form_of_import_and_export_works(broker: Broker) -> None:
    """Namespace, named, renamed and dynamic imports; declarations, lists, defaults and re-exports."""
    code = """
        import * as contract from "@codemode/servers/contract";
        import { one_text, json_text as renamed, __meta__ as meta } from "@codemode/servers/contract";
        import { specVersion } from '@codemode/discovery';
        import {} from "@codemode/errors";
        import "@codemode/errors";
        export * from "@codemode/errors";
        export * as everything from "@codemode/discovery";
        export { ToolCallError as Failure } from "@codemode/errors";
        export const constant = 1;
        export function declared() { return later; }
        export class Klass {}
        const listed = 2;
        export { listed, listed as again };
        export default async () => 3;
        const later = 4;
        const dynamic = await import("@codemode/servers/contract");
        const name = "discovery";
        const computed = await import(`@codemode/${name}`);
        globalThis.__codemode_result__ = [
            await contract.one_text(), await one_text(), await renamed(), meta.serverId,
            dynamic.one_text === one_text, computed.specVersion === specVersion, declared(),
        ];
    """
    assert await value(broker, code) == ["just this", "just this", '{"a": [1, 2]}', "contract", True, True, 4]


@pytest.mark.clause("3.2.1.a")
async def test_code_is_strict_and_has_a_scope_of_its_own(broker: Broker) -> None:
    """What tells a module from a classic script."""
    code = """
        var declared = 1;
        let strict = false;
        try { undeclared = 1; } catch (error) { strict = error instanceof ReferenceError; }
        globalThis.__codemode_result__ = [this === undefined, strict, "declared" in globalThis,
            (function () { return this; })() === undefined, typeof import.meta];
    """
    assert await value(broker, code) == [True, True, False, True, "object"]


@pytest.mark.clause("3.2.1.a")
async def test_imports_are_found_by_the_grammar_and_not_by_their_look(broker: Broker) -> None:
    """Strings, comments, templates and regular expressions that look like imports are left as they are."""
    result = await value(
        broker,
        r"""
        const text = 'import x from "@codemode/servers/none"';
        // import y from "@codemode/servers/none";
        /* export * from "@codemode/servers/none"; */
        const template = `import("@codemode/servers/none") ${"import('z')"}`;
        const regular = /import\("@codemode\/servers\/none"\)/;
        const object = { import: (name) => name, export: 1 };
        globalThis.__codemode_result__ = [text, template, regular.source, object.import("kept")];
    """,
    )
    assert result == [
        'import x from "@codemode/servers/none"',
        "import(\"@codemode/servers/none\") import('z')",
        r'import\("@codemode\/servers\/none"\)',
        "kept",
    ]


@pytest.mark.clause("3.2.1.b")
async def test_top_level_await(broker: Broker) -> None:
    """In statements, expressions, loops, blocks and declarations; the result is what it is after the last of them."""
    code = """
        const first = await Promise.resolve(1);
        let sum = first + await new Promise((resolve) => setTimeout(resolve, 10, 2));
        for await (const value of (async function* () { yield 3; yield 4; })()) sum += value;
        { const inBlock = await 5; sum += inBlock; }
        if (await true) sum += await (async () => 6)();
        export const exported = await Promise.resolve(7);
        await { then(resolve) { resolve(sum += exported); } };
        await null;
        globalThis.__codemode_result__ = sum;
    """
    assert await value(broker, code) == 28


@pytest.mark.clause("3.2.1.a")
async def test_typescript_is_taken(broker: Broker) -> None:
    """Types are stripped; enums and parameter properties are what TypeScript makes of them."""
    code = """
        import type { ToolSummary } from "@codemode/discovery";
        import * as contract from "@codemode/servers/contract";
        interface Point { x: number; y?: number }
        type Pair<T> = readonly [T, T];
        enum Colour { Red, Green = "green" }
        class Holder { constructor(private readonly held: Point) {} get(): Point { return this.held; } }
        const pair: Pair<string> = ["a", "b"];
        function first<T extends unknown[]>(list: T): T[0] { return list[0]!; }
        const summary = { toolName: "t", exportName: "t" } satisfies ToolSummary;
        const held = new Holder({ x: 1 } as Point).get();
        const text = (await contract.one_text()) as string;
        globalThis.__codemode_result__ = [first([...pair]), Colour.Red, Colour.Green, held.x, summary.toolName, text];
    """
    assert await value(broker, code) == ["a", 0, "green", 1, "t", "just this"]


@pytest.mark.clause("3.2.2.a")
async def test_the_result_is_null_when_it_was_never_assigned(broker: Broker) -> None:
    """The value of the last expression does not count, nor a named export."""
    response = await run(broker, "export const y = 1; const x = 2; x;")
    assert response.result is None and [found.code for found in response.diagnostics] == ["NO_RESULT"]
    assert response.as_json()["result"] is None


@pytest.mark.clause("3.2.2.a")
@pytest.mark.parametrize(
    ("assigned", "result"),
    [
        ("{ ok: true, count: 2 }", {"ok": True, "count": 2}),
        ("0", 0),
        ("false", False),
        ("''", ""),
        ("null", None),
        ("undefined", None),
        ("[1, [2, { three: 3.5 }], 'ä\\u2028😀']", [1, [2, {"three": 3.5}], "ä\u2028😀"]),
        ("Object.create(null, { a: { value: 1, enumerable: true } })", {"a": 1}),
        ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("{ toJSON() { return { replaced: 1 }; } }", {"replaced": 1}),
        ("JSON.parse('{\"__proto__\": 1}')", {"__proto__": 1}),
    ],
)
async def test_the_result_is_what_was_assigned(broker: Broker, assigned: str, result: Any) -> None:
    """Every JSON value, and what JSON makes of the rest."""
    response = await run(broker, f"globalThis.__codemode_result__ = {assigned};")
    assert response.result == result and type(response.result) is type(result)
    assert response.ok


@pytest.mark.clause("3.2.2.a")
async def test_the_last_assignment_wins(broker: Broker) -> None:
    """As it is when the script ends, however it was assigned."""
    code = """
        const existed = "__codemode_result__" in globalThis;
        globalThis.__codemode_result__ = 1;
        globalThis.__codemode_result__ = { list: [existed] };
        await Promise.resolve().then(() => { __codemode_result__.list.push("changed later"); });
        __codemode_result__.list.push(globalThis.__codemode_result__ === __codemode_result__);
    """
    assert await value(broker, code) == {"list": [True, "changed later", True]}
    assert await value(broker, "__codemode_result__ = 1; __codemode_result__ = undefined;") is None


@pytest.mark.clause("3.2.2.a", "3.3.3.a")
@pytest.mark.parametrize(
    ("assigned", "path"),
    [
        ("{ a: { b: [0, 10n ** 400n] } }", "/a/b/1"),
        ("{ f: () => 1 }", "/f"),
        ("{ s: Symbol('x') }", "/s"),
        ("[1, NaN]", "/1"),
        ("{ 'a/b~c': Infinity }", "/a~1b~0c"),
        ("{ m: new Map([[1, 2]]) }", "/m"),
        ("[undefined]", "/0"),
        ("{ a: { b: undefined } }", "/a/b"),
        ("(() => { const loop = { inner: {} }; loop.inner.loop = loop; return loop; })()", "/inner/loop"),
    ],
)
async def test_what_json_cannot_carry_is_told_with_its_place(
    broker: Broker, assigned: str, path: str
) -> None:
    """Nothing is lost in silence: a diagnostic has the JSON Pointer."""
    response = await run(broker, f"globalThis.__codemode_result__ = {assigned};")
    assert ("RESULT_NOT_JSON", path) in [(found.code, found.path) for found in response.diagnostics]
    assert all(found.hint for found in response.diagnostics)


@pytest.mark.clause("1.4")
async def test_nothing_of_an_earlier_run_is_left(broker: Broker) -> None:
    """Globals, prototypes, module objects, timers, the result: each run begins anew."""
    dirty = (
        CONTRACT
        + """
        globalThis.left = 1;
        Object.prototype.left = 1;
        Array.prototype.map = () => "patched";
        JSON.stringify = () => "patched";
        delete globalThis.Math;
        console.log = () => {};
        globalThis.__codemode_result__ = "from the first run";
        setTimeout(() => { globalThis.left = 2; }, 1000);
    """
    )
    clean = """[typeof left, ({}).left, [1].map((x) => x + 1), JSON.stringify({ a: 1 }), typeof Math,
        globalThis.__codemode_result__, Object.keys(globalThis).sort()]"""
    before = await evaluated(broker, clean)
    assert before[:5] == ["undefined", None, [2], '{"a":1}', "object"]
    for _ in range(6):  # more than are kept warm
        await run(broker, dirty)
        assert await evaluated(broker, clean) == before
    assert [entry.message for entry in (await run(broker, "console.log('heard')")).logs] == ["heard"]


@pytest.mark.clause("1.4")
async def test_runs_at_the_same_time_share_nothing(broker: Broker) -> None:
    """Eight scripts that all write the same global find only their own value."""

    async def one(number: int) -> Any:
        code = f"""
            globalThis.shared = globalThis.shared ?? {number};
            await new Promise((resolve) => setTimeout(resolve, 50));
            globalThis.__codemode_result__ = globalThis.shared;
        """
        return await value(broker, code)

    assert await asyncio.gather(*(one(number) for number in range(8))) == list(range(8))


FOLDER: Final = Path(__file__).parents[1] / "test262"
HARNESS: Final = FOLDER / "harness"
CASES: Final = sorted(file for file in FOLDER.glob("*/*.js") if file.parent != HARNESS)

ONLY_OURS: Final = "only @codemode/* modules exist here."
NO_CODE: Final = "EvalError: Code generation from strings disallowed for this context"

IMPORTS: Final = "Only @codemode/* can be imported"
CODE_FROM_TEXT: Final = "Function: present for instanceof; calling it with source text throws EvalError"

REMOVED: Final = {
    "removed_computed_data_url": (IMPORTS, f'"data:text/javascript,export default 7": {ONLY_OURS}'),
    "removed_data_url": (IMPORTS, f"Cannot import 'data:text/javascript,export default 7': {ONLY_OURS}"),
    "removed_json_module": (IMPORTS, f"Cannot import 'data:application/json,[7]': {ONLY_OURS}"),
    "removed_node_module": (IMPORTS, f"Cannot import 'node:path': {ONLY_OURS}"),
    "removed_static_data_url": (IMPORTS, f"'data:text/javascript,export default 7': {ONLY_OURS}"),
    "removed_dynamic_async_function": (CODE_FROM_TEXT, NO_CODE),
    "removed_function_constructor": (CODE_FROM_TEXT, NO_CODE),
    "removed_construct_function": (CODE_FROM_TEXT, NO_CODE),
    "removed_eval": ("eval", "ReferenceError: eval is not defined"),
    "removed_prepare_stack_trace": (
        "globalThis.Error cannot be replaced, nor Error.prepareStackTrace set",
        "Test262Error: set: got false, expected true",
    ),
    "removed_shared_memory": ("Atomics", "ReferenceError: SharedArrayBuffer is not defined"),
}
"""What the agent's manual says of the cases that use what is not there, and how they end."""


@pytest.mark.thorough
def test_what_is_removed_is_in_the_agents_manual() -> None:
    text = manual(Settings())
    assert all(words in text for words, _ in REMOVED.values())
    assert {file.stem for file in CASES if file.stem.startswith("removed_")} == set(REMOVED)


def text_of(file: Path) -> str:
    # Not as text: some cases are about their line ends.
    return file.read_bytes().decode("utf-8")


@pytest.mark.thorough
@pytest.mark.parametrize("file", CASES, ids=lambda file: f"{file.parent.name}/{file.stem}")
async def test_a_case_ends_as_it_says(broker: Broker, file: Path) -> None:
    program = text_of(file)
    found = re.search(r"/\*---(.*?)---\*/", program, re.DOTALL)
    meta = found[1] if found else ""
    throws = re.search(r"^\s+type:\s*(\S+)", meta, re.MULTILINE)
    # What must not even start needs no harness, whose names could only get in its way.
    if "negative" not in meta or "runtime" in meta:
        harness = [text_of(HARNESS / name) for name in ("sta.js", "assert.js")]
        program = "\n".join([*harness, program])
    response = await within(broker.run(program))
    errors = [one.message for one in response.diagnostics if one.severity == "error"]
    if throws is not None:
        assert errors and (throws[1] in errors[0] or "has no export" in errors[0]), errors
    elif file.stem in REMOVED:
        assert errors and REMOVED[file.stem][1] in errors[0], errors
    else:
        assert errors == []
