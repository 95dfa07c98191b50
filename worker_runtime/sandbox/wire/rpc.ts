/**
 * Carries calls from the script to the broker and their answers.
 *
 * @module
 */

import { type CodemodeError, errorClasses, errorFromBroker } from "../../../js_stdlib/errors.ts";
import { send } from "./channel.ts";
import { journal } from "../seam.ts";
import { type Flaw, jsonBody } from "./input.ts";
import * as p from "../primordials.ts";
import { MAX_BODY, type Query, TOOK_SHARE } from "./protocol.gen.ts";
import { agentFrames } from "../result/stack_text.ts";

interface Answer {
  ok: boolean;
  value: unknown;
}

interface Pending {
  readonly answer: (answer: Answer) => void;
  /** Says whether integers that numbers cannot have become bigints. */
  readonly exact: boolean;
}

// A null-prototype object: a Map's methods could be patched by the script.
const pending: Record<number, Pending> = Object.create(null);
// A longer path is only in `path`.
const MAX_PLACE = 100;
const parse = JSON.parse;
const PromiseCtor = Promise;
const SafeError = Error;
let lastId = 0;
let waiting = 0;
let maxBytes = 0;
// Bytes of answers read and not yet told.
let taken = 0;
// Discovery requests under way; the broker keeps no more than these for one run.
const MAX_ASKED = 8;
let asked = 0;

interface Turn {
  readonly go: () => void;
  next?: Turn;
}

// Those that wait: a list of objects without a prototype, as an array's methods could be patched.
let firstTurn: Turn | undefined;
let lastTurn: Turn | undefined;

/** Counts the tool calls that have no answer yet. Discovery requests are not counted: they leave nothing behind. */
export function callsInFlight(): number {
  return waiting;
}

/** Counts the discovery requests that have no answer yet. */
export function queriesInFlight(): number {
  return asked;
}

/** Sets how many bytes of JSON an input may have: what is over it would cost the run its worker. */
export function capMessages(bytes: number): void {
  maxBytes = bytes;
}

/**
 * Sends a tool call; the promise settles with the broker's answer, with bigints where it is to be `exact`.
 *
 * @throws SchemaValidationError for an input that cannot be sent, before anything is.
 */
export async function callTool(
  server: string,
  tool: string,
  exportName: string,
  input: unknown,
  exact = false,
): Promise<unknown> {
  const body = input === undefined
    ? undefined
    : jsonBody(input, maxBytes, (flaw) => notSendable(flaw, server, tool, exportName));
  waiting++;
  const { ok, value } = await new PromiseCtor<Answer>((resolve) => {
    const id = expect(resolve, () => waiting--, exact);
    send({ t: "call", id, server, tool, events: journal.takeEvents(callerFrames) }, body);
  });
  // Made here and not where the answer came in: so its stack leads back to the script's own `await`.
  if (!ok) throw scriptError(value);
  return value;
}

/**
 * Asks the broker's catalog; the promise settles with its answer.
 *
 * @throws CodemodeError for arguments that cannot be sent, before anything is.
 */
export async function query(op: Query["op"], args: unknown[]): Promise<unknown> {
  const body = jsonBody(
    args,
    maxBytes < MAX_BODY.query ? maxBytes : MAX_BODY.query,
    ({ path, why, hint }) =>
      new (errorClasses().CodemodeError)(`The arguments of ${op} cannot be sent: ${placed(path, why)}.`, {
        hint,
      }),
  );
  const { ok, value } = await new PromiseCtor<Answer>((resolve) => {
    inTurn(() => {
      const id = expect(resolve, nextTurn, false);
      send({ t: "query", id, op, events: journal.takeEvents(callerFrames) }, body);
    });
  });
  if (!ok) throw scriptError(value);
  return value;
}

/** Makes the error that the broker describes, with a stack of the agent's own frames only. */
export function scriptError(value: unknown): CodemodeError {
  const error = errorFromBroker(value);
  const frames = agentFrames(error.stack ?? "");
  const stack = `${error.name}: ${error.message}${frames === "" ? "" : `\n${frames}`}`;
  p.defineProperty(
    error,
    "stack",
    { __proto__: null, value: stack, writable: true, configurable: true } as never,
  );
  return error;
}

/** Settles the call that a reply answers, whose body is this text and had so many bytes. */
export function settle(id: number, ok: boolean, text: string, size: number): void {
  const request = pending[id];
  if (request === undefined) return;
  delete pending[id];
  taken += size;
  if (taken > maxBytes / TOOK_SHARE) {
    send({ t: "took", bytes: taken });
    taken = 0;
  }
  const value: unknown = size === 0 ? undefined : request.exact ? parse(text, exactly) : parse(text);
  journal.deliver("a", id, () => request.answer({ __proto__: null, ok, value } as unknown as Answer));
}

/** Says whether a request was sent and no answer has come. */
export function awaits(id: number): boolean {
  return pending[id] !== undefined;
}

/** Returns the frames of the script that are on the stack: the one that asks, or reads the clock. */
export function callerFrames(): string {
  return agentFrames(new SafeError().stack ?? "");
}

/** Goes along the way of one call and its answer, for which nobody is asked. Only before a run. */
export async function rehearseCall(): Promise<void> {
  const answered = callTool("", "", "", { text: "", number: 0 });
  settle(lastId, true, '{"text":"","number":0}', 22);
  await answered;
  lastId = 0;
  taken = 0;
}

/**
 * Returns the id of a request that is about to be sent: `answered` and then `resolve` are called when its answer is
 * there.
 */
function expect(resolve: (answer: Answer) => void, answered: () => void, exact: boolean): number {
  const id = ++lastId;
  const answer = (came: Answer) => {
    answered();
    resolve(came);
  };
  pending[id] = { __proto__: null, answer, exact } as unknown as Pending;
  return id;
}

/** Makes a bigint of an integer that is rounded as a number. */
function exactly(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || p.isSafeInteger(value)) return value;
  const source = context?.source;
  if (source === undefined || !isInteger(source)) return value;
  return p.toBigInt(source);
}

/** Says whether the text of a JSON number has neither a fraction nor an exponent. */
function isInteger(source: string): boolean {
  for (let at = 1; at < source.length; at++) {
    const unit = p.charCodeAt(source, at);
    if (unit < 0x30 || unit > 0x39) return false;
  }
  return true;
}

/** Begins a discovery request now, or when few enough of them are under way. */
function inTurn(go: () => void): void {
  if (asked < MAX_ASKED) {
    asked++;
    return go();
  }
  const turn = { __proto__: null, go, next: undefined } as unknown as Turn;
  if (lastTurn === undefined) firstTurn = turn;
  else lastTurn.next = turn;
  lastTurn = turn;
}

/** Gives the turn to the next discovery request: one is answered. */
function nextTurn(): void {
  const turn = firstTurn;
  if (turn === undefined) {
    asked--;
    return;
  }
  firstTurn = turn.next;
  if (firstTurn === undefined) lastTurn = undefined;
  turn.go();
}

function notSendable(
  { path, why, expected, received, hint }: Flaw,
  serverId: string,
  toolName: string,
  exportName: string,
): CodemodeError {
  return new (errorClasses().SchemaValidationError)(
    `The input of ${exportName} cannot be sent: ${placed(path, why)}.`,
    {
      hint,
      serverId,
      toolName,
      exportName,
      path,
      expected,
      received,
    },
  );
}

function placed(path: string, why: string): string {
  return path === "" || path.length > MAX_PLACE ? why : `at ${path}, ${why}`;
}
