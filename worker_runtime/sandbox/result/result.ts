/**
 * Turns the value of `globalThis.__codemode_result__` into JSON text (Code Mode specification, section 3.2.2), with
 * one issue for everything that JSON cannot carry, so that nothing is lost in silence.
 *
 * How: the value is copied into plain objects and arrays, each member read exactly once, and the copy goes to the
 * engine's own `JSON.stringify`. What was checked is therefore what is written, whatever getters and proxies do,
 * and no agent code runs while the text is made.
 *
 * What is dropped without an issue, as JSON does everywhere: members whose value is `undefined`, of some of an array's
 * elements and of what is no plain object; non-enumerable members; members of an array that are no elements; and `-0` is
 * written as `0`.
 *
 * @module
 */

import { functionName, type Kind, kindOf, thrownText, toJsonOf } from "./kinds.ts";
import * as p from "../primordials.ts";
import {
  copyOf,
  elementByElement,
  enter,
  escapeToken,
  expect,
  MAX_DIGITS,
  type Members,
  newWalk,
  pointer,
  report,
  type ResultIssue,
  type ResultLimits,
  type ResultText,
  spend,
  tooLarge,
  toPlain,
  type Walk,
} from "./result_walk.ts";

export type { IssueKind, ResultIssue, ResultLimits, ResultText } from "./result_walk.ts";

const MAX_UNDEFINED = 5;

/** Turns the final value of a script into JSON text. Never throws, whatever the value does. */
export function toResult(value: unknown, limits: ResultLimits): ResultText {
  const walk = newWalk(limits);
  let fatal: ResultIssue;
  try {
    const copy = value === undefined ? null : clean(walk, value);
    if (toJsonIsPatched()) dropPrototypes(copy);
    const json = p.jsonStringify(copy);
    // As `JSON.stringify` writes the half of a surrogate pair; other texts may hold these characters, too.
    if (p.indexOf(json, "\\ud") >= 0) reportSurrogates(walk, copy);
    const size = utf8Length(json, limits.maxBytes);
    if (size <= limits.maxBytes) return { json, issues: listed(walk), fatal: false };
    fatal = { path: "", kind: "too_large", message: tooLarge(limits, `${size} bytes`) };
  } catch (thrown) {
    const message = `the result could not be written: ${thrownText(thrown)}`;
    fatal = walk.fatal ?? { path: "", kind: "unreadable", message };
  }
  const issues: ResultIssue[] = [fatal];
  for (let i = 0; i < walk.issues.length; i++) p.append(issues, walk.issues[i]);
  return { json: "null", issues, fatal: true };
}

function listed(walk: Walk): ResultIssue[] {
  if (walk.unlisted > 0) {
    const message = `and ${walk.unlisted} more places that JSON cannot carry`;
    p.append(walk.issues, { path: "", kind: "more_issues", message });
  }
  return walk.issues;
}

/** Returns the JSON-safe copy of one value; `walk.path[walk.depth - 1]` is the key it was found at. */
function clean(walk: Walk, value: unknown): unknown {
  switch (typeof value) {
    case "string":
      spend(walk, value.length + 2);
      return value;
    case "boolean":
      spend(walk, 4);
      return value;
    case "number":
      spend(walk, 1);
      if (p.isFiniteNumber(value)) return value;
      return report(walk, "non_finite_number", `${p.toText(value)} is no JSON number; written as null`, null);
    case "bigint": {
      const text = p.toText(value);
      spend(walk, text.length + 2);
      if (text.length <= MAX_DIGITS) return p.rawJson(text);
      return report(
        walk,
        "bigint",
        `a bigint of over ${MAX_DIGITS} digits; written as a decimal string`,
        text,
      );
    }
    case "undefined":
      return report(walk, "undefined", "undefined in an array; written as null", null);
    case "symbol":
      return report(walk, "symbol", "a symbol is no JSON value; written as null", null);
    case "function": {
      const name = functionName(value);
      const what = name === "" ? "an unnamed function" : `function ${name}`;
      return report(walk, "function", `${what} is no JSON value; written as null`, null);
    }
    default:
      if (value !== null) return cleanObject(walk, value as object);
      spend(walk, 4);
      return null;
  }
}

