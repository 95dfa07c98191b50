"""A context has the globals that a process of its own has: the same names, kinds, attributes and constants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock_worker.confinement import confinement
from cellblock_worker.worker.reuse import ReuseBounds
from support.worker_owner import booted, make_run, script

BOUNDS = ReuseBounds(max_runs=9, max_age_ms=3_600_000, idle_ms=60_000, principal_warm=1)

DUMP = """
const found = {};
const about = (value) => {
    if (typeof value === "function") {
        const made = Object.hasOwn(value, "prototype") ? ", has a prototype" : "";
        return `function ${value.name} of ${value.length}${made}`;
    }
    if (value !== null && typeof value === "object") return `object ${Object.prototype.toString.call(value)}`;
    return `${typeof value} ${String(value)}`;
};
const dump = (object, path) => {
    const up = Object.getPrototypeOf(object);
    const open = Object.isExtensible(object) ? "" : ", not extensible";
    found[path] = `${about(object)}, of ${up && up.constructor.name}${open}`;
    for (const key of Reflect.ownKeys(object)) {
        // What Deno's classes keep under symbols of their own is inside of them.
        if (typeof key === "symbol" && !Object.values(Object.getOwnPropertyDescriptors(Symbol)).some(
            (known) => known.value === key)) continue;
        const { value, get, set, ...flags } = Reflect.getOwnPropertyDescriptor(object, key);
        const on = Object.keys(flags).filter((flag) => flags[flag]).join(" ");
        const what = get || set ? `get ${get && about(get)}, set ${set && about(set)}` : about(value);
        found[`${path}.${String(key)}`] = `${what}; ${on}`;
    }
};
dump(globalThis, "globalThis");
for (const key of Reflect.ownKeys(globalThis)) {
    const value = globalThis[key];
    if (value === globalThis || value === null || typeof value !== "object" && typeof value !== "function") continue;
    dump(value, String(key));
    if (typeof value === "function" && value.prototype) dump(value.prototype, `${String(key)}.prototype`);
}
console.log(JSON.stringify(found));
"""

DENO_REPLACES = {"Object.prototype.__proto__"}
"""Names what Deno has put functions of its own in place of, where a context has the engine's."""


async def _dumped(key: str) -> dict[str, Any]:
    made, owner = await booted(reuse=BOUNDS)
    made.lease(b"token", make_run(key=key, log_bytes=1 << 20), script(DUMP))
    await owner.until("ended")
    made.kill("host_stopping")
    await owner.until("gone")
    ((_, text),) = owner.logs
    return json.loads(text)


async def test_both_have_the_same() -> None:
    if not confinement.use_contexts(True):
        pytest.skip("this system keeps no kernel limits")
    try:
        own, context = await _dumped(""), await _dumped("a key")
    finally:
        confinement.use_contexts(False)
    differ = {
        name: (own.get(name), context.get(name))
        for name in own.keys() | context.keys()
        if own.get(name) != context.get(name)
    }
    assert differ.keys() == DENO_REPLACES, differ
    assert len(own) > 1000
