// Without a set trap, the receiver's defineProperty is what sets.
const keys = [];
const proxy = new Proxy({}, {
  defineProperty(target, key, descriptor) {
    keys.push([key, Object.keys(descriptor).join()].join(":"));
    return Reflect.defineProperty(target, key, descriptor);
  },
});
proxy.a = 1;
proxy.a = 2;
sameList(keys, ["a:value,writable,enumerable,configurable", "a:value"], "descriptors");
