/**
 * Encodes and takes the frames on the worker's pipes, without I/O: the twin of `cellblock_worker/wire/frames.py`.
 * `scripts/fuzz_frames` compares the two.
 *
 * @module
 */

import { decodeHeader, encodeHeader, type Header } from "./msgpack.ts";
import { uncurryThis } from "../primordials.ts";

const PREFIX_BYTES = 6;
const MAX_HEADER_BYTES = 16 * 1024;
const Bytes = Uint8Array;
/** Calls `subarray` as it was captured before agent code runs, which may patch every prototype. */
export const subarray = uncurryThis(Uint8Array.prototype.subarray) as (
  self: Uint8Array,
  start: number,
  end?: number,
) => Uint8Array<ArrayBuffer>;
export const set = uncurryThis<(source: Uint8Array, offset: number) => void>(Uint8Array.prototype.set);

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
