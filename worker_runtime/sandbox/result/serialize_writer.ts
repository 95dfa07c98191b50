/**
 * Writes text with a cap in UTF-8 bytes: what does not fit is cut at a character, and nothing is kept after it.
 *
 * @module
 */

import * as p from "../primordials.ts";

/** Collects text. `left`: UTF-8 bytes that still fit. `full`: something did not fit; every later write is ignored. */
export interface Writer {
  text: string;
  left: number;
  full: boolean;
}

export function newWriter(maxBytes: number): Writer {
  return { text: "", left: maxBytes, full: false };
}

/** Adds text as it is, lone surrogates replaced by U+FFFD. Costs time for at most the bytes that are left. */
export function write(writer: Writer, text: string): void {
  if (writer.full) return;
  // Each UTF-16 unit is at least one byte, so nothing after this point can fit.
  const seen = text.length > writer.left ? p.slice(text, 0, writer.left + 1) : text;
  const whole = seen.length === text.length;
  const sound = p.toWellFormed(seen);
  let bytes = 0;
  let kept = 0;
  while (kept < sound.length) {
    const unit = p.charCodeAt(sound, kept);
    // What is well-formed has a high surrogate only in front of a low one: four bytes in two units.
    const pair = unit >= 0xd800 && unit <= 0xdbff;
    const size = unit < 0x80 ? 1 : unit < 0x800 ? 2 : pair ? 4 : 3;
    if (bytes + size > writer.left) break;
    bytes += size;
    kept += pair ? 2 : 1;
  }
  writer.left -= bytes;
  writer.full = !whole || kept < sound.length;
  writer.text += kept < sound.length ? p.slice(sound, 0, kept) : sound;
}

/** Adds text as a JSON string. */
export function writeQuoted(writer: Writer, text: string): void {
  if (writer.full) return;
  const seen = text.length > writer.left ? p.slice(text, 0, writer.left + 1) : text;
  write(writer, p.jsonStringify(p.toWellFormed(seen)));
}
