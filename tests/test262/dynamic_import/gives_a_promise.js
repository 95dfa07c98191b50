// import() gives a native promise, another one each time, of the same namespace.
const first = import("@codemode/errors");
const second = import("@codemode/errors");
same(Object.getPrototypeOf(first), Promise.prototype, "promise");
assert(first !== second, "another promise");
same(await first, await second, "the same namespace");
