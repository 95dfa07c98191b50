// isExtensible must tell the truth, and preventExtensions must have done it.
throws(TypeError, () => Object.isExtensible(new Proxy({}, { isExtensible: () => false })), "lie");
throws(
  TypeError,
  () => Object.preventExtensions(new Proxy({}, { preventExtensions: () => true })),
  "not done",
);
throws(
  TypeError,
  () => Object.preventExtensions(new Proxy({}, { preventExtensions: () => false })),
  "refused",
);
same(Reflect.preventExtensions(new Proxy({}, { preventExtensions: () => false })), false, "Reflect");
