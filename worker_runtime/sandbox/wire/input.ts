/**
 * Writes what a script sends to the broker (the input of a tool, the arguments of a discovery request) as JSON text, or
 * what is wrong with it and where.
 *
 * The text is the engine's own. What JSON would mangle is refused rather than sent: a call cannot be taken back.
 *
 * | value | sent as |
 * |---|---|
 * | anything with a `toJSON`, for example a Date | what that returns |
 * | `undefined` | left out of objects, null in arrays, as JSON does everywhere |
 * | class instances | their own enumerable members |
 * | Promise, Map, Set, Error, binary data, RegExp, URLSearchParams, iterators, weak collections | refused |
 * | bigints | integers, of at most 308 digits |
 * | other integers beyond 2^53 - 1, below 1e21 | refused: they may have lost digits |
 * | functions, symbols, NaN, infinities, circles, over 128 levels | refused |
 *
 * @module
 */

import { type Body, sizeOf, utf8 } from "./channel.ts";
import { type Kind, kindOf, thrownText } from "../result/kinds.ts";
import * as p from "../primordials.ts";
import { escapeToken, MAX_DIGITS, MAX_POINTER } from "../result/result_walk.ts";

/**
 * Bounds how many containers may be nested: `MAX_DEPTH` of the broker's `run/payload.py`, which would refuse
 * more.
 */
export const MAX_INPUT_DEPTH = 128;

/**
 * Says why a value cannot be sent. `path` is a JSON Pointer (RFC 6901) into it; `why` goes on after
 * "… cannot be sent: ".
 */
export interface Flaw {
  path: string;
  why: string;
  expected: string;
  received: string;
  hint: string;
}

const MAX_EXACT = 2 ** 53 - 1;
// From here on numbers are written with an exponent: no integers to whoever reads them.
const DIGITS_END = 1e21;

const PLAIN = "Pass plain JSON data: objects, arrays, strings, numbers, booleans and null.";
const JSON_VALUE = "a JSON value";
const BYTES_HINT = "Pass base64 text (bytes.toBase64()) or Array.from(bytes), as the tool wants it.";
const TEXT_HINT = "Pass its text: String(value).";

/** Holds what is said of each kind of value that has no JSON form, and what to do about it. */
const REFUSED = {
  // A null prototype: what a script puts on Object.prototype must not count as one of these.
  __proto__: null,
  promise: ["a Promise", "Await it first: `await` in front of it gives its value."],
  map: ["a Map", "Pass Object.fromEntries(map) or [...map]."],
  set: ["a Set", "Pass [...set]."],
  error: ["an Error", "Pass error.message, or an object of the fields that are wanted."],
  iterator: ["an iterator", "Pass [...iterator]."],
  weak: ["a weak collection or reference", PLAIN],
  regexp: ["a RegExp", TEXT_HINT],
  search_params: ["a URLSearchParams", TEXT_HINT],
  typed_array: ["binary data", BYTES_HINT],
  array_buffer: ["binary data", BYTES_HINT],
  data_view: ["binary data", BYTES_HINT],
} as unknown as Readonly<Partial<Record<Kind, readonly [what: string, hint: string]>>>;

type Members = Record<string | number, unknown>;

/**
 * Returns the JSON of `value` in UTF-8, at most `maxBytes` long.
 *
 * @throws what `refusal` makes of the flaw, if there is one.
 */
export function jsonBody(value: unknown, maxBytes: number, refusal: (flaw: Flaw) => Error): Body {
  let text: string | undefined;
  let thrown: unknown;
  try {
    text = p.jsonStringify(value);
  } catch (error) {
    thrown = error;
  }
  if (text !== undefined && text.length > maxBytes) {
    throw refusal(tooLarge(`at least ${text.length}`, maxBytes));
  }
  // After the text and not before it: a value that has one has an end, and is looked through in its time.
  const open = text === undefined ? new p.SafeSet<object>() : null;
  const flaw = flawIn(value, 0, open);
  if (flaw !== undefined) throw refusal(flaw);
  if (text === undefined) {
    try {
      text = p.jsonStringify(value, asInteger);
    } catch (error) {
      thrown = error;
    }
  }
  if (text === undefined) {
    const received = thrown === undefined ? `a ${typeof value}` : thrownText(thrown);
    throw refusal({ path: "", why: received, expected: JSON_VALUE, received, hint: PLAIN });
  }
  const body = utf8(text);
  // A character has three bytes at most.
  const size = text.length > maxBytes / 3 ? sizeOf(body) : 0;
  if (size > maxBytes) throw refusal(tooLarge(`${size}`, maxBytes));
  return body;
}

/** Has the engine write bigints, of which it throws otherwise. */
function asInteger(_key: string, value: unknown): unknown {
  return typeof value === "bigint" ? p.rawJson(p.toText(value)) : value;
}

