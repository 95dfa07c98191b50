/**
 * Holds the script's only way out, whichever that is: the process's own pipes (`pipes.ts`), or the realm around a
 * context (`../context/inner.ts`).
 *
 * @module
 */

import type { FromWorker } from "./protocol.gen.ts";

/** Holds what a message carries behind its header: only the channel that made it looks inside. */
export type Body = { readonly __body: never };

/** Carries the script's messages to the broker: its way out. */
export interface Channel {
  /**
   * Sends one message, synchronously: what a script logged must be out before an endless loop follows it. Calls alone may
   * wait for the end of the code that makes them.
   */
  send(message: FromWorker, body?: Body): void;
  /** Makes a body of a text, in UTF-8; lone surrogates become U+FFFD. */
  utf8(text: string): Body;
  /** Returns how many bytes a body has. */
  sizeOf(body: Body): number;
}

export let send: Channel["send"];
export let utf8: Channel["utf8"];
export let sizeOf: Channel["sizeOf"];

/** Names the channel that is the way out. Call once, before anything is sent. */
export function useChannel(channel: Channel): void {
  ({ send, utf8, sizeOf } = channel);
}
