import { deepStrictEqual as same, ok } from "node:assert/strict";
import { type IssueKind, toResult } from "../../../../../worker_runtime/sandbox/result/result.ts";

const LIMITS = { maxBytes: 1 << 20, maxDepth: 100 };
const read = (value: unknown, limits = LIMITS) => toResult(value, limits);
const thrower = (message: string) => () => {
  throw new Error(message);
};
const revoked = () => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};

class Money {
  constructor(readonly cents: number) {}
  toJSON(key: string) {
    return { key, euro: this.cents / 100 };
  }
}

// Plain JSON and what JSON carries by custom: the text of JSON.stringify, no issue.
const PLAIN: [string, unknown][] = [
  ["null", null],
  ["primitives", [true, false, 0, -0, 1.5, 1e300, "", "a"]],
  ["objects in insertion order", { b: 1, a: { d: [1, { e: null }], c: "x" }, 10: 1, 9: 2 }],
  ["empty containers", [{}, [], { a: {} }]],
  ["texts that look like escaped surrogates", ["\\ud800", { "\\udc00": "\ud83d\ude00" }]],
  ["control characters", '"\\\u0000\n\u2028'],
  ["undefined members of an array's elements", [{ a: undefined, b: 1 }, { a: 2, b: 1 }]],
  ["an own __proto__", JSON.parse('{"__proto__":{"a":1},"constructor":2,"toString":3}')],
  ["a null prototype", Object.assign(Object.create(null), { a: 1 })],
  ["a valid Date", { at: new Date(1e12) }],
  ["boxed primitives", [Object(1), Object("s"), Object(false)]],
  ["toJSON of a class", { price: new Money(150), list: [new Money(1)] }],
  ["own toJSON", { toJSON: () => [1] }],
  ["toJSON that gives a primitive", [{ toJSON: () => "x" }]],
  ["URL", new URL("http://a/b")],
  ["Temporal", Temporal.PlainDate.from("2026-01-31")],
  ["non-enumerable members", Object.defineProperty({ a: 1 }, "b", { value: 2 })],
  [
    "a class with members",
    new (class {
      a = 1;
      #b = 2;
      get c() {
        return this.#b;
      }
    })(),
  ],
  ["getters", {
    get a() {
      return [1];
    },
  }],
  ["a proxy of plain data", new Proxy({ a: [1] }, {})],
  ["a proxy of an array", new Proxy([1, [2]], {})],
  ["a subclass of Array", class extends Array {}.from([1, 2])],
  [
    "shared values",
    (() => {
      const s = { a: [1] };
      return { x: s, y: [s, s] };
    })(),
  ],
  [
    "100 levels",
    (() => {
      let v: unknown = [];
      for (let i = 1; i < 100; i++) v = [v];
      return v;
    })(),
  ],
];
for (const [what, value] of PLAIN) {
  Deno.test(`toResult: ${what}`, () => {
    same(read(value), { json: JSON.stringify(value), issues: [], fatal: false });
  });
}

Deno.test("toResult: never assigned is null", () => {
  same(read(undefined), { json: "null", issues: [], fatal: false });
});

