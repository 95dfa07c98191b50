/**
 * Journals a run: what its script sees from outside is noted in the order in which the script sees it, or given to it
 * in the order in which another process noted it.
 *
 * Live, what is ready waits in line, and is delivered one after the other, each when no microtask is left of the one
 * before. In a replay it is held until its event comes; after the last event the rest goes on live.
 *
 * It is a text of its own, which is evaluated when a run needs it (`../process.ts`), before any code of a script's.
 *
 * @module
 */

import type { Core } from "../deno_core.ts";
import type { TimerSource } from "../globals/globals_web.ts";
import * as p from "../primordials.ts";
import type { Kind, Run, Seam, Terms } from "../seam.ts";
import type { Channel } from "../wire/channel.ts";
import { EVENTS_FLUSH_CHARS, EVENTS_MS, MAX_LOG_ENTRIES } from "../wire/protocol.gen.ts";
import { keyStream, type NextByte, rehearseSources, replaceSources } from "./journal_globals.ts";
import { Past } from "./past.ts";

/** Describes an event that waits for its turn. */
interface Ready {
  readonly kind: Kind;
  readonly id: number;
  readonly go: () => void;
  next?: Ready;
}

interface Timer {
  readonly id: number;
  readonly run: () => void;
  readonly due: number;
  native: object | undefined;
}

/** Holds what the journal's text has of the rest of the sandbox, and takes what it makes. */
export interface Rest {
  readonly core: Core;
  readonly channel: Channel;
  turnOfLoop(work: () => void): void;
  take(made: Seam & TimerSource): void;
}

declare const CELLBLOCK_REST: Rest;

const { core, channel, turnOfLoop, take } = CELLBLOCK_REST;
const { createTimer: createNative, cancelTimer: cancelNative, runMicrotasks } = core;
const { send, utf8 } = channel;
const PromiseClass = Promise;
const machineTime = Date.now;
const floor = Math.floor;
const MAX_DELAY = 2 ** 31 - 1;
/**
 * Bounds how long a replay waits for the end of an `import(…)`, which takes milliseconds, before it says that there is
 * none.
 */
const IMPORT_BOUND_MS = 1000;
/**
 * Bounds the turns of the loop for which a replay then goes on waiting: this process may have stood still meanwhile.
 */
const IMPORT_TURNS = 100;

/**
 * Bounds the events that are delivered in one turn of the loop: answers that came together. Others, and the script's
 * own timers, come in with the next turn.
 */
const AT_ONCE = 32;

let on = false;
let unsent = "";
let past: Past | undefined;
let offline = false;
let closed = false;
let silent = false;
let armed = false;
let entries = 0;
let scheduled = false;
let theRun: Run | undefined;

let shift = 0;
let last = 0;
let told = 0;
let readings = 0;
let first = 0;
let end = Infinity;

let firstReady: Ready | undefined;
let lastReady: Ready | undefined;
let imports = 0;
let timerCount = 0;
let awaiting = false;
const timers = new p.SafeMap<number, Timer>();

function beginJournal(terms: Terms, run: Run): void {
  on = true;
  theRun = run;
  offline = terms.offline === true;
  if (terms.events !== "" || (terms.past && !offline)) past = new Past(terms.events);
  else if (terms.time !== undefined) shift = terms.time - machineTime();
  first = journalTime();
  if (terms.wall_ms !== undefined) end = first + terms.wall_ms;
  let next: NextByte | undefined;
  replaceSources(journalTime, first, () => (next ??= keyStream(terms.seed))(), terms.temporal);
}

/** Goes along the way of a journaled run; nothing is left of it. */
async function rehearseJournal(): Promise<void> {
  on = true;
  rehearseSources();
  journalTime();
  await inTurn(new PromiseClass<void>((resolve) => deliver("a", 0, resolve)));
  takeEvents(() => "");
  note("a0");
  sendEvents();
  on = false;
  imports = last = told = 0;
}

function journalElapsed(): number {
  return journalTime() - first;
}

function takeEvents(stackOf: () => string): string {
  if (!on) return "";
  closeReadings();
  const text = unsent;
  unsent = "";
  // What it asks in its last recorded turn may be nothing new: then no event comes until that is answered.
  if (past?.over && !offline) schedule();
  return offline ? `${text}${placeOf(stackOf())}` : text;
}

