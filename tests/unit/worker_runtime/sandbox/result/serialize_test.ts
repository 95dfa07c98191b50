import { deepStrictEqual as same, ok } from "node:assert/strict";
import { formatLog } from "../../../../../worker_runtime/sandbox/result/serialize.ts";
import { agentFrames } from "../../../../../worker_runtime/sandbox/result/stack_text.ts";

const CAP = 64 * 1024;
const log = (...args: unknown[]) => formatLog(args, CAP);
const bytes = (text: string) => new TextEncoder().encode(text).length;

class Point {
  constructor(readonly y: number, readonly x: number) {}
  #hidden = 1;
  get sum() {
    return this.x + this.y + this.#hidden;
  }
}

class Failure extends Error {
  override name = "Failure";
  hint = "try again";
}

const revoked = () => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};
const circular = () => {
  const value: Record<string, unknown> = { z: 1, a: {} };
  (value.a as Record<string, unknown>).up = value;
  return value;
};
const thrower = (message: string) => () => {
  throw new Error(message);
};
const bare = (error: Error) => {
  error.stack = "";
  return error;
};

// [what, arguments, message]
const CASES: [string, unknown[], string][] = [
  ["no argument", [], ""],
  ["strings are raw and joined by a space", ["a b", "", 'c"'], 'a b  c"'],
  ["undefined, null, booleans", [undefined, null, true, false], "undefined null true false"],
  ["numbers by String()", [-0, 1e21, NaN, -Infinity, 0.1], "0 1e+21 NaN -Infinity 0.1"],
  ["bigint and symbol", [10n, Symbol("x"), Symbol()], "10 Symbol(x) Symbol()"],
  [
    "functions",
    [function named() {}, () => {}, Point],
    "[Function named] [Function (anonymous)] [Function Point]",
  ],
  ["a lone surrogate", ["a\ud800b", "\udc00"], "a\ufffdb \ufffd"],
  [
    "keys are sorted by code unit",
    [{ b: 1, a: 2, B: 3, "é": 4, "😀": 5, "\uffff": 6 }],
    '{"B":3,"a":2,"b":1,"é":4,"😀":5,"\uffff":6}',
  ],
  ["integer-like keys too", [{ 9: 1, 10: 2, x: 0, "01": 3 }], '{"01":3,"10":2,"9":1,"x":0}'],
  ["nested objects are sorted", [[{ b: { d: 1, c: 2 }, a: [] }]], '[{"a":[],"b":{"c":2,"d":1}}]'],
  ["empty containers", [{}, [], new Map(), new Set()], '{} [] {"[Map]":[]} {"[Set]":[]}'],
  ["members JSON leaves out", [{ a: undefined, b: 1, [Symbol("s")]: 2 }], '{"b":1}'],
  ["undefined and holes in arrays", [[undefined, , 1]], "[null,null,1]"],
  ["numbers inside", [[NaN, Infinity, -0, 1.5]], "[null,null,0,1.5]"],
  [
    "bigint, symbol, function inside",
    [{ a: 1n, b: Symbol("s"), c() {} }],
    '{"a":1,"b":"Symbol(s)","c":"[Function c]"}',
  ],
  ["strings inside are JSON", [['"\n\u2028\ud800']], '["\\"\\n\u2028\ufffd"]'],
  ["null prototype", [Object.assign(Object.create(null), { b: 1, a: 2 })], '{"a":2,"b":1}'],
  ["own __proto__", [JSON.parse('{"__proto__":{"a":1}}')], '{"__proto__":{"a":1}}'],
  ["class instances", [new Point(1, 2)], '{"x":2,"y":1}'],
  ["non-enumerable members", [Object.defineProperty({ a: 1 }, "b", { value: 2 })], '{"a":1}'],
  [
    "Map keeps its order",
    [new Map<unknown, unknown>([["b", 1], [{ k: 1 }, [2]]])],
    '{"[Map]":[["b",1],[{"k":1},[2]]]}',
  ],
  ["Set keeps its order", [{ s: new Set([2, 1]) }], '{"s":{"[Set]":[2,1]}}'],
  [
    "typed arrays",
    [new Uint8Array([1, 2]), new Float64Array([0.5, NaN]), new BigInt64Array([3n])],
    '{"[Uint8Array]":[1,2]} {"[Float64Array]":[0.5,null]} {"[BigInt64Array]":[3]}',
  ],
  [
    "buffers",
    [new ArrayBuffer(2), new DataView(new ArrayBuffer(3), 1)],
    '{"[ArrayBuffer]":[0,0]} {"[DataView]":[0,0]}',
  ],
  ["dates", [new Date(0), { d: new Date(0) }], '1970-01-01T00:00:00.000Z {"d":"1970-01-01T00:00:00.000Z"}'],
  ["invalid dates", [new Date(NaN), [new Date(NaN)]], 'Invalid Date ["Invalid Date"]'],
  ["RegExp", [/a\/b/gi, [/x/v]], '/a\\/b/gi ["/x/v"]'],
  [
    "boxed primitives",
    [Object(1), Object("s"), [Object(true), Object("q"), Object(2n)]],
    '1 s [true,"q",2]',
  ],
  [
    "promises, weak collections, iterators",
    [Promise.resolve(1), [new WeakMap(), [].values()]],
    '[Promise] ["[WeakMap]","[Iterator]"]',
  ],
  ["URL and URLSearchParams", [new URL("http://a/"), [new URLSearchParams("q=1")]], 'http://a/ ["q=1"]'],
  [
    "toJSON",
    [{ toJSON: () => ({ b: 1, a: 2 }) }, [{ toJSON: (key: string) => `at ${key}` }]],
    '{"a":2,"b":1} ["at 0"]',
  ],
  ["toJSON of a class", [
    new (class {
      toJSON() {
        return undefined;
      }
    })(),
  ], "undefined"],
  [
    "toJSON that throws",
    [{ toJSON: thrower("no") }, [{ toJSON: thrower("no") }, 1]],
    '[Unserializable Object] ["[Unserializable Object]",1]',
  ],
  ["cycles", [circular()], '{"a":{"up":"[Circular]"},"z":1}'],
  ["a cycle through toJSON", [(() => {
    const v: unknown[] = [];
    v.push({ toJSON: () => v });
    return v;
  })()], '["[Circular]"]'],
  ["shared values are no cycle", [(() => {
    const s = { a: 1 };
    return [s, s];
  })()], '[{"a":1},{"a":1}]'],
  ["a cycle through a Map", [(() => {
    const m = new Map();
    m.set("me", m);
    return m;
  })()], '{"[Map]":[["me","[Circular]"]]}'],
  ["a getter that throws", [{
    get a() {
      throw new Error("why");
    },
    b: 1,
  }], '{"a":"[Getter threw: why]","b":1}'],
  ["a getter that throws nothing readable", [{
    get a() {
      throw revoked();
    },
  }], '{"a":"[Getter threw: something unreadable was thrown]"}'],
  [
    "a revoked proxy",
    [revoked(), { p: revoked() }],
    '[Unserializable Object] {"p":"[Unserializable Object]"}',
  ],
  ["a revoked proxy of a function", [(() => {
    const r = Proxy.revocable(() => {}, {});
    r.revoke();
    return r.proxy;
  })()], "[Function (anonymous)]"],
  ["a proxy of an object", [new Proxy({ b: 1, a: 2 }, {})], '{"a":2,"b":1}'],
  [
    "a proxy whose traps throw",
    [new Proxy({}, { ownKeys: thrower("x"), getPrototypeOf: thrower("y") })],
    "[Unserializable Object]",
  ],
  ["fakes are plain", [
    Object.create(Map.prototype),
    { [Symbol.toStringTag]: "Map" },
    Object.create(Date.prototype),
  ], "{} {} {}"],
  ["an Error", [bare(new TypeError("bad"))], "TypeError: bad"],
  ["an Error without message", [bare(new Error())], "Error"],
  ["an Error with members", [bare(new Failure("no"))], 'Failure: no {"hint":"try again"}'],
  [
    "a cause chain",
    [bare(new Error("a", { cause: bare(new RangeError("b", { cause: { c: 1 } })) }))],
    'Error: a\nCaused by: RangeError: b\nCaused by: {"c":1}',
  ],
  [
    "an AggregateError",
    [bare(new AggregateError([bare(new Error("one"))], "many"))],
    'AggregateError: many {"errors":[{"message":"one","name":"Error"}]}',
  ],
  [
    "a SuppressedError",
    [bare(new SuppressedError(bare(new Error("last")), bare(new Error("first")), "both"))],
    'SuppressedError: both {"error":{"message":"last","name":"Error"},"suppressed":{"message":"first","name":"Error"}}',
  ],
  [
    "a nested Error",
    [{ e: bare(new Failure("no", { cause: bare(new Error("deep")) })) }],
    '{"e":{"cause":{"message":"deep","name":"Error"},"hint":"try again","message":"no","name":"Failure"}}',
  ],
  ["an Error that is its own cause", [(() => {
    const e = bare(new Error("x"));
    e.cause = e;
    return e;
  })()], "Error: x\nCaused by: [Circular]"],
  ["a DOMException", [bare(new DOMException("m", "AbortError"))], "AbortError: m"],
  ["an Error with getters that throw", [
    Object.defineProperties(bare(new Error("x")), {
      message: { get: thrower("m") },
      name: { get: thrower("n") },
    }),
  ], "Error"],
  ["a format", ["%s has %d rows%%", "users", 3], "users has 3 rows%"],
  ["a format of numbers", ["%i %f %d %d", "2.7", "2.7", {}, 10n], "2 2.7 NaN 10"],
  ["a format of objects, and a style", ["%c%j %o", "color: red", { a: 1 }, [1]], '{"a":1} [1]'],
  ["a format with too little and too much", ["%s %s %x", 1], "1 %s %x"],
  ["what is behind a format", ["%s", 1, { a: 1 }, "b"], '1 {"a":1} b'],
  ["a text alone is none", ["100%% of %s"], "100%% of %s"],
  ["signs that are none", ["50% off", 1], "50% off 1"],
];

