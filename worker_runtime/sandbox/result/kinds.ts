/**
 * Tells what sort of object a value is from its prototype chain and internal slots: never from `constructor`
 * or `Symbol.toStringTag`, which any object can fake.
 *
 * And says in which forms `console.*` shows objects that JSON has no form for (see serialize.ts).
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

import * as p from "../primordials.ts";
import { madeWeb, web } from "../web_classes.ts";
import { agentFrames } from "./stack_text.ts";

/** Returns the text of a URLSearchParams. @throws TypeError: It is none. */
export const searchParamsToString = (params: unknown) => web().searchParamsToString(params);

export type Kind =
  | "array"
  | "plain"
  | "error"
  | "map"
  | "set"
  | "date"
  | "regexp"
  | "promise"
  | "typed_array"
  | "array_buffer"
  | "data_view"
  | "boxed"
  | "weak"
  | "iterator"
  | "search_params"
  | "instance";

// A longer chain is no honest class hierarchy; a proxy can make it endless.
const MAX_CHAIN = 64;

/**
 * Returns the kind of an object. @throws whatever a proxy's `getPrototypeOf` trap throws, and TypeError for a revoked
 * proxy.
 */
export function kindOf(value: object): Kind {
  if (p.isArray(value)) return "array";
  let proto = p.getPrototypeOf(value);
  if (proto === p.ObjectPrototype || proto === null) return "plain";
  if (p.isView(value)) return p.typedArrayTag(value) === undefined ? "data_view" : "typed_array";
  if (p.isError(value)) return "error";
  for (let i = 0; i < MAX_CHAIN && proto !== null && proto !== p.ObjectPrototype; i++) {
    const kind = kindOfIntrinsic(proto);
    if (kind !== null && hasSlots(kind, value)) return kind;
    proto = p.getPrototypeOf(proto);
  }
  return "instance";
}

function kindOfIntrinsic(proto: object): Kind | null {
  switch (proto) {
    case p.ErrorPrototype:
      return "error";
    case p.MapPrototype:
      return "map";
    case p.SetPrototype:
      return "set";
    case p.DatePrototype:
      return "date";
    case p.RegExpPrototype:
      return "regexp";
    case p.PromisePrototype:
      return "promise";
    case p.ArrayBufferPrototype:
      return "array_buffer";
    case p.NumberPrototype:
    case p.StringPrototype:
    case p.BooleanPrototype:
    case p.BigIntPrototype:
    case p.SymbolPrototype:
      return "boxed";
    case p.WeakMapPrototype:
    case p.WeakSetPrototype:
    case p.WeakRefPrototype:
      return "weak";
    case p.IteratorPrototype:
    case p.AsyncIteratorPrototype:
      return "iterator";
    default:
      return proto === madeWeb()?.URLSearchParams.prototype ? "search_params" : null;
  }
}

/** Says whether the object really is what its prototype says (`Object.create(Map.prototype)` is no Map). */
function hasSlots(kind: Kind, value: object): boolean {
  try {
    if (kind === "map") p.mapSize(value);
    else if (kind === "set") p.setSize(value);
    else if (kind === "date") p.dateGetTime(value);
    else if (kind === "regexp") p.regExpFlags[0][1](value);
    else if (kind === "array_buffer") p.arrayBufferByteLength(value);
    else if (kind === "boxed") unbox(value);
    else if (kind === "search_params") searchParamsToString(value);
    return true;
  } catch {
    return false;
  }
}

const unboxers = [p.numberValueOf, p.stringValueOf, p.booleanValueOf, p.bigIntValueOf];

/**
 * Returns the primitive inside a boxed primitive.
 *
 * @throws TypeError when `value` is no boxed primitive.
 */
export function unbox(value: object): string | number | boolean | bigint | symbol {
  for (let i = 0; i < unboxers.length; i++) {
    try {
      return unboxers[i](value);
    } catch { /* not of this kind: try the next */ }
  }
  return p.symbolValueOf(value);
}

/**
 * Returns the `toJSON` to honour, or undefined: an own one, or one of a class between the value and the intrinsic
 * prototypes. One that was put on `Object.prototype`, `Array.prototype`, `Map.prototype` … is not looked at.
 *
 * @throws whatever a getter or trap throws.
 */
export function toJsonOf(value: object): ((key: string) => unknown) | undefined {
  let holder: object | null = value;
  for (let i = 0; i < MAX_CHAIN && holder !== null; i++) {
    if (holder === p.ObjectPrototype || holder === p.ArrayPrototype) return undefined;
    if (i > 0 && kindOfIntrinsic(holder) !== null) return undefined;
    if (p.hasOwn(holder, "toJSON")) {
      const method = (value as { toJSON?: unknown }).toJSON;
      return typeof method === "function" ? method as (key: string) => unknown : undefined;
    }
    holder = p.getPrototypeOf(holder);
  }
  return undefined;
}

/** Returns the flags of a RegExp, by internal slots only. */
export function regExpFlagsOf(value: object): string {
  let flags = "";
  for (let i = 0; i < p.regExpFlags.length; i++) {
    const flag = p.regExpFlags[i];
    if (flag[1](value) === true) flags += flag[0];
  }
  return flags;
}

/** Returns `/source/flags` of a RegExp. */
export function regExpText(value: object): string {
  return `/${p.regExpSource(value)}/${regExpFlagsOf(value)}`;
}

/** Returns the bytes of an ArrayBuffer, DataView or typed array, without copying. */
export function bytesOf(value: object, kind: Kind): Uint8Array {
  if (kind === "array_buffer") return new p.SafeUint8Array(value as ArrayBuffer);
  if (kind === "data_view") {
    return new p.SafeUint8Array(
      p.dataViewBuffer(value),
      p.dataViewByteOffset(value),
      p.dataViewByteLength(value),
    );
  }
  return new p.SafeUint8Array(
    p.typedArrayBuffer(value),
    p.typedArrayByteOffset(value),
    p.typedArrayByteLength(value),
  );
}

/** Returns the own `name` of a function, "" when it has none that is plain text. No getter runs. */
export function functionName(value: object): string {
  try {
    const own = p.getOwnPropertyDescriptor(value, "name");
    return own !== undefined && typeof own.value === "string" ? p.slice(own.value, 0, 100) : "";
  } catch {
    return "";
  }
}

/** Returns the class name of an instance, for messages only: "" when it cannot be told without running agent code. */
export function className(value: object): string {
  try {
    const proto = p.getPrototypeOf(value);
    const own = proto === null ? undefined : p.getOwnPropertyDescriptor(proto, "constructor");
    return own !== undefined && typeof own.value === "function" ? functionName(own.value) : "";
  } catch {
    return "";
  }
}

/** Returns a short text for what was thrown; it reads no getter. */
export function thrownText(thrown: unknown): string {
  try {
    if (typeof thrown === "object" && thrown !== null) {
      const own = p.getOwnPropertyDescriptor(thrown, "message");
      if (own !== undefined && typeof own.value === "string") return p.slice(own.value, 0, 200);
      return "an object was thrown";
    }
    return typeof thrown === "function" ? "a function was thrown" : p.slice(p.toText(thrown), 0, 200);
  } catch {
    return "something unreadable was thrown";
  }
}

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
