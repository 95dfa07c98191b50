/**
 * What the broker is told about a value that ended the script: an error, or anything else that was thrown.
 *
 * @module
 */

import * as p from "./primordials.ts";
import { formatLog } from "./serialize.ts";
import { read } from "./serialize_kinds.ts";
import { agentFrames } from "./stack_text.ts";

const MAX_TEXT = 8 * 1024;
const MAX_CAUSES = 4;
const MARK = ";base64,";
const KIND_LENGTH = "javascript".length;
const ErrorCtor = Error;

/** Body of the `failed` message. */
export interface Failure {
  name: string;
  message: string;
  stack?: string;
  hint?: string;
  errorClass?: string;
  path?: string;
  causes?: string[];
}

/** Describes what was thrown; never throws itself, whatever getters the value has. */
export function describeFailure(error: unknown): Failure {
  // A null prototype: a toJSON planted on Object.prototype must not speak for it.
  const failure = { __proto__: null, name: "Error", message: "" } as unknown as Failure;
  if (isError(error)) {
    failure.name = text(error, "name") || "Error";
    failure.message = text(error, "message") ?? "";
    failure.stack = agentFrames(text(error, "stack") ?? "");
    failure.hint = text(error, "hint");
    failure.path = text(error, "path");
    failure.causes = causes(error);
  } else {
    failure.name = "Thrown value";
    failure.message = formatLog([error], MAX_TEXT);
  }
  return failure;
}

/** A proxy may throw when it is asked, and then it is none. */
function isError(value: unknown): value is Error {
  try {
    return value instanceof ErrorCtor;
  } catch {
    return false;
  }
}

function causes(error: Error): string[] {
  const found: string[] = [];
  let cause: unknown = read(error, "cause");
  while (cause !== undefined && found.length < MAX_CAUSES) {
    found[found.length] = formatLog([cause], 512);
    cause = isError(cause) ? read(cause, "cause") : undefined;
  }
  return found;
}

function text(error: Error, key: "name" | "message" | "stack" | "hint" | "path"): string | undefined {
  const value = read(error, key);
  return typeof value === "string" ? cut(withoutModuleText(value)) : undefined;
}

/**
 * Leaves out the base64 of modules' `data:` URLs, which the engine puts whole before what it has to say and the
 * place of it: cut at the end, only base64 would be left.
 */
function withoutModuleText(value: string): string {
  let kept = "";
  let start = 0;
  let mark = p.indexOf(value, MARK, 0);
  while (mark >= 0 && kept.length < MAX_TEXT) {
    const end = mark + MARK.length;
    kept += p.slice(value, start, end);
    start = end;
    const kind = p.slice(value, mark - KIND_LENGTH, mark);
    if (kind === "javascript" || kind === "typescript") {
      while (start < value.length && isBase64(p.charCodeAt(value, start))) start++;
    }
    mark = p.indexOf(value, MARK, start);
  }
  return start === 0 ? value : kept + p.slice(value, start);
}

function isBase64(unit: number): boolean {
  return (unit >= 97 && unit <= 122) || (unit >= 65 && unit <= 90) || (unit >= 47 && unit <= 57) ||
    unit === 43 || unit === 61;
}

function cut(value: string): string {
  return value.length > MAX_TEXT ? p.slice(value, 0, MAX_TEXT) : value;
}
