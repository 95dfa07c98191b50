// Marks what objects of this realm inherit from. Runs before the sandbox, in the realm around all contexts.
{
  const MARK = Symbol.for("cellblock.outer");
  const mark = (value, name) => {
    if (value === null || typeof value !== "object" && typeof value !== "function") return;
    try {
      Object.defineProperty(value, MARK, { value: name, configurable: true });
    } catch { /* frozen */ }
  };
  for (const name of Object.getOwnPropertyNames(globalThis)) {
    const { value } = Object.getOwnPropertyDescriptor(globalThis, name);
    mark(value, name);
    if (typeof value === "function") mark(value.prototype, `${name}.prototype`);
  }
  for (const value of [async () => {}, function* () {}, async function* () {}, [][Symbol.iterator](), new Uint8Array()]) {
    for (let o = Object.getPrototypeOf(value); o !== null; o = Object.getPrototypeOf(o)) mark(o, "intrinsic");
  }
  mark(globalThis, "globalThis");
}
