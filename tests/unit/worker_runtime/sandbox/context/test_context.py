"""The context of a script: text, globals, rejections, and classes of the web, which are made when a script may name
one, so that no script can tell that they were not."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from cellblock_worker.confinement import confinement
from support.worker_owner import UNANSWERED, ContextWorker, booted, make_run, module, script


@pytest.fixture(scope="module")
def worker() -> Iterator[ContextWorker]:
    """One process for all."""
    with ContextWorker(seconds=60) as made:
        yield made


def _value(worker: ContextWorker, expression: str) -> Any:
    done = worker.run(f"globalThis.__codemode_result__ = {expression};")
    assert done.kind == "done", done
    return done.value


PIECE = 3 << 15
"""Bytes that are decoded at once."""


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 2])
@pytest.mark.parametrize("text", ["a", "é", "€", "😀"])
def test_a_text_of_any_size_is_decoded_as_it_was_encoded(worker: ContextWorker, text: str, size: int) -> None:
    """A letter lies across the end of a piece, and the view begins within its buffer."""
    code = f"""(() => {{
        const text = "x" + {json.dumps(text)}.repeat({size} / {len(text.encode())});
        const bytes = new TextEncoder().encode("--" + text);
        return new TextDecoder().decode(bytes.subarray(2)) === text
            && new TextDecoder("utf-8", {{ fatal: true }}).decode(bytes.subarray(2)) === text;
    }})()"""
    assert _value(worker, code)


@pytest.mark.parametrize("ignore", [True, False])
def test_only_a_mark_at_the_beginning_is_left_out(worker: ContextWorker, ignore: bool) -> None:
    code = f"""(() => {{
        const bytes = new Uint8Array({PIECE + 3}).fill(65);
        bytes.set([239, 187, 191], 0);
        bytes.set([239, 187, 191], {PIECE});
        const text = new TextDecoder("utf-8", {{ ignoreBOM: {json.dumps(ignore)} }}).decode(bytes);
        return [text.startsWith("\\ufeff"), text.endsWith("\\ufeff"), text.length];
    }})()"""
    assert _value(worker, code) == [ignore, True, PIECE - 2 + ignore + 0]


@pytest.mark.parametrize("at", [0, PIECE - 1, PIECE, 2 * PIECE])
def test_a_decoder_begins_anew_after_an_error(worker: ContextWorker, at: int) -> None:
    code = f"""(() => {{
        const bytes = new Uint8Array({2 * PIECE + 1}).fill(65);
        bytes[{at}] = 255;
        const decoder = new TextDecoder("utf-8", {{ fatal: true }});
        let said = "";
        try {{ decoder.decode(bytes); }} catch (error) {{ said = error instanceof TypeError && error.message; }}
        return [said, decoder.decode(new Uint8Array([65]))];
    }})()"""
    assert _value(worker, code) == ["The encoded data is not valid", "A"]


def test_streams_of_decoders_of_one_kind_are_apart(worker: ContextWorker) -> None:
    code = """(() => {
        const [a, b, c] = [new TextDecoder(), new TextDecoder(), new TextDecoder()];
        const said = [a.decode(new Uint8Array([0xe2]), { stream: true }), b.decode(new Uint8Array([65]))];
        said.push(c.decode(new Uint8Array([0xe2]), { stream: true }), a.decode(new Uint8Array([0x82, 0xac])));
        said.push(c.decode(), c.decode(), a.decode(new Uint8Array([66])), a.encoding);
        return said;
    })()"""
    assert _value(worker, code) == ["", "A", "", "€", "\ufffd", "", "B", "utf-8"]


def test_an_encoding_that_does_not_exist_is_a_range_error(worker: ContextWorker) -> None:
    code = "(() => { try { new TextDecoder('utf-9'); } catch (error) { return [error.name, error.message]; } })()"
    assert _value(worker, code) == ["RangeError", "The encoding label provided ('utf-9') is invalid."]


def test_a_setter_on_arrays_hides_no_rejection() -> None:
    code = """
        Object.defineProperty(Array.prototype, "0", { set() {}, configurable: true });
        Promise.reject(new Error("mine"));
        globalThis.__codemode_result__ = 1;
    """
    with ContextWorker() as worker:
        done = worker.run(code)
    assert (done.kind, done.value["message"]) == ("failed", "mine")


SERVER = module(
    'const server = globalThis.__cellblock_boot__.server("s"); export const call = server.tool("call", "call", 1);'
)
TIMER = "new Promise((done) => setTimeout(done, 10, 'timer'))"
UNAWAITED = {
    "a timer": f"await Promise.race([call({{}}), {TIMER}])",
    "a timer that is set later": f"await Promise.race([call({{}}), (async () => (await 0, await {TIMER}))()])",
    "nothing": "(call({}), call({}), 'timer')",
    "nothing, and sets a timer": "(call({}), setTimeout(() => {}, 1e8), 'timer')",
}


@pytest.mark.parametrize("wait", UNAWAITED)
def test_a_script_that_waits_for_more_than_its_calls_goes_on_without_an_answer(
    worker: ContextWorker, wait: str
) -> None:
    """The process, which waits for answers without turning its loop, turns it where the script needs it."""
    head = f'import {{ call }} from "{SERVER}"; globalThis.__codemode_result__ ='
    done = worker.run(f"{head} {UNAWAITED[wait]};", {"s": SERVER}, answer=UNANSWERED)
    assert (done.kind, done.value) == ("done", "timer")
    done = worker.run(f"{head} [await call({{}}), await call({{}})];", {"s": SERVER}, answer="its own")
    assert done.value == ["its own", "its own"]


DUMP = """
const found = {};
const about = (value) => {
    if (typeof value === "function") {
        const made = Object.hasOwn(value, "prototype") ? ", has a prototype" : "";
        return `function ${value.name} of ${value.length}${made}`;
    }
    if (value !== null && typeof value === "object") return `object ${Object.prototype.toString.call(value)}`;
    return `${typeof value} ${String(value)}`;
};
const dump = (object, path) => {
    const up = Object.getPrototypeOf(object);
    const open = Object.isExtensible(object) ? "" : ", not extensible";
    found[path] = `${about(object)}, of ${up && up.constructor.name}${open}`;
    for (const key of Reflect.ownKeys(object)) {
        // What Deno's classes keep under symbols of their own is inside of them.
        if (typeof key === "symbol" && !Object.values(Object.getOwnPropertyDescriptors(Symbol)).some(
            (known) => known.value === key)) continue;
        const { value, get, set, ...flags } = Reflect.getOwnPropertyDescriptor(object, key);
        const on = Object.keys(flags).filter((flag) => flags[flag]).join(" ");
        const what = get || set ? `get ${get && about(get)}, set ${set && about(set)}` : about(value);
        found[`${path}.${String(key)}`] = `${what}; ${on}`;
    }
};
dump(globalThis, "globalThis");
for (const key of Reflect.ownKeys(globalThis)) {
    const value = globalThis[key];
    if (value === globalThis || value === null || typeof value !== "object" && typeof value !== "function") continue;
    dump(value, String(key));
    if (typeof value === "function" && value.prototype) dump(value.prototype, `${String(key)}.prototype`);
}
console.log(JSON.stringify(found));
"""

DENO_REPLACES = {"Object.prototype.__proto__"}
"""Names what Deno has put functions of its own in place of, where a context has the engine's."""


