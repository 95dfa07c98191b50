// The apply trap is given target, this and a list; a proxy of a function is callable without it too.
const add = (a, b) => a + b;
same(new Proxy(add, {})(1, 2), 3, "no trap");
const proxy = new Proxy(add, {
  apply: (target, receiver, args) => [target === add, receiver, args.length].join(),
});
same(proxy.call("me", 1, 2), "true,me,2", "trap");
throws(TypeError, () => new Proxy({}, { apply: () => 1 })(), "no function");
