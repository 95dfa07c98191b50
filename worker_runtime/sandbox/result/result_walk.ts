/**
 * Keeps the books of one walk over a script's result: where it is, how large the text gets, what went wrong; and
 * reads members of which a getter may throw.
 *
 * It says, too, what becomes of objects that JSON has no form for, in a script's result (see result.ts): each is written in the
 * most useful form there is, and an issue says so.
 *
 * | value | written as |
 * |---|---|
 * | Map with string keys only | object |
 * | any other Map | array of `[key, value]` |
 * | Set | array |
 * | Uint8Array, Uint8ClampedArray, ArrayBuffer, DataView | base64 string |
 * | other typed arrays | array of numbers |
 * | Error | `{name, message, cause?, errors?, …own members}`, `error` and `suppressed` of a SuppressedError |
 * | RegExp, URLSearchParams | their text |
 * | Date | ISO 8601 string, no issue; null when invalid |
 * | boxed primitives | the primitive, no issue for those JSON knows |
 * | Promise, WeakMap, WeakSet, WeakRef, iterators | null |
 *
 * @module
 */

import * as p from "../primordials.ts";
import {
  bytesOf,
  className,
  isSuppressedError,
  type Kind,
  mapPairs,
  read,
  regExpText,
  searchParamsToString,
  setMembers,
  thrownText,
  unbox,
} from "./kinds.ts";

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

/** Bounds the digits of a bigint that is written as an integer: with more, other readers of JSON have no number. */
export const MAX_DIGITS = 308;

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

/** Records an issue at the current place and returns what is written there. Of holes or NaNs in a row, which one mistake
 * makes, the first is listed. */
export function report<T>(walk: Walk, kind: IssueKind, message: string, written: T): T {
  const { length } = walk.issues;
  const may = kind === "undefined" || kind === "non_finite_number";
  const repeats = may && length > 0 && walk.issues[length - 1].kind === kind;
  if (repeats || length >= MAX_ISSUES) walk.unlisted++;
  else p.append(walk.issues, { path: pointer(walk, walk.depth), kind, message });
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

/**
 * Gives what is written of an object that is neither an array nor a plain object: a primitive, or a fresh array or plain
 * object whose elements or members are yet to be cleaned.
 */
export function toPlain(walk: Walk, value: object, kind: Kind): unknown {
  switch (kind) {
    case "date":
      if (p.isFiniteNumber(p.dateGetTime(value))) return p.dateToIso(value);
      return report(walk, "invalid_date", "an invalid Date; written as null", null);
    case "boxed":
      return unbox(value);
    case "error":
      report(walk, "error_object", "an Error; written as {name, message, …}", null);
      return errorMembers(walk, value);
    case "map":
      return mapMembers(walk, value);
    case "set":
      report(walk, "set", "a Set; written as an array", null);
      expect(walk, 2 * p.setSize(value));
      return setMembers(value);
    case "typed_array":
    case "array_buffer":
    case "data_view":
      return binary(walk, value, kind);
    case "regexp":
      return report(walk, "regexp", "a RegExp; written as its text", regExpText(value));
    case "search_params": {
      const text = searchParamsToString(value);
      return report(walk, "search_params", "a URLSearchParams; written as its text", text);
    }
    case "promise":
      return report(walk, "promise", "a Promise, not its value: await it; written as null", null);
    case "iterator":
      return report(walk, "opaque_object", "an iterator; spread it: [...it]; written as null", null);
    case "weak":
      return report(walk, "opaque_object", `a ${className(value)} cannot be listed; written as null`, null);
    default:
      return instanceMembers(walk, value);
  }
}

/**
 * Returns the own enumerable members of a class instance, which is written as these; one with none would vanish into
 * `{}`.
 */
function instanceMembers(walk: Walk, value: object): Members {
  const members = copyOf(walk, value);
  if (p.objectKeys(members).length === 0) {
    const name = className(value);
    const what = name === "" ? "an object" : `an instance of ${name}`;
    report(walk, "opaque_object", `${what} without enumerable members; written as {}`, null);
  }
  return members;
}

function errorMembers(walk: Walk, value: object): Members {
  const members: Members = {};
  const named = isSuppressedError(value)
    ? ["name", "message", "cause", "error", "suppressed"]
    : ["name", "message", "cause", "errors"];
  const own = copyOf(walk, value);
  for (let i = 0; i < named.length; i++) {
    const member = read(value, named[i]);
    if (member !== undefined) p.define(members, named[i], member);
  }
  const keys = p.objectKeys(own);
  for (let i = 0; i < keys.length; i++) p.define(members, keys[i], own[keys[i]]);
  return members;
}

function mapMembers(walk: Walk, value: object): unknown {
  expect(walk, 4 * p.mapSize(value));
  const members: Members = {};
  const pairs = mapPairs(value);
  for (let i = 0; i < pairs.length; i++) {
    const key = pairs[i][0];
    if (typeof key !== "string") {
      const message = "a Map with keys that are no strings; written as an array of [key, value]";
      return report(walk, "map", message, pairs);
    }
    p.define(members, key, pairs[i][1]);
  }
  return report(walk, "map", "a Map; written as an object", members);
}

function binary(walk: Walk, value: object, kind: Kind): unknown {
  const tag = p.typedArrayTag(value);
  try {
    if (tag === undefined || tag === "Uint8Array" || tag === "Uint8ClampedArray") {
      const bytes = bytesOf(value, kind);
      expect(walk, 2 + (p.typedArrayByteLength(bytes) * 4) / 3);
      return report(walk, "binary", "binary data; written as a base64 string", p.toBase64(bytes));
    }
  } catch (thrown) {
    if (walk.fatal !== null) throw thrown;
    return report(walk, "unreadable", `binary data cannot be read: ${thrownText(thrown)}`, null);
  }
  const length = p.typedArrayLength(value);
  expect(walk, 2 * length);
  const numbers: unknown[] = [];
  for (let i = 0; i < length; i++) p.append(numbers, (value as unknown as number[])[i]);
  report(walk, "binary", `a ${tag}; written as an array of numbers`, null);
  return numbers;
}