for (const [what, args, message] of CASES) {
  Deno.test(`formatLog: ${what}`, () => same(log(...args), message));
}

Deno.test("formatLog: the text does not depend on insertion order", () => {
  const keys = Array.from({ length: 50 }, (_, i) => `k${(i * 7919) % 101}`);
  const forwards = Object.fromEntries(keys.map((key) => [key, { [key]: 1, a: 2 }]));
  const backwards = Object.fromEntries(keys.toReversed().map((key) => [key, { a: 2, [key]: 1 }]));
  same(log(forwards), log(backwards));
  same(JSON.parse(log(forwards)), forwards);
});

Deno.test("formatLog: binary data shows 100 elements", () => {
  const text = log(new Uint8Array(1000));
  ok(text.endsWith(',0,"… 900 more"]}'));
  same(JSON.parse(text)["[Uint8Array]"].length, 101);
});

Deno.test("formatLog: frames of the agent only, without the script's text", () => {
  const error = new TypeError("bad");
  error.stack = [
    "TypeError: bad",
    "    at inner (data:application/typescript;base64,ZnVuY3Rpb24......KTsK=:1:40)",
    "    at Array.map (<anonymous>)",
    "    at data:application/typescript;base64,AAAA:7:3",
    "    at boot (file:///usr/lib/secret/boot.js:9:9)",
    "    at ext:core/01_core.js:1:1",
  ].join("\n");
  same(
    log(error),
    "TypeError: bad\n    at inner (data:application/script:1:40)\n    at data:application/script:7:3",
  );
  same(
    JSON.parse(log([error]))[0].stack,
    "    at inner (data:application/script:1:40)\n    at data:application/script:7:3",
  );
  same(agentFrames("    at data:".repeat(1) + "x".repeat(1e6)).length <= 300, true);
  same(agentFrames("    at f (data:application/x:1:1)\n".repeat(1000)).split("\n").length, 20);
});

