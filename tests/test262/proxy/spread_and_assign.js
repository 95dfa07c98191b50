// Spread and Object.assign read through ownKeys, descriptors and get, in this order for each key.
const log = [];
const proxy = new Proxy({ a: 1, b: 2 }, {
  ownKeys(target) {
    log.push("keys");
    return Reflect.ownKeys(target);
  },
  getOwnPropertyDescriptor(target, key) {
    log.push(`descriptor ${key}`);
    return Reflect.getOwnPropertyDescriptor(target, key);
  },
  get(target, key) {
    log.push(`get ${key}`);
    return target[key];
  },
});
const copy = { ...proxy };
sameList([copy.a, copy.b], [1, 2], "copy");
sameList(log, ["keys", "descriptor a", "get a", "descriptor b", "get b"], "log");
