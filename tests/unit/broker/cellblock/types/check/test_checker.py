"""The type checker: its session, what it parses and what it says."""

import asyncio
import errno
import gc
import itertools
import json
import os
import signal
import sys
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import psutil
import pytest

from cellblock.base.raw_json import LIGHT_BYTES
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.check import compiler
from cellblock.types.check.ambient import Declarations
from cellblock.types.check.checker import MAX_SCRIPT_BYTES, Checked, TypeChecker
from cellblock.types.check.compiler import (
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    CompilerSession,
    Decoder,
    SessionLost,
    encode,
)
from cellblock.types.check.faults import MAX_SHOWN
from cellblock.types.check.parsed import ParsedScript
from cellblock_worker.confinement.confinement import BUNDLE_DIR
from support.processes import gone, stopped
from support.waits import until

from .conftest import SPECIFIER, Check, Faults, catalog_of, made_checker

WRONG = "nowhere;"
EXPLOSIVE = """
type Grow<T extends any[], N extends number> = T["length"] extends N ? T : Grow<[...T, ...T, 1], N>;
type Digit = "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9";
type Pairs<A extends string, B extends string> = A extends any ? (B extends any ? `${A}${B}` : never) : never;
type Deep<N extends number, A extends any[] = []> = A["length"] extends N
  ? A : { a: Deep<N, [...A, 1]>; b: Deep<N, [...A, 2]> };
declare const one: Pairs<Pairs<Digit, Digit>, Pairs<Digit, Digit>>;
declare const two: Deep<24>;
declare const three: Deep<24, [0]>;
function f<T>(a: T): T extends Deep<22> ? 1 : 2 { return null as any; }
const four: Deep<23> = two as any as Deep<22, []>; const five: Deep<24, []> = three; f(two); f(five);
const six: Pairs<`${Digit}${Digit}`, `${Digit}${Digit}${Digit}`> = one;
"""


@pytest.fixture
async def checker() -> AsyncIterator[TypeChecker]:
    """A compiler for each test."""
    made = made_checker()
    yield made
    await made.close()


def pid_of(checker: TypeChecker) -> int | None:
    """The process id of the warm compiler's outermost process, if there is one."""
    return checker._session.pid if checker._session is not None else None


async def works(check: Check) -> bool:
    """Whether a wrong script is told, as it is by a compiler that works."""
    return len((await check(WRONG)).faults) == 1


@pytest.fixture
async def processes(checker: TypeChecker, check: Check) -> list[psutil.Process]:
    """The checker's processes once it has begun: the compiler and, where there is one, the bubblewrap around it."""
    await check("1;")
    assert pid_of(checker) is not None
    outer = psutil.Process(pid_of(checker))
    return [outer, *outer.children(recursive=True)]


def network_of(pid: int) -> str:
    """The network namespace of a process."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


@pytest.mark.slow
async def test_a_report_of_megabytes_is_read_as_far_as_the_loop_may(
    faults: Faults, checker: TypeChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each word of the script is one that nothing declares."""
    sizes: list[int] = []
    request = CompilerSession.request

    async def told(self: CompilerSession, method: str, params: dict[str, Any]) -> Any:
        answer = await request(self, method, params)
        sizes.append(len(json.dumps(answer)))
        return answer

    monkeypatch.setattr(CompilerSession, "request", told)
    assert (await faults("".join(f"n{number};\n" for number in range(30_000))))[0].line == 1
    pid = pid_of(checker)
    assert await faults("let fine = 1;") == ()
    assert pid_of(checker) == pid, "the compiler was not lost for it"
    assert 200_000 < max(sizes) < 2 * LIGHT_BYTES, sizes


async def test_the_second_check_is_the_same_process(checker: TypeChecker, check: Check) -> None:
    assert pid_of(checker) is None
    assert await works(check)
    first = pid_of(checker)
    assert (await check("1;")).faults == ()
    assert len((await check(WRONG, typescript=True)).faults) == 1
    assert pid_of(checker) == first


