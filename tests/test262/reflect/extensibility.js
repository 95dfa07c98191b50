// preventExtensions closes an object for good.
const target = {};
same(Reflect.isExtensible(target), true, "open");
same(Reflect.preventExtensions(target), true, "closing");
same(Reflect.isExtensible(target), false, "closed");
same(Reflect.set(target, "a", 1), false, "no new property");
same(Reflect.setPrototypeOf(target, null), false, "no new prototype");
same(Reflect.setPrototypeOf(target, Object.prototype), true, "the same prototype");
