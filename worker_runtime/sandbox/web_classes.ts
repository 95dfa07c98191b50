/**
 * Has the classes of the web that the sandbox needs itself: in the process's own realm Deno's, as they were before a
 * script could replace them; in a context its own, which are made when they are first needed.
 *
 * @module
 */

import * as p from "./primordials.ts";

/** Holds the classes of the web that the sandbox needs. */
export interface WebClasses {
  DOMException: typeof DOMException;
  URL: typeof URL;
  URLSearchParams: typeof URLSearchParams;
  /** Returns the text of a URLSearchParams. @throws TypeError: It is none. */
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

/** Says how the classes are made, in a realm that has none. */
export function makeWebBy(maker: () => WebClasses): void {
  make = maker;
}

/** Returns the classes of the web; they are made, if they are not. */
export function web(): WebClasses {
  return classes ??= make();
}

/** Returns the classes of the web if they are made: if not, no object can be of one. */
export function madeWeb(): WebClasses | undefined {
  return classes;
}
