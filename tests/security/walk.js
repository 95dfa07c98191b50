// Walks all that can be reached, calls every function, and tells what bears the mark of `mark_realm.js`.
const MARK = Symbol.for("cellblock.outer");
const { ownKeys, getPrototypeOf, getOwnPropertyDescriptor, apply, construct } = Reflect;
const outer = [];
const known = new Set();
const queue = [];
const pending = [];
let functions = 0;

// What would end the walk, or take its time.
const LEFT_ALONE = new Set(["repeat", "padStart", "padEnd", "__codemode_result__"]);

// Whether it is new, and none of the realm around.
function look(value, path) {
  if (value === null || typeof value !== "object" && typeof value !== "function" || known.has(value)) return false;
  known.add(value);
  for (let o = value, steps = 0; o !== null && steps < 20; o = getPrototypeOf(o), steps++) {
    const mark = getOwnPropertyDescriptor(o, MARK);
    if (mark !== undefined) {
      outer.push(`${path}: ${mark.value}`);
      return false;
    }
  }
  return true;
}

function visit(value, path) {
  if (look(value, path) && path.length < 120) queue.push([value, path]);
}

const spy = new Proxy(function () {}, new Proxy({}, {
  get: (_, trap) => (...all) => {
    for (const one of all) visit(one, `argument of ${String(trap)}`);
    return Reflect[trap](...all);
  },
}));

const callback = function (...all) {
  visit(this, "this of a callback");
  for (const one of all) visit(one, "argument of a callback");
};

const ARGUMENTS = () => [[], [{}], ["x", "y"], [callback, 1], [spy], [[1, 2]], [1], [Symbol.iterator, spy]];

function tried(work, path) {
  try {
    const got = work();
    visit(got, `${path}()`);
    if (got instanceof Promise) pending.push([got, path]);
  } catch (error) {
    look(error, `${path} throws`);
  }
}

// Calls it again and again from a stack that is almost full; what comes is looked at when there is room again.
function deep(work, path) {
  const found = new Array(50).fill(null);
  let count = 0;
  let left = 12;
  const down = () => {
    try {
      down();
    } catch (error) {
      found[count++ % 50] = error;
    }
    if (left-- > 0) {
      try {
        found[count++ % 50] = work();
      } catch (error) {
        found[count++ % 50] = error;
      }
    }
  };
  try {
    down();
  } catch (error) {
    found[0] = error;
  }
  for (const one of found) {
    look(one, `${path} on a full stack`);
    if (one instanceof Promise) pending.push([one, path]);
  }
}

function call(f, self, path) {
  functions++;
  if (DEPTH === "full") {
    deep(() => apply(f, self, []), path);
    deep(() => apply(f, self, ["http://x/"]), path);
    return;
  }
  for (const all of ARGUMENTS()) {
    for (const one of [self, undefined, spy]) tried(() => apply(f, one, all), path);
    tried(() => construct(f, all), `new ${path}`);
    tried(() => construct(f, all, callback), `new ${path}`);
  }
}

visit(globalThis, "globalThis");
visit(import.meta, "import.meta");
for (const name of ["@codemode/errors", "@codemode/servers/s", "@codemode/servers/none"]) {
  tried(() => $load(name), `load ${name}`);
}
tried(() => import("node:vm"), "import()");
for (const value of [async () => {}, function* () {}, async function* () {}, new Error("x"), /x/g, new Intl.Segmenter(),
  new URL("http://x/?a=1"), new URL("http://x/?a=1").searchParams, new AbortController(), new TextDecoder(),
  new Event("x"), new Map([[1, 2]]).entries(), "x".matchAll(/x/g), Temporal.Now.instant(), new DOMException("x")]) {
  visit(value, "a value");
}

while (queue.length > 0 && known.size < (DEPTH === "full" ? 200_000 : 60_000)) {
  const [value, path] = queue.shift();
  visit(getPrototypeOf(value), `${path}.__proto__`);
  for (const key of ownKeys(value)) {
    const name = typeof key === "symbol" ? key.toString() : key;
    const at = `${path}.${name}`;
    if (LEFT_ALONE.has(name)) continue;
    const found = getOwnPropertyDescriptor(value, key);
    if (found === undefined) continue;
    for (const f of [found.get, found.set]) {
      if (f === undefined) continue;
      visit(f, at);
      tried(() => apply(f, value, []), at);
    }
    visit(found.value, at);
    if (typeof found.value === "function" && functions < 4_000) call(found.value, value, at);
  }
  while (pending.length > 0) {
    const [promise, of] = pending.pop();
    const late = new Promise((resolve) => queueMicrotask(() => queueMicrotask(() => queueMicrotask(resolve))));
    try {
      visit(await Promise.race([promise, late]), `await ${of}`);
    } catch (error) {
      visit(error, `${of} rejects`);
    }
  }
}
globalThis.__codemode_result__ = { outer, functions, objects: known.size };
