// has walks the prototype chain and converts the key.
assert(Reflect.has({ 1: 0 }, 1), "number");
assert(Reflect.has([], "push"), "inherited");
const symbol = Symbol();
assert(Reflect.has({ [symbol]: 1 }, symbol), "symbol");
assert(Reflect.has({ key: 1 }, { toString: () => "key" }), "object");
