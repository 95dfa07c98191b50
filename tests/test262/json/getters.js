// Getters are called in the order of the keys, and their exceptions go through.
const order = [];
same(
  JSON.stringify({
    get b() {
      order.push("b");
      return 1;
    },
    get a() {
      order.push("a");
      return 2;
    },
  }),
  '{"b":1,"a":2}',
  "text",
);
sameList(order, ["b", "a"], "order");
throws(URIError, () =>
  JSON.stringify({
    get a() {
      throw new URIError();
    },
  }), "exception");
