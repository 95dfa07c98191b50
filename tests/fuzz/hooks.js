// Puts recording hooks on what a context has, does what makes the engine and the sandbox look there, and says what of
// the realm around came by (`mark_realm.js`). Takes ROUND, of ROUNDS, and SEED.
const MARK = Symbol.for("cellblock.outer");
const { apply, defineProperty, deleteProperty, getOwnPropertyDescriptor, getPrototypeOf, ownKeys } = Reflect;
const [REFLECT, ProxyClass, ObjectProto] = [Reflect, Proxy, Object.prototype];
const TRAPS = ownKeys(Reflect).filter((name) => typeof Reflect[name] === "function");
const traps = Object.fromEntries(TRAPS.map((name) => [name, REFLECT[name]]));
const [say, later, PromiseClass] = [console.log, setTimeout, Promise];
const [has, add] = [WeakSet.prototype.has, WeakSet.prototype.add];
const own = new WeakSet();
const [hex, text] = [Number.prototype.toString, String];
const told = { __proto__: null };
let state = SEED * 7919 + ROUND + 1;

function chance(most) {
  state = (state * 1103515245 + 12345) & 0x7fffffff;
  return (state >> 8) % most;
}

function look(value, path, depth = 2) {
  if (value === null || typeof value !== "object" && typeof value !== "function" || apply(has, own, [value])) return;
  for (let o = value, steps = 0; o !== null && steps < 20; o = getPrototypeOf(o), steps++) {
    if (apply(has, own, [o])) return;
    const mark = getOwnPropertyDescriptor(o, MARK);
    if (mark !== undefined) {
      if (told[path] === undefined) say(`OUTER ${path}: ${mark.value}`);
      told[path] = true;
      return;
    }
  }
  const keys = depth > 0 ? ownKeys(value) : [];
  for (let i = 0; i < keys.length && i < 30; i++) {
    const found = getOwnPropertyDescriptor(value, keys[i]);
    if (found === undefined) continue;
    look(found.value, `${path}.${text(keys[i])}`, depth - 1);
    look(found.get, `get ${path}.${text(keys[i])}`, 0);
    look(found.set, `set ${path}.${text(keys[i])}`, 0);
  }
}

function spy(original, path) {
  if (original === null || typeof original !== "object" && typeof original !== "function") return original;
  const handler = { __proto__: null };
  for (let i = 0; i < TRAPS.length; i++) {
    const name = TRAPS[i];
    handler[name] = (...all) => {
      for (let k = 0; k < all.length; k++) look(all[k], `${path}: ${name}`);
      const got = apply(traps[name], undefined, all);
      look(got, `${path}: what ${name} gives`);
      return got;
    };
  }
  const made = new ProxyClass(original, handler);
  apply(add, own, [made]);
  return made;
}

const heard = (path) => (...all) => look(all, path);

const NAMES = ["then", "constructor", "prepareStackTrace", "stack", "stackTraceLimit", "cause", "name", "message", "toJSON",
  "get", "set", "value", "writable", "next", "done", "return", "length", "handleEvent", "errors", "callback", "url", "t",
  "id", "0", "1", Symbol.iterator, Symbol.asyncIterator, Symbol.species, Symbol.toPrimitive, Symbol.hasInstance,
  Symbol.toStringTag, Symbol.isConcatSpreadable, Symbol.unscopables, Symbol.match, Symbol.replace];

// Accessors where nothing was: the engine finds them through prototypes.
function plant(holder, name, path) {
  const kept = new WeakMap();
  const [read, write] = [kept.get.bind(kept), kept.set.bind(kept)];
  defineProperty(holder, name, {
    __proto__: null,
    configurable: true,
    get() {
      look(this, `${path} is read of`);
      return typeof this === "object" && this !== null ? read(this) : undefined;
    },
    set(value) {
      look(this, `${path} is set of`);
      look(value, `${path} is set to`);
      if (typeof this === "object" && this !== null) write(this, value);
    },
  });
}

const targets = [];
const seen = new Set();
function collect(holder, path) {
  if (holder === null || typeof holder !== "object" && typeof holder !== "function" || seen.has(holder)) return;
  seen.add(holder);
  for (const key of ownKeys(holder)) {
    const found = getOwnPropertyDescriptor(holder, key);
    const at = `${path}.${text(key)}`;
    if (found.configurable) targets.push([holder, key, found, at]);
    for (const one of [found.value, found.get, found.set]) collect(one, at);
  }
  collect(getPrototypeOf(holder), `${path}.__proto__`);
}
collect(globalThis, "globalThis");
for (const value of [async () => {}, function* () {}, async function* () {}, [].keys(), new Map().keys(), "".matchAll(/x/g)]) {
  collect(value, "hidden");
}

