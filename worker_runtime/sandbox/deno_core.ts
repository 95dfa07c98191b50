/**
 * Finds the way to Deno's core, for the rooms that need more than Deno's public names have.
 *
 * @module
 */

/**
 * Lists the parts of Deno's core that are used. They are internal to Deno: the tests of globals.ts guard an upgrade.
 */
export interface Core {
  /** Compiles and runs a script in the process's own realm; gives its value, or what it threw. */
  evalContext(text: string, url: string): [value: unknown, failed: { thrown: unknown } | null];
  createTimer(run: () => void, ms: number, args: undefined, repeat: boolean, ref: boolean): object;
  cancelTimer(timer: object): void;
  queueImmediate(immediate: object): void;
  /** Runs the microtasks that are left, as the end of a turn of the loop does. */
  runMicrotasks(): void;
  /** Returns the text of UTF-8 bytes, without a mark at their beginning; what is no UTF-8 becomes U+FFFD. */
  decode(bytes: Uint8Array): string;
  /** Keeps the event loop from waiting for input while there is an immediate. */
  immediateRefCount(more: boolean): void;
}

/** Returns Deno's core. @throws TypeError when this Deno has no such internals. */
export function denoCore(): Core {
  const { internal } = Deno as unknown as { internal: symbol };
  return (Deno as unknown as Record<symbol, { core: Core }>)[internal].core;
}
