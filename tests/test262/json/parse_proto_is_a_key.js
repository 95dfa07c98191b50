// "__proto__" makes an own property and sets no prototype.
const parsed = JSON.parse('{"__proto__":{"polluted":1}}');
same(Object.getPrototypeOf(parsed), Object.prototype, "prototype");
assert(Object.hasOwn(parsed, "__proto__"), "own");
same(parsed.polluted, undefined, "not inherited");
