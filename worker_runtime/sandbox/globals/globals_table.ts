/**
 * Lists what agent code finds on `globalThis`: the documentation and the tests are made from these tables
 * (Code Mode specification, section 3.5).
 *
 * @module
 */

const SPEC = "the specification lists it";
const LANGUAGE = "part of the language";

function named(names: string, why: string): Record<string, string> {
  const table: Record<string, string> = {};
  const list = names.split(" ");
  for (let i = 0; i < list.length; i++) table[list[i]] = why;
  return table;
}

/** Maps every name on `globalThis` when agent code starts to the reason why it is there. Everything else is absent. */
export const ALLOWED_GLOBALS: Readonly<Record<string, string>> = {
  // A null prototype: a look-up must not find `toString` and the like.
  __proto__: null as never,
  ...named(
    "JSON Math Date URL URLSearchParams Promise Map Set WeakMap WeakSet Symbol Proxy Reflect RegExp Error Array " +
      "Object String Number Boolean BigInt parseInt parseFloat isNaN isFinite Infinity NaN undefined TextEncoder " +
      "TextDecoder ArrayBuffer DataView Uint8Array Int8Array Uint16Array Int16Array Uint32Array Int32Array " +
      "Float32Array Float64Array setTimeout clearTimeout console __codemode_result__",
    SPEC,
  ),
  ...named(
    "globalThis Function AggregateError EvalError RangeError ReferenceError SyntaxError TypeError URIError " +
      "SuppressedError BigInt64Array BigUint64Array Uint8ClampedArray Float16Array Iterator WeakRef " +
      "FinalizationRegistry DisposableStack AsyncDisposableStack Intl Temporal decodeURI decodeURIComponent " +
      "encodeURI encodeURIComponent escape unescape",
    LANGUAGE,
  ),
  structuredClone: "copies plain data",
  queueMicrotask: "orders work without a timer",
  atob: "base64 of tool results",
  btoa: "base64 for tool inputs",
  crypto: "randomUUID and getRandomValues only",
  performance: "now() only",
  AbortController: "cancels waiting inside the script",
  AbortSignal: "belongs to AbortController",
  EventTarget: "the base class of AbortSignal",
  Event: "what AbortSignal sends",
  DOMException: "the reason an AbortSignal gives, and what structuredClone and atob throw",
  dispatchEvent: "Deno reports uncaught errors through it; events made by a script are ignored",
};

/** Says where this sandbox differs from the list of the specification or from browsers: name → what is different. */
export const DEVIATIONS: Readonly<Record<string, string>> = {
  __proto__: null as never,
  AbortSignal: "AbortSignal.timeout is made of setTimeout",
  Atomics: "absent: one thread only",
  Error:
    "globalThis.Error cannot be replaced, nor Error.prepareStackTrace set; stackTraceLimit and captureStackTrace work",
  EventTarget: "globalThis itself is no event target: addEventListener is absent",
  Function:
    "present for instanceof; calling it with source text throws EvalError, as for async functions and generators",
  SharedArrayBuffer: "absent: one thread only",
  URL: "URL.createObjectURL and revokeObjectURL are absent",
  WebAssembly: "absent",
  console:
    "debug, log, warn and error; info, dir, dirxml, group, groupCollapsed and table log at log, trace at debug, assert what fails at error; the others do nothing",
  crypto: "only randomUUID and getRandomValues; no subtle",
  eval: "absent",
  "import.meta": "has url (the script itself as a data: URL), main (false) and resolve",
  performance: "only now()",
  setInterval: "absent: use setTimeout",
  setTimeout: "returns a number; refuses text; a delay below 1 or over 2147483647 ms is 1 ms",
  structuredClone: "no transfer option; objects of the platform (URL, AbortSignal …) become plain objects",
};
