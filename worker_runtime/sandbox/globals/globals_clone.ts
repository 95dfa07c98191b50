/**
 * Makes `structuredClone` for the language's own types, as the HTML standard has it.
 *
 * Deno's own is not exposed: a forged object makes it revive Blobs and cryptographic keys, or ends the process
 * with a panic. This one knows no platform object at all, and has no `transfer` option.
 *
 * @module
 */

import { bytesOf, className, kindOf, mapPairs, regExpFlagsOf, setMembers, unbox } from "../result/kinds.ts";
import * as p from "../primordials.ts";
import { web } from "../web_classes.ts";

const SafeDate = Date;
const SafeRegExp = RegExp;
const SafeError = Error;
const SafeDataView = DataView;
const SafeObject = Object;
const copyBuffer = p.uncurryThis(ArrayBuffer.prototype.slice);
// deno-lint-ignore no-explicit-any
type Constructor = new (...args: any[]) => object;

const errorClasses: Record<string, Constructor> = {
  __proto__: null as never,
  EvalError,
  RangeError,
  ReferenceError,
  SyntaxError,
  TypeError,
  URIError,
};
const viewClasses: Record<string, Constructor> = {
  __proto__: null as never,
  BigInt64Array,
  BigUint64Array,
  Float16Array: (globalThis as unknown as { Float16Array: Constructor }).Float16Array,
  Float32Array,
  Float64Array,
  Int8Array,
  Int16Array,
  Int32Array,
  Uint8Array,
  Uint8ClampedArray,
  Uint16Array,
  Uint32Array,
};

type Seen = Map<object, object>;

/**
 * Holds the global `structuredClone`. @throws DOMException "DataCloneError" for what cannot be cloned, and what
 * getters throw.
 */
export const { structuredClone } = {
  structuredClone(value: unknown, options?: { transfer?: unknown }): unknown {
    if (options !== undefined && options !== null && options.transfer !== undefined) {
      throw new TypeError("structuredClone: the transfer option is not supported");
    }
    return clone(value, new p.SafeMap());
  },
};

function clone(value: unknown, seen: Seen): unknown {
  if (typeof value === "symbol") refuse("a symbol");
  if (typeof value === "function") refuse("a function");
  if (typeof value !== "object" || value === null) return value;
  const known = p.mapGet(seen, value);
  if (known !== undefined) return known;
  const copy = emptyCopy(value, seen);
  if (p.mapGet(seen, value) === undefined) p.mapSet(seen, value, copy);
  fill(copy, value, seen);
  return copy;
}

function refuse(what: string): never {
  throw new (web().DOMException)(`${what} could not be cloned.`, "DataCloneError");
}

/**
 * Returns the copy of an object before its members: it must be known before they are cloned, or a cycle would not end.
 */
function emptyCopy(value: object, seen: Seen): object {
  const kind = kindOf(value);
  switch (kind) {
    case "array": {
      const copy: unknown[] = [];
      copy.length = (value as unknown[]).length;
      return copy;
    }
    case "map":
      return new p.SafeMap();
    case "set":
      return new p.SafeSet();
    case "date":
      return new SafeDate(p.dateGetTime(value));
    case "regexp":
      return new SafeRegExp(p.regExpSource(value), regExpFlagsOf(value));
    case "boxed": {
      const primitive = unbox(value);
      return typeof primitive === "symbol" ? refuse("a symbol") : SafeObject(primitive);
    }
    case "error":
      return errorCopy(value);
    case "array_buffer":
      return copyBuffer(value, 0);
    case "data_view":
    case "typed_array":
      return viewCopy(value, seen);
    case "promise":
    case "weak":
    case "iterator":
    case "search_params":
      return refuse(`a ${className(value) || kind}`);
    default:
      return {};
  }
}

function errorCopy(value: object): object {
  const { name, message, stack } = value as Error;
  const copy = new (errorClasses[p.toText(name)] ?? SafeError)();
  const members = { message, stack } as Record<string, unknown>;
  const keys = ["message", "stack"];
  for (let i = 0; i < keys.length; i++) {
    if (members[keys[i]] !== undefined) hide(copy, keys[i], p.toText(members[keys[i]]));
  }
  return copy;
}

function hide(target: object, key: string, value: unknown): void {
  p.define(target, key, value);
  p.defineProperty(target, key, { __proto__: null, enumerable: false } as PropertyDescriptor);
}

function viewCopy(value: object, seen: Seen): object {
  const tag = p.typedArrayTag(value);
  const bytes = bytesOf(value, tag === undefined ? "data_view" : "typed_array");
  const offset = p.typedArrayByteOffset(bytes);
  // Views of one buffer stay views of one buffer.
  const buffer = clone(p.typedArrayBuffer(bytes), seen);
  if (tag === undefined) {
    return new SafeDataView(buffer as ArrayBuffer, offset, p.typedArrayByteLength(bytes));
  }
  return new viewClasses[tag](buffer, offset, p.typedArrayLength(value));
}

function fill(copy: object, value: object, seen: Seen): void {
  switch (kindOf(copy)) {
    case "map": {
      const entries = mapPairs(value);
      for (let i = 0; i < entries.length; i++) {
        p.mapSet(copy, clone(entries[i][0], seen), clone(entries[i][1], seen));
      }
      return;
    }
    case "set": {
      const members = setMembers(value);
      for (let i = 0; i < members.length; i++) p.setAdd(copy, clone(members[i], seen));
      return;
    }
    case "error":
      if (p.hasOwn(value, "cause")) hide(copy, "cause", clone((value as Error).cause, seen));
      return;
    case "array":
    case "plain": {
      const keys = p.objectKeys(value);
      for (let i = 0; i < keys.length; i++) {
        p.define(copy, keys[i], clone((value as Record<string, unknown>)[keys[i]], seen));
      }
    }
  }
}
