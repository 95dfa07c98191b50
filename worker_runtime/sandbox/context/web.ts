/**
 * Classes and functions of the web, made of the context's own language: a new context has none. What takes a table or
 * a parser (URLs, encodings, random bytes) asks the realm around it, in strings.
 *
 * @module
 */

import * as p from "../primordials.ts";
import { defineEvents } from "./events.ts";
import { takeOuter } from "./outer.ts";

/** The realm around this context. */
export const outer = takeOuter();

const { parse, stringify } = JSON;
const { fromBase64 } = Uint8Array as unknown as { fromBase64(text: string): Uint8Array };
const setBytes = p.uncurryThis<(source: Uint8Array, offset: number) => void>(Uint8Array.prototype.set);
const isWellFormed = p.uncurryThis(String.prototype.isWellFormed);
const SafeTypeError = TypeError;
const SafeRangeError = RangeError;
const iterator: typeof Symbol.iterator = Symbol.iterator;
const { toStringTag } = Symbol;

/** Characters that are encoded at once. */
const PIECE = 1 << 15;

/** Bytes that are decoded at once: of a multiple of three the base64 has no padding. */
const BYTES = 3 << 15;

/** Puts a name on `globalThis`, or a tag on a class's instances. */
function place(target: object, name: PropertyKey, value: unknown): void {
  p.defineProperty(target, name, {
    __proto__: null,
    value,
    writable: true,
    configurable: true,
  } as PropertyDescriptor);
}

function bytesFrom(value: unknown): Uint8Array {
  if (p.isView(value)) {
    const typed = p.typedArrayTag(value) !== undefined;
    return new p.SafeUint8Array(
      typed ? p.typedArrayBuffer(value) : p.dataViewBuffer(value),
      typed ? p.typedArrayByteOffset(value) : p.dataViewByteOffset(value),
      typed ? p.typedArrayByteLength(value) : p.dataViewByteLength(value),
    );
  }
  try {
    p.arrayBufferByteLength(value);
  } catch {
    throw new SafeTypeError("The input is no ArrayBuffer and no view of one");
  }
  return new p.SafeUint8Array(value as ArrayBuffer);
}

/** Returns where the piece of a text that begins here ends: not within a pair. */
function pieceEnd(text: string, start: number): number {
  const end = start + PIECE;
  const unit = end < text.length ? p.charCodeAt(text, end - 1) : 0;
  return unit >= 0xd800 && unit < 0xdc00 ? end + 1 : end;
}

class TextEncoder {
  get encoding(): string {
    return "utf-8";
  }
  encode(input: unknown = ""): Uint8Array {
    const text = p.toText(input);
    if (text.length <= PIECE) return fromBase64(outer.encode(text));
    // In pieces: the whole would be in memory three times.
    let size = 0;
    for (let at = 0; at < text.length; at = pieceEnd(text, at)) {
      size += outer.size(p.slice(text, at, pieceEnd(text, at)));
    }
    const bytes = new p.SafeUint8Array(size);
    let filled = 0;
    for (let at = 0; at < text.length; at = pieceEnd(text, at)) {
      const piece = fromBase64(outer.encode(p.slice(text, at, pieceEnd(text, at))));
      setBytes(bytes, piece, filled);
      filled += p.typedArrayLength(piece);
    }
    return bytes;
  }
  encodeInto(source: unknown, destination: Uint8Array): { read: number; written: number } {
    const text = p.toText(source);
    const room = p.typedArrayLength(destination);
    let read = 0;
    let written = 0;
    while (read < text.length) {
      const unit = p.charCodeAt(text, read);
      const pair = unit >= 0xd800 && unit < 0xdc00 && isWellFormed(p.slice(text, read, read + 2));
      const size = unit < 0x80 ? 1 : unit < 0x800 ? 2 : pair ? 4 : 3;
      if (written + size > room) break;
      written += size;
      read += pair ? 2 : 1;
    }
    setBytes(destination, fromBase64(outer.encode(p.slice(text, 0, read))), 0);
    return { read, written };
  }
}

