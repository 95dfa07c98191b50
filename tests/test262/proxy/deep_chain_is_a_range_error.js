// A chain too long for the stack is a RangeError, and the script goes on.
let proxy = {};
for (let depth = 0; depth < 200_000; depth++) proxy = new Proxy(proxy, {});
throws(RangeError, () => proxy.a, "too deep");
