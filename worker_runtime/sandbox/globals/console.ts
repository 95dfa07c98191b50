/**
 * Makes the script's `console`: each call is one log entry (Code Mode specification, sections 3.3.1 and 9).
 *
 * @module
 */

import { send, utf8 } from "../wire/channel.ts";
import type { Log } from "../wire/protocol.gen.ts";
import { formatLog } from "../result/serialize.ts";
import * as p from "../primordials.ts";

/** Maps the methods that log to their levels: the four of the specification, and what scripts also reach for. */
export const CONSOLE_LEVELS: Readonly<Record<string, Log["level"]>> = {
  debug: "debug",
  log: "log",
  warn: "warn",
  error: "error",
  info: "log",
  dir: "log",
  group: "log",
  groupCollapsed: "log",
  dirxml: "log",
  table: "log",
  trace: "debug",
};

/** Names the methods that do nothing, so that a script made for a browser runs. */
export const CONSOLE_IGNORED: readonly string[] = [
  "groupEnd",
  "time",
  "timeEnd",
  "timeLog",
  "timeStamp",
  "count",
  "countReset",
  "clear",
  "profile",
  "profileEnd",
];

/**
 * Makes the script's console. `elapsed` gives milliseconds since the run's start, `maxBytes` the run's log cap;
 * `before` is called before each entry is sent.
 */
export function makeConsole(
  elapsed: () => number,
  maxBytes: () => number,
  before: () => void,
): Record<string, unknown> {
  const made: Record<string, unknown> = {};
  for (const name of Object.keys(CONSOLE_LEVELS)) {
    const level = CONSOLE_LEVELS[name];
    made[name] = {
      [name](...args: unknown[]): void {
        const ms = elapsed();
        const text = utf8(formatLog(args, maxBytes()));
        before();
        send({ t: "log", level, ms }, text);
      },
    }[name];
  }
  const error = made.error as (...args: unknown[]) => void;
  made.assert = {
    assert(holds?: unknown, ...args: unknown[]): void {
      if (holds) return;
      const said: unknown[] = ["Assertion failed"];
      for (let i = 0; i < args.length; i++) p.append(said, args[i]);
      p.apply(error, undefined, said);
    },
  }.assert;
  for (const name of CONSOLE_IGNORED) made[name] = { [name](): void {} }[name];
  return made;
}
