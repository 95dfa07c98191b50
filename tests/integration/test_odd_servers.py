"""Servers that are odd in one way: what they do otherwise is not lost, and what is odd is told.

Results that the SDK's models refuse, or that are large or deep, reach scripts by the rules of section 5.3.2; bodies
that are too large for the broker's loop are the same to scripts, servers and clients, and hold no loop. What a
reference stood for is a secret wherever a server quotes it.
"""

import asyncio
import hashlib
import json
import shlex
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, RunResponse, load_settings
from cellblock.base import payload
from cellblock.base.budget import Metered
from cellblock.base.raw_json import RawJson, is_light
from cellblock.base.state_dir import LOGS
from cellblock.tools.upstream.server_log import upstream_log
from cellblock.tools.upstream.wire import messages
from cellblock.types.lookup import inspect_tool
from cellblock.types.typescript.modules import declare_server
from servers.large_server import answer
from servers.odd_http import WRITTEN, odd_http
from support.brokers import ready
from support.entries import SERVERS, plain_server, settings, write_config
from support.http_server import mcp_over_http, serving
from support.responses import succeeded
from support.waits import until, within

HELLO = """
    import * as odd from "@codemode/servers/WAY";
    const out = [];
    for (let k = 0; k < TIMES; k++) {
        await new Promise((done) => setTimeout(done, 300));
        out.push(await odd.hello({}).catch(({ name, certainty, message }) => [name, certainty, message]));
    }
    globalThis.__codemode_result__ = out;
"""
OVER_STDIO = (
    *("answers", "closes", "crash", "nan", "pages", "mute", "tasks", "lost", "changed"),
    *("silent", "strange", "strict", "keyed", "toolless"),
)
OVER_HTTP: dict[str, dict[str, Any]] = {
    "moved": {"headers": {"Authorization": "Bearer key"}},
    "elsewhere": {},
    "gone": {},
    "anew": {},
    "sse": {},
    "get": {},
    "page": {},
    "away": {},
    "dated": {},
    **{way: {} for way in WRITTEN},
}


def started(way: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(SERVERS / "odd_server.py"), way]}


async def run(broker: Broker, way: str, times: int = 1) -> RunResponse:
    """Calls a server some times."""
    return await within(broker.run(HELLO.replace("WAY", way).replace("TIMES", str(times))))


def error_in(response: RunResponse) -> Any:
    """The only one; there may be warnings beside it."""
    (error,) = [found for found in response.diagnostics if found.severity == "error"]
    return error


@pytest.fixture(scope="module")
async def odd(tmp_path_factory: pytest.TempPathFactory, records: list[str]) -> AsyncIterator[Broker]:
    """A broker with all that need no settings of their own: none is in the others' way."""
    with ExitStack() as stack:
        servers = {
            way: {"url": f"http://{stack.enter_context(serving(odd_http(way)))}/mcp", **entry}
            for way, entry in OVER_HTTP.items()
        }
        servers |= {"日本": started("letters"), **{way: started(way) for way in OVER_STDIO}}
        async with ready(settings(tmp_path_factory.mktemp("odd"), servers)) as broker:
            yield broker


@pytest.mark.parametrize(
    ("way", "answers"),
    [
        pytest.param(
            "answers", ["hi"] * 3, id="it is started again for the next call, where it ends after each"
        ),
        pytest.param("pages", ["hi"], id="a page that is refused keeps those before"),
        # The call, three looks, and the result.
        pytest.param("tasks", ["hi 5"], id="a tool that must be called as a task is called as one"),
        pytest.param("moved", ["hi Bearer key"] * 2, id="a redirect within the origin is followed"),
        pytest.param("gone", ["hi None"] * 3, id="a session that is gone is begun anew for the call"),
        pytest.param("anew", ["hi None"] * 2, id="as is one that the server does not know since its start"),
        pytest.param("sse", ["hi None"] * 2, id="a server of the older transport is found by its 405"),
        pytest.param("get", ["hi None"] * 2, id="as is one that has no POST there"),
        pytest.param("silent", ["hi"], id="one that names no capability is asked for tools"),
        pytest.param("strange", ["hi"], id="a revision that nobody knows costs nothing"),
        pytest.param("strict", ["hi"], id="one that refuses a revision is greeted with one that it names"),
        pytest.param("dated", ["hi None"], id="also where it names it in the text of a status"),
        pytest.param("keyed", ["hi"], id="a list may be an object that has the names as keys"),
        *(
            pytest.param(way, ["hi None"] * 2, id=f"an answer over HTTP that is written as {way}")
            for way in WRITTEN
        ),
    ],
)
async def test_it_is_called_all_the_same(odd: Broker, way: str, answers: list[str]) -> None:
    assert succeeded(await run(odd, way, len(answers))) == answers


