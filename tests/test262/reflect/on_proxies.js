// Every function calls its trap, once.
const called = [];
const handler = new Proxy({}, {
  get(_, trap) {
    called.push(trap);
  },
});
const proxy = new Proxy(function () {}, handler);
Reflect.apply(proxy, null, []);
Reflect.construct(proxy, []);
Reflect.defineProperty(proxy, "a", { value: 1, configurable: true });
Reflect.getOwnPropertyDescriptor(proxy, "a");
Reflect.has(proxy, "a");
Reflect.deleteProperty(proxy, "a");
Reflect.getPrototypeOf(proxy);
Reflect.setPrototypeOf(proxy, null);
Reflect.isExtensible(proxy);
Reflect.preventExtensions(proxy);
Reflect.ownKeys(proxy);
sameList(called, [
  "apply",
  "construct",
  "get",
  "defineProperty",
  "getOwnPropertyDescriptor",
  "has",
  "deleteProperty",
  "getPrototypeOf",
  "setPrototypeOf",
  "isExtensible",
  "preventExtensions",
  "ownKeys",
], "traps");
