/**
 * What a worker runs before agent code: says `ready`, waits for its one `start`, runs it, sends the outcome.
 *
 * Nothing here is a control against hostile code: the host trusts no byte of this process. It is the world that
 * an honest script sees.
 *
 * @module
 */

import { makeDiscovery } from "../../js_stdlib/discovery.ts";
import { errorClasses } from "../../js_stdlib/errors.ts";
import { bindServer } from "../../js_stdlib/servers.ts";
import { goUnheard, hearAgain, nextTurn, receive, send, textOf, utf8 } from "./wire/channel.ts";
import { makeConsole } from "./globals/console.ts";
import { describeFailure, type ModuleNames, thrownByScript } from "./result/failure.ts";
import { encodeFrame, takeFrames } from "./wire/framing.ts";
import { applyGlobals } from "./globals/globals.ts";
import { slice, startsWith, uncurryThis } from "./primordials.ts";
import { type Failed, PROTOCOL_VERSION, type Start } from "./wire/protocol.gen.ts";
import { toResult } from "./result/result.ts";
import {
  callsInFlight,
  callTool,
  capMessages,
  query,
  rehearseCall,
  scriptError,
  settle,
} from "./wire/rpc.ts";
import { SCRIPT_TOKEN } from "./result/stack_text.ts";

const BOOT_HOOK = "__cellblock_boot__";
const MAX_RESULT_DEPTH = 100;
const MAX_QUOTED = 200;
// The broker shows no more of it, and names of functions and classes have any length.
const MAX_NOTICE = 1000;
const SERVERS = "@codemode/servers/";
const MISSING_HINT = "Read what the value has; where it may be missing, write null: `value ?? null`.";

const now = performance.now.bind(performance);
const floor = Math.floor;
const parse = JSON.parse;
const stringify = JSON.stringify;
const world = globalThis as unknown as Record<string, unknown>;
const preventDefault = uncurryThis<() => void>(Event.prototype.preventDefault);
const keysOf = Object.keys;
const hasOwn = Object.hasOwn;
const propertyOf = Object.getOwnPropertyDescriptor;
const { toPrimitive } = Symbol;
const listen = globalThis.addEventListener.bind(globalThis);

type Table<T> = Record<string, T>;

interface Plan {
  main: string;
  modules: Table<string>;
  refused: Table<unknown>;
  /** Whether the script's default export may stand in for an assignment of the result. */
  entry?: true;
}

let modules: Table<string> = {};
let refused: Table<unknown> = {};
let main = "";

let started = 0;
let limits: Start | undefined;
let over = false;
const unhandled: { promise: Promise<unknown>; reason: unknown }[] = [];

const elapsed = () => floor(now() - started);

function fail(kind: Failed["kind"], error: unknown): void {
  if (over) return;
  over = true;
  send({ t: "failed", ms: elapsed(), kind }, utf8(stringify(describeFailure(error, moduleNames()))));
}

/** Made when a run has failed, so that no other pays for it. */
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
  if (world.__codemode_result__ === undefined) {
    over = true;
    return send({ t: "done", ms: elapsed() });
  }
  const { json, issues, fatal } = toResult(world.__codemode_result__, {
    maxBytes: limits!.message_bytes,
    maxDepth: MAX_RESULT_DEPTH,
  });
  for (let index = 0; index < issues.length; index++) {
    const issue = issues[index];
    if (fatal) {
      over = true;
      const failure = { __proto__: null, name: "ResultError", message: issue.message, path: issue.path };
      return send({ t: "failed", ms: elapsed(), kind: "result" }, utf8(stringify(failure)));
    }
    const field = issue.kind === "undefined_member" || issue.kind === "undefined";
    const hint = field ? MISSING_HINT : "Assign plain JSON data to __codemode_result__.";
    notice("RESULT_NOT_JSON", issue.message, hint, issue.path, issue.kind === "undefined_member");
  }
  over = true;
  send({ t: "done", ms: elapsed() }, utf8(json));
}

