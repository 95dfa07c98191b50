/**
 * Defines what a context may ask of the realm around it, and takes what that has left for this context. Only strings,
 * numbers and booleans go through: arguments and answers of these functions are such, and none of them throws anything
 * that a script could get hold of (see `shielded`).
 *
 * @module
 */

import { apply } from "../primordials.ts";

/** Shows the realm around a context as the context's own sandbox sees it. */
export interface Outer {
  /** Sends a message: its body, and the names and values of its header one after the other. */
  say(body: string, ...header: (string | number | boolean)[]): void;
  /** Returns how many bytes a text has in UTF-8. */
  size(text: string): number;
  /** Calls `Inner.fire` with the id, after so many milliseconds. */
  timer(id: number, ms: number): void;
  untimer(id: number): void;
  /** Calls `Inner.turn` when what the last turn left unhandled has been told. */
  turn(): void;
  /** Returns the milliseconds since the context was made. */
  now(): number;
  /** Says whether the context's run goes on. */
  alive(): boolean;
  /** Names a module that the plan has: first the script. */
  allow(url: string): void;
  /** Calls `Inner.loaded` before it returns, or `Inner.broken`, then or later. */
  load(url: string): void;
  /** Returns the bytes of a text in UTF-8, in base64. */
  encode(text: string): string;
  /** Returns the encoding of this label; "" where there is none. */
  encoding(label: string): string;
  /** Makes a decoder, and returns its number. It is there until `decode` is called without `stream`. */
  decoder(encoding: string, fatal: boolean, ignoreBOM: boolean): number;
  /** Returns what a decoder makes of bytes in base64: "=" and the text, or "!" and what is wrong. */
  decode(decoder: number, base64: string, stream: boolean): string;
  /** Returns so many random bytes in base64. */
  random(count: number): string;
  uuid(): string;
  /** Returns the parts of a URL as JSON, where `set` names one that gets this value first; "" where it cannot be parsed. */
  url(text: string, base: string, set: string, value: string): string;
  /** Turns a query into the JSON of its pairs; `query` turns it back. */
  pairs(query: string): string;
  query(pairs: string): string;
}

/** Shows a context's own sandbox as the realm around it sees it. Nothing of what these take is kept outside. */
export interface Inner {
  start(logBytes: number, messageBytes: number, plan: string): void;
  rehearse(plan: string): void;
  reply(id: number, ok: boolean, text: string, size: number): void;
  rejected(promise: Promise<unknown>, reason: unknown): void;
  handled(promise: Promise<unknown>): void;
  fire(id: number): void;
  turn(): void;
  /** Makes the web's classes, if they are not made: the script may name them. */
  needWeb(): void;
  loaded(evaluated: Promise<unknown>, exports: Record<string, unknown>): void;
  /** Takes an error of the context's own realm, or one of which only name and message are given. */
  broken(error: unknown, name: string, message: string): void;
  /** Makes what gives a module of this URL its `import.meta`: the engine calls it on the script's own stack. */
  meta(url: string): (meta: Record<string, unknown>) => void;
}

// deno-lint-ignore no-explicit-any
type Anything = (...args: any[]) => unknown;

const SafeRangeError = RangeError;

/**
 * Returns a function of this realm in front of one of the outer's. What the outer one throws is of its own realm, be
 * it only that the stack is full: a script must not see that.
 */
export function shielded<F extends Anything>(outer: F): F {
  return ((...args: unknown[]) => {
    try {
      return apply(outer, undefined, args);
    } catch {
      throw new SafeRangeError("Maximum call stack size exceeded");
    }
  }) as F;
}

/** Takes the functions that the outer realm has left for this context, each behind a shield; they are there once. */
export function takeOuter(): Outer {
  const world = globalThis as unknown as { __cellblock_outer__?: Record<string, Anything> };
  const given = world.__cellblock_outer__!;
  delete world.__cellblock_outer__;
  const outer: Record<string, Anything> = {};
  const names = Object.keys(given);
  for (let index = 0; index < names.length; index++) outer[names[index]] = shielded(given[names[index]]);
  return outer as unknown as Outer;
}

/**
 * Gives the realm around this context, taken before anything else is evaluated: the rest of the sandbox finds a clock on
 * `globalThis`, as in the process's own realm.
 */
export const outer = takeOuter();

(globalThis as { performance: unknown }).performance = { now: outer.now };