function cleanObject(walk: Walk, found: object): unknown {
  let value = found;
  let kind: Kind;
  let circle = openAt(walk, value);
  try {
    kind = kindOf(value);
    const mayReplace = circle < 0 && (kind !== "plain" || p.hasOwn(value, "toJSON"));
    const toJson = mayReplace ? toJsonOf(value) : undefined;
    if (toJson !== undefined) {
      const key = walk.depth === 0 ? "" : p.toText(walk.path[walk.depth - 1]);
      const replaced = p.apply(toJson, value, [key]);
      if (replaced === undefined) return report(walk, "undefined", "toJSON returned undefined", null);
      if (typeof replaced !== "object" || replaced === null) return clean(walk, replaced);
      value = replaced;
      circle = openAt(walk, value);
      kind = kindOf(value);
    }
  } catch (thrown) {
    if (walk.fatal !== null) throw thrown;
    const message = `the object could not be read (${thrownText(thrown)}); written as null`;
    return report(walk, "unreadable", message, null);
  }
  if (circle >= 0) {
    const target = circle === 0 ? "the whole result" : pointer(walk, circle);
    return report(walk, "circular", `circular reference to ${target}; written as null`, null);
  }
  if (kind === "array") return cleanArray(walk, value as unknown[]);
  if (kind === "plain") {
    const copy = copyOf(walk, value);
    reportUndefined(walk, [copy], false);
    return cleanMembers(walk, value, copy);
  }
  const plain = toPlain(walk, value, kind);
  if (typeof plain !== "object" || plain === null) return clean(walk, plain);
  if (!p.isArray(plain)) return cleanMembers(walk, value, plain as Members);
  enter(walk, value);
  return cleanElements(walk, plain, plain);
}

/** Returns the depth at which `value` is being copied right now, or -1. */
function openAt(walk: Walk, value: object): number {
  for (let i = 0; i < walk.depth; i++) if (walk.open[i] === value) return i;
  return -1;
}

function cleanArray(walk: Walk, source: unknown[]): unknown {
  enter(walk, source);
  let copy: unknown[];
  try {
    // Two bytes for each element: refuses `a[1e9] = 1` before a copy of that length is made.
    expect(walk, 2 * source.length);
    copy = p.toSpliced(source, 0, 0);
  } catch (thrown) {
    if (walk.fatal !== null) throw thrown;
    copy = elementByElement(walk, source);
  }
  cleanElements(walk, copy, source);
  const first = copy[0];
  if (typeof first === "object" && first !== null && !p.isArray(first)) {
    reportUndefined(walk, copy as Members[], true);
  }
  return copy;
}

/** Cleans a fresh array in place; `source` is what it was copied from, to tell holes from undefined. */
function cleanElements(walk: Walk, copy: unknown[], source: object): unknown[] {
  const at = walk.depth - 1;
  const { length } = copy;
  spend(walk, 1 + length);
  for (let i = 0; i < length; i++) {
    const value = copy[i];
    if (typeof value === "string") spend(walk, value.length + 2);
    else if (value !== null && typeof value !== "boolean" && !p.isFiniteNumber(value)) {
      walk.path[at] = i;
      if (value === undefined && !p.hasOwn(source, i)) {
        copy[i] = report(walk, "undefined", "an empty slot of a sparse array; written as null", null);
      } else copy[i] = clean(walk, value);
    }
  }
  walk.depth--;
  return copy;
}

/** Cleans a fresh plain object in place: every member is an own data property, so each write stays on it. */
function cleanMembers(walk: Walk, source: object, copy: Members): Members {
  enter(walk, source);
  spend(walk, 1);
  const at = walk.depth - 1;
  if (p.getOwnPropertySymbols(copy).length > 0) reportSymbolKeys(walk, copy);
  const keys = p.objectKeys(copy);
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i];
    const value = copy[key];
    if (value === undefined) continue;
    spend(walk, key.length + 4);
    if (typeof value === "string") spend(walk, value.length + 2);
    else if (value !== null && typeof value !== "boolean" && !p.isFiniteNumber(value)) {
      walk.path[at] = key;
      copy[key] = clean(walk, value);
    }
  }
  walk.depth--;
  return copy;
}