class TextDecoder {
  /** The outer decoder that has taken part of a stream. */
  #begun: number | undefined;
  #encoding: string;
  #fatal: boolean;
  #ignoreBOM: boolean;
  constructor(label: unknown = "utf-8", options: { fatal?: unknown; ignoreBOM?: unknown } = {}) {
    this.#fatal = !!options?.fatal;
    this.#ignoreBOM = !!options?.ignoreBOM;
    this.#encoding = outer.encoding(p.toText(label));
    if (this.#encoding === "") {
      throw new SafeRangeError(`The encoding label provided ('${label}') is invalid.`);
    }
  }
  get encoding(): string {
    return this.#encoding;
  }
  get fatal(): boolean {
    return this.#fatal;
  }
  get ignoreBOM(): boolean {
    return this.#ignoreBOM;
  }
  decode(input?: unknown, options: { stream?: unknown } = {}): string {
    const bytes = input === undefined ? new p.SafeUint8Array(0) : bytesFrom(input);
    const stream = !!options?.stream;
    const decoder = this.#begun ?? outer.decoder(this.#encoding, this.#fatal, this.#ignoreBOM);
    this.#begun = stream ? decoder : undefined;
    const buffer = p.typedArrayBuffer(bytes);
    const start = p.typedArrayByteOffset(bytes);
    const length = p.typedArrayLength(bytes);
    let text = "";
    // In pieces: the whole would be in memory three times.
    for (let at = 0, more = true; more; at += BYTES) {
      more = at + BYTES < length;
      const piece = new p.SafeUint8Array(buffer, start + at, more ? BYTES : length - at);
      const said = outer.decode(decoder, p.toBase64(piece), stream || more);
      if (said[0] !== "=") {
        if (!stream && more) outer.decode(decoder, "", false);
        throw new SafeTypeError(p.slice(said, 1));
      }
      text += p.slice(said, 1);
    }
    return text;
  }
}

type Pair = [name: string, value: string];
type Callback = (value: string, name: string, params: URLSearchParams) => void;

