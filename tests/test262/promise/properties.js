// The constructor's and the prototype's properties are as built-ins have them.
same(Promise.length, 1, "length");
same(Promise.prototype[Symbol.toStringTag], "Promise", "tag");
same(Promise[Symbol.species], Promise, "species");
for (const name of ["then", "catch", "finally"]) {
  const { writable, enumerable, configurable } = Object.getOwnPropertyDescriptor(Promise.prototype, name);
  sameList([writable, enumerable, configurable], [true, false, true], name);
  throws(TypeError, () => new Promise.prototype[name](), `new ${name}`);
}
