// setPrototypeOf refuses cycles and immutable prototypes, and takes only objects and null.
const parent = {};
const child = Object.create(parent);
same(Reflect.setPrototypeOf(parent, child), false, "cycle");
same(Reflect.setPrototypeOf(Object.prototype, {}), false, "immutable");
throws(TypeError, () => Reflect.setPrototypeOf({}, 1), "number");
throws(TypeError, () => Reflect.setPrototypeOf({}), "undefined");
