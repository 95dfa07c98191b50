"""One worker with a real Deno that may have several runs: what is each run's own, and what ends the process."""

import os
import sys
from collections.abc import Iterator

import psutil
import pytest

from cellblock_worker.confinement import confinement
from cellblock_worker.wire import protocol
from cellblock_worker.worker.life import MAX_RUNS, RETURN_CPU_SECONDS, State
from cellblock_worker.worker.worker import Worker
from support.processes import left_after
from support.waits import until
from support.worker_owner import Owner, booted, make_run, script

KEY = "a key"
HAS_LESS = sys.platform.startswith("linux") and os.getpriority(os.PRIO_PROCESS, 0) < 10


@pytest.fixture(autouse=True)
def contexts() -> Iterator[None]:
    """Workers boot so that they can."""
    if not confinement.use_contexts(True):
        pytest.skip("this system keeps no kernel limits")
    yield
    confinement.use_contexts(False)


async def _again(made: Worker, owner: Owner, code: str, **changes: int) -> protocol.Ended:
    """One run, after which the process is ready or gone."""
    owner.events.clear()
    made.lease(b"token", make_run(key=KEY, **changes), script(code))
    await owner.until("ended")
    return owner.ended[-1][0]


async def _back(owner: Owner) -> bool:
    """Whether its process came back after a run. On a busy machine the next context may take what ends the process."""
    await until(lambda: {"returned", "gone"} & set(owner.events), "it is back, or gone")
    return "returned" in owner.events


async def test_it_has_one_run_after_the_other_and_each_is_told() -> None:
    made, owner = await booted(lasts=True)
    pid = made.pid
    for served in range(3):
        ended = await _again(made, owner, "console.log('LEFT' in globalThis); globalThis.LEFT = 1;")
        await owner.until("returned")
        assert (ended.reason, ended.reused) == ("finished", served)
        assert (made.pid, made.state, made.key) == (pid, State.WARM, KEY)
        assert made.may_have(make_run(key=KEY), gives_way=False)
        assert not made.may_have(make_run(key="another"), gives_way=False)
    assert owner.logs == [("log", "false")] * 3
    made.kill("host_stopping")
    await owner.until("gone")
    assert len(owner.ended) == 3


async def test_short_runs_do_not_end_it_before_its_last() -> None:
    """What they leave for V8 to collect, and V8 leaves, is not over what the process may grow by."""
    served = [await _short_runs()]
    while served[-1] < MAX_RUNS:
        assert len(served) < 5, f"none of five processes had all its runs: {served}"
        served.append(await _short_runs())
    assert served[-1] == MAX_RUNS


async def _short_runs() -> int:
    """How many runs one process has."""
    made, owner = await booted(lasts=True)
    for served in range(MAX_RUNS + 1):
        ended = await _again(made, owner, "1")
        assert (ended.reason, ended.reused) == ("finished", served), made.detail
        if not await _back(owner):
            return served + 1
    return MAX_RUNS + 2


LONG = "let n = 0; for (let i = 0; i < 4e8; i++) n += i;"


@pytest.mark.skipif(not HAS_LESS, reason="nothing has less priority than this")
async def test_a_long_run_is_not_lowered_where_nobody_waits_and_where_somebody_does_has_a_later_one() -> None:
    """A priority cannot be raised again: a lowered process is for runs that give way."""
    for _ in range(10):
        if await _long_runs():
            return
    pytest.fail("none of ten processes came back from three runs")


async def _long_runs() -> bool:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    made, owner = await booted(lasts=True)
    await _again(made, owner, LONG)
    if not await _back(owner):
        return False
    assert owner.computed and os.getpriority(os.PRIO_PROCESS, made.pid) == before
    assert made.may_have(make_run(key=KEY), gives_way=False)
    owner.others = True
    await _again(made, owner, LONG)
    if not await _back(owner):
        return False
    lowered = os.getpriority(os.PRIO_PROCESS, made.pid)
    assert lowered > before
    assert made.may_have(make_run(key=KEY), gives_way=True)
    assert not made.may_have(make_run(key=KEY), gives_way=False)
    owner.events.clear()
    made.lease(b"token", make_run(key=KEY), script("1"), gives_way=True)
    if not await _back(owner):
        return False
    assert os.getpriority(os.PRIO_PROCESS, made.pid) == lowered, "it is not lowered once more for each run"
    made.kill("host_stopping")
    await owner.until("gone")
    return True


@pytest.mark.parametrize(
    "left",
    ["(async () => { for (;;) await null; })();", "const f = () => queueMicrotask(f); f();"],
    ids=["promises", "microtasks"],
)
async def test_what_goes_on_after_the_outcome_ends_it(left: str) -> None:
    made, owner = await booted(lasts=True)
    ended = await _again(made, owner, f"{left} globalThis.__codemode_result__ = 1;", timeout_ms=2_000)
    await owner.until("gone")
    assert "returned" not in owner.events
    assert ended.reason in ("finished", "timeout")


async def test_what_is_used_after_the_outcome_is_told_with_whose_it_was() -> None:
    made, owner = await booted(lasts=True)
    await _again(made, owner, "1", lane=7)
    await owner.until("returned")
    loop = "const f = () => Promise.resolve().then(f); globalThis.__codemode_result__ = { get a() { f(); return 1; } };"
    ended = await _again(made, owner, loop, lane=8)
    await owner.until("gone")
    assert (ended.reason, ended.reused) == ("finished", 1)
    (first, renewing), (second, looping) = owner.tidied
    assert (first, second) == (7, 8)
    assert 0 <= renewing < RETURN_CPU_SECONDS <= looping


async def test_a_run_that_finds_its_process_gone_is_not_told_what_the_one_before_used() -> None:
    made, owner = await booted(lasts=True)
    before = await _again(made, owner, "for (let i = 0; i < 3e7; i++);")
    await owner.until("returned")
    process = psutil.Process(made.pid)
    process.kill()
    # Not a turn of the loop: the worker has not heard of it.
    assert left_after([process], 30) == []
    ended = await _again(made, owner, "1")
    assert ended.reason == "crashed" and ended.cpu_ms < before.cpu_ms


async def test_a_syntax_error_ends_it() -> None:
    """Deno, which tells the place, keeps the source for good."""
    made, owner = await booted(lasts=True)
    await _again(made, owner, "throw new Error();")
    await owner.until("returned")
    ended = await _again(made, owner, "let let = 1;")
    await owner.until("gone")
    assert (ended.reason, ended.reused) == ("finished", 1)
    assert b"SyntaxError" in owner.said[-1][1]
    assert (made.detail, "returned" in owner.events) == ("exit code 0", False)


DECODED = 72 << 20
DECODES = f"console.log(new TextDecoder().decode(new Uint8Array({DECODED}).fill(65)).length);"
MAKES_DECODERS = "for (let i = 0; i < 400_000; i++) new TextDecoder(); console.log(400_000);"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said", "memory"),
    [(DECODES, DECODED, 256 << 20), (MAKES_DECODERS, 400_000, 64 << 20)],
    ids=["one large text", "many decoders"],
)
async def test_decoding_takes_no_more_memory_than_in_a_process_of_its_own(
    code: str, said: int, memory: int
) -> None:
    for key in ("", KEY):
        made, owner = await booted(lasts=True)
        made.lease(b"token", make_run(key=key, memory_bytes=memory), script(code))
        await owner.until("ended")
        assert (owner.ended[0][0].reason, owner.logs) == ("finished", [("log", str(said))]), key
        made.kill("host_stopping")
        await owner.until("gone")
