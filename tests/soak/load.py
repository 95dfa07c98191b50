"""The mixed load: what each kind of run sends, and which endings are right for it while parts are killed."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from benchmarks.hostile.workloads import (
    HALF,
    JOURNALED,
    LARGE_INPUTS,
    LARGE_RESULTS,
    LISTS,
    LOG_BLOCK,
    LOG_FRAME,
    MIB,
)
from security.families import ALL as HOSTILE
from security.native.harness import steps

SERVERS: Final = ("red", "blue")
"""The upstream servers with a ledger; scripts call them in turn."""

KILLED: Final = frozenset({"HOST_LOST", "WORKER_CRASHED", "WORKER_UNAVAILABLE", "OVERLOADED"})
"""Codes that any run may end with while workers and hosts are killed."""

UNCONNECTED: Final = frozenset({"IMPORT_FAILURE"})
"""Of a run that imports a server which is being started again."""

Check = Callable[[Any], bool]

LIMIT: Final = frozenset({"SANDBOX_LIMIT"})
LONG_MS: Final = 20_000
"""Timeout of runs that should never need it, on a busy machine."""

CALLS: Final = """
import * as red from "@codemode/servers/red";
import * as blue from "@codemode/servers/blue";
const told = [];
const call = async (n, tool, more = {}) => {
  try {
    await (n % 2 ? red : blue)[tool]({ id: "NUMBER/" + n, ...more });
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


def kind(
    weight: int,
    name: str,
    *codes: str,
    limits: Sequence[Mapping[str, int]] = ({},),
    result: Callable[[int], Check] | None = None,
    durable: bool = False,
    **planned: Any,
) -> Kind:
    """One whose runs have one of these scripts, with the run's number for NUMBER, and one of the limits; `result`
    makes the check of its number."""

    def make(number: int, chance: random.Random) -> Planned:
        arguments = {
            "code": chance.choice(codes).replace("NUMBER", str(number)),
            "limits": {"timeoutMs": LONG_MS, **chance.choice(limits)},
            **({"durable": True} if durable else {}),
        }
        return Planned(name, arguments, result=result and result(number), **planned)

    return Kind(weight, make)


def calling(weight: int, name: str, *codes: str, right: frozenset[str] = frozenset(), **more: Any) -> Kind:
    """The same of scripts that make counted calls."""
    codes = tuple(CALLS + code for code in codes)
    return kind(weight, name, *codes, right=KILLED | UNCONNECTED | right, counted=True, **more)


SHORT_KINDS: Final = (
    kind(
        30,
        "trivial",
        """
        const clean = globalThis.planted === undefined && {}.planted === undefined;
        globalThis.planted = Object.prototype.planted = NUMBER;
        globalThis.__codemode_result__ = { twice: NUMBER * 2, clean };
        """,
        result=lambda number: equals({"twice": 2 * number, "clean": True}),
    ),
    calling(
        14,
        "calls",
        "for (let n = 0; n <= NUMBER % 6; n++) await call(n, n % 3 === 2 ? 'fail' : 'echo', { text: 'no' });",
        result=lambda number: has_length(number % 6 + 1),
    ),
    calling(
        9,
        "parallel calls",
        """
        const ms = [0, 20, 100][NUMBER % 3];
        await Promise.all(Array.from({ length: 4 + NUMBER % 37 }, (_, n) => call(n, 'wait', { ms })));
        """,
        result=lambda number: has_length(4 + number % 37),
    ),
    calling(
        5,
        "slow calls",
        *(
            f"await Promise.all([call(0, 'wait', {{ ms: {ms} }}), call(1, 'echo')]);"
            for ms in (500, 1500, 2500)
        ),
    ),
    # Cut off by the upstream's bound, or before it by the run's own.
    calling(
        4,
        "unanswered calls",
        "await Promise.all([call(0, 'echo'), call(1, 'never'), call(2, 'never')]);",
        limits=({"timeoutMs": 400}, {}),
        right=LIMIT,
    ),
    kind(
        4,
        "CPU bomb",
        *("for (;;) {}", "/^(a+)+$/.test('a'.repeat(45) + '!');", "for (;;) await null;"),
        limits=({"timeoutMs": 150}, {"maxCpuMs": 100}),
        right=KILLED | LIMIT,
        must_fail=True,
    ),
    kind(
        4,
        "log flood",
        "for (let i = 0; i < 5_000; i++) console.log('line', i);",
        "console.log('x'.repeat(3_000_000));",
        "for (let i = 0; i < 300; i++) console.error('y'.repeat(10_000));",
        limits=({"maxLogBytes": 4_000},),
    ),
)
"""These come cancelled, too."""


def _hostile(_: int, chance: random.Random) -> Planned:
    case = chance.choice(HOSTILE)
    limits = {**case.limits, "timeoutMs": min(1_500, case.limits.get("timeoutMs", 1_500))}
    return Planned("hostile scripts", {"code": case.code, "limits": limits}, right=frozenset({"*"}))


def _cancelled(number: int, chance: random.Random) -> Planned:
    planned = chance.choice(SHORT_KINDS).make(number, chance)
    after = chance.choice([0.0, 0.005, 0.05, 0.3])
    return replace(planned, kind="cancelled", right=frozenset({"*"}), result=None, cancel_after=after)


def _malformed(_: int, chance: random.Random) -> Planned:
    arguments: dict[str, Any] = chance.choice([{}, {"code": 7}, {"code": "1", "limits": {"timeoutMs": "x"}}])
    return Planned("malformed requests", arguments, malformed=True)


KINDS: Final = (
    *SHORT_KINDS,
    calling(1, "calls that kill the server", "await call(0, 'echo'); await call(1, 'die');"),
    calling(
        3,
        "too many calls",
        "await Promise.all(Array.from({ length: 9 }, (_, n) => call(n, 'wait', { ms: 30 })));",
        limits=({"maxToolCalls": 5},),
        right=LIMIT,
        must_fail=True,
        calls_most=5,
    ),
    kind(
        3,
        "memory bomb",
        "const keep = []; for (;;) keep.push(new Uint8Array(1 << 20).fill(1));",
        "const keep = []; for (let i = 0; ; i++) keep.push({ i, s: 'x'.repeat(50) + i });",
        "let s = 'x'; for (;;) { s += s; s.charCodeAt(9); }",
        limits=({"maxMemoryBytes": 16 * MIB},),
        right=KILLED | LIMIT | {"UNCAUGHT_EXCEPTION"},
        must_fail=True,
    ),
    kind(
        2,
        "endless log flood",
        "for (;;) console.log('z'.repeat(1_000));",
        limits=({"timeoutMs": 200},),
        right=KILLED | LIMIT,
        must_fail=True,
    ),
    kind(
        3,
        "wrong scripts",
        *("throw new Error('on purpose');", "this is no JavaScript", "import 'npm:left-pad';"),
        right=KILLED | {"UNCAUGHT_EXCEPTION", "SYNTAX_ERROR", "IMPORT_FAILURE"},
        must_fail=True,
    ),
    kind(
        2,
        "large result",
        "globalThis.__codemode_result__ = 'r'.repeat(1_000_000);",
        result=lambda _: has_length(1_000_000),
    ),
    kind(
        2,
        "typescript",
        "const n: number = NUMBER; globalThis.__codemode_result__ = n satisfies number;",
        result=equals,
    ),
    kind(
        3,
        "discovery",
        """
        import { listServers, searchTools } from "@codemode/discovery";
        globalThis.__codemode_result__ = [await listServers(), await searchTools("echo")].length;
        """,
        result=lambda _: equals(2),
    ),
    Kind(6, _hostile),
    Kind(9, _cancelled),
    Kind(2, _malformed),
)


MEMORY: Final = {"maxMemoryBytes": 64 * MIB}
SHORT: Final = {"timeoutMs": 1_500}

SHARED: Final = 0x21
TAKEN_MIB: Final = 200

FORGED: Final = (
    b"\x00\x00\x00\x10\x00\x0c\x83\xa1t\xa4call\xa2id\x01\x00\x00",
    b"\xff\xff\xff\xff\x00\x10",
    b"\x00\x00\x00\x08\x00\x06\x81\xa1t\xa4done",
    bytes(range(256)),
)
"""Calls without names, a frame without end, a result without a body, and no frames."""

NATIVE: Final[list[tuple[str, Mapping[str, int]]]] = [
    (steps(("notices", 3, 8 * MIB - 1024)), SHORT),
    (steps(("repeat", LOG_FRAME * LOG_BLOCK, len(LOG_FRAME) * LOG_BLOCK, 1_000)), SHORT),
    (steps(("raw", HALF, len(HALF)), ("sleep", 60_000)), SHORT),
    (steps(("fill", TAKEN_MIB, SHARED), ("sleep", 300)), MEMORY),
    (steps(("fill", TAKEN_MIB, 0), ("sleep", 300)), MEMORY),
    (
        steps(
            ("shmget", 0, TAKEN_MIB * MIB, 0o1600), ("shmat", "$0", 0, 0), ("touch", "$1", TAKEN_MIB * MIB)
        ),
        MEMORY,
    ),
    (steps(("forks", 50), ("sleep", 300)), SHORT),
    (steps(("threads", 50), ("sleep", 300)), SHORT),
    (steps(("prctl", 1, 0), ("sleep", 300)), SHORT),
    (steps("spin"), SHORT),
    (steps("done", ("sleep", 60_000)), SHORT),
    *((steps(("raw", frame, len(frame)), ("sleep", 60_000)), SHORT) for frame in FORGED),
]


def _native(_: int, chance: random.Random) -> Planned:
    code, limits = chance.choice(NATIVE)
    return Planned("native attacks", {"code": code, "limits": dict(limits)}, right=frozenset({"*"}))


NATIVE_KIND: Final = Kind(5, _native)
"""How these end is the attacker's own affair; what they do to others is not."""

MAY_BE_CUT: Final = KILLED | UNCONNECTED | LIMIT
LARGE_KINDS: Final = (
    kind(1, "12 MB results", LARGE_RESULTS, right=MAY_BE_CUT),
    kind(1, "inputs of four million numbers", LARGE_INPUTS, right=MAY_BE_CUT),
    kind(1, "durable runs of 30 MB", JOURNALED, right=MAY_BE_CUT, durable=True),
    # Honest, but for its haste. A server whose connection ends meanwhile is not found any more.
    kind(
        1,
        "300 lists at once",
        LISTS,
        right=MAY_BE_CUT | {"UNCAUGHT_EXCEPTION"},
        result=lambda _: equals(300),
    ),
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
