"""A context has the globals that a process of its own has, by name."""

from __future__ import annotations

import json

import pytest

from cellblock_worker.confinement import confinement
from cellblock_worker.worker.reuse import ReuseBounds
from support.worker_owner import booted, make_run, script

BOUNDS = ReuseBounds(max_runs=9, max_age_ms=3_600_000, idle_ms=60_000, principal_warm=1)

DUMP = """
const found = [];
const dump = (object, path) => {
    for (const key of Reflect.ownKeys(object)) found.push(`${path}.${String(key)}`);
};
dump(globalThis, "globalThis");
for (const key of Reflect.ownKeys(globalThis)) {
    const value = globalThis[key];
    if (value === globalThis || value === null || typeof value !== "object" && typeof value !== "function") continue;
    dump(value, String(key));
    if (typeof value === "function" && value.prototype) dump(value.prototype, `${String(key)}.prototype`);
}
"""

ONLY_DENOS = {
    "AbortSignal.prototype.addEventListener",
    "AbortSignal.prototype.removeEventListener",
    "DOMException.prototype.message",
    "Event.prototype.initialized",
    "Event.prototype.isTrusted",
    "EventTarget.prototype.getParent",
    "queueMicrotask.prototype",
    "queueMicrotask.prototype.constructor",
}
"""Names what only the classes of Deno have: it is internal, or stands elsewhere in those of a context."""

ONLY_A_CONTEXTS = {"Event.prototype.initEvent"}


async def _dumped(key: str) -> set[str]:
    made, owner = await booted(reuse=BOUNDS)
    made.lease(
        b"token",
        make_run(key=key, log_bytes=1 << 20),
        script(f"{DUMP}console.log(JSON.stringify(found));"),
    )
    await owner.until("ended")
    made.kill("host_stopping")
    await owner.until("gone")
    ((_, text),) = owner.logs
    return set(json.loads(text))


async def test_both_have_the_same() -> None:
    if not confinement.use_contexts(True):
        pytest.skip("this system keeps no kernel limits")
    try:
        own, context = await _dumped(""), await _dumped("a key")
    finally:
        confinement.use_contexts(False)
    inner = {name for name in own if ".Symbol(" in name and not name.startswith("Symbol.")}
    assert own - context - inner == ONLY_DENOS
    assert context - own == ONLY_A_CONTEXTS
