// After revoke everything throws, and revoking again does nothing.
const { proxy, revoke } = Proxy.revocable({ a: 1 }, {});
same(proxy.a, 1, "before");
revoke();
revoke();
throws(TypeError, () => proxy.a, "get");
throws(TypeError, () => {
  proxy.a = 1;
}, "set");
throws(TypeError, () => Object.keys(proxy), "ownKeys");
throws(TypeError, () => Array.isArray(proxy), "isArray");
throws(TypeError, () => new Proxy(proxy, {}).a, "a proxy of it");
