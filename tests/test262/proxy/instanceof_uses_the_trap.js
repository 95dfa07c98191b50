// instanceof walks through getPrototypeOf.
assert(new Proxy({}, { getPrototypeOf: () => Array.prototype }) instanceof Array, "instanceof");
assert(!Array.isArray(new Proxy({}, { getPrototypeOf: () => Array.prototype })), "no array");
assert(Array.isArray(new Proxy([], {})), "an array");