// [what, value, text, path and kind of each issue]
const ISSUES: [string, unknown, string, [string, IssueKind][]][] = [
  ["a function", { a: [() => {}] }, '{"a":[null]}', [["/a/0", "function"]]],
  ["the result is a function", () => {}, "null", [["", "function"]]],
  ["a symbol", { a: Symbol("s") }, '{"a":null}', [["/a", "symbol"]]],
  ["a bigint past all numbers", { a: 10n ** 308n }, `{"a":"1${"0".repeat(308)}"}`, [["/a", "bigint"]]],
  ["NaN and Infinity", [NaN, { x: -Infinity }], '[null,{"x":null}]', [["/0", "non_finite_number"], [
    "",
    "more_issues",
  ]]],
  [
    "lone surrogates, which have no UTF-8",
    { a: ["\ud800", "fine", { "\udc00": "x\ud83d" }] },
    '{"a":["\\ud800","fine",{"\\udc00":"x\\ud83d"}]}',
    [["/a/0", "lone_surrogate"], ["/a/2/\ufffd", "lone_surrogate"], ["/a/2/\ufffd", "lone_surrogate"]],
  ],
  ["undefined members", { a: 1, b: { c: undefined, d: 1, e: undefined } }, '{"a":1,"b":{"d":1}}', [[
    "/b/c",
    "undefined_member",
  ]]],
  [
    "a member that is undefined in all elements",
    { rows: [{ a: undefined, b: 1 }, { a: undefined }] },
    '{"rows":[{"b":1},{}]}',
    [[
      "/rows/0/a",
      "undefined_member",
    ]],
  ],
  ["undefined in an array", [1, undefined], "[1,null]", [["/1", "undefined"]]],
  ["a hole", [1, , 3], "[1,null,3]", [["/1", "undefined"]]],
  ["toJSON gives undefined", { a: { toJSON: () => undefined } }, '{"a":null}', [["/a", "undefined"]]],
  [
    "a cycle",
    (() => {
      const v: Record<string, unknown> = { k: {} };
      (v.k as typeof v).up = v;
      return v;
    })(),
    '{"k":{"up":null}}',
    [["/k/up", "circular"]],
  ],
  [
    "a cycle to the middle",
    (() => {
      const v: unknown[] = [];
      v.push(v);
      return { a: v };
    })(),
    '{"a":[null]}',
    [["/a/0", "circular"]],
  ],
  [
    "a cycle through toJSON",
    (() => {
      const v: unknown[] = [];
      v.push({ toJSON: () => v });
      return v;
    })(),
    "[null]",
    [["/0", "circular"]],
  ],
  [
    "a getter that throws",
    {
      a: 1,
      get b() {
        throw new Error("no");
      },
      c: [2],
    },
    '{"a":1,"b":null,"c":[2]}',
    [["/b", "unreadable"]],
  ],
  [
    "an element that throws",
    Object.defineProperty([1, 2], 1, { get: thrower("no"), enumerable: true }),
    "[1,null]",
    [["/1", "unreadable"]],
  ],
  ["a revoked proxy", { p: revoked(), q: 1 }, '{"p":null,"q":1}', [["/p", "unreadable"]]],
  ["a proxy whose traps throw", [new Proxy({}, { ownKeys: thrower("x") })], "[{}]", [["/0", "unreadable"]]],
  ["an array that cannot be listed", [new Proxy([1], { get: thrower("x") })], "[[]]", [["/0", "unreadable"]]],
  ["toJSON that throws", { a: { toJSON: thrower("x") } }, '{"a":null}', [["/a", "unreadable"]]],
  [
    "toJSON getter that throws",
    {
      a: {
        get toJSON() {
          throw 1;
        },
      },
    },
    '{"a":null}',
    [["/a", "unreadable"]],
  ],
  ["a Promise", { p: Promise.resolve(1) }, '{"p":null}', [["/p", "promise"]]],
  [
    "a Map with string keys",
    { m: new Map<string, unknown>([["b", 1], ["__proto__", 2]]) },
    '{"m":{"b":1,"__proto__":2}}',
    [["/m", "map"]],
  ],
  ["a Map with other keys", new Map<unknown, unknown>([[1, "a"], ["b", () => {}]]), '[[1,"a"],["b",null]]', [[
    "",
    "map",
  ], ["/1/1", "function"]]],
  ["a Set", { s: new Set([1, NaN]) }, '{"s":[1,null]}', [["/s", "set"], ["/s/1", "non_finite_number"]]],
  [
    "bytes",
    [new Uint8Array([255, 0]), new ArrayBuffer(3), new DataView(new ArrayBuffer(4), 1)],
    '["/wA=","AAAA","AAAA"]',
    [["/0", "binary"], ["/1", "binary"], ["/2", "binary"]],
  ],
  ["numbers", [new Int16Array([-1]), new BigInt64Array([2n])], "[[-1],[2]]", [["/0", "binary"], [
    "/1",
    "binary",
  ]]],
  ["an invalid Date", { at: new Date(NaN) }, '{"at":null}', [["/at", "invalid_date"]]],
  [
    "an Error",
    { e: Object.assign(new TypeError("bad", { cause: new Error("why") }), { code: 5 }) },
    '{"e":{"name":"TypeError","message":"bad","cause":{"name":"Error","message":"why"},"code":5}}',
    [["/e", "error_object"], ["/e/cause", "error_object"]],
  ],
  ["a RegExp", [/a/g], '["/a/g"]', [["/0", "regexp"]]],
  ["URLSearchParams", [new URLSearchParams("a=1")], '["a=1"]', [["/0", "search_params"]]],
  ["symbol keys", { a: { [Symbol("s")]: 1, b: 2 } }, '{"a":{"b":2}}', [["/a", "symbol_key"]]],
  ["iterators and generators", [[].values(), (function* () {})()], "[null,null]", [["/0", "opaque_object"], [
    "/1",
    "opaque_object",
  ]]],
  ["weak collections", [new WeakMap(), new WeakRef({})], "[null,null]", [["/0", "opaque_object"], [
    "/1",
    "opaque_object",
  ]]],
  [
    "an instance without members",
    {
      a: new (class Secret {
        #a = 1;
        get b() {
          return this.#a;
        }
      })(),
    },
    '{"a":{}}',
    [["/a", "opaque_object"]],
  ],
  [
    "bigints are integers",
    [-12345678901234567890n, { a: Object(1n) }, NaN],
    '[-12345678901234567890,{"a":1},null]',
    [
      ["/2", "non_finite_number"],
    ],
  ],
  ["a pointer with ~ and /", { "a/b": { "~": NaN } }, '{"a/b":{"~":null}}', [[
    "/a~1b/~0",
    "non_finite_number",
  ]]],
  ["a fake Map is plain", [Object.create(Map.prototype)], "[{}]", [["/0", "opaque_object"]]],
];
for (const [what, value, json, issues] of ISSUES) {
  Deno.test(`toResult reports ${what}`, () => {
    const result = read(value);
    same(result.json, json);
    same(result.issues.map(({ path, kind }) => [path, kind]), issues);
    ok(result.issues.every(({ message }) => message.length > 10) && !result.fatal);
    JSON.parse(result.json);
  });
}

