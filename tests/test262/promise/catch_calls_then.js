// `catch` is `then(undefined, handler)` on whatever object it is called.
const seen = [];
const result = Promise.prototype.catch.call({
  then(...args) {
    seen.push(...args);
    return "given";
  },
}, "handler");
same(result, "given", "result");
sameList(seen, [undefined, "handler"], "arguments");
