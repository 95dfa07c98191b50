"""Sections 3.3.1 and 9: what console calls become."""

import asyncio
import json
import time
from typing import Any

import pytest

from cellblock import Broker
from cellblock.run.events import Observer
from cellblock.run.response import LogEntry
from conformance.world import run


async def logged(broker: Broker, statements: str, **limits: int) -> list[str]:
    """The messages of a script that must not fail."""
    response = await run(broker, statements, **limits)
    assert response.ok, response.as_json()
    return [entry.message for entry in response.logs]


@pytest.mark.clause("3.3.1.a", "9.a")
async def test_the_four_methods_and_their_levels(broker: Broker) -> None:
    """One entry a call, in order, with the level's own name."""
    response = await run(
        broker,
        "console.log('a'); console.debug('b'); console.warn('c'); console.error('d'); console.log('e');",
    )
    entries = [(entry["level"], entry["message"]) for entry in response.as_json()["logs"]]
    assert entries == [("log", "a"), ("debug", "b"), ("warn", "c"), ("error", "d"), ("log", "e")]


@pytest.mark.clause("9.a")
async def test_the_methods_work_without_their_object(broker: Broker) -> None:
    """Passed on as functions, as scripts do."""
    code = "['x'].forEach(console.log); const { warn } = console; warn('w'); Promise.reject('r').catch(console.error);"
    assert await logged(broker, f"{code} await 0; await 0;") == ['x 0 ["x"]', "w", "r"]


@pytest.mark.clause("3.3.1.a")
async def test_entries_have_whole_milliseconds_since_the_start(broker: Broker) -> None:
    """Exactly the three fields; the time counts from the start of the sandbox and never runs back."""
    started = time.monotonic()
    response = await run(
        broker,
        "console.log(1); await new Promise((resolve) => setTimeout(resolve, 120)); console.log(2);",
    )
    wall = (time.monotonic() - started) * 1000
    entries = response.as_json()["logs"]
    assert [set(entry) for entry in entries] == [{"level", "message", "timeMs"}] * 2
    first, second = (entry["timeMs"] for entry in entries)
    assert isinstance(first, int) and isinstance(second, int)
    assert 0 <= first < first + 110 <= second <= wall


@pytest.mark.clause("3.3.1.b")
async def test_all_arguments_make_one_message(broker: Broker) -> None:
    """Whatever their kinds are; none is lost, and none is read as a format."""
    messages = await logged(
        broker,
        "console.log('a', 1, { b: 2 }, [3], null, undefined, true); console.log(); console.log('%s %d', 'x', 5);",
    )
    assert messages == ['a 1 {"b":2} [3] null undefined true', "", "x 5"]


PRIMITIVES = [
    "'text'",
    "''",
    "'line\\nbreak'",
    "'ä😀\\u0000'",
    "1.5",
    "1e21",
    "0.1 + 0.2",
    "NaN",
    "-Infinity",
    "-0",
    "true",
    "false",
    "null",
    "undefined",
    "10n",
    "-123456789012345678901234567890n",
    "Symbol('s')",
    "Symbol()",
    "Symbol.iterator",
]


@pytest.mark.clause("3.3.1.c")
async def test_primitives_are_logged_as_string_gives_them(broker: Broker) -> None:
    """Compared with `String(value)` in the sandbox itself."""
    listed = ", ".join(PRIMITIVES)
    response = await run(
        broker,
        f"const values = [{listed}]; for (const value of values) console.log(value);"
        "globalThis.__codemode_result__ = values.map((value) => String(value));",
    )
    assert [entry.message for entry in response.logs] == response.result
    assert response.result[9] == "0" and response.result[14:17] == [
        "10",
        "-123456789012345678901234567890",
        "Symbol(s)",
    ]


@pytest.mark.clause("3.3.1.d")
async def test_key_order_does_not_matter(broker: Broker) -> None:
    """The same data gives the same text, at every depth; arrays keep their order."""
    messages = await logged(
        broker,
        """
        console.log({ b: 1, a: { d: [{ z: 1, y: 2 }], c: null } });
        console.log({ a: { c: null, d: [{ y: 2, z: 1 }] }, b: 1 });
        console.log([{ 2: "two", 10: "ten", b: 1, a: 2 }, 3, 1, 2]);
        console.log([{ a: 2, b: 1, 10: "ten", 2: "two" }, 3, 1, 2]);
        """,
    )
    assert messages[0] == messages[1] == '{"a":{"c":null,"d":[{"y":2,"z":1}]},"b":1}'
    assert messages[2] == messages[3] and messages[2].endswith(",3,1,2]")


@pytest.mark.clause("3.3.1.d")
async def test_plain_data_is_logged_as_json(broker: Broker) -> None:
    """What `JSON.parse` takes, with the values that JSON has."""
    data: list[Any] = [
        {"a": [1, "two", None, True, {"b": '\u2028"\\\n'}], "empty": {}, "list": []},
        [],
        {},
        [[]],
    ]
    messages = await logged(broker, "".join(f"console.log({json.dumps(value)});" for value in data))
    assert [json.loads(message) for message in messages] == data


