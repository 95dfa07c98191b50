/**
 * Turns console arguments into one message (Code Mode specification, section 3.3.1).
 *
 * - Arguments are joined by one space. Format specifiers (`%s`, `%o` …) are text like any other: the
 *   specification says that all arguments are serialised and concatenated.
 * - Primitives are `String(value)`, strings as they are; functions are `[Function name]`.
 * - Objects and arrays are stable JSON: keys sorted by UTF-16 code unit, integer-like ones too, so the text does not
 *   depend on the order in which members were added. What JSON leaves out stays out (undefined members, symbol
 *   keys, non-enumerable members); NaN, Infinity, undefined and empty slots in arrays are null, -0 is 0. A
 *   bigint is an integer, a symbol `"Symbol(x)"`, a function `"[Function name]"`; serialize_kinds.ts has the rest.
 * - What cannot be serialised is a marker in its place: `"[Circular]"`, `"[Getter threw: why]"`,
 *   `"[Unserializable Object]"`; the rest of the value is still shown.
 *
 * Work and memory are bounded by the cap, nesting is kept off the call stack, and no agent code runs but getters,
 * proxy traps and `toJSON` of the values themselves.
 *
 * @module
 */

import * as p from "../primordials.ts";
import {
  errorMembers,
  type Form,
  formOf,
  functionName,
  kindOf,
  read,
  readText,
  thrownText,
  toJsonOf,
} from "./kinds.ts";
import { agentFrames } from "./stack_text.ts";

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

/** Stands for a value of which nothing can be read, such as a revoked proxy. */
export const UNSERIALIZABLE = "[Unserializable Object]";
const MAX_CAUSES = 8;
// A cut at a character boundary within this many bytes over the cap always lies over the cap.
const LONGEST_CHARACTER = 4;

/** Describes one container being written. `next` is the index of the member to come, `keys` is null for lists. */
interface Frame {
  readonly value: object;
  readonly source: object;
  readonly keys: string[] | null;
  readonly length: number;
  readonly close: string;
  readonly parent: Frame | null;
  next: number;
  first: boolean;
}

interface Job {
  readonly writer: Writer;
  /** Holds the containers being written, to find cycles. */
  readonly open: Set<object>;
}

/**
 * Returns the message of one console call. Never throws.
 *
 * It is longer than `maxBytes` (UTF-8), by at most four bytes, exactly when it was cut: so the host, which keeps
 * the cap, sees that something is missing and says so.
 */
export function formatLog(args: unknown[], maxBytes: number): string {
  const job: Job = { writer: newWriter(maxBytes + LONGEST_CHARACTER), open: new p.SafeSet() };
  const used = args.length > 1 && typeof args[0] === "string" ? writeFormat(job, args[0], args) : 0;
  for (let i = used; i < args.length && !job.writer.full; i++) {
    if (i > 0) write(job.writer, " ");
    writeArgument(job, args[i]);
  }
  return job.writer.text;
}

/** Writes the first argument with those that `%s`, `%d` and their like in it stand for; returns how many it has used. */
function writeFormat(job: Job, format: string, args: unknown[]): number {
  let used = 1;
  let from = 0;
  let at = p.indexOf(format, "%");
  while (at >= 0 && !job.writer.full) {
    const sign = format[at + 1];
    const is = sign === "%" || (used < args.length && sign !== undefined && p.indexOf("sdifjoOc", sign) >= 0);
    if (is) {
      write(job.writer, p.slice(format, from, at));
      from = at + 2;
      if (sign === "%") write(job.writer, "%");
      else writeFormatted(job, sign, args[used++]);
    }
    at = p.indexOf(format, "%", at + (is ? 2 : 1));
  }
  write(job.writer, p.slice(format, from));
  return used;
}

function writeFormatted(job: Job, sign: string, value: unknown): void {
  if (sign === "c") return;
  if (sign !== "d" && sign !== "i" && sign !== "f") return writeArgument(job, value);
  const number = typeof value === "number" || typeof value === "string" ? p.toNumber(value) : NaN;
  if (typeof value === "bigint") return write(job.writer, p.toText(value));
  write(job.writer, p.toText(sign === "i" ? number - number % 1 : number));
}

function writeArgument(job: Job, value: unknown): void {
  const { writer } = job;
  if (typeof value === "string") return write(writer, value);
  if (typeof value === "function") return write(writer, functionText(value));
  if (typeof value !== "object" || value === null) return write(writer, p.toText(value));
  try {
    const kind = kindOf(value);
    if (kind === "error" && !speaksForItself(value)) return writeError(job, value);
    const { resolved, form } = resolve(job, value, "");
    if (form.is === "value" && typeof form.value === "string") return write(writer, form.value);
    if (form.is === "value" && (typeof form.value !== "object" || form.value === null)) {
      return writeArgument(job, form.value);
    }
    writeTree(job, resolved, form);
  } catch {
    write(writer, UNSERIALIZABLE);
  }
}

/** Says whether an error has a `toJSON` to honour; one that cannot be read is none, so that the rest is still shown. */
function speaksForItself(error: object): boolean {
  try {
    return toJsonOf(error) !== undefined;
  } catch {
    return false;
  }
}

function isError(value: unknown): value is object {
  try {
    return typeof value === "object" && value !== null && kindOf(value) === "error";
  } catch {
    return false;
  }
}

/**
 * Writes an error of its own: `Name: message`, own members as JSON, the agent's frames, and the same for each cause.
 */
