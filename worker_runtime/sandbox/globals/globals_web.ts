/**
 * Makes a few web functions anew, because Deno's own would hand out internals: its `setTimeout` returns an object of
 * Node's (and loads 6 ms of Node's code when first touched), its `AbortSignal.timeout` keeps the runtime's timer list
 * on the signal, its `atob` loads late, in a world that the script may have changed.
 *
 * All are methods of object literals: without `prototype`, as built-ins are.
 *
 * @module
 */

import * as p from "../primordials.ts";
import { web } from "../web_classes.ts";

const { fromCharCode } = String;
const { fromBase64 } = Uint8Array as unknown as { fromBase64(text: string): Uint8Array };

/** Sets a timer, and takes it back. Milliseconds. */
export interface TimerSource {
  createTimer(run: () => void, ms: number): object;
  cancelTimer(timer: object): void;
}

/** Makes `setTimeout` and `clearTimeout` over these timers. Delays are milliseconds, ids positive integers. */
export function makeTimers({ createTimer, cancelTimer }: TimerSource) {
  const timers = new p.SafeMap<number, object>();
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
