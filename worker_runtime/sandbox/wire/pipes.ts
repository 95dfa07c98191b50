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

// Captured before agent code runs: it may patch every prototype.
const stdin = Deno.stdin;
const stdout = Deno.stdout;
const read = stdin.read.bind(stdin);
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

function send(message: FromWorker, body: Uint8Array = EMPTY): void {
  const frame = encodeFrame(message as unknown as Header, body);
  if (unheard !== undefined) {
    unheard[unheard.length] = message.t;
    return;
  }
  let sent = 0;
  while (sent < frame.length) sent += writeSync(sent === 0 ? frame : subarray(frame, sent));
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

/** Reads frames for ever and hands each over; returns when the host closes the pipe. */
export async function receive(onFrame: (message: ToWorker, body: Uint8Array) => void): Promise<void> {
  let shielded = withOwnCall;
  let buffer = new Bytes(READ_BYTES);
  let filled = 0;
  const hand = onFrame as unknown as (header: Header, body: Uint8Array) => void;
  while (true) {
    const got = await shielded(() => read(filled === 0 ? buffer : subarray(buffer, filled)));
    shielded = (start) => start();
    if (got === null) return;
    filled += got;
    const { used: start, wanted } = takeFrames(buffer, filled, hand);
    if (start === filled) {
      filled = 0;
      if (wanted === 0) continue;
    }
    if (start > 0 || wanted > buffer.length || filled === buffer.length) {
      let size = buffer.length;
      while (size < wanted || size <= filled - start) size *= 2;
      const next = new Bytes(size);
      set(next, subarray(buffer, start, filled), 0);
      buffer = next;
      filled -= start;
    }
  }
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