async def _dumped(key: str) -> dict[str, Any]:
    made, owner = await booted(lasts=True)
    made.lease(b"token", make_run(key=key, log_bytes=1 << 20), script(DUMP))
    await owner.until("ended")
    made.kill("host_stopping")
    await owner.until("gone")
    ((_, text),) = owner.logs
    return json.loads(text)


async def test_both_have_the_same() -> None:
    if not confinement.use_contexts(True):
        pytest.skip("this system keeps no kernel limits")
    try:
        own, context = await _dumped(""), await _dumped("a key")
    finally:
        confinement.use_contexts(False)
    differ = {
        name: (own.get(name), context.get(name))
        for name in own.keys() | context.keys()
        if own.get(name) != context.get(name)
    }
    assert differ.keys() == DENO_REPLACES, differ
    assert len(own) > 1000


MADE = "MADE"

NEED_NONE = {
    "a result": "globalThis.__codemode_result__ = 1 + 1",
    "a clock, a timer, an id and a copy": "await new Promise((done) => setTimeout(done, performance.now() % 1));"
    "globalThis.__codemode_result__ = structuredClone([crypto.randomUUID().length])[0] - 34",
    "words that contain their names": "const URLs = ['url', 'Eventual']; globalThis.__codemode_result__ = URLs.length",
    "a result that is read": "globalThis.__codemode_result__ = 1; globalThis.__codemode_result__ += 1",
}