class URLSearchParams {
  #pairs: Pair[] = [];
  #changed: ((query: string) => void) | undefined;
  constructor(init: unknown = "") {
    if (typeof init !== "object" && typeof init !== "function" || init === null) {
      const text = p.toText(init);
      this.#pairs = parse(outer.pairs(text[0] === "?" ? p.slice(text, 1) : text));
      return;
    }
    if ((init as Partial<Iterable<unknown>>)[iterator] === undefined) {
      const names = p.ownKeys(init);
      for (let i = 0; i < names.length; i++) {
        if (!p.getOwnPropertyDescriptor(init, names[i])?.enumerable) continue;
        this.#append(p.toText(names[i]), p.toText((init as Record<PropertyKey, unknown>)[names[i]]));
      }
      return;
    }
    for (const pair of init as Iterable<Iterable<unknown>>) {
      const two = [...pair];
      if (two.length !== 2) {
        throw new SafeTypeError("URLSearchParams: each pair must be of a name and a value");
      }
      this.#append(p.toText(two[0]), p.toText(two[1]));
    }
  }
  /** The live parameters of a URL: `changed` hears each new query; the function it gives takes one. */
  static of(query: string, changed: (query: string) => void): [URLSearchParams, (query: string) => void] {
    const made = new URLSearchParams(query);
    made.#changed = changed;
    return [made, (text) => made.#pairs = parse(outer.pairs(text))];
  }
  #append(name: string, value: string): void {
    p.append(this.#pairs, [p.toWellFormed(name), p.toWellFormed(value)]);
  }
  #keep(wanted: (pair: Pair) => boolean): void {
    const kept: Pair[] = [];
    for (let i = 0; i < this.#pairs.length; i++) if (wanted(this.#pairs[i])) p.append(kept, this.#pairs[i]);
    this.#pairs = kept;
  }
  #update(): void {
    this.#changed?.(outer.query(stringify(this.#pairs)));
  }
  #of(name: unknown): string[] {
    const wanted = p.toWellFormed(p.toText(name));
    const found: string[] = [];
    for (let i = 0; i < this.#pairs.length; i++) {
      if (this.#pairs[i][0] === wanted) p.append(found, this.#pairs[i][1]);
    }
    return found;
  }
  append(name: unknown, value: unknown): void {
    this.#append(p.toText(name), p.toText(value));
    this.#update();
  }
  delete(name: unknown, value?: unknown): void {
    const [key, one] = [p.toText(name), value === undefined ? undefined : p.toText(value)];
    this.#keep((pair) => pair[0] !== key || one !== undefined && pair[1] !== one);
    this.#update();
  }
  getAll(name: unknown): string[] {
    return this.#of(name);
  }
  get(name: unknown): string | null {
    return this.#of(name)[0] ?? null;
  }
  has(name: unknown, value?: unknown): boolean {
    const found = this.#of(name);
    if (value === undefined) return found.length > 0;
    const wanted = p.toText(value);
    for (let i = 0; i < found.length; i++) if (found[i] === wanted) return true;
    return false;
  }
  set(name: unknown, value: unknown): void {
    const [key, text] = [p.toWellFormed(p.toText(name)), p.toWellFormed(p.toText(value))];
    let placed = false;
    this.#keep((pair) => {
      if (pair[0] !== key) return true;
      const first = !placed;
      placed = true;
      if (first) pair[1] = text;
      return first;
    });
    if (!placed) this.#append(key, text);
    this.#update();
  }
  sort(): void {
    p.sort(this.#pairs, (a: Pair, b: Pair) => a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);
    this.#update();
  }
  forEach(callback: Callback, thisArg?: unknown): void {
    for (let i = 0; i < this.#pairs.length; i++) {
      p.apply(callback, thisArg, [this.#pairs[i][1], this.#pairs[i][0], this]);
    }
  }
  *entries(): Generator<Pair> {
    for (let i = 0; i < this.#pairs.length; i++) yield [this.#pairs[i][0], this.#pairs[i][1]];
  }
  *keys(): Generator<string> {
    for (let i = 0; i < this.#pairs.length; i++) yield this.#pairs[i][0];
  }
  *values(): Generator<string> {
    for (let i = 0; i < this.#pairs.length; i++) yield this.#pairs[i][1];
  }
  get size(): number {
    return this.#pairs.length;
  }
  toString(): string {
    return outer.query(stringify(this.#pairs));
  }
}
const liveParams = URLSearchParams.of;
p.deleteProperty(URLSearchParams, "of");
place(URLSearchParams.prototype, iterator, URLSearchParams.prototype.entries);

const PARTS = ["protocol", "username", "password", "host", "hostname", "port", "pathname", "search", "hash"];
type Parts = Record<string, string>;

class URL {
  #parts: Parts;
  #params: URLSearchParams | undefined;
  #retake: ((query: string) => void) | undefined;
  constructor(url: unknown, base?: unknown) {
    const parts = URL.#parse(url, base);
    if (parts === undefined) {
      throw new SafeTypeError(`Invalid URL: '${url}'${base === undefined ? "" : ` with base '${base}'`}`);
    }
    this.#parts = parts;
  }
  static #parse(url: unknown, base: unknown): Parts | undefined {
    const said = outer.url(p.toText(url), base === undefined ? "" : `=${p.toText(base)}`, "", "");
    return said === "" ? undefined : parse(said);
  }
  static canParse(url: unknown, base?: unknown): boolean {
    return URL.#parse(url, base) !== undefined;
  }
  static parse(url: unknown, base?: unknown): URL | null {
    return URL.#parse(url, base) === undefined ? null : new URL(url, base);
  }
  static part(url: URL, name: string, value?: unknown): string {
    if (value === undefined) return url.#parts[name];
    const said = outer.url(url.#parts.href, "", name, p.toText(value));
    if (said === "") throw new SafeTypeError(`Invalid URL: '${value}'`);
    url.#parts = parse(said);
    if (name === "href" || name === "search") url.#retake?.(p.slice(url.#parts.search, 1));
    return "";
  }
  get origin(): string {
    return this.#parts.origin;
  }
  get searchParams(): URLSearchParams {
    if (this.#params === undefined) {
      [this.#params, this.#retake] = liveParams(p.slice(this.#parts.search, 1), (query) => {
        this.#parts = parse(outer.url(this.#parts.href, "", "search", query));
      });
    }
    return this.#params!;
  }
  toString(): string {
    return this.#parts.href;
  }
  toJSON(): string {
    return this.#parts.href;
  }
}
const partOf = URL.part;
p.deleteProperty(URL, "part");
for (const name of ["href", ...PARTS]) {
  const accessor = {
    get [name](): string {
      return partOf(this as unknown as URL, name);
    },
    set [name](value: unknown) {
      partOf(this as unknown as URL, name, p.toText(value));
    },
  };
  p.defineProperty(URL.prototype, name, {
    ...p.getOwnPropertyDescriptor(accessor, name),
    enumerable: true,
    configurable: true,
  });
}

const { DOMException, report, ...events } = defineEvents(outer.now);
/** Set by the sandbox: hears what listeners and microtasks throw. */
export const uncaught = report;

const crypto = {
  getRandomValues(array: unknown): unknown {
    const tag = p.isView(array) ? p.typedArrayTag(array) : undefined;
    if (tag === undefined || p.startsWith(tag, "Float")) {
      throw new DOMException("The data argument must be an integer-type TypedArray", "TypeMismatchError");
    }
    const bytes = bytesFrom(array);
    const count = p.typedArrayLength(bytes);
    if (count > 65536) throw new DOMException(`${count} bytes are over 65536`, "QuotaExceededError");
    setBytes(bytes, fromBase64(outer.random(count)), 0);
    return array;
  },
  randomUUID: (): string => outer.uuid(),
};

const { queueMicrotask } = {
  queueMicrotask(callback: unknown): void {
    if (typeof callback !== "function") throw new SafeTypeError("queueMicrotask needs a function");
    void soon(callback as () => void);
  },
};

async function soon(callback: () => void): Promise<void> {
  await undefined;
  try {
    callback();
  } catch (error) {
    uncaught.hear(error);
  }
}

// As in the realm that Deno makes.
p.deleteProperty(Intl, "v8BreakIterator");
p.defineProperty(Symbol, "metadata", { value: Symbol("Symbol.metadata") });

const classes = { URL, URLSearchParams, TextEncoder, TextDecoder, DOMException, ...events };
const classNames = p.objectKeys(classes);
const enumerable = { __proto__: null, enumerable: true } as PropertyDescriptor;
for (let i = 0; i < classNames.length; i++) {
  const name = classNames[i];
  const made = (classes as unknown as Record<string, { prototype: object }>)[name];
  const { prototype } = made;
  const keys = p.ownKeys(prototype);
  for (let k = 0; k < keys.length; k++) {
    const key = keys[k];
    if (typeof key === "string" && key !== "constructor") p.defineProperty(prototype, key, enumerable);
  }
  p.defineProperty(prototype, toStringTag, { value: name, configurable: true });
  // The bundle may call it something else.
  p.defineProperty(made, "name", { value: name });
  place(globalThis, name, made);
}
place(globalThis, "crypto", crypto);
place(globalThis, "queueMicrotask", queueMicrotask);
place(globalThis, "performance", { now: outer.now });
