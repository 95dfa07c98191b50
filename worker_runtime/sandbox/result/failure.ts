/**
 * Describes a value that ended the script to the broker: an error, or anything else that was thrown.
 *
 * @module
 */

import * as p from "../primordials.ts";
import { formatLog } from "./serialize.ts";
import { isSuppressedError, read } from "./kinds.ts";
import { agentFrames, lastFrameless } from "./stack_text.ts";

// Each character may be six bytes of JSON: all texts together stay under the cap of a `failed` message.
const MAX_TEXT = 8 * 1024;
const MAX_SHORT_TEXT = 1024;
const MAX_CAUSES = 4;
const MAX_RELATED_BYTES = 512;
const ErrorCtor = Error;

/** Maps the URLs of a run's own modules, the script's included, to the names that are told of them. */
export type ModuleNames = Readonly<Record<string, string>>;

/** Describes the body of the `failed` message. */
export interface Failure {
  name: string;
  message: string;
  stack?: string;
  hint?: string;
  errorClass?: string;
  path?: string;
  causes?: string[];
  /** Holds the members of an AggregateError. */
  errors?: string[];
  /** Holds of a SuppressedError what was thrown last, and what that has suppressed. */
  error?: string;
  suppressed?: string;
}

/** Describes a value that was thrown; never throws itself, whatever getters the value has. */
export function describeFailure(error: unknown, modules: ModuleNames): Failure {
  // A null prototype: a toJSON planted on Object.prototype must not speak for it.
  const failure = { __proto__: null, name: "Error", message: "" } as unknown as Failure;
  if (isError(error)) {
    failure.name = text(error, "name", modules, MAX_SHORT_TEXT) || "Error";
    failure.message = text(error, "message", modules) ?? "";
    failure.stack = framesOf(error, modules);
    failure.hint = text(error, "hint", modules, MAX_SHORT_TEXT);
    failure.path = text(error, "path", modules, MAX_SHORT_TEXT);
    failure.causes = causes(error);
    failure.errors = members(error);
    if (isSuppressedError(error)) {
      failure.error = related(read(error, "error"));
      failure.suppressed = related(read(error, "suppressed"));
    }
  } else {
    failure.name = "Thrown value";
    failure.message = formatLog([error], MAX_TEXT);
  }
  return failure;
}

/**
 * Returns the error that a script was ended by, where the import of the script rejected with `caught`.
 *
 * Deno makes an error without frames anew, as an `Error` of the same message, before it rejects the import. It asks for
 * the stack first, by which we know the one that the script had; unless that had been given a `stack` of its own.
 * Syntax errors are made anew with their place behind the message, and are of more use so.
 */
export function thrownByScript(caught: unknown, modules: ModuleNames): unknown {
  const original = lastFrameless();
  if (original === caught || !isError(caught) || !isError(original)) return caught;
  if (text(caught, "message", modules) !== text(original, "message", modules)) return caught;
  return framesOf(caught, modules) === "" ? original : caught;
}

/** Says whether a value is an error; a proxy may throw when it is asked, and then it is none. */
function isError(value: unknown): value is Error {
  try {
    return value instanceof ErrorCtor;
  } catch {
    return false;
  }
}

function related(value: unknown): string {
  return formatLog([value], MAX_RELATED_BYTES);
}

function causes(error: Error): string[] {
  const found: string[] = [];
  let cause: unknown = read(error, "cause");
  while (cause !== undefined && found.length < MAX_CAUSES) {
    p.append(found, related(cause));
    cause = isError(cause) ? read(cause, "cause") : undefined;
  }
  return found;
}

/** Returns the first of an error's `errors`, and how many more there are. */
function members(error: Error): string[] | undefined {
  const found: string[] = [];
  try {
    const errors = read(error, "errors");
    if (!p.isArray(errors) || errors.length === 0) return undefined;
    const { length } = errors;
    for (let i = 0; i < length && i < MAX_CAUSES; i++) p.append(found, related(errors[i]));
    if (length > MAX_CAUSES) p.append(found, `… ${length - MAX_CAUSES} more`);
  } catch { /* a proxy or getter of the script's: what was read is told */ }
  return found;
}

function text(
  error: Error,
  key: "name" | "message" | "hint" | "path",
  modules: ModuleNames,
  most = MAX_TEXT,
): string | undefined {
  const value = read(error, key);
  return typeof value === "string" ? cut(withModuleNames(value, modules), most) : undefined;
}

/**
 * Names modules instead of their `data:` URLs, which the engine puts whole before what it has to say and the place of
 * it: cut at the end, only base64 would be left. URLs of the script's own are its data and stay.
 */
function withModuleNames(value: string, modules: ModuleNames): string {
  let named = value;
  const urls = p.objectKeys(modules);
  for (let i = 0; i < urls.length; i++) {
    const url = urls[i];
    let kept = "";
    let start = 0;
    let found = p.indexOf(named, url, 0);
    while (found >= 0 && kept.length < MAX_TEXT) {
      kept += p.slice(named, start, found) + modules[url];
      start = found + url.length;
      found = p.indexOf(named, url, start);
    }
    if (start > 0) named = kept + p.slice(named, start);
  }
  return named;
}

/** Returns the agent's frames of an error: they are the end of its stack, however long the message before them. */
function framesOf(error: Error, modules: ModuleNames): string {
  const stack = read(error, "stack");
  if (typeof stack !== "string") return "";
  const end = stack.length > MAX_TEXT ? p.slice(stack, stack.length - MAX_TEXT) : stack;
  return agentFrames(withModuleNames(end, modules));
}

function cut(value: string, most: number): string {
  return value.length > most ? `${p.slice(value, 0, most - 1)}…` : value;
}
