// Private names never reach a trap.
class Safe {
  #secret = 1;
  static read(safe) {
    return safe.#secret;
  }
  static has(safe) {
    return #secret in safe;
  }
}
const safe = new Safe();
throws(TypeError, () => Safe.read(new Proxy(safe, { get: () => 2 })), "read");
same(Safe.has(new Proxy(safe, { has: () => true })), false, "in");
