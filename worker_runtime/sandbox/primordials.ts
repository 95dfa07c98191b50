/**
 * Captures intrinsics before agent code runs.
 *
 * Agent code may replace every method of every built-in. What runs after it (serialising console arguments,
 * reading the result, keeping timers) uses only what is captured here, and keeps to these rules: no `for…of`,
 * array spread or array destructuring (they look up `Symbol.iterator`), no write to a property that is not
 * already an own one (a setter on `Object.prototype` would run), no method call on a value.
 */

// deno-lint-ignore no-explicit-any
type AnyFunction = (...args: any[]) => any;

const { bind, call } = Function.prototype;

/** Turns a method into a function that takes `this` first and looks nothing up when called. */
export const uncurryThis: <F extends AnyFunction>(
  method: F,
) => (self: unknown, ...args: Parameters<F>) => ReturnType<F> = bind.bind(call as AnyFunction) as never;

export const {
  apply,
  construct,
  defineProperty,
  getOwnPropertyDescriptor,
  getPrototypeOf,
  ownKeys,
  setPrototypeOf,
  deleteProperty,
} = Reflect;
export const { getOwnPropertySymbols, hasOwn, keys: objectKeys } = Object;
export const { isArray } = Array;
export const { isView } = ArrayBuffer;
export const { isError } = Error as unknown as { isError(value: unknown): value is Error };
export const { isFinite: isFiniteNumber, isSafeInteger } = Number;
export const { stringify: jsonStringify } = JSON;
/** Makes what `jsonStringify` writes as this text, which is JSON of a primitive. */
export const { rawJSON: rawJson } = JSON as unknown as { rawJSON(text: string): object };

export const SafeMap = Map;
export const SafeSet = Set;
export const SafeUint8Array = Uint8Array;
export const toText = String;
export const toNumber = Number;
export const toBigInt = BigInt;
export const errorToText = uncurryThis(Error.prototype.toString);

export const ArrayPrototype = Array.prototype;
export const ArrayBufferPrototype = ArrayBuffer.prototype;
export const BigIntPrototype = BigInt.prototype;
export const BooleanPrototype = Boolean.prototype;
export const DatePrototype = Date.prototype;
export const ErrorPrototype = Error.prototype;
export const MapPrototype = Map.prototype;
export const NumberPrototype = Number.prototype;
export const ObjectPrototype = Object.prototype;
export const PromisePrototype = Promise.prototype;
export const RegExpPrototype = RegExp.prototype;
export const SetPrototype = Set.prototype;
export const StringPrototype = String.prototype;
export const SymbolPrototype = Symbol.prototype;
export const WeakMapPrototype = WeakMap.prototype;
export const WeakRefPrototype = WeakRef.prototype;
export const WeakSetPrototype = WeakSet.prototype;
export const IteratorPrototype = Iterator.prototype;
export const AsyncIteratorPrototype = getPrototypeOf(
  getPrototypeOf(getPrototypeOf((async function* () {}).prototype)!)!,
)!;
const TypedArrayPrototype = getPrototypeOf(Uint8Array.prototype)!;

function getter(prototype: object, name: PropertyKey): (self: unknown) => unknown {
  return uncurryThis(getOwnPropertyDescriptor(prototype, name)!.get!);
}

export const sort = uncurryThis(ArrayPrototype.sort);
/**
 * Copies an array as `toSpliced(array, 0, 0)` does: without `Symbol.species`, each element read once, holes as
 * undefined.
 */
export const toSpliced = uncurryThis(ArrayPrototype.toSpliced);
export const bigIntValueOf = uncurryThis(BigIntPrototype.valueOf);
export const booleanValueOf = uncurryThis(BooleanPrototype.valueOf);
export const dateGetTime = uncurryThis(DatePrototype.getTime);
export const dateToIso = uncurryThis(DatePrototype.toISOString);
export const mapForEach = uncurryThis(MapPrototype.forEach);
export const mapGet = uncurryThis(MapPrototype.get);
export const mapSet = uncurryThis(MapPrototype.set);
export const mapDelete = uncurryThis(MapPrototype.delete);
export const mapSize = getter(MapPrototype, "size") as (self: unknown) => number;
export const numberValueOf = uncurryThis(NumberPrototype.valueOf);
export const setAdd = uncurryThis(SetPrototype.add);
export const setDelete = uncurryThis(SetPrototype.delete);
export const setForEach = uncurryThis(SetPrototype.forEach);
export const setHas = uncurryThis(SetPrototype.has);
export const setSize = getter(SetPrototype, "size") as (self: unknown) => number;
export const stringValueOf = uncurryThis(StringPrototype.valueOf);
export const charCodeAt = uncurryThis(StringPrototype.charCodeAt);
export const indexOf = uncurryThis(StringPrototype.indexOf);
export const slice = uncurryThis(StringPrototype.slice);
export const startsWith = uncurryThis(StringPrototype.startsWith);
export const isWellFormed = uncurryThis(StringPrototype.isWellFormed);
export const toWellFormed = uncurryThis(StringPrototype.toWellFormed);
export const symbolValueOf = uncurryThis(SymbolPrototype.valueOf);
export const arrayBufferByteLength = getter(ArrayBufferPrototype, "byteLength") as (self: unknown) => number;
export const dataViewBuffer = getter(DataView.prototype, "buffer") as (self: unknown) => ArrayBuffer;
export const dataViewByteLength = getter(DataView.prototype, "byteLength") as (self: unknown) => number;
export const dataViewByteOffset = getter(DataView.prototype, "byteOffset") as (self: unknown) => number;
export const typedArrayBuffer = getter(TypedArrayPrototype, "buffer") as (self: unknown) => ArrayBuffer;
export const typedArrayByteLength = getter(TypedArrayPrototype, "byteLength") as (self: unknown) => number;
export const typedArrayByteOffset = getter(TypedArrayPrototype, "byteOffset") as (self: unknown) => number;
export const typedArrayLength = getter(TypedArrayPrototype, "length") as (self: unknown) => number;
/** Returns the typed array's class name, or undefined for anything else; it never throws. */
export const typedArrayTag = getter(TypedArrayPrototype, Symbol.toStringTag) as (
  self: unknown,
) => string | undefined;
export const toBase64 = uncurryThis(
  (Uint8Array.prototype as unknown as { toBase64(): string }).toBase64,
);
export const regExpSource = getter(RegExpPrototype, "source") as (self: unknown) => string;
/**
 * Captures each part of a regular expression's flags, as `RegExp.prototype.flags` looks them up by name:
 * `[letter, getter]…`.
 */
export const regExpFlags: readonly (readonly [string, (self: unknown) => unknown])[] = [
  ["d", getter(RegExpPrototype, "hasIndices")],
  ["g", getter(RegExpPrototype, "global")],
  ["i", getter(RegExpPrototype, "ignoreCase")],
  ["m", getter(RegExpPrototype, "multiline")],
  ["s", getter(RegExpPrototype, "dotAll")],
  ["u", getter(RegExpPrototype, "unicode")],
  ["v", getter(RegExpPrototype, "unicodeSets")],
  ["y", getter(RegExpPrototype, "sticky")],
];

/** Defines an own data property, whatever setters the prototypes carry. */
export function define(target: object, key: PropertyKey, value: unknown): void {
  defineProperty(target, key, {
    __proto__: null,
    value,
    writable: true,
    enumerable: true,
    configurable: true,
  } as PropertyDescriptor);
}

/** Appends to an array without calling `push` or a setter on `Array.prototype`. */
export function append<T>(array: T[], value: T): void {
  define(array, array.length, value);
}
