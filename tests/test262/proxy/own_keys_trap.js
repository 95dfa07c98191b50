// ownKeys must give strings and symbols, each once, and all fixed ones.
throws(TypeError, () => Reflect.ownKeys(new Proxy({}, { ownKeys: () => [1] })), "number");
throws(TypeError, () => Reflect.ownKeys(new Proxy({}, { ownKeys: () => ["a", "a"] })), "twice");
throws(TypeError, () => Reflect.ownKeys(new Proxy(Object.freeze({ a: 1 }), { ownKeys: () => [] })), "fixed");
sameList(Reflect.ownKeys(new Proxy({}, { ownKeys: () => ({ length: 1, 0: "x" }) })), ["x"], "array-like");
