// typeof tells whether the target can be called.
same(typeof new Proxy(class {}, {}), "function", "class");
same(typeof new Proxy({}, {}), "object", "object");
const { proxy, revoke } = Proxy.revocable(() => {}, {});
revoke();
same(typeof proxy, "function", "revoked");
