/**
 * Encodes and takes the frames on the worker's pipes, without I/O: the twin of `cellblock_worker/wire/frames.py`.
 * `scripts/fuzz_frames` compares the two.
 *
 * Of msgpack it does the part that headers need: one flat map of strings to strings, integers and booleans. Headers are
 * written in their shortest form, as the host's library writes them: it takes no other. A whole codec costs a worker
 * about 3 ms of its 15 ms boot. `tests/unit/worker_runtime/sandbox` proves this one against the full library on the
 * host's side.
 *
 * @module
 */

import * as p from "../primordials.ts";

export type HeaderValue = string | number | boolean | null;
export type Header = { [key: string]: HeaderValue };

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const encode = encoder.encode.bind(encoder);
const decode = decoder.decode.bind(decoder);
const keysOf = Object.keys;
const isInteger = Number.isInteger;
const create = Object.create;
const fromCharCode = String.fromCharCode;
const MAX_SAFE = 2 ** 53 - 1;
// Texts up to here are put together from their bytes: a decoder takes longer to call, and 0.1 ms to compile. No field
// has a longer name.
const SHORT = 16;
const MAX_KNOWN = 64;

// Fields, kinds of messages, names of servers and tools: the same few texts are sent again and again.
const known: Record<string, Uint8Array> = create(null);
let knownTexts = 0;

function utf8Of(value: string): Uint8Array {
  let raw = known[value];
  if (raw !== undefined) return raw;
  raw = encode(value);
  if (knownTexts < MAX_KNOWN) {
    knownTexts++;
    known[value] = raw;
  }
  return raw;
}

/** Encodes a flat header. Throws RangeError on a value outside the subset. */
export function encodeHeader(header: Header): Uint8Array {
  const keys = keysOf(header);
  if (keys.length > 15) throw new RangeError("header has over 15 entries");
  let bytes = new p.SafeUint8Array(256);
  let at = 0;
  const reserve = (count: number) => {
    if (at + count <= bytes.length) return;
    const grown = new p.SafeUint8Array((at + count) * 2);
    set(grown, bytes, 0);
    bytes = grown;
  };
  const text = (value: string) => {
    const raw = utf8Of(value);
    reserve(raw.length + 3);
    if (raw.length < 32) {
      bytes[at++] = 0xa0 | raw.length;
    } else if (raw.length < 256) {
      bytes[at++] = 0xd9;
      bytes[at++] = raw.length;
    } else if (raw.length < 65536) {
      bytes[at++] = 0xda;
      bytes[at++] = raw.length >> 8;
      bytes[at++] = raw.length & 255;
    } else {
      throw new RangeError("header string is over 64 KiB");
    }
    set(bytes, raw, at);
    at += raw.length;
  };
  bytes[at++] = 0x80 | keys.length;
  for (let index = 0; index < keys.length; index++) {
    const key = keys[index];
    const value = header[key];
    text(key);
    reserve(9);
    if (typeof value === "string") text(value);
    else if (value === null) bytes[at++] = 0xc0;
    else if (typeof value === "boolean") bytes[at++] = value ? 0xc3 : 0xc2;
    else at = encodeInteger(bytes, at, value);
  }
  return subarray(bytes, 0, at);
}

function encodeInteger(bytes: Uint8Array, start: number, value: number): number {
  if (!isInteger(value) || value < 0 || value > MAX_SAFE) {
    throw new RangeError("header number is no unsigned integer");
  }
  let at = start;
  if (value < 128) {
    bytes[at++] = value;
    return at;
  }
  const power = value < 2 ** 8 ? 0 : value < 2 ** 16 ? 1 : value < 2 ** 32 ? 2 : 3;
  bytes[at++] = 0xcc + power;
  const width = 1 << power;
  let rest = value;
  for (let offset = width - 1; offset >= 0; offset--) {
    bytes[at + offset] = rest % 256;
    rest = (rest - (rest % 256)) / 256;
  }
  return at + width;
}

function safe(value: number): number {
  if (value > MAX_SAFE) throw new RangeError("header number is over 2^53 - 1");
  return value;
}

