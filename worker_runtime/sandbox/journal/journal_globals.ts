/**
 * Makes what a journaled run's script reads time and randomness from, in the place of the engine's own; and weak
 * references that hold, as when one breaks is the collector's whim. Randomness is ChaCha20 (RFC 8439) keyed with the
 * run's seed, so that a replay draws the same.
 *
 * Each stands where the engine's stood, with its name and its attributes.
 *
 * @module
 */

import * as p from "../primordials.ts";

const Words = Uint32Array;
const BLOCK_BYTES = 64;
const DOUBLE_ROUNDS = 10;
const { imul } = Math;
const parseHex = Number.parseInt;

/** Gives the next byte of the key stream. */
export type NextByte = () => number;

/** Makes the key stream of a seed of 64 hex digits, byte by byte, from its beginning. */
export function keyStream(seed: string): NextByte {
  const state = new Words(16);
  const constants = [0x61707865, 0x3320646e, 0x79622d32, 0x6b206574];
  for (let index = 0; index < 4; index++) state[index] = constants[index];
  for (let word = 0; word < 8; word++) {
    let value = 0;
    for (let byte = 3; byte >= 0; byte--) {
      const at = 8 * word + 2 * byte;
      value = imul(value, 256) | parseHex(p.slice(seed, at, at + 2), 16);
    }
    state[4 + word] = value;
  }
  const block = new Words(16);
  let at = BLOCK_BYTES;
  return () => {
    if (at === BLOCK_BYTES) {
      mix(state, block);
      at = 0;
    }
    const byte = (block[at >> 2] >>> (8 * (at & 3))) & 255;
    at++;
    return byte;
  };
}

/** Makes the next block of the key stream. The counter has 64 bits: no run comes to its end. */
function mix(state: Uint32Array, block: Uint32Array): void {
  for (let index = 0; index < 16; index++) block[index] = state[index];
  for (let round = 0; round < DOUBLE_ROUNDS; round++) {
    quarter(block, 0, 4, 8, 12);
    quarter(block, 1, 5, 9, 13);
    quarter(block, 2, 6, 10, 14);
    quarter(block, 3, 7, 11, 15);
    quarter(block, 0, 5, 10, 15);
    quarter(block, 1, 6, 11, 12);
    quarter(block, 2, 7, 8, 13);
    quarter(block, 3, 4, 9, 14);
  }
  for (let index = 0; index < 16; index++) block[index] += state[index];
  state[12]++;
  if (state[12] === 0) state[13]++;
}

function quarter(x: Uint32Array, a: number, b: number, c: number, d: number): void {
  x[a] += x[b];
  x[d] = turned(x[d] ^ x[a], 16);
  x[c] += x[d];
  x[b] = turned(x[b] ^ x[c], 12);
  x[a] += x[b];
  x[d] = turned(x[d] ^ x[a], 8);
  x[c] += x[d];
  x[b] = turned(x[b] ^ x[c], 7);
}

function turned(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}

// deno-lint-ignore no-explicit-any
type Constructor = new (...args: any[]) => object;

/** Holds the globals that are replaced, each by its name. */
interface World {
  Date: Constructor;
  Math: object;
  Intl: { DateTimeFormat: { prototype: Record<"format" | "formatToParts", unknown> } };
  performance: object;
  crypto: object;
  WeakRef: Constructor;
  FinalizationRegistry: { prototype: Record<"register", unknown> };
  Temporal?: unknown;
}

const SafeTypeError = TypeError;
const SafeDOMException = DOMException;
const construct = Reflect.construct;
const dateToText = p.uncurryThis(Date.prototype.toString);
const MAX_RANDOM_BYTES = 65536;
const numberToHex = p.uncurryThis(Number.prototype.toString);

/**
 * Replaces the engine's sources of time and randomness. `now` reads the journal's clock, in whole milliseconds since
 * 1970; `since` is its first reading.
 *
 * `Temporal` is gone unless it is wanted: to touch it takes longer than all of the rest.
 */