Deno.test("formatLog: a cut message is over the cap by at most four bytes, an uncut one never", () => {
  for (
    const [args, cap] of [
      [["x".repeat(100)], 10],
      [["é".repeat(100)], 11],
      [["😀".repeat(100)], 13],
      [[{ a: "é\n".repeat(100) }], 15],
      [["ab", "cd", ["😀"]], 9],
      [["\ud800".repeat(50)], 8],
      [["x"], 0],
    ] as [unknown[], number][]
  ) {
    const text = formatLog(args, cap);
    ok(bytes(text) > cap && bytes(text) <= cap + 4, `${bytes(text)} for ${cap}`);
    ok(text.isWellFormed() && formatLog(args, 10_000).startsWith(text));
  }
  same(formatLog(["x".repeat(10)], 10), "x".repeat(10));
  same(formatLog(["😀"], 4), "😀");
  same(formatLog([], 0), "");
});

// [what, value, milliseconds that are plenty]
const HUGE: [string, () => unknown][] = [
  ["a string of 10 MB", () => "x".repeat(10_000_000)],
  ["a nested string of 10 MB", () => [{ s: "\n".repeat(10_000_000) }]],
  ["an array of a million", () => new Array(1_000_000).fill({ a: 1 })],
  ["a sparse array of four billion", () => new Array(4_000_000_000)],
  ["a Map of a million", () => new Map(Array.from({ length: 1_000_000 }, (_, i) => [i, i]))],
  ["2^60 leaves through shared references", () => {
    let value: unknown = [1];
    for (let i = 0; i < 60; i++) value = [value, value];
    return value;
  }],
  ["an endless chain of getters", () => {
    const make = (): object => ({
      get next() {
        return make();
      },
    });
    return make();
  }],
  ["an endless proxy", () => {
    const make = (): object => new Proxy([], { get: (_, key) => key === "length" ? 2 ** 32 : make() });
    return make();
  }],
  ["200,000 levels", () => {
    let value: unknown = [];
    for (let i = 0; i < 200_000; i++) value = [value];
    return value;
  }],
];
for (const [what, make] of HUGE) {
  Deno.test(`formatLog: ${what} costs little more than the cap`, () => {
    const value = make();
    const start = performance.now();
    const text = formatLog([value], CAP);
    ok(performance.now() - start < 1500);
    ok(bytes(text) > CAP && bytes(text) <= CAP + 4);
  });
}

Deno.test("formatLog: 10,000 levels are written whole", () => {
  let value: unknown = [];
  for (let i = 1; i < 10_000; i++) value = i % 2 ? { a: value } : [value];
  const text = log(value);
  same(bytes(text), 2 * 5000 + 6 * 5000);
  ok(text.startsWith('{"a":[{"a":[') && text.endsWith("}]}"));
});