@pytest.mark.parametrize(
    ("way", "said"),
    [
        pytest.param("crash", "the licence has expired", id="the last words of a server that dies"),
        pytest.param("lost", "its task is lost: no such task", id="a task that its server forgets"),
        pytest.param(
            "page", "it is text/html: `<html><h1>Log in</h1></html>`", id="a page where an answer belongs"
        ),
    ],
)
async def test_why_a_call_fails_reaches_the_script(odd: Broker, way: str, said: str) -> None:
    ((name, certainty, message),) = succeeded(await run(odd, way))
    assert (name, certainty) == ("ToolCallError", "may_have_run") and said in message


async def test_a_server_that_ends_before_it_is_greeted_is_greeted_at_once_at_its_next_start(
    odd: Broker, records: list[str]
) -> None:
    assert succeeded(await run(odd, "closes")) == ["hi"]
    assert not [text for text in records if "closes" in text and "it ended by itself" in text]


async def test_what_is_odd_about_a_tool_list_or_an_introduction_is_told_once(
    odd: Broker, records: list[str]
) -> None:
    mute = odd.catalog.servers["mute"]
    assert (mute.version, mute.description) == ("1", "Be\nbrief.")
    assert mute.warnings == (
        "On its stdout is what is no message: it is no JSON-RPC message: `Welcome!`.",
        "Its revision of MCP is none that is known; 2025-03-26 is taken.",
        "Of its capabilities some are no objects: tools, prompts.",
        "It does not say its name and version as texts.",
        "Its instructions are no text.",
    )
    told = [*(f"mute: {warning}" for warning in mute.warnings)]
    told.append("pages: Its tool list ends at page 2, which it refused: no such cursor.")
    assert [sum(warning in text for text in records) for warning in told] == [1] * 6
    own = upstream_log(odd.settings.state_dir / LOGS, "mute").read_text()
    assert own.count("On its stdout is what is no message: ") == 1


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("alive", "On its HTTP connection is what is no message: it is no JSON-RPC message: `busy`."),
        ("silent", "It says nothing of what it lists; tools are asked for."),
        ("strange", "Its revision of MCP is none that is known; 2025-03-26 is taken."),
        ("keyed", "Its list of tools is an object; its members were taken."),
        ("toolless", "Its tool list ends at page 1, which it refused: no such method."),
        (
            "warned",
            "On its HTTP connection is what is no message: `<br /> <b>Warning</b>: no such key`.",
        ),
        ("alive", "On its HTTP connection is what is no message: it is no JSON-RPC message: `ping`."),
    ],
)
async def test_what_is_odd_about_one_is_told_with_it(odd: Broker, way: str, told: str) -> None:
    warnings = odd.catalog.servers[way].warnings
    assert told in warnings and len(warnings) == (2 if way == "alive" else 1)


async def test_a_redirect_to_another_origin_is_told(odd: Broker) -> None:
    why = odd.catalog.unavailable["elsewhere"]
    assert "HTTP 308" in why and "http://127.0.0.2:9/mcp, which is not followed" in why
    why = odd.catalog.unavailable["away"]
    assert "HTTP 405; it said: it wants messages at another origin: http://127.0.0.2:9/post" in why


async def test_letters_of_all_scripts_stay_in_the_names_of_tools(odd: Broker) -> None:
    code = 'import { créer_é as made } from "@codemode/servers/server"; globalThis.__codemode_result__ = await made();'
    assert succeeded(await within(odd.run(code))) == "hi"
    assert "function créer_é(" in declare_server(odd.catalog.servers["server"], reading=False)


