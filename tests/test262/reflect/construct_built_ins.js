// Built-ins take their prototype from new.target, and Object.prototype stands in for none.
class List {}
const made = Reflect.construct(Array, [3], List);
same(made.length, 3, "length");
assert(Array.isArray(made) && made instanceof List, "array");
function bare() {}
bare.prototype = null;
same(Object.getPrototypeOf(Reflect.construct(Array, [], bare)), Array.prototype, "stand-in");
