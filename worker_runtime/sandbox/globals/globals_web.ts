/**
 * Makes what both realms give a script, the process's own and a context, in the same way, and puts it on `globalThis`.
 *
 * A few web functions are made anew, because Deno's own would hand out internals: its `setTimeout` returns an object of
 * Node's (and loads 6 ms of Node's code when first touched), its `AbortSignal.timeout` keeps the runtime's timer list
 * on the signal, its `atob` loads late, in a world that the script may have changed.
 *
 * All are methods of object literals: without `prototype`, as built-ins are.
 *
 * @module
 */

import * as p from "../primordials.ts";
import { scriptStack } from "../result/stack_text.ts";
import { web } from "../web_classes.ts";
import { structuredClone } from "./globals_clone.ts";

const { fromCharCode } = String;
const { fromBase64 } = Uint8Array as unknown as { fromBase64(text: string): Uint8Array };

/** Sets a timer, and takes it back. Milliseconds. */
export interface TimerSource {
  createTimer(run: () => void, ms: number): object;
  cancelTimer(timer: object): void;
}

const timers = new p.SafeMap<number, object>();

/** Counts the timers that have not fired. */
export function timersSet(): number {
  return p.mapSize(timers);
}

/** Makes `setTimeout` and `clearTimeout` over these timers. Delays are milliseconds, ids positive integers. */
export function makeTimers({ createTimer, cancelTimer }: TimerSource) {
  let lastId = 0;
  return {
    setTimeout(callback: unknown, delay?: unknown, ...args: unknown[]): number {
      if (typeof callback !== "function") {
        throw new TypeError("setTimeout needs a function; code in a string cannot run here");
      }
      const id = ++lastId;
      // An arrow function: the runtime calls it with its own timer as `this`, which must not reach the script.
      const run = () => {
        p.mapDelete(timers, id);
        p.apply(callback as () => void, undefined, args);
      };
      const ms = delay === undefined ? 1 : p.toNumber(delay);
      p.mapSet(timers, id, createTimer(run, ms));
      return id;
    },
    clearTimeout(id?: unknown): void {
      if (id === undefined || id === null) return;
      const key = p.toNumber(id);
      const timer = p.mapGet(timers, key) as object | undefined;
      if (timer === undefined) return;
      p.mapDelete(timers, key);
      cancelTimer(timer);
    },
  };
}

/**
 * Makes an `AbortSignal.timeout` of the sandbox's own timer in the place of Deno's: it keeps the script alive until it
 * fires; a context's does so by itself.
 */
export function makeAbortTimeout(setTimeout: (callback: unknown, delay?: unknown) => number) {
  const SafeAbortController = AbortController;
  const abort = p.uncurryThis(AbortController.prototype.abort);
  const signalOf = p.uncurryThis(
    p.getOwnPropertyDescriptor(AbortController.prototype, "signal")!.get!,
  ) as (controller: AbortController) => AbortSignal;
  return {
    timeout(milliseconds: unknown): AbortSignal {
      const controller = new SafeAbortController();
      setTimeout(
        () => abort(controller, new (web().DOMException)("Signal timed out.", "TimeoutError")),
        milliseconds,
      );
      return signalOf(controller);
    },
  }.timeout;
}

/** Holds `atob` and `btoa` of the HTML standard. */
export const base64 = {
  atob(data: unknown): string {
    let bytes: Uint8Array;
    try {
      bytes = fromBase64(p.toText(data));
    } catch {
      throw new (web().DOMException)("atob: the text is no base64", "InvalidCharacterError");
    }
    let text = "";
    const length = p.typedArrayLength(bytes);
    for (let i = 0; i < length; i++) text += fromCharCode(bytes[i]);
    return text;
  },
  btoa(data: unknown): string {
    const text = p.toText(data);
    const bytes = new p.SafeUint8Array(text.length);
    for (let i = 0; i < text.length; i++) {
      const unit = p.charCodeAt(text, i);
      if (unit > 255) {
        throw new (web().DOMException)("btoa: a character is over U+00FF", "InvalidCharacterError");
      }
      bytes[i] = unit;
    }
    return p.toBase64(bytes);
  },
};

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
  // Deno looks up `globalThis.Error.prepareStackTrace`, and hands it call sites of the process's own realm.
  place(Error, "prepareStackTrace", scriptStack, false);
  place(world, "Error", Error, false);
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