/**
 * Tells of members that are undefined, mostly read by a wrong name: of an object, or of all elements of an array, of which
 * some often lack what others have. `copies` are made by the walk, so that reading them runs no code of the agent's.
 */
function reportUndefined(walk: Walk, copies: Members[], inArray: boolean): void {
  // By the way to it: asking what is open may throw, of a proxy that a getter has revoked meanwhile.
  for (let i = 0; i < walk.depth && !inArray; i++) if (typeof walk.path[i] === "number") return;
  const keys = p.objectKeys(copies[0]);
  let named = "";
  let first = "";
  let count = 0;
  for (let i = 0; i < keys.length; i++) {
    if (!lackedByAll(copies, keys[i])) continue;
    if (count === 0) first = keys[i];
    if (count < MAX_UNDEFINED) named += `${count > 0 ? ", " : ""}${escapeToken(keys[i])}`;
    count++;
  }
  if (count === 0) return;
  const more = count > MAX_UNDEFINED ? ` and ${count - MAX_UNDEFINED} more` : "";
  const where = copies.length > 1 ? ` in all ${copies.length} elements` : "";
  const { depth } = walk;
  if (inArray) walk.path[walk.depth++] = 0;
  walk.path[walk.depth++] = first;
  report(walk, "undefined_member", `${named}${more}: undefined${where}, and so left out`, null);
  walk.depth = depth;
}

function lackedByAll(copies: Members[], key: string): boolean {
  for (let i = 0; i < copies.length; i++) {
    const copy = copies[i];
    if (typeof copy !== "object" || copy === null) return false;
    if (!p.hasOwn(copy, key) || copy[key] !== undefined) return false;
  }
  return true;
}

function reportSymbolKeys(walk: Walk, copy: object): void {
  walk.depth--;
  const count = p.getOwnPropertySymbols(copy).length;
  report(walk, "symbol_key", `${count} member(s) with a symbol key dropped; JSON keys are strings`, null);
  walk.depth++;
}

/** Looks for halves of surrogate pairs, which have no UTF-8: the broker puts U+FFFD in their places. */
function reportSurrogates(walk: Walk, copy: unknown): void {
  if (typeof copy === "string") {
    if (!p.isWellFormed(copy)) {
      report(walk, "lone_surrogate", "half of a surrogate pair in a text; written as U+FFFD", null);
    }
    return;
  }
  if (typeof copy !== "object" || copy === null) return;
  enter(walk, copy);
  const at = walk.depth - 1;
  const keys = p.objectKeys(copy);
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i];
    walk.path[at] = key;
    if (!p.isArray(copy) && !p.isWellFormed(key)) {
      report(walk, "lone_surrogate", "half of a surrogate pair in a key; written as U+FFFD", null);
    }
    reportSurrogates(walk, (copy as Members)[key]);
  }
  walk.depth--;
}

/** Says whether `JSON.stringify` of a plain copy could find a `toJSON` on a prototype. */
function toJsonIsPatched(): boolean {
  return p.hasOwn(p.ObjectPrototype, "toJSON") || p.hasOwn(p.ArrayPrototype, "toJSON") ||
    p.getPrototypeOf(p.ArrayPrototype) !== p.ObjectPrototype;
}

function dropPrototypes(copy: unknown): void {
  if (typeof copy !== "object" || copy === null) return;
  p.setPrototypeOf(copy, null);
  const keys = p.objectKeys(copy);
  for (let i = 0; i < keys.length; i++) dropPrototypes((copy as Members)[keys[i]]);
}

/** Returns the length in UTF-8 of text without lone surrogates; exact only where it is near `cap`. */
function utf8Length(text: string, cap: number): number {
  if (text.length > cap || text.length * 3 <= cap) return text.length;
  let bytes = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = p.charCodeAt(text, i);
    // A surrogate pair is four bytes for its two units: one extra each.
    if (unit > 0x7f) bytes += unit > 0x7ff && (unit < 0xd800 || unit > 0xdfff) ? 2 : 1;
  }
  return bytes;
}
