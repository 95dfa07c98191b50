// Without traps everything goes to the target.
const target = { a: 1 };
const proxy = new Proxy(target, {});
proxy.b = 2;
delete proxy.a;
sameList(Object.keys(target), ["b"], "keys");
same(Object.getPrototypeOf(proxy), Object.prototype, "prototype");
assert("b" in proxy, "has");