Deno.test("toResult: a Promise says what to do", () => {
  ok(read(Promise.resolve(1)).issues[0].message.includes("await it"));
});

Deno.test("toResult: at most 20 issues, then how many more", () => {
  const { issues } = read(new Array(1000).fill(Symbol()));
  same(issues.length, 21);
  same([issues[19].path, issues[20].kind], ["/19", "more_issues"]);
  ok(issues[20].message.includes("980"));
});

Deno.test("toResult: of holes in a row the first is listed", () => {
  const { issues } = read({ rows: new Array(30).fill(undefined), total: NaN });
  same(issues.map(({ path, kind }) => [path, kind]), [
    ["/rows/0", "undefined"],
    ["/total", "non_finite_number"],
    ["", "more_issues"],
  ]);
  ok(issues[2].message.includes("29"));
});

Deno.test("toResult: of NaNs in a row the first is listed", () => {
  const { issues } = read([{ a: NaN, b: NaN }, { a: NaN, b: 1 }]);
  same(issues.map(({ path, kind }) => [path, kind]), [["/0/a", "non_finite_number"], ["", "more_issues"]]);
});

Deno.test("toResult: too deep is fatal and says where", () => {
  const deep = { a: [{ b: [[1]] }] };
  same(read(deep, { ...LIMITS, maxDepth: 5 }).fatal, false);
  const result = read({ f() {}, ...deep }, { ...LIMITS, maxDepth: 4 });
  same([result.json, result.fatal, result.issues[0].path, result.issues[0].kind], [
    "null",
    true,
    "/a/0/b/0",
    "too_deep",
  ]);
  same(result.issues[1].kind, "function");
  let bottomless: unknown = [];
  for (let i = 0; i < 100_000; i++) bottomless = [bottomless];
  ok(read(bottomless).issues[0].path.length < 1000);
});

