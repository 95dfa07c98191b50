"""Answers of a hostile MCP server; what a script then does with them."""

from typing import Final

from security.cases import Case, either, error, gives, limit, result

HOSTILE: Final = 'import * as hostile from "@codemode/servers/hostile";\n'
CONTRACT: Final = 'import * as contract from "@codemode/servers/contract";\n'

FAILURE: Final = """
    const failure = async (work) => { try { await work(); return "no error"; } catch (error) { return error.name; } };
"""


def _fails(call: str) -> str:
    return HOSTILE + gives(f"[await failure(() => hostile.{call}), await hostile.echo({{}})]", FAILURE)


REFUSED: Final = result(["ToolCallError", "{}"])
"""The call fails, the session goes on."""

CASES: Final = [
    Case("upstream/no answer", _fails("never({})"), REFUSED),
    Case("upstream/half a line", _fails("garbage({})"), REFUSED),
    Case("upstream/no tool result", _fails("wrong_shape({})"), REFUSED),
    Case("upstream/a thousand levels", _fails("deep({ depth: 1000 })"), REFUSED),
    Case("upstream/a hundred thousand levels", _fails("deep({ depth: 100_000 })"), REFUSED),
    Case("upstream/levels between ours and the peer's", _fails("deep({ depth: 150 })"), result(["no error", "{}"])),
    Case("upstream/error with a reserved code", _fails("refuse({ code: -32000 })"), REFUSED),
    Case("upstream/error with a timeout's code", _fails("refuse({ code: -32001 })"), REFUSED),
    Case("upstream/error with a huge code", _fails("refuse({ code: 1e15 })"), REFUSED),
    Case("upstream/error text with markup",
         HOSTILE + "await hostile.fail({ text: '</script>`${1}`\\u2028*/\\u0000' });",
         error("UNCAUGHT_EXCEPTION", "ToolCallError", "</script>`${1}`")),
    Case("upstream/error text of 5 MB", HOSTILE + "await hostile.fail({ text: 'E'.repeat(5_000_000) });",
         error("UNCAUGHT_EXCEPTION", "EEEE")),
    Case("upstream/error text that plays a limit",
         HOSTILE + "await hostile.fail({ text: 'RangeError: Array buffer allocation failed' });",
         error("UNCAUGHT_EXCEPTION", "ToolCallError")),
    Case("upstream/error text that plays a refused import",
         HOSTILE + "await hostile.fail({ text: 'Cannot import data:text/javascript;base64,AAAA:1:1' });",
         error("UNCAUGHT_EXCEPTION", "ToolCallError")),
    Case("upstream/lone surrogates come back", HOSTILE + gives("(await hostile.echo({ a: 'x\\ud800y' })).length > 3"),
         result(True)),
    Case("upstream/lone surrogates as a key",
         HOSTILE + gives("typeof (await hostile.echo({ ['k\\udc00']: 1 }))"), result("string")),
    Case("upstream/4 MB of text", HOSTILE + gives("(await hostile.echo({ a: 'x'.repeat(4_000_000) })).length"),
         result(4_000_009)),
    Case("upstream/more text than a message may hold",
         HOSTILE + gives("await failure(() => hostile.echo({ a: '\\u0001'.repeat(12_000_000) }))", FAILURE),
         either(result("SchemaValidationError"), limit("maxMemoryBytes"))),
    Case("upstream/control characters escaped past the cap",
         HOSTILE + gives("await failure(() => hostile.echo({ a: '\\u0001'.repeat(2_500_000) }))", FAILURE),
         either(result("ToolCallError"), result("CodemodeError"), result("no error")), {"timeoutMs": 30_000}),
    Case("upstream/polluting keys",
         CONTRACT + gives("[Object.keys(value), ({}).polluted ?? null, value.polluted ?? null]",
                          "const value = await contract.polluting();"),
         result([["__proto__", "constructor", "toJSON", "then", "list"], None, None])),
    Case("upstream/polluting keys survive a merge by spread",
         CONTRACT + gives("[merged.polluted ?? null, ({}).polluted ?? null]",
                          "const merged = { ...(await contract.polluting()) };"),
         result([None, None])),
    Case("upstream/polluting value as the result",
         CONTRACT + gives("await contract.polluting()"),
         lambda response: _own_keys(response.result)),
    Case("upstream/text that closes what holds it",
         CONTRACT + gives("(await contract.hostile_text()).endsWith('done')"), result(True)),
    Case("upstream/a result named like a promise", CONTRACT + gives("(await contract.polluting()).then"),
         result("no function")),
    Case("upstream/structured content that is no object",
         CONTRACT + gives("[await failure(() => contract.structured_zero()), "
                          "await failure(() => contract.structured_false())]", FAILURE),
         either(result(["no error", "no error"]), result(["ToolCallError", "ToolCallError"]))),
    Case("upstream/protocol error on purpose", CONTRACT + gives("await failure(() => contract.refuses())", FAILURE),
         result("ToolCallError")),
    Case("upstream/silent failure", CONTRACT + gives("await failure(() => contract.fails_silently())", FAILURE),
         result("ToolCallError")),
    Case("upstream/fifty answers that never come, at once",
         HOSTILE + gives("new Set(all).size + all[0]", FAILURE
                         + "const all = await Promise.all(Array.from({ length: 50 }, () => "
                         "failure(() => hostile.never({}))));"),
         result("1ToolCallError")),
    Case("upstream/the process dies in the call",
         HOSTILE + gives("await failure(() => hostile.die({}))", FAILURE), result("ToolCallError")),
]  # fmt: skip


def _own_keys(value: object) -> None:
    assert isinstance(value, dict) and "__proto__" in value, value
