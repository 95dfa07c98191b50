// Proxies of arrays and objects are walked through their traps.
const seen = [];
const list = new Proxy([1, 2], {
  get(target, key) {
    if (key !== "toJSON") seen.push(key);
    return target[key];
  },
});
same(JSON.stringify(list), "[1,2]", "list");
sameList(seen, ["length", "0", "1"], "reads");
const made = new Proxy({}, {
  ownKeys: () => ["x", "hidden"],
  getOwnPropertyDescriptor: (_, key) => ({ enumerable: key === "x", configurable: true }),
  get: () => 7,
});
same(JSON.stringify(made), '{"x":7}', "object");
