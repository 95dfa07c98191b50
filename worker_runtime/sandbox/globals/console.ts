/**
 * Makes the script's `console`: each call is one log entry (Code Mode specification, sections 3.3.1 and 9).
 *
 * @module
 */

import { send, utf8 } from "../wire/channel.ts";
import type { Log } from "../wire/protocol.gen.ts";
import { formatLog } from "../result/serialize.ts";
import * as p from "../primordials.ts";

/**
 * Makes the script's console. `elapsed` gives milliseconds since the run's start, `maxBytes` the run's log cap;
 * `before` is called before each entry is sent. The levels are the four of the specification; what scripts also reach for
 * has one of these, or does nothing, so that a script made for a browser runs.
 */
export function makeConsole(
  elapsed: () => number,
  maxBytes: () => number,
  before: () => void,
): Record<string, unknown> {
  const say = (level: Log["level"], args: unknown[]): void => {
    const ms = elapsed();
    const text = utf8(formatLog(args, maxBytes()));
    before();
    send({ t: "log", level, ms }, text);
  };
  // Written out: names that are computed cost each context more than all else here.
  return {
    debug: (...args: unknown[]) => say("debug", args),
    log: (...args: unknown[]) => say("log", args),
    warn: (...args: unknown[]) => say("warn", args),
    error: (...args: unknown[]) => say("error", args),
    info: (...args: unknown[]) => say("log", args),
    dir: (...args: unknown[]) => say("log", args),
    group: (...args: unknown[]) => say("log", args),
    groupCollapsed: (...args: unknown[]) => say("log", args),
    dirxml: (...args: unknown[]) => say("log", args),
    table: (...args: unknown[]) => say("log", args),
    trace: (...args: unknown[]) => say("debug", args),
    assert(holds?: unknown, ...args: unknown[]): void {
      if (holds) return;
      const said: unknown[] = ["Assertion failed"];
      for (let i = 0; i < args.length; i++) p.append(said, args[i]);
      say("error", said);
    },
    groupEnd() {},
    time() {},
    timeEnd() {},
    timeLog() {},
    timeStamp() {},
    count() {},
    countReset() {},
    clear() {},
    profile() {},
    profileEnd() {},
  };
}
