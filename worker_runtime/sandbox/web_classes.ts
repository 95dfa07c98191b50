/**
 * The classes of the web that the sandbox needs itself: in the process's own realm Deno's, as they were before a script
 * could replace them; in a context its own, which are made when they are first needed.
 *
 * @module
 */

import * as p from "./primordials.ts";

/** Holds them. */
export interface WebClasses {
  DOMException: typeof DOMException;
  URL: typeof URL;
  URLSearchParams: typeof URLSearchParams;
  /** The text of a URLSearchParams. @throws TypeError: It is none. */
  searchParamsToString(params: unknown): string;
}

let classes: WebClasses | undefined;
let make: () => WebClasses;

if (typeof URL !== "undefined") {
  classes = {
    DOMException,
    URL,
    URLSearchParams,
    searchParamsToString: p.uncurryThis(URLSearchParams.prototype.toString) as (params: unknown) => string,
  };
}

/** Says how they are made, in a realm that has none. */
export function makeWebBy(maker: () => WebClasses): void {
  make = maker;
}

/** Returns them; they are made, if they are not. */
export function web(): WebClasses {
  return classes ??= make();
}

/** Returns them if they are made: if not, no object can be of one. */
export function madeWeb(): WebClasses | undefined {
  return classes;
}
