"""The mixed load: what each kind of run sends, and which endings are right for it while parts are killed."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from security.families import ALL as HOSTILE

SERVERS: Final = ("red", "blue")
"""The upstream servers with a ledger; scripts call them in turn."""

KILLED: Final = frozenset({"HOST_LOST", "WORKER_CRASHED", "WORKER_UNAVAILABLE", "OVERLOADED"})
"""Codes that any run may end with while workers and hosts are killed."""

UNCONNECTED: Final = frozenset({"IMPORT_FAILURE"})
"""Of a run that imports a server which is being started again."""

Check = Callable[[Any], bool]

LIMIT: Final = frozenset({"SANDBOX_LIMIT"})
MIB: Final = 1024 * 1024
LONG_MS: Final = 20_000
"""Timeout of runs that should never need it, on a busy machine."""

CALLS: Final = """
import * as red from "@codemode/servers/red";
import * as blue from "@codemode/servers/blue";
const told = [];
const call = async (n, tool, more = {}) => {
  try {
    await (n % 2 ? red : blue)[tool]({ id: "RUN/" + n, ...more });
    told.push([n, "completed"]);
  } catch (error) {
    told.push([n, error.certainty ?? error.name]);
  }
};
globalThis.__codemode_result__ = told;
"""
"""Each call carries an id that no other call has, and the result says what the script was told of each."""


def equals(wanted: Any) -> Check:
    """Whether a result is exactly this."""
    return lambda result: result == wanted


def has_length(length: int) -> Check:
    """Whether a result is a text or list of this length."""
    return lambda result: isinstance(result, str | list) and len(cast("list[Any]", result)) == length


@dataclass(frozen=True)
class Planned:
    """One run before it is sent.

    `right` are the error codes that it may end with beside none; `result` checks the result of a run without error;
    `calls_most` is its `maxToolCalls`; `cancel_after` is in seconds; `counted` says that its calls carry ids.
    """

    kind: str
    arguments: Mapping[str, Any]
    right: frozenset[str] = KILLED
    must_fail: bool = False
    result: Check | None = None
    calls_most: int = 200
    cancel_after: float | None = None
    malformed: bool = False
    counted: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of run: how often it comes among all, and how one is made from its number and a source of chance."""

    weight: int
    make: Callable[[int, random.Random], Planned]


def _script(kind: str, code: str, limits: Mapping[str, int] | None = None, **more: Any) -> Planned:
    chosen = {"timeoutMs": LONG_MS, **(limits or {})}
    return Planned(kind, {"code": code, "limits": chosen}, **more)


def _trivial(number: int, _: random.Random) -> Planned:
    code = f"""
        const clean = globalThis.planted === undefined && {{}}.planted === undefined;
        globalThis.planted = Object.prototype.planted = {number};
        globalThis.__codemode_result__ = {{ twice: {number} * 2, clean }};
    """
    wanted = {"twice": 2 * number, "clean": True}
    return _script("trivial", code, result=equals(wanted))


def _typescript(number: int, _: random.Random) -> Planned:
    code = f"const n: number = {number}; globalThis.__codemode_result__ = n satisfies number;"
    return _script("typescript", code, result=equals(number))


def _calls(
    number: int, code: str, kind: str, limits: Mapping[str, int] | None = None, **more: Any
) -> Planned:
    right = more.pop("right", KILLED | UNCONNECTED)
    return _script(
        kind, (CALLS + code).replace("RUN", str(number)), limits, right=right, counted=True, **more
    )


def _sequence(number: int, chance: random.Random) -> Planned:
    count = chance.randint(1, 6)
    code = (
        f"for (let n = 0; n < {count}; n++) await call(n, n % 3 === 2 ? 'fail' : 'echo', {{ text: 'no' }});"
    )
    return _calls(number, code, "calls", result=has_length(count))


def _parallel(number: int, chance: random.Random) -> Planned:
    count, ms = chance.randint(4, 40), chance.choice([0, 20, 100])
    code = f"await Promise.all(Array.from({{ length: {count} }}, (_, n) => call(n, 'wait', {{ ms: {ms} }})));"
    return _calls(number, code, "parallel calls", result=has_length(count))


def _slow(number: int, chance: random.Random) -> Planned:
    ms = chance.choice([500, 1500, 2500])
    return _calls(
        number, f"await Promise.all([call(0, 'wait', {{ ms: {ms} }}), call(1, 'echo')]);", "slow calls"
    )


def _unanswered(number: int, chance: random.Random) -> Planned:
    """Cut off by the upstream's bound, or before it by the run's own."""
    limits = {"timeoutMs": chance.choice([400, LONG_MS])}
    code = "await Promise.all([call(0, 'echo'), call(1, 'never'), call(2, 'never')]);"
    return _calls(number, code, "unanswered calls", limits, right=KILLED | UNCONNECTED | LIMIT)


def _deadly(number: int, _: random.Random) -> Planned:
    return _calls(number, "await call(0, 'echo'); await call(1, 'die');", "calls that kill the server")


def _too_many(number: int, _: random.Random) -> Planned:
    code = "await Promise.all(Array.from({ length: 9 }, (_, n) => call(n, 'wait', { ms: 30 })));"
    right = KILLED | UNCONNECTED | LIMIT
    return _calls(
        number, code, "too many calls", {"maxToolCalls": 5}, right=right, must_fail=True, calls_most=5
    )


