/**
 * Gives a worker's process its channel: length-prefixed frames on its stdin and stdout (see
 * `cellblock_worker/wire/frames.py`).
 *
 * @module
 */

import { encodeFrame, type Header, set, subarray, takeFrames } from "./frames.ts";
import { denoCore } from "../deno_core.ts";
import type { Channel } from "./channel.ts";
import type { FromWorker, ToWorker } from "./protocol.gen.ts";

const READ_BYTES = 64 * 1024;
const MAX_HELD = 16 * 1024;

// Captured before agent code runs: it may patch every prototype.
const stdin = Deno.stdin;
const stdout = Deno.stdout;
const read = stdin.read.bind(stdin);
const readSync = stdin.readSync.bind(stdin);
const writeSync = stdout.writeSync.bind(stdout);
const { decode, immediateRefCount, queueImmediate } = denoCore();
const PromiseClass = Promise;
const encoder = new TextEncoder();
const encodeText = encoder.encode.bind(encoder);
const EMPTY = new Uint8Array(0);
const Bytes = Uint8Array;

/**
 * Returns the text of UTF-8 bytes. A TextDecoder gives the same, and takes some microseconds longer until V8 has
 * compiled it.
 */
export const textOf: (bytes: Uint8Array) => string = decode;

let unheard: FromWorker["t"][] | undefined;

/** Lets `send` do all but write, until `hearAgain`. */
export function goUnheard(): void {
  unheard = [];
}

/** Lets `send` write again; gives the kinds of the messages that were not written. */
export function hearAgain(): FromWorker["t"][] {
  const kinds = unheard ?? [];
  unheard = undefined;
  return kinds;
}

/** Holds calls until the code that makes them has come to its end, or says something else: each write wakes the host. */
let held: Uint8Array<ArrayBuffer> | undefined;

function send(message: FromWorker, body: Uint8Array = EMPTY): void {
  const frame = encodeFrame(message as unknown as Header, body);
  if (unheard !== undefined) {
    unheard[unheard.length] = message.t;
    return;
  }
  const whole = held === undefined ? frame : joined(held, frame);
  if (message.t !== "call" || whole.length > MAX_HELD) return write(whole);
  if (held === undefined) void flush();
  held = whole;
}

function write(bytes: Uint8Array<ArrayBuffer>): void {
  held = undefined;
  let sent = 0;
  while (sent < bytes.length) sent += writeSync(sent === 0 ? bytes : subarray(bytes, sent));
}

/** Writes what is held when the code that runs now has come to its end. */
async function flush(): Promise<void> {
  await undefined;
  if (held !== undefined) write(held);
}

function joined(first: Uint8Array, second: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Bytes(first.length + second.length);
  set(both, first, 0);
  set(both, second, first.length);
  return both;
}

/** Gives the channel of the process's own pipes. */
export const pipes = {
  send,
  utf8: encodeText,
  sizeOf: (body: Uint8Array) => body.length,
} as unknown as Channel;

/**
 * Waits for the phase of the event loop in which immediates run: whatever the script's last turn left unhandled has
 * been told by then. A timer would cost a millisecond more, and an empty write is often done before that turn ends.
 */
export function nextTurn(): Promise<void> {
  return new PromiseClass((resolve) => turnOfLoop(resolve));
}

/**
 * Calls `work` in the phase of immediates; in the order of the calls of this, each when no microtask is left of the
 * one before.
 */
export function turnOfLoop(work: () => void): void {
  immediateRefCount(true);
  queueImmediate({
    __proto__: null,
    _argv: null,
    _destroyed: false,
    _idleNext: null,
    _idlePrev: null,
    _onImmediate: () => {
      immediateRefCount(false);
      work();
    },
  });
}

type OnFrame = (message: ToWorker, body: Uint8Array) => void;

/** Takes frames from stdin. */
export interface Reader {
  /** Reads once and hands over each frame that is whole; false: the host has closed the pipe. */
  read(): Promise<boolean>;
  /** Does so, and blocks till then: for `read` another thread waits, and the two wake each other. */
  readSync(): boolean;
}

/** Makes what reads frames and hands each over. */
export function makeReader(onFrame: OnFrame): Reader {
  let shielded = withOwnCall;
  let buffer = new Bytes(READ_BYTES);
  let filled = 0;
  const room = () => filled === 0 ? buffer : subarray(buffer, filled);
  const hand = onFrame as unknown as (header: Header, body: Uint8Array) => void;
  const take = (got: number | null): boolean => {
    if (got === null) return false;
    filled += got;
    const { used: start, wanted } = takeFrames(buffer, filled, hand);
    if (start === filled) {
      filled = 0;
      if (wanted === 0) return true;
    }
    if (start > 0 || wanted > buffer.length || filled === buffer.length) {
      let size = buffer.length;
      while (size < wanted || size <= filled - start) size *= 2;
      const next = new Bytes(size);
      set(next, subarray(buffer, start, filled), 0);
      buffer = next;
      filled -= start;
    }
    return true;
  };
  const takeWhole = (got: number | null): boolean => {
    let goesOn = take(got);
    // The rest of a frame is on its way.
    while (goesOn && filled > 0) goesOn = take(readSync(room()));
    return goesOn;
  };
  return {
    async read() {
      const got = await shielded(() => read(room()));
      shielded = (start) => start();
      return takeWhole(got);
    },
    readSync: () => takeWhole(readSync(room())),
  };
}

/** Reads frames for ever and hands each over; returns when the host closes the pipe. */
export async function receive(onFrame: OnFrame): Promise<void> {
  const reader = makeReader(onFrame);
  while (await reader.read());
}

/**
 * Gives every function that `start` calls by `operation.call(…)`, as Deno's core starts its read operation, a `call`
 * of its own, so that one which a script puts on `Function.prototype` later is not found.
 */
function withOwnCall<T>(start: () => T): T {
  const { prototype } = Function;
  const { call } = prototype;
  const { apply, defineProperty } = Reflect;
  prototype.call = function (this: CallableFunction, ...args: unknown[]): unknown {
    defineProperty(this, "call", { value: call });
    return apply(call, this, args);
  };
  try {
    return start();
  } finally {
    prototype.call = call;
  }
}
