// A fixed value and a missing getter cannot be lied about.
const fixed = Object.defineProperty({}, "a", { value: 1 });
throws(TypeError, () => new Proxy(fixed, { get: () => 2 }).a, "value");
same(new Proxy(fixed, { get: () => 1 }).a, 1, "the truth");
const mute = Object.defineProperty({}, "a", { set() {} });
throws(TypeError, () => new Proxy(mute, { get: () => 2 }).a, "getter");