function writeError(job: Job, error: object): void {
  const { writer } = job;
  let current: unknown = error;
  const seen = new p.SafeSet<unknown>();
  for (let depth = 0; depth <= MAX_CAUSES && !writer.full; depth++) {
    if (depth > 0) write(writer, "\nCaused by: ");
    if (!isError(current)) return writeArgument(job, current);
    if (p.setHas(seen, current)) return write(writer, "[Circular]");
    p.setAdd(seen, current);
    const name = readText(current, "name");
    const message = readText(current, "message");
    write(writer, name === "" ? "Error" : name);
    if (message !== "") write(writer, `: ${message}`);
    writeExtras(job, current);
    const frames = agentFrames(readText(current, "stack"));
    if (frames !== "") write(writer, `\n${frames}`);
    current = read(current, "cause");
    if (current === undefined) return;
  }
  write(writer, "\nCaused by: …");
}

/**
 * Writes the own enumerable members of an error (`code`, `hint` …) and the errors that it sums up or suppresses, as
 * JSON.
 */
function writeExtras(job: Job, error: object): void {
  const members = errorMembers(error);
  delete members.name;
  delete members.message;
  delete members.stack;
  delete members.cause;
  if (p.objectKeys(members).length === 0) return;
  write(job.writer, " ");
  writeTree(job, error, { is: "members", source: members });
}

function functionText(value: object): string {
  return `[Function ${functionName(value) || "(anonymous)"}]`;
}

/** Honours an object's `toJSON`, then tells its form. @throws whatever the object's own code throws. */
function resolve(job: Job, value: object, key: string): { resolved: object; form: Form } {
  let resolved = value;
  const toJson = toJsonOf(value);
  if (toJson !== undefined) {
    const replaced = p.apply(toJson, value, [key]);
    if (typeof replaced !== "object" || replaced === null) {
      return { resolved, form: { is: "value", value: replaced } };
    }
    resolved = replaced;
  }
  // Each element costs two bytes at least, so more than this can never be shown.
  return { resolved, form: formOf(resolved, kindOf(resolved), job.writer.left / 2 + 1) };
}

/** Writes one object and all below it, depth first, with the stack in `Frame.parent`. */
function writeTree(job: Job, value: object, form: Form): void {
  const { writer, open } = job;
  let frame: Frame | null = start(job, value, form, null);
  while (frame !== null && !writer.full) {
    if (frame.next >= frame.length) {
      write(writer, frame.close);
      p.setDelete(open, frame.value);
      frame = frame.parent;
      continue;
    }
    frame = step(job, frame);
  }
  while (frame !== null) {
    p.setDelete(open, frame.value);
    frame = frame.parent;
  }
}

/** Writes the next member of a frame; returns the frame to go on with. */
function step(job: Job, frame: Frame): Frame {
  const key = frame.keys === null ? frame.next : frame.keys[frame.next];
  frame.next++;
  let value: unknown;
  try {
    value = (frame.source as Record<string | number, unknown>)[key];
  } catch (thrown) {
    value = `[Getter threw: ${thrownText(thrown)}]`;
  }
  if (typeof value !== "object" || value === null) {
    writeMember(job, frame, key, value);
    return frame;
  }
  if (p.setHas(job.open, value)) {
    writeMember(job, frame, key, "[Circular]");
    return frame;
  }
  let child: { resolved: object; form: Form };
  let next: Frame;
  try {
    child = resolve(job, value, p.toText(key));
    if (child.form.is === "value") {
      writeMember(job, frame, key, child.form.value);
      return frame;
    }
    if (p.setHas(job.open, child.resolved)) {
      writeMember(job, frame, key, "[Circular]");
      return frame;
    }
    next = makeFrame(child.resolved, child.form, frame);
  } catch {
    writeMember(job, frame, key, UNSERIALIZABLE);
    return frame;
  }
  writeKey(job, frame, key);
  return opened(job, next, child.form);
}

function start(job: Job, value: object, form: Form, parent: Frame | null): Frame {
  return opened(job, makeFrame(value, form, parent), form);
}

function opened(job: Job, frame: Frame, form: Form): Frame {
  p.setAdd(job.open, frame.value);
  const tag = form.is === "list" ? form.tag : "";
  write(job.writer, frame.keys !== null ? "{" : tag === "" ? "[" : `{"${tag}":[`);
  return frame;
}

/** Makes the frame of a container. @throws whatever listing the members throws. */
function makeFrame(value: object, form: Form, parent: Frame | null): Frame {
  if (form.is === "list") {
    const close = form.tag === "" ? "]" : "]}";
    const { source } = form;
    return { value, source, keys: null, length: source.length, close, parent, next: 0, first: true };
  }
  const { source } = form as { source: object };
  // The default order of `sort` is by UTF-16 code units.
  const keys = p.sort(p.objectKeys(source)) as string[];
  return { value, source, keys, length: keys.length, close: "}", parent, next: 0, first: true };
}

function writeKey(job: Job, frame: Frame, key: string | number): void {
  if (!frame.first) write(job.writer, ",");
  frame.first = false;
  if (frame.keys === null) return;
  writeQuoted(job.writer, key as string);
  write(job.writer, ":");
}

function writeMember(job: Job, frame: Frame, key: string | number, value: unknown): void {
  if (value === undefined && frame.keys !== null) return;
  writeKey(job, frame, key);
  const { writer } = job;
  switch (typeof value) {
    case "string":
      return writeQuoted(writer, value);
    case "number":
      return write(writer, p.isFiniteNumber(value) ? p.toText(value) : "null");
    case "boolean":
      return write(writer, value ? "true" : "false");
    case "bigint":
      return write(writer, p.toText(value));
    case "symbol":
      return writeQuoted(writer, p.toText(value));
    case "function":
      return writeQuoted(writer, functionText(value));
    default:
      return write(writer, "null");
  }
}