function beforeEntry(): void {
  // The host drops those after it, and so many messages the broker allows.
  if (entries++ < MAX_LOG_ENTRIES) sendEvents();
}

function sendLast(): void {
  sendEvents();
  // Not in a rehearsal, after which the run's journal begins.
  silent = on;
}

function deliver(kind: Kind, id: number, go: () => void): void {
  if (!on) return go();
  const ready: Ready = { __proto__: null, kind, id, go, next: undefined } as unknown as Ready;
  if (lastReady === undefined) firstReady = ready;
  else lastReady.next = ready;
  lastReady = ready;
  schedule();
}

function inTurn<T>(promise: Promise<T>): Promise<T> {
  if (!on) return promise;
  const id = imports++;
  return new PromiseClass<T>((resolve, reject) => {
    void ended(promise, (settle) => deliver("i", id, settle), resolve, reject);
  });
}

async function ended<T>(
  promise: Promise<T>,
  then: (settle: () => void) => void,
  resolve: (value: T) => void,
  reject: (error: unknown) => void,
): Promise<void> {
  try {
    const value = await promise;
    then(() => resolve(value));
  } catch (error) {
    then(() => reject(error));
  }
}

function ending(): Promise<void> {
  return new PromiseClass((resolve) =>
    deliver("e", 1, () => {
      closed = true;
      resolve();
    })
  );
}

/** Makes a timer of the script's: Deno's own, in a journaled run the journal's. Milliseconds. */
function createTimer(run: () => void, ms: number): object {
  if (!on) return createNative(run, ms, undefined, false, true);
  const delay = ms >= 1 && ms <= MAX_DELAY ? floor(ms) : 1;
  const timer: Timer = {
    __proto__: null,
    id: ++timerCount,
    run,
    due: journalTime() + delay,
    native: undefined,
  } as unknown as Timer;
  p.mapSet(timers, timer.id, timer);
  if (past !== undefined) schedule();
  else if (timer.due <= end) start(timer, delay);
  return timer;
}

/** Takes a timer of the script's back. */
function cancelTimer(timer: object): void {
  if (!on) return cancelNative(timer);
  const { id, native } = timer as Timer;
  p.mapDelete(timers, id);
  if (native !== undefined) cancelNative(native);
}

function start(timer: Timer, delay: number): void {
  timer.native = createNative(
    () => deliver("t", timer.id, () => fire(timer.id)),
    delay,
    undefined,
    false,
    true,
  );
}

function fire(id: number): void {
  const timer = p.mapGet(timers, id) as Timer;
  p.mapDelete(timers, id);
  timer.run();
}

take({
  rehearse: rehearseJournal,
  begin: beginJournal,
  isOn: () => on,
  elapsed: journalElapsed,
  takeEvents,
  beforeEntry,
  sendLast,
  deliver,
  inTurn,
  ending,
  createTimer,
  cancelTimer,
});

// ---- what is noted -------------------------------------------------------------------------------------------

function note(event: string): void {
  unsent += event;
  if (unsent.length > EVENTS_FLUSH_CHARS) sendUnsent();
  else arm();
}

function sendUnsent(): void {
  const text = unsent;
  unsent = "";
  if (text !== "" && !silent) send({ t: "events" }, utf8(text));
}

function sendEvents(): void {
  if (!on) return;
  closeReadings();
  sendUnsent();
}

/** Has the noted events sent soon, also where the script asks for nothing more. */
function arm(): void {
  if (armed) return;
  armed = true;
  createNative(sendSoon, EVENTS_MS, undefined, false, false);
}

function sendSoon(): void {
  sendEvents();
  armed = false;
}

function journalTime(): number {
  const recorded = past?.reading();
  if (recorded !== undefined) {
    last = told = recorded;
    // What comes after it, offline, is to see the time go on from here.
    if (offline) shift = recorded - machineTime();
    return recorded;
  }
  if (past !== undefined && !past.over) diverge("it reads the clock more often");
  let time = liveTime();
  // A machine's clock may be set back, or a recording be of another machine's.
  if (time < last) time = last;
  if (time !== last) {
    closeReadings();
    last = time;
  }
  if (readings++ === 0) arm();
  return time;
}

