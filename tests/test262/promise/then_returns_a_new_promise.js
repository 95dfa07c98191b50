// `then` gives a promise of its own for every call.
const first = Promise.resolve(1);
const second = first.then((value) => value);
assert(first !== second, "another promise");
assert(second instanceof Promise, "a promise");
same(await second, 1, "value");
