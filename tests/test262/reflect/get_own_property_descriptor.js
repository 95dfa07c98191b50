// The descriptor is complete, a copy, and undefined for what is inherited.
const target = { a: 1 };
const descriptor = Reflect.getOwnPropertyDescriptor(target, "a");
sameList(Object.keys(descriptor), ["value", "writable", "enumerable", "configurable"], "keys");
descriptor.value = 2;
same(target.a, 1, "copy");
same(Reflect.getOwnPropertyDescriptor(target, "toString"), undefined, "inherited");
