// `finally` resolves its callback's result with the constructor of the promise.
class Sub extends Promise {}
const result = new Sub((resolve) => resolve(1)).finally(() => {});
assert(result instanceof Sub, "species");
same(await result, 1, "value");
