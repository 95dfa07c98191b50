/**
 * Takes what the realm around has left for this context, before anything else is evaluated: the rest of the sandbox
 * finds a clock on `globalThis`, as in the process's own realm.
 *
 * @module
 */

import { takeOuter } from "./outer.ts";

/** Gives the realm around this context. */
export const outer = takeOuter();

(globalThis as { performance: unknown }).performance = { now: outer.now };