// Each in its turn: a recorder, one with a formatter of stacks, an accessor, nothing.
function hook([holder, key, found, path], kind) {
  try {
    if (kind === 3) return void deleteProperty(holder, key);
    const original = found.value;
    const value = "value" in found
      ? kind === 0 ? { __proto__: original, prepareStackTrace: heard(`${path}.prepareStackTrace`) } : spy(original, path)
      : undefined;
    const { get, set } = kind === 2 || found.get !== undefined
      ? { get: spy(found.get ?? (() => original), `get ${path}`), set: spy(found.set ?? (() => {}), `set ${path}`) }
      : {};
    const made = get === undefined ? { value, writable: true } : { get, set };
    defineProperty(holder, key, { __proto__: null, ...made, configurable: true });
  } catch { /* frozen, or hooked before */ }
}

const call = (await $load("@codemode/servers/s")).call;
const listener = function (event) {
  look(this, "this of a listener");
  look(event, "an event");
};
const thenable = { then(yes, no) { look(yes, "yes"); look(no, "no"); yes(1); } };
const odd = () => spy(new Error("odd", { cause: spy({}, "cause") }), "a thrown error");
const deep = (work) => {
  let left = 10;
  const down = () => {
    try {
      down();
    } catch (error) {
      look(error, "an error on a full stack");
    }
    if (left-- > 0) look(work(), "an answer on a full stack");
  };
  down();
};
const ACTS = [
  () => null.x,
  () => look(new RangeError("x", { cause: odd() }).stack, "a stack"),
  () => { const o = {}; Error.captureStackTrace(o); look(o.stack, "a captured stack"); },
  () => { throw odd(); },
  () => console.log({ a: [1, new Map([[1, 2]])] }, new Error("x"), Symbol("x"), 1n, odd(), () => 1, new Date(0)),
  () => console.error("%o", spy([1, 2], "logged"), new URL("http://x/?a=1")),
  () => call({ a: 1 }),
  () => call(spy({ a: { toJSON() { look(this, "toJSON"); return 1; } } }, "input")),
  () => call(1n),
  () => $load("@codemode/none"),
  () => import("node:vm"),
  () => structuredClone({ a: [1, new Date(0), new Map([[1, new Set([2])]]), /x/g, new Error("x"), new Uint8Array(2)] }),
  () => structuredClone(() => 1),
  () => { const u = new URL("http://x/?a=1"); u.searchParams.append("b", spy({ toString: () => "c" }, "text")); look(u, "url"); },
  () => new TextDecoder().decode(new TextEncoder().encode("\u00e4")),
  () => [crypto.getRandomValues(new Uint8Array(8)), crypto.randomUUID(), atob(btoa("x")), performance.now()],
  () => { const p = Promise.reject(odd()); setTimeout(() => p.catch(() => {}), 0); },
  () => new Promise((done) => setTimeout(done, 0)),
  () => new Promise((done) => queueMicrotask(done)),
  async () => { for await (const one of (async function* () { yield thenable; })()) look(one, "of an iterator"); },
  async () => look(await thenable, "awaited"),
  () => Promise.all([thenable, 1, Promise.resolve(2)]),
  () => { const c = new AbortController(); c.signal.addEventListener("abort", listener); c.abort(odd()); },
  () => new Promise((done) => AbortSignal.timeout(1).addEventListener("abort", (event) => { listener(event); done(); })),
  () => { new FinalizationRegistry((held) => look(held, "held")).register({}, {}); new Array(1e5).fill(0); },
  () => [new Intl.DateTimeFormat().format(0), `${Temporal.Now.instant()}`, JSON.stringify({ toJSON: thenable.then }), "a".replace(/a/, "b")],
  () => chance(8) === 0 && deep([() => crypto.randomUUID(), () => new URL("http://x/"), () => setTimeout(() => {}, 0)][chance(3)]),
  () => dispatchEvent(new Event("error")),
];

const mine = targets.filter((_, index) => index % ROUNDS === ROUND % ROUNDS);
const planted = [];
if (chance(3) === 0) {
  for (let i = 0; i < 3; i++) planted.push([[ObjectProto, Array.prototype, Function.prototype][chance(3)], NAMES[chance(NAMES.length)]]);
}
const order = ACTS.map((act) => [chance(1000), act]).sort((a, b) => a[0] - b[0]);
const FINALLY = chance(6);
const ends = { get a() { throw odd(); }, toJSON() { look(this, "a result"); return spy({ b: 1 }, "a result"); } };
for (const [holder, name] of planted) plant(holder, name, `prototype.${text(name)}`);
for (let i = 0; i < mine.length; i++) hook(mine[i], (i + SEED) % 4);

const tried = async (act) => {
  try {
    const got = act();
    look(got, "what an act gives");
    look(await got, "what an act gives in the end");
  } catch (error) {
    try {
      look(error, "what an act throws");
      look(error.stack, "its stack");
    } catch { /* hooked */ }
  }
};
for (let i = 0; i < order.length; i++) {
  await new PromiseClass(async (done) => {
    later(done, 50);
    await tried(order[i][1]);
    done();
  });
}
if (FINALLY === 0) throw odd();
if (FINALLY === 1) void Promise.reject({ get stack() { look(this, "a reason"); throw odd(); } });
if (FINALLY === 2) setTimeout(() => { throw odd(); }, 0);
globalThis.__codemode_result__ = FINALLY === 3 ? ends : FINALLY === 4 ? spy([1, { a: 1 }], "a result") : 1;
