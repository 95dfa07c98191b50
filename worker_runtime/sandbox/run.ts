/**
 * Carries one run in one realm: makes the world that its script sees, imports the script, sends the outcome.
 *
 * Nothing here is a control against hostile code: the host trusts no byte of this process.
 *
 * @module
 */

import { makeDiscovery } from "../../js_stdlib/discovery.ts";
import { errorClasses } from "../../js_stdlib/errors.ts";
import { bindServer } from "../../js_stdlib/servers.ts";
import { send, utf8 } from "./wire/channel.ts";
import { makeConsole } from "./globals/console.ts";
import { timersSet } from "./globals/globals_web.ts";
import { describeFailure, type ModuleNames, thrownByScript } from "./result/failure.ts";
import { append, slice, startsWith } from "./primordials.ts";
import { haveJournal, journal, type Terms } from "./seam.ts";
import type { Failed, Start } from "./wire/protocol.gen.ts";
import { toResult } from "./result/result.ts";
import {
  awaits,
  callerFrames,
  callsInFlight,
  callTool,
  capMessages,
  queriesInFlight,
  query,
  rehearseCall,
  scriptError,
} from "./wire/rpc.ts";
import { SCRIPT_TOKEN } from "./result/stack_text.ts";

const BOOT_HOOK = "__cellblock_boot__";
const MAX_RESULT_DEPTH = 100;
const MAX_QUOTED = 200;
// The broker shows no more of it, and names of functions and classes have any length.
const MAX_NOTICE = 1000;
const SERVERS = "@codemode/servers/";
const WATCH_MS = 50;
const IDLE_LOOKS = 3;
const STUCK = "The script awaits a promise that can never settle: no call is under way and no timer is set.";
const STUCK_HINT = "Settle each `new Promise` on every way: call its resolve or reject.";
const MISSING_HINT =
  "Look first at what it is read of, and what functions return. Only where it may be missing, write null: `value ?? null`.";
const NUMBER_HINT =
  "Look for a field that is not there, or a text that is no number: `Number(value)` of it is NaN.";

const now = performance.now.bind(performance);
const floor = Math.floor;
const parse = JSON.parse;
const stringify = JSON.stringify;
const world = globalThis as unknown as Record<string, unknown>;
const keysOf = Object.keys;
const hasOwn = Object.hasOwn;
const propertyOf = Object.getOwnPropertyDescriptor;
const { toPrimitive } = Symbol;

type Table<T> = Record<string, T>;

/** Does what a run needs of its realm. */
export interface Realm {
  /** Hears of each module of the plan before one is loaded, of the script first. */
  allow?(url: string): void;
  /** Loads a module of the plan: its exports, once it has been evaluated. */
  load(url: string): Promise<Table<unknown>>;
  createTimer(run: () => void, ms: number): object;
  cancelTimer(timer: object): void;
  /** Waits until whatever the script's last turn left unhandled has been told. */
  nextTurn(): Promise<void>;
}

interface Plan {
  main: string;
  modules: Table<string>;
  refused: Table<unknown>;
  /** Says whether the script's default export may stand in for an assignment of the result. */
  entry?: true;
  /** Makes the run a journaled one. */
  journal?: Terms;
  /** Says of a rehearsal whether runs here are journaled. */
  journals?: true;
}

let realm: Realm;
let modules: Table<string> = {};
let refused: Table<unknown> = {};
let main = "";

let started = 0;
let limits: Start | undefined;
let over = false;
const unhandled: { promise: Promise<unknown>; reason: unknown }[] = [];

const elapsed = () => journal.isOn() ? journal.elapsed() : floor(now() - started);

/** Ends the run with what was thrown, unless it has ended. */
export function fail(kind: Failed["kind"], error: unknown): void {
  if (over) return;
  over = true;
  const ms = elapsed();
  journal.sendLast();
  send({ t: "failed", ms, kind }, utf8(stringify(describeFailure(error, moduleNames()))));
}

/** Ends the run: the script that is replayed is not the one that was recorded. */
function diverged(what: string, place: string): void {
  if (over) return;
  over = true;
  const failure = { __proto__: null, name: "Diverged", message: what, place };
  send({ t: "failed", ms: 0, kind: "diverged" }, utf8(stringify(failure)));
}

