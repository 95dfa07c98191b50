"""The states of a worker, rehearsed."""

import json
import re
import time

import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import encode_frame
from cellblock_worker.worker import worker
from cellblock_worker.worker.life import (
    CPU_SECONDS,
    GROWTH_BYTES,
    MAY_SAY,
    TRANSITIONS,
    Bond,
    Event,
    IllegalTransition,
    State,
    advance,
)
from cellblock_worker.worker.rehearsal import WARM_FRAME
from cellblock_worker.worker.usage import Usage
from cellblock_worker.worker.worker import BOOT_BOUND_SECONDS, Worker
from support.worker_owner import MIB, Owner, booted, make_run, module, script

ORDER = list(State)


def test_life_is_one_way_but_for_a_worker_that_is_reused() -> None:
    back = [move for move, after in TRANSITIONS.items() if ORDER.index(after) <= ORDER.index(move[0])]
    assert back == [(State.RETURNING, Event.READY)]
    assert TRANSITIONS[back[0]] is advance(*back[0]) is State.WARM
    with pytest.raises(IllegalTransition, match="LEASE in GONE"):
        advance(State.GONE, Event.LEASE)


def test_every_living_state_can_be_killed_or_exit_and_only_a_warm_one_is_leased() -> None:
    for state in State:
        assert ((state, Event.EXIT) in TRANSITIONS) == (state is not State.GONE)
        assert ((state, Event.KILL) in TRANSITIONS) == (state not in (State.ENDING, State.GONE))
    assert [before for before, event in TRANSITIONS if event is Event.LEASE] == [State.WARM]


def test_what_may_be_said() -> None:
    said_in_runs = MAY_SAY[State.RUNNING]
    assert protocol.Ready not in said_in_runs
    assert {
        State.BOOTING: (protocol.Ready,),
        State.WARM: (),
        State.RUNNING: said_in_runs,
        State.RETURNING: (protocol.Ready,),
        State.ENDING: (protocol.Log,),
        State.GONE: (),
    } == MAY_SAY


def _run(key: str = "a", *, memory: int = 100, cpu: int = 100) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=cpu, memory_bytes=memory, log_bytes=1, message_bytes=1, key=key)


def test_only_runs_of_its_key_fit_and_none_with_higher_limits() -> None:
    bond = Bond(_run(), Usage(1.0, 1))
    runs = (_run(memory=50, cpu=50), _run("b"), _run(memory=101), _run(cpu=101))
    assert [bond.fits(run) for run in runs] == [True, False, False, False]


def test_it_has_them_for_so_long_and_no_longer() -> None:
    bond = Bond(_run(), Usage(1.0, 1))
    bond.since -= 3_601
    assert not bond.lasts()


def test_it_may_neither_grow_nor_compute_without_end() -> None:
    bond = Bond(_run(), Usage(1.0, 1, data_bytes=1000))
    used = ((1.0 + CPU_SECONDS, 1000 + GROWTH_BYTES), (1.0, 1001 + GROWTH_BYTES), (1.1 + CPU_SECONDS, 1000))
    assert [bond.within(Usage(seconds, 1, data)) for seconds, data in used] == [True, False, False]


each = pytest.mark.parametrize(
    "options",
    [{}, {"has_journals": True}, {"rehearse": False}],
    ids=["rehearses", "rehearses a journaled run, too", "does not"],
)


@each
async def test_a_run_sees_and_says_nothing_of_it(options: dict[str, bool]) -> None:
    made, owner = await booted(**options)
    assert owner.said == []
    code = """
        const names = Object.getOwnPropertyNames(globalThis);
        globalThis.__codemode_result__ = {
          before: String(globalThis.__codemode_result__),
          hook: names.filter((name) => name.includes("boot")),
          replaced: [Date, Date.now, Math.random, WeakRef, Intl.DateTimeFormat.prototype.formatToParts]
            .filter((one) => !`${one}`.includes("[native code]")).length,
          temporal: typeof Temporal,
        };
    """
    made.lease(b"token", make_run(), script(code))
    assert (await owner.end()).reason == "finished"
    [(header, body)] = owner.said
    assert header["t"] == "done"
    assert json.loads(body) == {"before": "undefined", "hook": [], "replaced": 0, "temporal": "object"}


@each
async def test_the_first_call_of_a_run_has_the_first_number(options: dict[str, bool]) -> None:
    made, owner = await booted(**options)
    server = module(
        'const made = globalThis["__cellblock_boot__"].server("real");export const f = made.tool("tool", "f", 1);'
    )
    main = module(f'import {{ f }} from "{server}"; globalThis.__codemode_result__ = await f({{}});')
    plan = {"main": main, "modules": {"@codemode/servers/real": server}, "refused": {}}
    made.lease(b"token", make_run(), json.dumps(plan).encode())
    await owner.until("says")
    made.deliver(protocol.Reply(id=1, ok=True).packed(), b'"answer"')
    assert (await owner.end()).reason == "finished"
    said = [(header["t"], header.get("id"), header.get("server"), body) for header, body in owner.said]
    assert said == [("call", 1, "real", b"{}"), ("done", None, None, b'"answer"')]


@each
async def test_the_events_of_a_journaled_run_begin_with_its_own(options: dict[str, bool]) -> None:
    """And whoever owns workers hears that there was one, so that the next ones rehearse it."""
    made, owner = await booted(**options)
    plan = json.loads(script("globalThis.__codemode_result__ = 1;"))
    terms = {"seed": "0" * 64, "events": "", "temporal": False}
    made.lease(b"token", make_run(), json.dumps({**plan, "journal": terms}).encode())
    assert (await owner.end()).reason == "finished"
    events = b"".join(body for header, body in owner.said if header["t"] == "events").decode()
    assert re.fullmatch(r"c\d{13}(i0e1|i0c\d+e1c\d+|i0e1c\d+|i0c\d+e1)", events), events
    assert owner.has_journals


@pytest.mark.parametrize(
    "script_of_it",
    ["throw new Error('no');", "console.log('and no result'); throw 1;", "this is no script", ""],
    ids=["throws", "logs and throws", "does not parse", "says nothing"],
)
async def test_one_that_fails_at_it_is_no_worker_and_says_so_at_once(
    script_of_it: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"main": module(script_of_it), "modules": {}, "refused": {}}
    frame = encode_frame(protocol.Warm().packed(), json.dumps(plan).encode())
    assert frame != WARM_FRAME
    monkeypatch.setattr(worker, "WARM_FRAME", frame)
    owner = Owner()
    started = time.monotonic()
    made = Worker(owner, max_frame_bytes=2 * MIB, max_old_space_mb=128)
    await owner.until("gone")
    assert time.monotonic() - started < BOOT_BOUND_SECONDS
    assert not made.was_ready and owner.said == []
    assert "may not say failed" in made.detail
