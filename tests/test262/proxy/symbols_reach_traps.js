// Well-known symbols are ordinary keys for a trap.
const proxy = new Proxy({}, {
  get: (_, key) =>
    key === Symbol.toPrimitive ? (hint) => hint : key === Symbol.toStringTag ? "Fake" : undefined,
});
same(`${proxy}`, "string", "toPrimitive");
same(Object.prototype.toString.call(proxy), "[object Fake]", "tag");
