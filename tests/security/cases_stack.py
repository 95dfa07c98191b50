"""Stacks of errors that are made inside the sandbox's own functions: they name the agent's script and nothing else."""

import json
import re
from typing import Any, Final

from cellblock import RunResponse
from security.cases import Case, Expectation, gives, shown

_LEAK: Final = re.compile(r"file:|ext:|data:|base64|boot\.js|\.ts:|node:internal")
_PLACE: Final = re.compile(r"script\.js:\d+:\d+")

_MADE: Final = (
    "const stacks = []; const made = (why) => { const e = Error(why); stacks.push(e.stack); return e; };\n"
)


def _clean(least: int) -> Expectation:
    """No text of the response leaks, and it names the script at least so often."""

    def check(response: RunResponse) -> None:
        told: dict[str, Any] = {"logs": [entry.message for entry in response.logs], "result": response.result}
        told["diagnostics"] = [f"{found.message} {found.path}" for found in response.diagnostics]
        text = json.dumps(told)
        assert not _LEAK.search(text), shown(response)
        assert len(_PLACE.findall(text)) >= least, shown(response)

    return check


def _inside(name: str, code: str, least: int = 1) -> Case:
    return Case(f"escape/stack made in {name}", gives("stacks", _MADE + code), _clean(least))


STDLIB: Final = """import { echo } from "@codemode/servers/plain"; import * as discovery from "@codemode/discovery";
    import * as errors from "@codemode/errors";"""

CASES: Final = [
    _inside("a getter of a logged value", "console.log({ get a() { throw made('in a getter'); } });"),
    _inside("the toJSON of a logged value", "console.log({ toJSON() { return made('in toJSON').stack; } });"),
    _inside("a proxy that is logged", "console.log(new Proxy({}, { ownKeys() { throw made('in a trap'); } }));"),
    _inside(
        "a getter of a tool's input",
        STDLIB + "try { await echo({ get a() { throw made('in'); } }); } catch (e) { stacks.push(e.stack); }",
        2,
    ),
    _inside(
        "the toJSON of a tool's input",
        STDLIB + "try { await echo({ toJSON() { throw made('in'); } }); } catch (e) { stacks.push(e.stack); }",
        2,
    ),
    _inside(
        "a discovery function",
        STDLIB + """for (const ask of Object.values(discovery)) {
            if (typeof ask !== "function") continue;
            const bad = { toJSON() { throw made("in"); } };
            try { await ask(bad, bad); } catch (e) { stacks.push(e.stack); } }""",
        4,
    ),
    _inside(
        "an error class of the library",
        STDLIB + """for (const Class of Object.values(errors)) {
            try { new Class({ toString() { throw made("in"); } }); } catch (e) { stacks.push(e.stack); }
            try { throw new Class("plain", { hint: "h" }); } catch (e) { stacks.push(e.stack); } }""",
        4,
    ),
    _inside("a timer", "await new Promise((done) => setTimeout(() => { made('in'); done(); }, 1));"),
    _inside("a microtask", "await new Promise((done) => queueMicrotask(() => { made('in'); done(); }));"),
    _inside(
        "an event listener",
        "const t = new EventTarget(); t.addEventListener('x', () => made('in')); t.dispatchEvent(new Event('x'));",
    ),
    _inside(
        "an abort listener",
        "const c = new AbortController(); c.signal.addEventListener('abort', () => made('in')); c.abort();",
    ),
    _inside("an import's specifier", "try { await import({ toString() { throw made('in'); } }); } catch { }"),
    _inside("structuredClone", "try { structuredClone({ get a() { throw made('in'); } }); } catch { }"),
    _inside(
        "a promise callback after a tool call",
        STDLIB + "await echo({}).then(() => made('in')); await echo({}); made('after');",
        2,
    ),
    _inside(
        "a then that every object inherits",
        STDLIB + """Object.defineProperty(Object.prototype, "then",
            { get() { if (stacks.length < 9) made("in"); }, configurable: true });
        await echo({}); delete Object.prototype.then; made("after");""",
    ),
    _inside(
        "a toJSON that every object inherits",
        STDLIB + """Object.prototype.toJSON = function () { made("in"); return this; };
        await echo({}); delete Object.prototype.toJSON; made("after");""",
    ),
    _inside("captureStackTrace", "const o = {}; Error.captureStackTrace(o); stacks.push(o.stack);"),
    Case(
        "escape/stack made in a getter of the result",
        gives("{ get a() { return new Error('in').stack; }, b: { toJSON() { return new Error('in').stack; } } }"),
        _clean(2),
    ),
    Case(
        "escape/stack made in a getter of the result that throws it",
        gives("{ get a() { throw new Error(new Error('in').stack); } }"),
        _clean(1),
    ),
    Case(
        "escape/stack made in a getter of what is thrown",
        "throw { get message() { return new Error('in').stack; } };",
        _clean(1),
    ),
    Case(
        "escape/stack as name, message, hint and path of what is thrown",
        "const { stack } = new Error('in'); throw Object.assign(new Error(stack), "
        "{ name: stack, hint: stack, path: stack });",
        _clean(2),
    ),
]  # fmt: skip
