// What a trap throws is what the operation throws.
const thrower = () => {
  throw new EvalError("trap");
};
const traps = new Proxy({}, { get: () => thrower });
const proxy = new Proxy(function () {}, traps);
for (
  const act of [
    () => proxy.a,
    () => "a" in proxy,
    () => proxy(),
    () => new proxy(),
    () => Object.keys(proxy),
    () => delete proxy.a,
    () => Object.getPrototypeOf(proxy),
    () => Object.isExtensible(proxy),
  ]
) {
  throws(EvalError, act, String(act));
}
