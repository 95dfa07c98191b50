/**
 * Makes `globalThis` what an honest script should see: an allow-list (Code Mode specification, section 3.5),
 * everything else gone from the global object and from its prototypes.
 *
 * This is hygiene, not a control: what a worker can touch is bounded by its process.
 *
 * @module
 */

import { ALLOWED_GLOBALS } from "./globals_table.ts";
import { makeAbortTimeout, makeTimers, place, placeGlobals, type TimerSource } from "./globals_web.ts";
import * as p from "../primordials.ts";

export { ALLOWED_GLOBALS, DEVIATIONS } from "./globals_table.ts";

/** Removes all that a script may not have from a realm that is as its engine made it; gives the names. */
export function removeUnwanted(world: object): string[] {
  const removed: string[] = [];
  const names = p.ownKeys(world);
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    if (typeof name === "string" && ALLOWED_GLOBALS[name] !== undefined) continue;
    p.deleteProperty(world, name);
    // No script has run yet: nothing on a prototype sees this write.
    if (typeof name === "string") removed[removed.length] = name;
  }
  return removed;
}

/** Removes routes that lead from allowed names of the language to others. */
export function trimLanguage(world: typeof globalThis): void {
  // An imported WebAssembly module can bring a memory along; the classes behind it stay out of reach.
  p.deleteProperty(world.SharedArrayBuffer.prototype, "constructor");
  p.deleteProperty(world.WebAssembly.Memory.prototype, "constructor");
  // Deno has removed it from its own realm.
  p.deleteProperty(world.Intl, "v8BreakIterator");
}

/**
 * Replaces what the script may have and removes the rest, in the process's own realm. Call once, before agent code is
 * imported.
 *
 * @param core makes the timers.
 * @param dispatchEvent what there is under this name.
 */
export function applyGlobals(core: TimerSource, dispatchEvent: unknown): void {
  const world = globalThis;
  const timers = makeTimers(core);
  const [crypto, performance] = [narrowCrypto(), narrowPerformance()];
  const { queueMicrotask } = methodOf(globalThis.queueMicrotask);
  // Deno has them as accessors.
  place(world, "TextDecoder", TextDecoder, true);
  place(world, "TextEncoder", TextEncoder, true);
  p.deleteProperty(URL, "createObjectURL");
  p.deleteProperty(URL, "revokeObjectURL");
  place(AbortSignal, "timeout", makeAbortTimeout(timers.setTimeout), true);
  trimLanguage(world);
  removeUnwanted(world);
  placeGlobals({ timers, crypto, performance, queueMicrotask, dispatchEvent });
}

/** Makes a method of `queueMicrotask`: Deno's is none, and so has a `prototype`. */
function methodOf(queue: typeof queueMicrotask) {
  return { queueMicrotask: (callback: () => void): void => queue(callback) };
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

/** Hears what Deno reports. */
export interface Reports {
  fail(kind: "exception", error: unknown): void;
  rejected(promise: Promise<unknown>, reason: unknown): void;
  handled(promise: Promise<unknown>): void;
}

/**
 * Makes what Deno calls to report uncaught errors; it is placed on `globalThis` as `dispatchEvent`. Without it, the
 * process ends with an error of Deno's own.
 */
export function makeDispatchEvent({ fail, rejected, handled }: Reports): (event: unknown) => boolean {
  const typeOf = p.uncurryThis(p.getOwnPropertyDescriptor(Event.prototype, "type")!.get!);
  const preventDefault = p.uncurryThis(Event.prototype.preventDefault);
  // A script cannot make these: their classes are gone, and it never sees one.
  const errorEvent = ErrorEvent.prototype;
  const rejectionEvent = PromiseRejectionEvent.prototype;
  // A member's name is there in the bundle, too.
  const { dispatchEvent } = {
    dispatchEvent: (event: unknown): boolean => {
      if (typeof event !== "object" || event === null) return true;
      const kind = p.getPrototypeOf(event);
      if (kind !== errorEvent && kind !== rejectionEvent) return true;
      preventDefault(event);
      const rejection = event as PromiseRejectionEvent;
      if (kind === errorEvent) fail("exception", (event as ErrorEvent).error);
      else if (typeOf(event) === "unhandledrejection") rejected(rejection.promise, rejection.reason);
      else handled(rejection.promise);
      return false;
    },
  };
  return dispatchEvent;
}
