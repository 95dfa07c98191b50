// No function takes a primitive as its target.
for (
  const name of [
    "defineProperty",
    "deleteProperty",
    "get",
    "getOwnPropertyDescriptor",
    "getPrototypeOf",
    "has",
    "isExtensible",
    "ownKeys",
    "preventExtensions",
    "set",
    "setPrototypeOf",
  ]
) {
  for (const target of [undefined, null, 1, "text", Symbol(), 1n]) {
    throws(TypeError, () => Reflect[name](target, "length", {}), name);
  }
}