@pytest.mark.clause("3.3.1.e", "3.3.4.a")
@pytest.mark.parametrize(
    "expression",
    [
        "(() => { const a = { name: 'loop' }; a.self = a; return a; })()",
        "(() => { const a = []; a.push(a, 1); return a; })()",
        "{ get bad() { throw new Error('getter'); }, good: 1 }",
        "{ toJSON() { throw new Error('toJSON'); } }",
        "new Proxy({}, { ownKeys() { throw new Error('trap'); } })",
        "(() => { const { proxy, revoke } = Proxy.revocable({}, {}); revoke(); return proxy; })()",
        "{ big: 1n, symbol: Symbol('s'), fn() {}, undef: undefined, nan: NaN }",
        "new Map([[{ k: 1 }, new Set([1])]])",
        "new Uint8Array([1, 2, 255])",
        "new WeakMap()",
        "Promise.resolve(1)",
        "function named() {}",
        "class Klass {}",
        "Object.create(null)",
        "new (class { #hidden = 1; shown = 2 })()",
        "globalThis",
        "'\\ud800 lone'",
        "{ text: '\\udfff' }",
        "(() => { let a = {}; for (let i = 0; i < 20000; i++) a = { a }; return a; })()",
        "new Error('boom', { cause: new TypeError('root') })",
    ],
)
async def test_everything_can_be_logged(broker: Broker, expression: str) -> None:
    """Exactly one entry with some text, and the script goes on."""
    messages = await logged(broker, f"console.log({expression}); console.log('next');", maxLogBytes=1_000_000)
    assert len(messages) == 2 and messages[1] == "next" and messages[0] != ""


@pytest.mark.clause("3.3.1.e")
async def test_the_best_effort_keeps_what_can_be_read(broker: Broker) -> None:
    """A cycle, a getter that throws or an error does not hide the rest."""
    cycle, getter, failure, revoked = await logged(
        broker,
        """
        const loop = { name: "loop" }; loop.self = loop; console.log(loop);
        console.log({ get bad() { throw new Error("why"); }, good: "seen" });
        console.log(new RangeError("too far", { cause: "the cause" }));
        const { proxy, revoke } = Proxy.revocable({}, {}); revoke(); console.log(proxy);
        """,
    )
    assert '"loop"' in cycle and '"seen"' in getter
    assert "RangeError" in failure and "too far" in failure and "the cause" in failure
    assert revoked == "[Unserializable Object]"


@pytest.mark.clause("3.3.1.f")
@pytest.mark.parametrize(
    ("statements", "limit"),
    [
        ("for (let i = 0; i < 500; i++) console.log('entry', i);", 1000),
        ("console.log('x'.repeat(10_000_000)); console.log('after');", 5000),
        ("console.log('é'.repeat(600)); console.log('after');", 1001),
        ("console.error('any');", 0),
        ("console.log('four'); console.log('five5'); console.log('x');", 5),
    ],
)
async def test_cut_logs_end_with_a_warning(broker: Broker, statements: str, limit: int) -> None:
    """The script goes on, and what fitted is kept, in bytes; the last entry, and only that, says at which limit the
    logs were cut."""
    response = await run(broker, f"{statements} globalThis.__codemode_result__ = 'ended';", maxLogBytes=limit)
    assert response.result == "ended" and response.ok
    *entries, last = response.logs
    assert last.level == "warn" and str(limit) in last.message and "truncat" in last.message.lower()
    assert all("truncat" not in entry.message for entry in entries)
    assert sum(len(entry.message.encode()) for entry in entries) <= limit


@pytest.mark.clause("3.3.1.f")
async def test_logs_within_the_limit_have_no_warning(broker: Broker) -> None:
    """Up to the last byte."""
    code = "console.log('12345'); console.warn('éé1');"
    assert await logged(broker, code, maxLogBytes=10) == ["12345", "éé1"]


async def test_who_watches_is_told_where_the_live_entries_stop(broker: Broker) -> None:
    """While the run goes on; the last entries come when it ends."""
    live: list[str] = []
    stopped = asyncio.Event()

    def heard(entry: LogEntry) -> None:
        live.append(entry.message)
        if "when the run ends" in entry.message:
            stopped.set()

    code = "for (let i = 0; i < 50; i++) console.log(`entry ${i}`); await new Promise((go) => setTimeout(go, 60_000));"
    limits = {"maxLogBytes": 100, "timeoutMs": 90_000}
    task = asyncio.create_task(broker.run(code, limits=limits, observer=Observer(on_log=heard)))
    async with asyncio.timeout(120):
        await stopped.wait()
    assert live == [*(f"entry {number}" for number in range(10)), live[-1]]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
