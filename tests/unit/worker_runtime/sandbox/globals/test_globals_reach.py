"""No object that `applyGlobals` removed can be reached from what it left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[..., list[tuple[str, Any]]]

CRAWL = """
const seen = new Map();
const queue = [];
const visit = (value, path) => {
  if ((typeof value !== "object" && typeof value !== "function") || value === null || seen.has(value)) return;
  seen.set(value, path);
  queue.push(value);
};
visit(globalThis, "globalThis");
const controller = new AbortController();
const events = [];
controller.signal.addEventListener("abort", (event) => events.push(event));
controller.abort();
const caught = [];
for (const fail of [() => atob("*"), () => structuredClone(() => 1), () => null.x, () => new URL("")]) {
  try { fail(); } catch (error) { caught.push(error); }
}
const late = AbortSignal.timeout(50);
let self;
await new Promise((done) => setTimeout(function () { self = [this, arguments]; done(); }, 1));
visit([
  controller, controller.signal, controller.signal.reason, events, caught, late, self,
  setTimeout(() => {}, 50),
  new TextEncoder(), new TextDecoder(), new URL("http://a/"), new URLSearchParams().entries(), import.meta,
  (async () => {})(), (function* () {})(), (async function* () {})(), new Intl.Segmenter().segment("a"),
  Temporal.Now.instant(), new EventTarget(), [].values(), "a".matchAll(/a/g), Iterator.from([]), new Error(),
  structuredClone(new DOMException("m", "AbortError")), crypto, performance, queueMicrotask,
], "instances");
while (queue.length > 0) {
  const holder = queue.pop();
  const path = seen.get(holder);
  visit(Object.getPrototypeOf(holder), path + ".[[Prototype]]");
  for (const key of Reflect.ownKeys(holder)) {
    const own = Object.getOwnPropertyDescriptor(holder, key);
    const step = path + "." + String(key);
    visit(own.value, step);
    visit(own.get, step + " get");
    visit(own.set, step + " set");
    if (own.get) { try { visit(own.get.call(holder), step); } catch { /* wrong receiver */ } }
  }
}
SEND({ reached: seen.size });
FORBIDDEN(seen);
"""

COLLECT = """
const forbidden = new Map<unknown, string>();
const collect = (value: any, path: string, depth: number) => {
  if ((typeof value !== "object" && typeof value !== "function") || value === null) return;
  if (depth > 3 || forbidden.has(value)) return;
  forbidden.set(value, path);
  for (const key of Reflect.ownKeys(value)) {
    const own = Object.getOwnPropertyDescriptor(value, key)!;
    collect(own.value, path + "." + String(key), depth + 1);
  }
};
const kept = new Set<unknown>();
for (const name of Object.keys(ALLOWED_GLOBALS)) {
  const replaced = ["setTimeout", "clearTimeout", "crypto", "performance", "console", "structuredClone"];
  if (name !== "globalThis" && !replaced.includes(name)) kept.add((globalThis as any)[name]);
}
for (const name of Reflect.ownKeys(globalThis)) {
  if (typeof name === "string" && name in ALLOWED_GLOBALS) continue;
  const own = Object.getOwnPropertyDescriptor(globalThis, name)!;
  if (own.value !== undefined && own.value !== globalThis) collect(own.value, String(name), 0);
}
const { core } = (Deno as any)[(Deno as any).internal];
collect(core, "core", 0);
"""

COMPARE = """
world.FORBIDDEN = (seen: Map<unknown, string>) => {
  const found: string[] = [];
  for (const [value, path] of seen) {
    if (forbidden.has(value) && !isLanguage(value)) found.push(path + " is " + forbidden.get(value));
  }
  send("found", found);
};
// Values of the language that removed objects also point at: Function.prototype, Error and the like.
const language = new Set<unknown>();
const mark = (value: any, depth: number) => {
  if ((typeof value !== "object" && typeof value !== "function") || value === null) return;
  if (depth > 6 || language.has(value) || value === world) return;
  language.add(value);
  mark(Object.getPrototypeOf(value), depth + 1);
  for (const key of Reflect.ownKeys(value)) {
    mark(Object.getOwnPropertyDescriptor(value, key)!.value, depth + 1);
  }
};
for (const value of kept) mark(value, 0);
function isLanguage(value: unknown): boolean {
  return language.has(value);
}
"""


def test_no_removed_object_can_be_reached(run_agent: Run) -> None:
    """Everything reachable by properties, prototypes and getters, against all that was removed."""
    events = run_agent(CRAWL, before=COLLECT, after=COMPARE)
    assert [value for kind, value in events if kind == "threw"] == []
    by_kind = dict(events)
    assert by_kind["sent"]["reached"] > 1000
    assert by_kind["found"] == []


def test_the_crawl_would_find_a_leak(run_agent: Run) -> None:
    leak = COMPARE + "world.console.leak = { deep: [core.ops ?? core] };"
    events = run_agent(CRAWL, before=COLLECT, after=leak)
    (found,) = [value for kind, value in events if kind == "found"]
    assert any("console.leak.deep.0" in line for line in found)
