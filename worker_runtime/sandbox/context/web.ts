/**
 * Makes the classes of the web out of the context's own language: a new context has none.
 *
 * They are made when they are first needed: before a script whose text may name one, or when the sandbox needs one.
 *
 * @module
 */

import * as p from "../primordials.ts";
import type { WebClasses } from "../web_classes.ts";
import { defineCoding } from "./coding.ts";
import { defineEvents, type SetTimer } from "./events.ts";
import type { Outer } from "./outer.ts";
import { defineUrls } from "./urls.ts";

const { toStringTag } = Symbol;

/** Makes all classes of the web that a context has, on `globalThis`. */
export function makeWeb(outer: Outer, setTimeout: SetTimer): WebClasses {
  /** Names the members that Deno's classes do not list: all others are enumerable. */
  const UNLISTED: Record<string, unknown> = {
    __proto__: null as never,
    constructor: true,
    length: true,
    prototype: true,
    // Of an AbortSignal's class.
    timeout: true,
    // Of an Event.
    AT_TARGET: true,
    BUBBLING_PHASE: true,
    CAPTURING_PHASE: true,
    NONE: true,
    cancelBubble: true,
    composedPath: true,
    initialized: true,
    preventDefault: true,
    stopImmediatePropagation: true,
    stopPropagation: true,
  };
  const listed = { __proto__: null, enumerable: true } as PropertyDescriptor;
  const list = (object: object) => {
    const keys = p.ownKeys(object);
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i];
      if (typeof key === "string" && UNLISTED[key] === undefined) p.defineProperty(object, key, listed);
    }
  };
  const events = defineEvents(outer.now, setTimeout);
  const classes = { ...defineUrls(outer), ...defineCoding(outer), ...events };
  const names = p.objectKeys(classes);
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    const made = (classes as unknown as Record<string, { prototype: object }>)[name];
    list(made);
    list(made.prototype);
    const at = made.prototype;
    p.defineProperty(at, toStringTag, { __proto__: null, value: name, configurable: true } as never);
    // The bundle may call it something else.
    p.defineProperty(made, "name", { __proto__: null, value: name, enumerable: false } as never);
    const placed = { __proto__: null, value: made, writable: true, configurable: true };
    p.defineProperty(globalThis, name, placed as never);
  }
  p.defineProperty(classes.Event.prototype, "isTrusted", { __proto__: null, configurable: false } as never);
  return {
    DOMException: events.DOMException as unknown as typeof DOMException,
    URL: classes.URL as unknown as typeof URL,
    URLSearchParams: classes.URLSearchParams as unknown as typeof URLSearchParams,
    searchParamsToString: p.uncurryThis(classes.URLSearchParams.prototype.toString),
  };
}
