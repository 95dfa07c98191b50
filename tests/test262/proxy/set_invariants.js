// A fixed value cannot be said to have been set.
const fixed = Object.defineProperty({}, "a", { value: 1 });
const proxy = new Proxy(fixed, { set: () => true });
throws(TypeError, () => {
  proxy.a = 2;
}, "value");
proxy.a = 1;
