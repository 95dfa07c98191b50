import { deepStrictEqual as same, ok } from "node:assert/strict";
import { toResult } from "../../../../../worker_runtime/sandbox/result/result.ts";
import { formatLog } from "../../../../../worker_runtime/sandbox/result/serialize.ts";
import { poisoned, POISONS } from "./hostile.ts";

// Nothing of the sandbox may call, or be misled by, what agent code put on the built-ins.

const LIMITS = { maxBytes: 1 << 20, maxDepth: 100 };
const bare = (error: Error) => {
  error.stack = "";
  return error;
};
const circular = () => {
  const value: Record<string, unknown> = { z: 1, a: {} };
  (value.a as Record<string, unknown>).up = value;
  return value;
};
const sample = () => ({
  z: [1, "two", [3n], new Map([["k", new Set([1])]]), new Date(0), /r/g, undefined, Object("boxed")],
  a: {
    error: bare(new TypeError("bad", { cause: 1 })),
    bytes: new Uint8Array([1]),
    f() {},
    s: Symbol("y"),
    n: NaN,
  },
  c: circular(),
  g: {
    get bad() {
      throw 1;
    },
    ok: [null, -1.5, true],
  },
});
const args =
  () => ["text", sample(), bare(new RangeError("top", { cause: sample() })), circular(), 5n, [1, [2]]];

const message = formatLog(args(), 1 << 16);
const result = toResult(sample(), LIMITS);
const tooLarge = toResult(sample(), { ...LIMITS, maxBytes: 50 });

Deno.test("the sample is rich enough", () => {
  ok(message.length > 400);
  same(result.issues.length, 11);
  same(JSON.parse(result.json).z[3], { k: [1] });
  same(tooLarge.fatal, true);
});

for (const [what, patches] of Object.entries(POISONS)) {
  Deno.test(`formatLog does not notice: ${what}`, () => {
    const given = args();
    same(poisoned(patches, () => formatLog(given, 1 << 16)), message);
  });
  Deno.test(`toResult does not notice: ${what}`, () => {
    const given = sample();
    const small = { ...LIMITS, maxBytes: 50 };
    same(poisoned(patches, () => toResult(given, LIMITS)), result);
    same(poisoned(patches, () => toResult(given, small)), tooLarge);
  });
  Deno.test(`the poison bites: ${what}`, () => {
    const [holder, key, { value, get }] = patches[0];
    const lookUp = Reflect.getOwnPropertyDescriptor;
    const now = poisoned(patches, () => lookUp(holder, key)!);
    same(value === undefined ? now.get : now.value, value === undefined ? get : value);
    ok(lookUp(holder, key)?.value !== value || value === undefined);
  });
}
