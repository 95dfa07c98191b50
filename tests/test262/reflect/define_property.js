// defineProperty tells false where Object.defineProperty throws.
const fixed = Object.freeze({ a: 1 });
same(Reflect.defineProperty({}, "a", { value: 1 }), true, "new");
same(Reflect.defineProperty(fixed, "a", { value: 2 }), false, "fixed");
same(Reflect.defineProperty(fixed, "a", { value: 1 }), true, "no change");
throws(TypeError, () => Reflect.defineProperty({}, "a", 1), "no descriptor");
throws(TypeError, () => Reflect.defineProperty({}, "a", { get: 1 }), "bad descriptor");
