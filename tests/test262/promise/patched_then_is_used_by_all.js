// `all` calls `then` of what `resolve` gave: a patched one is seen, and is gone in the next run.
const original = Promise.prototype.then;
let calls = 0;
Promise.prototype.then = function (...args) {
  calls++;
  return Reflect.apply(original, this, args);
};
const all = Promise.all([Promise.resolve(1), Promise.resolve(2)]);
same(calls, 2, "calls");
Promise.prototype.then = original;
sameList(await all, [1, 2], "values");
