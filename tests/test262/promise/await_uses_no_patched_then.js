// `await` of a native promise does not look `then` up.
let calls = 0;
Promise.prototype.then = function () {
  calls++;
};
same(await Promise.resolve(1), 1, "value");
same(calls, 0, "calls");
