/**
 * Words a stack as an agent can use it: only frames of its own code, without the script's base64 and without paths of
 * the machine.
 *
 * @module
 */

import * as p from "../primordials.ts";

/** Stands for the script's `data:` URL; the broker replaces it, with what follows, by a place in the agent's source. */
export const SCRIPT_TOKEN = "data:application/script";

const SCRIPT_URL = "data:application/";
const MAX_LINES = 20;
const MAX_LINE = 300;

/**
 * Returns the frames of `stack`, one a line, each like `    at name (SCRIPT_TOKEN:LINE:COLUMN)`; "" when none is the
 * agent's.
 *
 * The agent's module is a `data:` URL of an `application/` type. Frames of the sandbox, of the `text/javascript`
 * modules of servers, of Deno and of built-ins are left out.
 */
export function agentFrames(stack: string): string {
  let text = "";
  let lines = 0;
  let start = 0;
  while (start < stack.length && lines < MAX_LINES) {
    let end = p.indexOf(stack, "\n", start);
    if (end < 0) end = stack.length;
    const line = p.slice(stack, start, end);
    start = end + 1;
    const url = p.startsWith(line, "    at ") ? p.indexOf(line, SCRIPT_URL) : -1;
    if (url < 0) continue;
    text += `${lines > 0 ? "\n" : ""}${shorten(line, url)}`;
    lines++;
  }
  return text;
}

/** Describes what `Error.prepareStackTrace` is handed; a script never sees one. */
interface CallSite {
  toString(): string;
}

let frameless: unknown;

/**
 * Returns the error whose `stack` was last asked for and had no frames at all, as one that the engine makes between
 * turns.
 */
export function lastFrameless(): unknown {
  return frameless;
}

/**
 * Returns what the engine makes the `stack` of every error with: its first line and the agent's frames, so that no text
 * a script can read names anything else. Never throws.
 */
export const { scriptStack } = {
  scriptStack(error: unknown, sites: ArrayLike<CallSite>): string {
    let head = "Error";
    let frames = "";
    try {
      head = p.errorToText(error);
    } catch { /* a getter of its own threw */ }
    try {
      if (sites.length === 0) frameless = error;
      for (let i = 0; i < sites.length; i++) frames += `    at ${sites[i].toString()}\n`;
      frames = agentFrames(frames);
    } catch { /* called by a script, with what are no call sites */ }
    return frames === "" ? head : `${head}\n${frames}`;
  },
};

/** Replaces the `data:` URL by `SCRIPT_TOKEN`; what follows it is `:LINE:COLUMN` and perhaps `)`. */
function shorten(line: string, url: number): string {
  let end = line.length;
  let colons = 0;
  while (end > url && colons < 2) {
    end--;
    if (line[end] === ":") colons++;
  }
  return p.slice(`${p.slice(line, 0, url)}${SCRIPT_TOKEN}${p.slice(line, end)}`, 0, MAX_LINE);
}
