// The prototype of a closed target cannot be lied about.
const fake = {};
same(Object.getPrototypeOf(new Proxy({}, { getPrototypeOf: () => fake })), fake, "open");
throws(
  TypeError,
  () => Object.getPrototypeOf(new Proxy(Object.preventExtensions({}), { getPrototypeOf: () => fake })),
  "closed",
);
throws(TypeError, () => Object.getPrototypeOf(new Proxy({}, { getPrototypeOf: () => 1 })), "number");
throws(
  TypeError,
  () => Object.setPrototypeOf(new Proxy({}, { setPrototypeOf: () => false }), null),
  "refused",
);
