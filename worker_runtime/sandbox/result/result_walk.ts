/**
 * Keeps the books of one walk over a script's result: where it is, how large the text gets, what went wrong; and
 * reads members of which a getter may throw.
 *
 * @module
 */

import { thrownText } from "./kinds.ts";
import * as p from "../primordials.ts";

/** Holds the members of an object, by name. */
export type Members = Record<string, unknown>;

/** Names what went wrong at one place of the value. */
export type IssueKind =
  | "undefined"
  | "undefined_member"
  | "function"
  | "symbol"
  | "bigint"
  | "non_finite_number"
  | "circular"
  | "unreadable"
  | "promise"
  | "map"
  | "set"
  | "binary"
  | "invalid_date"
  | "error_object"
  | "regexp"
  | "search_params"
  | "symbol_key"
  | "lone_surrogate"
  | "opaque_object"
  | "more_issues"
  | "too_deep"
  | "too_large";

/**
 * Tells of one issue; `path` is a JSON Pointer (RFC 6901) into the value, `""` for the whole; long ones are shortened
 * with `…`.
 */
export interface ResultIssue {
  path: string;
  kind: IssueKind;
  message: string;
}

/** Bounds a result. `maxBytes`: cap of the JSON text in UTF-8 bytes. `maxDepth`: how many containers may be nested. */
export interface ResultLimits {
  maxBytes: number;
  maxDepth: number;
}

/** Holds a result as text; `json` is always one JSON text. When `fatal`, it is `null` and the first issue says why. */
export interface ResultText {
  json: string;
  issues: ResultIssue[];
  fatal: boolean;
}

/** Holds the state of one walk; `open` and `path` hold the containers being copied and the key now read in each. */
export interface Walk {
  limits: ResultLimits;
  /** Bounds the text's size so far from below. */
  bytes: number;
  depth: number;
  open: object[];
  path: (string | number)[];
  issues: ResultIssue[];
  unlisted: number;
  /** Holds the issue that ends the walk, set just before it is thrown out of. */
  fatal: ResultIssue | null;
}

const MAX_ISSUES = 20;
const MAX_TOKEN = 64;
/** Sets the length from which a JSON Pointer is shortened with `…`. */
export const MAX_POINTER = 512;

/** Makes a walk at the root of a value. */
export function newWalk(limits: ResultLimits): Walk {
  const walk: Walk = { limits, bytes: 0, depth: 0, open: [], path: [], issues: [], unlisted: 0, fatal: null };
  // Without Array.prototype above them, plain index writes reach no setter of the agent's.
  p.setPrototypeOf(walk.open, null);
  p.setPrototypeOf(walk.path, null);
  return walk;
}

/** Opens a container: what is read next is found at `walk.path[walk.depth - 1]`. */
export function enter(walk: Walk, source: object): void {
  const { maxDepth } = walk.limits;
  if (walk.depth >= maxDepth) {
    stop(walk, pointer(walk, walk.depth), "too_deep", `the result is nested deeper than ${maxDepth} levels`);
  }
  walk.open[walk.depth] = source;
  walk.path[walk.depth] = "";
  walk.depth++;
}

/** Records an issue at the current place and returns what is written there. */
export function report<T>(walk: Walk, kind: IssueKind, message: string, written: T): T {
  if (walk.issues.length < MAX_ISSUES) {
    p.append(walk.issues, { path: pointer(walk, walk.depth), kind, message });
  } else walk.unlisted++;
  return written;
}

/** Counts bytes that the text will have at least; ends the walk as soon as they pass the cap. */
export function spend(walk: Walk, bytes: number): void {
  walk.bytes += bytes;
  if (walk.bytes > walk.limits.maxBytes) stopTooLarge(walk, walk.bytes);
}

/** Ends the walk when the `bytes` still to come cannot fit, before anything is built for them. */
export function expect(walk: Walk, bytes: number): void {
  if (walk.bytes + bytes > walk.limits.maxBytes) stopTooLarge(walk, walk.bytes + bytes);
}

/** Words a result over its cap; `size` says how large, in bytes. */
export function tooLarge(limits: ResultLimits, size: string): string {
  return `the result is too large: ${size} of JSON, the cap is ${limits.maxBytes} bytes`;
}

function stopTooLarge(walk: Walk, bytes: number): never {
  stop(walk, "", "too_large", tooLarge(walk.limits, `at least ${bytes} bytes`));
}

function stop(walk: Walk, path: string, kind: IssueKind, message: string): never {
  walk.fatal = { path, kind, message };
  throw walk.fatal;
}

/** Returns the JSON Pointer (RFC 6901) of the first `depth` keys. */
export function pointer(walk: Walk, depth: number): string {
  let text = "";
  for (let i = 0; i < depth; i++) {
    if (text.length > MAX_POINTER) return `${text}/…`;
    text += `/${escapeToken(p.toText(walk.path[i]))}`;
  }
  return text;
}

/** Returns a key as a part of a JSON Pointer, shortened. */
export function escapeToken(token: string): string {
  const shown = p.toWellFormed(token.length > MAX_TOKEN ? `${p.slice(token, 0, MAX_TOKEN)}…` : token);
  let text = "";
  for (let i = 0; i < shown.length; i++) {
    const char = shown[i];
    text += char === "~" ? "~0" : char === "/" ? "~1" : char;
  }
  return text;
}

/** Returns a fresh plain object with the own enumerable members of `source`, each read once. */
export function copyOf(walk: Walk, source: object): Members {
  try {
    return { ...source };
  } catch {
    return memberByMember(walk, source);
  }
}

/** Copies an object of which a getter throws, slowly: names the member that did. */
function memberByMember(walk: Walk, source: object): Members {
  const copy: Members = {};
  let keys: string[];
  try {
    keys = p.objectKeys(source);
  } catch (thrown) {
    report(walk, "unreadable", `members could not be listed: ${thrownText(thrown)}; written as {}`, null);
    return copy;
  }
  enter(walk, source);
  for (let i = 0; i < keys.length; i++) p.define(copy, keys[i], readMember(walk, source, keys[i]));
  walk.depth--;
  return copy;
}

/** Copies an array in the same way, whose place is open already. */
export function elementByElement(walk: Walk, source: unknown[]): unknown[] {
  const copy: unknown[] = [];
  let length: number;
  try {
    length = source.length;
  } catch (thrown) {
    walk.depth--;
    report(walk, "unreadable", `elements could not be listed: ${thrownText(thrown)}; written as []`, null);
    walk.depth++;
    return copy;
  }
  for (let i = 0; i < length; i++) p.define(copy, i, readMember(walk, source, i));
  return copy;
}

function readMember(walk: Walk, source: object, key: string | number): unknown {
  try {
    return (source as Members)[key];
  } catch (thrown) {
    walk.path[walk.depth - 1] = key;
    return report(walk, "unreadable", `reading threw: ${thrownText(thrown)}; written as null`, null);
  }
}
