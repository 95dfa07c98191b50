// A namespace has a tag, no prototype, sorted names, and writable but unsettable values.
const space = await import("@codemode/errors");
same(space[Symbol.toStringTag], "Module", "tag");
same(Object.getPrototypeOf(space), null, "prototype");
same(Object.isFrozen(space), false, "not frozen");
same(Object.isSealed(space), true, "sealed");
const names = Object.keys(space);
sameList(names, [...names].sort(), "sorted");
throws(TypeError, () => {
  space.CodemodeError = 1;
}, "set");
throws(TypeError, () => {
  delete space.CodemodeError;
}, "delete");
throws(TypeError, () => {
  space.more = 1;
}, "add");