Deno.test("toResult: the cap is exact, in UTF-8 bytes", () => {
  for (
    const value of [
      "x",
      "é€😀\ud800",
      [],
      {},
      [1, [true, null]],
      { a: "é", b: [{}] },
      ["a", "b"],
      new Array(9).fill(0),
    ]
  ) {
    const json = JSON.stringify(value);
    const size = new TextEncoder().encode(json).length;
    const exact = read(value, { maxBytes: size, maxDepth: 9 });
    const kinds = exact.issues.map((issue) => issue.kind);
    same([exact.json, exact.fatal, kinds], [json, false, value === "é€😀\ud800" ? ["lone_surrogate"] : []]);
    const over = read(value, { maxBytes: size - 1, maxDepth: 9 });
    same([over.json, over.fatal, over.issues[0].kind, over.issues[0].path], ["null", true, "too_large", ""]);
    ok(over.issues[0].message.includes(`the cap is ${size - 1} bytes`));
  }
});

// Each would be gigabytes, endless, or both.
const ENDLESS: [string, () => unknown, IssueKind][] = [
  ["2^60 leaves through shared references", () => {
    let value: unknown = [1];
    for (let i = 0; i < 60; i++) value = [value, value];
    return value;
  }, "too_large"],
  ["a sparse array of four billion", () => {
    const value: unknown[] = [];
    value[4_000_000_000] = 1;
    return value;
  }, "too_large"],
  ["a proxy that says it is an endless array", () => new Proxy([], { get: () => 2 ** 53 }), "too_large"],
  ["an endless chain of getters", () => {
    const make = (): object => ({
      get next() {
        return make();
      },
    });
    return make();
  }, "too_deep"],
  ["an endless chain of toJSON", () => {
    const make = (): object => ({ toJSON: () => ({ next: make() }) });
    return make();
  }, "too_deep"],
  ["200,000 levels", () => {
    let value: unknown = [];
    for (let i = 0; i < 200_000; i++) value = { value };
    return value;
  }, "too_deep"],
  ["a string of 10 MB", () => "x".repeat(10_000_000), "too_large"],
  ["a Map of a million", () => new Map(Array.from({ length: 1_000_000 }, (_, i) => [i, i])), "too_large"],
  ["100 MB of bytes", () => new Uint8Array(100_000_000), "too_large"],
];
for (const [what, make, kind] of ENDLESS) {
  Deno.test(`toResult ends at once: ${what}`, () => {
    const value = make();
    const result = read(value);
    same([result.json, result.fatal, result.issues[0].kind], ["null", true, kind]);
  });
}

Deno.test("toResult: a depth cap beyond the call stack is still no crash", () => {
  let value: unknown = [];
  for (let i = 0; i < 200_000; i++) value = [value];
  const result = read(value, { maxBytes: 1 << 30, maxDepth: 1e9 });
  same([result.json, result.fatal, result.issues[0].kind], ["null", true, "unreadable"]);
});

Deno.test("toResult: what was checked is what is written, however the value changes", () => {
  let reads = 0;
  const shifty = new Proxy({ a: 1 } as Record<string, unknown>, {
    get: (_, key) => key === "a" ? (++reads === 1 ? "first" : () => {}) : undefined,
  });
  same(read({ shifty }), { json: '{"shifty":{"a":"first"}}', issues: [], fatal: false });
  same(reads, 1);
  const holder = {
    get a() {
      (Array.prototype as unknown as Record<string, unknown>).toJSON = () => "stolen";
      return [1];
    },
  };
  try {
    same(read(holder).json, '{"a":[1]}');
  } finally {
    delete (Array.prototype as unknown as Record<string, unknown>).toJSON;
  }
});

Deno.test("toResult: a prototype put over Array.prototype is not asked for toJSON", () => {
  const above = Object.create(Object.prototype, { toJSON: { value: () => "stolen" } });
  Object.setPrototypeOf(Array.prototype, above);
  try {
    same(read({ a: [1, [2]] }).json, '{"a":[1,[2]]}');
  } finally {
    Object.setPrototypeOf(Array.prototype, Object.prototype);
  }
});

Deno.test("toResult: a proxy that is revoked while it is read does not cost the rest", () => {
  const made = Proxy.revocable({
    a: 1,
    get inner() {
      return {
        get x() {
          made.revoke();
          return {};
        },
        gone: undefined,
      };
    },
  }, {});
  const { json, issues, fatal } = read(made.proxy);
  same({ json, fatal }, { json: '{"a":1,"inner":{"x":{}}}', fatal: false });
  same(issues.map((issue) => issue.path), ["/inner/gone"]);
});