export function replaceSources(
  now: () => number,
  since: number,
  random: NextByte,
  temporal: boolean,
  world = globalThis as unknown as World,
): void {
  replaceDate(world, now);
  if (temporal) replaceTemporal(now);
  else p.deleteProperty(world, "Temporal");
  replaceFormatter(world, now);
  replace(world.performance, "now", { now: () => now() - since }.now);
  replaceRandom(world, random);
  replaceWeak(world);
}

/** Goes along the way of `replaceSources` in a world of no use, so that V8 has compiled it. */
export function rehearseSources(): void {
  const world = {
    Date: class {},
    Math: {},
    Intl: {
      DateTimeFormat: class {
        get format() {
          return "";
        }
        formatToParts() {}
      },
    },
    performance: {},
    crypto: {},
    WeakRef: class {},
    FinalizationRegistry: class {
      register() {}
    },
  };
  replaceSources(() => 0, 0, () => 0, false, world as unknown as World);
}

function replace(holder: object, name: PropertyKey, value: unknown): void {
  p.defineProperty(holder, name, { __proto__: null, value } as PropertyDescriptor);
}

function replaceDate(world: World, now: () => number): void {
  const NativeDate = world.Date as unknown as DateConstructor;
  const JournalDate = function Date(this: unknown, ...args: unknown[]): unknown {
    if (new.target === undefined) return dateToText(new NativeDate(now()));
    return construct(NativeDate, args.length === 0 ? [now()] : args, new.target);
  };
  replaceClass(world, "Date", JournalDate);
  replace(JournalDate, "now", { now: () => now() }.now);
}

/** Puts a constructor in the place of another: same statics, same prototype, same length. */
function replaceClass(world: World, name: "Date" | "WeakRef", made: object): void {
  const native = world[name];
  const keys = p.ownKeys(native);
  for (let index = 0; index < keys.length; index++) {
    p.defineProperty(made, keys[index], p.getOwnPropertyDescriptor(native, keys[index])!);
  }
  replace(native.prototype, "constructor", made);
  replace(world, name, made);
}

interface Native {
  Now: { timeZoneId(): string };
  Instant: {
    fromEpochMilliseconds(ms: number): object;
    prototype: { toZonedDateTimeISO(zone: unknown): object };
  };
  ZonedDateTime: { prototype: Record<"toPlainDateTime" | "toPlainDate" | "toPlainTime", () => object> };
}

function replaceTemporal(now: () => number): void {
  const { Now, Instant, ZonedDateTime } = (globalThis as unknown as { Temporal: Native }).Temporal;
  const { fromEpochMilliseconds } = Instant;
  const { timeZoneId } = Now;
  const zoned = p.uncurryThis(Instant.prototype.toZonedDateTimeISO);
  const toPlainDateTime = p.uncurryThis(ZonedDateTime.prototype.toPlainDateTime);
  const toPlainDate = p.uncurryThis(ZonedDateTime.prototype.toPlainDate);
  const toPlainTime = p.uncurryThis(ZonedDateTime.prototype.toPlainTime);
  const instant = () => p.apply(fromEpochMilliseconds, Instant, [now()]) as object;
  const here = (zone: unknown) => zoned(instant(), zone === undefined ? timeZoneId() : zone);
  const made = {
    instant: () => instant(),
    zonedDateTimeISO: (zone?: unknown) => here(zone),
    plainDateTimeISO: (zone?: unknown) => toPlainDateTime(here(zone)),
    plainDateISO: (zone?: unknown) => toPlainDate(here(zone)),
    plainTimeISO: (zone?: unknown) => toPlainTime(here(zone)),
  };
  const names = p.objectKeys(made);
  for (let index = 0; index < names.length; index++) {
    replace(Now, names[index], made[names[index] as keyof typeof made]);
  }
}

