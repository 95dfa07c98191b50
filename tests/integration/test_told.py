"""What a script and its reader are told: texts as they were, errors whole, the reason of a refused import."""

from collections.abc import AsyncIterator

import pytest

from cellblock import Broker
from support.brokers import ready
from support.entries import plain_server, settings
from support.responses import error_of, succeeded
from support.waits import within

URLS = (
    '<script src="data:text/javascript;base64,Zm9vKCk7"></script> data:application/javascript;base64,Zm9v:1:2'
)


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    # A server that does not say its version is connected all the same.
    servers = {
        "plain": plain_server("--unversioned"),
        "broken": {"command": "cellblock-test-no-such-program"},
    }
    async with ready(settings(tmp_path_factory.mktemp("told"), servers)) as started:
        yield started


async def test_data_urls_of_the_script_are_logged_as_they_are(broker: Broker) -> None:
    code = f"""const text = '{URLS}';
console.log(text); console.warn([text]);
try {{ throw new Error(text); }} catch (error) {{ console.error(error); }}
"""
    response = await within(broker.run(code))
    one, two, three = (entry.message for entry in response.logs)
    assert one == URLS and URLS in two.replace("\\", "")
    assert three == f"Error: {URLS}\n    at script.js:3:13"


async def test_data_urls_in_an_uncaught_error_are_told_as_they_are(broker: Broker) -> None:
    code = f"const text = '{URLS}';\nthrow new Error(text, {{ cause: new Error(text) }});"
    found = error_of(await within(broker.run(code)), "UNCAUGHT_EXCEPTION")
    assert found.message == f"Error: {URLS} (cause: Error: {URLS})"
    assert found.path == "script.js:2:7"


async def test_an_error_of_the_engine_keeps_its_class_and_names_its_members(broker: Broker) -> None:
    code = """
        import * as plain from "@codemode/servers/plain";
        await Promise.any([plain.fail({ text: "one" }), Promise.reject(new TypeError("two"))]);
    """
    found = error_of(await within(broker.run(code)), "UNCAUGHT_EXCEPTION")
    assert found.message.startswith("AggregateError: All promises were rejected (errors: ToolCallError: one")
    assert found.message.endswith(" | TypeError: two)")


async def test_an_error_with_the_same_words_is_not_taken_for_another(broker: Broker) -> None:
    code = """try { await Promise.any([Promise.reject(1)]); } catch (error) { console.log(error.stack); }
        throw new RangeError("All promises were rejected");"""
    found = error_of(await within(broker.run(code)), "UNCAUGHT_EXCEPTION")
    assert found.message == "RangeError: All promises were rejected"
    assert found.path == "script.js:2:15"


@pytest.mark.parametrize(
    ("thrown", "message"),
    [
        (
            "new AggregateError([new Error('a'), new TypeError('b')], '2 of 2 failed')",
            "AggregateError: 2 of 2 failed (errors: Error: a | TypeError: b)",
        ),
        (
            "new AggregateError([1, 2, 3, 4, 5, 6], 'm')",
            "AggregateError: m (errors: 1 | 2 | 3 | 4 | … 2 more)",
        ),
        (
            "new SuppressedError(new Error('b'), new Error('a'), 'm')",
            "SuppressedError: m (error: Error: b; suppressed: Error: a)",
        ),
        ("Object.assign(new Error('m'), { errors: 'none' })", "Error: m"),
        (
            "Object.defineProperty(new AggregateError([], 'm'), 'errors', { get() { throw 1; } })",
            "AggregateError: m",
        ),
    ],
)
async def test_errors_within_an_error_are_told(broker: Broker, thrown: str, message: str) -> None:
    for code in (f"throw {thrown};", f"Promise.reject({thrown}); await 0;"):
        found = error_of(await within(broker.run(code)), "UNCAUGHT_EXCEPTION")
        assert found.message.removeprefix("Unhandled rejection: ") == message


async def test_an_error_that_lost_its_frames_is_told_with_what_to_do(broker: Broker) -> None:
    code = """
        class MyE extends Error { name = "MyE"; constructor(m) { super(m); this.stack = `MyE: ${m}`; } }
        throw new MyE("q");
    """
    found = error_of(await within(broker.run(code)), "UNCAUGHT_EXCEPTION")
    assert found.message == "Error: q" and "error.stack" in (found.hint or "")