function tooLarge(size: string, maxBytes: number): Flaw {
  return {
    path: "",
    why: `it is too large: ${size} bytes of JSON, the maximum is ${maxBytes}`,
    expected: `at most ${maxBytes} bytes of JSON`,
    received: `${size} bytes`,
    hint: "Send less at a time: split the data over several calls.",
  };
}

/**
 * Returns the first flaw in `value`, which is inside of `depth` containers; `open` are those, if circles are to be
 * found.
 */
function flawIn(value: unknown, depth: number, open: Set<object> | null): Flaw | undefined {
  switch (typeof value) {
    case "object":
      return value === null ? undefined : flawInObject(value, depth, open);
    case "number":
      if (mayBeRounded(value)) return rounded(p.toText(value));
      if (p.isFiniteNumber(value)) return undefined;
      return flawAt(
        `${p.toText(value)} is no JSON number`,
        p.toText(value),
        "Pass a finite number, or null.",
      );
    case "bigint":
      // What a script gives bigints to be written as is honoured, as the engine does.
      if (p.hasOwn(p.BigIntPrototype, "toJSON") || p.toText(value).length <= MAX_DIGITS) return undefined;
      return flawOf(`a bigint of over ${MAX_DIGITS} digits`, "Pass String(value).");
    case "function":
      return flawOf("a function", "Call it and pass what it returns, or leave it out.");
    case "symbol":
      return flawOf("a symbol", PLAIN);
    default:
      return undefined;
  }
}

/** Says whether it would be sent as an integer, and is one that JavaScript does not tell from its neighbours. */
function mayBeRounded(value: number): boolean {
  return (value > MAX_EXACT || value < -MAX_EXACT) && value < DIGITS_END && value > -DIGITS_END;
}

function rounded(received: string): Flaw {
  return {
    path: "",
    why: `${received} is beyond 2^53 and may have lost digits`,
    expected: "an exact integer",
    received,
    hint:
      "Pass an exact bigint: write constants as 123n. Ids of results come exact where whoever runs Cellblock sets " +
      'schemas.unwrap to "bigint" for their server. If this very number is meant, pass BigInt(value).',
  };
}

function flawInObject(value: object, depth: number, open: Set<object> | null): Flaw | undefined {
  if (typeof (value as Members).toJSON === "function") return undefined;
  const kind = kindOf(value);
  const refused = REFUSED[kind];
  if (refused !== undefined) return flawOf(refused[0], refused[1]);
  if (kind === "boxed") return undefined;
  if (open !== null && p.setHas(open, value)) {
    return flawOf("a circular reference", "Leave out what refers back to an object around it.");
  }
  if (depth >= MAX_INPUT_DEPTH) {
    const most = `${MAX_INPUT_DEPTH} levels`;
    return {
      path: "",
      why: `it is nested deeper than ${most}`,
      expected: `at most ${most} of nesting`,
      received: `more than ${most}`,
      hint: "Pass flatter data.",
    };
  }
  if (open !== null) p.setAdd(open, value);
  const keys = kind === "array" ? null : p.objectKeys(value);
  const flaw = flawWithin(value as Members, keys, depth, open);
  if (open !== null) p.setDelete(open, value);
  return flaw;
}

/**
 * Returns the first flaw in the members of an object by these keys, or, where there are none, in the elements of an
 * array.
 */
function flawWithin(
  value: Members,
  keys: string[] | null,
  depth: number,
  open: Set<object> | null,
): Flaw | undefined {
  let key: string | number = 0;
  try {
    const length = keys === null ? value.length as number : keys.length;
    for (let at = 0; at < length; at++) {
      key = keys === null ? at : keys[at];
      const member = value[key];
      if (typeof member === "string" || typeof member === "boolean") continue;
      const flaw = flawIn(member, depth + 1, open);
      if (flaw !== undefined) return below(flaw, key);
    }
  } catch (thrown) {
    return below(flawAt(`reading it threw: ${thrownText(thrown)}`, "what cannot be read", PLAIN), key);
  }
  return undefined;
}

/** Puts a key before a flaw's path, on the way back up: so looking through a value without a flaw keeps no path. */
function below(flaw: Flaw, key: string | number): Flaw {
  flaw.path = `/${escapeToken(p.toText(key))}${flaw.path}`;
  if (flaw.path.length > MAX_POINTER) flaw.path = `${p.slice(flaw.path, 0, MAX_POINTER)}…`;
  return flaw;
}

function flawOf(what: string, hint: string): Flaw {
  return flawAt(`${what} has no JSON form`, what, hint);
}

function flawAt(why: string, received: string, hint: string): Flaw {
  return { path: "", why, expected: JSON_VALUE, received, hint };
}