/** Names the run's modules; called when a run has failed, so that no other pays for it. */
function moduleNames(): ModuleNames {
  const names = { __proto__: null, [main]: SCRIPT_TOKEN } as unknown as Table<string>;
  const specifiers = keysOf(modules);
  for (let index = 0; index < specifiers.length; index++) {
    names[modules[specifiers[index]]] = specifiers[index];
  }
  return names;
}

function notice(code: string, text: string, hint: string, path?: string, isInfo = false): void {
  const message = text.length > MAX_NOTICE ? slice(text, 0, MAX_NOTICE) : text;
  const severity = isInfo ? "info" : "warning";
  send({ t: "notice" }, utf8(stringify({ __proto__: null, severity, code, message, hint, path })));
}

function finish(): void {
  if (over) return;
  if (unhandled.length > 0) return fail("rejection", unhandled[0].reason);
  const inFlight = callsInFlight();
  if (inFlight > 0) {
    notice(
      "CALLS_NOT_AWAITED",
      `The script ended while ${inFlight} tool call(s) had no answer yet; they may or may not have run.`,
      "Await every tool call before the script ends.",
    );
  }
  // Nothing stands for what was never assigned, or became undefined: the broker says so.
  if (world.__codemode_result__ === undefined) return done("");
  const { json, issues, fatal } = toResult(world.__codemode_result__, {
    maxBytes: limits!.message_bytes,
    maxDepth: MAX_RESULT_DEPTH,
  });
  for (let index = 0; index < issues.length; index++) {
    const issue = issues[index];
    if (fatal) {
      over = true;
      const failure = { __proto__: null, name: "ResultError", message: issue.message, path: issue.path };
      const ms = elapsed();
      journal.sendLast();
      return send({ t: "failed", ms, kind: "result" }, utf8(stringify(failure)));
    }
    const field = issue.kind === "undefined_member" || issue.kind === "undefined";
    const isNumber = issue.kind === "non_finite_number";
    const otherwise = isNumber ? NUMBER_HINT : "Assign plain JSON data to __codemode_result__.";
    const hint = field ? MISSING_HINT : otherwise;
    notice("RESULT_NOT_JSON", issue.message, hint, issue.path, issue.kind === "undefined_member");
  }
  done(json);
}

function done(json: string): void {
  over = true;
  const ms = elapsed();
  journal.sendLast();
  send({ t: "done", ms }, json === "" ? undefined : utf8(json));
}

/** Runs the script of a plan, given as JSON. */
export async function run(start: Start, text: string): Promise<void> {
  limits = start;
  capMessages(start.message_bytes);
  const plan = parse(text) as Plan;
  started = now();
  main = plan.main;
  modules = plan.modules;
  refused = plan.refused;
  const specifiers = keysOf(modules);
  if (realm.allow !== undefined) {
    realm.allow(main);
    for (let index = 0; index < specifiers.length; index++) realm.allow(modules[specifiers[index]]);
  }
  // All at once: each costs a turn of the loop and a compilation, which overlap.
  const loading: Promise<unknown>[] = [];
  for (let index = 0; index < specifiers.length; index++) {
    loading[index] = realm.load(modules[specifiers[index]]);
  }
  for (let index = 0; index < loading.length; index++) await loading[index];
  delete world[BOOT_HOOK];
  if (plan.journal !== undefined) {
    haveJournal().begin(plan.journal, { awaits, stack: callerFrames, diverged });
  }
  const unwatched = watched();
  try {
    const script = await journal.inTurn(realm.load(main));
    if (plan.entry) await resultOf(script);
  } catch (error) {
    return fail("module", thrownByScript(error, moduleNames()));
  } finally {
    unwatched();
  }
  if (journal.isOn()) await journal.ending();
  // Deno tells of a rejection at the end of the turn that left it unhandled, which may be the script's last.
  await realm.nextTurn();
  finish();
}

/**
 * Ends the run when its script waits for what nothing can settle; returns what stops the watch. A look means that the
 * loop has turned, so what the engine does by itself between two of them is over after a few.
 */
function watched(): () => void {
  if (journal.isOn()) return () => {};
  let idle = 0;
  let timer = realm.createTimer(look, WATCH_MS);
  function look(): void {
    idle = callsInFlight() + queriesInFlight() + timersSet() === 0 ? idle + 1 : 0;
    if (idle < IDLE_LOOKS) timer = realm.createTimer(look, WATCH_MS);
    else if (unhandled.length > 0) fail("rejection", unhandled[0].reason);
    else fail("exception", new (errorClasses().CodemodeError)(STUCK, { hint: STUCK_HINT }));
  }
  return () => realm.cancelTimer(timer);
}

