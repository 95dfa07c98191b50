// The thirteen functions, with their lengths, as built-ins have them.
const lengths = {
  apply: 3,
  construct: 2,
  defineProperty: 3,
  deleteProperty: 2,
  get: 2,
  getOwnPropertyDescriptor: 2,
  getPrototypeOf: 1,
  has: 2,
  isExtensible: 1,
  ownKeys: 1,
  preventExtensions: 1,
  set: 3,
  setPrototypeOf: 2,
};
for (const [name, length] of Object.entries(lengths)) {
  same(Reflect[name].length, length, name);
  same(Object.getOwnPropertyDescriptor(Reflect, name).enumerable, false, `${name} enumerable`);
  assert(!("prototype" in Reflect[name]), `${name} prototype`);
}
