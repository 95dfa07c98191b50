/**
 * Carries a run in the process's own realm: the one that Deno made.
 *
 * @module
 */

import { applyGlobals, makeDispatchEvent } from "./globals/globals.ts";
import { cancelTimer, createTimer, journalOfProcess } from "./journal/journal.ts";
import { uncurryThis } from "./primordials.ts";
import { begin, fail, handled, prepare, rehearse, rejected, run } from "./run.ts";
import { useJournal } from "./seam.ts";
import { useChannel } from "./wire/channel.ts";
import { encodeFrame, takeFrames } from "./wire/frames.ts";
import { goUnheard, hearAgain, nextTurn, pipes, textOf } from "./wire/pipes.ts";
import { PROTOCOL_VERSION, type Start, type ToWorker } from "./wire/protocol.gen.ts";
import { settle } from "./wire/rpc.ts";

const preventDefault = uncurryThis<() => void>(Event.prototype.preventDefault);
const listen = globalThis.addEventListener.bind(globalThis);

/** Makes the world of a script in the process's own realm. */
export function prepareProcess(): void {
  useChannel(pipes);
  useJournal(journalOfProcess);
  watchForUncaught();
  prepare({ load: (url) => import(url), nextTurn, createTimer, cancelTimer }, () => {
    applyGlobals({ createTimer, cancelTimer }, makeDispatchEvent());
  });
}

/** Takes a message of the host's for a run here; false: it is another one. */
export function hear(message: ToWorker, body: Uint8Array): boolean {
  if (message.t === "start") void run(message, textOf(body));
  else if (message.t === "reply") settle(message.id, message.ok, textOf(body), body.length);
  else return false;
  return true;
}

/** Says `ready`, after a rehearsal with the host's own script if it sent one. A worker that fails at it is none. */
export async function warmUp(body: Uint8Array): Promise<void> {
  if (body.length > 0 && !(await rehearseUnheard(body))) {
    return fail("exception", new Error("the rehearsal failed"));
  }
  pipes.send({ t: "ready", protocol: PROTOCOL_VERSION });
}

/**
 * Goes along a run's whole way once, unheard: so that V8 has compiled it and Deno has read and imported once when a
 * script comes.
 */
async function rehearseUnheard(body: Uint8Array): Promise<boolean> {
  goUnheard();
  const frame = encodeFrame({ t: "start", log_bytes: 1 << 16, message_bytes: 1 << 24 }, body);
  let rehearsed: Promise<void> | undefined;
  takeFrames(frame, frame.length, (message, plan) => {
    rehearsed = rehearse(message as unknown as Start, textOf(plan));
  });
  await rehearsed;
  const [first, second] = hearAgain();
  begin();
  return first === "log" && second === "done";
}

function watchForUncaught(): void {
  listen("error", (event) => {
    preventDefault(event);
    fail("exception", (event as ErrorEvent).error);
  });
  listen("unhandledrejection", (event) => {
    const { promise, reason } = event as PromiseRejectionEvent;
    preventDefault(event);
    rejected(promise, reason);
  });
  listen("rejectionhandled", (event) => handled((event as PromiseRejectionEvent).promise));
}