def _cpu(_: int, chance: random.Random) -> Planned:
    limits = chance.choice([{"timeoutMs": 150}, {"maxCpuMs": 100}])
    code = chance.choice(["for (;;) {}", "/^(a+)+$/.test('a'.repeat(45) + '!');", "for (;;) await null;"])
    return _script("CPU bomb", code, limits, right=KILLED | LIMIT, must_fail=True)


def _memory(_: int, chance: random.Random) -> Planned:
    code = chance.choice(
        [
            "const keep = []; for (;;) keep.push(new Uint8Array(1 << 20).fill(1));",
            "const keep = []; for (let i = 0; ; i++) keep.push({ i, s: 'x'.repeat(50) + i });",
            "let s = 'x'; for (;;) { s += s; s.charCodeAt(9); }",
        ]
    )
    right = KILLED | LIMIT | {"UNCAUGHT_EXCEPTION"}
    return _script("memory bomb", code, {"maxMemoryBytes": 16 * MIB}, right=right, must_fail=True)


def _flood(_: int, chance: random.Random) -> Planned:
    code = chance.choice(
        [
            "for (let i = 0; i < 5_000; i++) console.log('line', i);",
            "console.log('x'.repeat(3_000_000));",
            "for (let i = 0; i < 300; i++) console.error('y'.repeat(10_000));",
        ]
    )
    return _script("log flood", code, {"maxLogBytes": 4_000})


def _endless_flood(_: int, chance: random.Random) -> Planned:
    code = "for (;;) console.log('z'.repeat(1_000));"
    return _script("endless log flood", code, {"timeoutMs": 200}, right=KILLED | LIMIT, must_fail=True)


def _throws(_: int, chance: random.Random) -> Planned:
    code = chance.choice(
        ["throw new Error('on purpose');", "this is no JavaScript", "import 'npm:left-pad';"]
    )
    right = KILLED | {"UNCAUGHT_EXCEPTION", "SYNTAX_ERROR", "IMPORT_FAILURE"}
    return _script("wrong scripts", code, right=right, must_fail=True)


def _large(number: int, _: random.Random) -> Planned:
    code = "globalThis.__codemode_result__ = 'r'.repeat(1_000_000);"
    return _script("large result", code, result=has_length(1_000_000))


def _discovery(_: int, __: random.Random) -> Planned:
    code = """
        import { listServers, searchTools } from "@codemode/discovery";
        globalThis.__codemode_result__ = [await listServers(), await searchTools("echo")].length;
    """
    return _script("discovery", code, result=equals(2))


def _hostile(_: int, chance: random.Random) -> Planned:
    case = chance.choice(HOSTILE)
    limits = {**case.limits, "timeoutMs": min(1_500, case.limits.get("timeoutMs", 1_500))}
    return Planned("hostile scripts", {"code": case.code, "limits": limits}, right=frozenset({"*"}))


def _cancelled(number: int, chance: random.Random) -> Planned:
    make = chance.choice([_sequence, _parallel, _slow, _unanswered, _cpu, _flood, _trivial])
    planned = make(number, chance)
    after = chance.choice([0.0, 0.005, 0.05, 0.3])
    return replace(planned, kind="cancelled", right=frozenset({"*"}), result=None, cancel_after=after)


def _malformed(_: int, chance: random.Random) -> Planned:
    arguments: dict[str, Any] = chance.choice([{}, {"code": 7}, {"code": "1", "limits": {"timeoutMs": "x"}}])
    return Planned("malformed requests", arguments, malformed=True)


KINDS: Final = (
    Kind(30, _trivial),
    Kind(14, _sequence),
    Kind(9, _parallel),
    Kind(5, _slow),
    Kind(4, _unanswered),
    Kind(1, _deadly),
    Kind(3, _too_many),
    Kind(4, _cpu),
    Kind(3, _memory),
    Kind(4, _flood),
    Kind(2, _endless_flood),
    Kind(3, _throws),
    Kind(2, _large),
    Kind(2, _typescript),
    Kind(3, _discovery),
    Kind(6, _hostile),
    Kind(9, _cancelled),
    Kind(2, _malformed),
)


@dataclass
class Load:
    """Runs in a random order that a seed fixes; `one_of_each` comes first and is the same every time."""

    seed: int
    kinds: Sequence[Kind] = KINDS
    made: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def next(self) -> tuple[int, Planned]:
        """The next run and its number."""
        return self.of_kind(self._chance.choices(self.kinds, [kind.weight for kind in self.kinds])[0])

    def of_kind(self, kind: Kind) -> tuple[int, Planned]:
        """The next run, of this kind."""
        self.made += 1
        return self.made, kind.make(self.made, self._chance)

    def one_of_each(self) -> list[tuple[int, Planned]]:
        """A run of every kind."""
        return [self.of_kind(kind) for kind in self.kinds]


def call_numbers(ledger_lines: list[str]) -> list[tuple[int, int]]:
    """(run, call) of every call with an id that an upstream has recorded."""
    found: list[tuple[int, int]] = []
    for line in ledger_lines:
        event = json.loads(line)
        name = event.get("arguments", {}).get("id") if event["event"] == "call" else None
        if isinstance(name, str) and "/" in name:
            run, _, call = name.partition("/")
            found.append((int(run), int(call)))
    return found
