// A module namespace: no prototype, sorted names, values that cannot be set, deleted or redefined.
import * as space from "@codemode/errors";
same(Reflect.getPrototypeOf(space), null, "prototype");
same(Reflect.isExtensible(space), false, "closed");
same(Reflect.preventExtensions(space), true, "already");
const names = Reflect.ownKeys(space).filter((key) => typeof key === "string");
sameList(names, [...names].sort(), "sorted");
const descriptor = Reflect.getOwnPropertyDescriptor(space, "ToolCallError");
sameList(
  [descriptor.writable, descriptor.enumerable, descriptor.configurable],
  [true, true, false],
  "attributes",
);
same(Reflect.set(space, "ToolCallError", 1), false, "set");
same(Reflect.deleteProperty(space, "ToolCallError"), false, "delete");
same(Reflect.deleteProperty(space, "missing"), true, "delete what is not there");
same(Reflect.defineProperty(space, "ToolCallError", { value: 1 }), false, "define");
same(Reflect.setPrototypeOf(space, null), true, "the same prototype");
same(Reflect.setPrototypeOf(space, {}), false, "another prototype");
