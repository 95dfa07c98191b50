/**
 * Calls from the script to the broker and their answers.
 *
 * @module
 */

import { type CodemodeError, errorFromBroker, SchemaValidationError } from "../../js_stdlib/errors.ts";
import { send, textOf, utf8 } from "./channel.ts";
import * as p from "./primordials.ts";
import type { Query } from "./protocol.gen.ts";
import { agentFrames } from "./stack_text.ts";

interface Answer {
  ok: boolean;
  value: unknown;
}

type Pending = (answer: Answer) => void;

// A null-prototype object: a Map's methods could be patched by the script.
const pending: Record<number, Pending> = Object.create(null);
const stringify = JSON.stringify;
const parse = JSON.parse;
const PromiseCtor = Promise;
let lastId = 0;
let waiting = 0;

/** How many calls have no answer yet. */
export function callsInFlight(): number {
  return waiting;
}

/** Sends a tool call; the promise settles with the broker's answer. */
export async function callTool(
  server: string,
  tool: string,
  exportName: string,
  input: unknown,
): Promise<unknown> {
  let body: Uint8Array | undefined;
  if (input !== undefined) {
    let text: string | undefined;
    try {
      text = stringify(input);
    } catch (error) {
      throw notJson(tool, exportName, String((error as Error)?.message));
    }
    if (text === undefined) throw notJson(tool, exportName, `a ${typeof input} has no JSON form`);
    body = utf8(text);
  }
  const { ok, value } = await request((id) => send({ t: "call", id, server, tool }, body));
  // Made here and not where the answer came in: so its stack leads back to the script's own `await`.
  if (!ok) throw scriptError(value);
  return value;
}

/** Asks the broker's catalog; the promise settles with its answer. */
export async function query(op: Query["op"], args: unknown[]): Promise<unknown> {
  const { ok, value } = await request((id) => send({ t: "query", id, op }, utf8(stringify(args))));
  if (!ok) throw scriptError(value);
  return value;
}

/** The error that the broker describes, with a stack of the agent's own frames only. */
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

/** Settles the call that a reply answers. */
export function settle(id: number, ok: boolean, body: Uint8Array): void {
  const resolve = pending[id];
  if (resolve === undefined) return;
  delete pending[id];
  waiting--;
  const value: unknown = body.length === 0 ? undefined : parse(textOf(body));
  resolve({ __proto__: null, ok, value } as unknown as Answer);
}

/** Goes along the way of one call and its answer, for which nobody is asked. Only before a run. */
export async function rehearseCall(): Promise<void> {
  const answered = callTool("", "", "", { text: "", number: 0 });
  settle(lastId, true, utf8('{"text":"","number":0}'));
  await answered;
  lastId = 0;
}

function request(transmit: (id: number) => void): Promise<Answer> {
  const id = ++lastId;
  return new PromiseCtor((resolve) => {
    pending[id] = resolve;
    waiting++;
    transmit(id);
  });
}

function notJson(toolName: string, exportName: string, why: string): SchemaValidationError {
  return new SchemaValidationError(`The input of ${exportName} cannot be sent: ${why}`, {
    hint: "Pass plain JSON data: objects, arrays, strings, numbers, booleans and null.",
    toolName,
    exportName,
    path: "",
    expected: "a JSON value",
    received: why,
  });
}