NEED_THEM = {
    "by its name": "new URL('http://a/b').pathname === '/b'",
    "by its name alone": "typeof TextDecoder === 'function'",
    "in a name that is escaped": "typeof \\u0055RL === 'function'",
    "as a property that is computed": "typeof globalThis['U' + 'RL'] === 'function'",
    "as a property that is optional": "typeof globalThis?.Event === 'function'",
    "behind a comment": "typeof globalThis/* its */.URL === 'function'",
    "by an alias of the global object": "(() => { const world = globalThis; return 'AbortSignal' in world; })()",
    "by a pattern": "(() => { const { EventTarget: Target } = globalThis; return Target.name === 'EventTarget'; })()",
    "in a list": "Object.getOwnPropertyNames(globalThis).includes('URLSearchParams')",
    "by its descriptor": "'value' in Object.getOwnPropertyDescriptor(globalThis, 'DOMException')",
    "in a property like the result's": "globalThis.__codemode_result__2 === undefined && 'URL' in globalThis",
    "in what is thrown": "caught(() => atob('%')).constructor.name === 'DOMException'",
    "in what a copy throws": "caught(() => structuredClone(() => 0)).name === 'DataCloneError'",
    "in what random bytes throw": "caught(() => crypto.getRandomValues([])).code === 17",
    "in what a module is resolved by": "import.meta.resolve('http://x/../y') === 'http://x/y'",
}


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContextWorker]:
    """A process whose sandbox logs when it makes them."""
    bundle = tmp_path_factory.mktemp("telling") / "bundle"
    shutil.copytree(confinement.BUNDLE_DIR, bundle)
    script = bundle / confinement.CONTEXTS_SCRIPT
    text = script.read_text(encoding="utf-8")
    begins = "function makeWeb(outer2, setTimeout) {"
    assert text.count(begins) == 1
    said = f'{begins}outer2.say("{MADE}", "t", "log", "level", "log", "ms", 0);'
    script.write_text(text.replace(begins, said), encoding="utf-8")
    with ContextWorker(bundle) as made:
        yield made


@pytest.mark.parametrize("name", NEED_NONE)
def test_a_script_that_needs_none_has_none_made(telling: ContextWorker, name: str) -> None:
    done = telling.run(NEED_NONE[name])
    assert (done.kind, done.value, done.logs) == ("done", 2, [])


@pytest.mark.parametrize("name", NEED_THEM)
def test_a_script_finds_them_whichever_way_it_looks(telling: ContextWorker, name: str) -> None:
    caught = "const caught = (work) => { try { work(); } catch (error) { return error; } };"
    done = telling.run(f"{caught} globalThis.__codemode_result__ = {NEED_THEM[name]};")
    assert (done.kind, done.value, done.logs) == ("done", True, [MADE])


def test_one_that_is_made_late_is_as_one_that_was_there(telling: ContextWorker) -> None:
    """What the script has put on the prototype that descriptors have is not in it."""
    code = """
        const names = ["get", "set", "value", "writable", "enumerable", "configurable"];
        for (const name of names) {
            Object.defineProperty(Object.prototype, name, { __proto__: null, value: 7, configurable: true });
        }
        let error;
        try { atob("%"); } catch (thrown) { error = thrown; }
        for (const name of names) delete Object.prototype[name];
        const { name, code, message, constructor: made } = error;
        globalThis.__codemode_result__ = [name, code, typeof message, made.name, error instanceof Error,
            Object.keys(Object.getPrototypeOf(error)).sort().slice(-3), made.DATA_CLONE_ERR];
    """
    done = telling.run(code)
    made = ["InvalidCharacterError", 5, "string", "DOMException", True, ["code", "message", "name"], 25]
    assert (done.kind, done.value, done.logs) == ("done", made, [MADE])
