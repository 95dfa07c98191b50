/**
 * Says what becomes of objects that JSON has no form for, in a script's result (see result.ts): each is written in the
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

import {
  bytesOf,
  className,
  type Kind,
  regExpText,
  searchParamsToString,
  thrownText,
  unbox,
} from "./kinds.ts";
import * as p from "../primordials.ts";
import { copyOf, expect, type Members, report, type Walk } from "./result_walk.ts";
import { isSuppressedError, mapPairs, read, setMembers } from "./serialize_kinds.ts";

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