/** Has `format` and `formatToParts` take a date that is not given for now, by the journal's clock. */
function replaceFormatter(world: World, now: () => number): void {
  // Not at the top: the first touch of it costs a worker's boot milliseconds.
  const dateFormatter = world.Intl.DateTimeFormat.prototype;
  const property = p.getOwnPropertyDescriptor(dateFormatter, "format")!;
  const formatOf = p.uncurryThis(property.get!);
  const toParts = p.uncurryThis(dateFormatter.formatToParts as (...args: unknown[]) => unknown);
  const bound = new WeakMap<object, unknown>();
  const known = p.uncurryThis(WeakMap.prototype.get);
  const keep = p.uncurryThis(WeakMap.prototype.set);
  const made = {
    get format(): unknown {
      const native = formatOf(this) as (date: unknown) => string;
      const before = known(bound, native);
      if (before !== undefined) return before;
      const format = (date?: unknown) => native(date === undefined ? now() : date);
      keep(bound, native, format);
      return format;
    },
    formatToParts(date?: unknown): unknown {
      return toParts(this, (date === undefined ? now() : date) as number);
    },
  };
  p.defineProperty(dateFormatter, "format", {
    __proto__: null,
    get: p.getOwnPropertyDescriptor(made, "format")!.get,
  } as PropertyDescriptor);
  replace(dateFormatter, "formatToParts", made.formatToParts);
}

function replaceRandom(world: World, next: NextByte): void {
  replace(
    world.Math,
    "random",
    {
      random(): number {
        const low = next() | (next() << 8) | (next() << 16);
        const high = next() | (next() << 8) | (next() << 16) | ((next() & 31) << 24);
        return (high * 2 ** 24 + low) / 2 ** 53;
      },
    }.random,
  );
  const getRandomValues = (array: unknown) => {
    const kind = p.typedArrayTag(array);
    if (kind === undefined || p.startsWith(kind, "Float")) {
      throw new SafeDOMException("getRandomValues needs an integer typed array", "TypeMismatchError");
    }
    const size = p.typedArrayByteLength(array);
    if (size > MAX_RANDOM_BYTES) {
      throw new SafeDOMException(`${size} bytes are over ${MAX_RANDOM_BYTES}`, "QuotaExceededError");
    }
    const bytes = new p.SafeUint8Array(
      p.typedArrayBuffer(array) as ArrayBuffer,
      p.typedArrayByteOffset(array),
      size,
    );
    for (let index = 0; index < size; index++) bytes[index] = next();
    return array;
  };
  const randomUUID = () => {
    let text = "";
    for (let index = 0; index < 16; index++) {
      let byte = next();
      if (index === 6) byte = (byte & 15) | 64;
      if (index === 8) byte = (byte & 63) | 128;
      if (index === 4 || index === 6 || index === 8 || index === 10) text += "-";
      text += p.slice(numberToHex(byte + 256, 16), 1);
    }
    return text;
  };
  replace(world.crypto, "getRandomValues", getRandomValues);
  replace(world.crypto, "randomUUID", randomUUID);
}

/** Has weak references and registries hold their objects until the run's end. */
function replaceWeak(world: World): void {
  const NativeWeakRef = world.WeakRef;
  const held = new p.SafeSet<unknown>();
  const JournalWeakRef = function WeakRef(this: unknown, target: unknown): unknown {
    if (new.target === undefined) throw new SafeTypeError("Constructor WeakRef requires 'new'");
    const made = construct(NativeWeakRef, [target], new.target);
    p.setAdd(held, target);
    return made;
  };
  replaceClass(world, "WeakRef", JournalWeakRef);
  const registry = world.FinalizationRegistry.prototype;
  const register = p.uncurryThis(registry.register as (...args: unknown[]) => void);
  replace(
    registry,
    "register",
    {
      register(this: unknown, target: unknown, value: unknown, token?: unknown): void {
        if (token === undefined) register(this, target, value);
        else register(this, target, value, token);
        p.setAdd(held, target);
      },
    }.register,
  );
}
