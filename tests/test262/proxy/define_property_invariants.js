// Nothing can be said to be fixed that the target has loose, or to be added to a closed target.
throws(
  TypeError,
  () =>
    Object.defineProperty(new Proxy({}, { defineProperty: () => true }), "a", {
      value: 1,
      configurable: false,
    }),
  "fixed",
);
throws(
  TypeError,
  () =>
    Object.defineProperty(new Proxy(Object.preventExtensions({}), { defineProperty: () => true }), "a", {
      value: 1,
      configurable: true,
    }),
  "closed",
);
