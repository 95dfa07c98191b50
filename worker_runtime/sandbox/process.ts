/**
 * Carries a run in the process's own realm: the one that Deno made.
 *
 * @module
 */

import { denoCore } from "./deno_core.ts";
import { applyGlobals, makeDispatchEvent } from "./globals/globals.ts";
import type { TimerSource } from "./globals/globals_web.ts";
import type { Rest } from "./journal/journal.ts";
import { begin, fail, handled, prepare, rehearse, rejected, run } from "./run.ts";
import { makeJournalBy, type Seam } from "./seam.ts";
import { useChannel } from "./wire/channel.ts";
import { encodeFrame, takeFrames } from "./wire/frames.ts";
import { goUnheard, hearAgain, nextTurn, pipes, textOf, turnOfLoop } from "./wire/pipes.ts";
import { PROTOCOL_VERSION, type Start, type ToWorker } from "./wire/protocol.gen.ts";
import { settle } from "./wire/rpc.ts";

/** Holds the source of `journal/journal.ts`, bundled; the build puts it there. */
declare const CELLBLOCK_JOURNAL: string;

const core = denoCore();
let timers: TimerSource = {
  createTimer: (run, ms) => core.createTimer(run, ms, undefined, false, true),
  cancelTimer: core.cancelTimer,
};
const createTimer = (run: () => void, ms: number) => timers.createTimer(run, ms);
const cancelTimer = (timer: object) => timers.cancelTimer(timer);

/** Makes the journal, and with it the script's timers: few runs need it, and V8 takes 0.2 to 0.4 ms to look at it. */
function makeJournal(): Seam {
  const [start, failed] = core.evalContext(CELLBLOCK_JOURNAL, "cellblock:journal");
  if (failed !== null) throw failed.thrown;
  let journal: Seam & TimerSource;
  (start as (rest: Rest) => void)({ core, channel: pipes, turnOfLoop, take: (made) => journal = made });
  return timers = journal!;
}

/** Makes the world of a script in the process's own realm. */
export function prepareProcess(): void {
  useChannel(pipes);
  makeJournalBy(makeJournal);
  prepare({ load: (url) => import(url), nextTurn, createTimer, cancelTimer }, () => {
    applyGlobals({ createTimer, cancelTimer }, makeDispatchEvent({ fail, rejected, handled }));
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
