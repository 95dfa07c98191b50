/**
 * Says in which forms `console.*` shows objects that JSON has no form for (see serialize.ts).
 *
 * | value | inside JSON | as an argument of its own |
 * |---|---|---|
 * | Map | `{"[Map]":[[key,value],…]}` in the Map's order | same |
 * | Set | `{"[Set]":[…]}` | same |
 * | typed arrays | `{"[Uint8Array]":[1,2]}`, at most 100 elements, then `"… 900 more"` | same |
 * | ArrayBuffer, DataView | `{"[ArrayBuffer]":[…bytes]}`, same cap | same |
 * | Date | `"2026-01-31T…Z"`, `"Invalid Date"` | without quotes |
 * | RegExp, URLSearchParams | their text in quotes | without quotes |
 * | Error | `{"cause":…,"message":…,"name":…,"stack":…}` and own members | text: see `writeError` |
 * | Promise, WeakMap, iterators … | `"[Promise]"` | without quotes |
 * | class instances | own enumerable members as an object; `toJSON` is honoured | same |
 *
 * @module
 */

import { bytesOf, className, type Kind, regExpText, searchParamsToString, unbox } from "./kinds.ts";
import * as p from "../primordials.ts";
import { agentFrames } from "./stack_text.ts";

const MAX_BINARY_ELEMENTS = 100;
const SuppressedErrorCtor = SuppressedError;

/** Holds what an object turns into: a primitive or text, the members of an object, or a list under a tag. */
export type Form =
  | { is: "value"; value: unknown }
  | { is: "members"; source: object }
  | { is: "list"; tag: string; source: ArrayLike<unknown> };

/**
 * Returns the form of an object. @throws whatever reading the object throws. `most`: how many elements can be shown at
 * all.
 */
export function formOf(value: object, kind: Kind, most: number): Form {
  switch (kind) {
    case "array":
      return { is: "list", tag: "", source: value as unknown[] };
    case "date":
      return text(p.isFiniteNumber(p.dateGetTime(value)) ? p.dateToIso(value) : "Invalid Date");
    case "regexp":
      return text(regExpText(value));
    case "search_params":
      return text(searchParamsToString(value));
    case "boxed":
      return { is: "value", value: unbox(value) };
    case "promise":
      return text("[Promise]");
    case "iterator":
      return text("[Iterator]");
    case "weak":
      return text(`[${className(value) || "Object"}]`);
    case "error":
      return { is: "members", source: errorMembers(value) };
    case "map":
      return { is: "list", tag: "[Map]", source: mapPairs(value, most) };
    case "set":
      return { is: "list", tag: "[Set]", source: setMembers(value, most) };
    case "typed_array":
    case "array_buffer":
    case "data_view":
      return { is: "list", tag: `[${binaryName(value, kind)}]`, source: binaryElements(value, kind) };
    default:
      return { is: "members", source: value };
  }
}

function text(value: string): Form {
  return { is: "value", value };
}

/** Returns the `[key, value]` of a Map, no more of them than are wanted. */
export function mapPairs(value: object, most = Infinity): [unknown, unknown][] {
  const pairs: [unknown, unknown][] = [];
  p.mapForEach(value, (member: unknown, key: unknown) => {
    if (pairs.length <= most) p.append(pairs, [key, member]);
  });
  return pairs;
}

/** Returns the members of a Set, no more of them than are wanted. */
export function setMembers(value: object, most = Infinity): unknown[] {
  const members: unknown[] = [];
  p.setForEach(value, (member: unknown) => {
    if (members.length <= most) p.append(members, member);
  });
  return members;
}

function binaryName(value: object, kind: Kind): string {
  return kind === "typed_array" ? p.typedArrayTag(value)! : kind === "data_view" ? "DataView" : "ArrayBuffer";
}

function binaryElements(value: object, kind: Kind): unknown[] {
  const view = kind === "typed_array" ? value : bytesOf(value, kind);
  const length = p.typedArrayLength(view);
  const elements: unknown[] = [];
  for (let i = 0; i < length && i < MAX_BINARY_ELEMENTS; i++) p.append(elements, (view as Uint8Array)[i]);
  if (length > MAX_BINARY_ELEMENTS) p.append(elements, `… ${length - MAX_BINARY_ELEMENTS} more`);
  return elements;
}

/**
 * Returns name, message, agent frames, the errors an error brings along and own enumerable members, as a fresh plain
 * object.
 */
export function errorMembers(value: object): Record<string, unknown> {
  const members = ownMembers(value);
  const name = readText(value, "name");
  const message = readText(value, "message");
  const frames = agentFrames(readText(value, "stack"));
  p.define(members, "name", name === "" ? "Error" : name);
  p.define(members, "message", message);
  if (frames !== "") p.define(members, "stack", frames);
  const cause = read(value, "cause");
  if (cause !== undefined) p.define(members, "cause", cause);
  const errors = read(value, "errors");
  if (errors !== undefined) p.define(members, "errors", errors);
  if (isSuppressedError(value)) {
    p.define(members, "error", read(value, "error"));
    p.define(members, "suppressed", read(value, "suppressed"));
  }
  return members;
}

/** Says whether two errors stand in `error` and `suppressed` of an error, as `using` makes them. Never throws. */
export function isSuppressedError(value: object): boolean {
  try {
    return value instanceof SuppressedErrorCtor;
  } catch {
    return false;
  }
}

function ownMembers(value: object): Record<string, unknown> {
  try {
    return { ...value };
  } catch {
    return {};
  }
}

/** Returns a member, or undefined when reading it throws. */
export function read(value: object, key: string): unknown {
  try {
    return (value as Record<string, unknown>)[key];
  } catch {
    return undefined;
  }
}

/** Returns a member that is a string, else "". */
export function readText(value: object, key: string): string {
  const member = read(value, key);
  return typeof member === "string" ? member : "";
}
