// A set trap that refuses throws in strict code, and Reflect.set tells false.
const proxy = new Proxy({}, { set: () => false });
throws(TypeError, () => {
  proxy.a = 1;
}, "strict");
same(Reflect.set(proxy, "a", 1), false, "Reflect.set");