@pytest.mark.parametrize(
    ("server", "says"),
    [("broken", "not connected"), ("nix", "no such server"), ("x" * 5000, "no such server")],
)
async def test_a_computed_import_of_a_server_that_is_not_there(
    broker: Broker, server: str, says: str
) -> None:
    code = f"""
        import {{ ServerNotFoundError }} from "@codemode/errors";
        try {{ await import(`@codemode/servers/${{"{server}"}}`); }} catch (error) {{
            const {{ message, hint, serverId }} = error;
            globalThis.__codemode_result__ = [error instanceof ServerNotFoundError, message, hint, serverId];
        }}
    """
    right, message, hint, server_id = succeeded(await within(broker.run(code)))
    assert right and says in message and len(message) < 500
    assert server.startswith(server_id.removesuffix("…"))
    assert hint == "Connected servers: plain." if server != "broken" else hint


async def test_a_script_can_make_errors_without_details(broker: Broker) -> None:
    code = """
        import * as errors from "@codemode/errors";
        globalThis.__codemode_result__ = Object.values(errors).map((one) => `${new one("msg")} ${new one().message}`);
    """
    made = succeeded(await within(broker.run(code)))
    assert len(made) == 7 and "ToolCallError: msg " in made


async def test_half_a_character_in_a_result_is_told(broker: Broker) -> None:
    code = "globalThis.__codemode_result__ = { cut: ['fine', '😀'.slice(0, 1)], text: '\\\\ud83d' };"
    response = await within(broker.run(code))
    assert response.result == {"cut": ["fine", "\ufffd"], "text": "\\ud83d"}
    (warning,) = response.diagnostics
    assert (warning.code, warning.path) == ("RESULT_NOT_JSON", "/cut/1")
    assert "surrogate" in warning.message


async def test_a_refusal_for_lack_of_credentials_is_told_as_that(broker: Broker) -> None:
    """Also where no HTTP status says it."""
    code = """
        import * as plain from "@codemode/servers/plain";
        import { AuthenticationError } from "@codemode/errors";
        const told = [];
        for (const message of ["Unauthorized", "401: invalid API key", "authorized users only"]) {
            try { await plain.refuse({ code: -32001, message }); } catch (error) {
                told.push([error instanceof AuthenticationError, error.hint]);
            }
        }
        globalThis.__codemode_result__ = told;
    """
    hint = "Correct the credentials of plain in Cellblock's configuration."
    assert succeeded(await within(broker.run(code))) == [
        [True, hint],
        [True, hint],
        [False, "Correct the call as the message says."],
    ]


@pytest.mark.parametrize(
    ("code", "error_class", "hint"),
    [
        ("plain.echo();", None, 'Import it: `import * as plain from "@codemode/servers/plain";`'),
        ("echo();", None, 'Import it: `import { echo } from "@codemode/servers/plain";`'),
        ("Buffer.from('x');", None, "The sandbox has no Buffer: use Uint8Array"),
        ("import { eco } from '@codemode/servers/plain';", "ToolNotFoundError", "Did you mean echo"),
        ("import { getTol } from '@codemode/discovery';", "CodemodeError", "Did you mean getTool"),
        ("import 'node:timers/promises';", None, "In place of timers, use the global setTimeout"),
        ("import * as plain from '@codemode/servers/plain'; [].ecco();", None, "Correct the script at that"),
    ],
)
async def test_what_is_missing_is_told_with_what_is_there(
    broker: Broker, code: str, error_class: str | None, hint: str
) -> None:
    (found, *_) = (await within(broker.run(code, typecheck="off"))).diagnostics
    assert (found.severity, found.error_class) == ("error", error_class)
    assert (found.hint or "").startswith(hint)


async def test_what_is_offered_in_place_of_a_global_is_there(broker: Broker) -> None:
    code = """
        const bytes = new TextEncoder().encode("text");
        const text = new TextDecoder().decode(Uint8Array.fromBase64(bytes.toBase64()));
        await new Promise((done) => setTimeout(done, 1));
        await new Promise((done) => queueMicrotask(done));
        const groups = Object.groupBy([1, 2], (one) => one % 2);
        globalThis.__codemode_result__ = [text, typeof EventTarget, typeof Temporal, typeof performance.now, groups];
    """
    assert succeeded(await within(broker.run(code))) == [
        "text",
        "function",
        "object",
        "function",
        {"0": [2], "1": [1]},
    ]


async def test_a_call_without_await_is_told_however_fast_it_was(broker: Broker) -> None:
    code = """import * as plain from "@codemode/servers/plain";
        plain.echo({});
        await plain.wait({ ms: 100 });
        globalThis.__codemode_result__ = 1;
    """
    (found,) = (await within(broker.run(code))).diagnostics
    assert (found.code, found.path) == ("CALLS_NOT_AWAITED", "script.js:2:9")
    assert found.hint == "Write `await plain.echo(…)`."
    failed = await within(broker.run(f"{code} throw new Error('x');"))
    assert [found.code for found in failed.diagnostics] == ["UNCAUGHT_EXCEPTION", "CALLS_NOT_AWAITED"]
