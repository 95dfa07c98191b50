/**
 * Holds the events of a recording, as text and as what a replay goes by.
 *
 * The text is a row of events, each a letter and a whole number: `a3` the answer to request 3, `t2` timer 2, `i1` the
 * end of the first `import(…)`, `i0` that of the script's own, `e1` its end; and of the clock `c5*3`, three readings 5 ms
 * after the one before (`*1` is left out).
 *
 * @module
 */

import * as p from "../primordials.ts";
import type { Kind } from "../seam.ts";

/** Hands out the events of a recording in their order. */
export class Past {
  readonly #kinds: string[] = [];
  readonly #ids: number[] = [];
  readonly #times: number[] = [];
  readonly #counts: number[] = [];
  #at = 0;
  #reading = 0;

  /**
   * Reads the events of a recording. @param text As above. What is none of it ends it: nobody but the broker writes
   * it.
   */
  constructor(text: string) {
    let at = 0;
    let time = 0;
    const number = () => {
      let value = 0;
      while (at < text.length) {
        const digit = p.charCodeAt(text, at) - 48;
        if (digit < 0 || digit > 9) break;
        value = value * 10 + digit;
        at++;
      }
      return value;
    };
    while (at < text.length) {
      const kind = text[at++];
      const value = number();
      if (kind !== "c") {
        p.append(this.#kinds, kind);
        p.append(this.#ids, value);
        continue;
      }
      time += value;
      let count = 1;
      if (text[at] === "*") {
        at++;
        count = number();
      }
      p.append(this.#times, time);
      p.append(this.#counts, count);
    }
  }

  /** Says whether no event is left, readings of the clock aside. */
  get over(): boolean {
    return this.#at >= this.#kinds.length;
  }

  get kind(): Kind {
    return this.#kinds[this.#at] as Kind;
  }

  get id(): number {
    return this.#ids[this.#at];
  }

  /** Counts the events that were taken. */
  get taken(): number {
    return this.#at;
  }

  /** Goes on to the next event. */
  take(): void {
    this.#at++;
  }

  /** Returns the next reading of the clock, in milliseconds since 1970; undefined when none is left. */
  reading(): number | undefined {
    if (this.#reading >= this.#times.length) return undefined;
    const time = this.#times[this.#reading];
    if (--this.#counts[this.#reading] <= 0) this.#reading++;
    return time;
  }
}
