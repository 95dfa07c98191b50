/**
 * Says of a script's text whether the script may see that a context has not made the web's classes: where it names one,
 * or the global object for anything but its result.
 *
 * There is no other way to them. A module is strict code, so `this` is nowhere the global object; no code comes from
 * strings; what the sandbox throws itself makes them.
 *
 * @module
 */

const NAMED =
  /\b(?:URL|URLSearchParams|Text(?:En|De)coder|DOMException|Event(?:Target)?|Abort(?:Controller|Signal))\b/;
const WORLD = /\bglobalThis\b(?!\.__codemode_result__\b)/;
/** Finds an escape, by which any character of an identifier may be written. */
const ESCAPED = /\\u/;

/** Says whether a script may name a class of the web. @param text of the script's module, as it is compiled. */
export function mayNameWeb(text: string): boolean {
  return NAMED.test(text) || WORLD.test(text) || ESCAPED.test(text);
}
