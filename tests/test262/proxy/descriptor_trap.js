// What getOwnPropertyDescriptor gives is completed, and must be an object or undefined.
const proxy = new Proxy({}, { getOwnPropertyDescriptor: () => ({ value: 1, configurable: true }) });
const descriptor = Object.getOwnPropertyDescriptor(proxy, "a");
sameList([descriptor.value, descriptor.writable, descriptor.enumerable], [1, false, false], "completed");
throws(
  TypeError,
  () => Object.getOwnPropertyDescriptor(new Proxy({}, { getOwnPropertyDescriptor: () => 1 }), "a"),
  "number",
);
throws(
  TypeError,
  () =>
    Object.getOwnPropertyDescriptor(new Proxy({}, { getOwnPropertyDescriptor: () => ({ value: 1 }) }), "a"),
  "fixed, but absent",
);
