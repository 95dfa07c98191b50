// Object.defineProperty throws where Reflect.defineProperty tells false.
const proxy = new Proxy({}, { defineProperty: () => false });
throws(TypeError, () => Object.defineProperty(proxy, "a", { value: 1 }), "Object");
same(Reflect.defineProperty(proxy, "a", { value: 1 }), false, "Reflect");
