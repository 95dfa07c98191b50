// A proxy needs new and two objects.
throws(TypeError, () => Proxy({}, {}), "without new");
throws(TypeError, () => new Proxy(1, {}), "target");
throws(TypeError, () => new Proxy({}, null), "handler");
same(Proxy.length, 2, "length");
assert(!("prototype" in Proxy), "no prototype");