async def test_a_server_that_sleeps_at_what_is_not_initialize_is_greeted_meanwhile(tmp_path: Path) -> None:
    made = settings(tmp_path, {"sleepy": started("sleepy")}, upstream={"connect_timeout_ms": 2_900})
    async with ready(made) as broker:
        assert succeeded(await run(broker, "sleepy")) == ["hi"]


async def test_a_server_that_reads_nothing_after_what_is_not_initialize_is_greeted_at_its_next_start(
    tmp_path: Path,
) -> None:
    made = settings(tmp_path, {"blocked": started("blocked")}, upstream={"connect_timeout_ms": 2_500})
    async with Broker(made) as broker:
        await until(lambda: "blocked" in broker.catalog.servers, "it is greeted")


async def test_a_late_answer_to_the_question_for_the_revision_is_taken_unless_the_greeting_is(
    tmp_path: Path,
) -> None:
    servers = {"newer": started("newer"), "both": started("both")}
    async with ready(settings(tmp_path, servers)) as broker:
        assert broker.catalog.servers.keys() == servers.keys(), broker.catalog.unavailable


async def test_a_newer_server_may_take_longer_to_begin_than_the_sdk_waits_for_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 1.0)
    command = shlex.join([sys.executable, "-P", "-m", "cellblock.app.cli.demo.tracker"])
    slow = {"command": "sh", "args": ["-c", f"sleep 2; exec {command}"]}
    async with ready(settings(tmp_path, {"slow": slow})) as broker:
        assert "slow" in broker.catalog.servers, broker.catalog.unavailable


async def test_progress_extends_the_time_of_a_call_and_a_task_that_is_given_up_is_cancelled(
    tmp_path: Path,
) -> None:
    code = """
        import { hello, lists } from "@codemode/servers/stuck";
        const failed = await hello({}).catch((error) => [error.name, error.certainty]);
        let looks = [];
        while (!looks.includes("tasks/cancel")) looks = await lists({});
        globalThis.__codemode_result__ = failed;
    """
    servers = {"busy": started("busy"), "stuck": started("stuck")}
    async with ready(settings(tmp_path, servers, upstream={"call_timeout_ms": 1_000})) as broker:
        assert succeeded(await run(broker, "busy")) == ["hi"]
        assert succeeded(await within(broker.run(code))) == ["ToolCallError", "may_have_run"]


async def test_what_is_no_json_becomes_null_and_is_told(odd: Broker) -> None:
    response = await run(odd, "nan", 2)
    assert succeeded(response) == [{"a": None, "b": 1.5}] * 2
    (told,) = response.diagnostics
    said = "The result of hello of nan: NaN has no JSON form: null stands in its place."
    assert told.code == "TOOL_RESULT_NOTE" and said in told.message


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_long_id_is_passed_on_with_its_digits_or_refused(tmp_path: Path, as_text: bool) -> None:
    answer = '{"id": 1234567890123456789, "count": 2}'
    content = [{"type": "text", "text": answer}]
    result = json.dumps({"content": content}) if as_text else f'{{"structuredContent": {answer}}}'
    code = f"""
        import {{ give, raw }} from "@codemode/servers/plain";
        const {{ id, count }} = await raw({{ text: {json.dumps(f'"result": {result}')} }});
        console.log({{ id, count }});
        if (typeof id === "bigint" && id === 1n) await give({{ id: -id }});
        globalThis.__codemode_result__ = [id, (await give({{ id }})).id, count + 1];
    """
    given, other = {"plain": "bigint", "*": "json"}, {"plain": "json"}
    servers = {"plain": plain_server()}
    async with ready(settings(tmp_path / "a", servers, schemas={"unwrap": given})) as broker:
        response = await within(broker.run(code))
        assert (response.result, response.diagnostics) == ([1234567890123456789, 1234567890123456789, 3], [])
        assert response.logs[0].message == '{"count":2,"id":1234567890123456789}'
    async with ready(settings(tmp_path / "b", servers, schemas={"unwrap": other})) as broker:
        response = await within(broker.run(code))
    assert [(call.tool_name, call.ok) for call in response.tool_trace] == [("raw", True)]
    failed = error_in(response)
    assert failed.error_class == "SchemaValidationError"
    assert "at /id, 1234567890123456800 is beyond 2^53" in failed.message
    (note,) = [found for found in response.diagnostics if found.code == "TOOL_RESULT_NOTE"]
    assert (
        'behind "id", is beyond 2^53, and rounded as a number: it is 1234567890123456789. With '
        '`schemas.unwrap` at {"plain": "bigint"} scripts get it as a BigInt.'
    ) in note.message


