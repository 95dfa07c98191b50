"""What the pinned Deno and compiler call, traced while they do what scripts make them do, is on their lists."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from cellblock.tools.catalog.model import Catalog
from cellblock.types.check import compiler
from cellblock.types.check.checker import TypeChecker
from cellblock_worker.confinement import bubblewrap, confinement, syscall_lists
from support.worker_owner import BOUND, MIB, booted, make_run, run_one, script

SCRIPTS = Path(__file__).parents[2] / "scripts"

# Set where the tests run to prove something, in a step of CI: what cannot be traced there is a failure.
REQUIRED = os.environ.get("CELLBLOCK_TRACE") == "required"
CANNOT_TRACE = not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("cc") is None

pytestmark = pytest.mark.skipif(
    CANNOT_TRACE and not REQUIRED, reason="only Linux's root can trace a worker, with cc"
)

ALL_SORTS = """
console.log(new Date().toLocaleString("de"), Intl.DateTimeFormat().resolvedOptions().timeZone, [{ a: 1 }]);
const random = crypto.getRandomValues(new Uint8Array(16));
const kept = [];
for (let i = 0; i < 40; i++) kept.push(new Float64Array(50_000).fill(i), { i, text: "x".repeat(10_000) + i });
function hot(n) { let sum = 0; for (let i = 0; i < n; i++) sum = (sum * 31 + i) % 1000003; return sum; }
await Promise.all([1, 2, 3].map(async (n) => { await null; return hot(n * 300_000); }));
await new Promise((resolve) => setTimeout(resolve, 3));
globalThis.__codemode_result__ = structuredClone({ sum: hot(1e6), size: random.length, kept: kept.length });
"""
TOO_MUCH = "const kept = []; for (let i = 0; ; i++) kept.push('x'.repeat(100_000) + i, new Uint8Array(65_536).fill(1));"
CRASH = "const deep = () => [deep()]; deep();"
JOURNAL = b', "journal": {"seed": "%s", "events": "", "temporal": false}}' % (b"0" * 64)
"""Makes a run one that is recorded."""


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A tracer of what this process starts in bubblewrap from now on."""
    assert not CANNOT_TRACE, "CELLBLOCK_TRACE=required, and only Linux's root can trace a worker, with cc"
    path = str(SCRIPTS / "trace_syscalls.py")
    spec = importlib.util.spec_from_loader("trace_syscalls", SourceFileLoader("trace_syscalls", path))
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with tool.tracing() as (tracer, environment):
        monkeypatch.setenv("PATH", environment["PATH"])
        bubblewrap.try_out.cache_clear()
        yield tracer
    bubblewrap.try_out.cache_clear()
    confinement.use_isolation("off")


async def test_what_deno_calls_is_on_its_list(traced: Any) -> None:
    assert syscall_lists.is_traced("deno", confinement.deno_version()), (
        "trace this Deno: scripts/trace_syscalls"
    )
    confinement.use_isolation("required")
    reasons = [
        (await run_one(code, memory_bytes=32 * MIB))[0].reason for code in (ALL_SORTS, TOO_MUCH, CRASH)
    ]
    # With so little memory V8 may die before it has used enough for that to be told as the reason.
    assert reasons[0] == reasons[2] == "finished" and reasons[1] in ("memory", "crashed")
    made, owner = await booted()
    made.lease(b"token", make_run(), script(ALL_SORTS)[:-1] + JOURNAL)
    assert (await owner.end()).reason == "finished"
    assert any(header["t"] == "events" for header, _ in owner.said), "it was recorded"
    assert dict(traced.seen) == dict(traced.refused) == {}
    assert traced.started >= 4


async def test_what_deno_calls_is_on_its_list_where_processes_are_reused(traced: Any) -> None:
    """Each run has a context of `node:vm`, which another script of the bundle makes."""
    confinement.use_isolation("required")
    assert confinement.use_contexts(True)
    try:
        made, owner = await booted(lasts=True)
        for code, memory in ((ALL_SORTS, 64), (CRASH, 64), (ALL_SORTS, 64)):
            owner.events.clear()
            made.lease(b"token", make_run(key="k", memory_bytes=memory * MIB), script(code))
            await owner.until("returned")
        assert [(ended.reason, ended.reused) for ended, _ in owner.ended] == [
            ("finished", number) for number in range(3)
        ]
        made.kill("host_stopping")
        await owner.until("gone")
    finally:
        confinement.use_contexts(False)
    assert dict(traced.seen) == dict(traced.refused) == {}
    assert traced.started >= 1


async def test_a_call_that_is_on_no_list_is_seen(traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"epoll_wait", "epoll_pwait"}
    monkeypatch.setattr(syscall_lists, "_DENO", tuple({*syscall_lists._DENO} - missing))
    confinement.use_isolation("required")
    assert (await run_one("globalThis.__codemode_result__ = 1;"))[0].reason == "finished"
    assert {seen.call for seen in traced.seen} & missing and {seen.call for seen in traced.seen} <= missing


async def test_a_call_that_is_always_refused_is_seen(traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new Deno may begin to make one; libc does without this."""
    monkeypatch.setattr(syscall_lists, "_DENO", tuple({*syscall_lists._DENO} - {"rseq"}))
    monkeypatch.setattr(syscall_lists, "REFUSED", (*syscall_lists.REFUSED, "rseq"))
    confinement.use_isolation("required")
    assert (await run_one("globalThis.__codemode_result__ = 1;"))[0].reason == "finished"
    assert {seen.call for seen in traced.refused} == {"rseq"} and not traced.seen


@pytest.mark.skipif(
    compiler.why_absent() is not None and not REQUIRED,
    reason="the build has brought no TypeScript compiler",
)
async def test_what_the_compiler_calls_is_on_its_list(traced: Any) -> None:
    assert syscall_lists.is_traced("tsc", compiler.version()), "trace this compiler: scripts/trace_syscalls"
    checker = TypeChecker("required")
    try:
        checked = await checker.check(
            "notThere(1); globalThis.__codemode_result__ = 1;",
            typescript=True,
            catalog=Catalog(),
            imports=(),
            bound_seconds=BOUND,
            wait_for_start=True,
        )
    finally:
        await checker.close()
    assert len(checked.faults) == 1
    assert dict(traced.seen) == {} and traced.started == 1
