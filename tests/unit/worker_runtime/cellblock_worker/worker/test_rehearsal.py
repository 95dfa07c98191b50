"""What a worker runs before it is ready: unheard, without a trace, and who fails at it is none."""

from __future__ import annotations

import base64
import json
import re
import time

import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import encode_frame, pack_header
from cellblock_worker.worker import worker
from cellblock_worker.worker.rehearsal import WARM_FRAME
from cellblock_worker.worker.worker import BOOT_BOUND_SECONDS, Worker
from support.worker_owner import MIB, Owner, booted, make_run, script


def module(source: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(source.encode()).decode()


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
    (header, body), *others = owner.said
    assert others == []
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
    made.deliver(pack_header(vars(protocol.Reply(id=1, ok=True))), b'"answer"')
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
    frame = encode_frame(pack_header(vars(protocol.Warm())), json.dumps(plan).encode())
    assert frame != WARM_FRAME
    monkeypatch.setattr(worker, "WARM_FRAME", frame)
    owner = Owner()
    started = time.monotonic()
    made = Worker(owner, max_frame_bytes=2 * MIB, max_old_space_mb=128)
    await owner.until("gone")
    assert time.monotonic() - started < BOOT_BOUND_SECONDS
    assert not made.was_ready and owner.said == []
    assert "may not say failed" in made.detail
