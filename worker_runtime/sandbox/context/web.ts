/**
 * Makes the classes of the web out of the context's own language: a new context has none.
 *
 * They are made when they are first needed: before a script whose text may name one, or when the sandbox needs one.
 *
 * @module
 */

import * as p from "../primordials.ts";
import type { WebClasses } from "../web_classes.ts";
import { defineEvents, type SetTimer } from "./events.ts";
import type { Outer } from "./outer.ts";
import { defineUrls } from "./urls.ts";

const { toStringTag } = Symbol;

/** Makes all classes of the web that a context has, on `globalThis`. */
export function makeWeb(outer: Outer, setTimeout: SetTimer): WebClasses {
  /** Names the members that Deno's classes do not list: all others are enumerable. */
  const UNLISTED: Record<string, unknown> = {
    __proto__: null as never,
    constructor: true,
    length: true,
    prototype: true,
    // Of an AbortSignal's class.
    timeout: true,
    // Of an Event.
    AT_TARGET: true,
    BUBBLING_PHASE: true,
    CAPTURING_PHASE: true,
    NONE: true,
    cancelBubble: true,
    composedPath: true,
    initialized: true,
    preventDefault: true,
    stopImmediatePropagation: true,
    stopPropagation: true,
  };
  const listed = { __proto__: null, enumerable: true } as PropertyDescriptor;
  const list = (object: object) => {
    const keys = p.ownKeys(object);
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i];
      if (typeof key === "string" && UNLISTED[key] === undefined) p.defineProperty(object, key, listed);
    }
  };
  const events = defineEvents(outer.now, setTimeout);
  const classes = { ...defineUrls(outer), ...defineCoding(outer), ...events };
  const names = p.objectKeys(classes);
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    const made = (classes as unknown as Record<string, { prototype: object }>)[name];
    list(made);
    list(made.prototype);
    const at = made.prototype;
    p.defineProperty(at, toStringTag, { __proto__: null, value: name, configurable: true } as never);
    // The bundle may call it something else.
    p.defineProperty(made, "name", { __proto__: null, value: name, enumerable: false } as never);
    const placed = { __proto__: null, value: made, writable: true, configurable: true };
    p.defineProperty(globalThis, name, placed as never);
  }
  p.defineProperty(classes.Event.prototype, "isTrusted", { __proto__: null, configurable: false } as never);
  return {
    DOMException: events.DOMException as unknown as typeof DOMException,
    URL: classes.URL as unknown as typeof URL,
    URLSearchParams: classes.URLSearchParams as unknown as typeof URLSearchParams,
    searchParamsToString: p.uncurryThis(classes.URLSearchParams.prototype.toString),
  };
}

const { fromBase64 } = Uint8Array as unknown as { fromBase64(text: string): Uint8Array };
const setBytes = p.uncurryThis<(source: Uint8Array, offset: number) => void>(Uint8Array.prototype.set);
const isWellFormed = p.uncurryThis(String.prototype.isWellFormed);
const SafeTypeError = TypeError;
const SafeRangeError = RangeError;

/** Bounds the characters that are encoded at once. */
const PIECE = 1 << 15;

/** Bounds the bytes that are decoded at once: of a multiple of three the base64 has no padding. */
const BYTES = 3 << 15;

/** Returns the bytes of a buffer, or of a view of one. @throws TypeError: It is neither. */
export function bytesFrom(value: unknown): Uint8Array {
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
/** Makes this realm's `TextEncoder` and `TextDecoder`. */
export function defineCoding(outer: Outer) {
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
    /** Numbers the outer decoder that has taken part of a stream. */
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
    decode(input: unknown = undefined, options: { stream?: unknown } = {}): string {
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

  return { TextEncoder, TextDecoder };
}