/** Makes the result of a script's default export, or of what that returns, unless the script assigns one. */
async function resultOf(script: Table<unknown>): Promise<void> {
  const given = script.default;
  if (world.__codemode_result__ !== undefined && isCallable(given)) return;
  const value = await (isCallable(given) ? given() : given);
  if (world.__codemode_result__ === undefined) world.__codemode_result__ = value;
}

/** Says whether a value is a function and no class, whose `prototype` alone cannot be replaced. */
function isCallable(value: unknown): value is () => unknown {
  return typeof value === "function" && propertyOf(value, "prototype")?.writable !== false;
}

/**
 * Makes what stands in every `import(…)` of the script (see the broker's `script/source.py`): an object that the
 * engine turns into a string when it would turn the specifier itself, and that makes the import reject where the
 * specifier would have.
 */
function importable(specifier: unknown): object {
  return { __proto__: null, [toPrimitive]: () => urlOf(`${specifier}`) };
}

function urlOf(name: string): string {
  if (hasOwn(modules, name)) return modules[name];
  throw scriptError(hasOwn(refused, name) ? refused[name] : unknownModule(name));
}

/**
 * Returns the error of a specifier that the script computes: the broker could not know it when it made the run's plan.
 */
function unknownModule(name: string): unknown {
  const named = name.length > MAX_QUOTED ? `${slice(name, 0, MAX_QUOTED)}…` : name;
  if (!startsWith(name, SERVERS)) {
    return {
      __proto__: null,
      errorClass: "CodemodeError",
      message: `Cannot import "${named}": only @codemode/* modules exist here.`,
      hint: "Use tools of @codemode/servers/* instead.",
    };
  }
  let connected = "";
  const specifiers = keysOf(modules);
  for (let index = 0; index < specifiers.length; index++) {
    if (!startsWith(specifiers[index], SERVERS)) continue;
    connected += `${connected === "" ? "" : ", "}${slice(specifiers[index], SERVERS.length)}`;
  }
  return {
    __proto__: null,
    errorClass: "ServerNotFoundError",
    message: `Cannot import "${named}": there is no such server.`,
    hint: `Connected servers: ${connected === "" ? "none" : connected}.`,
    serverId: slice(named, SERVERS.length),
  };
}

/** Takes note of a rejection that nothing handles: the run fails with it if that stays so. */
export function rejected(promise: Promise<unknown>, reason: unknown): void {
  append(unhandled, { promise, reason });
}

/** Takes back what `rejected` has noted. */
export function handled(promise: Promise<unknown>): void {
  for (let index = 0; index < unhandled.length; index++) {
    if (unhandled[index].promise !== promise) continue;
    unhandled[index] = unhandled[unhandled.length - 1];
    unhandled.length--;
    return;
  }
}

const hook = {
  server: (serverId: string) => bindServer(serverId, callTool),
  get errors() {
    return errorClasses();
  },
  discovery: makeDiscovery(query, callTool),
  importable,
  inTurn: <T>(promise: Promise<T>) => journal.inTurn(promise),
  load: async (specifier: unknown) => await realm.load(`${specifier}`),
};

/** Makes the world of the run's script, in this realm, with the realm's own globals. Call once, before `run`. */
export function prepare(inRealm: Realm, globals: () => void): void {
  realm = inRealm;
  globals();
  world.console = makeConsole(elapsed, () => limits?.log_bytes ?? 0, () => journal.beforeEntry());
  world[BOOT_HOOK] = hook;
}

/** Runs the host's own script, which nobody is to hear, and goes along the ways that it does not take. */
export async function rehearse(start: Start, text: string): Promise<void> {
  await run(start, text);
  await rehearseCall();
  if ((parse(text) as Plan).journals) await haveJournal().rehearse();
  utf8(stringify(describeFailure(null, moduleNames())));
}

/** Prepares the realm for another run, after a rehearsal. */
export function begin(): void {
  over = false;
  limits = undefined;
  world.__codemode_result__ = undefined;
  world[BOOT_HOOK] = hook;
}
