// `in` and `with`-free look-ups call has; a fixed property cannot be hidden.
const target = Object.defineProperty({ loose: 1 }, "fixed", { value: 1 });
const proxy = new Proxy(target, { has: () => false });
same("loose" in proxy, false, "hidden");
throws(TypeError, () => "fixed" in proxy, "fixed");
same(Reflect.has(Object.create(proxy), "loose"), false, "inherited");