/**
 * Reads the clock where nothing is recorded. A replay that is offline never comes to a time that the recorded run had
 * not.
 */
function liveTime(): number {
  const time = machineTime() + shift;
  return time > end ? end : time;
}

function closeReadings(): void {
  if (readings === 0) return;
  const count = readings === 1 ? "" : `*${readings}`;
  readings = 0;
  const step = last - told;
  told = last;
  note(`c${step}${count}`);
}

function placeOf(frames: string): string {
  let end = p.indexOf(frames, "\n");
  if (end < 0) end = frames.length;
  const colons = [0, 0];
  let found = 0;
  for (let index = end - 1; index >= 0 && found < 2; index--) {
    if (frames[index] === ":") colons[found++] = index;
  }
  if (found < 2) return "";
  const close = frames[end - 1] === ")" ? end - 1 : end;
  return `@${p.slice(frames, colons[1] + 1, colons[0])}:${p.slice(frames, colons[0] + 1, close)}`;
}

// ---- what is delivered ---------------------------------------------------------------------------------------

function schedule(): void {
  if (scheduled || closed) return;
  scheduled = true;
  turnOfLoop(turn);
}

function turn(): void {
  scheduled = false;
  if (closed) return;
  try {
    if (past === undefined) deliverReady();
    else if (past.over) goLive();
    else replayNext(past);
  } finally {
    // What was delivered may have thrown, which is the script's own affair.
    if (firstReady !== undefined && past === undefined) schedule();
  }
}

function deliverReady(): void {
  for (let count = 1; true; count++) {
    deliverNext();
    if (firstReady === undefined || count === AT_ONCE) return;
    // What comes of it, as at the end of a turn.
    runMicrotasks();
  }
}

function deliverNext(): void {
  const ready = firstReady;
  if (ready === undefined || closed) return;
  takeReady(ready, undefined);
  // Taken back while it waited for its turn.
  if (ready.kind === "t" && p.mapGet(timers, ready.id) === undefined) return;
  // In the order in which the script sees them: what it has read of the clock comes before.
  closeReadings();
  note(`${ready.kind}${ready.id}`);
  ready.go();
}

function replayNext(events: Past): void {
  const { kind, id } = events;
  if (kind === "t") {
    if (p.mapGet(timers, id) === undefined) return diverge(`it has not set timer ${id}`);
    events.take();
    schedule();
    return fire(id);
  }
  let before: Ready | undefined;
  let ready = firstReady;
  while (ready !== undefined && (ready.kind !== kind || ready.id !== id)) {
    before = ready;
    ready = ready.next;
  }
  if (ready === undefined) {
    if (kind === "a" && !theRun!.awaits(id)) diverge(`it has not asked for answer ${id}`);
    else if (kind !== "a") awaitImport(events);
    return;
  }
  takeReady(ready, before);
  events.take();
  schedule();
  ready.go();
}

function takeReady(ready: Ready, before: Ready | undefined): void {
  if (before === undefined) firstReady = ready.next;
  else before.next = ready.next;
  if (lastReady === ready) lastReady = before;
}

/** Waits for the end of a script or an import, which is on its way, or never comes: then this is another script. */
function awaitImport(events: Past): void {
  if (awaiting) return;
  awaiting = true;
  const { taken } = events;
  const look = (turns: number) => {
    if (past === undefined || past.taken !== taken) awaiting = false;
    else if (turns === 0) diverge("it does not end where it has ended");
    else turnOfLoop(() => look(turns - 1));
  };
  createNative(() => look(IMPORT_TURNS), IMPORT_BOUND_MS, undefined, false, false);
}

function diverge(what: string): void {
  closed = silent = true;
  theRun!.diverged(what, placeOf(theRun!.stack()));
}

/**
 * Ends the replay: the last event of the recording is delivered, and what came of it has run; from now on, what is
 * ready comes.
 */
function goLive(): void {
  past = undefined;
  const waiting: Timer[] = [];
  p.mapForEach(timers, (timer) => p.append(waiting, timer as Timer));
  const time = liveTime();
  for (let index = 0; index < waiting.length; index++) {
    const left = waiting[index].due - time;
    if (waiting[index].due <= end) start(waiting[index], left > 1 ? left : 1);
  }
  send({ t: "live" });
}