async def test_a_member_that_a_result_has_twice_is_told_once(tmp_path: Path, records: list[str]) -> None:
    result = '{"structuredContent": {"list": [{"id": 1}, {"é": 1, "id": 2, "é": 3}]}}'
    code = f"""
        import {{ raw }} from "@codemode/servers/plain";
        const results = [];
        for (let k = 0; k < 2; k++) results.push(await raw({{ text: {json.dumps(f'"result": {result}')} }}));
        globalThis.__codemode_result__ = results;
    """
    async with ready(settings(tmp_path, {"plain": plain_server()})) as broker:
        assert succeeded(await within(broker.run(code))) == [{"list": [{"id": 1}, {"é": 3, "id": 2}]}] * 2
    told = [text for text in records if "twice; the last is taken" in text]
    assert len(told) == 1 and r'A result has the member "\u00e9" twice' in told[0]


async def test_what_a_server_says_at_the_first_start_is_told_while_it_starts_again(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    starts = (
        f"test -e {seen} && exec sleep 60; touch {seen}; read line; echo The licence is missing >&2; exit 1"
    )
    async with Broker(settings(tmp_path, {"odd": {"command": "sh", "args": ["-c", starts]}})) as broker:
        await until(
            lambda: "The licence is missing" in broker.catalog.unavailable.get("odd", ""), "it is not told"
        )
        assert broker.catalog.unavailable["odd"].startswith("still connecting, for the second time: ")


async def test_changes_that_are_announced_in_a_loop_cost_a_list_a_second(tmp_path: Path) -> None:
    code = """
        import { lists } from "@codemode/servers/odd";
        globalThis.__codemode_result__ = await lists({});
    """
    async with ready(settings(tmp_path, {"odd": started("loop")})) as broker:
        lists = first = succeeded(await within(broker.run(code)))
        began = time.monotonic()
        for _ in range(3):
            lists = succeeded(await within(broker.run(code)))
        assert lists - first <= time.monotonic() - began + 2


async def test_changed_tools_that_are_not_listed_in_time_fail_the_runs_that_import_them(odd: Broker) -> None:
    assert succeeded(await run(odd, "changed")) == ["hi"]
    began = time.monotonic()
    other, failed = await asyncio.gather(
        odd.run('globalThis.__codemode_result__ = "odd";'), run(odd, "changed")
    )
    assert succeeded(other) == "odd" and other.usage.wall_ms < 4_000
    assert time.monotonic() - began > 4
    error = error_in(failed)
    assert (error.code, error.error_class) == ("IMPORT_FAILURE", "ServerNotFoundError")
    assert "has announced other tools, and has not listed them within 5 s; nothing" in error.message
    assert error.hint == "Do without it, or run the script again in a moment."
    assert succeeded(await run(odd, "changed")) == ["hi"]


async def test_a_server_that_is_removed_while_a_run_waits_for_its_list_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(settings(tmp_path, {"changed": started("changed")})) as broker:
        assert succeeded(await run(broker, "changed")) == ["hi"]
        tools, waits = broker.registry.sessions["changed"].tools, asyncio.Event()
        await until(lambda: tools.stale, "the change is announced")
        fresh = tools.fresh

        async def noted() -> None:
            waits.set()
            await fresh()

        monkeypatch.setattr(tools, "fresh", noted)
        # The end of its process takes longer.
        monkeypatch.setattr("cellblock.run.executor.REFRESH_BOUND_SECONDS", 0.5)
        waiting = asyncio.create_task(run(broker, "changed"))
        await within(waits.wait())
        broker.reconfigure(settings(tmp_path, {}))
        error = error_in(await waiting)
        assert (error.code, error.error_class) == ("IMPORT_FAILURE", "ServerNotFoundError")


REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""All that begin with `initialize`; the newest is that of `tests/conformance`."""

WIDGET = {"type": "widget", "data": {"rows": [None]}}
TEXT = {"type": "text", "text": "beside it"}
LARGE = "x" * 300_000
"""Over what is read on the loop."""

VALUES: list[Any] = [[1, {"a": None}], [], "text", 0, 1.5, False, True, None, [LARGE]]


def script(server: str, results: list[Any]) -> str:
    texts = json.dumps([f'"result": {json.dumps(result)}' for result in results])
    return (
        f'import {{ raw }} from "@codemode/servers/{server}";\n'
        f"const answers = {texts}.map((text) => raw({{ text }}));\n"
        "globalThis.__codemode_result__ = await Promise.all(answers);"
    )


@pytest.mark.thorough
async def test_results_that_no_model_of_the_sdk_takes(tmp_path: Path) -> None:
    results = [{"content": [TEXT], "structuredContent": value} for value in VALUES]
    odd = [{"content": blocks} for blocks in ([WIDGET], [TEXT, WIDGET], [{**WIDGET, "large": LARGE}])]
    servers = {
        f"s{revision[:4]}{revision[5:7]}": plain_server("--protocol", revision) for revision in REVISIONS
    }
    async with ready(settings(tmp_path, servers)) as broker:
        for name in servers:
            found = succeeded(await broker.run(script(name, [*results, *odd])))
            # Before 2026-07-28, null is as if absent.
            assert found[: len(VALUES)] == [TEXT["text"] if value is None else value for value in VALUES], (
                name
            )
            assert found[len(VALUES) :] == [{**one, "isError": False} for one in odd], name


PARSES = """
import { raw } from "@codemode/servers/plain";
import { raw as spec } from "@codemode/servers/spec";
const nested = (depth) => "[".repeat(depth) + "]".repeat(depth);
const large = (bytes, rest) => `["${"x".repeat(bytes)}", ${rest}]`;
const texts = [
  '{"a": 1}', '["\\\\ud83d"]', large(5 << 20, 1), nested(512), large(3e5, nested(511)),
  nested(513), large(3e5, nested(5000)),
];
const kind = (value) => Array.isArray(value) ? "array" : typeof value;
const found = [];
for (const made of texts) {
  const text = `"result": ${JSON.stringify({ content: [{ type: "text", text: made }] })}`;
  const parsed = await raw({ text }).then(kind, (error) => error.message);
  found.push([parsed, kind(await spec({ text }))]);
}
globalThis.__codemode_result__ = found;
"""


@pytest.mark.thorough
async def test_texts_are_parsed_at_every_size_and_depth_or_the_call_throws(tmp_path: Path) -> None:
    servers = {"plain": plain_server(), "spec": plain_server()}
    async with ready(
        settings(tmp_path, servers, schemas={"servers": {"plain": {"unwrap": "json"}}})
    ) as broker:
        parsed, plain = zip(*succeeded(await broker.run(PARSES)), strict=True)
        assert set(plain) == {"string"}
        assert parsed[:5] == ("object", *["array"] * 4)
        assert all("nests" in told and "deep" in told for told in parsed[5:])
        await broker.learnt(30.0)
        notes = [
            inspect_tool(broker.catalog, name, broker.output_of, broker.observed_of)["output"]["note"]
            for name in ("plain.raw", "spec.raw")
        ]
    # Those too deep never were a result where they are parsed.
    assert all("Observed from 5 results," in note for note in notes), notes
    assert ["more" in notes[0], "(2 more" in notes[1]] == [False, True], notes


CONFESS = """
    import { confess, refuse } from "@codemode/servers/leaky";
    const seen = [];
    for (const tool of [confess, refuse]) {
        try { seen.push(await tool({})); }
        catch (error) { seen.push(error.message, error.stack, JSON.stringify(error), JSON.stringify(error.result)); }
    }
    globalThis.__codemode_result__ = seen;
"""


async def test_a_server_that_quotes_it_is_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "canary-by-variable-1")
    (tmp_path / "file").write_text("canary-by-file-2\n")
    entry = {
        "command": sys.executable,
        "args": [
            "-I",
            str(SERVERS / "odd_server.py"),
            "leaks",
            "--where=${SOMETHING}",
            "$${left} ${file:file}",
        ],
        "env": {"CANARY_PLACE": "${file:file}", "CANARY_OTHER": "a ${env:SOMETHING} b"},
    }
    made = load_settings(write_config(tmp_path, {"leaky": entry}, state_dir=str(tmp_path / "s")))
    assert made.servers["leaky"].args[3:] == ["--where=canary-by-variable-1", "${left} canary-by-file-2"]
    async with ready(made) as broker:
        response = await within(broker.run(CONFESS))
        warnings = broker.catalog.servers["leaky"].warnings
        log = tmp_path / "s" / "logs" / "upstream-leaky.log"
        await until(lambda: log.exists() and "leak:" in log.read_text(), "the server's stderr")
    assert all(warning.isprintable() and "leak: " in warning for warning in warnings) and len(warnings) == 2
    said = json.dumps(response.as_json()) + log.read_text() + "".join(warnings)
    assert "leak: " in said and "[redacted]" in said and "canary-by" not in said


SLOW = {"upstream": {"call_timeout_ms": 120_000}}
SIZE = 5_000
LIMITS = {"timeoutMs": 120_000, "maxMemoryBytes": 512 * 1024 * 1024, "maxCpuMs": 60_000}


def large_server(*options: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(SERVERS / "large_server.py"), *options]}


@contextmanager
def served(form: str) -> Generator[dict[str, Any]]:
    """The entry of a server over stdio, or over HTTP with one form of answers."""
    if form == "stdio":
        yield large_server()
        return
    with serving(mcp_over_http(form, answer)) as address:
        yield (
            {"url": f"http://{address}/sse", "type": "sse"}
            if form == "sse"
            else {"url": f"http://{address}/mcp"}
        )


BOTH = """
    import { seen, give } from "@codemode/servers/large";
    const item = (_, i) => ({ i, t: "é\\u2028\\ud83d\\ude00", f: i / 7, e: 1e-7, l: [[]] });
    const items = (n) => Array.from({ length: n }, item);
    const tried = async (work) => {
        try { return await work; } catch ({ name, message, hint, path, expected, received }) {
            return { name, message: message.replaceAll(/\\d{4,}/g, "N"), hint, path, expected, received };
        }
    };
    const deep = (n) => { let made = []; for (let i = 0; i < n; i++) made = [made]; return made; };
    const of = async (n) => ({
        seen: await seen({ items: items(n) }),
        misfit: await tried(seen({ n: "x", items: items(n) })),
        deep: await tried(seen({ items: items(n), deep: deep(200) })),
        text: (await give({ text: "é\\ud83d\\ude00\\"", times: n, with: {} })).length,
        fails: await tried(give({ text: "no ", times: n, with: { isError: true } })),
        no_result: await tried(give({ text: "x", times: n, with: { content: 7 } })),
    });
    const many = await give({ n: 60_000 });
    const whole = many.many.length === 60_001 && many.many.at(-1)[0] === 2;
    globalThis.__codemode_result__ = { small: await of(10), large: await of(SIZE), whole };
"""


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["stdio", "json", "events", "sse"])
async def test_what_is_large_is_told_and_given_as_what_is_small(tmp_path: Path, form: str) -> None:
    """The server compares what it has got; what a script and its server see differs in sizes alone."""
    with served(form) as entry:
        async with ready(settings(tmp_path, {"large": entry}, **SLOW)) as broker:
            found = succeeded(await within(broker.run(BOTH.replace("SIZE", str(SIZE)), limits=LIMITS)))
    small, large = found["small"], found["large"]
    assert found["whole"] is True
    assert large["misfit"] == small["misfit"] and small["misfit"]["name"] == "SchemaValidationError"
    assert large["deep"] == small["deep"] and "nested deeper" in small["deep"]["message"]
    assert large["fails"]["message"][:100] == ("no " * 50)[:100]
    assert large["fails"]["name"] == small["fails"]["name"] == "ToolCallError"
    assert large["no_result"] == small["no_result"]
    assert (small["text"], large["text"]) == (40, 4 * SIZE)
    assert (small["seen"]["sha"], large["seen"]["sha"]) == (sha_of(10), sha_of(SIZE))


def sha_of(count: int) -> str:
    """As the server makes it of the input that it should get."""
    items = [{"i": i, "t": "é\u2028\U0001f600", "f": i / 7, "e": 1e-7, "l": [[]]} for i in range(count)]
    # JavaScript writes a whole number without a fraction.
    for item in items:
        item["f"] = int(item["f"]) if item["f"].is_integer() else item["f"]
    body = json.dumps({"items": items}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(body.encode()).hexdigest()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that this process has decoded of what workers and servers have sent."""
    bodies: list[bytes] = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(data: bytes, **options: Any) -> Any:
            bodies.append(data)
            return function(data, **options)

        return call

    monkeypatch.setattr(payload, "decode", recorded(payload.decode))
    monkeypatch.setattr(messages, "decoded", recorded(messages.decoded))
    return bodies


@pytest.mark.thorough
async def test_large_notices_that_nobody_asked_for_are_not_decoded(
    tmp_path: Path, decoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[messages.Message] = []
    read = messages.read

    def counted(raw: bytes) -> messages.Message:
        found = read(raw)
        if len(raw) > 1_000_000:
            # Of the second kind, what is large is beside what anybody reads.
            kinds.append(found)
        return found

    monkeypatch.setattr(messages, "read", counted)
    async with Broker(settings(tmp_path, {"large": large_server("notices")})) as broker:
        await until(lambda: len(kinds) >= 4, "some of both kinds have come")
        assert (await within(broker.run("globalThis.__codemode_result__ = 1"))).result == 1
        assert all(is_light(body) for body in decoded)
        assert "large" in broker.catalog.servers, "the session goes on"
    little = messages.Notification("notifications/message", {"level": "info", "data": []})
    assert all(kind in (messages.Notification("", None), little) for kind in kinds)


@pytest.mark.thorough
async def test_a_large_result_is_not_decoded(tmp_path: Path, decoded: list[bytes]) -> None:
    code = """
        const items = Array.from({ length: 300_000 }, () => []);
        globalThis.__codemode_result__ = [true, items];
    """
    async with ready(settings(tmp_path, {})) as broker:
        response = await within(broker.run_request({"code": code, "limits": LIMITS}))
        assert response.ok, response.diagnostics
        assert all(is_light(body) for body in decoded)
        # Not decoded for who passes it on, and decoded for who asks for it.
        assert isinstance(response.result, RawJson)
        assert response.result.raw == b"[true,[" + b"[]," * 299_999 + b"[]]]"
        assert response.decoded().result == [True, [[]] * 300_000]


@pytest.mark.thorough
async def test_a_run_is_billed_for_what_is_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input, and the result of the script; and an input that is too much costs one call alone."""
    each = 1_000_000
    monkeypatch.setattr(Metered, "__exit__", lambda self, *_: self._account and self._account.add_cpu(each))
    code = """
        import { seen, give } from "@codemode/servers/large";
        await seen({ items: Array.from({ length: 90_000 }, () => []) });
        globalThis.__codemode_result__ = await give({ n: 60_000 });
    """
    refused = """
        import { seen } from "@codemode/servers/large";
        const call = (items) => seen({ items }).then(() => "done", (error) => `${error.certainty}: ${error.message}`);
        const items = Array.from({ length: 300_000 }, () => []);
        globalThis.__codemode_result__ = [await call(items), await call([])];
    """
    async with ready(settings(tmp_path, {"large": large_server()}, **SLOW)) as broker:
        assert await billed(broker, code) // each >= 4
        assert await billed(broker, "globalThis.__codemode_result__ = 1") < each
        said = succeeded(await within(broker.run(refused, limits=LIMITS)))
        assert said == ["not_started: seen was not called: its input has over 100000 values.", "done"]


async def billed(broker: Broker, code: str) -> int:
    """CPU time of a run, in milliseconds."""
    return (await within(broker.run_request({"code": code, "limits": LIMITS}))).usage.cpu_ms


@pytest.mark.thorough
async def test_a_large_list_of_tools_is_read_in_pages(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"large": large_server("lists")})) as broker:
        await until(lambda: "large" in broker.catalog.servers, "it is connected")
        server = broker.catalog.servers["large"]
    assert len(server.tools) == 802
    (left_out,) = server.withheld
    assert left_out.name == "huge" and "over 131072" in left_out.why
