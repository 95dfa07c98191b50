// A deleteProperty trap that refuses throws in strict code; a fixed property cannot be said to be gone.
throws(TypeError, () => {
  delete new Proxy({ a: 1 }, { deleteProperty: () => false }).a;
}, "refused");
const fixed = Object.defineProperty({}, "a", { value: 1 });
throws(TypeError, () => {
  delete new Proxy(fixed, { deleteProperty: () => true }).a;
}, "fixed");
