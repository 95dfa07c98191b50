import { deepStrictEqual as same, ok, throws } from "node:assert/strict";
import { useChannel } from "../../../../../worker_runtime/sandbox/wire/channel.ts";
import { pipes } from "../../../../../worker_runtime/sandbox/wire/pipes.ts";
import { type Flaw, jsonBody, MAX_INPUT_DEPTH } from "../../../../../worker_runtime/sandbox/wire/input.ts";

class Refused extends Error {
  constructor(readonly flaw: Flaw) {
    super(flaw.why);
  }
}
useChannel(pipes);
const decoder = new TextDecoder();
const sent = (value: unknown, cap = 1 << 20) =>
  decoder.decode(jsonBody(value, cap, (flaw) => new Refused(flaw)) as unknown as Uint8Array);
const flawOf = (value: unknown, cap = 1 << 20): Flaw => {
  let flaw: Flaw | undefined;
  throws(() => sent(value, cap), (error: unknown) => {
    flaw = (error as Refused).flaw;
    return flaw !== undefined;
  });
  return flaw!;
};
const nested = (depth: number, inner: unknown = 1) => {
  let value = inner;
  for (let i = 0; i < depth; i++) value = i % 2 === 0 ? [value] : { a: value };
  return value;
};

class Money {
  constructor(readonly cents: number) {}
}

const SENT: [string, unknown][] = [
  ["primitives", [true, false, 0, -0, 1.5, 1e300, "", "a", null]],
  ["objects in insertion order", { b: 1, a: { d: [1, { e: null }], c: "x" }, 10: 1 }],
  ["undefined, as JSON does", { a: undefined, b: [undefined, , 1] }],
  ["a null prototype", Object.assign(Object.create(null), { a: 1 })],
  ["a key __proto__", JSON.parse('{"__proto__":{"a":1},"toJSON":1}')],
  ["a Date, also an invalid one", [new Date(0), new Date(NaN)]],
  ["a URL", new URL("http://a/b")],
  ["an instance", new Money(3)],
  ["boxed primitives", [Object(1), Object("s"), Object(false)]],
  ["what has a toJSON", [Object.assign(new Map(), { toJSON: () => [1] }), { toJSON: () => ({}) }]],
  ["shared values", [[SHARED(), SHARED()]]],
  ["128 levels", nested(MAX_INPUT_DEPTH)],
];
function SHARED() {
  const one = { a: [] };
  return { x: one, y: [one, one] };
}
for (const [what, value] of SENT) {
  Deno.test(`jsonBody: ${what}`, () => same(sent(value), JSON.stringify(value)));
}

const LOOP: Record<string, unknown> = { list: [] };
LOOP.list = [{ up: LOOP }];

const REFUSED: [string, unknown, string, string][] = [
  ["a Promise", { value: { text: Promise.resolve(1) } }, "/value/text", "a Promise"],
  ["a Map", { m: new Map([["a", 1]]) }, "/m", "a Map"],
  ["a Set", [0, new Set()], "/1", "a Set"],
  ["an Error", { e: new TypeError("x") }, "/e", "an Error"],
  ["an Error with members", { e: Object.assign(new Error("x"), { code: 1 }) }, "/e", "an Error"],
  ["a RegExp", [/x/], "/0", "a RegExp"],
  ["a URLSearchParams", [new URLSearchParams("a=b")], "/0", "a URLSearchParams"],
  ["an iterator", [[1].values()], "/0", "an iterator"],
  ["a WeakMap", [new WeakMap()], "/0", "a weak collection or reference"],
  ["bytes", { "a/b~": new Uint8Array(3) }, "/a~1b~0", "binary data"],
  ["a buffer", new ArrayBuffer(3), "", "binary data"],
  ["a function in an object", { a: 1, f() {} }, "/f", "a function"],
  ["a function", () => 1, "", "a function"],
  ["a symbol", [Symbol("s")], "/0", "a symbol"],
  ["a bigint past all numbers", { a: [{ b: -(10n ** 308n) }] }, "/a/0/b", "a bigint of over 308 digits"],
  ["what may be rounded", { a: [1, -(2 ** 53)] }, "/a/1", "-9007199254740992"],
  ["what may be rounded, beside a bigint", [1n, 1e20], "/1", "100000000000000000000"],
  ["NaN", { a: NaN }, "/a", "NaN"],
  ["an infinity", [-Infinity], "/0", "-Infinity"],
  ["a circle", { a: LOOP }, "/a/list/0/up", "a circular reference"],
  ["a circle that is the whole", LOOP, "/list/0/up", "a circular reference"],
];
for (const [what, value, path, received] of REFUSED) {
  Deno.test(`jsonBody: ${what} is refused with its place`, () => {
    const flaw = flawOf(value);
    same([flaw.path, flaw.received], [path, received]);
    ok(["a JSON value", "an exact integer"].includes(flaw.expected));
    ok(flaw.why.length > 0 && flaw.hint.length > 0);
  });
}

Deno.test("jsonBody: what cannot be read is refused with its place", () => {
  const getter = {
    get a() {
      throw new Error("no");
    },
  };
  same([flawOf([getter]).path, flawOf([getter]).why], ["/0/a", "reading it threw: no"]);
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  same(flawOf({ p: proxy }).path, "/p");
});

Deno.test("jsonBody: a depth over the cap is told as such, however deep", () => {
  for (const depth of [129, 200, 20_000]) {
    const flaw = flawOf(nested(depth));
    same(flaw.why, "it is nested deeper than 128 levels");
    ok(flaw.path.startsWith("/") && flaw.path.length < 600, flaw.path);
  }
});

Deno.test("jsonBody: size is counted in bytes of UTF-8", () => {
  same(sent("x".repeat(98), 100).length, 100);
  same(flawOf("x".repeat(99), 100).received, "at least 101 bytes");
  same(sent("é".repeat(49), 100).length, 51);
  const flaw = flawOf("é".repeat(50), 100);
  same([flaw.path, flaw.expected, flaw.received], ["", "at most 100 bytes of JSON", "102 bytes"]);
});

Deno.test("jsonBody: bigints are integers, and numbers that are written with an exponent are none", () => {
  const value = { id: 12345678901234567890n, list: [-1n, 9007199254740991, 1e21, -1.5e300, 0.1] };
  same(sent(value), '{"id":12345678901234567890,"list":[-1,9007199254740991,1e+21,-1.5e+300,0.1]}');
});

Deno.test("jsonBody: a script's own way to write bigints and Maps is honoured", () => {
  const bigint = BigInt.prototype as unknown as { toJSON?: () => string };
  const map = Map.prototype as unknown as { toJSON?: () => string };
  bigint.toJSON = map.toJSON = () => "own";
  try {
    same(sent([1n, new Map()]), '["own","own"]');
  } finally {
    delete bigint.toJSON;
    delete map.toJSON;
  }
});
