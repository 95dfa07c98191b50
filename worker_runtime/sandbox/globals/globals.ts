/**
 * Makes `globalThis` what an honest script should see: an allow-list (Code Mode specification, section 3.5),
 * everything else gone from the global object and from its prototypes.
 *
 * This is hygiene, not a control: what a worker can touch is bounded by its process.
 *
 * @module
 */

import { structuredClone } from "./globals_clone.ts";
import { ALLOWED_GLOBALS } from "./globals_table.ts";
import { base64, makeAbortTimeout, makeTimers, type TimerSource } from "./globals_web.ts";
import * as p from "../primordials.ts";
import { scriptStack } from "../result/stack_text.ts";

export { ALLOWED_GLOBALS, DEVIATIONS } from "./globals_table.ts";

/**
 * Replaces what the script may have and removes the rest. Call once, before agent code is imported.
 *
 * Listeners that were put on `globalThis` before (`error`, `unhandledrejection`, `rejectionhandled`) keep working
 * for the events that Deno itself sends. Afterwards `console` is an empty object and may be assigned once more;
 * `__codemode_result__` is undefined, can be assigned, and can be neither deleted nor made a getter.
 *
 * @param core makes the timers.
 * @param dispatchEvent what there is under this name.
 */
export function applyGlobals(core: TimerSource, dispatchEvent: unknown): void {
  const world = globalThis;
  const timers = makeTimers(core);
  const made: Record<string, unknown> = {
    __proto__: null,
    TextDecoder,
    TextEncoder,
    atob: base64.atob,
    btoa: base64.btoa,
    clearTimeout: timers.clearTimeout,
    console: {},
    crypto: narrowCrypto(),
    performance: narrowPerformance(),
    queueMicrotask,
    setTimeout: timers.setTimeout,
    structuredClone,
  };
  trimStatics(timers.setTimeout);

  const names = p.ownKeys(world);
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    if (typeof name !== "string" || ALLOWED_GLOBALS[name] === undefined) p.deleteProperty(world, name);
  }
  const madeNames = p.objectKeys(made);
  for (let i = 0; i < madeNames.length; i++) place(world, madeNames[i], made[madeNames[i]], true);
  // Not configurable: a script could otherwise hide uncaught errors, or make reading its result run code.
  place(world, "dispatchEvent", dispatchEvent, false);
  p.defineProperty(world, "__codemode_result__", {
    value: undefined,
    writable: true,
    enumerable: true,
    configurable: false,
  });
  p.setPrototypeOf(world, p.ObjectPrototype);
}

function place(target: object, name: string, value: unknown, changeable: boolean): void {
  p.defineProperty(target, name, {
    value,
    writable: changeable,
    enumerable: false,
    configurable: changeable,
  });
}

function narrowCrypto(): object {
  const { crypto } = globalThis;
  const getRandomValues = p.uncurryThis(crypto.getRandomValues);
  const randomUUID = p.uncurryThis(crypto.randomUUID);
  return {
    getRandomValues: (array: unknown) => getRandomValues(crypto, array as Uint8Array<ArrayBuffer>),
    randomUUID: () => randomUUID(crypto),
  };
}

function narrowPerformance(): object {
  const { performance } = globalThis;
  const now = p.uncurryThis(performance.now);
  return { now: () => now(performance) };
}

/** Routes that lead from allowed names to others. */
function trimStatics(setTimeout: (callback: unknown, delay?: unknown) => number): void {
  p.deleteProperty(URL, "createObjectURL");
  p.deleteProperty(URL, "revokeObjectURL");
  place(AbortSignal, "timeout", makeAbortTimeout(setTimeout), true);
  // A script's own would be handed the call sites of the sandbox's own frames.
  place(Error, "prepareStackTrace", scriptStack, false);
  // An imported WebAssembly module can bring a memory along; the classes behind it stay out of reach.
  p.deleteProperty(SharedArrayBuffer.prototype, "constructor");
  p.deleteProperty(WebAssembly.Memory.prototype, "constructor");
}

/**
 * Makes what Deno calls to report uncaught errors; it is placed on `globalThis` as `dispatchEvent`. Without it, the
 * process ends with an error of Deno's own.
 *
 * The listeners move to a target that only this function holds: what Deno keeps about them on `globalThis`, under
 * symbols, would let a script call or remove them.
 */
export function makeDispatchEvent(): (event: unknown) => boolean {
  const world = globalThis;
  const target = { __proto__: EventTarget.prototype } as object;
  const symbols = p.getOwnPropertySymbols(world);
  for (let i = 0; i < symbols.length; i++) {
    p.defineProperty(target, symbols[i], p.getOwnPropertyDescriptor(world, symbols[i])!);
  }
  const dispatch = p.uncurryThis(EventTarget.prototype.dispatchEvent);
  // A script cannot make these: their classes are gone, and no listener of its own is ever called with one.
  const errorEvent = ErrorEvent.prototype;
  const rejectionEvent = PromiseRejectionEvent.prototype;
  return {
    dispatchEvent: (event: unknown): boolean => {
      if (typeof event !== "object" || event === null) return true;
      const kind = p.getPrototypeOf(event);
      return kind === errorEvent || kind === rejectionEvent ? dispatch(target, event as Event) : true;
    },
  }.dispatchEvent;
}
