/**
 * Puts on `globalThis` what both realms make for a script, the process's own and a context, in the same way.
 *
 * @module
 */

import * as p from "../primordials.ts";
import { scriptStack } from "../result/stack_text.ts";
import { structuredClone } from "./globals_clone.ts";
import { base64, type makeTimers } from "./globals_web.ts";

/** Lists the values that each realm makes by itself. */
export interface Own {
  timers: ReturnType<typeof makeTimers>;
  crypto: object;
  performance: object;
  queueMicrotask: unknown;
  dispatchEvent: unknown;
}

/**
 * Places the globals of a script; called once, when what a script may not have is gone. Afterwards `console` is an
 * empty object and may be assigned once more; `__codemode_result__` is undefined, can be assigned, and can be neither
 * deleted nor made a getter.
 */
export function placeGlobals({ timers, crypto, performance, queueMicrotask, dispatchEvent }: Own): void {
  const world = globalThis;
  place(world, "atob", base64.atob, true);
  place(world, "btoa", base64.btoa, true);
  place(world, "clearTimeout", timers.clearTimeout, true);
  place(world, "console", {}, true);
  place(world, "crypto", crypto, true);
  place(world, "performance", performance, true);
  place(world, "queueMicrotask", queueMicrotask, true);
  place(world, "setTimeout", timers.setTimeout, true);
  place(world, "structuredClone", structuredClone, true);
  // Not configurable: a script could otherwise hide uncaught errors, or make reading its result run code.
  place(world, "dispatchEvent", dispatchEvent, false);
  p.defineProperty(world, "__codemode_result__", {
    value: undefined,
    writable: true,
    enumerable: true,
    configurable: false,
  });
  // A script's own would be handed the call sites of the sandbox's own frames.
  place(Error, "prepareStackTrace", scriptStack, false);
  p.setPrototypeOf(world, p.ObjectPrototype);
}

/** Places a value that is not listed. */
export function place(target: object, name: string, value: unknown, changeable: boolean): void {
  p.defineProperty(target, name, {
    value,
    writable: changeable,
    enumerable: false,
    configurable: changeable,
  });
}