async def test_checks_at_the_same_time_do_not_mix(faults: Faults) -> None:
    found = await asyncio.gather(*(faults(f"missing_{number};") for number in range(12)))
    assert [fault.message for (fault,) in found] == [
        f"Cannot find name 'missing_{number}'." for number in range(12)
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
async def test_a_dead_compiler_is_replaced(
    check: Check, number: int, processes: list[psutil.Process]
) -> None:
    os.kill(processes[-1].pid, number)
    await gone(processes[-1:])
    # The next check may come before the loop has heard of the death; then it says so, and the one after it works.
    assert (await check(WRONG)).gave_up is None or await works(check)
    await gone(processes)


async def test_a_compiler_that_hangs_is_killed_at_the_bound(
    check: Check, processes: list[psutil.Process]
) -> None:
    await stopped(processes[-1])
    assert await check(WRONG, bound_seconds=0.3) == Checked(gave_up="it took over 0.3 s")
    await gone(processes)
    assert await works(check)


async def test_a_caller_that_is_cancelled_leaves_no_work_behind(
    checker: TypeChecker, check: Check, monkeypatch: pytest.MonkeyPatch, processes: list[psutil.Process]
) -> None:
    await stopped(processes[-1])
    session: Any = checker._session  # pyright: ignore[reportPrivateUsage]
    asked = AsyncMock(wraps=session.request)
    monkeypatch.setattr(session, "request", asked)
    caller = asyncio.ensure_future(check(WRONG))
    await until(lambda: asked.await_count, "the compiler is asked")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await gone(processes)
    assert await works(check)


async def test_types_made_to_explode_cost_one_check(checker: TypeChecker, check: Check) -> None:
    checked = await check(EXPLOSIVE, typescript=True, bound_seconds=1.0)
    # A compiler may know its own way out; if not, the bound is the way.
    assert checked.gave_up is None or "1 s" in checked.gave_up or "lost" in checked.gave_up
    assert await works(check)


@pytest.mark.slow
async def test_the_largest_script_full_of_errors_is_bounded(check: Check) -> None:
    assert "bytes" in ((await check("x();" * 262_144)).gave_up or ""), "larger still is not checked"
    checked = await check("x.y;\n" * (MAX_SCRIPT_BYTES // 5 - 20), bound_seconds=2.0)
    assert checked.gave_up is not None or 0 < len(checked.faults) <= MAX_SHOWN
    assert await works(check)


@pytest.mark.parametrize("again", ["check", "warm up"])
async def test_a_lost_compiler_is_reaped_before_close_returns(
    checker: TypeChecker, check: Check, again: str
) -> None:
    await check("1;")
    lost: Any = checker._session  # pyright: ignore[reportPrivateUsage]
    # As when it breaks the protocol: killed at once, and no one has waited for its end yet.
    lost.kill("it broke the protocol")
    if again == "check":
        assert await works(check)
    else:
        checker.warm_up()
        await until(lambda: checker._session is not lost, "another one is there")  # pyright: ignore[reportPrivateUsage]
    await checker.close()
    assert lost._exited.is_set()


async def test_close_leaves_no_process(
    checker: TypeChecker, check: Check, processes: list[psutil.Process]
) -> None:
    await checker.close()
    await gone(processes)
    assert (await check("1;")).gave_up == "Cellblock is closing"


async def test_close_during_the_start_leaves_no_process(checker: TypeChecker) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    checker.warm_up()
    await asyncio.sleep(0.01)
    await checker.close()
    await gone(
        [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    )


async def test_an_idle_compiler_is_stopped(
    checker: TypeChecker, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.types.check.checker.IDLE_SECONDS", 0.05)
    await check("1;")
    await until(lambda: pid_of(checker) is None, "the idle compiler is stopped")
    assert await works(check)


async def test_a_compiler_that_has_served_long_is_replaced(
    checker: TypeChecker, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.types.check.checker.MAX_CHECKS", 3)
    pids: set[int | None] = set()
    for _ in range(8):
        assert await works(check)
        pids.add(pid_of(checker))
    assert len(pids) > 1


async def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    absent = TypeChecker(folder=tmp_path)
    absent.warm_up()
    checked = await absent.check("x", typescript=False, catalog=Catalog(), imports=[], bound_seconds=1)
    assert "no TypeScript compiler" in (checked.gave_up or "")
    await absent.close()


async def test_a_compiler_that_does_not_run_is_given_up_on(tmp_path: Path) -> None:
    (tmp_path / "tsc").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "tsc").chmod(0o755)
    (tmp_path / "BUILD.json").write_text('{"typescript": "0.0.0"}')
    broken = TypeChecker("off", folder=tmp_path)
    for _ in range(2):
        checked = await broken.check(
            "x", typescript=False, catalog=Catalog(), imports=[], bound_seconds=20, wait_for_start=True
        )
        assert "lost" in (checked.gave_up or "")
    await broken.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_the_compiler_is_bounded_and_sees_no_files(processes: list[psutil.Process]) -> None:
    *outer, inner = processes
    assert inner.rlimit(psutil.RLIMIT_DATA)[1] == compiler.MEMORY_BOUND_BYTES
    assert inner.rlimit(psutil.RLIMIT_FSIZE)[1] == 0
    assert set(inner.environ()) <= {"GOMEMLIMIT", "GOTRACEBACK", "PWD"}
    if not outer:
        pytest.skip("bubblewrap does not work here")
    assert sorted(os.listdir(f"/proc/{inner.pid}/root")) == ["proc", "typescript", "workspace"]  # noqa: PTH208
    assert network_of(inner.pid) != network_of(os.getpid())


@pytest.mark.parametrize("isolation", ["auto", "off"])
async def test_a_script_reaches_no_file_through_the_compiler(
    checker: TypeChecker, tmp_path: Path, isolation: Any
) -> None:
    secret = tmp_path / "secret.ts"
    secret.write_text("export const token: 'the-secret' = 'the-secret'; declare global { var leaked: 'x'; }")
    made = TypeChecker(isolation)
    code = f"""/// <reference path="{secret}" />
import type * as s from "{secret}"; import * as t from "@codemode/servers/tracker";
let a: typeof import("{secret}").token; const b: (typeof s)["token"] = "other"; t.x(a, b); leaked; a.nothing;
"""
    checked = await made.check(
        code, typescript=True, catalog=Catalog(), imports=[], bound_seconds=30, wait_for_start=True
    )
    await made.close()
    assert checked.gave_up is None
    assert any("leaked" in fault.message for fault in checked.faults)
    assert "the-secret" not in str(checked)


async def test_every_global_of_the_sandbox_is_known(faults: Faults) -> None:
    names = json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))["allowed"]
    assert await faults("\n".join(f"void [{name}];" for name in names)) == ()


async def test_the_declarations_themselves_have_no_error(checker: TypeChecker, check: Check) -> None:
    await check("1;")
    warm: Any = checker._session  # pyright: ignore[reportPrivateUsage]
    report = await warm.request(
        "textDocument/diagnostic", {"textDocument": {"uri": f"{warm.workspace_uri}/js/types.d.ts"}}
    )
    assert [item for item in report["items"] if item["severity"] == 1] == []


async def test_hostile_descriptions_stay_text(faults: Faults) -> None:
    text = "*/ } declare var everything: any; declare module 'x' { /* \u2028 `${x}` \ud800 // @ts-nocheck"
    server = ServerEntry(
        "tracker",
        text,
        "tracker",
        description=text,
        tools=(ToolEntry("evil", "evil", text, {"title": text}, {"type": "object", "description": text}),),
    )
    assert [
        fault.message.split("'")[1]
        for fault in await faults("t.evil({}); everything; t.good;", catalog=Catalog(1, {"tracker": server}))
    ] == ["everything", "good"]


def test_a_servers_declarations_are_made_once() -> None:
    catalog, declarations = catalog_of(ToolEntry("a", "a")), Declarations()
    newer = replace(catalog, version=2)
    first = declarations.text(catalog, [SPECIFIER, "@codemode/errors"], "")
    assert f'declare module "{SPECIFIER}"' in first
    assert declarations.text(newer, [SPECIFIER], "") == first
    assert "tracker" not in declarations.text(newer, ["@codemode/errors"], "")


def test_only_what_a_script_names_is_typed_and_stays_so() -> None:
    tools = [
        ToolEntry(name, name, input_schema={"type": "object", "properties": {f"of_{name}": {}}})
        for name in ("read", "write", "odd-name", "class")
    ]
    catalog, outputs = catalog_of(*tools), Mock(return_value=None)
    declarations = Declarations(lambda _principal: outputs)
    first = declarations.text(catalog, [SPECIFIER], "await t.read({});")
    asked = [call.args[1].tool_name for call in outputs.mock_calls]
    assert asked == ["read", "odd-name"], "what is no word can be named in ways that are not looked for"
    assert "of_read" in first and "of_write" not in first
    assert "export function write(input?: any): Promise<any>;" in first
    assert "export { __tool_4 as class };" in first
    second = declarations.text(catalog, [SPECIFIER], "t.write")
    assert "of_read" in second and "of_write" in second
    outputs.reset_mock()
    for code in ("t.read", "t.write", "1;"):
        assert declarations.text(catalog, [SPECIFIER], code) == second
    outputs.assert_not_called()


async def test_a_tool_that_is_not_named_is_there_all_the_same(faults: Faults) -> None:
    assert await faults("const name = 'li' + 'st_tasks'; (await t[name]()).title;") == ()
    field, name = await faults("(await t.list_tasks({})).title; t.list_task();")
    assert "'title'" in field.message and "`list_tasks`" in (name.hint or "")


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
async def test_what_the_machine_lacks_is_said_and_not_raised(
    checker: TypeChecker, check: Check, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(CompilerSession, "initialize", AsyncMock(side_effect=error))
        assert str(error) in (await check(WRONG)).gave_up
    assert await works(check)


def test_messages_come_whole_however_they_are_cut() -> None:
    sent = encode({"id": 1, "result": "é\ud800"}) + encode({"method": "x"})
    decoder = Decoder()
    found = [message for index in range(len(sent)) for message in decoder.feed(sent[index : index + 1])]
    assert found == Decoder().feed(sent)
    assert [message.get("id") for message in found] == [1, None]
    assert found[0]["result"] == "é\ud800"
    assert decoder.feed(b"Content-Type: x\r\ncontent-length: 2\r\n\r\n{}") == [{}]


@pytest.mark.parametrize(
    "data",
    [
        b"X" * MAX_HEADER_BYTES,
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 1e3\r\n\r\n",
        b"Hello\r\n\r\n",
        b"Content-Length: %d\r\n\r\n" % (MAX_MESSAGE_BYTES + 1),
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 2\r\n\r\n{]",
        b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(SessionLost):
        Decoder().feed(data)


def test_of_a_long_message_the_beginning_is_read() -> None:
    items = [{"message": "é" * 100, "range": {"start": {"line": number}}} for number in range(10_000)]
    sent = encode({"id": 7, "result": {"items": items}}) + encode({"id": 8})
    long, short = Decoder().feed(sent)
    found = long["result"]["items"]
    assert long["id"] == 7 and short["id"] == 8
    assert 200 < len(found) < LIGHT_BYTES // 100
    assert found == items[: len(found)], "one that is cut is none"


@pytest.mark.parametrize("typescript", [False, True])
def test_nothing_keeps_a_script_that_nobody_uses(typescript: bool) -> None:
    source = ParsedScript("const a = { b: 1 };\nif (a.b) a.c;", typescript)
    assert source.guards is not None
    assert source.node(6, 7) is not None
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None


def test_a_busy_machine_does_not_end_the_reading_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is of the thread's own time: others may have the processor for ten seconds between two looks."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert ParsedScript("n;\n" * 30_000, False).root.child_count == 30_000
