// Object.keys asks for the descriptor of every key; Reflect.ownKeys does not.
const asked = [];
const proxy = new Proxy({}, {
  ownKeys: () => ["a", "b"],
  getOwnPropertyDescriptor(_, key) {
    asked.push(key);
    return key === "b" ? { enumerable: true, configurable: true } : undefined;
  },
});
sameList(Object.keys(proxy), ["b"], "keys");
sameList(asked, ["a", "b"], "asked");
sameList(Reflect.ownKeys(proxy), ["a", "b"], "all");
