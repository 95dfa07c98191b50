// When resolving an element throws, `all` closes the iterator.
let closed = 0;
const iterable = {
  [Symbol.iterator]: () => ({
    next: () => ({ value: 1, done: false }),
    return: () => {
      closed++;
      return {};
    },
  }),
};
class Broken extends Promise {
  static resolve() {
    throw new EvalError("no");
  }
}
await rejects(EvalError, Promise.all.call(Broken, iterable), "reason");
same(closed, 1, "closed");
