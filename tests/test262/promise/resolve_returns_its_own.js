// `Promise.resolve` gives back a promise of the same constructor, and wraps one of another.
class Sub extends Promise {}
const plain = Promise.resolve(1);
same(Promise.resolve(plain), plain, "the same");
assert(Sub.resolve(plain) !== plain, "wrapped");
same(Sub.resolve(plain).constructor, Sub, "constructor");
throws(TypeError, () => Promise.resolve.call(undefined, 1), "without a constructor");
