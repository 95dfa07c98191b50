// A value of the target is set on the receiver, and keeps the attributes that it has there.
const receiver = Object.defineProperty({}, "a", { value: 0, writable: true, configurable: true });
same(Reflect.set({ a: 1 }, "a", 2, receiver), true, "set");
const { value, enumerable } = Object.getOwnPropertyDescriptor(receiver, "a");
sameList([value, enumerable], [2, false], "kept");
same(Reflect.set({}, "a", 1, 5), false, "primitive receiver");
same(Reflect.set({}, "a", 1, Object.defineProperty({}, "a", { get() {} })), false, "accessor");
