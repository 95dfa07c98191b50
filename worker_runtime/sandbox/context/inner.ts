/**
 * Carries a run in a context of its own, inside of a process that has served others: everything here is evaluated in
 * the context, so that all that a script can reach belongs to it.
 *
 * @module
 */

import { type Inner, outer } from "./outer.ts"; // first: the rest finds a clock
import { uncaught } from "./events.ts";
import { bytesFrom, makeWeb } from "./web.ts";
import { makeTimers, placeGlobals } from "../globals/globals_web.ts";
import * as p from "../primordials.ts";
import { begin, fail, handled, prepare, rehearse, rejected, run } from "../run.ts";
import { makeWebBy, web } from "../web_classes.ts";
import { type Channel, useChannel } from "../wire/channel.ts";
import type { Start } from "../wire/protocol.gen.ts";
import { settle } from "../wire/rpc.ts";

type Exports = Record<string, unknown>;

const MAX_RANDOM_BYTES = 65536;
const { fromBase64 } = Uint8Array as unknown as { fromBase64(text: string): Uint8Array };
const setBytes = p.uncurryThis<(source: Uint8Array, offset: number) => void>(Uint8Array.prototype.set);

const callbacks = new p.SafeMap<number, () => void>();
const PromiseClass = Promise;
const NativeRegistry = FinalizationRegistry;
const SafeTypeError = TypeError;
const SafeSyntaxError = SyntaxError;
let lastTimer = 0;
let turned: (() => void) | undefined;
let loaded: { evaluated: Promise<unknown>; exports: Exports } | undefined;
let broken: { error: unknown } | undefined;
let told: (() => void) | undefined;

const channel = {
  send(message: Record<string, string | number | boolean>, body = ""): void {
    const header: (string | number | boolean)[] = [body];
    const names = p.objectKeys(message);
    for (let i = 0; i < names.length; i++) {
      p.append(header, names[i]);
      p.append(header, message[names[i]]);
    }
    p.apply(outer.say, undefined, header);
  },
  utf8: (text: string) => text,
  sizeOf: outer.size,
};

/** Evaluates a module of the plan's: a script's own `import(…)` comes here, too. */
async function load(url: string): Promise<Exports> {
  loaded = broken = undefined;
  outer.load(url);
  if (loaded === undefined && broken === undefined) await new PromiseClass<void>((resolve) => told = resolve);
  if (broken !== undefined) throw (broken as { error: unknown }).error;
  const { evaluated, exports } = loaded!;
  await evaluated;
  return exports;
}

function nextTurn(): Promise<void> {
  return new PromiseClass((resolve) => {
    turned = resolve;
    outer.turn();
  });
}

function createTimer(callback: () => void, ms: number): object {
  const id = ++lastTimer;
  p.mapSet(callbacks, id, callback);
  outer.timer(id, ms);
  return { __proto__: null, id } as object;
}

function cancelTimer(timer: object): void {
  const { id } = timer as { id: number };
  p.mapDelete(callbacks, id);
  outer.untimer(id);
}

/** Calls what a script has left to be called; what it throws ends the run. */
function guarded(callback: () => void): void {
  try {
    callback();
  } catch (error) {
    fail("exception", error);
  }
}

/**
 * Makes a `FinalizationRegistry` that calls nothing of the script's once the run is over: the engine calls back at any
 * time.
 */
function makeRegistry(): typeof FinalizationRegistry {
  const { prototype } = NativeRegistry;
  const made = function FinalizationRegistry(this: unknown, cleanup: (held: unknown) => void) {
    if (new.target === undefined) throw new SafeTypeError("Constructor FinalizationRegistry requires 'new'");
    if (typeof cleanup !== "function") {
      throw new SafeTypeError("FinalizationRegistry: cleanup must be callable");
    }
    return p.construct(
      NativeRegistry,
      [(held: unknown) => {
        if (outer.alive()) guarded(() => cleanup(held));
      }],
      new.target,
    );
  } as unknown as typeof FinalizationRegistry;
  p.defineProperty(made, "prototype", { value: prototype, writable: false });
  // The bundle calls it something else.
  p.defineProperty(made, "name", { value: "FinalizationRegistry" });
  p.defineProperty(prototype, "constructor", { value: made });
  return made;
}

const crypto = {
  getRandomValues(array: unknown): unknown {
    const tag = p.isView(array) ? p.typedArrayTag(array) : undefined;
    if (tag === undefined || p.startsWith(tag, "Float")) {
      const said = "The data argument must be an integer-type TypedArray";
      throw new (web().DOMException)(said, "TypeMismatchError");
    }
    const bytes = bytesFrom(array);
    const count = p.typedArrayLength(bytes);
    if (count > MAX_RANDOM_BYTES) {
      throw new (web().DOMException)(`${count} bytes are over ${MAX_RANDOM_BYTES}`, "QuotaExceededError");
    }
    setBytes(bytes, fromBase64(outer.random(count)), 0);
    return array;
  },
  randomUUID: (): string => outer.uuid(),
};

const { queueMicrotask, dispatchEvent } = {
  queueMicrotask(callback: unknown): void {
    if (typeof callback !== "function") throw new SafeTypeError("queueMicrotask needs a function");
    void soon(callback as () => void);
  },
  dispatchEvent(_event: unknown): boolean {
    return true;
  },
};

async function soon(callback: () => void): Promise<void> {
  await undefined;
  guarded(callback);
}

const inner: Inner = {
  start: (log_bytes, message_bytes, plan) =>
    void run({ t: "start", log_bytes, message_bytes } as Start, plan),
  async rehearse(plan) {
    await rehearse({ t: "start", log_bytes: 1 << 16, message_bytes: 1 << 24 } as Start, plan);
    begin();
  },
  reply: settle,
  rejected,
  handled,
  fire(id) {
    const callback = p.mapGet(callbacks, id) as (() => void) | undefined;
    p.mapDelete(callbacks, id);
    if (callback !== undefined) guarded(callback);
  },
  turn: () => turned?.(),
  needWeb: () => void web(),
  meta: (url) => (meta) => {
    p.define(meta, "url", url);
    p.define(meta, "main", false);
    p.define(meta, "resolve", (specifier: unknown) => new (web().URL)(specifier as string, url).href);
  },
  loaded: (evaluated, exports) => loaded = { evaluated, exports },
  broken(error, name, message) {
    const made = name === "SyntaxError" ? SafeSyntaxError : SafeTypeError;
    broken = { error: message === "" ? error : new made(message) };
    told?.();
  },
};

uncaught.hear = (error) => fail("exception", error);
useChannel(channel as unknown as Channel);
const timers = makeTimers({ createTimer, cancelTimer });
makeWebBy(() => makeWeb(outer, timers.setTimeout));
p.defineProperty(globalThis, "FinalizationRegistry", { value: makeRegistry() });
// As in the realm that Deno makes.
p.defineProperty(Symbol, "metadata", { value: Symbol("Symbol.metadata") });
prepare({ allow: outer.allow, load, nextTurn, createTimer, cancelTimer }, () => {
  placeGlobals({ timers, crypto, performance: { now: () => outer.now() }, queueMicrotask, dispatchEvent });
});
(globalThis as unknown as { __cellblock_inner__: Inner }).__cellblock_inner__ = inner;