async function run(start: Start, body: Uint8Array): Promise<void> {
  limits = start;
  capMessages(start.message_bytes);
  const plan = parse(textOf(body)) as Plan;
  started = now();
  main = plan.main;
  modules = plan.modules;
  refused = plan.refused;
  const specifiers = keysOf(modules);
  // All at once: each costs a turn of the loop and a compilation, which overlap.
  const loading: Promise<unknown>[] = [];
  for (let index = 0; index < specifiers.length; index++) loading[index] = import(modules[specifiers[index]]);
  for (let index = 0; index < loading.length; index++) await loading[index];
  delete world[BOOT_HOOK];
  try {
    const script = await import(main);
    if (plan.entry) await resultOf(script);
  } catch (error) {
    return fail("module", thrownByScript(error, moduleNames()));
  }
  // Deno tells of a rejection at the end of the turn that left it unhandled, which may be the script's last.
  await nextTurn();
  finish();
}

/** Makes the result of a script's default export, or of what that returns, unless the script assigns one. */
async function resultOf(script: Table<unknown>): Promise<void> {
  if (world.__codemode_result__ !== undefined) return;
  const given = script.default;
  const value = await (isCallable(given) ? given() : given);
  if (world.__codemode_result__ === undefined) world.__codemode_result__ = value;
}

/** Whether it is a function and no class, whose `prototype` alone cannot be replaced. */
function isCallable(value: unknown): value is () => unknown {
  return typeof value === "function" && propertyOf(value, "prototype")?.writable !== false;
}

/**
 * What stands in every `import(…)` of the script (see the broker's `script/source.py`): an object that the
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

/** What the broker could not know when it made the run's plan: a specifier that the script computes. */
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

function watchForUncaught(): void {
  listen("error", (event) => {
    preventDefault(event);
    fail("exception", (event as ErrorEvent).error);
  });
  listen("unhandledrejection", (event) => {
    const { promise, reason } = event as PromiseRejectionEvent;
    preventDefault(event);
    unhandled[unhandled.length] = { promise, reason };
  });
  listen("rejectionhandled", (event) => {
    const { promise } = event as PromiseRejectionEvent;
    for (let index = 0; index < unhandled.length; index++) {
      if (unhandled[index].promise !== promise) continue;
      unhandled[index] = unhandled[unhandled.length - 1];
      unhandled.length--;
      return;
    }
  });
}

watchForUncaught();
applyGlobals();
world.console = makeConsole(elapsed, () => limits?.log_bytes ?? 0);
const hook = {
  server: (serverId: string) => bindServer(serverId, callTool),
  errors: errorClasses,
  discovery: makeDiscovery(query),
  importable,
};
world[BOOT_HOOK] = hook;

/** Says `ready`, after a rehearsal with the host's own script if it sent one. A worker that fails at it is none. */
async function warmUp(body: Uint8Array): Promise<void> {
  if (body.length > 0 && !(await rehearse(body))) return fail("exception", new Error("the rehearsal failed"));
  send({ t: "ready", protocol: PROTOCOL_VERSION });
}

/**
 * Goes along a run's whole way once, unheard: so that V8 has compiled it and Deno has read and imported once when a
 * script comes.
 */
async function rehearse(body: Uint8Array): Promise<boolean> {
  goUnheard();
  const frame = encodeFrame({ t: "start", log_bytes: 1 << 16, message_bytes: 1 << 24 }, body);
  let rehearsed: Promise<void> | undefined;
  takeFrames(frame, frame.length, (message, plan) => rehearsed = run(message as unknown as Start, plan));
  await rehearsed;
  await rehearseCall();
  utf8(stringify(describeFailure(null, moduleNames())));
  const [first, second] = hearAgain();
  over = false;
  limits = undefined;
  world.__codemode_result__ = undefined;
  world[BOOT_HOOK] = hook;
  return first === "log" && second === "done";
}

receive((message, body) => {
  if (message.t === "start") void run(message, body);
  else if (message.t === "reply") settle(message.id, message.ok, body);
  else void warmUp(body);
});
