// A handler that is a proxy itself sees which trap is looked up.
const looked = [];
const proxy = new Proxy(
  {},
  new Proxy({}, {
    get(_, key) {
      looked.push(key);
    },
  }),
);
proxy.a;
proxy.a = 1;
"a" in proxy;
delete proxy.a;
Object.keys(proxy);
sameList(looked, [
  "get",
  "set",
  "getOwnPropertyDescriptor",
  "defineProperty",
  "has",
  "deleteProperty",
  "ownKeys",
], "traps");
