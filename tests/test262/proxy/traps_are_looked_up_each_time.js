// Traps may be changed; null is no trap, and what is no function throws.
const handler = { get: () => 1 };
const proxy = new Proxy({ a: 0 }, handler);
same(proxy.a, 1, "trap");
handler.get = null;
same(proxy.a, 0, "null");
handler.get = 1;
throws(TypeError, () => proxy.a, "number");
