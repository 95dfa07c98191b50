// import() does not go through what a script may patch.
Promise.prototype.then = () => {
  throw new Error("patched then");
};
Promise.resolve = () => {
  throw new Error("patched resolve");
};
String.prototype.toString = () => {
  throw new Error("patched toString");
};
Object.hasOwn = () => {
  throw new Error("patched hasOwn");
};
Array.prototype[Symbol.iterator] = () => {
  throw new Error("patched iterator");
};
Object.prototype[Symbol.toPrimitive] = () => {
  throw new Error("patched toPrimitive");
};
same(typeof (await import("@codemode/errors")).CodemodeError, "function", "namespace");
