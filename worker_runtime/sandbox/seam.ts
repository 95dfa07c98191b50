/**
 * Stands between a run and what it sees from outside: nothing, or the journal, which is there in the process's own
 * realm alone.
 *
 * @module
 */

/** Names the kinds of events that come from outside of the script, each in its own turn; `journal/past.ts` says which. */
export type Kind = "a" | "t" | "i" | "e";

/** Holds what the plan of a journaled run says. */
export interface Terms {
  /** Holds the seed of the run's randomness, 64 hex digits. */
  seed: string;
  /** Holds the events of a recording, to be replayed first; "" for a new run. */
  events: string;
  /** Says whether the run goes on from a recording, which may have no event; it says when it has come to its end. */
  past?: true;
  /** Says whether the script's text names `Temporal`; where it does not, it has none. */
  temporal: boolean;
  /**
   * Says whether no tool is called: each call and query comes with its place in the script, and after the last event the
   * clock goes on from its last reading.
   */
  offline?: true;
  /** Sets what the clock of a new run shows first, in milliseconds since 1970; the machine's own where it is not given. */
  time?: number;
  /** Says how long the recorded run took, in milliseconds: the clock does not go beyond it. */
  wall_ms?: number;
}

/** Does what the journal needs of the rest of the sandbox. */
export interface Run {
  /** Says whether a request with this id was sent and has no answer. */
  awaits(id: number): boolean;
  /** Returns the frames of the script that are on the stack. */
  stack(): string;
  /**
   * Ends the run: its script is not the one that was recorded.
   *
   * @param what Half a sentence.
   * @param place Where in the script, as with a call; "" where it is not known.
   */
  diverged(what: string, place: string): void;
}

/** Stands for a journal, or for none. */
export interface Seam {
  /** Goes along the way of a journaled run once, so that V8 has compiled it. Only before a run. */
  rehearse(): Promise<void>;
  /** Makes this run a journaled one. Before its script is loaded. */
  begin(terms: Terms, run: Run): void;
  /** Says whether this run is a journaled one. */
  isOn(): boolean;
  /** Returns the milliseconds since the run's start, by the journal's clock. */
  elapsed(): number;
  /**
   * Takes the events that no frame has carried yet, for one that asks something; where wanted, with the place that
   * asks.
   */
  takeEvents(stackOf: () => string): string;
  /** Sends the events that no frame has carried yet: so a recording that has a console entry has what led to it. */
  beforeEntry(): void;
  /** Sends the events that no frame has carried yet before the run's end; after it, nothing is sent. */
  sendLast(): void;
  /** Delivers `go` in its turn: the answer to a request, the end of an `import(…)`, the end of the script. */
  deliver(kind: Kind, id: number, go: () => void): void;
  /**
   * Returns the promise itself; in a journaled run one that settles in its turn. For what Deno does on its own:
   * imports.
   */
  inTurn<T>(promise: Promise<T>): Promise<T>;
  /** Waits until the end of the script comes in its turn; nothing is delivered after it. */
  ending(): Promise<void>;
}

const none: Seam = {
  rehearse: async () => {},
  begin() {},
  isOn: () => false,
  elapsed: () => 0,
  takeEvents: () => "",
  beforeEntry() {},
  sendLast() {},
  deliver: (_kind, _id, go) => go(),
  inTurn: (promise) => promise,
  ending: async () => {},
};

export let journal: Seam = none;

let make: (() => Seam) | undefined;

/** Says how the journal is made, in a realm that can have one. Call once, before a run. */
export function makeJournalBy(maker: () => Seam): void {
  make = maker;
}

/** Returns the journal, which is made if it is not. Only before a script's own code. */
export function haveJournal(): Seam {
  if (make !== undefined) journal = make();
  make = undefined;
  return journal;
}
