"""Classes of the web in a context: made when a script may name one, so that no script can tell that they were not."""

import shutil
from collections.abc import Iterator

import pytest

from cellblock_worker.confinement import confinement
from support.context_worker import ContextWorker

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
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContextWorker]:
    """A process whose sandbox logs when it makes them."""
    bundle = tmp_path_factory.mktemp("telling") / "bundle"
    shutil.copytree(confinement.BUNDLE_DIR, bundle)
    script = bundle / confinement.CONTEXTS_SCRIPT
    text = script.read_text(encoding="utf-8")
    begins = "function makeWeb(outer2, setTimeout) {"
    assert text.count(begins) == 1
    said = f"{begins}outer2.say('{MADE}', 't', 'log', 'level', 'log', 'ms', 0);"
    script.write_text(text.replace(begins, said), encoding="utf-8")
    with ContextWorker(bundle) as made:
        yield made


@pytest.mark.parametrize("name", NEED_NONE)
def test_a_script_that_needs_none_has_none_made(worker: ContextWorker, name: str) -> None:
    done = worker.run(NEED_NONE[name])
    assert (done.kind, done.value, done.logs) == ("done", 2, [])


@pytest.mark.parametrize("name", NEED_THEM)
def test_a_script_finds_them_whichever_way_it_looks(worker: ContextWorker, name: str) -> None:
    caught = "const caught = (work) => { try { work(); } catch (error) { return error; } };"
    done = worker.run(f"{caught} globalThis.__codemode_result__ = {NEED_THEM[name]};")
    assert (done.kind, done.value, done.logs) == ("done", True, [MADE])


def test_one_that_is_made_late_is_as_one_that_was_there(worker: ContextWorker) -> None:
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
    done = worker.run(code)
    assert done.kind == "done", done
    assert done.value == [
        "InvalidCharacterError", 5, "string", "DOMException", True, ["code", "message", "name"], 25
    ]  # fmt: skip
    assert done.logs == [MADE]
