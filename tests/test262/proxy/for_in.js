// for…in asks for keys, then descriptors, then goes to the prototype.
const log = [];
const parent = { inherited: 1 };
const proxy = new Proxy(
  Object.create(parent, { own: { value: 1, enumerable: true }, hidden: { value: 1 } }),
  {
    ownKeys(target) {
      log.push("ownKeys");
      return Reflect.ownKeys(target);
    },
    getPrototypeOf(target) {
      log.push("getPrototypeOf");
      return Reflect.getPrototypeOf(target);
    },
  },
);
const keys = [];
for (const key in proxy) keys.push(key);
sameList(keys, ["own", "inherited"], "keys");
assert(log.includes("ownKeys") && log.includes("getPrototypeOf"), "traps");