/** Decodes a flat header. Throws RangeError or TypeError on what is none, or outside the subset. */
export function decodeHeader(bytes: Uint8Array): Header {
  let at = 0;
  const unsigned = (width: number) => {
    let value = 0;
    for (let index = 0; index < width; index++) value = value * 256 + bytes[at++];
    return value;
  };
  const text = (length: number) => {
    const start = at;
    at += length;
    if (length <= SHORT) {
      let value = "";
      let index = start;
      while (bytes[index] < 0x80 && index < at) value += fromCharCode(bytes[index++]);
      if (index === at) return value;
    }
    return decode(subarray(bytes, start, at));
  };
  const read = (): HeaderValue => {
    const tag = bytes[at++];
    if (tag < 0x80) return tag;
    if (tag >= 0xa0 && tag < 0xc0) return text(tag & 31);
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xcc:
        return unsigned(1);
      case 0xcd:
        return unsigned(2);
      case 0xce:
        return unsigned(4);
      case 0xcf:
        return safe(unsigned(8));
      case 0xd9:
        return text(unsigned(1));
      case 0xda:
        return text(unsigned(2));
    }
    throw new RangeError(`header has an unexpected tag ${tag}`);
  };
  const tag = bytes[at++];
  if ((tag & 0xf0) !== 0x80) throw new RangeError("header is no map");
  const header: Header = create(null);
  for (let left = tag & 15; left > 0; left--) {
    const key = read();
    if (typeof key !== "string") throw new RangeError("header key is no string");
    header[key] = read();
  }
  // Reading past the end gives what is no number, or moves `at` past it: one look tells both.
  if (at !== bytes.length) throw new RangeError("header is cut short, or goes on after its map");
  return header;
}

const PREFIX_BYTES = 6;
const MAX_HEADER_BYTES = 16 * 1024;
const Bytes = Uint8Array;
/** Calls `subarray` as it was captured before agent code runs, which may patch every prototype. */
export const subarray = p.uncurryThis(Uint8Array.prototype.subarray) as (
  self: Uint8Array,
  start: number,
  end?: number,
) => Uint8Array<ArrayBuffer>;
export const set = p.uncurryThis<(source: Uint8Array, offset: number) => void>(Uint8Array.prototype.set);

/** Encodes one whole frame. Throws RangeError on a header that cannot be encoded. */
export function encodeFrame(header: Header, body: Uint8Array): Uint8Array<ArrayBuffer> {
  const raw = encodeHeader(header);
  const length = 2 + raw.length + body.length;
  const frame = new Bytes(4 + length);
  frame[0] = (length >>> 24) & 255;
  frame[1] = (length >>> 16) & 255;
  frame[2] = (length >>> 8) & 255;
  frame[3] = length & 255;
  frame[4] = raw.length >> 8;
  frame[5] = raw.length & 255;
  set(frame, raw, PREFIX_BYTES);
  set(frame, body, PREFIX_BYTES + raw.length);
  return frame;
}

/** Says how far `takeFrames` came: bytes used, and the size of the frame that is not whole yet (0 when unknown). */
export interface Taken {
  used: number;
  wanted: number;
}

/**
 * Hands over every whole frame in the first `filled` bytes of `buffer`; the bodies are views of it.
 * Throws RangeError when the bytes are no frames.
 */
export function takeFrames(
  buffer: Uint8Array,
  filled: number,
  onFrame: (header: Header, body: Uint8Array) => void,
): Taken {
  let start = 0;
  while (filled - start >= PREFIX_BYTES) {
    const length = ((buffer[start] << 24) | (buffer[start + 1] << 16) | (buffer[start + 2] << 8) |
      buffer[start + 3]) >>> 0;
    const headerLength = (buffer[start + 4] << 8) | buffer[start + 5];
    if (headerLength > MAX_HEADER_BYTES || headerLength + 2 > length) {
      throw new RangeError("header length does not fit the frame");
    }
    const end = start + 4 + length;
    if (filled < end) return { used: start, wanted: 4 + length };
    const bodyStart = start + PREFIX_BYTES + headerLength;
    const header = decodeHeader(subarray(buffer, start + PREFIX_BYTES, bodyStart));
    onFrame(header, subarray(buffer, bodyStart, end));
    start = end;
  }
  return { used: start, wanted: 0 };
}
